"""How much of a long run's wall time is useful where nodes fail: closed forms, and a simulation that must
meet them.

Failures come as a Poisson process over the whole job: any node's failure stops it (2410.21680, section III).
All times in seconds. The simulation draws many runs at once and is the same for the same seed."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainer.checkpoint.cadence import daly_interval

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A cause of unexpected interruptions of Llama 3 405B in 54 days on 16,384 H100 (2407.21783, table 5):
    how often it came; whether its node goes away for repair, and whether the other ranks can go on in place:
    a fault of the software meets them all."""

    name: str
    count: int
    needs_repair: bool
    in_place: bool


LLAMA_3: Final = (
    Cause(name="faulty GPU", count=148, needs_repair=True, in_place=True),
    Cause(name="GPU memory (HBM3)", count=72, needs_repair=True, in_place=True),
    Cause(name="software bug", count=54, needs_repair=False, in_place=False),
    Cause(name="network switch or cable", count=35, needs_repair=True, in_place=True),
    Cause(name="host maintenance", count=32, needs_repair=True, in_place=True),
    Cause(name="GPU memory (SRAM)", count=19, needs_repair=True, in_place=True),
    Cause(name="GPU system processor", count=17, needs_repair=True, in_place=True),
    Cause(name="network adapter", count=7, needs_repair=True, in_place=True),
    Cause(name="collective timed out", count=7, needs_repair=False, in_place=False),
    Cause(name="silent data corruption", count=6, needs_repair=True, in_place=False),
    Cause(name="GPU thermal interface or sensor", count=6, needs_repair=True, in_place=True),
    Cause(name="disk", count=3, needs_repair=True, in_place=True),
    Cause(name="power supply", count=3, needs_repair=True, in_place=True),
    Cause(name="server chassis", count=2, needs_repair=True, in_place=True),
    Cause(name="expansion board", count=2, needs_repair=True, in_place=True),
    Cause(name="dependency", count=2, needs_repair=False, in_place=False),
    Cause(name="processor", count=2, needs_repair=True, in_place=True),
    Cause(name="host memory", count=2, needs_repair=True, in_place=True),
)
_ROUNDING: Final = 1e-9
_MOST_EXPONENT: Final = 100.0


def share_of(causes: Sequence[Cause], *, needs_repair: bool = False, in_place: bool = False) -> float:
    """The share of the failures whose node goes away, or that can be recovered in place."""
    wanted = sum(
        cause.count
        for cause in causes
        if (cause.needs_repair or not needs_repair) and (cause.in_place or not in_place)
    )
    return wanted / sum(cause.count for cause in causes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """What a fleet's goodput hangs on. `mtbf`: of the whole job; every `interval` of useful time it saves and
    stops for `stall`; after a failure it goes on `restart` later from the newest checkpoint, or `in_place`
    later with the same step where that can be (`in_place_share` of the failures; `step`: seconds of one).
    `repair_share` of the failures take a node away for `repair` on average (exponential): one of `spares`
    takes its place, or the job waits for one. None: as many spares as are asked for."""

    mtbf: float
    interval: float
    stall: float
    restart: float
    in_place: float = 0.0
    in_place_share: float = 0.0
    step: float = 0.0
    repair: float = 0.0
    repair_share: float = 1.0
    spares: int | None = None


def expected_goodput(case: Reliability) -> float:
    """Useful time over wall time with as many spares as are asked for, exact for exponential failures.
    Without recovery in place: t / (M·e^(R/M)·(e^((t + C)/M) − 1)) (Daly 2006, equation 20: a failure costs
    what was done since the checkpoint, also during a save and a restart). In place the unit that is lost is a
    step. With a share of each: between two restarts lie 1/(1 − share) failures, of which all but the last
    stretch the time by what one recovered in place costs; to first order, so it is told for shares of 0 and 1
    as exact."""
    share = case.in_place_share
    if share >= 1:
        return _renewal(case.mtbf, case.step, case.stall * case.step / case.interval, case.in_place)
    lost_in_place = share / case.mtbf * (case.in_place + case.step / 2)
    rest = _renewal(case.mtbf / (1 - share), case.interval, case.stall, case.restart)
    return rest / (1 + lost_in_place)


def _renewal(mtbf: float, interval: float, stall: float, restart: float) -> float:
    # In negative powers alone, which become 0 where nothing is ever done, and do not overflow.
    tries = math.exp(-(restart + interval + stall) / mtbf) / -math.expm1(-(interval + stall) / mtbf)
    return interval / mtbf * tries


def waiting_shares(busy: float) -> Iterator[float]:
    """The share of time that a job waits for a repaired node, with no spare, with one, with two, and so on: Erlang's
    loss formula with spares + 1 places and `busy` nodes in repair on average, were there always a spare (Erlang
    1917; a birth and death process that makes no failures while the job waits). Each follows from the one before."""
    blocked = 1.0
    for place in itertools.count(1):
        blocked = busy * blocked / (place + busy * blocked)
        yield blocked


def expected_failures(case: Reliability, useful_seconds: float) -> float:
    """How many failures a run meets until so much useful time is done, to order of magnitude: what simulating
    it takes. Each stretch between two of them is tried until it comes through, e^(its length/M) times."""
    longest = max(case.restart, case.in_place) + case.interval + case.stall
    return useful_seconds / case.mtbf * math.exp(min(longest / case.mtbf, _MOST_EXPONENT))


def nodes_in_repair(case: Reliability) -> float:
    """How many nodes are in repair on average where the job never waits (Little 1961)."""
    return case.repair * case.repair_share / case.mtbf


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedGoodput:
    """Over the simulated runs: mean, standard deviation of one run, 5th and 95th percentile; the mean wall
    time for a second of useful time, and that mean's standard error; failures a run, and the mean share of
    waiting for a node."""

    mean: float
    deviation: float
    low: float
    high: float
    wall_per_useful: float
    wall_error: float
    failures: float
    waiting: float


class _Runs:
    """What changes in the simulated runs, one number for each: wall time, of it waiting for nodes, useful
    time and stalls since the newest checkpoint (which a recovery in place keeps), failures, nodes in
    repair."""

    def __init__(self, case: Reliability, generator: np.random.Generator, runs: int) -> None:
        self._case, self._generator = case, generator
        self.wall, self.waited, self.since, self.failures = (np.zeros(runs) for _ in range(4))
        self.away = np.zeros(runs, np.int64)

    def recover(self, failed: npt.NDArray[np.int64]) -> None:
        """From a failure of each of these runs until their steps run again. A failure meanwhile begins it
        anew."""
        case, generator = self._case, self._generator
        while failed.size:
            if case.repair:
                self.away[failed] += generator.random(failed.size) < case.repair_share
            if case.spares is not None:
                self._wait(failed[self.away[failed] > case.spares])
            kept = generator.random(failed.size) < case.in_place_share
            lasts = np.where(kept, case.in_place, case.restart)
            # What is lost in place is the begun step; after a restart all since the newest checkpoint.
            length = case.step * (1 + case.stall / case.interval)
            begun = np.mod(self.since[failed], length) if length else np.zeros(failed.size)
            # Where it stands at the end of a step, to rounding, none is begun.
            begun[begun > (1 - _ROUNDING) * length] = 0.0
            self.since[failed] = np.where(kept, self.since[failed] - begun, 0.0)
            until = generator.exponential(case.mtbf, failed.size)
            passed = np.minimum(until, lasts)
            self.wall[failed] += passed
            self.away[failed] -= _repaired(generator, self.away[failed], passed, case.repair)
            failed = failed[until < lasts]
            self.failures[failed] += 1

    def _wait(self, short: npt.NDArray[np.int64]) -> None:
        """The job stands, so nothing fails; the first of the nodes in repair to come back takes the place."""
        pause = self._generator.exponential(self._case.repair / np.maximum(self.away[short], 1))
        self.wall[short] += pause
        self.waited[short] += pause
        self.away[short] -= 1


def simulate(case: Reliability, useful_seconds: float, *, runs: int = 200, seed: int = 0) -> SimulatedGoodput:
    """`runs` runs until each has done so much useful time (whole intervals). Between failures, which are
    memoryless, whole stretches are counted at once; one pass of the loop is a failure of every run that is
    not done."""
    generator = np.random.default_rng(seed)
    wanted = max(1, math.ceil(useful_seconds / case.interval)) * case.interval
    state, whole = _Runs(case, generator, runs), case.interval + case.stall
    wall, useful, since, away = state.wall, np.zeros(runs), state.since, state.away
    going = np.arange(runs)
    while going.size:
        until = generator.exponential(case.mtbf, going.size)
        left = (wanted - useful[going]) / case.interval * whole - since[going]
        done = until >= left
        wall[going] += np.minimum(until, left)
        away[going] -= _repaired(generator, away[going], np.minimum(until, left), case.repair)
        reached = since[going] + until
        useful[going] += np.where(done, 0.0, np.floor(reached / whole) * case.interval)
        failed = going[~done]
        since[failed] = np.mod(reached[~done], whole)
        state.failures[failed] += 1
        state.recover(failed)
        going = failed
    share = wanted / wall
    return SimulatedGoodput(
        mean=float(share.mean()),
        deviation=float(share.std(ddof=1)) if runs > 1 else 0.0,
        low=float(np.percentile(share, 5)),
        high=float(np.percentile(share, 95)),
        wall_per_useful=float(wall.mean() / wanted),
        wall_error=float(wall.std(ddof=1) / wanted / math.sqrt(runs)) if runs > 1 else 0.0,
        failures=float(state.failures.mean()),
        waiting=float((state.waited / wall).mean()),
    )


def _repaired(
    generator: np.random.Generator, away: npt.NDArray[np.int64], seconds: Floats, repair: float
) -> npt.NDArray[np.int64]:
    """How many of the nodes in repair come back in so many seconds."""
    if not repair:
        return np.zeros_like(away)
    back: npt.NDArray[np.int64] = generator.binomial(away, -np.expm1(-seconds / repair))
    return back


def best_spares(case: Reliability, num_nodes: int) -> int:
    """The number of spares at which a second of useful time costs least, every node being paid for, the
    spares too."""
    busy = nodes_in_repair(case)
    most = math.ceil(busy + 8 * math.sqrt(busy) + 8)
    prices = (
        (num_nodes + spares) / (1 - waiting)
        for spares, waiting in zip(range(most + 1), waiting_shares(busy), strict=False)
    )
    return min(enumerate(prices), key=operator.itemgetter(1))[0]


def fleet_case(
    *,
    num_nodes: int,
    failures_per_node_day: float,
    stall: float,
    restart: float,
    repair: float,
    causes: Sequence[Cause] = LLAMA_3,
    write: float = 0.0,
    in_place: float | None = None,
    step: float = 0.0,
) -> Reliability:
    """A fleet that fails at this rate and by these causes' proportions, with the cadence that is best for it:
    never so often that a checkpoint waits for the one before (`write`). `in_place` None: every failure is a
    restart."""
    mtbf = 86_400 / (failures_per_node_day * num_nodes)
    share = 0.0 if in_place is None else share_of(causes, in_place=True)
    # Failures that are recovered in place take nothing back to a checkpoint.
    interval = max(daly_interval(stall, mtbf / max(1 - share, 1e-9)), write)
    return Reliability(
        mtbf=mtbf,
        interval=interval,
        stall=stall,
        restart=restart,
        in_place=in_place or 0.0,
        in_place_share=share,
        step=step,
        repair=repair,
        repair_share=share_of(causes, needs_repair=True),
    )
