"""How a start of a training run ended. No torch here: a run that is finished says so without it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """`loss`: of the last step that counted, None where none is known; `checkpoint`: the folder of the newest
    one."""

    step: int
    attempt: int
    loss: float | None
    finished: bool
    checkpoint: str
