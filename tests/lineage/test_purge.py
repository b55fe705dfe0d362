"""Purge: nothing of the text is left, nothing else changes, and a killed purge is finished by the next call."""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from byte_search import everything, of_folder
from s3_server import s3_server
from small_out import (
    Record,
    SmallOut,
    Tamper,
    apply_hooks,
    make_records,
    make_small_out,
    ordered,
    plan_hooks,
    similarity,
    url_key,
)

from lineage import objects, store
from lineage.honour import honoured
from lineage.index import read_index
from lineage.lock import HeldError, hold
from lineage.problems import VerifyHooks
from lineage.purge import Applied, apply
from lineage.purge_plan import Match, PurgeError, _Planner, make_plan
from lineage.storage import Folder
from lineage.verify import verify

HOOKS = VerifyHooks(jaccard=similarity, url_key=url_key)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> SmallOut:
    return make_small_out(str(tmp_path_factory.mktemp("small") / "out"))


@pytest.fixture
def out(template: SmallOut, tmp_path: Path) -> Folder:
    shutil.copytree(template.folder.url, tmp_path / "out")
    return Folder(str(tmp_path / "out"))


def by_doc(*records: Record) -> Match:
    return Match(kind="doc", values=tuple(record.doc_id.hex() for record in records))


def purge(out: Folder, match: Match) -> Applied:
    return apply(out, ordered(match), plan_hooks(), apply_hooks())


def roles(out: Folder, match: Match) -> dict[bytes, str]:
    return {row.doc_id: row.role for row in make_plan(out, match, plan_hooks()).rows}


def traces_of(small: SmallOut, record: Record) -> list[bytes]:
    """What may be left nowhere: pieces of the text, and of its tokens as uint32."""
    words = record.text.split(" ")
    pieces = [" ".join(words[i : i + 4]).encode() for i in range(0, len(words) - 4, 4)]
    tokens = small.tokenizer.encode(record.text)
    return pieces + [
        np.ascontiguousarray(tokens[i : i + 8], dtype="<u4").tobytes() for i in range(0, len(tokens) - 8, 8)
    ]


def assert_gone(small: SmallOut, contents: Iterator[bytes], *records: Record) -> None:
    wanted = [trace for record in records for trace in traces_of(small, record)]
    for data in everything(contents):
        assert not [trace for trace in wanted if trace in data]


def assert_whole(out: Folder) -> None:
    assert verify(out, HOOKS).problems == ()


def test_the_search_of_every_byte_finds_what_is_there(template: SmallOut) -> None:
    with pytest.raises(AssertionError):
        assert_gone(template, of_folder(template.folder), template.named["original"])


def test_a_purged_document_is_nowhere_and_all_else_is_as_it_was(template: SmallOut, out: Folder) -> None:
    victim = next(record for record in template.records if record.status == "kept" and record.cluster_id is None)
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


def test_the_kept_copy_of_a_suppressed_duplicate_goes_with_it_and_so_do_its_others(template: SmallOut) -> None:
    named = template.named
    assert roles(template.folder, by_doc(named["near"])) == {
        named["near"].doc_id: "target", named["original"].doc_id: "kept_copy", named["exact"].doc_id: "twin",
    }  # fmt: skip


def test_a_duplicate_by_url_alone_goes_only_when_the_url_is_named(template: SmallOut) -> None:
    original, same_url = template.named["url_original"], template.named["same_url"]
    assert original.url is not None
    assert roles(template.folder, by_doc(original)) == {original.doc_id: "target"}
    assert roles(template.folder, by_doc(same_url)) == {same_url.doc_id: "target"}
    by_url = Match(kind="url", values=(original.url.replace("http://host0", "HTTP://HOST0"),))
    assert roles(template.folder, by_url) == {original.doc_id: "target", same_url.doc_id: "target"}


def test_what_has_the_very_text_goes_too_though_it_was_dropped_for_its_url(template: SmallOut, out: Folder) -> None:
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
    found = verify(out, HOOKS).problems
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
    applied = purge(out, Match(kind="host", values=("HOST1.example.",)))
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
    (Match(kind="doc", values=("00" * 16,)), "has no document"),
    (Match(kind="doc", values=("no id",)), "32 hexadecimal digits"),
    (Match(kind="url", values=("http://nowhere.example/",)), "has no url"),
    (Match(kind="host", values=("nowhere.example",)), "has no host"),
])  # fmt: skip
def test_what_nobody_knows_is_refused_before_anything_changes(out: Folder, match: Match, why: str) -> None:
    before = out.names()
    with pytest.raises(ValueError, match=why):
        purge(out, match)
    assert out.names() == before


def of_an_earlier_output(*records: Record) -> Tamper:
    """These are duplicates of a document that this output does not hold."""
    from test_verify import change_where

    changes = [change_where("documents", record.doc_id, "duplicate_of", b"7" * 16) for record in records]
    return lambda name, rows: functools.reduce(lambda changed, change: change(name, changed), changes, rows)


def test_a_copy_in_an_earlier_output_is_named(tmp_path: Path) -> None:
    near = make_records()[1]["near"]
    small = make_small_out(str(tmp_path / "out"), tamper=of_an_earlier_output(near))
    hooks = replace(plan_hooks(), find_elsewhere=lambda _id: "s3://earlier/out")
    plan = make_plan(small.folder, by_doc(near), hooks)
    assert [(entry.doc_id, entry.repeated_by, entry.out) for entry in plan.elsewhere] == [
        (b"7" * 16, near.doc_id, "s3://earlier/out")
    ]


def test_what_repeats_a_copy_in_an_earlier_output_with_the_target_goes_too(tmp_path: Path) -> None:
    named = make_records()[1]
    near, same_url = named["near"], named["same_url"]
    small = make_small_out(str(tmp_path / "out"), tamper=of_an_earlier_output(near, named["exact"], same_url))
    assert roles(small.folder, by_doc(near)) == {near.doc_id: "target", named["exact"].doc_id: "twin",
                                                 named["original"].doc_id: "kept_copy"}  # fmt: skip
    assert roles(small.folder, by_doc(same_url)) == {same_url.doc_id: "target"}
    applied = purge(small.folder, by_doc(near))
    assert [entry.doc_id for entry in applied.plan.elsewhere] == [b"7" * 16]
    assert_gone(small, of_folder(small.folder), near, named["exact"], named["original"])


def test_a_later_run_is_told_what_to_keep_out(template: SmallOut, out: Folder) -> None:
    original, url_original = template.named["original"], template.named["url_original"]
    assert not honoured([out.url])
    purge(out, by_doc(original))
    purge(out, Match(kind="host", values=("host1.example",)))
    sets = honoured([out.url])
    from lineage.ids import text_hash

    assert {*roles_of(template)} <= sets.doc_ids and original.url in sets.urls
    assert {text_hash(original.text), text_hash(original.text + "raw")} <= sets.hashes
    assert text_hash("") not in sets.hashes, "every empty page would be purged"
    assert sets.hosts == {"host1.example"} and url_original.url not in sets.urls
    assert not any(url.startswith("http://host1.") for url in sets.urls), "a host is not purged page by page"


def test_a_purge_waits_for_no_one_unless_told(template: SmallOut, out: Folder) -> None:
    with hold(out, "a run"), pytest.raises(HeldError):
        purge(out, by_doc(template.named["original"]))
    assert_whole(out)


def test_an_out_whose_run_did_not_clean_up_is_not_purged(template: SmallOut, out: Folder) -> None:
    out.publish("work/units/1/tokens.bin", b"tokens of a page")
    with pytest.raises(PurgeError, match="sluice run"):
        purge(out, by_doc(template.named["original"]))
    assert read_index(out).version == 1 and not out.exists("work/purge/intent.json")


def test_what_a_killed_writer_left_of_a_text_goes_too(template: SmallOut, out: Folder) -> None:
    victim = template.named["original"]
    for name in (".tmp-1-report.html", "documents/web/.tmp-2-part.parquet", "shards/web/.tmp-3-00001.bin"):
        Path(out.at(name)).write_text(victim.text)
    Path(out.at("lineage/purges/.tmp-4-fact")).write_bytes(b"a writer of facts may be at work")
    purge(out, by_doc(victim))
    assert_gone(template, of_folder(out), victim)
    assert Path(out.at("lineage/purges/.tmp-4-fact")).exists()


def test_two_purges_at_once_both_happen_if_they_wait(template: SmallOut, out: Folder) -> None:
    kept = [record for record in template.records if record.status == "kept"][:2]
    children = [run_child(out, record, -1, wait=30) for record in kept]
    assert [child.wait() for child in children] == [0, 0]
    assert_whole(out)
    assert read_index(out).version == 3
    assert_gone(template, of_folder(out), *kept)


def run_child(out: Folder, record: Record, act: int, wait: float = 0) -> subprocess.Popen[str]:
    script = str(Path(__file__).parent / "purge_child.py")
    arguments = [sys.executable, script, out.url, record.doc_id.hex(), str(act), str(wait)]
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{here.parents[1]}"}
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)


def num_acts(template: SmallOut, folder: Path) -> int:
    shutil.copytree(template.folder.url, folder)
    child = run_child(Folder(str(folder)), template.named["original"], -1)
    acts, _ = child.communicate()
    return int(acts)


def assert_finished_after_kill(template: SmallOut, out: Folder, act: int) -> None:
    child = run_child(out, template.named["original"], act)
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert_ends_whole(template, out)


def assert_ends_whole(template: SmallOut, out: Folder) -> None:
    """The same call again, and then: whole, once, and gone."""
    purge(out, by_doc(template.named["original"]))
    assert_whole(out)
    assert_gone(template, of_folder(out), *(template.named[name] for name in ("original", "exact", "near")))
    assert store.read_table(out, "purges").num_rows == 1
    assert read_index(out).version == 2


def test_a_purge_killed_in_the_middle_is_finished_by_the_same_call(template: SmallOut, tmp_path: Path) -> None:
    acts = num_acts(template, tmp_path / "count")
    assert acts > 40
    for act in (acts // 3, acts * 2 // 3):
        shutil.copytree(template.folder.url, tmp_path / f"at-{act}")
        assert_finished_after_kill(template, Folder(str(tmp_path / f"at-{act}")), act)


@pytest.mark.slow
def test_a_purge_killed_at_any_act_is_finished_by_the_same_call(template: SmallOut, tmp_path: Path) -> None:
    for act in range(num_acts(template, tmp_path / "count")):
        shutil.copytree(template.folder.url, tmp_path / f"at-{act}")
        assert_finished_after_kill(template, Folder(str(tmp_path / f"at-{act}")), act)
        shutil.rmtree(tmp_path / f"at-{act}")


@pytest.mark.slow
def test_a_purge_killed_at_random_moments_is_finished_by_the_same_call(template: SmallOut, tmp_path: Path) -> None:
    rng = random.Random(5)
    for attempt in range(20):
        out = Folder(str(tmp_path / f"random-{attempt}"))
        shutil.copytree(template.folder.url, out.url)
        child = run_child(out, template.named["original"], -1)
        while not out.exists("work/purge/rows.parquet") and child.poll() is None:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.15))
        child.kill()
        child.communicate()
        assert_ends_whole(template, out)


def test_another_purge_finishes_the_one_that_was_killed(template: SmallOut, out: Folder) -> None:
    run_child(out, template.named["original"], 25).communicate()
    assert out.exists("work/purge/intent.json")
    applied = purge(out, by_doc(template.named["first"]))
    assert applied.finished is not None and applied.purge_id != applied.finished
    assert_whole(out)
    assert read_index(out).version == 3
    assert_gone(template, of_folder(out), template.named["original"], template.named["first"])


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with s3_server(monkeypatch):
        yield


def every_version(out: Folder) -> Iterator[bytes]:
    boto3 = pytest.importorskip("boto3")
    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    bucket, _, prefix = out.url.removeprefix("s3://").partition("/")
    for version in objects.versions(out, ""):
        if not version.is_marker:
            key = f"{prefix}/{version.name}"
            yield client.get_object(Bucket=bucket, Key=key, VersionId=version.version_id)["Body"].read()


@pytest.mark.slow
@pytest.mark.parametrize("bucket", ["plain", "versioned"])
def test_in_s3_nothing_is_left_in_any_version(served: None, bucket: str) -> None:
    small = make_small_out(f"s3://{bucket}/runs/out")
    out = small.folder
    assert_whole(out)
    out.publish("work/units/1/tokens.bin", small.tokenizer.encode(small.named["original"].text).tobytes())
    out.remove("work/units/1/tokens.bin")
    out.publish("report.html", out.read("report.html"))
    victims = [small.named[name] for name in ("original", "exact", "near")]
    if bucket == "versioned":
        with pytest.raises(AssertionError):
            assert_gone(small, every_version(out), *victims)
    purge(out, by_doc(small.named["exact"]))
    assert_whole(out)
    assert_gone(small, of_folder(out), *victims)
    if bucket == "versioned":
        assert_gone(small, every_version(out), *victims)


@pytest.mark.slow
def test_a_bucket_that_keeps_what_is_deleted_is_refused_before_the_purge_begins(
    served: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = make_small_out("s3://versioned/runs/out")
    out = small.folder
    real = objects._call

    def locked(url: str, operation: str, **arguments: object) -> object:
        if operation == "delete_object" and "VersionId" in arguments:
            raise PermissionError("Access Denied because object protected by object lock")
        return real(url, operation, **arguments)

    monkeypatch.setattr(objects, "_call", locked)
    with pytest.raises(PurgeError, match="does not begin"):
        purge(out, by_doc(small.named["original"]))
    monkeypatch.undo()
