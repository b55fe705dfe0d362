"""Where a run keeps the traces of `train.profile`. No torch here."""

from __future__ import annotations

from typing import Final

FOLDER: Final = "profile"
STEPS_KEY: Final = "sluice_steps"
"""The trainer's own object at the top of a trace: first_step, last_step."""


def trace_name(rank: int, attempt: int) -> str:
    """Where a rank's trace lies in the output of a run."""
    return f"{FOLDER}/rank-{rank:05d}.attempt-{attempt}.json.gz"
