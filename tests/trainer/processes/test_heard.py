"""What rank 0 finds is heard by all, its error too; what each has is heard by all."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist

from lineage.recipe import RecipeError
from tests.support.processes.forked import run_forked
from trainer.checkpoint.store import CheckpointError
from trainer.processes.heard import by_first_rank, from_rank, of_every_rank
from trainer.processes.runtime import Process


def _hear(process: Process) -> dict[str, object]:
    def fail(error: Exception) -> int:
        raise error

    def error_of(error: Exception, *heard: type[Exception]) -> str:
        try:
            by_first_rank(lambda: fail(error), None, *heard)
        except (ValueError, OSError, *heard) as raised:
            return f"{type(raised).__name__}: {raised}"
        return "none"

    asked: list[int] = []
    return {
        "found": by_first_rank(lambda: asked.append(process.rank) or 7, None),
        "asked": asked,
        "value error": error_of(RecipeError("wrong")),
        "named": error_of(CheckpointError("damaged"), CheckpointError),
        "of rank 1": from_rank(1, process.rank if process.rank == 1 else None, None),
        "of every": of_every_rank(process.rank, dist.new_group(backend="gloo")),
    }


def test_all_ranks_hear_what_one_finds(tmp_path: Path) -> None:
    first, second = run_forked(tmp_path / "processes", 2, _hear)
    assert (first.pop("asked"), second.pop("asked")) == ([0], [])
    assert first == second
    assert first == {
        "found": 7,
        "value error": "RecipeError: wrong",
        "named": "CheckpointError: damaged",
        "of rank 1": 1,
        "of every": [0, 1],
    }


def _raise_alone(process: Process) -> bool:
    """An error that the others do not wait for: they are in the same collective, and hear nothing."""

    class FencedError(RuntimeError):
        pass

    def fenced() -> None:
        raise FencedError

    if process.rank:
        return True
    try:
        by_first_rank(fenced, None)
    except FencedError:
        return True
    return False


def test_an_error_that_is_not_named_is_raised_on_the_first_rank_alone(tmp_path: Path) -> None:
    assert run_forked(tmp_path / "processes", 2, _raise_alone) == [True, True]
