"""Units that give pieces, and operators behind them: what comes, in which operators, and what deaths do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.cluster.dataset import DatasetStats, WorkerDiedError
from pipeline.cluster.pieces import PieceOperator, PieceReader, UnitEnd, run_pieces
from pipeline.cluster.tasks import ActorResources, TaskResources
from tests.support.steps import dying_pieces

pytestmark = pytest.mark.usefixtures("small_ray")

Pieces = Callable[[str, int], Iterator[int | UnitEnd]]


def reader(pieces: Pieces = dying_pieces.three) -> PieceReader[str, int, int, str]:
    return PieceReader(
        name="read", pieces=pieces, num_pieces=dying_pieces.num_pieces, isolate=lambda job: job
    )


def operator(name: str, work: Callable[[str, int], int], most: int = 0) -> PieceOperator[str, int]:
    """An operator on up to so many actors; of tasks for 0."""
    actors = ActorResources(stage=name, table="t", cpus=1.0, most=most) if most else None
    return PieceOperator(name=name, work=work, num_deaths=dying_pieces.num_deaths, actors=actors)


def run(
    folder: Path, pieces: Pieces, *operators: PieceOperator[str, int], **more: Any
) -> list[tuple[int, Any]]:
    """All that comes of three units, sorted."""
    found = run_pieces(reader(pieces), operators, str(folder), range(3), TaskResources(retries=2), **more)
    return sorted(found, key=repr)


def whole(change: int) -> list[tuple[int, Any]]:
    pieces: list[tuple[int, Any]] = [
        (unit, 10 * unit + number + change) for unit in range(3) for number in range(3)
    ]
    return sorted([*pieces, *((unit, UnitEnd("whole")) for unit in range(3))], key=repr)


def test_each_piece_goes_through_every_operator_and_each_unit_ends(tmp_path: Path) -> None:
    ended: list[DatasetStats] = []
    operators = [operator("one", dying_pieces.add_one, 1), operator("two", dying_pieces.add_one)]
    operators.append(operator("three", dying_pieces.add_one, 2))
    assert run(tmp_path, dying_pieces.three, *operators, ended=ended.append) == whole(3)
    [stats] = ended
    assert (stats.operator, stats.num_units) == ("read->one->two->three", 3)
    # Ray Data would put tasks into the actors behind them that ask for the same: reading would wait for the
    # model.
    names = re.findall(r"Operator \d+ .*?MapBatches\((\w+)\)", "\n".join(stats.lines))
    assert names == ["read", "one", "two", "three"]


def test_without_units_no_dataset_is_made() -> None:
    ended: list[DatasetStats] = []
    assert list(run_pieces(reader(), [], "", [], TaskResources(), ended=ended.append)) == []
    assert ended == []


def test_what_a_unit_raises_behind_its_pieces_is_raised(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="unit 1"):
        run(tmp_path, dying_pieces.three_and_fail, operator("one", dying_pieces.add_one, 1))


def test_a_unit_that_always_dies_behind_its_pieces_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkerDiedError, match="1: its worker died 3 times"):
        run(tmp_path, dying_pieces.three_and_die, operator("one", dying_pieces.add_one, 1))


def test_a_piece_that_always_kills_its_actor_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkerDiedError, match="one of 11: its worker died 3 times"):
        run(tmp_path, dying_pieces.three, operator("one", dying_pieces.die_of_eleven, 1))


@pytest.mark.slow
def test_pieces_that_wait_for_an_actor_are_not_blamed_for_its_deaths(tmp_path: Path) -> None:
    """The one actor dies nine times, more often than a piece may."""
    retried: list[int] = []
    one = operator("one", dying_pieces.die_of_each_once, 1)
    assert run(tmp_path, dying_pieces.three, one, retried=lambda: retried.append(1)) == whole(0)
