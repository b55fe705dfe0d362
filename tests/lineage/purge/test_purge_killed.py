"""A purge that is killed is finished by the next call, and purges at once wait for one another."""

from __future__ import annotations

import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from lineage.index.output_index import read_index
from lineage.storage.folder import Folder
from lineage.store import delta as store
from tests.support.outputs.byte_search import of_folder
from tests.support.outputs.purging import assert_gone, assert_whole, by_doc, purge
from tests.support.outputs.small_out.output import SmallOut
from tests.support.outputs.small_out.records import Record
from tests.support.processes.fork_server import Child
from tests.support.processes.purge_child import purge_killed


def test_two_purges_at_once_both_happen_if_they_wait(template: SmallOut, out: Folder) -> None:
    kept = [record for record in template.records if record.status == "kept"][:2]
    children = [run_child(out, record, -1, wait=600) for record in kept]
    assert [child.end()[0] for child in children] == [0, 0]
    assert_whole(out)
    assert read_index(out).version == 3
    assert_gone(template, of_folder(out), *kept)


def run_child(out: Folder, record: Record, act: int, wait: float = 0) -> Child:
    return Child(purge_killed, out.url, record.doc_id.hex(), act, wait)


def num_acts(template: SmallOut, folder: Path) -> int:
    shutil.copytree(template.folder.url, folder)
    _, acts = run_child(Folder(str(folder)), template.named["original"], -1).end()
    return int(acts)


def assert_finished_after_kill(template: SmallOut, out: Folder, act: int) -> None:
    assert run_child(out, template.named["original"], act).end() == (-signal.SIGKILL, None)
    assert_ends_whole(template, out)


def assert_ends_whole(template: SmallOut, out: Folder) -> None:
    """The same call again, and then: whole, once, and gone."""
    purge(out, by_doc(template.named["original"]))
    assert_whole(out)
    assert_gone(template, of_folder(out), *(template.named[name] for name in ("original", "exact", "near")))
    assert store.read_table(out, "purges").num_rows == 1
    assert read_index(out).version == 2


def test_a_purge_killed_in_the_middle_is_finished_by_the_same_call(
    template: SmallOut, tmp_path: Path
) -> None:
    acts = num_acts(template, tmp_path / "count")
    assert acts > 40
    for act in (acts // 3, acts * 2 // 3):
        shutil.copytree(template.folder.url, tmp_path / f"at-{act}")
        assert_finished_after_kill(template, Folder(str(tmp_path / f"at-{act}")), act)


@pytest.mark.slow
@pytest.mark.timeout(2 * 3600)
def test_a_purge_killed_at_any_act_is_finished_by_the_same_call(template: SmallOut, tmp_path: Path) -> None:
    for act in range(num_acts(template, tmp_path / "count")):
        shutil.copytree(template.folder.url, tmp_path / f"at-{act}")
        assert_finished_after_kill(template, Folder(str(tmp_path / f"at-{act}")), act)
        shutil.rmtree(tmp_path / f"at-{act}")


@pytest.mark.slow
def test_a_purge_killed_at_random_moments_is_finished_by_the_same_call(
    template: SmallOut, tmp_path: Path
) -> None:
    rng = random.Random(5)
    for attempt in range(20):
        out = Folder(str(tmp_path / f"random-{attempt}"))
        shutil.copytree(template.folder.url, out.url)
        child = run_child(out, template.named["original"], -1)
        while not out.exists("work/purge/rows.parquet") and child.is_alive():
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.15))
        child.kill()
        child.end()
        assert_ends_whole(template, out)


def test_another_purge_finishes_the_one_that_was_killed(template: SmallOut, out: Folder) -> None:
    run_child(out, template.named["original"], 25).end()
    assert out.exists("work/purge/intent.json")
    applied = purge(out, by_doc(template.named["first"]))
    assert applied.finished is not None and applied.purge_id != applied.finished
    assert_whole(out)
    assert read_index(out).version == 3
    assert_gone(template, of_folder(out), template.named["original"], template.named["first"])
