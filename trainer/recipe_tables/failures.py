"""The tables of what may go wrong in a run, and what follows: skipped batches, lost and slow ranks, sick machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lineage.recipe import key


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultsTable:
    """`[train.faults]`."""

    spike_sigma: float = key(
        6.0, above=0, help="a loss this many standard deviations above the window is a spike"
    )
    spike_window: int = key(128, at_least=2, help="steps of that window")
    max_skips: int = key(5, at_least=1, help="consecutive skipped batches after which `on_repeat` applies")
    on_repeat: Literal["stop", "rollback", "lower_lr"] = key(
        "stop",
        help="stop the run; roll back before the first of these batches and leave their sequences "
        "out; or lower the learning rate for some steps",
    )
    lower_factor: float = key(0.5, above=0, at_most=1, help="lower_lr: factor on the learning rate")
    lower_steps: int = key(100, at_least=1, help="lower_lr: number of steps")
    watchdog_seconds: float = key(
        600.0, above=0, at_most=1e7, help="a step longer than this ends the process and names the hung rank"
    )
    nan_at_step: int | tuple[int, ...] = key(
        (), at_least=0, help="for tests: steps whose loss becomes NaN, in every attempt"
    )

    @property
    def nan_steps(self) -> frozenset[int]:
        """`nan_at_step` as a set."""
        return frozenset((self.nan_at_step,) if isinstance(self.nan_at_step, int) else self.nan_at_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderTable:
    """`[train.recorder]`: what each process keeps of what it did last, for `sluice train diagnose`."""

    operations: int = key(
        2048,
        at_least=0,
        at_most=1 << 20,
        help="recorded collectives and messages, 64 bytes of node memory each; 0: none",
    )
    steps: int = key(
        512, at_least=1, at_most=1 << 20, help="recorded steps with own and waiting times, 128 bytes each"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglersTable:
    """`[train.stragglers]`: when a rank is named as slower than others at the same work."""

    window: int = key(
        20,
        at_least=5,
        help="steps in the median of a rank's own times; a rank is slow after two windows in a row",
    )
    factor: float = key(1.25, above=1, help="at least this many times the median of the ranks")
    deviations: float = key(
        4.0,
        at_least=0,
        help="at least this many times the median absolute deviation of the ranks from their median",
    )
    least_share: float = key(
        0.02,
        at_least=0,
        at_most=1,
        help="at least this share of a step is lost, because short phases are mostly noise",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryTable:
    """`[train.recovery]`: what is done about a rank that is lost, or as good as lost."""

    mode: Literal["restart", "in_place"] = key(
        "restart",
        help="restart: all processes restart from the newest checkpoint; in_place: survivors keep "
        "their state, and a spare replaces the lost process",
    )
    spares: int = key(
        0, at_least=0, help="in_place: number of spare processes, which have imported everything and wait"
    )
    neighbour_copy: bool = key(
        False,
        help="in_place, for layouts without replicas (dp_replicate = 1): each process keeps its own "
        "and its neighbour's weights and moments of two steps in host memory",
    )
    on_straggler: Literal["tell", "replace"] = key(
        "tell",
        help="tell: name a rank that is slower than others at the same work; replace (in_place): a"
        " spare also takes its place",
    )
    on_sign: Literal["tell", "drain"] = key(
        "tell",
        help="tell: name a node with signs of failing (train.health.prometheus); drain (in_place): a spare "
        "also takes the rank's place before the node fails",
    )
    check_replicas_every: int = key(
        0,
        at_least=0,
        help="steps between comparisons of weights and moments across replicas; a differing one is "
        "repaired from the others. 0: none",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthTable:
    """`[train.health]`: what is looked at before a start and while the run goes on."""

    every: int = key(
        1000,
        at_least=0,
        help="steps between checks of the machines (also before the first step): a known product and"
        " all-reduce on each device, disk, memory, and alerts. 0: none",
    )
    prometheus: str | None = key(
        None,
        help="address of a Prometheus, such as http://prometheus:9090: its alerts with the label `drain` are signs of"
        " failing nodes",
    )
