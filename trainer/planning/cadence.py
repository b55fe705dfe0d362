"""How often to save a checkpoint. All times in seconds."""

from __future__ import annotations

import math


def young_interval(save: float, mtbf: float) -> float:
    """The interval that loses least time: √(2·Ts·MTBF) (Young 1974, "A first order approximation to the
    optimum checkpoint interval"; derived again in 2410.18124)."""
    return math.sqrt(2 * save * mtbf)


def availability_interval(save: float, mtbf: float, restart: float) -> float:
    """The interval of greatest availability: Ts + √(2·(Tf + Tr)·Ts + Ts²) (Saxena et al., 2410.18124,
    abstract)."""
    return save + math.sqrt(2 * (mtbf + restart) * save + save**2)


def cadence_overhead(interval: float, save: float, mtbf: float) -> float:
    """Share of useful time that goes into saving and into steps done again: Ts/T + T/(2·MTBF), to first order
    (Young 1974). Restarts are apart: they do not depend on the interval."""
    return save / interval + interval / (2 * mtbf)


def asynchronous_overhead(interval: float, save: float, mtbf: float) -> float:
    """The same where the loop runs on while a checkpoint is written: it waits only for what of a save does
    not fit between two, and a failure costs half an interval and the save under way, (T/2 + Ts)/MTBF."""
    return max(0.0, save - interval) / interval + (interval / 2 + save) / mtbf


def restart_overhead(restart: float, mtbf: float) -> float:
    """Share of useful time that goes into restarts: Tr/MTBF."""
    return restart / mtbf
