"""Inputs that no reader is for are named before a run starts anything."""

from __future__ import annotations

import gzip
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lineage.recipe import RecipeError
from pipeline.inputs.files import Input, list_inputs
from pipeline.inputs.kinds import check_kinds
from pipeline.plan import plan_run
from pipeline.recipe.tables import LimitsTable, PipelineRecipe, RunTable, SourceTable
from tests.support.stores.loopback import Handler, serving

ROW = b'{"text": "a"}\n'
WIDE = b"\x28\xb5\x2f\xfd\x00\xa8" + (len(ROW) << 3 | 1).to_bytes(3, "little") + ROW
"""A zstd frame with a window of 2 GiB."""


def recipe(folder: Path, *names: str, **limits: int) -> PipelineRecipe:
    source = SourceTable(name="posts", inputs=tuple(str(folder / name) for name in names))
    return PipelineRecipe(
        run=RunTable(name="r", output=str(folder / "out")), source=(source,), limits=LimitsTable(**limits)
    )


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.jsonl.lz4", b"\x04\x22\x4d\x18" + bytes(20), "compressed with LZ4: .*unpack it first"),
        ("a.jsonl.gz", gzip.compress(b"<html>404", mtime=0), "unpacked it is an HTML page"),
        ("a.orc", b"ORC" + bytes(20), "an ORC file: write it as Parquet or JSON lines first"),
        ("a.jsonl.br", b"\x1b\x03", "by its name it is compressed with Brotli"),
    ],
)
def test_a_plan_names_a_file_that_is_not_read_and_what_to_do(
    tmp_path: Path, name: str, data: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(data)
    (tmp_path / "b.jsonl").write_bytes(ROW)
    with pytest.raises(RecipeError, match=rf"source.inputs of 'posts': .*{name} cannot be read: .*{says}"):
        plan_run(recipe(tmp_path, "*.*"))
    (tmp_path / f"c-{name}").write_bytes(data)
    with pytest.raises(RecipeError, match="; 1 more files cannot be read either"):
        plan_run(recipe(tmp_path, "*.*"))


def test_a_file_among_many_that_is_not_read_does_not_keep_a_run_from_starting(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"<html>404"))
    (tmp_path / "b.jsonl").write_bytes(1_000 * ROW)
    assert len(plan_run(recipe(tmp_path, "*.*")).units) == 2
    (tmp_path / "b.jsonl").write_bytes(100 * ROW)
    with pytest.raises(RecipeError, match=r"it is an HTML page.*source.format = .file."):
        plan_run(recipe(tmp_path, "*.*"))


def test_a_window_above_the_bound_is_named_with_its_key_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.zst").write_bytes(WIDE)
    with pytest.raises(RecipeError, match=r"set limits\.max_window_bytes = 2147483648 to read it"):
        plan_run(recipe(tmp_path, "a.jsonl.zst"))
    assert len(plan_run(recipe(tmp_path, "a.jsonl.zst", max_window_bytes=1 << 31)).units) == 1


def test_of_remote_files_the_first_of_each_ending_is_looked_at() -> None:
    asked: list[str] = []

    class Pages(Handler):
        def answer(self) -> None:
            asked.append(self.path)
            data = b"PK\x03\x04" if self.path.endswith(".zip") else ROW
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.sends_body:
                self.wfile.write(data)

    with serving(Pages) as url:
        inputs = [
            Input(
                source="s",
                index=0,
                name=name,
                url=f"{url}/{name}",
                size=4 if name.endswith("zip") else len(ROW),
            )
            for name in ("a.jsonl", "b.jsonl", "c.zip")
        ]
        with pytest.raises(RecipeError, match=r"c.zip cannot be read: it is a ZIP archive"):
            check_kinds(inputs, SourceTable(name="s", inputs=(url,)), LimitsTable())
    assert sorted(asked) == ["/a.jsonl", "/c.zip"]


def test_a_file_that_cannot_be_opened_is_left_to_its_reading(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(ROW)
    source = SourceTable(name="s", inputs=(str(tmp_path / "a.jsonl"),))
    found = list_inputs(source)
    (tmp_path / "a.jsonl").unlink()
    check_kinds(found, source, LimitsTable())


def parquet(*columns: str) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({name: ["one"] for name in columns}), sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "fields", "says"),
    [
        (
            "a.jsonl",
            b'{"body": "a"}\n' * 2,
            {},
            "there is no field 'text', only body: name the right one as source.te",
        ),
        ("a.jsonl.gz", gzip.compress(b'{"body": "a"}\n', mtime=0), {}, "there is no field 'text', only body"),
        ("a.jsonl", b'{"text": "a"}\n', {"text_field": "body"}, "there is no field 'body', only text"),
        (
            "a.parquet",
            parquet("body", "id"),
            {},
            "there is no column 'text', only body, id: name the right one as",
        ),
        (
            "a.parquet",
            parquet("text"),
            {"url_field": "link"},
            "there is no column 'link', only text: .*source.url_field",
        ),
    ],
)
def test_a_field_that_no_row_has_is_named_with_those_that_there_are(
    tmp_path: Path, name: str, data: bytes, fields: dict[str, Any], says: str
) -> None:
    (tmp_path / name).write_bytes(data)
    plain = recipe(tmp_path, name)
    wrong = replace(plain, source=(replace(plain.source[0], **fields),))
    with pytest.raises(RecipeError, match=rf"source 'posts': .*{name}: {says}"):
        plan_run(wrong)


@pytest.mark.parametrize(
    "data",
    [b'{"body": "a"}\n{"text": "b"}\n', b"not JSON\n", b"", b"\n\n"],
    ids=["one row", "damage", "empty", "blank"],
)
def test_rows_that_are_wrong_otherwise_are_counted_by_the_run(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(data)
    assert len(plan_run(recipe(tmp_path, "a.jsonl")).units) == 1


def named(folder: Path, **fields: str) -> PipelineRecipe:
    plain = recipe(folder, "*.*")
    return replace(plain, source=(replace(plain.source[0], **fields),))


@pytest.mark.parametrize("key", ["id_field", "url_field", "date_field"])
@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "parquet"])
def test_each_key_that_names_a_field_is_checked_in_each_kind_of_file(
    tmp_path: Path, key: str, ending: str
) -> None:
    data = parquet("text", "x") if ending == "parquet" else b'{"text": "a", "x": "b"}\n' * 30
    (tmp_path / f"a.{ending}").write_bytes(gzip.compress(data) if ending.endswith("gz") else data)
    says = rf"there is no (field|column) 'nope', only text, x: name the right one as source.{key}"
    with pytest.raises(RecipeError, match=says) as raised:
        plan_run(named(tmp_path, **{key: "nope"}))
    assert raised.value.key == f"source.{key}"


def test_one_file_of_many_that_lacks_a_field_is_named(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.jsonl").write_bytes(b'{"text": "a", "page": {"url": null}}\n' * 3)
        (tmp_path / f"{number}.parquet").write_bytes(parquet("text", "page.url"))
    assert len(plan_run(named(tmp_path, url_field="page.url")).units) == 10
    (tmp_path / "3.jsonl").write_bytes(b'{"text": "a", "page": {}}\n' * 3)
    with pytest.raises(
        RecipeError, match=r"3.jsonl: there is no field 'page.url', only text, page: .*url_field"
    ):
        plan_run(named(tmp_path, url_field="page.url"))
    (tmp_path / "3.jsonl").unlink()
    (tmp_path / "4.parquet").write_bytes(parquet("text", "other"))
    with pytest.raises(RecipeError, match=r"4.parquet: there is no column 'page.url', only text, other"):
        plan_run(named(tmp_path, url_field="page.url"))


@pytest.mark.parametrize(
    "data",
    [
        b'{"text": "a"}\n' * 19 + b'{"text": "a", "k": 1}\n',
        b'{"text": "a", "k": null}\n{"text": "b"}\n',
        b'not JSON\n{"text": "a", "k": 1.0}\n',
    ],
    ids=["the twentieth", "null", "behind damage"],
)
def test_a_field_that_one_of_the_first_rows_has_is_there(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(data)
    assert len(plan_run(named(tmp_path, id_field="k")).units) == 1


def test_fields_within_the_elements_of_a_list_are_looked_for_there(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"files": []}\n{"files": [{"body": "a", "path": "b"}]}\n')
    assert plan_run(named(tmp_path, text_field="files[].body", id_field="files[].path")).units
    with pytest.raises(RecipeError, match=r"no field 'files\[\].name', only files: .*id_field"):
        plan_run(named(tmp_path, text_field="files[].body", id_field="files[].name"))


def test_fields_of_files_whose_records_have_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.warc").write_bytes(b"WARC/1.0\r\nWARC-Type: warcinfo\r\nContent-Length: 0\r\n\r\n\r\n\r\n")
    assert plan_run(named(tmp_path)).units
    with pytest.raises(RecipeError, match=r"its files hold records without fields"):
        plan_run(named(tmp_path, id_field="k"))
