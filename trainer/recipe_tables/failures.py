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
    max_skips: int = key(
        5, at_least=1, help="batches skipped in a row, upon which `on_repeat` says what follows"
    )
    on_repeat: Literal["stop", "rollback", "lower_lr"] = key(
        "stop",
        help="the run stops; goes back before the first of these batches and leaves their sequences out; or"
        " lowers the learning rate for some steps",
    )
    lower_factor: float = key(
        0.5, above=0, at_most=1, help="lower_lr: what the learning rate is multiplied with"
    )
    lower_steps: int = key(100, at_least=1, help="lower_lr: for so many steps")
    watchdog_seconds: float = key(
        600.0, above=0, at_most=1e7, help="a step longer than this names the hung rank and stops"
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
        help="collectives and messages, 64 bytes each of its node's memory; 0: none",
    )
    steps: int = key(
        512, at_least=1, at_most=1 << 20, help="steps with their own and waiting times, 128 bytes each"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglersTable:
    """`[train.stragglers]`: when a rank is named as slower than others at the same work."""

    window: int = key(
        20, at_least=5, help="steps of whose own times a rank's median is taken; two windows in a row"
    )
    factor: float = key(1.25, above=1, help="at least this many times the median of the ranks")
    deviations: float = key(
        4.0,
        at_least=0,
        help="at least this many times the median absolute deviation of the ranks from their median",
    )
    least_share: float = key(
        0.02, at_least=0, at_most=1, help="at least this share of a step is lost: short phases are all noise"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryTable:
    """`[train.recovery]`: what is done about a rank that is lost, or as good as lost."""

    mode: Literal["restart", "in_place"] = key(
        "restart",
        help="restart: all processes begin again from the newest checkpoint; in_place: the others keep what"
        " they hold, and a waiting process takes the place of the lost one",
    )
    spares: int = key(0, at_least=0, help="in_place: processes that have imported everything and wait")
    neighbour_copy: bool = key(
        False,
        help="in_place: each process keeps its weights and moments and its neighbour's in host memory, of two"
        " steps, where no replica holds them (dp_replicate = 1)",
    )
    on_straggler: Literal["tell", "replace"] = key(
        "tell",
        help="a rank that is slower than others at the same work is told of; in_place: a waiting process"
        " takes its place",
    )
    on_sign: Literal["tell", "drain"] = key(
        "tell",
        help="a sign that a node is about to fail (train.health.prometheus) is told; drain, in_place: a waiting"
        " process takes the rank's place before it does",
    )
    check_replicas_every: int = key(
        0,
        at_least=0,
        help="steps between two comparisons of weights and moments over the replicas; the odd one is mended"
        " from the others. 0: none",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthTable:
    """`[train.health]`: what is looked at before a start and while the run goes on."""

    every: int = key(
        1000,
        at_least=0,
        help="steps between two looks at the machines (and one before the first step): a known product and a"
        " known all-reduce on each device, disk, memory, and alerts. 0: none",
    )
    prometheus: str | None = key(
        None,
        help="the address of a Prometheus, such as http://prometheus:9090: its alerts with the label `drain` are"
        " signs of the nodes that they name",
    )
