"""The seven phases of a training step, in their order. No torch here."""

from __future__ import annotations

from typing import Final, Literal

Phase = Literal[
    "data loading", "forward", "loss", "backward", "gradient synchronisation", "optimizer", "checkpoint"
]
PHASES: Final[tuple[Phase, ...]] = (
    "data loading", "forward", "loss", "backward", "gradient synchronisation", "optimizer", "checkpoint",
)  # fmt: skip
