"""The few scrubbed excerpts that the report shows of each rule: what it rejected, and what it nearly did.

Of each rule's documents some have the least ids (a sample, since ids are hashes), some a value next to the
threshold, some one far from it; and of those that passed every step, where the ledger is kept, some a value
next to the threshold. The choice depends on ids and values alone, so that the excerpts of a run do not depend
on how its work was cut."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypedDict, TypeVar

from stages.document import Finding
from stages.pii.options import KINDS
from stages.pii.scrub import scrub

Choice = Literal["near", "far", "least", "passed"]

PER_CHOICE: Final[dict[Choice, int]] = {"near": 3, "far": 2, "least": 4, "passed": 3}
"""How many excerpts of each rule are kept for each reason, in the order in which they are shown."""

EXCERPT_CHARS = 600
_SCRUB_CHARS = 2 * EXCERPT_CHARS
_AHEAD_CHARS = EXCERPT_CHARS // 2
"""An excerpt begins at the text's beginning where the first offending line begins within so many
characters."""

Offending = Callable[[str, str], Collection[int]]
"""(rule, text) -> the numbers of the lines that count against the text."""

_Rank = tuple[float, bytes]
_Row = TypeVar("_Row", bound=Mapping[str, Any])


class ExcerptRow(TypedDict):
    """A row of tables.EXCERPTS of a rule's document."""

    doc_id: bytes
    stage: str
    rule: str
    choice: Choice
    value: float | None
    threshold: float | None
    excerpt: str
    marks: list[int]


class ExcerptKeeper:
    """Collects documents with the findings that they are shown for, and keeps the first of each rule and
    choice."""

    def __init__(self, offending: Offending = lambda rule, text: ()) -> None:
        self._offending = offending
        self._heaps: dict[tuple[str, str, Choice], list[_HeapEntry]] = {}

    def offer(self, doc_id: bytes, finding: Finding, text: str, region: str | None) -> None:
        """Consider one document's text for a rule: one that the rule rejected, or one that passed every
        step. `region` is the country whose national phone formats count in it."""
        if not text.strip():
            return
        window: tuple[str, list[int]] | None = None
        for choice, rank in _ranks(doc_id, finding):
            heap = self._heaps.setdefault((finding.stage, finding.rule, choice), [])
            is_full = len(heap) == PER_CHOICE[choice]
            if is_full and rank >= heap[0].rank:
                continue
            if window is None:
                window = _window(text, self._offending(finding.rule, text))
            held = _HeapEntry(rank, finding, region, *window)
            heapq.heapreplace(heap, held) if is_full else heapq.heappush(heap, held)

    def rows(self) -> Iterator[ExcerptRow]:
        """Rows of tables.EXCERPTS, as `best_excerpts` orders them."""
        yield from best_excerpts(self.held_rows())

    def held_rows(self) -> Iterator[ExcerptRow]:
        """The same in no order, with a document as often as it came; personal data of every kind is scrubbed
        first."""
        for (stage, rule, choice), heap in self._heaps.items():
            for held in heap:
                excerpt = excerpt_of(held.text, held.region)
                # Where scrubbing joined lines, their numbers mean nothing any more.
                whole = held.text[:_SCRUB_CHARS]
                counted = scrub(whole, KINDS, held.region).text.count("\n") == whole.count("\n")
                marks = [mark for mark in held.marks if counted and mark <= excerpt.count("\n")]
                yield {
                    "doc_id": held.rank[1],
                    "stage": stage,
                    "rule": rule,
                    "choice": choice,
                    "value": held.finding.value,
                    "threshold": held.finding.threshold,
                    "excerpt": excerpt,
                    "marks": marks,
                }


class _HeapEntry:
    """A document of a heap whose first entry is the one to give way: the last by rank."""

    __slots__ = ("finding", "marks", "rank", "region", "text")

    def __init__(
        self, rank: _Rank, finding: Finding, region: str | None, text: str, marks: list[int]
    ) -> None:
        self.rank, self.finding, self.region, self.text, self.marks = rank, finding, region, text, marks

    def __lt__(self, other: _HeapEntry) -> bool:
        return self.rank > other.rank


def _ranks(doc_id: bytes, finding: Finding) -> Iterator[tuple[Choice, _Rank]]:
    """The choices that a document is considered for by a finding, and its rank in each: the lowest are
    kept."""
    distance = _distance(finding.value, finding.threshold)
    if not finding.rejected:
        if distance is not None:
            yield "passed", (distance, doc_id)
        return
    yield "least", (0.0, doc_id)
    if distance is not None:
        yield "near", (distance, doc_id)
        yield "far", (-distance, doc_id)


def _distance(value: float | None, threshold: float | None) -> float | None:
    """How far a value lies from its threshold; None where either is not known."""
    if value is None or threshold is None or not math.isfinite(value - threshold):
        return None
    return abs(value - threshold)


def _rank_of(row: Mapping[str, Any]) -> _Rank:
    if row["choice"] == "least":
        return 0.0, row["doc_id"]
    distance = _distance(row["value"], row["threshold"])
    assert distance is not None, "these choices are made by distance"
    return (-distance if row["choice"] == "far" else distance), row["doc_id"]


def best_of_keepers(rows: Iterable[_Row]) -> list[_Row]:
    """What one keeper would give of all documents, from the `held_rows` of several that saw some of them each, in
    their order."""
    held: list[_Row] = []
    for of_group in _by_rank(rows):
        held += of_group[: PER_CHOICE[of_group[0]["choice"]]]
    return best_excerpts(held)


def _by_rank(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    """The rows of each rule and choice, in the order of their rank."""

    def group(row: Mapping[str, Any]) -> tuple[str, str, int]:
        return row["stage"], row["rule"], list(PER_CHOICE).index(row["choice"])

    ranked = sorted(rows, key=lambda row: (group(row), _rank_of(row)))
    for _, of_group in itertools.groupby(ranked, key=group):
        yield list(of_group)


def best_excerpts(rows: Iterable[_Row]) -> list[_Row]:
    """Of rows of tables.EXCERPTS those that are kept of each rule and choice, each document once; in the
    order of stage, rule, choice and rank."""
    kept: list[_Row] = []
    for of_group in _by_rank(rows):
        distinct = {row["doc_id"]: row for row in reversed(of_group)}
        some = sorted(distinct.values(), key=_rank_of)
        kept += some[: PER_CHOICE[some[0]["choice"]]]
    return kept


def shown_of_rule(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of rejected documents (doc_id, stage, rule, value, threshold and more) those whose texts may be
    shown."""
    considered: list[Mapping[str, Any]] = []
    for row in rows:
        considered += [{**row, "choice": choice} for choice, _ in _ranks(row["doc_id"], deciding(row))]
    best = {row["doc_id"]: row for row in best_excerpts(considered)}
    return list(best.values())


def deciding(row: Mapping[str, Any]) -> Finding:
    """The finding that a row of a rejected document names."""
    return Finding(
        stage=row["stage"],
        rule=row["rule"],
        value=row["value"],
        threshold=row["threshold"],
        rejected=True,
    )


def _window(text: str, marks: Collection[int]) -> tuple[str, list[int]]:
    """The piece of a text to show, with its first offending line, and which lines of the piece offend."""
    first, begin, skipped = min(marks, default=0), 0, 0
    lines = text.split("\n")
    if sum(len(line) + 1 for line in lines[:first]) > _AHEAD_CHARS:
        skipped = max(first - 1, 0)
        begin = sum(len(line) + 1 for line in lines[:skipped])
    piece = ("… " if begin else "") + text[begin : begin + _SCRUB_CHARS]
    last = skipped + piece.count("\n")
    return piece, [mark - skipped for mark in sorted(marks) if skipped <= mark <= last]


def excerpt_of(text: str, region: str | None) -> str:
    """The beginning of a text without personal data of any kind, whatever the recipe scrubs; `region` is the
    country whose national phone formats count in it."""
    return scrub(text[:_SCRUB_CHARS], KINDS, region).text[:EXCERPT_CHARS]
