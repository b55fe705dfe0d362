"""Two commands on one output, on disk or in S3, the second while the first stands still at a chosen rename or
request: one wins, the other says which holds it, and nothing is lost."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.support.outputs.runs import s3_server
from tests.support.stores.disk_cases import Bucket, Case, Cases, Disk
from tests.support.stores.failing_store import FaultPlan, failing_store, num_requests
from tests.support.stores.faulty_disk import Commands, Ended, commands_on, compile_faulty_disk, read_record
from tests.support.stores.loop_disk import pausing

PAIRS = [
    ("run", "run"),
    ("purge", "run"),
    ("purge", "verify"),
    ("purge", "purge"),
    ("purge", "another purge"),
    ("purge", "export hf"),
    ("export hf", "purge"),
    ("train", "purge"),
    ("purge", "train"),
    ("train", "train"),
]
PAIRS_IN_S3 = [
    ("purge", "train"),
    ("train", "purge"),
    ("purge", "export hf"),
    ("export hf", "purge"),
    ("purge", "verify"),
    ("verify", "purge"),
    ("train", "train"),
]
BUCKET: Final = "plain"
HOLDER: Final = re.compile(
    r"is held by (another process \(\d+ .*forked_commands|sluice \w+ on \S+ \(process \d+, since )"
)
"""On disk by its process and the command that it was called with, here the server's; in S3 as a lease says."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Commands, Commands]]:
    library = compile_faulty_disk(tmp_path_factory.mktemp("library"))
    with commands_on(library) as first, commands_on(library) as second:
        yield first, second


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory, servers: tuple[Commands, Commands]) -> Cases[Disk]:
    folder = tmp_path_factory.mktemp("cases")
    return Cases(folder, Disk(folder / "disk", servers[0]))


@pytest.fixture(scope="module")
def in_s3(
    tmp_path_factory: pytest.TempPathFactory, servers: tuple[Commands, Commands]
) -> Iterator[Cases[Bucket]]:
    with s3_server(BUCKET):
        settings = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        yield Cases(tmp_path_factory.mktemp("cases"), Bucket(BUCKET, servers[0], settings))


def named(cases: Cases[Disk] | Cases[Bucket], name: str) -> Case:
    if name == "verify":
        return replace(
            cases.named("purge"), arguments=("verify", f"{cases.disk.top}/out"), result=lambda top: None
        )
    return cases.purge(1) if name == "another purge" else cases.named(name)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("pair", PAIRS, ids="|".join)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_of_two_commands_on_a_disk_one_wins_and_nothing_is_lost(
    pair: tuple[str, str],
    share: float,
    servers: tuple[Commands, Commands],
    on_disk: Cases[Disk],
    tmp_path: Path,
) -> None:
    disk = on_disk.disk

    def count(case: Case) -> int:
        ended = disk.call(case, DISK_UNDER=f"{disk.top}/", DISK_RECORD=str(tmp_path / "acts"))
        assert ended.code == 0, ended.said
        return sum(act.kind in ("rename", "link") for act in read_record(tmp_path / "acts"))

    def both(case: Case, other: Case, at: int) -> tuple[Ended, Ended]:
        met: list[Ended] = []

        def take(number: int) -> None:
            if number == at:
                met.append(disk.call(other, by=servers[1]))

        with pausing(tmp_path / "pause", take):
            ended = disk.call(case, DISK_UNDER=f"{disk.top}/", DISK_PAUSE=str(tmp_path / "pause"))
        return ended, met[0]

    assert_one_wins(on_disk, pair, share, count, both)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("pair", PAIRS_IN_S3, ids="|".join)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_of_two_commands_in_s3_one_wins_and_nothing_is_lost(
    pair: tuple[str, str],
    share: float,
    servers: tuple[Commands, Commands],
    in_s3: Cases[Bucket],
    tmp_path: Path,
) -> None:
    bucket, store = in_s3.disk, os.environ["AWS_ENDPOINT_URL"]

    def count(case: Case) -> int:
        with failing_store(store, FaultPlan(), tmp_path / "counted") as url:
            ended = bucket.call(case, AWS_ENDPOINT_URL=url)
        assert ended.code == 0, ended.said
        return num_requests(tmp_path / "counted")

    def both(case: Case, other: Case, at: int) -> tuple[Ended, Ended]:
        met: list[Ended] = []

        def meet() -> None:
            met.append(bucket.call(other, by=servers[1]))

        with failing_store(store, FaultPlan(pause_at=at), tmp_path / "notes", meet) as url:
            ended = bucket.call(case, AWS_ENDPOINT_URL=url)
        return ended, met[0]

    assert_one_wins(in_s3, pair, share, count, both)


def assert_one_wins(
    cases: Cases[Disk] | Cases[Bucket],
    pair: tuple[str, str],
    share: float,
    count: Callable[[Case], int],
    both: Callable[[Case, Case, int], tuple[Ended, Ended]],
) -> None:
    """Let the first command of the pair stand still at that share of its moments, and the second meet it: what
    both come to, each called again where it failed, is what one after the other gives.

    `count`: a case's moments. `both`: carry out the first, and the second while that stands still at the moment
    of a number."""
    case, other, place = named(cases, pair[0]), named(cases, pair[1]), cases.disk
    place.renew(case)
    num = count(case)
    assert place.call(other).code == 0
    expected = (place.state(case), place.state(other))  # what the two come to, one after the other
    place.renew(case)
    at = int(share * num)
    ended, met = both(case, other, at)
    print(f"{'|'.join(pair)} at {at} of {num}: {met.code} {_error(met)}; {ended.code} {_error(ended)}")
    for one in (met, ended):
        assert "Traceback" not in one.said, one.said
        assert one.code in (0, 1), one.said
    if pair[0] == "verify" and ended.code != 0:
        assert "note: output.changed" in ended.said, ended.said
    if met.code != 0:
        assert HOLDER.search(" ".join(met.said.split())), met.said
    for each, code in ((case, ended.code), (other, met.code)):
        if code != 0:
            again = place.call(each)
            assert again.code == 0, again.said
    for name, found, sure in zip(pair, (place.state(case), place.state(other)), expected, strict=True):
        assert found[0] == sure[0], name
        if name == "train" and "purge" in pair:
            # It reads the output as it was, up to a step, and then as it is.
            assert isinstance(found[1], dict) and isinstance(sure[1], dict)
            assert [*found[1]] == [*sure[1]], "each step once"
        else:
            assert found[1] == sure[1], name


def _error(ended: Ended) -> str:
    """What it said of its failure."""
    lines = [line for line in ended.said.splitlines() if line.startswith("sluice")]
    return lines[-1] if lines and ended.code else ""
