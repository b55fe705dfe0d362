"""Models of a run in the process that calls it, without Ray: for tests of what they write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline import process
from pipeline.cluster.pieces import PieceOperator, PieceReader, UnitEnd
from pipeline.cluster.tasks import ActorResources, TaskResources
from pipeline.model_steps import phase
from stages.steps.model_step import ModelStep


def models_work_in_process() -> None:
    """Put functions of this module in the place of those that hand pieces to actors."""
    vars(process).update(check_can_work=lambda models, ray: None, plan_actors=_plan_actors)
    vars(phase).update(run_pieces=_run_pieces, most_rows=lambda: 100)


def _plan_actors(models: Sequence[ModelStep], *_: Any) -> Mapping[str, ActorResources]:
    return {
        model.name: ActorResources(
            stage=model.name, table=model.table, cpus=1.0, gpus=0.0, resources={}, fewest=1, most=1
        )
        for model in models
    }


def _run_pieces(
    reader: PieceReader[Any, Any, Any, Any],
    operators: Sequence[PieceOperator[Any, Any]],
    job: Any,
    items: Sequence[Any],
    work: TaskResources,
    **_: Any,
) -> Iterator[tuple[Any, Any]]:
    """Each piece through all operators as soon as its unit gives it, and each unit's end."""
    for item in items:
        for piece in reader.pieces(job, item):
            if not isinstance(piece, UnitEnd):
                for operator in operators:
                    piece = operator.work(job, piece)  # noqa: PLW2901
            yield item, piece
