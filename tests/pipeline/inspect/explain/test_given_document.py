"""The document that `explain` is given: pages, plain texts, lines and rows, and files that are not what a
call says."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.inspect.explain.given_document import why_no_page
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import recipe, run, write_recipe

Answer = Callable[..., tuple[int, Any, str]]
TEXT = "The town council met in the old hall to talk about the bridge over the river. " * 12


@pytest.fixture
def answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Answer:
    """`explain` with a recipe of two sources: exit code, JSON or None, stderr."""
    plain = recipe(str(tmp_path / "out"), {"web": ("nowhere/*.warc",), "rows": (str(tmp_path / "rows.*"),)})
    plain["source"][1]["text_field"] = "body"
    path = str(write_recipe(tmp_path / "recipe.toml", plain))

    def call(*words: str) -> tuple[int, Any, str]:
        code = main(["explain", path, *words, "--json"])
        said = capsys.readouterr()
        return code, json.loads(said.out) if said.out else None, said.err

    return call


def test_a_plain_text_is_judged_as_one(answer: Answer, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text(TEXT + "Is 3 < 4 and <b> no tag?")
    code, told, _ = answer("--text", str(tmp_path / "note.txt"), "--url", "https://example.org/note")
    assert code == 0
    assert told["url"] == "https://example.org/note"
    assert told["text"].endswith("Is 3 < 4 and <b> no tag?")
    assert told["language"] == "en"


def test_a_line_and_a_row_are_the_documents_of_a_run(answer: Answer, tmp_path: Path) -> None:
    rows = [{"body": f"{n} {TEXT}", "url": f"https://example.org/{n}"} for n in range(3)]
    lines = [json.dumps(row) + "\n" for row in rows]
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    plain = recipe(str(tmp_path / "out"), {"rows": (str(tmp_path / "rows.*"),)}, ray={"address": "none"})
    plain["source"][0]["text_field"] = "body"
    run(tmp_path / "run", plain)
    ids = {
        url: doc_id.hex() if isinstance(doc_id, bytes) else doc_id
        for url, doc_id in query(Folder(str(tmp_path / "out")), "SELECT url, doc_id FROM documents").rows
    }
    second = str(len(lines[0].encode()))
    code, told, said = answer("--file", str(tmp_path / "rows.jsonl"), "--offset", second, "--source", "rows")
    assert code == 0, said
    assert told["doc_id"] == ids["https://example.org/1"]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    code, told, said = answer("--file", str(tmp_path / "rows.parquet"), "--row", "2", "--source", "rows")
    assert code == 0, said
    assert (told["url"], told["text"][:1]) == ("https://example.org/2", "2")


def test_an_offset_within_a_document_is_answered_with_the_nearest_ones(
    answer: Answer, tmp_path: Path
) -> None:
    lines = [json.dumps({"body": f"{n} {TEXT}"}) + "\n" for n in range(3)]
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    first, second = len(lines[0].encode()), len("".join(lines[:2]).encode())
    words = ("--file", str(tmp_path / "rows.jsonl"), "--source", "rows", "--offset")
    for offset, nearest in (
        (first + 1, f"offset {first} and offset {second}"),
        (3, f"offset 0 and offset {first}"),
        (9 * second, f"offset {second}"),
    ):
        code, _, complaint = answer(*words, str(offset))
        assert code == 1
        assert complaint.rstrip().endswith(f"; the nearest documents: {nearest}")
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + PAGE
    head = (
        b"WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:0>\r\nWARC-Target-URI: https://a.example/\r\n"
        b"WARC-Date: 2026-01-01T00:00:00Z\r\nContent-Type: application/http; msgtype=response\r\n"
    )
    record = head + b"Content-Length: %d\r\n\r\n" % len(page) + page + b"\r\n\r\n"
    (tmp_path / "two.warc").write_bytes(record * 2)
    code, _, complaint = answer("--warc", str(tmp_path / "two.warc"), "--offset", "7", "--source", "web")
    assert code == 1
    assert complaint.rstrip().endswith(f"; the nearest documents: offset 0 and offset {len(record)}")


def test_an_element_of_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = recipe(str(tmp_path / "out"), {"repos": ("nowhere/*",)})
    plain["source"][0]["text_field"] = "files[].content"
    path = str(write_recipe(tmp_path / "recipe.toml", plain))
    table = [{"files": [{"content": f"{row} {n} {TEXT}"} for n in range(3)]} for row in range(2)]
    pq.write_table(pa.Table.from_pylist(table), tmp_path / "repos.parquet")
    words = ["--file", str(tmp_path / "repos.parquet"), "--row", "1", "--element", "2", "--json"]
    assert main(["explain", path, *words]) == 0
    assert json.loads(capsys.readouterr().out)["text"].startswith("1 2 ")


PAGE = b"<html><body><p>Hello</p></body></html>"
NO_PAGES: dict[str, tuple[bytes, str]] = {
    "empty": (b" \n", "it holds nothing"),
    "lines.jsonl": (json.dumps({"text": "<p>Hello</p>"}).encode() + b"\n", "with --offset N"),
    "rows.parquet": (b"PAR1....PAR1", "with --row N"),
    "a.warc": (b"WARC/1.0\r\nWARC-Type: response\r\n\r\n" + PAGE, "--warc FILE --offset N"),
    "a.html.gz": (gzip.compress(PAGE), "it is compressed"),
    "a.html": (b"%PDF-1.7 <p>\n", "it is a PDF document"),
    "a.png": (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "bytes that no text has"),
    "note": (b"Is 3 < 4? A plain text.\n", "--text FILE"),
}


@pytest.mark.parametrize("name", NO_PAGES)
def test_what_is_no_page_is_refused_with_what_it_is(answer: Answer, tmp_path: Path, name: str) -> None:
    data, said = NO_PAGES[name]
    (tmp_path / name).write_bytes(data)
    code, told, complaint = answer("--file", str(tmp_path / name))
    assert (code, told) == (2, None)
    assert said in complaint


@pytest.mark.parametrize(
    "data",
    [
        PAGE,
        b"\xef\xbb\xbf<!DOCTYPE html>" + PAGE,
        b"Warning: mysql_connect() in /srv/www/a.php on line 3\n" + PAGE,
        b"<meta charset=utf-8>Hello",
        b'<?xml version="1.0"?>\n<html xmlns="http://www.w3.org/1999/xhtml"><p>Hello</p></html>',
        PAGE.decode().encode("utf-16"),
        "Grüße<br>".encode("cp1252"),
    ],
)
def test_pages_as_the_web_has_them_are_pages(data: bytes) -> None:
    assert why_no_page(data, "page.html") is None


@pytest.mark.parametrize(
    ("name", "data", "words", "said"),
    [
        ("a.html", PAGE, ["--file", "a.html", "--offset", "0"], "a page is read as a whole"),
        (
            "a.jsonl",
            b'{"text": "a"}\n',
            ["--file", "a.jsonl", "--row", "0"],
            "--row goes with a Parquet file",
        ),
        ("b.jsonl", b"no object\n", ["--file", "b.jsonl", "--offset", "0"], "expected JSON lines"),
        ("a.txt", b"a\x00b", ["--text", "a.txt"], "it is no text"),
        ("c", b"x", ["--text", "gone.txt"], "there is no file"),
        ("d", b"x", ["--text", "."], "is a folder"),
    ],
)
def test_a_place_that_the_file_cannot_have_is_refused(
    answer: Answer, tmp_path: Path, name: str, data: bytes, *, words: list[str], said: str
) -> None:
    (tmp_path / name).write_bytes(data)
    words = [str(tmp_path / word) if number == 1 else word for number, word in enumerate(words)]
    code, told, complaint = answer(*words)
    assert (code, told) == (2, None)
    assert said in complaint


def test_a_row_of_parquet_is_asked_for_by_its_number(answer: Answer, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [TEXT]}), tmp_path / "one.parquet")
    code, _, complaint = answer("--file", str(tmp_path / "one.parquet"), "--offset", "0")
    assert code == 2 and "--row N names one" in complaint
    code, _, complaint = answer("--file", str(tmp_path / "one.parquet"), "--row", "9")
    assert code == 1 and "there is no row 9" in complaint
