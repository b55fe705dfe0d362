"""A purge by what people have: lists of ids or URLs, conditions, sources, input files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lineage.purge.plan import plan_purge
from lineage.recipe import RecipeError
from lineage.store.sql import query
from lineage.trace.tracer import UnknownError
from pipeline.inspect.purge_targets import listed_targets, targets_of_file, targets_of_source, targets_where
from tests.support.outputs.small_out.hooks import plan_hooks
from tests.support.outputs.small_out.output import SmallOut, make_small_out

UNKNOWN = "f" * 32


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SmallOut:
    return make_small_out(str(tmp_path_factory.mktemp("small") / "out"))


def ids_where(made: SmallOut, condition: str) -> list[str]:
    rows = query(made.folder, f"SELECT DISTINCT doc_id FROM documents WHERE {condition} ORDER BY 1").rows
    return [str(row[0]) for row in rows]


def as_text(names: list[str]) -> bytes:
    return ("# a takedown\n\n" + "\n".join(names) + "\n").encode()


def as_csv(names: list[str], *header: str) -> bytes:
    file = io.StringIO()
    rows = csv.writer(file)
    if header:
        rows.writerow(header)
    rows.writerows([name, *["x"] * (len(header) - 1)] for name in names)
    return file.getvalue().encode("utf-8-sig")


def as_parquet(names: list[str]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"note": ["x"] * len(names), "doc_id": [bytes.fromhex(name) for name in names]}), file)
    return file.getvalue()


@pytest.mark.parametrize(("name", "written"), [
    ("list.txt", as_text),
    ("list.csv", lambda names: as_csv(names, "doc_id", "why")),
    ("plain.csv", as_csv),
    ("list.parquet", as_parquet),
])  # fmt: skip
def test_a_list_of_ids_names_those_that_are_there(
    made: SmallOut, tmp_path: Path, name: str, written: Callable[[list[str]], bytes]
) -> None:
    ids = ids_where(made, "status = 'kept'")[:3]
    (tmp_path / name).write_bytes(written([*ids, UNKNOWN, ids[0]]))
    found = listed_targets(made.folder, str(tmp_path / name), plan_hooks())
    assert (found.match.kind, list(found.match.values), found.unknown) == ("doc", ids, (UNKNOWN,))
    targets = {row.doc_id.hex() for row in plan_purge(made.folder, found.match, plan_hooks()).rows}
    assert targets >= set(ids)


def test_a_list_of_urls_names_the_documents_of_each_in_any_spelling(made: SmallOut, tmp_path: Path) -> None:
    url, doc_id = query(
        made.folder,
        "SELECT url, doc_id FROM documents WHERE status = 'kept' AND url IS NOT NULL AND cluster_id IS NULL LIMIT 1",
    ).rows[0]
    listed = [str(url).replace("https://", "HTTPS://"), "https://nowhere.example/"]
    (tmp_path / "urls.csv").write_bytes(as_csv(listed, "url"))
    hooks = plan_hooks()
    found = listed_targets(made.folder, str(tmp_path / "urls.csv"), hooks)
    assert (found.match.kind, found.match.values, found.unknown) == ("url", (listed[0],), (listed[1],))
    assert str(doc_id) in {row.doc_id.hex() for row in plan_purge(made.folder, found.match, hooks).rows}


@pytest.mark.parametrize(("name", "data", "words"), [
    ("a.txt", as_text([UNKNOWN, "https://a.example/"]), "in two lists"),
    ("a.txt", b"# nothing\n", "lists nothing"),
    ("a.csv", as_csv([UNKNOWN], "name", "why"), "expected a column doc_id, id, url; it has name, why"),
    ("a.parquet", b"not Parquet", "cannot be read"),
    ("a.txt", b"\xff\xfe\x00", "cannot be read"),
    ("a.csv", as_csv(["www.example.org"]), None),
])  # fmt: skip
def test_a_list_that_cannot_be_used_says_why(
    made: SmallOut, tmp_path: Path, name: str, data: bytes, words: str | None
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(RecipeError if words else UnknownError, match=words or "none of its 1 ids or URLs"):
        listed_targets(made.folder, str(tmp_path / name), plan_hooks())


def test_a_missing_list_is_an_error_of_the_call(made: SmallOut, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot be read"):
        listed_targets(made.folder, str(tmp_path / "none.txt"), plan_hooks())


def test_a_condition_a_source_and_a_file_name_all_their_documents(made: SmallOut) -> None:
    condition = "source = 'web' AND num_chars > 300 -- long ones"
    found = targets_where(made.folder, condition).match
    assert list(found.values) == ids_where(made, "source = 'web' AND num_chars > 300")
    assert json.loads(found.as_json())["named_by"] == f"--where {condition}"
    assert list(targets_of_source(made.folder, "books").match.values) == ids_where(made, "source = 'books'")
    file = str(query(made.folder, "SELECT min(warc_file) FROM documents WHERE source = 'web'").rows[0][0])
    of_file = ids_where(made, f"warc_file = '{file}'")
    assert list(targets_of_file(made.folder, file).match.values) == of_file
    assert list(targets_of_file(made.folder, f"/data/crawl/{file}").match.values) == of_file


def test_what_names_nothing_is_an_error_that_helps(made: SmallOut) -> None:
    with pytest.raises(RecipeError, match="expected a condition"):
        targets_where(made.folder, "hots = 'a'")
    with pytest.raises(UnknownError, match="holds for no document"):
        targets_where(made.folder, "host = 'nowhere.example'")
    with pytest.raises(RecipeError, match="has 'books', 'web'"):
        targets_of_source(made.folder, "wbe")
    with pytest.raises(RecipeError, match="names 0 input files"):
        targets_of_file(made.folder, "nowhere.warc.gz")
