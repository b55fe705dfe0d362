"""Purge: nothing of the text is left, and nothing else changes."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lineage.index.output_index import read_index
from lineage.pages import normalise_url
from lineage.purge.plan import PurgeError, PurgeMatch, _Planner, plan_purge
from lineage.purge.purge_filter import read_purged_sets
from lineage.storage.folder import Folder
from lineage.storage.lock import HeldError, hold
from lineage.store import delta as store
from lineage.store.work import PLAN
from lineage.trace.earlier import find_in
from lineage.verify.output import verify
from tests.support.outputs.byte_search import of_folder
from tests.support.outputs.purging import assert_gone, assert_whole, by_doc, purge, roles
from tests.support.outputs.small_out.hooks import plan_hooks, verify_hooks
from tests.support.outputs.small_out.output import SmallOut, Tamper, change_where, make_small_out
from tests.support.outputs.small_out.records import Record, make_records


def test_the_search_of_every_byte_finds_what_is_there(template: SmallOut) -> None:
    with pytest.raises(AssertionError):
        assert_gone(template, of_folder(template.folder), template.named["original"])


def test_a_purged_document_is_nowhere_and_all_else_is_as_it_was(template: SmallOut, out: Folder) -> None:
    victim = next(
        record for record in template.records if record.status == "kept" and record.cluster_id is None
    )
    before = read_index(out)
    texts = {shard.file: out.read(shard.file) for shard in before.shards}
    applied = purge(out, by_doc(victim))
    after = read_index(out)
    assert_whole(out)
    assert_gone(template, of_folder(out), victim)
    assert after.order_fingerprint == before.order_fingerprint
    assert after.content_fingerprint != before.content_fingerprint
    assert (after.version, applied.plan.num_documents) == (2, 1)
    (row,) = applied.plan.rows
    for old, new in zip(before.shards, after.shards, strict=True):
        tokens = np.frombuffer(texts[old.file], dtype="<u4").copy()
        if (old.source, old.shard) == (row.source, row.shard):
            assert new.file == old.file.replace(".bin", ".r1.bin") and not out.exists(old.file)
            assert row.start is not None and row.num_tokens is not None
            tokens[row.start : row.start + row.num_tokens] = template.tokenizer.eot_id
        else:
            assert new == old
        assert out.read(new.file) == tokens.tobytes()


def test_its_audit_row_names_who_and_why_and_what_changed(template: SmallOut, out: Folder) -> None:
    before = read_index(out)
    applied = purge(out, by_doc(template.named["original"]))
    (row,) = store.read_table(out, "purges").to_pylist()
    assert (row["purge_id"], row["by"], row["reason"]) == (applied.purge_id, "a test", "to see it gone")
    assert json.loads(row["match"]) == {"kind": "doc", "values": [template.named["original"].doc_id.hex()]}
    assert row["content_fingerprint_before"] == before.content_fingerprint
    assert row["content_fingerprint_after"] == read_index(out).content_fingerprint
    assert (row["num_documents"], row["num_tokens"]) == (3, applied.plan.num_tokens)
    purged = store.read_table(out, "purged").to_pylist()
    assert sorted((entry["doc_id"], entry["role"]) for entry in purged) == sorted(roles_of(template).items())


def roles_of(small: SmallOut) -> dict[bytes, str]:
    named = small.named
    return {named["original"].doc_id: "target", named["exact"].doc_id: "twin", named["near"].doc_id: "twin"}


def test_duplicates_by_text_go_with_the_document_that_they_repeat(template: SmallOut) -> None:
    assert roles(template.folder, by_doc(template.named["original"])) == roles_of(template)


def test_the_kept_copy_of_a_suppressed_duplicate_goes_with_it_and_so_do_its_others(
    template: SmallOut,
) -> None:
    named = template.named
    assert roles(template.folder, by_doc(named["near"])) == {
        named["near"].doc_id: "target",
        named["original"].doc_id: "kept_copy",
        named["exact"].doc_id: "twin",
    }


def test_a_duplicate_by_url_alone_goes_only_when_the_url_is_named(template: SmallOut) -> None:
    original, same_url = template.named["url_original"], template.named["same_url"]
    assert original.url is not None
    assert roles(template.folder, by_doc(original)) == {original.doc_id: "target"}
    assert roles(template.folder, by_doc(same_url)) == {same_url.doc_id: "target"}
    by_url = PurgeMatch(kind="url", values=(original.url.replace("http://host0", "HTTP://HOST0"),))
    assert roles(template.folder, by_url) == {original.doc_id: "target", same_url.doc_id: "target"}


def test_what_has_the_very_text_goes_too_though_it_was_dropped_for_its_url(
    template: SmallOut, out: Folder
) -> None:
    kept, dropped = template.named["text_original"], template.named["same_text"]
    assert roles(out, by_doc(kept)) == {kept.doc_id: "target", dropped.doc_id: "twin"}
    assert roles(out, by_doc(dropped)) == {dropped.doc_id: "target", kept.doc_id: "kept_copy"}
    purge(out, by_doc(kept))
    assert_whole(out)
    assert_gone(template, of_folder(out), kept, dropped)
    assert purge(out, by_doc(dropped)).purge_id is None


def test_verify_names_a_document_that_still_has_a_purged_text(
    template: SmallOut, out: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, dropped = template.named["text_original"], template.named["same_text"]
    with monkeypatch.context() as patched:
        patched.setattr(_Planner, "_of_same_text", lambda _self, _rows: [])
        purge(out, by_doc(kept))
    found = verify(out, verify_hooks()).problems
    assert [(problem.check, problem.where) for problem in found] == [
        ("purged.copy", f"document {dropped.doc_id.hex()}")
    ]
    purge(out, by_doc(dropped))
    assert_whole(out)


def test_both_records_with_one_id_are_purged(template: SmallOut, out: Folder) -> None:
    purge(out, by_doc(template.named["first"]))
    assert_whole(out)
    assert_gone(template, of_folder(out), template.named["first"])


def test_a_host_is_purged_with_what_was_rejected_of_it(template: SmallOut, out: Folder) -> None:
    of_host = [record for record in template.records if record.url and record.url.startswith("http://host1.")]
    assert {record.status for record in of_host} >= {"kept", "rejected"}
    applied = purge(out, PurgeMatch(kind="host", values=("HOST1.example.",)))
    assert {row.doc_id for row in applied.plan.rows} >= {record.doc_id for record in of_host}
    assert_whole(out)
    assert_gone(template, of_folder(out), *of_host)


def test_purging_what_is_purged_changes_nothing_and_says_so(template: SmallOut, out: Folder) -> None:
    match = by_doc(template.named["exact"])
    purge(out, match)
    before = {name: Path(out.at(name)).stat().st_mtime_ns for name in out.names()}
    again = purge(out, match)
    assert again.purge_id is None and again.plan.rows == ()
    assert set(again.plan.already) == set(roles_of(template))
    assert {name: Path(out.at(name)).stat().st_mtime_ns for name in out.names()} == before


def test_purges_after_one_another_leave_a_whole_out(template: SmallOut, out: Folder) -> None:
    kept = [record for record in template.records if record.status == "kept"]
    for number, victim in enumerate(kept[:4], start=2):
        purge(out, by_doc(victim))
        assert read_index(out).version == number
    assert_whole(out)
    assert_gone(template, of_folder(out), *kept[:4])
    assert not out.exists("work") and not any(name.startswith("work/") for name in out.names())


@pytest.mark.parametrize(("match", "why"), [
    (PurgeMatch(kind="doc", values=("00" * 16,)), "has no document"),
    (PurgeMatch(kind="doc", values=("no id",)), "32 hexadecimal digits"),
    (PurgeMatch(kind="url", values=("http://nowhere.example/",)), "has no url"),
    (PurgeMatch(kind="host", values=("nowhere.example",)), "has no host"),
])  # fmt: skip
def test_what_nobody_knows_is_refused_before_anything_changes(
    out: Folder, match: PurgeMatch, why: str
) -> None:
    before = out.names()
    with pytest.raises(ValueError, match=why):
        purge(out, match)
    assert out.names() == before


def of_an_earlier_output(*records: Record) -> Tamper:
    """These are duplicates of a document that this output does not hold."""
    changes = [change_where("documents", record.doc_id, "duplicate_of", b"7" * 16) for record in records]
    return lambda name, rows: functools.reduce(lambda changed, change: change(name, changed), changes, rows)


def test_a_copy_in_an_earlier_output_is_named(tmp_path: Path) -> None:
    near = make_records()[1]["near"]
    small = make_small_out(str(tmp_path / "out"), tamper=of_an_earlier_output(near))
    hooks = replace(plan_hooks(), find_elsewhere=lambda _id: "s3://earlier/out")
    plan = plan_purge(small.folder, by_doc(near), hooks)
    assert [(entry.doc_id, entry.repeated_by, entry.out) for entry in plan.elsewhere] == [
        (b"7" * 16, near.doc_id, "s3://earlier/out")
    ]


def test_an_earlier_output_that_is_gone_is_named_and_stops_no_purge(tmp_path: Path) -> None:
    near, gone = make_records()[1]["near"], str(tmp_path / "gone")
    small = make_small_out(str(tmp_path / "out"), tamper=of_an_earlier_output(near))
    (entry,) = plan_purge(
        small.folder, by_doc(near), replace(plan_hooks(), find_elsewhere=find_in([gone]))
    ).elsewhere
    assert (entry.doc_id, entry.out, entry.not_opened) == (b"7" * 16, None, (gone,))


def test_what_repeats_a_copy_in_an_earlier_output_with_the_target_goes_too(tmp_path: Path) -> None:
    named = make_records()[1]
    near, same_url = named["near"], named["same_url"]
    small = make_small_out(str(tmp_path / "out"), tamper=of_an_earlier_output(near, named["exact"], same_url))
    assert roles(small.folder, by_doc(near)) == {
        near.doc_id: "target",
        named["exact"].doc_id: "twin",
        named["original"].doc_id: "kept_copy",
    }
    assert roles(small.folder, by_doc(same_url)) == {same_url.doc_id: "target"}
    applied = purge(small.folder, by_doc(near))
    assert [entry.doc_id for entry in applied.plan.elsewhere] == [b"7" * 16]
    assert_gone(small, of_folder(small.folder), near, named["exact"], named["original"])


def test_a_later_run_gets_what_to_keep_out(template: SmallOut, out: Folder) -> None:
    original, url_original = template.named["original"], template.named["url_original"]
    assert not read_purged_sets([out.url])
    purge(out, by_doc(original))
    purge(out, PurgeMatch(kind="host", values=("host1.example",)))
    sets = read_purged_sets([out.url])
    from lineage.ids import text_hash

    assert {*roles_of(template)} <= sets.doc_ids and normalise_url(original.url or "") in sets.urls
    assert {text_hash(original.text), text_hash(original.text + "raw")} <= sets.hashes
    assert text_hash("") not in sets.hashes, "every empty page would be purged"
    assert sets.hosts == {"host1.example"} and normalise_url(url_original.url or "") not in sets.urls
    assert not any(url.startswith("http://host1.") for url in sets.urls), "a host is not purged page by page"


def test_a_url_that_names_nothing_keeps_nothing_out_unless_it_was_named(
    template: SmallOut, out: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, other = template.named["original"], template.named["url_original"]
    purge(out, by_doc(original))
    purge(out, PurgeMatch(kind="url", values=(other.url or "",)))
    monkeypatch.setattr("lineage.purge.purge_filter.names_something", lambda _url: False)
    sets = read_purged_sets([out.url])
    assert sets.urls == {normalise_url(other.url or "")} and original.doc_id in sets.doc_ids


def test_a_purge_waits_for_no_one_unless_told(template: SmallOut, out: Folder) -> None:
    with hold(out, "a run"), pytest.raises(HeldError):
        purge(out, by_doc(template.named["original"]))
    assert_whole(out)


def test_an_out_whose_run_did_not_clean_up_is_not_purged(template: SmallOut, out: Folder) -> None:
    out.publish("work/units/1/tokens.bin", b"tokens of a page")
    with pytest.raises(PurgeError, match="sluice run"):
        purge(out, by_doc(template.named["original"]))
    assert read_index(out).version == 1 and not out.exists("work/purge/intent.json")


def test_what_a_kill_left_of_the_work_of_a_finished_run_goes_with_the_purge(
    template: SmallOut, out: Folder
) -> None:
    victim = template.named["original"]
    out.publish(PLAN, b"{}")
    out.publish("work/units/1/texts.bin", victim.text.encode())
    purge(out, by_doc(victim))
    assert_gone(template, of_folder(out), victim)
    assert_whole(out)


def test_what_a_killed_writer_left_of_a_text_goes_too(template: SmallOut, out: Folder) -> None:
    victim = template.named["original"]
    for name in (".tmp-1-report.html", "documents/web/.tmp-2-part.parquet", "shards/web/.tmp-3-00001.bin"):
        Path(out.at(name)).write_text(victim.text)
    folder = Path(out.at("documents/web/.tmp-part-00000.parquet"))
    folder.mkdir()
    (folder / "0123").write_text(victim.text)
    Path(out.at("lineage/purges/.tmp-4-fact")).write_bytes(b"a writer of facts may be at work")
    purge(out, by_doc(victim))
    assert_gone(template, of_folder(out), victim)
    assert Path(out.at("lineage/purges/.tmp-4-fact")).exists()
