"""Commands on a disk that fails at one call: each says where and what to do, and the same call ends it."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.stores.disk_cases import Case, Cases, Disk
from tests.support.stores.faulty_disk import Commands, Ended, commands_on, compile_faulty_disk, num_calls, read_record

ERRORS: Final = (errno.EIO, errno.ENOSPC, errno.EROFS)
POINTS: Final = 25


def tried(disk: Disk, case: Case, points: int, seed: int) -> list[str]:
    """Let the case fail at so many of its calls, drawn by the seed: what happened at each, a line."""
    notes = disk.top.parent / "notes"
    shutil.rmtree(notes, ignore_errors=True)
    notes.mkdir()
    disk.renew(case)
    under = {"DISK_UNDER": f"{disk.top}/"}
    ended = disk.call(case, **under, DISK_COUNTER=str(notes / "counter"))
    assert ended.code == 0, ended.said
    num, expected, rng = num_calls(notes / "counter"), disk.state(case), random.Random(seed)
    lines, problems, at = [], [], os.environ.get("AT")
    for number in [int(x) for x in at.split(",")] if at else sorted(rng.sample(range(num), points)):
        error = rng.choice(ERRORS)
        counter, failed = notes / f"counter-{number}", notes / f"failed-{number}"
        env = {**under, "DISK_FAIL_AT": str(number), "DISK_ERRNO": str(error), "DISK_COUNTER": str(counter)}
        if error != errno.EIO:  # a full disk stays full, and one that went read-only stays so
            env["DISK_LASTING"] = "1"
        disk.renew(case)
        first = disk.call(case, **env, DISK_FAILED=str(failed))
        assert failed.exists(), f"no call {number} of {num}"
        act = read_record(failed)[0]
        line = f"{number} of {num}, {act.kind} {act.path.removeprefix(str(disk.top))}: {errno.errorcode[error]}"
        lines.append(f"{line}: {first.code}, {_error(first)}")
        try:
            assert_is_told(first, disk.top, error, lines[-1])
            again = disk.call(case)
            assert again.code == 0, f"{lines[-1]}\n{again.said}"
            state = disk.state(case)
            assert state[0] == expected[0], f"{lines[-1]}: {set(state[0]) ^ set(expected[0])}"
            assert state[1] == expected[1], lines[-1]
        except AssertionError as problem:
            problems.append(str(problem))
            print("PROBLEM", problem, flush=True)
        else:
            print(lines[-1], flush=True)
    assert not problems, "\n\n".join(problems)
    return lines


def _error(ended: Ended) -> str:
    """What was said behind the lines of progress."""
    lines = ended.said.splitlines()
    begins = [number for number, line in enumerate(lines) if line.startswith("sluice")]
    return "\n".join(lines[begins[-1] :]) if begins else ""


def assert_is_told(first: Ended, top: Path, error: int, line: str) -> None:
    """A call that could not do its work says where, why and what to do."""
    assert "Traceback" not in first.said, f"{line}\n{first.said}"
    if first.code == 0:
        return
    assert first.code == 1, f"{line}\n{first.said}"
    said = _error(first)
    assert str(top) in said and os.strerror(error) in said, f"{line}\n{first.said}"
    assert "same call again" in said and len(said.splitlines()) <= 3, f"{line}\n{first.said}"


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with commands_on(compile_faulty_disk(tmp_path_factory.mktemp("library"))) as server:
        yield server


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> Disk:
    return Disk(tmp_path_factory.mktemp("disk") / "disk", commands)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory, disk: Disk) -> Cases:
    return Cases(tmp_path_factory.mktemp("cases"), disk)


NAMES: Final = ("run", "run --from", "export hf", "export checkpoint", "train", "mix run")


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", NAMES)
def test_a_command_on_a_disk_that_fails_says_where_and_is_ended_by_the_same_call(
    name: str, disk: Disk, cases: Cases
) -> None:
    for line in tried(disk, cases.named(name), POINTS, 1):
        print(line)
