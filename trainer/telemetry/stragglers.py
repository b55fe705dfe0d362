"""Finds ranks that are slower than others at the same work: medians of their own time over windows of steps.

A rank is suspect in a phase where its median is beyond `factor` times the median of all that do the same
work, beyond `deviations` times the median of their absolute deviations from it, and costs at least
`least_share` of a step. Twice in a row, it is named; twice in a row not, it is let go. Mean and standard
deviation would not do: of N values none is further than sqrt(N - 1) standard deviations from their mean, so
that among 8 ranks nothing is ever beyond 3."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Protocol

LEAST_RANKS: Final = 3
"""Of two ranks nobody can say which one is the slow one."""
_IN_A_ROW: Final = 2


MORE_TO_DO: Final = ((0, "checkpoint"),)
"""Ranks and phases that are not judged: rank 0 writes the facts of a run before each checkpoint, which is no
fault of its node."""


class StragglerLimits(Protocol):
    """Beyond which a rank is suspect: see the module. `[train.stragglers]` has them."""

    @property
    def factor(self) -> float: ...

    @property
    def deviations(self) -> float: ...

    @property
    def least_share(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A rank that was slower than others at the same work over a window: `seconds` of own time in a step,
    `usual` those of the others."""

    rank: int
    phase: str
    seconds: float
    usual: float

    @property
    def factor(self) -> float:
        """How many times as long as others at the same work the rank takes."""
        return self.seconds / self.usual if self.usual else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A rank that is slower than others at the same work, since the window that began with `since_step`;
    `ended`: it was, and is not any more. `detail`: what the rank itself says of it."""

    rank: int
    node: str
    phase: str
    seconds: float
    usual: float
    since_step: int
    ended: bool = False
    detail: str = ""

    @property
    def factor(self) -> float:
        """How many times as long as others at the same work the rank takes; 1 once it has ended."""
        if self.ended:
            return 1.0
        return self.seconds / self.usual if self.usual else math.inf


def suspects(
    medians: Sequence[Mapping[str, float]],
    alike: Sequence[Sequence[int]],
    step_seconds: float,
    limits: StragglerLimits,
) -> list[Suspect]:
    """Who was slow over one window. `medians`: of each rank its own time in a step, by phase; `alike`: the
    ranks that do the same work, group by group. Groups of fewer than LEAST_RANKS are not judged."""
    found = []
    for group in alike:
        if len(group) < LEAST_RANKS:
            continue
        for phase in medians[group[0]]:
            of_phase = [medians[rank][phase] for rank in group]
            usual = median(of_phase)
            deviation = median(abs(seconds - usual) for seconds in of_phase)
            beyond = max(
                limits.factor * usual,
                usual + limits.deviations * deviation,
                usual + limits.least_share * step_seconds,
            )
            found += [
                Suspect(rank=rank, phase=phase, seconds=seconds, usual=usual)
                for rank, seconds in zip(group, of_phase, strict=True)
                if seconds > beyond
            ]
    return found


class StragglerDetector:
    """Takes one window of steps after the other; the same input on every rank gives the same names on
    each."""

    def __init__(
        self,
        limits: StragglerLimits,
        alike: Sequence[Sequence[int]],
        nodes: Sequence[str],
        exempt: Sequence[tuple[int, str]] = (),
    ) -> None:
        self._limits, self._alike, self._nodes, self._exempt = limits, alike, nodes, frozenset(exempt)
        self._since: dict[tuple[int, str], int] = {}
        self._windows: dict[tuple[int, str], int] = {}
        self._clean: dict[tuple[int, str], int] = {}
        self._last: dict[tuple[int, str], Suspect] = {}

    def add_window(
        self, first_step: int, medians: Sequence[Mapping[str, float]], step_seconds: float
    ) -> list[Straggler]:
        """The stragglers after a window that began with `first_step`, and those that have ended with it."""
        found = {
            (one.rank, one.phase): one for one in suspects(medians, self._alike, step_seconds, self._limits)
        }
        reported = []
        for key in sorted(found.keys() | self._windows.keys()):
            if key in self._exempt:
                continue
            is_named = self._windows.get(key, 0) >= _IN_A_ROW
            if key in found:
                self._since.setdefault(key, first_step)
                self._windows[key] = self._windows.get(key, 0) + 1
                self._clean[key], self._last[key] = 0, found[key]
                if self._windows[key] >= _IN_A_ROW:
                    reported.append(self._straggler(key, ended=False))
                continue
            self._clean[key] += 1
            if is_named and self._clean[key] < _IN_A_ROW:
                continue
            if is_named:
                reported.append(self._straggler(key, ended=True))
            for state in (self._since, self._windows, self._clean, self._last):
                state.pop(key)
        return reported

    def _straggler(self, key: tuple[int, str], *, ended: bool) -> Straggler:
        last = self._last[key]
        return Straggler(
            rank=last.rank,
            node=self._nodes[last.rank],
            phase=last.phase,
            seconds=last.seconds,
            usual=last.usual,
            since_step=self._since[key],
            ended=ended,
        )


class StepWindow:
    """Own times of this rank over the steps of a window."""

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._steps: list[tuple[int, Mapping[str, float], float]] = []

    def add(
        self, step: int, own: Mapping[str, float], seconds: float
    ) -> tuple[int, dict[str, float], float] | None:
        """With the window's last step: its first step, the median of each phase and that of whole steps,
        waiting included; the next one begins anew."""
        self._steps.append((step, own, seconds))
        if len(self._steps) < self._num_steps:
            return None
        steps, self._steps = self._steps, []
        medians = {phase: median(times[phase] for _, times, _ in steps) for phase in own}
        return steps[0][0], medians, median(seconds for _, _, seconds in steps)
