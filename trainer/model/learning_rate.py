"""The learning rate as a function of the step. No torch here."""

from __future__ import annotations

import math
from typing import Final

from trainer.options import OptimizerTable

WSD_DECAY_SHARE: Final = 0.2
"""Share of the steps in which warm-up-stable-decay comes down (Hägele et al., 2405.18392, section 4)."""


def learning_rate(step: int, steps: int, table: OptimizerTable) -> float:
    """The rate of step `step` of `steps`: linear warm-up, then cosine (Loshchilov, 1608.03983) or stable and
    a linear decay (Hu et al., 2404.06395), down to lr·min_lr_ratio at the last step where the decay has two
    steps or more."""
    if step < table.warmup_steps:
        return table.lr * (step + 1) / table.warmup_steps
    floor = table.lr * table.min_lr_ratio
    last = max(steps - 1, 1)
    if table.schedule == "cosine":
        progress = min(max((step - table.warmup_steps) / max(last - table.warmup_steps, 1), 0.0), 1.0)
        return floor + (table.lr - floor) * 0.5 * (1 + math.cos(math.pi * progress))
    decay_from = max(round(steps * (1 - WSD_DECAY_SHARE)), table.warmup_steps)
    progress = min(max((step - decay_from) / max(last - decay_from, 1), 0.0), 1.0)
    return floor + (table.lr - floor) * (1 - progress)
