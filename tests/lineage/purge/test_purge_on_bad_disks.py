"""A purge on a disk that fails at one call, or loses its power after one: it says so, and the same call ends
it."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lineage.index.output_index import read_index
from lineage.storage.folder import Folder
from lineage.storage.lock import HeldError
from lineage.store import delta as store
from tests.support.outputs.byte_search import of_folder
from tests.support.outputs.purging import SET_HOOKS, Purges, assert_gone, assert_whole, by_doc, purge
from tests.support.outputs.small_out.output import SmallOut
from tests.support.stores.faulty_disk import (
    ERRORS,
    Act,
    Fault,
    ModelDisk,
    assert_says_where,
    commands_on,
    compile_faulty_disk,
    num_calls,
    read_record,
)
from tests.support.stores.loop_disk import pausing

pytestmark = pytest.mark.hostile("lineage", "pipeline/inspect", "pipeline/cli/output/purge.py")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_faulty_disk(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def purges(library: Path, template: SmallOut) -> Iterator[Purges]:
    with commands_on(library, SET_HOOKS) as commands:
        yield Purges(commands, template)


class Recorded:
    """A purge that ended well: its acts, what it synced, and what it left."""

    def __init__(self, folder: Path, template: SmallOut, purges: Purges) -> None:
        self.out, self.kept, record = folder / "out", folder / "kept", folder / "acts"
        self.kept.mkdir()
        shutil.copytree(template.folder.url, self.out)
        env = {"DISK_UNDER": str(self.out), "DISK_RECORD": str(record), "DISK_KEEP": str(self.kept)}
        ended = purges.purge(str(self.out), {**env, "DISK_COUNTER": str(folder / "counter")})
        assert ended.code == 0, ended.said
        self.num_calls = num_calls(folder / "counter")
        self.acts: list[Act] = read_record(record)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, template: SmallOut, purges: Purges) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("recorded"), template, purges)


def assert_as(recorded: Recorded, template: SmallOut, out: Folder) -> None:
    """The output is what the purge that ended well left: the same names and, where no time of day is in them,
    bytes."""
    assert_whole(out)
    assert_gone(template, of_folder(out), *(template.named[name] for name in ("original", "exact", "near")))
    assert store.read_table(out, "purges").num_rows == 1
    assert read_index(out) == read_index(str(recorded.out))
    assert _names(Path(out.url)) == _names(recorded.out)


def _names(top: Path) -> list[str]:
    """Every file and folder, but that of a row with the time of the purge in it, whose name is a hash."""
    names = (str(path.relative_to(top)) for path in top.rglob("*"))
    return sorted(name for name in names if not name.startswith("lineage/purges/fact-"))


def assert_ends_after_fault(
    recorded: Recorded, template: SmallOut, purges: Purges, folder: Path, fault: tuple[int, int]
) -> None:
    """The call that fails says where, with 1 and in a sentence or two; the same call ends it."""
    number, error = fault
    out = folder / f"fault-{number}-{error}"
    shutil.copytree(template.folder.url, out)
    noted = folder / f"failed-{number}-{error}"
    failed = purges.purge(str(out), Fault(under=str(out), number=number, error=error).env(noted))
    first = read_record(noted)[0]
    try:
        assert_says_where(failed, str(out), error)
        if failed.code != 0:
            again = purges.purge(str(out))
            assert again.code == 0, again.said
    except AssertionError as problem:
        act = f"call {number} of {recorded.num_calls}, {first.kind} {first.path}, {os.strerror(error)}"
        raise AssertionError(f"{act}: {problem}\n{failed.said}") from problem
    assert_as(recorded, template, Folder(str(out)))
    shutil.rmtree(out)


def test_a_purge_on_a_disk_that_fails_says_where_and_is_ended_by_the_same_call(
    recorded: Recorded, template: SmallOut, purges: Purges, tmp_path: Path
) -> None:
    rng = random.Random(7)
    for number in rng.sample(range(recorded.num_calls), recorded.num_calls // 14):
        assert_ends_after_fault(recorded, template, purges, tmp_path, (number, rng.choice(ERRORS)))


@pytest.mark.slow
@pytest.mark.timeout(2 * 3600)
@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
def test_a_purge_whose_disk_fails_at_any_call_is_ended_by_the_same_call(
    recorded: Recorded, template: SmallOut, purges: Purges, tmp_path: Path, error: int
) -> None:
    problems = []
    for number in range(recorded.num_calls):
        try:
            assert_ends_after_fault(recorded, template, purges, tmp_path, (number, error))
        except AssertionError as problem:
            problems.append(str(problem))
    print(f"{errno.errorcode[error]} at each of {recorded.num_calls} calls: {len(problems)} problems")
    assert not problems, "\n\n".join(problems)


def test_a_purge_whose_deletion_fails_does_not_say_purged(
    recorded: Recorded, template: SmallOut, purges: Purges, tmp_path: Path
) -> None:
    out, noted = tmp_path / "out", tmp_path / "failed"
    shutil.copytree(template.folder.url, out)
    rows = f"{out}/work/purge/rows.parquet"
    failed = purges.purge(
        str(out),
        Fault(under=rows, number=0, error=errno.EIO).env(noted),
    )
    assert read_record(noted) == [Act("unlink", rows, "")]
    assert failed.code == 1 and "Purged" not in failed.said, failed.said
    assert f"Input/output error: '{rows}'" in failed.said
    assert purges.purge(str(out)).code == 0
    assert_as(recorded, template, Folder(str(out)))


def test_a_purge_beside_another_says_who_holds_the_output(
    recorded: Recorded, template: SmallOut, purges: Purges, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(template.folder.url, out)
    moments = [act for act in recorded.acts if act.kind in ("rename", "link")]
    told: list[str] = []

    def meet(number: int) -> None:
        if number == len(moments) // 2:
            try:
                told.append(str(purge(Folder(str(out)), by_doc(template.named["near"]))))
            except HeldError as error:
                told.append(str(error))

    with pausing(tmp_path / "pause", meet):
        first = purges.purge(str(out), {"DISK_UNDER": str(out), "DISK_PAUSE": str(tmp_path / "pause")})
    assert first.code == 0, first.said
    assert len(told) == 1 and re.search(
        r"is held by another process \(\d+ on .+forked_commands\)", told[0]
    ), told
    assert_as(recorded, template, Folder(str(out)))


def assert_ends_after_cut(
    recorded: Recorded,
    template: SmallOut,
    purges: Purges,
    disk: ModelDisk,
    target: Path,
    *,
    keeps_names: bool,
) -> None:
    """What a power cut leaves is ended by the same call."""
    disk.cut(target, keeps_names=keeps_names)
    again = purges.purge(str(target))
    assert again.code == 0, f"{target.name}: {again.said}"
    assert_as(recorded, template, Folder(str(target)))
    shutil.rmtree(target)


def cut_at(numbers: set[int], recorded: Recorded, template: SmallOut, purges: Purges, tmp_path: Path) -> None:
    """Cut the power behind each of these acts, in both models of a disk."""
    disk = ModelDisk(str(recorded.out), Path(template.folder.url), recorded.kept)
    for number, act in enumerate(recorded.acts):
        disk.apply(act)
        if number in numbers:
            for keeps_names in (False, True):
                target = tmp_path / f"cut-{number}-{act.kind}-{keeps_names}"
                assert_ends_after_cut(recorded, template, purges, disk, target, keeps_names=keeps_names)


def test_a_purge_cut_off_with_the_power_is_ended_by_the_same_call(
    recorded: Recorded, template: SmallOut, purges: Purges, tmp_path: Path
) -> None:
    num = len(recorded.acts)
    cut_at(set(random.Random(3).sample(range(num), num // 30)), recorded, template, purges, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(2 * 3600)
def test_a_purge_cut_off_with_the_power_at_any_act_is_ended_by_the_same_call(
    recorded: Recorded, template: SmallOut, purges: Purges, tmp_path: Path
) -> None:
    cut_at(set(range(len(recorded.acts))), recorded, template, purges, tmp_path)


@pytest.mark.parametrize("keeps_names", [False, True], ids=["names are lost", "names are kept"])
def test_a_purge_that_returned_is_on_the_disk(
    recorded: Recorded, template: SmallOut, tmp_path: Path, keeps_names: bool
) -> None:
    disk = ModelDisk(str(recorded.out), Path(template.folder.url), recorded.kept)
    for act in recorded.acts:
        disk.apply(act)
    disk.cut(tmp_path / "out", keeps_names=keeps_names)
    assert_as(recorded, template, Folder(str(tmp_path / "out")))
