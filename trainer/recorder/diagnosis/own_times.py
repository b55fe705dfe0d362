"""Own work and waiting of every rank over the recorded steps: who was slow, and the heat map of rank ×
step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from trainer.recorder.ring import RingContent
from trainer.telemetry.phases import PHASES
from trainer.telemetry.stragglers import Straggler, StragglerDetector, StragglerLimits

_MOST_COLUMNS: Final = 120
_MOST_ROWS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """Medians of a rank over the recorded steps: seconds of own work and of waiting, by phase."""

    rank: int
    node: str
    own: Mapping[str, float]
    waiting: Mapping[str, float]

    @property
    def own_seconds(self) -> float:
        """Own work of a step."""
        return sum(self.own.values())

    @property
    def waiting_seconds(self) -> float:
        """Waiting of a step."""
        return sum(self.waiting.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatRow:
    """A row of the heat map: `cells` are own seconds over the median of all ranks in these steps, None where
    nothing is recorded."""

    name: str
    cells: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Own time of a step by rank and step. `columns`: [first, last] steps of each; a cell is the median over
    them. Of many ranks a row holds several, and a cell is the slowest of these."""

    columns: tuple[tuple[int, int], ...]
    rows: tuple[HeatRow, ...]


def rank_times(rings: Mapping[int, RingContent]) -> list[RankTimes]:
    """Of each rank that recorded a step."""
    return [
        RankTimes(
            rank=rank,
            node=ring.header.node,
            own={phase: median(step.own[at] for step in ring.steps) for at, phase in enumerate(PHASES)},
            waiting={
                phase: median(step.waiting[at] for step in ring.steps) for at, phase in enumerate(PHASES)
            },
        )
        for rank, ring in sorted(rings.items())
        if ring.steps
    ]


def stragglers(
    rings: Mapping[int, RingContent],
    alike: Sequence[Sequence[int]],
    limits: StragglerLimits,
    window: int,
    exempt: Sequence[tuple[int, str]],
) -> list[Straggler]:
    """Who was slow over the steps that all have recorded, as the run itself names them; the newest word on
    each."""
    times = {rank: {step.step: step for step in ring.steps} for rank, ring in rings.items() if ring.steps}
    if not times:
        return []
    steps = sorted(set.intersection(*(set(of_rank) for of_rank in times.values())))
    known = [[rank for rank in group if rank in times] for group in alike]
    nodes = {rank: ring.header.node for rank, ring in rings.items()}
    size = max(rank for group in alike for rank in group) + 1
    detector = StragglerDetector(limits, known, [nodes.get(rank, "") for rank in range(size)], exempt)
    newest: dict[tuple[int, str], Straggler] = {}
    for first in range(0, len(steps) - window + 1, window):
        part = steps[first : first + window]
        medians: list[Mapping[str, float]] = [
            {
                str(phase): median(times[rank][step].own[at] for step in part)
                for at, phase in enumerate(PHASES)
            }
            if rank in times
            else {}
            for rank in range(size)
        ]
        seconds = median(
            sum(times[rank][step].own + times[rank][step].waiting) for rank in times for step in part
        )
        for each in detector.add_window(part[0], medians, seconds):
            newest[each.rank, each.phase] = each
    return sorted(newest.values(), key=lambda each: each.factor, reverse=True)


def heat_map(rings: Mapping[int, RingContent]) -> HeatMap:
    """Of all recorded steps; few enough cells for a page, however many ranks and steps there are."""
    own = {
        rank: {step.step: sum(step.own) for step in ring.steps}
        for rank, ring in sorted(rings.items())
        if ring.steps
    }
    steps = sorted({step for of_rank in own.values() for step in of_rank})
    columns = [tuple(part) for part in _cut(steps, _MOST_COLUMNS)]
    cells = {
        rank: [_median([of_rank[step] for step in part if step in of_rank]) for part in columns]
        for rank, of_rank in own.items()
    }
    usual = [
        _median([row[at] for row in cells.values() if row[at] is not None]) for at in range(len(columns))
    ]
    rows = []
    for ranks in _cut(list(own), _MOST_ROWS):
        nodes = sorted({rings[rank].header.node for rank in ranks})
        name = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        rows.append(
            HeatRow(
                name=f"{name} · {nodes[0]}{f' and {len(nodes) - 1} more' if len(nodes) > 1 else ''}",
                cells=tuple(
                    _ratio([cells[rank][at] for rank in ranks], usual[at]) for at in range(len(columns))
                ),
            )
        )
    return HeatMap(columns=tuple((part[0], part[-1]) for part in columns), rows=tuple(rows))


def _cut(values: Sequence[int], most: int) -> list[Sequence[int]]:
    """At most `most` pieces of equal length, the last perhaps shorter."""
    size = max(1, -(-len(values) // most))
    return [values[at : at + size] for at in range(0, len(values), size)]


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _ratio(values: Sequence[float | None], usual: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) / usual if known and usual else None
