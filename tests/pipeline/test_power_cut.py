"""A machine that loses its power in a command, or when it has returned: the same call ends it, with the same
result.

By the model of a disk that keeps what fsync(2) promises and no more; and on real file systems, of whose
blocks a copy at that moment is mounted again."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.stores.disk_cases import Case, Cases, Disk
from tests.support.stores.faulty_disk import (
    Act,
    Commands,
    ModelDisk,
    commands_on,
    compile_faulty_disk,
    read_record,
)
from tests.support.stores.loop_disk import copy_blocks, make_disk, mounted, pausing, why_not

NAMES: Final = ("run", "run --from", "purge", "export hf", "export checkpoint", "train")
MOST_POINTS: Final = 25


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with commands_on(compile_faulty_disk(tmp_path_factory.mktemp("library"))) as server:
        yield server


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> Disk:
    return Disk(tmp_path_factory.mktemp("disk") / "disk", commands)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory, disk: Disk) -> Cases[Disk]:
    return Cases(tmp_path_factory.mktemp("cases"), disk)


def drawn(num: int, most: int = MOST_POINTS) -> list[int]:
    """At most so many of `num` moments, by a seed, in order."""
    return sorted(random.Random(1).sample(range(num), min(num, most)))


def assert_ends(disk: Disk, case: Case, expected: tuple[list[str], object], what: str) -> None:
    """The same call ends what a power cut left."""
    again = disk.call(case)
    assert again.code == 0, f"{what}\n{again.said}"
    names, result = disk.state(case)
    assert not {*names} ^ {*expected[0]}, what
    assert result == expected[1], what


@pytest.mark.parametrize(("name", "points"), [("run", 1), ("export hf", 2)])
def test_what_the_model_of_a_disk_keeps_at_a_few_renames_is_ended_by_the_same_call(
    name: str, points: int, disk: Disk, cases: Cases[Disk], tmp_path: Path
) -> None:
    assert_model_held(name, points, disk, cases, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", NAMES)
def test_what_the_model_of_a_disk_keeps_at_every_rename_is_ended_by_the_same_call(
    name: str, disk: Disk, cases: Cases[Disk], tmp_path: Path
) -> None:
    assert_model_held(name, None, disk, cases, tmp_path)


def assert_model_held(name: str, points: int | None, disk: Disk, cases: Cases[Disk], tmp_path: Path) -> None:
    """Cut the power at so many of the command's renames, drawn by a seed, or at every one, and when it has
    returned. What two cuts leave alike is tried once."""
    case, kept, record = cases.named(name), tmp_path / "kept", tmp_path / "acts"
    kept.mkdir()
    disk.renew(case)
    # Without a slash at the end: the sync of the disk's own folder, which holds the output's name, counts.
    ended = disk.call(case, DISK_UNDER=str(disk.top), DISK_RECORD=str(record), DISK_KEEP=str(kept))
    assert ended.code == 0, ended.said
    acts, expected = read_record(record), disk.state(case)
    model = ModelDisk(str(disk.top), case.begin, kept)
    moments = {number for number, act in enumerate(acts) if act.kind in ("rename", "link")}
    chosen = {sorted(moments)[number] for number in drawn(len(moments), points or len(moments))}
    tried: set[frozenset[tuple[str, Path | None]]] = set()
    for number, act in enumerate(acts):
        model.apply(act)
        if number in chosen:
            for keeps_names in (False, True):
                left = model.left(keeps_names=keeps_names)
                if left in tried:
                    continue
                tried.add(left)
                _cut(model, disk, keeps_names=keeps_names)
                assert_ends(
                    disk, case, expected, f"{number} of {len(acts)}, {act}, names kept: {keeps_names}"
                )
    print(
        f"{name}: {len(chosen)} of {len(moments)} renames, in both models, {len(tried)} of which left another"
        f" disk; {_syncs(acts)} syncs of {len(acts)} acts"
    )
    for keeps_names in (False, True):
        _cut(model, disk, keeps_names=keeps_names)
        assert disk.state(case) == expected
        assert_ends(disk, case, expected, "when it had returned")


def _cut(model: ModelDisk, disk: Disk, *, keeps_names: bool) -> None:
    shutil.rmtree(disk.top)
    model.cut(disk.top, keeps_names=keeps_names)


def _syncs(acts: list[Act]) -> int:
    return sum(act.kind == "sync" for act in acts)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_what_the_blocks_of_a_disk_hold_is_ended_by_the_same_call(
    kind: str, name: str, disk: Disk, cases: Cases[Disk], tmp_path: Path
) -> None:
    if reason := why_not(kind):
        pytest.skip(reason)
    case = cases.named(name)
    disk.renew(case)
    ended = disk.call(
        case,
        DISK_COUNTER=str(tmp_path / "counter"),
        DISK_UNDER=f"{disk.top}/",
        DISK_RECORD=str(tmp_path / "acts"),
    )
    assert ended.code == 0, ended.said
    expected = disk.state(case)
    num = sum(act.kind in ("rename", "link") for act in read_record(tmp_path / "acts"))
    chosen, image = drawn(num), tmp_path / "image"
    make_disk(kind, image)
    with mounted(kind, image, disk.top):
        disk.renew(case)
    taken: list[Path] = []

    def take(number: int) -> None:
        if number in chosen:
            taken.append(tmp_path / f"image-{number}")
            copy_blocks(image, taken[-1])

    with mounted(kind, image, disk.top):
        with pausing(tmp_path / "pause", take):
            ended = disk.call(case, DISK_UNDER=f"{disk.top}/", DISK_PAUSE=str(tmp_path / "pause"))
        copy_blocks(image, tmp_path / "returned")
        assert ended.code == 0, ended.said
    with mounted(kind, tmp_path / "returned", disk.top):
        assert disk.state(case) == expected
        assert_ends(disk, case, expected, "when it had returned")
    for copied in taken:
        with mounted(kind, copied, disk.top):
            assert_ends(disk, case, expected, copied.name)
        copied.unlink()
    print(f"{name} on {kind}: {len(taken)} of {num} renames and the return")
