"""Purged text that a backup brings back: it is named, and purged again; and a report tells of every purge."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lineage.index.checksums import sum_file
from lineage.index.output_index import read_index
from lineage.purge import execution
from lineage.purge.execution import apply
from lineage.purge.returned import find_returned
from lineage.storage.folder import Folder, UnreachableError
from lineage.store import delta as store
from lineage.store.checksum_update import update_checksums
from lineage.store.lookup import Lookup
from lineage.store.purged_spans import PurgedSpans, read_purged
from lineage.trace.tracer import Functions, Tracer
from lineage.verify.output import verify
from tests.support.outputs.byte_search import of_folder
from tests.support.outputs.lineage_query import query
from tests.support.outputs.purging import assert_gone, assert_whole, by_doc, purge, roles
from tests.support.outputs.small_out.hooks import apply_hooks, ordered, plan_hooks, verify_hooks
from tests.support.outputs.small_out.output import SmallOut
from tests.support.outputs.small_out.records import Record


def backed_up(out: Folder, folder: Path) -> Path:
    shutil.copytree(out.url, folder)
    return folder


def lay_over(backup: Path, out: Folder, *tops: str) -> None:
    """What `cp -r` of some of a backup's files and folders does: nothing is deleted."""
    for top in tops:
        if (backup / top).is_dir():
            shutil.copytree(backup / top, out.at(top), dirs_exist_ok=True)
        else:
            shutil.copy(backup / top, out.at(top))


DATA = ("documents", "shards", "dedup", "excerpts.parquet", "report.html", "checksums.json")


def problems_of(out: Folder) -> set[tuple[str, str]]:
    return {(problem.check, problem.where) for problem in verify(out, verify_hooks()).problems}


def returned(*records: Record) -> set[tuple[str, str]]:
    return {("purged.returned", f"document {record.doc_id.hex()}") for record in records}


def purges_of(out: Folder, record: Record, version: int | None = None) -> set[object]:
    """What SQL names as the purge of a document."""
    sql = f"SELECT purged FROM documents WHERE doc_id = '{record.doc_id.hex()}'"
    return {row[0] for row in query(out, sql, version).rows}


def victims_of(small: SmallOut) -> tuple[Record, ...]:
    return tuple(small.named[name] for name in ("original", "exact", "near"))


@pytest.mark.parametrize(
    "what", [(*DATA, "index.json"), ("documents", "shards", "dedup"), ("documents",), ("shards",)]
)
def test_what_a_backup_brought_back_is_named_and_purged_again(
    template: SmallOut, out: Folder, tmp_path: Path, what: tuple[str, ...]
) -> None:
    backup, match = backed_up(out, tmp_path / "backup"), by_doc(template.named["original"])
    purge(out, match)
    lay_over(backup, out, *what)
    with pytest.raises(AssertionError):
        assert_gone(template, of_folder(out), *victims_of(template))
    # Tokens are of kept documents only.
    there = victims_of(template) if what != ("shards",) else (template.named["original"],)
    assert problems_of(out) >= returned(*there)
    again = purge(out, match)
    assert again.purge_id is not None and set(again.plan.returned) == {record.doc_id for record in there}
    assert_gone(template, of_folder(out), *victims_of(template))
    assert_whole(out)
    assert read_index(out).version == 3 == 1 + store.read_table(out, "purges").num_rows
    assert purge(out, match).purge_id is None


def test_another_purge_takes_what_is_there_again_along_in_the_role_that_it_had(
    template: SmallOut, out: Folder, tmp_path: Path
) -> None:
    backup, other = backed_up(out, tmp_path / "backup"), template.named["first"]
    purge(out, by_doc(template.named["near"]))
    lay_over(backup, out, *DATA, "index.json")
    assert roles(out, by_doc(other)) == {
        other.doc_id: "target",
        template.named["near"].doc_id: "target",
        template.named["original"].doc_id: "kept_copy",
        template.named["exact"].doc_id: "twin",
    }
    purge(out, by_doc(other))
    assert_gone(template, of_folder(out), other, *victims_of(template))
    assert_whole(out)


def test_a_backup_from_between_two_purges_undoes_only_the_second(
    template: SmallOut, out: Folder, tmp_path: Path
) -> None:
    kept = [record for record in template.records if record.status == "kept" and record.cluster_id is None]
    first, second, third = kept[0], kept[1], kept[-1]
    purge(out, by_doc(first))
    backup = backed_up(out, tmp_path / "backup")
    purge(out, by_doc(second))
    lay_over(backup, out, *DATA, "index.json")
    assert problems_of(out) >= returned(second) and not problems_of(out) & returned(first)
    assert set(purge(out, by_doc(third)).plan.returned) == {second.doc_id}
    assert_gone(template, of_folder(out), first, second, third)
    assert_whole(out)
    assert read_index(out).version == 4


def test_one_old_file_under_its_new_name_brings_nobody_back(
    template: SmallOut, out: Folder, tmp_path: Path
) -> None:
    """Damage of one file: whoever else was purged from it must not be covered by the next generation."""
    alone = [record for record in template.records if record.status == "kept" and record.cluster_id is None]
    (row,) = purge(out, by_doc(alone[0])).plan.rows
    places = {
        found.doc_id: (found.source, found.shard)
        for found in Lookup(out).documents([r.doc_id for r in alone])
    }
    beside = next(record for record in alone[1:] if places[record.doc_id] == (row.source, row.shard))
    purge(out, by_doc(beside))
    shard = next(
        shard for shard in read_index(out).shards if (shard.source, shard.shard) == (row.source, row.shard)
    )
    old = Path(template.folder.at(f"shards/{row.source}/{row.shard:05d}.bin"))
    shutil.copy(old, out.at(shard.file))
    assert set(purge(out, by_doc(alone[0])).plan.returned) == {alone[0].doc_id, beside.doc_id}
    assert_gone(template, of_folder(out), alone[0], beside)
    assert_whole(out)


def test_trace_knows_the_last_purge_of_what_was_purged_twice(
    template: SmallOut, out: Folder, tmp_path: Path
) -> None:
    backup, match = backed_up(out, tmp_path / "backup"), by_doc(template.named["original"])
    first = purge(out, match)
    lay_over(backup, out, *DATA, "index.json")
    second = purge(out, match)
    assert first.purge_id != second.purge_id
    rows = Lookup(out).purged([template.named["original"].doc_id])
    assert {row.purge_id for row in rows} == {first.purge_id, second.purge_id}
    functions = Functions()
    (history,) = Tracer(out, functions).histories([template.named["original"].doc_id])
    assert history.purged is not None and history.purged.purge_id == second.purge_id
    assert purges_of(out, template.named["original"]) == {second.purge_id}, "SQL gives the same answer"
    assert purges_of(out, template.named["original"], version=2) == {first.purge_id}


def test_the_report_tells_of_the_purge_that_it_was_rendered_after(template: SmallOut, out: Folder) -> None:
    applied = purge(out, by_doc(template.named["original"]))
    assert f"purged: {applied.purge_id}".encode() in out.read("report.html")


def test_verify_names_a_report_that_does_not_show_the_last_purge(template: SmallOut, out: Folder) -> None:
    page = out.read("report.html")
    purge(out, by_doc(next(record for record in template.records if record.status == "kept")))
    assert_whole(out)
    out.publish("report.html", page)
    update_checksums(out, [sum_file(out, "report.html")])
    assert problems_of(out) == {("report.stale", "report.html")}


@pytest.mark.parametrize("killed", [False, True])
def test_a_purge_vouches_for_no_damage_that_it_found(
    template: SmallOut, out: Folder, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    log = "lineage/edits/_delta_log/00000000000000000000.json"
    out.publish("recipe.toml", out.read("recipe.toml")[:6])
    out.publish(log, out.read(log) + b"\n")
    out.remove("run.json")
    out.publish("notes.txt", b"none of ours")
    damage = {
        ("file.hash", "recipe.toml"),
        ("file.hash", log),
        ("file.missing", "run.json"),
        ("file.extra", "notes.txt"),
    }
    assert problems_of(out) >= damage
    match = by_doc(template.named["original"])
    if killed:
        with monkeypatch.context() as patched:
            patched.setattr(execution, "update_checksums", out_of_memory)
            with pytest.raises(MemoryError):
                purge(out, match)
    assert purge(out, match).purge_id is not None
    assert problems_of(out) == damage


def test_a_purge_leaves_the_sum_of_excerpts_that_it_did_not_rewrite(template: SmallOut, out: Folder) -> None:
    shown = pq.read_table(out.at("excerpts.parquet"))
    pq.write_table(shown.slice(1), out.at("excerpts.parquet"))
    purge(out, by_doc(next(record for record in template.records if record.status == "kept")))
    assert ("file.hash", "excerpts.parquet") in problems_of(out)


def test_a_purge_makes_no_new_checksums_where_they_were_lost(template: SmallOut, out: Folder) -> None:
    out.remove("checksums.json")
    purge(out, by_doc(template.named["original"]))
    assert "checksums.damaged" in {check for check, _ in problems_of(out)}


def out_of_memory(*_: object, **__: object) -> None:
    raise MemoryError


class FullDisk:
    """Refuses the n-th write of a purge, and all that follow."""

    def __init__(self, allowed: int) -> None:
        self.left = allowed

    def refusing(self, write: Callable[..., object]) -> Callable[..., object]:
        def writing(folder: Folder, name: str) -> object:
            self.left -= 1
            if self.left < 0:
                raise OSError(28, "No space left on device", name)
            return write(folder, name)

        return writing


@pytest.mark.parametrize("allowed", range(2, 14))
def test_a_purge_that_met_a_full_disk_is_finished_by_the_same_call_and_says_so(
    template: SmallOut, out: Folder, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    match = by_doc(template.named["original"])
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "writing", FullDisk(allowed).refusing(Folder.writing))
        with pytest.raises(OSError, match="No space left"):
            apply(out, ordered(match), plan_hooks(), apply_hooks())
    applied = purge(out, match)
    assert applied.finished == applied.purge_id is not None
    assert_gone(template, of_folder(out), *victims_of(template))
    assert_whole(out)


@pytest.mark.parametrize(
    "name", ["documents/web/part-00000.parquet", "shards/web/00000.bin", "excerpts.parquet"]
)
def test_nobody_concludes_that_nothing_came_back_from_a_store_that_does_not_answer(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "something")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # without the pauses between several
    purged = PurgedSpans(frozenset({b"d" * 16}), {("web", 0): {(b"d" * 16, 0, 4)}})
    with pytest.raises(UnreachableError, match="does not answer"):
        list(find_returned(Folder("s3://plain/out"), 0, purged, [name]))


def test_a_single_copy_that_went_is_purged_again_where_its_text_is_to_go(
    template: SmallOut, out: Folder
) -> None:
    victim = template.named["original"]
    match = by_doc(victim)
    assert purge(out, replace(match, promote_duplicates=True)).purge_id is not None
    assert victim.doc_id not in read_purged(out).with_text
    assert {purge(out, match).purge_id} == purges_of(out, victim) - {None}
    assert victim.doc_id in read_purged(out).with_text, "later runs keep its text out by its hashes"
    assert_whole(out)
    assert purge(out, match).purge_id is None
