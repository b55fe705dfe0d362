"""Verify: an OUT as the writers leave it holds; whatever is damaged, dropped or repeated is found and
named."""

from __future__ import annotations

import functools
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lineage.index.checksums import seal, unseal
from lineage.index.output_index import Index, NotFinishedError, encode_index
from lineage.storage.folder import Folder
from lineage.store import delta as store
from lineage.store import tables
from lineage.store.checksum_update import update_table_checksums
from lineage.store.shuffle import Shuffle
from lineage.trace.earlier import find_in
from lineage.verify.output import verify
from lineage.verify.problems import Problem
from tests.support.outputs.small_out.hooks import verify_hooks
from tests.support.outputs.small_out.output import SmallOut, change_where, make_small_out
from tests.support.outputs.small_out.records import make_records


def problems(out: Folder) -> tuple[Problem, ...]:
    return verify(out, verify_hooks()).problems


def flip(out: Folder, name: str, share: float) -> None:
    path = Path(out.at(name))
    data = bytearray(path.read_bytes())
    data[min(int(len(data) * share), len(data) - 1)] ^= 0x10
    path.write_bytes(bytes(data))


def test_what_the_writers_leave_holds(template: SmallOut) -> None:
    verification = verify(template.folder, verify_hooks())
    assert verification.problems == verification.notes == ()
    assert verification.num_documents == len(template.records)
    assert verification.num_tokens == template.index.num_tokens > 3000
    assert len(template.index.shards) > 4


def test_that_an_output_was_written_to_while_it_was_read_is_noted_where_something_does_not_hold(
    out: Folder,
) -> None:
    def written_anew(_out: Folder, _index: Index) -> str:
        sums = unseal(out.read("checksums.json"), "checksums.json")
        out.publish("checksums.json", seal(dict(reversed(sums.items()))))
        return "another index"

    def as_it_was(_out: Folder, _index: Index) -> str:
        return "another index"

    notes = [
        verify(out, replace(verify_hooks(), stale_report=told)).notes for told in (as_it_was, written_anew)
    ]
    assert notes == [
        (),
        (Problem("output.changed", out.url, "it was written to while it was read: verify again"),),
    ]


def assert_every_flip_is_found(
    template: SmallOut, tmp_path: Path, names: list[str], shares: tuple[float, ...]
) -> None:
    for name in names:
        for share in shares:
            shutil.copytree(template.folder.url, tmp_path / "out", dirs_exist_ok=True)
            damaged = Folder(str(tmp_path / "out"))
            flip(damaged, name, share)
            assert any(name in problem.where for problem in problems(damaged)), (name, share)


def test_a_flipped_byte_is_found_in_each_kind_of_file_and_named(template: SmallOut, tmp_path: Path) -> None:
    names = {re.sub(r"[0-9a-f]{5,}|web|books", "", name): name for name in template.folder.names()}
    assert_every_flip_is_found(
        template, tmp_path, [name for name in names.values() if "findings" not in name], (0.5,)
    )


@pytest.mark.slow
def test_a_flipped_byte_is_found_in_every_file_wherever_it_lies(template: SmallOut, tmp_path: Path) -> None:
    assert_every_flip_is_found(
        template, tmp_path, template.folder.names(), (0.0, 0.02, 0.3, 0.5, 0.8, 0.98, 1.0)
    )


def test_a_removed_and_an_added_file_are_named(out: Folder) -> None:
    out.remove("report.html")
    out.remove("shards/web/00002.blocks")
    out.publish("shards/web/00099.bin", b"1234")
    out.publish("lineage/documents/stranger.parquet", b"PAR1")
    Path(out.at("documents/web/.tmp-abc-part.parquet")).write_bytes(b"text of a page")
    Path(out.at("documents/web/.tmp-part.parquet")).mkdir()
    Path(out.at("documents/web/.tmp-part.parquet/0123")).write_bytes(b"text of a page")
    found = {(problem.check, problem.where) for problem in problems(out)}
    assert {
        ("file.missing", "report.html"),
        ("file.missing", "shards/web/00002.blocks"),
        ("file.extra", "shards/web/00099.bin"),
        ("file.extra", "lineage/documents/stranger.parquet"),
        ("file.leftover", "documents/web/.tmp-abc-part.parquet"),
        ("file.leftover", "documents/web/.tmp-part.parquet/0123"),
    } <= found


def test_unfinished_work_is_named(out: Folder) -> None:
    out.publish("work/purge/intent.json", b"{}")
    assert [problem.check for problem in problems(out)] == ["work.unfinished"]


def test_an_out_without_index_is_not_verified(out: Folder) -> None:
    out.remove("index.json")
    with pytest.raises(NotFinishedError):
        verify(out, verify_hooks())


WRITTEN = sorted(tables.WRITTEN_ONCE)


def rewrite(out: Folder, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change a table by a commit of its own, as another Delta engine would."""
    rows = change(store.read_table(out, name))
    write_deltalake(store.table_uri(out, name), rows, mode="overwrite")


def without_first(rows: pa.Table) -> pa.Table:
    return rows.slice(1)


def with_first_twice(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows.slice(0, 1)])


@pytest.mark.parametrize("change", [without_first, with_first_twice])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_row_dropped_or_repeated_by_a_commit_is_found(
    out: Folder, name: str, change: Callable[[pa.Table], pa.Table]
) -> None:
    rewrite(out, name, change)
    assert ("table.changed", f"lineage/{name}") in {
        (problem.check, problem.where) for problem in problems(out)
    }


TIED = ("documents", "placements", "steps", "step_rules", "inputs", "url_index", "warc_index", "cluster_index", "dedup",
        "parts", "hash_index")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("change", [without_first, with_first_twice])
@pytest.mark.parametrize("name", TIED)
def test_a_row_that_the_writers_lost_or_doubled_is_found_by_what_else_knows_it(
    tmp_path: Path, name: str, change: Callable[[pa.Table], pa.Table]
) -> None:
    if (name, change) == ("hash_index", with_first_twice):
        pytest.skip("two records may share a row of hash_index, so a repeated one is no damage")
    changed: list[str] = []

    def tamper(table: str, rows: pa.Table) -> pa.Table:
        if table != name or changed:
            return rows
        changed.append(table)
        return change(rows)

    small = make_small_out(str(tmp_path / "out"), tamper=tamper)
    found = problems(small.folder)
    assert changed and found
    assert not any(problem.check.startswith("file.") for problem in found), (
        "the checksums were taken after the loss"
    )


def test_a_repeated_row_of_edits_is_found(tmp_path: Path) -> None:
    small = make_small_out(
        str(tmp_path / "out"), tamper=lambda name, rows: with_first_twice(rows) if name == "edits" else rows
    )
    assert [problem.check for problem in problems(small.folder)] == ["edits.repeated"]


def facts(name: str) -> pa.Table:
    values = {"string": "x", "int64": 1, "binary": b"0" * 16}
    return pa.Table.from_pylist(
        [{f.name: values[str(f.type)] for f in tables.SCHEMAS[name]}], schema=tables.SCHEMAS[name]
    )


@pytest.mark.parametrize("name", ["training_runs", "training_segments", "cache_sweeps"])
def test_facts_newer_than_their_checksums_hold_and_a_dropped_or_repeated_one_does_not(
    out: Folder, name: str
) -> None:
    store.append(out, name, facts(name), "first")
    assert problems(out) == ()
    update_table_checksums(out, [name])
    assert problems(out) == ()
    store.append(out, name, facts(name), "second")
    assert [problem.check for problem in problems(out)] == ["table.repeated"]
    rewrite(out, name, lambda rows: rows.slice(2))
    assert "table.changed" in {problem.check for problem in problems(out)}


def test_facts_that_were_gathered_into_one_file_hold(out: Folder) -> None:
    for number in range(store.FILES_WORTH_GATHERING + 2):
        row = facts("cache_sweeps").to_pylist()[0] | {"at": str(number)}
        rows = pa.Table.from_pylist([row], schema=tables.SCHEMAS["cache_sweeps"])
        store.append(out, "cache_sweeps", rows, f"sweep {number}")
        if number == 3:
            update_table_checksums(out, ["cache_sweeps"])
    assert len(store.state(out, "cache_sweeps").files) < 10
    assert problems(out) == ()
    update_table_checksums(out, ["cache_sweeps"])
    assert problems(out) == ()


def wrong_facts() -> Iterator[tuple[str, str, str, str, object, str]]:
    """(what is wrong, planted record, table, column, value, the check that must find it)."""
    yield "a text of another hash", "original", "parts", "text", "something else", "documents.clean_hash"
    yield "a place that is not", "original", "documents", "start", 10**6, "documents.place"
    yield "a similarity below the threshold", "near", "documents", "similarity", 0.5, "duplicates.edge"
    yield "a similarity that was not measured", "near", "documents", "similarity", 0.999, "duplicates.edge"
    yield (
        "a text that does not resemble",
        "near",
        "parts",
        "text",
        "nothing in common at all here",
        "duplicates.edge",
    )
    yield (
        "a duplicate of what was not kept",
        "exact",
        "documents",
        "duplicate_of",
        make_records()[1]["near"].doc_id,
        "duplicates.edge",
    )
    yield "a duplicate of nothing", "exact", "documents", "duplicate_of", None, "duplicates.edge"
    yield (
        "an exact duplicate of another text",
        "exact",
        "documents",
        "clean_hash",
        b"1" * 16,
        "duplicates.edge",
    )
    yield "another URL", "same_url", "documents", "url", "http://elsewhere.example/", "duplicates.edge"
    yield "a rejection without a rule", "near", "documents", "rule", None, "documents.status"
    yield "another rule", "near", "documents", "rule", "dedup.other", "steps.documents"
    yield "a status that is none", "near", "documents", "status", "lost", "documents.status"
    yield "a key that lookups miss", "original", "documents", "k", 5, "documents.k"
    yield (
        "a cluster not named by its least",
        "original",
        "documents",
        "cluster_id",
        b"\xff" * 16,
        "documents.cluster",
    )
    yield (
        "a cluster that its kept document is not in",
        "near",
        "documents",
        "cluster_id",
        bytes(16),
        "documents.cluster",
    )
    yield "dedup state of another text", "original", "dedup", "clean_hash", b"2" * 16, "dedup.document"


@pytest.mark.slow
@pytest.mark.parametrize("case", [pytest.param(case, id=case[0].replace(" ", "-")) for case in wrong_facts()])
def test_a_wrong_fact_is_found(tmp_path: Path, case: tuple[str, str, str, str, object, str]) -> None:
    _, record, table, column, value, check = case
    doc_id = make_records()[1][record].doc_id
    small = make_small_out(str(tmp_path / "out"), tamper=change_where(table, doc_id, column, value))
    found = problems(small.folder)
    assert check in {problem.check for problem in found}, found


def test_tokens_that_are_sealed_but_wrong_are_found_in_their_document(
    tmp_path: Path, template: SmallOut
) -> None:
    """Somebody changes a token and makes every checksum right again: the document's tokens_hash still
    tells."""
    from lineage.ids import content_hash
    from lineage.index.blocks import ShardHasher

    shutil.copytree(template.folder.url, tmp_path / "out")
    out = Folder(str(tmp_path / "out"))
    flip(out, "shards/web/00001.bin", 0.5)
    hasher = ShardHasher()
    hasher.update(out.read("shards/web/00001.bin"))
    digests = hasher.digests()
    out.publish("shards/web/00001.blocks", digests.blocks)
    fields = json.loads(encode_index(template.index))
    for shard in fields["shards"]:
        if shard["file"] == "shards/web/00001.bin":
            shard["hash"], shard["blocks_hash"] = digests.hash, content_hash(digests.blocks).hex()
    del fields["checksum"]
    out.publish("index.json", seal(fields))
    assert [problem.check for problem in problems(out)] == ["shard.tokens"]


def test_a_near_duplicate_by_bands_alone_has_no_threshold_and_shares_a_band(tmp_path: Path) -> None:
    near = make_records()[1]["near"].doc_id
    small = make_small_out(str(tmp_path / "out"), tamper=change_where("documents", near, "threshold", None))
    by_bands = replace(verify_hooks(), share_band=lambda left, right: True)
    assert verify(small.folder, by_bands).problems == ()
    messages = [problem.message for problem in problems(small.folder)]
    assert len(messages) == 1 and "its threshold None" in messages[0], (
        "the run took a threshold, by its recipe"
    )
    apart = replace(by_bands, share_band=lambda left, right: False)
    (problem,) = verify(small.folder, apart).problems
    assert problem.check == "duplicates.edge" and "shares no band" in problem.message
    unlike = replace(by_bands, jaccard=lambda left, right: 0.25)
    (problem,) = verify(small.folder, unlike).problems
    assert "is 0.25, recorded is" in problem.message


def test_a_threshold_where_bands_alone_decided_is_a_problem(template: SmallOut) -> None:
    found = verify(template.folder, replace(verify_hooks(), share_band=lambda left, right: True)).problems
    assert [problem.check for problem in found] == ["duplicates.edge"]


def test_rejections_by_the_clock_are_listed_and_no_failure(tmp_path: Path) -> None:
    late = make_records()[0][1].doc_id

    def tamper(name: str, rows: pa.Table) -> pa.Table:
        rows = change_where("documents", late, "rule", "parse.timeout")(name, rows)
        if name in ("documents", "url_index"):
            return rows
        if name == "step_rules":
            rules = [rule.replace("parse.empty", "parse.timeout") for rule in rows["rule"].to_pylist()]
            return rows.set_column(rows.schema.get_field_index("rule"), "rule", pa.array(rules))
        return rows

    small = make_small_out(str(tmp_path / "out"), tamper=tamper)
    verification = verify(small.folder, verify_hooks())
    assert {problem.check for problem in verification.problems} == {"steps.documents"}, (
        "two others still say parse.empty"
    )
    assert [late.hex() in note.where for note in verification.notes] == [True]


def test_a_duplicate_of_an_earlier_output_s_document_is_accepted_when_it_is_there(tmp_path: Path) -> None:
    elsewhere = b"7" * 16
    planted = make_records()[1]["near"]
    small = make_small_out(
        str(tmp_path / "out"), tamper=change_where("documents", planted.doc_id, "duplicate_of", elsewhere)
    )
    assert {problem.check for problem in problems(small.folder)} == {"duplicates.edge"}
    hooks = replace(verify_hooks(), known_elsewhere=lambda doc_id: doc_id == elsewhere)
    assert verify(small.folder, hooks).problems == ()


def test_an_earlier_output_that_is_gone_is_a_problem_beside_those_of_other_duplicates(tmp_path: Path) -> None:
    named, gone = make_records()[1], str(tmp_path / "gone")
    in_gone = change_where("documents", named["near"].doc_id, "duplicate_of", b"7" * 16)
    wrong = change_where("documents", named["same_url"].doc_id, "url", "http://elsewhere.example/")
    small = make_small_out(str(tmp_path / "out"), tamper=lambda name, rows: wrong(name, in_gone(name, rows)))
    find = find_in([gone])
    found = verify(
        small.folder, replace(verify_hooks(), known_elsewhere=lambda doc_id: find(doc_id) is not None)
    )
    (problem,) = [problem for problem in found.problems if problem.check == "duplicates.earlier"]
    assert problem.where == gone and "cannot be opened, so 1 duplicates" in problem.message
    assert "duplicates.edge" in {problem.check for problem in found.problems}


def test_many_small_buckets_on_disk_say_what_one_in_memory_says(
    template: SmallOut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doc_id = template.named["near"].doc_id
    wrong = make_small_out(
        str(tmp_path / "out"), tamper=change_where("documents", doc_id, "similarity", 0.999)
    ).folder
    found = problems(wrong)
    monkeypatch.setattr("lineage.verify.output.num_ranges", lambda _num_rows: 16)
    monkeypatch.setattr("lineage.verify.output.Shuffle", functools.partial(Shuffle, buffer_bytes=1000))
    assert problems(template.folder) == ()
    assert found and set(problems(wrong)) == set(found)


def test_at_most_so_many_problems_are_listed_and_it_is_said_that_there_are_more(out: Folder) -> None:
    for name in out.names("documents"):
        out.remove(name)
    every = verify(out, verify_hooks())
    assert len(every.problems) > 3 and not every.has_more
    assert verify(out, verify_hooks(), most=len(every.problems)) == every
    first = verify(out, verify_hooks(), most=3)
    assert first.problems == every.problems[:3] and first.has_more
