"""How often a run saves where `train.checkpoint.every = "auto"`: from what a save stops it for, the failures
that it has seen, and a prior. All times in seconds. No torch here.

The same facts give the same cadence. It decides when the run is written down, and never what it trains on.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Final

FIRST_STEPS: Final = 10
"""Steps to the first checkpoint of an attempt: it measures what a save costs."""
_REMEMBERED: Final = 9
_STEPS_REMEMBERED: Final = 100
_WRITING_SHARE: Final = 0.8
"""At most this share of the time between two checkpoints is spent writing one: the next would wait for it."""


def daly_interval(stall: float, mtbf: float) -> float:
    """The useful time between two checkpoints that loses least: √(2·C·M)·(1 + √x/3 + x/9) − C with x =
    C/(2·M) where C < 2·M, else M (Daly 2006, "A higher order estimate of the optimum checkpoint interval for
    restart dumps", equation 37). C is what stops the loop, not what writes beside it."""
    if stall >= 2 * mtbf:
        return mtbf
    ratio = stall / (2 * mtbf)
    return math.sqrt(2 * stall * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - stall


def expected_mtbf(prior: float, seconds: float, num_failures: int) -> float:
    """The mean time between failures after so many in so many seconds: (prior + seconds) / (1 + failures). It
    is the inverse of the failure rate's posterior mean, where a Gamma prior counts for one failure in `prior`
    seconds (Gelman et al., "Bayesian Data Analysis", section 2.6: Poisson model with exposure)."""
    return (prior + seconds) / (1 + num_failures)


class AutoCadence:
    """The cadence of an attempt. `prior`: mean seconds between failures where nothing is known of the run;
    `run_seconds` and `num_failures`: what is, from all attempts."""

    def __init__(self, *, prior: float, run_seconds: float, num_failures: int) -> None:
        self._mtbf = expected_mtbf(prior, run_seconds, num_failures)
        self._stalls: deque[float] = deque(maxlen=_REMEMBERED)
        self._steps: deque[float] = deque(maxlen=_STEPS_REMEMBERED)

    def note_step(self, seconds: float) -> None:
        """A step took so long, its checkpoint left out."""
        self._steps.append(seconds)

    def note_save(self, stall: float) -> None:
        """A checkpoint has stopped the loop for so long."""
        self._stalls.append(stall)

    def steps(self, writing_seconds: float) -> int:
        """Steps to the next checkpoint; `writing_seconds`: what the last one took to be written, beside the
        loop."""
        if not self._steps or not self._stalls:
            return FIRST_STEPS
        wanted = max(
            daly_interval(statistics.median(self._stalls), self._mtbf), writing_seconds / _WRITING_SHARE
        )
        return max(1, math.ceil(wanted / max(statistics.median(self._steps), 1e-9)))
