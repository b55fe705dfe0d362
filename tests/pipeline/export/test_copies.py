"""An export is one more copy: it is recorded, whole or absent, cleaned by a purge, and checked by verify."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import zstandard

from lineage.exports import records
from lineage.exports.manifest import MANIFEST
from lineage.exports.records import BEGUN, FINISHED, FORGOTTEN, REMOVED, read_exports
from lineage.index.checksums import hash_file, read_checksums
from lineage.index.output_index import NO_TOKENIZER, NotFinishedError, make_index, publish_index, read_index
from lineage.purge.rewrite import rewrite_dedup
from lineage.storage.folder import Folder, StorageError
from lineage.storage.lock import LEASE_FILE, hold
from lineage.storage.objects import versions
from lineage.store.delta import read_table
from lineage.verify.output import verify
from pipeline.cli.main import main
from pipeline.export.clean import clean_export
from pipeline.export.process import CLAIM, export, in_process
from pipeline.export.units import ExportJob
from pipeline.inspect.hooks import verify_hooks
from tests.pipeline.export.conftest import Corpus
from tests.support.checkout import ROOT
from tests.support.outputs import export_readers as readers
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import s3_server
from tests.support.stores.faulty_disk import (
    KILLED,
    Commands,
    Fault,
    commands_on,
    compile_faulty_disk,
    num_calls,
)
from tests.support.stores.small_disk import resize, small_disk

FORMATS: dict[str, dict[str, Any]] = {
    "jsonl": {},
    "parquet": {},
    "hf": {"split": (("train", 0.7), ("test", 0.3))},
    "nanochat": {},
    "mds": {},
    "megatron": {"dtype": "uint32"},
    "olmo": {"dtype": "uint32"},
    "llmc": {},
    "litdata": {"dtype": "uint16"},
    "warc": {"sources": ("web",)},
}
"""Every format, with options that reach each way of writing: shards as they are, rewritten, and split."""


def problems(corpus: Corpus) -> list[str]:
    out = Folder(str(corpus.out))
    return [problem.check for problem in verify(out, verify_hooks(out)).problems]


def states(corpus: Corpus) -> dict[str, str]:
    return {row.name: row.state for row in read_exports(Folder(str(corpus.out)))}


def purge(corpus: Corpus, *arguments: str) -> int:
    return main(["purge", str(corpus.out), *arguments, "--reason", "a test", "--by", "a test", "--apply"])


def unpacked(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Every byte of a folder, whatever it is packed in."""
    for path in (entry for entry in folder.rglob("*") if entry.is_file()):
        data = path.read_bytes()
        yield path, data
        if path.name.endswith(".zst"):
            yield path, zstandard.ZstdDecompressor().stream_reader(data).read()
        elif path.suffix == ".gz":
            yield path, gzip.decompress(data)
        elif path.suffix == ".parquet":
            for column in pq.read_table(path).columns:
                yield path, "\0".join(map(str, column.to_pylist())).encode()


def record_ids(corpus: Corpus, doc_ids: Collection[str]) -> set[str]:
    """The WARC-Record-IDs of those of the documents that came from pages."""
    rows = read_table(Folder(str(corpus.out)), "documents").to_pylist()
    kept = (row for row in rows if row["status"] == "kept" and row["source"] == "web")
    return {row["record_id"] for row in kept if row["doc_id"].hex() in doc_ids}


def traces_of(corpus: Corpus, text: str) -> list[bytes]:
    """Pieces of a text, and of its tokens as two and four bytes each."""
    words = text.split(" ")
    tokens = corpus.tokenizer.encode(text)
    pieces = [" ".join(words[at : at + 8]).encode() for at in range(0, len(words) - 8, 8)]
    return pieces + [
        np.asarray(tokens[at : at + 12], dtype).tobytes()
        for at in range(0, len(tokens) - 12, 12)
        for dtype in ("<u2", "<u4")
    ]


def test_after_a_purge_of_five_documents_no_export_holds_a_byte_of_them(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exports = tmp_path / "exports"
    for name, options in FORMATS.items():
        corpus.export(exports / name, name, **options)
    before = corpus.texts()
    of_web = {doc_id for doc_id, _ in readers.read_jsonl(exports / "jsonl" / "web")}
    chosen = [*sorted(of_web)[:3], *sorted(before.keys() - of_web)[:2]]
    assert purge(corpus, "--doc", *chosen) == 0
    assert "export olmo: cleaned" in capsys.readouterr().out
    left = corpus.texts()
    gone = before.keys() - left.keys()
    assert gone >= set(chosen)
    wanted = {trace for doc_id in gone for trace in traces_of(corpus, before[doc_id])}
    tokens = np.concatenate([np.asarray(of_text, "<u4") for of_text in corpus.tokens().values()])
    kept = ("\n".join(left.values()).encode(), tokens.tobytes(), tokens.astype("<u2").tobytes())
    wanted = {
        trace for trace in wanted if not any(trace in data for data in kept)
    }  # sentences that others have too
    assert len(wanted) > 100
    for path, data in unpacked(exports):
        if "warc" not in path.relative_to(exports).parts:
            assert not [trace for trace in wanted if trace in data], path
    # Pages have more words than their clean texts: of these, the records that are left must be those of what
    # is left.
    assert readers.read_warc(exports / "warc").keys() == record_ids(corpus, left.keys())
    assert dict(readers.read_jsonl(exports / "jsonl")) == left
    assert dict(readers.read_megatron(exports / "megatron")) == corpus.tokens()
    assert {s["id"]: s["text"] for s in readers.read_mds(exports / "mds")} == left
    assert problems(corpus) == []
    assert {row.version for row in read_exports(Folder(str(corpus.out)))} == {2}


def test_a_purge_writes_again_what_it_changed_and_leaves_the_rest(corpus: Corpus, tmp_path: Path) -> None:
    corpus.export(tmp_path / "copy", "jsonl")
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "copy").rglob("*.zst")}
    doc_id, _ = next(readers.read_jsonl(tmp_path / "copy" / "web"))
    assert purge(corpus, "--doc", doc_id) == 0
    changed = [path for path, stamp in stamps.items() if path.stat().st_mtime_ns != stamp]
    assert changed == [min(path for path in stamps if path.parent.name == "web")]


def test_an_export_made_after_a_purge_equals_one_that_the_purge_cleaned(
    corpus: Corpus, tmp_path: Path, everywhere: Callable[[Path], dict[str, bytes]]
) -> None:
    for name in ("megatron", "mds"):
        corpus.export(tmp_path / "cleaned" / f"{name}-1", name, **FORMATS[name])
    assert purge(corpus, "--doc", *sorted(corpus.texts())[:5]) == 0
    for name in ("megatron", "mds"):
        corpus.export(tmp_path / "fresh" / f"{name}-2", name, **FORMATS[name])
        cleaned, fresh = (
            everywhere(tmp_path / "cleaned" / f"{name}-1"),
            everywhere(tmp_path / "fresh" / f"{name}-2"),
        )
        del cleaned[MANIFEST], fresh[MANIFEST]
        assert cleaned == fresh


def test_a_document_stays_in_its_split_when_a_purge_writes_its_unit_again(
    corpus: Corpus, tmp_path: Path, everywhere: Callable[[Path], dict[str, bytes]]
) -> None:
    split = (("train", 0.7), ("test", 0.3))
    corpus.export(tmp_path / "cleaned", "hf", split=split)
    assert purge(corpus, "--doc", *sorted(corpus.texts())[:5]) == 0
    corpus.export(tmp_path / "fresh", "hf", split=split)
    cleaned, fresh = everywhere(tmp_path / "cleaned"), everywhere(tmp_path / "fresh")
    del cleaned[MANIFEST], fresh[MANIFEST]
    assert cleaned == fresh and {row.options for row in read_exports(Folder(str(corpus.out)))} == {
        '{"format": "hf", "split": {"train": 0.7, "test": 0.3}, "dtype": "auto", "tokens": false,'
        ' "file_documents": 30, "sources": []}'
    }
    assert corpus.export(tmp_path / "fresh", "hf", split=split).was_done
    with pytest.raises(ValueError, match="holds another export"):  # its documents lie otherwise
        corpus.export(tmp_path / "fresh", "hf", split=split[::-1])


@pytest.mark.parametrize("name", ["mds", "litdata"])
def test_a_split_of_which_every_document_was_purged_has_no_index(
    corpus: Corpus, tmp_path: Path, name: str
) -> None:
    split = (("train", 0.97), ("test", 0.03))
    request = corpus.asked(tmp_path / "copy", name, split=split).request
    doc_ids = [doc_id for doc_id in corpus.texts() if request.split_of(bytes.fromhex(doc_id)) == "test"]
    corpus.export(tmp_path / "copy", name, split=split)
    assert doc_ids and (tmp_path / "copy" / "test" / "index.json").exists()
    assert purge(corpus, "--doc", *doc_ids) == 0
    files = {
        str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*") if path.is_file()
    }
    assert not [file for file in files if file.startswith("test/")] and "train/index.json" in files
    assert problems(corpus) == []


def test_nanochat_validates_with_the_last_unit_that_has_a_text(
    corpus: Corpus, tmp_path: Path, everywhere: Callable[[Path], dict[str, bytes]]
) -> None:
    corpus.export(tmp_path / "cleaned", "nanochat")
    last = sorted(path.name for path in (tmp_path / "cleaned").glob("*.parquet"))[-1].removeprefix(
        "validation-"
    )
    of_last = [
        pq.read_table(tmp_path / "cleaned" / f"{split}-{last}")["id"] for split in ("shard", "validation")
    ]
    assert purge(corpus, "--doc", *(doc_id for ids in of_last for doc_id in ids.to_pylist())) == 0
    corpus.export(tmp_path / "fresh", "nanochat")
    cleaned, fresh = everywhere(tmp_path / "cleaned"), everywhere(tmp_path / "fresh")
    del cleaned[MANIFEST], fresh[MANIFEST]
    assert cleaned == fresh and not [name for name in fresh if last in name]
    assert sorted(fresh)[-1].startswith("validation-")
    training, validation = readers.read_nanochat(tmp_path / "fresh")
    assert sorted(training + validation) == sorted(corpus.texts().values())
    assert 0 < len(validation) < len(training)
    assert problems(corpus) == []


def texts_only(corpus: Corpus, to: Path, threshold: float, num_dropped: int) -> Corpus:
    """The corpus as a run without tokens leaves it whose dedup.threshold keeps fewer documents of its first
    part."""
    shutil.copytree(corpus.out, to)
    out, index = Folder(str(to)), read_index(str(to))
    first, *others = index.dedup
    dropped = pq.read_table(to / first.file)["doc_id"].to_pylist()[:num_dropped]
    dedup = [rewrite_dedup(out, first, dropped) if dropped else first, *others]
    publish_index(out, make_index(NO_TOKENIZER, (), index.documents, dedup))
    summary = json.loads(out.read("run.json"))
    summary["identity"]["recipe"]["dedup"]["threshold"] = threshold
    out.publish("run.json", json.dumps(summary).encode())
    return replace(corpus, out=to)


def test_an_export_of_texts_is_that_of_one_output(corpus: Corpus, tmp_path: Path) -> None:
    ours = texts_only(corpus, tmp_path / "ours", 0.8, 0)
    theirs = texts_only(corpus, tmp_path / "theirs", 0.6, 10)
    ours.export(tmp_path / "copy", "jsonl")
    with pytest.raises(ValueError, match=r"holds another export .*of another output"):
        theirs.export(tmp_path / "copy", "jsonl")
    assert states(theirs) == {} and len(dict(readers.read_jsonl(tmp_path / "copy"))) == len(corpus.texts())
    shutil.rmtree(tmp_path / "copy")
    theirs.export(tmp_path / "copy", "jsonl")
    out = Folder(str(ours.out))
    with pytest.raises(StorageError, match="holds another export"):
        clean_export(out, read_index(out), read_exports(out)[0])
    assert len(dict(readers.read_jsonl(tmp_path / "copy"))) == len(corpus.texts()) - 10


def test_a_file_that_is_gone_is_written_again_by_the_same_call(
    corpus: Corpus, tmp_path: Path, everywhere: Callable[[Path], dict[str, bytes]]
) -> None:
    corpus.export(tmp_path / "copy", "mds")
    before = everywhere(tmp_path / "copy")
    for name in ("index.json", next(name for name in sorted(before) if name.endswith(".mds"))):
        (tmp_path / "copy" / name).unlink()
        assert not corpus.export(tmp_path / "copy", "mds").was_done
        assert everywhere(tmp_path / "copy") == before and problems(corpus) == []
    assert corpus.export(tmp_path / "copy", "mds").was_done


def test_an_export_in_another_format_or_of_another_name_is_of_the_same_output(
    corpus: Corpus, tmp_path: Path
) -> None:
    corpus.export(tmp_path / "copy", "jsonl")
    asked = corpus.asked(tmp_path / "copy", "parquet")
    with pytest.raises(
        ValueError, match=r"another export \(its name is 'copy', not 'more'; format = 'jsonl'"
    ):
        export(replace(asked, name="more"), in_process)


def test_an_export_of_a_copied_output_is_not_taken_over_unless_it_is_recorded(
    corpus: Corpus, tmp_path: Path
) -> None:
    shutil.copytree(corpus.out, tmp_path / "another")
    corpus.export(tmp_path / "copy", "jsonl")
    with pytest.raises(ValueError, match=r"holds another export .*of another output"):
        replace(corpus, out=tmp_path / "another").export(tmp_path / "copy", "jsonl")


def test_a_purge_of_a_copied_output_leaves_the_exports_of_the_original(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = corpus.out / "recipe.toml"
    table = tomllib.loads(recipe.read_text())
    recipe.write_text(recipe.read_text().replace(table["run"]["output"], str(corpus.out)))
    corpus.export(tmp_path / "copy", "jsonl")
    another = replace(corpus, out=tmp_path / "another")
    shutil.copytree(corpus.out, another.out)
    exported = {path: path.read_bytes() for path in (tmp_path / "copy").rglob("*") if path.is_file()}
    doc_id, _ = next(readers.read_jsonl(tmp_path / "copy"))
    assert purge(another, "--doc", doc_id) == 1
    shown = capsys.readouterr().out
    assert "is out of reach" in shown and f"of which {another.out} is a copy: purge it there" in shown
    assert {path: path.read_bytes() for path in exported} == exported
    with pytest.raises(ValueError, match="of another output"):
        another.export(tmp_path / "copy", "jsonl")
    # Its own exports are cleaned by it, and after a move it has no original.
    another.export(tmp_path / "own", "jsonl")
    second, _ = next(readers.read_jsonl(tmp_path / "own"))
    assert purge(another, "--doc", second, "--forget-export", "copy") == 0
    assert second not in dict(readers.read_jsonl(tmp_path / "own"))
    shutil.move(corpus.out, tmp_path / "moved")
    assert purge(replace(corpus, out=tmp_path / "moved"), "--doc", doc_id) == 0
    assert doc_id not in dict(readers.read_jsonl(tmp_path / "copy"))


def test_a_copy_out_of_reach_is_named_until_it_is_back(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus.export(tmp_path / "copy", "jsonl")
    doc_id, _ = next(readers.read_jsonl(tmp_path / "copy"))
    shutil.move(tmp_path / "copy", tmp_path / "lent")
    assert purge(corpus, "--doc", doc_id) == 1
    assert f"export copy at {tmp_path}/copy is out of reach" in capsys.readouterr().out
    assert problems(corpus) == ["export.stale"]
    assert purge(corpus, "--doc", doc_id) == 1
    shutil.move(tmp_path / "lent", tmp_path / "copy")
    assert purge(corpus, "--doc", doc_id) == 0
    assert doc_id not in dict(readers.read_jsonl(tmp_path / "copy")) and problems(corpus) == []


def test_a_copy_that_is_given_up_is_forgotten_by_name(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus.export(tmp_path / "copy", "jsonl")
    shutil.rmtree(tmp_path / "copy")
    assert purge(corpus, "--doc", sorted(corpus.texts())[0]) == 1
    assert purge(corpus, "--forget-export", "another") == 2
    assert "there are: copy" in capsys.readouterr().err
    assert purge(corpus, "--forget-export", "copy") == 0
    assert states(corpus) == {"copy": FORGOTTEN} and problems(corpus) == []
    corpus.export(tmp_path / "copy", "jsonl")  # the name is free again
    assert states(corpus) == {"copy": FINISHED}


def test_an_export_is_recorded_before_its_first_byte_and_a_purge_removes_what_never_finished(
    corpus: Corpus, tmp_path: Path
) -> None:
    def fail_after_one(job: ExportJob, pieces: Any) -> Any:
        in_process(job, pieces[:1])
        raise OSError("the machine went down")

    with pytest.raises(OSError, match="went down"):
        export(corpus.asked(tmp_path / "copy", "jsonl"), fail_after_one)
    assert states(corpus) == {"copy": BEGUN} and list((tmp_path / "copy").rglob("*.zst"))
    assert purge(corpus, "--doc", sorted(corpus.texts())[0]) == 0
    assert states(corpus) == {"copy": REMOVED} and not [
        path for path in (tmp_path / "copy").rglob("*") if path.is_file()
    ]
    corpus.export(tmp_path / "copy", "jsonl")
    assert dict(readers.read_jsonl(tmp_path / "copy")) == corpus.texts()


@pytest.mark.parametrize("num_before", [0, 1, 99])
def test_an_export_that_a_purge_overtakes_ends_without_what_was_purged(
    corpus: Corpus, tmp_path: Path, num_before: int
) -> None:
    doc_id = sorted(corpus.texts())[0]

    def purged_meanwhile(job: ExportJob, pieces: Any) -> Any:
        written = in_process(job, pieces[:num_before])
        if read_index(str(corpus.out)).version == 1:
            assert purge(corpus, "--where", "status = 'kept'") == 1  # the folder is being written to
        return written + in_process(job, pieces[num_before:])

    done = export(corpus.asked(tmp_path / "copy", "jsonl"), purged_meanwhile)
    assert done.row.version == 2 and not dict(readers.read_jsonl(tmp_path / "copy"))
    assert problems(corpus) == [] and purge(corpus, "--doc", doc_id) == 0


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with commands_on(compile_faulty_disk(tmp_path_factory.mktemp("library"))) as server:
        yield server


@pytest.mark.parametrize("name", ["jsonl", "megatron"])
def test_a_killed_export_leaves_nothing_half_and_the_same_call_continues(
    corpus: Corpus,
    commands: Commands,
    tmp_path: Path,
    name: str,
    everywhere: Callable[[Path], dict[str, bytes]],
) -> None:
    copy = str(tmp_path / "copy")
    call = ("export", str(corpus.out), "--format", name, "--to", copy, "--file-documents", "30")

    def export(**env: str) -> int:
        return commands.call(*call, "--address", "none", env=env).code

    counter = tmp_path / "counter"
    assert export(DISK_UNDER=copy, DISK_COUNTER=str(counter)) == 0
    num = num_calls(counter)
    wanted = everywhere(tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy")
    for number in (0, num // 8, num // 4, num // 2):  # each call has less to do than the one before
        assert export(**Fault(under=copy, number=number).env()) == KILLED
        there = {
            key: data
            for key, data in everywhere(tmp_path / "copy").items()
            if not key.startswith("work/") and "/.tmp-" not in f"/{key}"
        }
        assert there.items() <= wanted.items()
    assert export() == 0
    assert everywhere(tmp_path / "copy") == wanted
    assert states(corpus) == {"copy": FINISHED} and problems(corpus) == []


def test_a_finished_unit_is_not_written_again(corpus: Corpus, tmp_path: Path) -> None:
    corpus.export(tmp_path / "copy", "jsonl")
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "copy").rglob("*.zst")}
    assert corpus.export(tmp_path / "copy", "jsonl").was_done
    (tmp_path / "copy" / MANIFEST).touch()
    assert stamps == {path: path.stat().st_mtime_ns for path in (tmp_path / "copy").rglob("*.zst")}


def test_a_folder_of_something_else_is_refused_and_left_as_it_is(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"not empty \(it holds 'thesis.txt'\)"):
        corpus.export(tmp_path / "mine", "jsonl")
    corpus.export(tmp_path / "copy", "jsonl")
    with pytest.raises(ValueError, match=r"format = 'jsonl', not 'parquet'"):
        corpus.export(tmp_path / "copy", "parquet")
    with pytest.raises(ValueError, match="recorded already"):
        export(replace(corpus.asked(tmp_path / "other", "jsonl"), name="copy"), in_process)
    with pytest.raises(ValueError, match="holds the output"):
        corpus.export(tmp_path, "jsonl")
    with pytest.raises(ValueError, match="lies under"):
        corpus.export(corpus.out / "copy", "jsonl")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    assert states(corpus) == {"copy": FINISHED}


def test_an_output_that_is_not_finished_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    (corpus.out / "index.json").unlink()
    with pytest.raises(NotFinishedError, match="not finished"):
        corpus.export(tmp_path / "copy", "jsonl")
    assert not (tmp_path / "copy").exists()


def test_a_full_disk_is_named_and_the_same_call_continues(corpus: Corpus, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 24) as disk:
        with pytest.raises(OSError, match=r"No space left on device.*disk/copy"):
            corpus.export(disk / "copy", "jsonl")
        resize(disk, 4000)
        corpus.export(disk / "copy", "jsonl")
        assert dict(readers.read_jsonl(disk / "copy")) == corpus.texts()


def test_an_export_whose_facts_were_not_covered_is_covered_by_the_same_call(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails between the last commit and checksums.json, and leaves half of that."""
    update, dead = records.update_table_checksums, corpus.out / ".tmp-checksums.json" / "dead"

    def fail_at_the_end(out: Folder, tables: Collection[str]) -> None:
        if [row.state for row in read_exports(out)] == [FINISHED]:
            dead.parent.mkdir()
            dead.touch()
            raise StorageError(28, "No space left on device", out.at("checksums.json"))
        update(out, tables)

    monkeypatch.setattr(records, "update_table_checksums", fail_at_the_end)
    with pytest.raises(StorageError):
        corpus.export(tmp_path / "copy", "jsonl")
    monkeypatch.undo()
    assert corpus.export(tmp_path / "copy", "jsonl").was_done
    assert not dead.parent.exists() and not problems(corpus)
    known = {entry.table: entry.version for entry in read_checksums(Folder(str(corpus.out))).tables}
    assert known["exports"] == 2


def test_verify_names_what_became_of_a_copy(corpus: Corpus, tmp_path: Path) -> None:
    corpus.export(tmp_path / "copy", "jsonl")
    shutil.copytree(tmp_path / "copy", tmp_path / "backup")
    path = next((tmp_path / "copy").rglob("*.zst"))
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert problems(corpus) == ["export.file"]
    path.unlink()
    assert problems(corpus) == ["export.file"]
    path.write_bytes(data)
    assert problems(corpus) == []
    assert purge(corpus, "--doc", sorted(corpus.texts())[0]) == 0
    shutil.rmtree(tmp_path / "copy")
    assert problems(corpus) == ["export.missing"]
    shutil.move(tmp_path / "backup", tmp_path / "copy")
    assert problems(corpus) == ["export.changed"]


def test_a_file_of_a_unit_that_a_backup_brought_back_is_named_and_removed_by_the_same_export(
    corpus: Corpus, tmp_path: Path
) -> None:
    split = (("train", 0.97), ("test", 0.03))
    asked = corpus.asked(tmp_path / "copy", "jsonl", split=split)
    doc_ids = [doc_id for doc_id in corpus.texts() if asked.request.split_of(bytes.fromhex(doc_id)) == "test"]
    export(asked, in_process)
    old = {path: path.read_bytes() for path in (tmp_path / "copy").glob("*/test-*")}
    assert old and purge(corpus, "--doc", *doc_ids) == 0 and problems(corpus) == []
    (tmp_path / "copy" / "notes.txt").write_text("of another")
    for path, data in old.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    assert problems(corpus) == ["export.extra"] * len(old)
    assert export(asked, in_process).was_done and problems(corpus) == []
    assert not any(path.exists() for path in old) and (tmp_path / "copy" / "notes.txt").exists()


def test_a_forgotten_copy_that_is_begun_again_is_stale_until_it_is_of_this_version(
    corpus: Corpus, tmp_path: Path
) -> None:
    def fail(_job: ExportJob, _pieces: Any) -> Any:
        raise OSError("the machine went down")

    corpus.export(tmp_path / "copy", "jsonl")
    assert purge(corpus, "--forget-export", "copy") == 0
    doc_id = sorted(corpus.texts())[0]
    assert purge(corpus, "--doc", doc_id) == 0 and problems(corpus) == []
    with pytest.raises(OSError, match="went down"):
        export(corpus.asked(tmp_path / "copy", "jsonl"), fail)
    assert states(corpus) == {"copy": BEGUN} and problems(corpus) == ["export.stale"]
    corpus.export(tmp_path / "copy", "jsonl")
    assert problems(corpus) == [] and doc_id not in dict(readers.read_jsonl(tmp_path / "copy"))


def test_a_copy_that_came_back_from_a_backup_is_cleaned_by_the_same_export(
    corpus: Corpus, tmp_path: Path
) -> None:
    corpus.export(tmp_path / "copy", "jsonl")
    shutil.copytree(tmp_path / "copy", tmp_path / "backup")
    doc_id = sorted(corpus.texts())[0]
    assert purge(corpus, "--doc", doc_id) == 0
    shutil.rmtree(tmp_path / "copy")
    shutil.move(tmp_path / "backup", tmp_path / "copy")
    corpus.export(tmp_path / "copy", "jsonl")
    assert doc_id not in dict(readers.read_jsonl(tmp_path / "copy")) and problems(corpus) == []


def test_sql_shows_each_export_once_and_checksums_cover_its_facts(corpus: Corpus, tmp_path: Path) -> None:
    done = corpus.export(tmp_path / "copy", "megatron")
    out = Folder(str(corpus.out))
    answer = query(out, "SELECT name, format, place, version, num_documents, state FROM exports").rows
    assert answer == [("copy", "megatron", str(tmp_path / "copy"), 1, done.row.num_documents, "finished")]
    assert {entry.table: entry.num_rows for entry in read_checksums(out).tables}["exports"] == 2
    assert done.row.manifest_hash == hash_file(Folder(str(tmp_path / "copy")), MANIFEST)


def test_two_exports_into_one_folder_exclude_each_other(corpus: Corpus, tmp_path: Path) -> None:
    with hold(Folder(str(tmp_path / "copy")), "another"), pytest.raises(OSError, match="held by another"):
        corpus.export(tmp_path / "copy", "jsonl")


def test_no_claim_and_no_marker_is_left(corpus: Corpus, tmp_path: Path) -> None:
    corpus.export(tmp_path / "copy", "jsonl")
    assert not (tmp_path / "copy" / CLAIM).exists() and not (tmp_path / "copy" / "work").exists()
    assert not [
        name for _, folders, _ in os.walk(tmp_path / "copy") for name in folders if name.startswith(".tmp-")
    ]


def test_an_export_in_a_bucket_has_the_same_bytes_and_a_purge_leaves_no_old_version_of_it(
    corpus: Corpus, tmp_path: Path, everywhere: Callable[[Path], dict[str, bytes]]
) -> None:
    with s3_server("bucket", versioned=True):
        there = Folder("s3://bucket/far")
        export(replace(corpus.asked(tmp_path / "far", "jsonl"), to=there), in_process)
        corpus.export(tmp_path / "near", "jsonl")
        near = everywhere(tmp_path / "near")
        assert near.pop(MANIFEST) and near == {
            name: there.read(name) for name in there.names() if name != MANIFEST
        }
        doc_id, _ = next(readers.read_jsonl(tmp_path / "near" / "web"))
        assert purge(corpus, "--doc", doc_id) == 0
        held = [version for version in versions(there, "") if not version.is_latest or version.is_marker]
        assert {version.name for version in held} <= {LEASE_FILE}  # which holds no text
        assert {name: there.read(name) for name in near} == {
            name: data for name, data in everywhere(tmp_path / "near").items() if name != MANIFEST
        }
        assert problems(corpus) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jsonl", "mds", "megatron"])
def test_one_processor_and_two_write_the_same_bytes(
    corpus: Corpus, tmp_path: Path, name: str, everywhere: Callable[[Path], dict[str, bytes]]
) -> None:
    for cpus in ("1", "2"):
        command = ["export", str(corpus.out), "--format", name, "--to", str(tmp_path / cpus), "--name", cpus]
        options = ["--num-cpus", cpus, "--file-documents", "20"]
        subprocess.run([sys.executable, "-m", "pipeline", *command, *options], cwd=ROOT, check=True)
    one, two = everywhere(tmp_path / "1"), everywhere(tmp_path / "2")
    assert one.pop(MANIFEST) != two.pop(MANIFEST)  # it holds the export's name
    assert one == two
