"""Which documents stay and which repeat which, inside one component of the graph of repetitions.

Greedy against the kept: documents are taken in order (those of earlier runs first, then the preferred copy, then
doc_id) and one is dropped only if it has an edge to a document that is kept already. So with A~B and B~C but not A~C, A
and C stay: URLs aside, nothing is dropped for a text that it does not resemble. (Keeping one per component instead has
emptied whole corpora through chains of small differences.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from stages.dedup.options import DedupTable, Keep

_NEVER: Final = "\uffff"
"""Sorts after every date: a document without one is not the earliest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentMember:
    """A document of a component. `node` is unique, also where two outputs hold the same doc_id. Documents with equal
    `clean_hash` have the same text; `has_words` is false where that text has no shingle. `earlier`: it was kept by an
    earlier run, so it stays."""

    node: int
    doc_id: bytes
    clean_hash: bytes
    url_key: bytes | None
    num_chars: int
    captured_at: str | None
    has_words: bool
    earlier: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NearEdge:
    """Two members (by node) whose texts have verified Jaccard `similarity`; it holds for every copy of either text."""

    a: int
    b: int
    similarity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupDecision:
    """What becomes of one member that is not of an earlier run. Kept: `stage` and all after it are None.

    `duplicate_of` is the kept document that it repeats, `similarity` their Jaccard (None by URL)."""

    node: int
    doc_id: bytes
    cluster_id: bytes
    stage: str | None = None
    duplicate_of: bytes | None = None
    similarity: float | None = None
    threshold: float | None = None


def decide(members: Iterable[ComponentMember], edges: Iterable[NearEdge], table: DedupTable) -> list[DedupDecision]:
    """The decisions on one component's members, those of earlier runs left out; the order given does not matter.

    `duplicate_of` is the first kept document, in the order above, with an edge of the first stage that has one."""
    ordered = _in_order(members, table.keep)
    component = _Component(ordered, edges, table)
    decisions = []
    for rank, member in enumerate(ordered):
        decision = None if member.earlier else component.dropped(member)
        if decision is None:
            component.keep(rank, member)
            decision = DedupDecision(node=member.node, doc_id=member.doc_id, cluster_id=component.cluster_id)
        if not member.earlier:
            decisions.append(decision)
    return decisions


def _in_order(members: Iterable[ComponentMember], keep: Keep) -> list[ComponentMember]:
    """Members as they are taken: each of these sorts leaves equal ones in the order of the one before it."""
    ordered = sorted(members, key=lambda member: (member.doc_id, member.node))
    match keep:
        case "longest":
            ordered.sort(key=lambda member: -member.num_chars)
        case "earliest":
            ordered.sort(key=lambda member: _time(member) or _NEVER)
        case "newest":
            ordered.sort(key=_time, reverse=True)
    ordered.sort(key=lambda member: not member.earlier)
    return ordered


def _time(member: ComponentMember) -> str:
    """The time of capture without its Z, which sorts after the point of a fraction; nothing where there is none."""
    return (member.captured_at or "").removesuffix("Z")


class _Kept(NamedTuple):
    rank: int
    doc_id: bytes


class _Component:
    """The documents kept so far, found by URL and by text. Texts stand for all their copies, so that the work is
    linear in members and edges however many copies there are."""

    def __init__(self, members: Sequence[ComponentMember], edges: Iterable[NearEdge], table: DedupTable) -> None:
        self.table = table
        self.cluster_id = min(member.doc_id for member in members)
        self._by_url: dict[bytes, _Kept] = {}
        self._by_text: dict[bytes, _Kept] = {}
        self._resembling: defaultdict[bytes, list[tuple[bytes, float]]] = defaultdict(list)
        text = {member.node: member.clean_hash for member in members}
        for edge in edges:
            self._resembling[text[edge.a]].append((text[edge.b], edge.similarity))
            self._resembling[text[edge.b]].append((text[edge.a], edge.similarity))

    def keep(self, rank: int, member: ComponentMember) -> None:
        kept = _Kept(rank, member.doc_id)
        self._by_text.setdefault(member.clean_hash, kept)
        if member.url_key is not None:
            self._by_url.setdefault(member.url_key, kept)

    def dropped(self, member: ComponentMember) -> DedupDecision | None:
        """The decision that drops `member` for a document kept already; None if it has no edge to one."""
        if self.table.url and member.url_key is not None and member.url_key in self._by_url:
            return self._drop(member, "dedup.url", self._by_url[member.url_key], None, None)
        same_text = self._by_text.get(member.clean_hash)
        if self.table.exact and same_text is not None:
            return self._drop(member, "dedup.exact", same_text, 1.0, 1.0)
        if not self.table.near or not member.has_words:
            return None
        near = [(same_text, 1.0)] if same_text is not None else []
        for text, similarity in self._resembling.get(member.clean_hash, ()):
            if text in self._by_text:
                near.append((self._by_text[text], similarity))
        return self._drop(member, "dedup.near", *min(near), self.table.threshold) if near else None

    def _drop(
        self, member: ComponentMember, stage: str, kept: _Kept, similarity: float | None, threshold: float | None
    ) -> DedupDecision:
        return DedupDecision(
            node=member.node,
            doc_id=member.doc_id,
            cluster_id=self.cluster_id,
            stage=stage,
            duplicate_of=kept.doc_id,
            similarity=similarity,
            threshold=threshold,
        )
