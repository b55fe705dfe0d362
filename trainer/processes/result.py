"""How a start of a training run ended, and each of its ranks. No torch here: a run that is finished says so without
it."""

from __future__ import annotations

from dataclasses import dataclass

from lineage.json_record import JsonRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """`loss`: of the last step that counted, None where none is known; `checkpoint`: the folder of the newest
    one."""

    step: int
    attempt: int
    loss: float | None
    finished: bool
    checkpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOutcome(JsonRecord):
    """How a start ended on a rank: with a `result`, or with an error that a new start would meet again, by the name
    of its class and its message."""

    result: TrainingResult | None = None
    error: str = ""
    message: str = ""

    @staticmethod
    def of_error(error: Exception) -> RankOutcome:
        return RankOutcome(error=type(error).__name__, message=str(error))
