"""Two commands on one output, the second while the first stands still at a chosen rename: one wins, the other
says which holds it, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
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
def cases(tmp_path_factory: pytest.TempPathFactory, servers: tuple[Commands, Commands]) -> Cases:
    folder = tmp_path_factory.mktemp("cases")
    return Cases(folder, Disk(folder / "disk", servers[0]))


def named(cases: Cases, name: str) -> Case:
    if name == "verify":
        return replace(cases.named("purge"), arguments=("verify", f"{cases.disk.top}/out"))
    return cases.purge(1) if name == "another purge" else cases.named(name)


@pytest.mark.parametrize("pair", PAIRS, ids="|".join)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_of_two_commands_one_wins_and_nothing_is_lost(
    pair: tuple[str, str], share: float, servers: tuple[Commands, Commands], cases: Cases, tmp_path: Path
) -> None:
    case, other, disk = named(cases, pair[0]), named(cases, pair[1]), cases.disk
    disk.renew(case)
    ended = disk.call(case, DISK_UNDER=f"{disk.top}/", DISK_RECORD=str(tmp_path / "acts"))
    assert ended.code == 0, ended.said
    num = sum(act.kind in ("rename", "link") for act in read_record(tmp_path / "acts"))
    assert disk.call(other).code == 0
    expected = (disk.state(case), disk.state(other))  # what the two come to, one after the other
    met: list[Ended] = []

    def meet(number: int) -> None:
        if number == int(share * num):
            met.append(servers[1].call(*other.arguments, module=other.module))

    disk.renew(case)
    with pausing(tmp_path / "pause", meet):
        ended = disk.call(case, DISK_UNDER=f"{disk.top}/", DISK_PAUSE=str(tmp_path / "pause"))
    print(
        f"{'|'.join(pair)} at {int(share * num)} of {num} renames: {met[0].code} {_error(met[0])};"
        f" {_error(ended)}"
    )
    for one in (met[0], ended):
        assert "Traceback" not in one.said, one.said
        assert one.code in (0, 1), one.said
    if met[0].code != 0:  # by its process and the command that it was called with: here the server's
        said = " ".join(met[0].said.split())
        assert "is held by another process (" in said and "forked_commands" in said, met[0].said
    for each, code in ((case, ended.code), (other, met[0].code)):
        if code != 0:
            again = disk.call(each)
            assert again.code == 0, again.said
    for name, found, sure in zip(pair, (disk.state(case), disk.state(other)), expected, strict=True):
        assert found[0] == sure[0], name
        if (
            name == "train" and "purge" in pair
        ):  # it reads the output as it was, up to a step, and then as it is
            assert isinstance(found[1], dict) and isinstance(sure[1], dict)
            assert [*found[1]] == [*sure[1]], "each step once"
        else:
            assert found[1] == sure[1], name


def _error(ended: Ended) -> str:
    """What it said of its failure."""
    lines = [line for line in ended.said.splitlines() if line.startswith("sluice")]
    return lines[-1] if lines and ended.code else ""
