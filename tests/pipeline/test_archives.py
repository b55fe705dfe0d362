"""ARC and WACZ inputs through a whole run and what is asked of its output: places, reading again, purges,
exports."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from warcio.archiveiterator import ArchiveIterator

from lineage.storage.folder import Folder
from lineage.verify.output import verify
from pipeline.cli.main import main
from pipeline.demo.pages import render_page, write_article
from pipeline.inspect.hooks import verify_hooks
from tests.support.inputs.make_warc import arc_begin, arc_record, http, member, record, wacz
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import recipe, write_recipe

Say = Callable[..., tuple[int, Any]]


def pages(host: str, rng: random.Random, num: int = 3) -> dict[str, bytes]:
    return {
        f"https://{host}/{number}": render_page(write_article("en", rng), host, rng) for number in range(num)
    }


def warc_of(found: dict[str, bytes], **fields: str) -> bytes:
    return b"".join(
        member(record(http(html), url, warc_target_uri=url, **fields)) for url, html in found.items()
    )


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A run over an ARC file, a WACZ file whose archives are stored, one whose archives are deflated, and a
    WARC with cut pages and a JSON record."""
    folder, rng = tmp_path_factory.mktemp("archives"), random.Random(5)
    old, stored, packed, cut = (pages(f"{name}.example", rng) for name in ("old", "stored", "packed", "cut"))
    arc = [arc_begin(), *(arc_record(http(html), url) for url, html in old.items())]
    (folder / "old.arc.gz").write_bytes(b"".join(map(member, arc)))
    archives = {f"archive/{n}.warc.gz": warc_of({url: html}) for n, (url, html) in enumerate(stored.items())}
    (folder / "stored.wacz").write_bytes(wacz(archives))
    archives = {f"archive/{n}.warc.gz": warc_of({url: html}) for n, (url, html) in enumerate(packed.items())}
    (folder / "packed.wacz").write_bytes(wacz(archives, zipfile.ZIP_DEFLATED))
    (first, html), *rest = cut.items()
    short = record(http(html), first, warc_target_uri=first, content_length="200")
    told = warc_of(dict(rest[:1]), WARC_Truncated="length") + warc_of(dict(rest[1:]), WARC_Segment_Number="1")
    data = record(http(b'{"words": "and more words"}', "application/json"), "json")
    (folder / "cut.warc.gz").write_bytes(member(short) + told + member(data))
    plain = recipe(str(folder / "out"), {"web": (str(folder / "*.*a*"),)}, quality={"rules": []})
    plain["source"][0]["mime"] = ["application/json"]
    assert main(["run", str(write_recipe(folder / "recipe.toml", plain))]) == 0
    return Folder(str(folder / "out"))


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Calls the command line with --json: exit code, and what it printed."""

    def call(*words: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = main([*words, "--json"])
        printed = capsys.readouterr().out
        return code, json.loads(printed) if printed else None

    return call


def ask(out: Folder, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in query(out, sql).rows]


def test_the_run_read_every_page_and_holds(out: Folder) -> None:
    assert ask(out, "SELECT warc_file, count(*) FROM documents GROUP BY 1 ORDER BY 1") == [
        ("cut.warc.gz", 4), ("old.arc.gz", 3), ("packed.wacz", 3), ("stored.wacz", 3),
    ]  # fmt: skip
    assert ask(out, "SELECT * FROM unreadable") == []
    assert not verify(out, verify_hooks(out)).problems
    notes = {Path(file).name: json.loads(found) for file, found in ask(out, "SELECT file, notes FROM inputs")}
    assert notes == {
        "cut.warc.gz": {"mended": 1},
        "old.arc.gz": {},
        "packed.wacz": {"other_members": 3},
        "stored.wacz": {"other_members": 3},
    }


def test_what_is_cut_off_is_a_column_and_told_in_the_report(out: Folder) -> None:
    rows = ask(out, "SELECT url, truncated FROM documents WHERE truncated IS NOT NULL ORDER BY url")
    assert rows == [("https://cut.example/1", "length"), ("https://cut.example/2", "segment")]
    report = (Path(out.url) / "report.html").read_text()
    assert "Pages that were cut off" in report
    assert "1 record with a wrong Content-Length" in report


def test_each_place_leads_to_its_document_and_back(out: Folder, say: Say) -> None:
    rows = ask(out, "SELECT doc_id, warc_file, warc_offset FROM documents")
    for doc_id, file, offset in rows:
        code, found = say("trace", out.url, "--warc", file, "--offset", str(offset))
        assert (code, [each["doc_id"] for each in found["documents"]]) == (0, [doc_id])
        code, found = say("explain", out.url, "--doc", doc_id)
        assert (code, found["doc_id"]) == (0, doc_id)
        path = Path(out.url).parent / file
        code, found = say(
            "explain", str(path.parent / "recipe.toml"), "--warc", str(path), "--offset", str(offset)
        )
        assert (code, found["doc_id"]) == (0, doc_id)


def test_records_are_exported_as_they_were_read(out: Folder, say: Say) -> None:
    place = Path(out.url).parent / "warc"  # a later purge looks for it there
    code, _ = say("export", out.url, "--format", "warc", "--to", str(place), "--address", "none")
    assert code == 0
    exported = {}
    for path in place.rglob("*.warc.gz"):
        for found in ArchiveIterator(io.BytesIO(path.read_bytes())):
            exported[found.rec_headers.get_header("WARC-Target-URI")] = len(found.content_stream().read())
            assert found.rec_headers.get_header("WARC-Record-ID")
    kept = ask(out, "SELECT url FROM documents WHERE status = 'kept' ORDER BY 1")
    assert sorted(exported) == [url for (url,) in kept]
    assert exported["https://cut.example/0"] > 200


@pytest.mark.parametrize("file", ["packed.wacz", "old.arc.gz"])
def test_an_input_file_is_purged_as_a_whole(out: Folder, say: Say, file: str) -> None:
    ids = {doc_id for (doc_id,) in ask(out, f"SELECT doc_id FROM documents WHERE warc_file = '{file}'")}
    path = str(Path(out.url).parent / file)
    code, _ = say("purge", out.url, "--warc", path, "--reason", "asked", "--by", "me", "--apply")
    assert code == 0
    assert {doc_id for (doc_id,) in ask(out, "SELECT doc_id FROM purged WHERE role = 'target'")} >= ids
    assert not verify(out, verify_hooks(out)).problems


def test_pages_that_are_cut_off_can_be_turned_down(out: Folder, say: Say) -> None:
    folder = Path(out.url).parent
    other = f"run.output={folder / 'whole'}"
    code, _ = say("run", str(folder / "recipe.toml"), "--set", other, "--set", "url.truncated=reject")
    assert code == 0
    whole = Folder(str(folder / "whole"))
    assert ask(whole, "SELECT url, stage, status FROM documents WHERE rule = 'url.truncated' ORDER BY 1") == [
        ("https://cut.example/1", "url", "rejected"), ("https://cut.example/2", "url", "rejected"),
    ]  # fmt: skip
    code, _ = say(
        "run",
        str(folder / "recipe.toml"),
        "--set",
        f"run.output={folder / 'bad'}",
        "--set",
        "url.truncated=x",
    )
    assert code == 2
