"""Purges reach parsed texts, those of rejected documents too; what was purged stays out of a run from
them."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lineage.index.parsed_texts import read_parsed_texts
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.work import PLAN
from lineage.verify.output import verify
from pipeline import process
from pipeline.cli.main import main
from pipeline.inspect.hooks import verify_hooks
from pipeline.phases.progress import PhaseProgress, ProgressReporter
from pipeline.recipe.load import load
from pipeline.refilter import earlier as opening
from tests.support.outputs.byte_search import everything, of_folder
from tests.support.outputs.lineage_query import query
from tests.support.outputs.parsed_texts import recipe
from tests.support.outputs.runs import fingerprint, run, write_recipe

BY = ("--reason", "a takedown", "--by", "a test", "--apply")


@pytest.fixture
def out(earlier: dict[str, str], tmp_path: Path) -> Folder:
    """An output of one's own, with parsed texts."""
    shutil.copytree(earlier["plain"], tmp_path / "first")
    return Folder(str(tmp_path / "first"))


def texts_of(out: Folder) -> dict[str, str]:
    texts = read_parsed_texts(out)
    assert texts is not None
    rows = [row for part in texts.parts for row in pq.read_table(io.BytesIO(out.read(part.file))).to_pylist()]
    return {row["doc_id"].hex(): row["text"] for row in rows}


def ids(out: Folder, where: str) -> list[str]:
    return [
        str(row[0]) for row in query(out, f"SELECT doc_id FROM documents WHERE {where} ORDER BY doc_id").rows
    ]


def problems(out: Folder) -> list[str]:
    return [problem.check for problem in verify(out, verify_hooks(out)).problems]


def all_bytes(out: Folder) -> Iterator[bytes]:
    """Every byte under OUT, with what is packed in Parquet and in the files of facts."""
    for data in everything(of_folder(out)):
        yield data
        if data[:2] == b"PK":
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                yield from everything(archive.read(name) for name in archive.namelist())


def pieces(text: str) -> list[bytes]:
    """What no other text holds: articles are made of the same sentences, in another order."""
    return [text[i : i + 250].encode() for i in range(0, len(text) - 250, 250)]


def test_every_text_after_parse_is_kept_and_no_other(out: Folder) -> None:
    had_text = ids(out, "text_hash IS NOT NULL AND coalesce(stage, '') <> 'parse'")
    rejected = ids(out, "status = 'rejected' AND stage IN ('language', 'quality')")
    assert sorted(texts_of(out)) == sorted(set(had_text))
    assert rejected and set(rejected) <= set(texts_of(out))
    assert problems(out) == []


def test_a_purge_leaves_no_byte_of_a_rejected_document(out: Folder) -> None:
    doc_id = ids(out, "status = 'rejected' AND stage = 'language'")[0]
    text = texts_of(out)[doc_id]
    assert any(piece in data for data in all_bytes(out) for piece in pieces(text))
    assert main(["purge", out.url, "--doc", doc_id, *BY]) == 0
    assert texts_of(out)[doc_id] is None
    assert not [piece for data in all_bytes(out) for piece in pieces(text) if piece in data]
    assert problems(out) == []


@pytest.mark.parametrize("begun", ["filter parsed texts", "write lineage"])
def test_a_run_from_texts_that_a_purge_takes_meanwhile_is_refused_by_that_purge(
    begun: str, out: Folder, crawl: Path, tmp_path: Path
) -> None:
    (doc_id, *_) = ids(out, "status = 'kept'")

    class Purging(ProgressReporter):
        """Purges when a phase begins."""

        @contextmanager
        def phase(self, name: str, total: float, unit: str = "") -> Iterator[PhaseProgress]:
            if name == begun:
                assert main(["purge", out.url, "--doc", doc_id, *BY]) == 0
            with super().phase(name, total, unit) as progress:
                yield progress

    plain = recipe(crawl, str(tmp_path / "there"), {"quality": {"min_words": 120}})
    loaded = load(write_recipe(tmp_path / "recipe.toml", plain))
    with pytest.raises(RecipeError, match=f"--from {out.url} was purged from while it was read"):
        process.run(loaded, Purging(quiet=True), from_output=out.url)
    assert not (tmp_path / "there" / "index.json").exists()


@pytest.mark.parametrize("before", ["read_parsed_texts", "read_summary"])
def test_a_run_whose_texts_a_purge_takes_while_it_opens_them_is_refused_by_that_purge(
    before: str, out: Folder, crawl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (doc_id, *_) = ids(out, "status = 'kept'")
    read = getattr(opening, before)

    def after_a_purge(folder: Folder) -> object:
        assert main(["purge", out.url, "--doc", doc_id, *BY]) == 0
        return read(folder)

    monkeypatch.setattr(opening, before, after_a_purge)
    plain = recipe(crawl, str(tmp_path / "there"), {"quality": {"min_words": 120}})
    loaded = load(write_recipe(tmp_path / "recipe.toml", plain))
    with pytest.raises(RecipeError, match=f"--from {out.url} was purged from while it was read"):
        process.run(loaded, ProgressReporter(quiet=True), from_output=out.url)
    assert not (tmp_path / "there" / "index.json").exists()


def test_work_that_a_kill_left_behind_the_index_goes_though_the_earlier_output_was_purged_since(
    out: Folder, crawl: Path, tmp_path: Path
) -> None:
    there = Folder(str(tmp_path / "there"))
    plain = recipe(crawl, there.url, {"quality": {"min_words": 120}})
    run(tmp_path / "a", plain, out.url)
    there.publish(PLAN, b"{}")
    there.publish("work/units/1/unit.json", b"{}")
    (doc_id, *_) = ids(out, "status = 'kept'")
    assert main(["purge", out.url, "--doc", doc_id, *BY]) == 0
    with pytest.raises(RecipeError, match="holds a finished run"):
        run(tmp_path / "a", plain, out.url)
    assert not there.names("work") and problems(there) == []


def test_a_purge_of_a_kept_document_cleans_its_kept_text_and_those_that_repeat_it(out: Folder) -> None:
    doc_id = ids(out, "status = 'kept' AND cluster_id IS NOT NULL")[0]
    text = texts_of(out)[doc_id]
    assert main(["purge", out.url, "--doc", doc_id, *BY]) == 0
    assert not [piece for data in all_bytes(out) for piece in pieces(text) if piece in data]
    assert problems(out) == []
    assert main(["purge", out.url, "--doc", doc_id, *BY]) == 0, "purging it again changes nothing"
    assert problems(out) == []


def test_a_backup_of_the_parsed_texts_is_found_and_goes_with_the_next_purge(
    out: Folder, tmp_path: Path
) -> None:
    doc_id = ids(out, "status = 'rejected' AND stage = 'language'")[0]
    shutil.copytree(f"{out.url}/texts", tmp_path / "backup")
    assert main(["purge", out.url, "--doc", doc_id, *BY]) == 0
    shutil.copytree(tmp_path / "backup", f"{out.url}/texts", dirs_exist_ok=True)
    assert "file.hash" in problems(out)
    assert main(["purge", out.url, "--doc", doc_id, *BY]) == 0
    assert texts_of(out)[doc_id] is None
    assert problems(out) == []


def test_a_file_of_texts_beside_the_named_ones_is_found_if_it_holds_a_purged_one(
    out: Folder, tmp_path: Path
) -> None:
    doc_id = ids(out, "status = 'rejected' AND stage = 'language'")[0]
    before = {name: out.read(name) for name in out.names("texts") if name.endswith(".parquet")}
    assert main(["purge", out.url, "--doc", doc_id, *BY]) == 0
    (gone,) = before.keys() - set(out.names("texts"))
    out.publish(gone, before[gone])
    assert "purged.returned" in problems(out)
    assert main(["purge", out.url, "--doc", doc_id, *BY]) == 0
    assert problems(out) == []


def test_what_was_purged_stays_out_as_if_it_were_honoured(crawl: Path, out: Folder, tmp_path: Path) -> None:
    rejected, kept = ids(out, "stage = 'language'")[:2], ids(out, "status = 'kept'")[:3]
    (host,) = query(
        out, "SELECT url FROM documents WHERE source = 'web' AND status = 'kept' ORDER BY 1 LIMIT 1"
    ).rows
    assert main(["purge", out.url, "--doc", *rejected, *kept, *BY]) == 0
    assert main(["purge", out.url, "--url", str(host[0]), *BY]) == 0
    changed = {"quality": {"min_words": 60}}
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    run(tmp_path / "a", recipe(crawl, here, changed), out.url)
    run(tmp_path / "b", recipe(crawl, there, changed, {"purges": {"honour": [out.url]}}))
    ours, theirs = fingerprint(here), fingerprint(there)
    assert {name for name in ours if ours[name] != theirs.get(name)} <= {"excerpts.parquet"}
    assert not set(ids(Folder(here), "rule IS NULL")) & {*rejected, *kept}
    assert problems(Folder(here)) == []


def test_all_parsed_texts_can_be_removed_at_once(out: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    doc_id = ids(out, "status = 'rejected' AND stage = 'language'")[0]
    text, shards = texts_of(out)[doc_id], {name: out.read(name) for name in out.names("shards")}
    assert main(["purge", out.url, "--parsed-texts", *BY[:-1]]) == 0
    assert "no document, clean text or token" in capsys.readouterr().out
    assert texts_of(out)[doc_id] == text, "that was the plan"
    assert main(["purge", out.url, "--parsed-texts", *BY]) == 0
    assert out.names("texts") == ["texts/texts.json"]
    assert {name: out.read(name) for name in out.names("shards")} == shards
    others = (out.read(name) for name in out.names() if name not in ("excerpts.parquet", "report.html"))
    assert not [piece for data in everything(others) for piece in pieces(text) if piece in data]
    assert problems(out) == []
    (row,) = query(out, "SELECT match, num_documents FROM purges").rows
    assert json.loads(str(row[0]))["kind"] == "parsed_texts" and row[1] == 0
    assert main(["purge", out.url, "--parsed-texts", *BY]) == 0
    assert "Nothing to purge: the parsed texts are purged already" in capsys.readouterr().out


def test_removed_texts_serve_no_run(crawl: Path, out: Folder, tmp_path: Path) -> None:
    assert main(["purge", out.url, "--parsed-texts", *BY]) == 0
    with pytest.raises(RecipeError, match="its parsed texts were removed by purge"):
        run(tmp_path, recipe(crawl, str(tmp_path / "out")), out.url)


def test_an_output_without_parsed_texts_has_none_to_remove(
    crawl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = str(tmp_path / "first")
    run(tmp_path, recipe(crawl, first, {"run": {"keep_text": False}}))
    assert main(["purge", first, "--parsed-texts", *BY]) == 1
    assert "keeps no texts after parse" in capsys.readouterr().err


def test_size_and_personal_data_are_told(out: Folder) -> None:
    summary, report = json.loads(out.read("run.json")), out.read("report.html").decode()
    texts = read_parsed_texts(out)
    assert texts is not None
    assert summary["parsed_texts"] == {"num_documents": texts.num_rows, "bytes": texts.num_bytes}
    assert sum(out.size(name) for name in out.names("texts") if name != "texts/texts.json") == texts.num_bytes
    assert (
        f"{texts.num_rows:,} documents, rejected ones too" in report
        and "personal data of the pages" in report
    )
