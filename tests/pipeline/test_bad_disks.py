"""Commands on a disk that fails at one call: each says where and what to do, and the same call ends it."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.stores.disk_cases import Case, Cases, Disk
from tests.support.stores.faulty_disk import (
    ERRORS,
    Commands,
    Fault,
    assert_says_where,
    commands_on,
    compile_faulty_disk,
    num_calls,
    read_record,
)

POINTS: Final = 25
NAMES: Final = ("run", "run models", "run --from", "export hf", "export checkpoint", "train", "mix run")


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    library = compile_faulty_disk(tmp_path_factory.mktemp("library"))
    with commands_on(library, "tests.support.steps.models_in_process:models_work_in_process") as server:
        yield server


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> Cases[Disk]:
    folder = tmp_path_factory.mktemp("cases")
    return Cases(folder, Disk(folder / "disk", commands))


def assert_held(disk: Disk, case: Case, points: int, notes: Path) -> None:
    """Let the case fail at so many of its calls, drawn by a seed, and print what came of each."""
    disk.renew(case)
    under = f"{disk.top}/"
    ended = disk.call(case, DISK_UNDER=under, DISK_COUNTER=str(notes / "counter"))
    assert ended.code == 0, ended.said
    num, expected, rng = num_calls(notes / "counter"), disk.state(case), random.Random(1)
    problems = []
    for number in sorted(rng.sample(range(num), points)):
        error = rng.choice(ERRORS)
        counter, failed = notes / f"counter-{number}", notes / f"failed-{number}"
        disk.renew(case)
        first = disk.call(case, **Fault(under=under, number=number, error=error).env(failed, counter))
        act = read_record(failed)[0]
        where = (
            f"{number} of {num}, {act.kind} {act.path.removeprefix(str(disk.top))}, {errno.errorcode[error]}"
        )
        print(f"{where}: exit {first.code}", flush=True)
        try:
            assert_says_where(first, str(disk.top), error)
            again = disk.call(case)
            assert again.code == 0, again.said
            names, result = disk.state(case)
            differing = {*names} ^ {*expected[0]}
            assert not differing, f"there or missing: {sorted(differing)}"
            assert result == expected[1], "what came of it"
        except AssertionError as problem:  # of many points each is worth knowing
            problems.append(f"{where}: {problem}\n{first.said}")
    assert not problems, "\n\n".join(problems)


@pytest.mark.parametrize(
    ("name", "points"), [("run", 1), ("export hf", 2), ("train", 1), ("export checkpoint", 2)]
)
def test_of_a_disk_that_fails_a_command_says_where_and_the_same_call_ends_it(
    name: str, points: int, cases: Cases[Disk], tmp_path: Path
) -> None:
    assert_held(cases.disk, cases.named(name), points, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", NAMES)
def test_of_a_disk_that_fails_anywhere_a_command_says_where_and_the_same_call_ends_it(
    name: str, cases: Cases[Disk], tmp_path: Path
) -> None:
    assert_held(cases.disk, cases.named(name), POINTS, tmp_path)
