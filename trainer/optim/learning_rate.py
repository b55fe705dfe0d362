"""The learning rate as a function of the step. No torch here."""

from __future__ import annotations

import math

from trainer.recipe_tables.optimizer import OptimizerTable


def learning_rate(step: int, steps: int, table: OptimizerTable, peak: float | None = None) -> float:
    """The rate of step `step` of `steps`: linear warm-up, then cosine (Loshchilov, 1608.03983), linear, or
    stable and a decay (Hu et al., 2404.06395), down to peak·min_lr_ratio at the last step where the decay has
    two steps or more. `peak`: not given, that of AdamW."""
    peak = table.lr if peak is None else peak
    if step < table.warmup_steps:
        return peak * (step + 1) / table.warmup_steps
    floor = peak * table.min_lr_ratio
    last = max(steps - 1, 1)
    begin = table.warmup_steps
    if table.schedule == "wsd":
        begin = max(round(steps * (1 - table.decay_share)), begin)
    progress = min(max((step - begin) / max(last - begin, 1), 0.0), 1.0)
    shape = table.decay if table.schedule == "wsd" else table.schedule
    if shape == "cosine":
        return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * progress))
    return floor + (peak - floor) * (1 - (math.sqrt(progress) if shape == "sqrt" else progress))
