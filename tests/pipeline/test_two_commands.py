"""Two commands on one output, the second while the first stands still at a chosen rename: one wins, the other says which
holds it, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stores.disk_cases import Case, Cases, Disk
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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Commands, Commands]]:
    library = compile_faulty_disk(tmp_path_factory.mktemp("library"))
    with commands_on(library) as first, commands_on(library) as second:
        yield first, second


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory, servers: tuple[Commands, Commands]) -> Disk:
    return Disk(tmp_path_factory.mktemp("disk") / "disk", servers[0])


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory, disk: Disk) -> Cases:
    return Cases(tmp_path_factory.mktemp("cases"), disk)


def named(cases: Cases, disk: Disk, name: str) -> Case:
    finished = cases.named("purge")
    if name == "verify":
        return Case(
            arguments=("verify", f"{disk.top}/out"), begin=finished.begin, result=finished.result, outs=("out",)
        )
    return cases.purge(1) if name == "another purge" else cases.named(name)


@pytest.mark.parametrize(("first", "second"), PAIRS)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_of_two_commands_one_wins_and_nothing_is_lost(
    first: str, second: str, share: float, disk: Disk, servers: tuple[Commands, Commands], cases: Cases, tmp_path: Path
) -> None:
    case, other = named(cases, disk, first), named(cases, disk, second)
    disk.renew(case)
    for each in (case, other):  # one after the other: what both come to
        assert disk.call(each, DISK_UNDER=f"{disk.top}/", DISK_RECORD=str(tmp_path / "acts")).code == 0
    expected = (disk.state(case), disk.state(other))
    (tmp_path / "acts").unlink()
    disk.renew(case)
    assert disk.call(case, DISK_UNDER=f"{disk.top}/", DISK_RECORD=str(tmp_path / "acts")).code == 0
    num = sum(act.kind in ("rename", "link") for act in read_record(tmp_path / "acts"))
    met: list[Ended] = []

    def meet(number: int) -> None:
        if number == int(share * num):
            met.append(servers[1].call(*other.arguments, module=other.module))

    disk.renew(case)
    with pausing(tmp_path / "pause", meet):
        ended = disk.call(case, DISK_UNDER=f"{disk.top}/", DISK_PAUSE=str(tmp_path / "pause"))
    print(f"{first} at {int(share * num)} of {num} renames, {second}: {met[0].code} {_last(met[0])}; {_last(ended)}")
    for each in (met[0], ended):
        assert "Traceback" not in each.said, each.said
        assert each.code == 0 or _last(each), each.said
    if met[0].code != 0 and second != "verify":
        assert met[0].code == 1, met[0].said
        assert "is held by another process (" in met[0].said and case.arguments[0] in met[0].said, met[0].said
    for each, code in ((case, ended.code), (other, met[0].code)):
        if code != 0:
            again = disk.call(each)
            assert again.code == 0, again.said
    assert (disk.state(case), disk.state(other)) == expected


def _last(ended: Ended) -> str:
    """What it said at its end, if it failed."""
    lines = [line for line in ended.said.splitlines() if line.startswith("sluice")]
    return lines[-1] if lines and ended.code else ""
