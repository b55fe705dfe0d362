"""A folder with a dump, PDFs, EPUBs and papers, from the files to tokens and back."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.cli.main import main
from stages.document import Document
from stages.reading.options import ReadOptions
from stages.reading.reader import read_documents
from tests.support.inputs.document_files import LOCKED, dump, epub, paper, pdf, tar, wiki_page
from tests.support.inputs.make_warc import http, member, record
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import ON_RAY, fingerprint, recipe, run, write_recipe


def prose(subject: str) -> str:
    return (
        f"The {subject} was old when the town was young. People came to the {subject} in the morning and left in the"
        f" evening. Nobody knew who had built the {subject}, and nobody asked. In winter it stood empty."
    )


SUBJECTS = ("harbour", "library", "bridge", "mill", "orchard", "chapel", "station")


def make_files(folder: Path) -> None:
    """One of each, and of each one that gives nothing."""
    folder.mkdir(parents=True)
    pages = [wiki_page(n, f"The {each}", f"'''{prose(each)}'''") for n, each in enumerate(SUBJECTS[:2], 1)]
    pages.append(wiki_page(9, "Old", "#REDIRECT [[The mill]]", redirect="The mill"))
    (folder / "dump.xml.bz2").write_bytes(bz2.compress(dump(*pages)))
    (folder / "bridge.pdf").write_bytes(pdf(prose("bridge"), title="On bridges"))
    (folder / "locked.pdf").write_bytes(pdf("a", trailer=LOCKED))
    (folder / "scan.pdf").write_bytes(pdf(""))
    (folder / "mill.epub").write_bytes(epub({"a": f"<p>{prose('mill')}</p>"}, title="Mills"))
    (folder / "cut.epub").write_bytes(epub({"a": "x"})[:200])
    papers = {
        "2601/1.gz": gzip.compress(tar({"main.tex": paper(prose("orchard"))})),
        "2601/2.gz": gzip.compress(paper(prose("chapel"))),
        "2601/3.gz": gzip.compress(b"withdrawn"),
    }
    (folder / "papers.tar").write_bytes(tar(papers))
    web = http(pdf(prose("station")), content_type="application/pdf")
    (folder / "web.warc.gz").write_bytes(member(record(web, "https://e.example/station.pdf")))


def documents_recipe(folder: Path, out: str, **tables: Any) -> dict[str, Any]:
    plain = recipe(out, {"docs": (), "papers": ()}, quality={"rules": []}, **tables)
    plain["source"] = [
        {
            "name": "docs",
            "inputs": [f"{folder}/*.{ending}" for ending in ("bz2", "pdf", "epub", "gz")],
            "mime": ["application/pdf"],
        },
        {"name": "papers", "inputs": [f"{folder}/*.tar"], "format": "latex"},
    ]
    return plain


def rows_of(out: str, sql: str) -> list[dict[str, Any]]:
    return query(Folder(out), sql).objects()


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("documents")
    make_files(folder / "files")
    run(folder, documents_recipe(folder / "files", str(folder / "out")))
    return str(folder / "out")


def test_each_document_is_kept_or_turned_down_by_name(out: str) -> None:
    rows = rows_of(out, "SELECT warc_file, record_id, status, rule FROM documents ORDER BY ALL")
    assert [tuple(row.values()) for row in rows] == [
        ("bridge.pdf", "bridge.pdf", "kept", None),
        ("cut.epub", "cut.epub", "rejected", "parse.damaged"),
        ("dump.xml.bz2", "1", "kept", None),
        ("dump.xml.bz2", "2", "kept", None),
        ("locked.pdf", "locked.pdf", "rejected", "parse.encrypted"),
        ("mill.epub", "mill.epub", "kept", None),
        ("papers.tar", "2601/1.gz", "kept", None),
        ("papers.tar", "2601/2.gz", "kept", None),
        ("papers.tar", "2601/3.gz", "rejected", "parse.damaged"),
        ("scan.pdf", "scan.pdf", "rejected", "parse.empty"),
        ("web.warc.gz", rows[-1]["record_id"], "kept", None),
    ]


def test_the_bytes_of_a_pdf_on_the_web_are_no_text_before_they_are_converted(tmp_path: Path) -> None:
    make_files(tmp_path / "files")
    options = ReadOptions(source="s", file="web.warc.gz", mime=("application/pdf",))
    with (tmp_path / "files" / "web.warc.gz").open("rb") as stream:
        (found,) = read_documents(stream, options)
    assert isinstance(found, Document)
    assert (found.text, found.charset, found.payload[:5]) == ("", None, b"%PDF-")


def test_verify_trace_and_explain_find_them(out: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", out]) == 0
    capsys.readouterr()
    for file, of in (("dump.xml.bz2", "harbour"), ("papers.tar", "orchard"), ("bridge.pdf", "bridge")):
        rows = rows_of(
            out, f"SELECT doc_id, warc_offset FROM documents WHERE warc_file = '{file}' ORDER BY warc_offset"
        )
        assert main(["trace", out, "--warc", file, "--offset", str(rows[0]["warc_offset"]), "--json"]) == 0
        assert rows[0]["doc_id"] in capsys.readouterr().out
        assert main(["explain", out, "--doc", rows[0]["doc_id"], "--json"]) == 0
        assert of in capsys.readouterr().out
    assert main(["trace", out, "--url", "https://de.wikipedia.org/wiki/The_library", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["documents"]


def test_a_purge_takes_text_and_title(out: str, tmp_path: Path) -> None:
    folder = tmp_path / "purged"
    make_files(folder / "files")
    run(folder, documents_recipe(folder / "files", str(folder / "out")))
    mine = str(folder / "out")
    (row,) = rows_of(mine, "SELECT doc_id FROM documents WHERE warc_file = 'bridge.pdf'")
    assert main(["purge", mine, "--doc", row["doc_id"], "--reason", "r", "--by", "b", "--apply"]) == 0
    assert main(["verify", mine]) == 0
    held = b"".join(path.read_bytes() for path in Path(mine).rglob("*") if path.is_file())
    assert b"On bridges" not in held


def test_the_bytes_do_not_depend_on_the_number_of_workers(out: str, tmp_path: Path, small_ray: None) -> None:
    files = Path(out).parent / "files"
    run(tmp_path, documents_recipe(files, str(tmp_path / "out"), ray=ON_RAY))
    assert fingerprint(str(tmp_path / "out")) == fingerprint(out)


@pytest.mark.parametrize(
    ("library", "what", "file"),
    [
        ("mwparserfromhell", "MediaWiki dumps", "dump.xml.bz2"),
        ("pypdfium2", "PDF documents", "bridge.pdf"),
        ("pylatexenc", "LaTeX sources", "papers.tar"),
    ],
)
def test_a_library_that_is_not_installed_is_named_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, what: str, file: str
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *a: None if name == library else real(name, *a)
    )
    make_files(tmp_path / "files")
    plain = recipe(str(tmp_path / "out"), {"docs": (f"{tmp_path}/files/{file}",)})
    plain["source"][0]["format"] = "latex" if file.endswith(".tar") else "auto"
    says = rf"{what} need {library}: in Sluice's checkout, pip install '\.\[documents\]'"
    with pytest.raises(RecipeError, match=says):
        run(tmp_path, plain)


def test_a_run_from_parsed_texts_converts_nothing_and_gives_the_same_bytes(tmp_path: Path) -> None:
    make_files(tmp_path / "files")
    kept = documents_recipe(tmp_path / "files", str(tmp_path / "kept"), run={"keep_text": True})
    run(tmp_path, kept)
    strict = {"pii": {"action": "drop"}, "language": {"min_score": 0.9}}
    run(tmp_path, documents_recipe(tmp_path / "files", str(tmp_path / "whole"), **strict))
    again = documents_recipe(tmp_path / "files", str(tmp_path / "again"), **strict)
    run(tmp_path, again, from_output=str(tmp_path / "kept"))
    assert fingerprint(str(tmp_path / "again")) == fingerprint(str(tmp_path / "whole"))


def test_explain_takes_a_document_by_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_files(tmp_path / "files")
    path = write_recipe(tmp_path / "r.toml", documents_recipe(tmp_path / "files", str(tmp_path / "out")))
    for name, of in (("bridge.pdf", "bridge"), ("mill.epub", "mill")):
        assert main(["explain", str(path), "--file", f"{tmp_path}/files/{name}", "--json"]) == 0
        assert of in capsys.readouterr().out
