"""`sluice purge` on a real output: what it prints, and what the report says afterwards."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.demo.pages import drop_words, render_page, write_article
from pipeline.demo.warcs import DemoPage, write_source
from tests.support.inputs.tiny_crawl import inputs_of, make_tiny_crawl
from tests.support.outputs.byte_search import everything, of_folder
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import ON_RAY, recipe, run, write_recipe

MAILS = 3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose C4 rules cut lines of many documents, three of which hold an e-mail address."""
    folder = tmp_path_factory.mktemp("purge")
    make_tiny_crawl(folder)
    rng, rows = random.Random(7), []
    for number in range(12):
        text = write_article("en", rng, 12).text + "\nRead more\nSubscribe now"
        if number < MAILS:
            text += f"\nThe keeper of the harbour can be asked at keeper{number}@harbour-house.example for a boat."
        rows.append({"id": str(number), "url": f"https://told.example/{number}", "text": text})
    (folder / "told.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = {**inputs_of(folder), "told": (str(folder / "told.jsonl"),)}
    run(folder, recipe(str(folder / "out"), sources, quality={"rules": ["gopher_quality", "c4"]}))
    return folder / "out"


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Folder:
    shutil.copytree(made, tmp_path / "out")
    return Folder(str(tmp_path / "out"))


def words_of(out: Folder, section: str) -> str:
    """What a section of the report reads as."""
    page = out.read("report.html").decode()
    found = re.search(rf'<section id="{section}">(.*?)</section>', page, re.DOTALL)
    assert found is not None
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", found[1])).split())


def tiles_of(out: Folder) -> dict[str, int]:
    page = out.read("report.html").decode()
    found = re.findall(r'<div class="tile[^"]*"><b>([\d,]+)</b><span>([^<]*)</span>', page)
    return {label: int(number.replace(",", "")) for number, label in found}


def purge(out: Folder, *arguments: str) -> int:
    return main(["purge", out.url, "--reason", "a takedown", "--by", "a tester", *arguments])


def a_kept(out: Folder, source: str = "posts") -> str:
    [(doc_id,)] = query(
        out, f"SELECT doc_id FROM documents WHERE status = 'kept' AND source = '{source}' ORDER BY 1 LIMIT 1"
    ).rows
    return str(doc_id)


def test_personal_data_are_what_the_pii_step_replaced_and_other_changes_stand_apart(made: Path) -> None:
    out = Folder(str(made))
    [(others,)] = query(out, "SELECT sum(count)::BIGINT FROM edits WHERE stage <> 'pii'").rows
    assert int(str(others)) > 10
    said = words_of(out, "edits")
    personal, _, other = said.partition("Other changes of kept texts")
    assert f"email {MAILS}" in personal and "c4" not in personal
    assert "quality: c4.lines_removed" in other


def test_the_report_of_a_purged_output_tells_of_the_purge_and_counts_what_is_left(
    out: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    before, doc_id = tiles_of(out), a_kept(out)
    assert "Nothing was purged." in words_of(out, "purges")
    assert purge(out, "--doc", doc_id, "--apply") == 0
    [(purge_id, documents, tokens)] = query(
        out, "SELECT purge_id, num_documents, num_tokens FROM purges"
    ).rows
    assert f"Purged as {purge_id}" in capsys.readouterr().out
    said = words_of(out, "purges")
    assert "Nothing was purged" not in said
    assert f"{purge_id}" in said and f"a tester a takedown {documents} {int(str(tokens)):,}" in said
    after = tiles_of(out)
    [(kept,)] = query(out, "SELECT count(*) FROM documents WHERE status = 'kept' AND purged IS NULL").rows
    [(left,)] = query(out, "SELECT sum(num_tokens)::BIGINT FROM placements WHERE purged IS NULL").rows
    assert (after["kept"], after["tokens"], after["purged since"]) == (kept, left, 1)
    assert (before["kept"], before["tokens"]) == (after["kept"] + 1, after["tokens"] + int(str(tokens)))
    assert f"What is left: {kept} documents, {left:,} tokens" in words_of(out, "funnel")
    assert f"after 1 document with {int(str(tokens)):,} tokens was purged" in words_of(out, "funnel")
    assert main(["verify", out.url]) == 0


def test_a_report_from_before_the_purge_is_a_problem_that_rendering_mends(
    out: Folder, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert purge(out, "--doc", a_kept(out), "--apply") == 0
    page = out.read("report.html")
    shutil.copy(made / "report.html", out.at("report.html"))
    from lineage.index.checksums import sum_file
    from lineage.store.checksum_update import update_checksums

    update_checksums(out, [sum_file(out, "report.html")])
    capsys.readouterr()
    assert main(["verify", out.url]) == 1
    assert "report.stale: report.html" in capsys.readouterr().out
    assert main(["report", out.url]) == 0 and main(["verify", out.url]) == 0
    assert out.read("report.html") == page


def test_a_report_vouches_for_no_damage(out: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    def problems() -> set[tuple[str, str]]:
        capsys.readouterr()
        assert main(["verify", out.url, "--json"]) == 1
        return {(found["check"], found["where"]) for found in json.loads(capsys.readouterr().out)["problems"]}

    out.publish("recipe.toml", b"\n".join(out.read("recipe.toml").splitlines()[:-2]))
    out.publish("documents/old.parquet", b"from a backup")
    out.publish("report.html", out.read("report.html") + b"x")
    damage = {("file.hash", "recipe.toml"), ("file.extra", "documents/old.parquet")}
    assert problems() >= damage
    assert main(["report", out.url]) == 0
    assert problems() == damage
    out.remove("checksums.json")
    out.publish("report.html", b"x")
    assert main(["report", out.url]) == 0 and not out.exists("checksums.json")


def test_personal_data_of_purged_documents_are_counted_no_more(out: Folder) -> None:
    assert purge(out, "--host", "told.example", "--apply") == 0
    assert "No personal data was found in a kept text." in words_of(out, "edits")


def test_neither_the_run_nor_the_purge_leaves_a_word_of_the_text_in_a_temporary_folder(
    tmp_path: Path,
) -> None:
    """Ray's object store, what it spills and the logs of its workers lie outside of OUT, where no purge
    looks."""
    rng, sources = random.Random(7), {}
    for name, last in (("told", "The zyxomma rests on the quillwort until evening comes."), ("others", "")):
        row = {"id": name, "text": f"{write_article('en', rng, 12).text}\n{last}"}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
        sources[name] = (str(tmp_path / f"{name}.jsonl"),)
    written = write_recipe(tmp_path / "recipe.toml", recipe(str(tmp_path / "out"), sources, ray=ON_RAY))
    out = Folder(str(tmp_path / "out"))
    with tempfile.TemporaryDirectory() as temporary:  # short: a socket's path has 107 bytes
        at = {**os.environ, "TMPDIR": temporary, "RAY_TMPDIR": temporary}

        def command(*arguments: str) -> None:
            call = [sys.executable, "-m", "pipeline", *arguments]
            done = subprocess.run(call, env=at, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-2000:]

        command("run", str(written))
        assert any(b"zyxomma" in content for content in everything(of_folder(out)))
        command("purge", out.url, "--source", "told", "--reason", "takedown", "--by", "test", "--apply")
        assert not any(b"zyxomma" in content for content in everything(of_folder(out)))
        left = [path for path in Path(temporary).rglob("*") if path.is_file()]
        assert any(path.name == "raylet.out" for path in left)
        assert [
            path for path in left if any(b"zyxomma" in data for data in everything(iter([path.read_bytes()])))
        ] == []


def test_a_purge_stopped_by_a_full_disk_says_what_to_do_and_the_same_call_says_that_it_finished(
    out: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    doc_id, write = a_kept(out), Folder.writing

    def full(folder: Folder, name: str) -> object:
        if name.endswith(".r1.bin"):
            raise OSError(28, "No space left on device", name)
        return write(folder, name)

    with monkeypatch.context() as patched:
        patched.setattr(Folder, "writing", full)
        assert purge(out, "--doc", doc_id, "--apply") == 1
    assert "has begun: the same call again finishes it" in capsys.readouterr().err
    assert purge(out, "--doc", doc_id) == 0
    said = capsys.readouterr().out
    assert "has begun and did not end" in said and "Nothing to purge" not in said
    assert purge(out, "--doc", doc_id, "--apply") == 0
    [(purge_id, documents, tokens)] = query(
        out, "SELECT purge_id, num_documents, num_tokens FROM purges"
    ).rows
    said = capsys.readouterr().out
    assert (
        f"Finished purge {purge_id}" in said and f"{documents} document, {int(str(tokens)):,} tokens" in said
    )
    assert "Nothing to purge" not in said
    assert purge(out, "--doc", doc_id, "--apply") == 0
    assert "Nothing to purge: 1 document is purged already." in capsys.readouterr().out
    assert main(["verify", out.url]) == 0


def test_a_backup_laid_over_a_purged_output_is_named_and_purged_again(
    out: Folder, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    doc_id = a_kept(out)
    assert purge(out, "--doc", doc_id, "--apply") == 0
    for top in ("documents", "shards", "dedup"):
        shutil.copytree(made / top, out.at(top), dirs_exist_ok=True)
    for file in ("index.json", "excerpts.parquet", "report.html", "checksums.json"):
        shutil.copy(made / file, out.at(file))
    capsys.readouterr()
    assert main(["verify", out.url]) == 1
    assert f"purged.returned: document {doc_id}" in capsys.readouterr().out
    assert purge(out, "--doc", doc_id, "--apply") == 0
    said = capsys.readouterr().out
    assert "1 document was purged before and is there again" in said and "Purged as" in said
    assert main(["verify", out.url]) == 0
    assert "Nothing was purged" not in words_of(out, "purges")
    assert tiles_of(out)["purged since"] == 1, "a document that was purged twice counts once"


def test_a_list_and_a_condition_are_carried_out_and_the_audit_says_how_they_were_named(
    out: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = [
        str(row[0])
        for row in query(out, "SELECT doc_id FROM documents WHERE source = 'told' ORDER BY 1").rows
    ]
    listed = tmp_path / "list.txt"
    listed.write_text("\n".join([ids[0], "f" * 32]))
    asked = ["--reason", "takedown", "--by", "me", "--apply", "--json"]
    assert main(["purge", out.url, "--from", str(listed), *asked]) == 0
    told = capsys.readouterr()
    assert "1 of those" in told.err
    assert ids[0] in {row["doc_id"] for row in json.loads(told.out)["documents"]}
    assert main(["purge", out.url, "--where", "url LIKE 'https://told.example/%'", *asked]) == 0
    capsys.readouterr()
    purged = {str(row[0]) for row in query(out, "SELECT DISTINCT doc_id FROM purged").rows}
    assert purged >= set(ids)
    named = {json.loads(str(row[0]))["named_by"] for row in query(out, "SELECT match FROM purges").rows}
    assert named == {f"--from {listed}", "--where url LIKE 'https://told.example/%'"}
    assert main(["verify", out.url]) == 0
    assert main(["purge", out.url, "--where", "hots = 'a'", *asked]) == 2


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_copies_are_found_where_another_source_turned_the_same_records_down(
    names: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(3)
    article = write_article("en", rng)
    near = replace(article, paragraphs=drop_words(article.paragraphs, rng, 3))
    pages = [
        DemoPage(url=f"https://web.example.com/{number}", html=render_page(told, "web.example.com", rng))
        for number, told in enumerate((article, near))
    ]
    write_source(tmp_path, "web", pages, 1, rng)
    keeps, rejects = names
    inputs = (str(tmp_path / "web-*.warc.gz"),)
    plain = recipe(
        str(tmp_path / "out"), dict.fromkeys(names, inputs), quality={"min_words": 9000, "ledger": "all"}
    )
    plain["source"][names.index(keeps)]["steps"] = ["url", "parse", "language"]
    run(tmp_path, plain)
    out = str(tmp_path / "out")
    found = query(Folder(out), "SELECT source, status, doc_id FROM documents").rows
    assert {str(status) for source, status, _ in found if source == rejects} == {"rejected"}
    of = {str(status): str(doc_id) for source, status, doc_id in found if source == keeps}
    for asked, other, role in (
        (of["kept"], of["duplicate"], "twin"),
        (of["duplicate"], of["kept"], "kept_copy"),
    ):
        assert main(["purge", out, "--doc", asked, "--reason", "x", "--by", "me", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        roles = {(document["doc_id"], document["role"]) for document in told["documents"]}
        assert (roles, told["elsewhere"]) == ({(asked, "target"), (other, role)}, [])
    assert main(["trace", out, "--doc", of["kept"], "--json"]) == 0
    decided = [(each["stage"], each["rule"]) for each in json.loads(capsys.readouterr().out)["decisions"]]
    assert ("url", "url.too_long") in decided and len(set(decided)) == len(decided)
