"""A purge that is killed is finished by the next call, and purges at once wait for one another."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lineage.index.output_index import read_index
from lineage.storage.folder import Folder
from lineage.store import delta as store
from tests.support.outputs.byte_search import of_folder
from tests.support.outputs.purging import SET_HOOKS, Purges, assert_gone, assert_whole, by_doc, purge
from tests.support.outputs.small_out.output import SmallOut
from tests.support.processes.fork_server import Child
from tests.support.stores.faulty_disk import KILLED, Fault, commands_on, compile_faulty_disk, num_calls


@pytest.fixture(scope="module")
def purges(template: SmallOut, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Purges]:
    library = compile_faulty_disk(tmp_path_factory.mktemp("library"))
    with commands_on(library, SET_HOOKS) as commands:
        yield Purges(commands, template)


@pytest.fixture(scope="module")
def num_calls_of_purge(template: SmallOut, purges: Purges, tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many of its calls change the output."""
    folder = tmp_path_factory.mktemp("count")
    out = str(shutil.copytree(template.folder.url, folder / "out"))
    assert purges.purge(out, {"DISK_UNDER": out, "DISK_COUNTER": str(folder / "counter")}).code == 0
    return num_calls(folder / "counter")


def test_two_purges_at_once_both_happen_if_they_wait(template: SmallOut, out: Folder) -> None:
    kept = [record for record in template.records if record.status == "kept"][:2]
    children = [Child(purge, out, by_doc(record), 600) for record in kept]
    assert [child.end()[0] for child in children] == [0, 0]
    assert_whole(out)
    assert read_index(out).version == 3
    assert_gone(template, of_folder(out), *kept)


def kill_at(number: int, purges: Purges, out: Folder) -> None:
    assert purges.purge(out.url, Fault(under=out.url, number=number).env()).code == KILLED


def assert_finished_after_kill(template: SmallOut, purges: Purges, folder: Path, number: int) -> None:
    out = Folder(str(shutil.copytree(template.folder.url, folder / f"at-{number}")))
    kill_at(number, purges, out)
    assert_ends_whole(template, out)
    shutil.rmtree(out.url)


def assert_ends_whole(template: SmallOut, out: Folder) -> None:
    """The same call again, and then: whole, once, and gone."""
    purge(out, by_doc(template.named["original"]))
    assert_whole(out)
    assert_gone(template, of_folder(out), *(template.named[name] for name in ("original", "exact", "near")))
    assert store.read_table(out, "purges").num_rows == 1
    assert read_index(out).version == 2


def test_a_purge_killed_in_the_middle_is_finished_by_the_same_call(
    template: SmallOut, purges: Purges, num_calls_of_purge: int, tmp_path: Path
) -> None:
    assert num_calls_of_purge > 40
    for number in (num_calls_of_purge // 3, num_calls_of_purge * 2 // 3):
        assert_finished_after_kill(template, purges, tmp_path, number)


@pytest.mark.slow
@pytest.mark.timeout(2 * 3600)
def test_a_purge_killed_at_any_call_is_finished_by_the_same_call(
    template: SmallOut, purges: Purges, num_calls_of_purge: int, tmp_path: Path
) -> None:
    for number in range(num_calls_of_purge):
        assert_finished_after_kill(template, purges, tmp_path, number)


@pytest.mark.slow
def test_a_purge_killed_at_random_moments_is_finished_by_the_same_call(
    template: SmallOut, tmp_path: Path
) -> None:
    rng = random.Random(5)
    for attempt in range(20):
        out = Folder(str(tmp_path / f"random-{attempt}"))
        shutil.copytree(template.folder.url, out.url)
        child = Child(purge, out, by_doc(template.named["original"]))
        while not out.exists("work/purge/rows.parquet") and child.is_alive():
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.15))
        child.kill()
        child.end()
        assert_ends_whole(template, out)


def test_another_purge_finishes_the_one_that_was_killed(
    template: SmallOut, purges: Purges, num_calls_of_purge: int, out: Folder
) -> None:
    kill_at(num_calls_of_purge // 2, purges, out)
    assert out.exists("work/purge/intent.json")
    applied = purge(out, by_doc(template.named["first"]))
    assert applied.finished is not None and applied.purge_id != applied.finished
    assert_whole(out)
    assert read_index(out).version == 3
    assert_gone(template, of_folder(out), template.named["original"], template.named["first"])
