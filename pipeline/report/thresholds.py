"""The values of every rule over all documents, from the ledger, and what other thresholds would keep.

A document counts as kept at another threshold if its value passes there and no other rule turned it down.
What a looser threshold lets through has not met the later steps, so that figure is the most that it can keep.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from lineage.store.column_names import INSIDE
from lineage.store.queries.views import text_literal
from pipeline.recipe.tables import PipelineRecipe, tables_of
from pipeline.report.data import HistogramBar, RuleValues, ThresholdOption
from stages.rules import SIDES, SideSpec
from stages.steps.catalogue import rules_of

_BARS: Final = 24
_OPTIONS: Final = 9
_FEWEST_REJECTED: Final = 4
"""Edges among the rejected values: where the even ones are fewer, that side gets narrower ones, so that a
threshold can be loosened in steps."""
_REJECTED_BARS: Final = 10
_EXPLORED: Final = 250_000
"""Documents that are looked at: ids are hashes, so those with the least are a fair sample of more."""
_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
_WIDE: Final = 50.0
"""Positive values that span more than this ratio are shown at edges that grow, not at even ones."""
_GROWING: Final = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)

_Ask = Callable[[str], list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ValueRange:
    """What is known of a rule's values before its edges are chosen: all lie from `least` to `most`, nearly
    all from `low` to `high`, and nearly all that it rejects (if any) up to `farthest` from the threshold.
    `is_whole`: values and threshold are whole numbers."""

    stage: str
    rule: str
    side: SideSpec
    threshold: float
    num: int
    low: float
    high: float
    least: float
    most: float
    farthest: float | None
    is_whole: bool

    @property
    def lowest(self) -> float:
        """Where the axis ends on the left: no count and no share is negative."""
        return 0.0 if min(self.least, self.threshold) >= 0 else -math.inf

    @property
    def highest(self) -> float:
        """Where it ends on the right: a share is 1 at most (a float of a model's score may be a bit more)."""
        is_share = self.lowest == 0 and self.most < 1.01 and self.threshold <= 1 and not self.is_whole
        return 1.0 if is_share else math.inf


def values_of_rules(
    ask: _Ask, recipe: PipelineRecipe, num_options: int = _OPTIONS
) -> dict[tuple[str, str], RuleValues]:
    """The values of each (stage, rule) that has a threshold and whose side is known; none where the output
    keeps no whole ledger. `num_options`: how many other thresholds are judged of each, the nearest ones."""
    if recipe.quality.ledger != "all":
        return {}
    num_documents = ask("SELECT count(*) FROM documents")[0][0]
    share = min(1.0, _EXPLORED / max(1, num_documents))
    explored_ids = "true" if share == 1.0 else f"doc_id < '{int(share * 2**64):016x}'"
    found = _found_sql(explored_ids)
    num_surviving = ask(
        f"SELECT count(*) FROM documents WHERE (status <> 'rejected' OR stage = '{INSIDE}')"
        f" AND stage IS DISTINCT FROM 'identity' AND purged IS NULL AND {explored_ids}"
    )[0][0]
    sides = {rule.name: SIDES[rule.side] for rule in rules_of(tables_of(recipe)).values() if rule.has_values}
    rules = _measured(ask, found, sides)
    edges = {rule.rule: _edges(rule) for rule in rules}
    counts = _counts_between(ask, found, rules, edges)
    explored = "" if share == 1.0 else f"a sample of {share:.2%} of the documents, those with the least ids"
    shown = [_values(rule, edges[rule.rule], counts[rule.rule], num_surviving, explored) for rule in rules]
    return {
        (rule.stage, rule.rule): replace(values, options=_nearest_options(values.options, num_options))
        for rule, values in zip(rules, shown, strict=True)
    }


def _found_sql(explored_ids: str) -> str:
    """The findings of the documents that are looked at: `alone` where no other rule turned the document down.
    Records that are equal share an id: a rule that turned each of them down is still one rule, and of those
    that are `repeated` one survives. What was purged does not."""
    return (
        "WITH rejecting AS (SELECT doc_id, count(DISTINCT (stage, rule)) AS num FROM findings WHERE verdict"
        " = 'reject' GROUP BY doc_id), marked AS (SELECT doc_id, bool_or(stage IS NOT DISTINCT FROM"
        " 'identity') AS repeated, bool_or(purged IS NOT NULL) AS purged FROM documents WHERE stage ="
        " 'identity' OR purged IS NOT NULL GROUP BY doc_id), found AS (SELECT doc_id, stage, rule, value,"
        " threshold, verdict = 'reject' AS rejected, coalesce(num, 0) - (verdict = 'reject')::INT = 0 AND"
        " NOT coalesce(purged, false) AS alone, coalesce(repeated, false) AS repeated FROM findings LEFT"
        f" JOIN rejecting USING (doc_id) LEFT JOIN marked USING (doc_id) WHERE {explored_ids})"
    )


def _measured(ask: _Ask, found: str, sides: Mapping[str, SideSpec]) -> list[_ValueRange]:
    rows = ask(
        f"{found} SELECT stage, rule, min(threshold), count(*), quantile_disc(value, 0.01),"
        f" quantile_disc(value, 0.99), min(value), max(value),"
        " quantile_disc(value, 0.01) FILTER (rejected), quantile_disc(value, 0.99) FILTER (rejected),"
        " bool_and(value = floor(value) AND threshold = floor(threshold)) FROM found"
        " WHERE value IS NOT NULL AND threshold IS NOT NULL"
        " GROUP BY stage, rule ORDER BY stage, rule"
    )
    return [
        _ValueRange(
            stage=stage,
            rule=rule,
            side=sides[rule],
            threshold=threshold,
            num=num,
            low=low,
            high=high,
            least=least,
            most=most,
            farthest=rejected_low if sides[rule].is_low else rejected_high,
            is_whole=is_whole,
        )
        for stage, rule, threshold, num, low, high, least, most, rejected_low, rejected_high, is_whole in rows
        if rule in sides and math.isfinite(low) and math.isfinite(high)
    ]


def _edges(rule: _ValueRange) -> list[float]:
    """Rising round values over the range of a rule's values, its threshold among them."""
    edges = _with_rejected(rule, _rough_edges(rule))
    return sorted({min(max(edge, rule.lowest), rule.highest) for edge in edges})


def _with_rejected(rule: _ValueRange, edges: Sequence[float]) -> list[float]:
    """The edges, with narrower ones between the threshold and the farthest of the rejected values where
    they are few there: most values may lie so far on the other side that one step leads over all of
    these."""
    span = 0.0 if rule.farthest is None else abs(rule.farthest - rule.threshold)
    near = [edge for edge in edges if _is_beyond(rule, edge) and abs(edge - rule.threshold) <= span]
    if not 0 < span < math.inf or len(near) >= _FEWEST_REJECTED:
        return list(edges)
    width = _round_width(span / _REJECTED_BARS, is_whole=rule.is_whole)
    width = -width if rule.side.is_low else width
    num = math.ceil(span / abs(width) - 1e-9)
    narrow = [_round(rule.threshold + k * width) for k in range(1, num + 1)]
    return [edge for edge in edges if edge not in near] + narrow


def _is_beyond(rule: _ValueRange, edge: float) -> bool:
    """Whether an edge lies on the rejected side of the threshold."""
    return edge < rule.threshold if rule.side.is_low else edge > rule.threshold


def _round_width(rough: float, *, is_whole: bool) -> float:
    """The next round width."""
    power = 10.0 ** math.floor(math.log10(rough))
    width = next(factor * power for factor in _STEPS if factor * power >= rough * 0.999)
    return max(1.0, round(width)) if is_whole else width


def _rough_edges(rule: _ValueRange) -> list[float]:
    """Even edges from the threshold, or growing ones where the values span much."""
    low, high = min(rule.low, rule.threshold), max(rule.high, rule.threshold)
    if low > 0 and high / low > _WIDE:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        edges = {_round(factor * 10.0**power) for power in powers for factor in _GROWING}
        if len(edges) > 2 * _BARS:
            edges = {_round(10.0**power) for power in powers}
        return sorted({edge for edge in edges if low <= edge <= high} | {rule.threshold})
    width = _round_width((high - low) / _BARS or abs(rule.threshold) / 10 or 1.0, is_whole=rule.is_whole)
    first = math.floor((low - rule.threshold) / width + 1e-9)
    last = math.ceil((high - rule.threshold) / width - 1e-9)
    # From the threshold, which must be an edge to the last bit.
    return [rule.threshold if k == 0 else _round(rule.threshold + k * width) for k in range(first, last + 1)]


def _round(value: float) -> float:
    return float(f"{value:.10g}")


def _counts_between(
    ask: _Ask, found: str, rules: Sequence[_ValueRange], edges: Mapping[str, Sequence[float]]
) -> dict[str, list[tuple[int, int]]]:
    """For each rule how many values lie below its first edge, between each two, and over the last; and how
    many of them alone. A value that equals an edge counts to the side on which it decides as those there
    do."""
    counted = {rule.rule: [(0, 0)] * (len(edges[rule.rule]) + 1) for rule in rules}
    ranges = [
        f"({text_literal(rule.rule)}, {number}, {low}, {high}, {rule.side.takes_equal})"
        for rule in rules
        for number, (low, high) in enumerate(_pairs(edges[rule.rule]))
    ]
    if not ranges:
        return counted
    rows = ask(
        f"{found}, grouped AS (SELECT rule, value, count(*) AS num, count(*) FILTER (alone AND NOT repeated)"
        " + count(DISTINCT doc_id) FILTER (alone AND repeated) AS num_alone FROM found WHERE value IS NOT"
        " NULL GROUP BY rule, value) SELECT rule, number, sum(num)::BIGINT, sum(num_alone)::BIGINT FROM"
        f" grouped JOIN (VALUES {', '.join(ranges)}) AS ranges(rule, number, low, high, upper) USING (rule)"
        " WHERE CASE WHEN upper THEN value > low AND value <= high ELSE value >= low AND value < high END"
        " GROUP BY rule, number"
    )
    for rule, number, num, num_alone in rows:
        counted[rule][number] = (num, num_alone)
    return counted


def _pairs(edges: Sequence[float]) -> list[tuple[str, str]]:
    """The ends of each range, as SQL."""
    ends = ["'-Infinity'::DOUBLE", *(f"{edge!r}::DOUBLE" for edge in edges), "'Infinity'::DOUBLE"]
    return list(itertools.pairwise(ends))


def _values(
    rule: _ValueRange,
    edges: Sequence[float],
    counts: Sequence[tuple[int, int]],
    num_surviving: int,
    explored: str,
) -> RuleValues:
    below = list(itertools.accumulate(counts, lambda a, b: (a[0] + b[0], a[1] + b[1])))
    whole, alone = below[-1]
    highest = math.sqrt(max((num for num, _ in counts), default=1) or 1)
    line = list(edges).index(rule.threshold) + 1
    bars = tuple(
        HistogramBar(
            label=_range(rule, edges, number),
            num=num,
            num_alone=num_alone,
            height=math.sqrt(num) / highest,
            height_alone=math.sqrt(num) / highest * (num_alone / num if num else 0.0),
            is_rejected=(number < line) == rule.side.is_low,
        )
        for number, (num, num_alone) in enumerate(counts)
    )
    first, last = _shown_bars(counts)
    options = [_option(rule, edge, below[number], whole, alone) for number, edge in enumerate(edges)]
    now = next(option for option in options if option.is_set)
    return RuleValues(
        side=rule.side.words,
        num_measured=whole,
        bars=bars[min(first, line - 1) : max(last, line) + 1],
        line=line - min(first, line - 1),
        options=tuple(_counted_from(option, now, num_surviving) for option in options),
        explored=explored,
    )


def _nearest_options(options: Sequence[ThresholdOption], num: int) -> tuple[ThresholdOption, ...]:
    """The options that stand nearest to the one that is set, in order."""
    centre = next(number for number, option in enumerate(options) if option.is_set)
    start = max(0, min(centre - num // 2, len(options) - num))
    return tuple(options[start : start + num])


def _shown_bars(counts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The first and the last bar that hold a document."""
    filled = [number for number, (num, _) in enumerate(counts) if num]
    return (filled[0], filled[-1]) if filled else (0, 0)


def _option(
    rule: _ValueRange, edge: float, below: tuple[int, int], whole: int, alone: int
) -> ThresholdOption:
    num_rejected = below[0] if rule.side.is_low else whole - below[0]
    num_passing = alone - below[1] if rule.side.is_low else below[1]
    return ThresholdOption(
        threshold=shown_edge(edge),
        num_rejected=num_rejected,
        num_kept=num_passing,
        change=0,
        is_set=edge == rule.threshold,
    )


def _counted_from(option: ThresholdOption, now: ThresholdOption, num_surviving: int) -> ThresholdOption:
    """With the documents that survive the filters, as `sluice tune` counts them: those that do now, and the
    change by this rule. Some may not have been measured by it."""
    change = option.num_kept - now.num_kept
    return replace(option, num_kept=num_surviving + change, change=change)


def _range(rule: _ValueRange, edges: Sequence[float], number: int) -> str:
    """The range of a bar. A value that equals an edge lies below it or above it, by the rule's side."""
    takes_equal = rule.side.takes_equal
    if number == 0:
        if edges[0] == rule.lowest and takes_equal:
            return shown_edge(edges[0])
        return f"{'up to' if takes_equal else 'under'} {shown_edge(edges[0])}"
    if number == len(edges):
        if edges[-1] == rule.highest and not takes_equal:
            return shown_edge(edges[-1])
        return f"{'over' if takes_equal else 'from'} {shown_edge(edges[-1])}"
    return f"{shown_edge(edges[number - 1])} to {shown_edge(edges[number])}"


def shown_edge(value: float) -> str:
    """An edge for people: as many digits as it has."""
    return f"{value:,.0f}" if value.is_integer() else f"{value:.6g}"
