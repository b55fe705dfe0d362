"""Which documents stay and which repeat which, inside each component of the graph of repetitions.

Greedy against the kept: documents are taken in order (those of earlier runs first, then the preferred copy,
then doc_id) and one is dropped only if it has an edge to a document that is kept already. So with A~B and B~C
but not A~C, A and C stay: URLs aside, nothing is dropped for a text that it does not resemble. (Keeping one
per component instead has emptied whole corpora through chains of small differences.)

Axes: N documents, E edges. A component may hold millions of copies of one page, so a document is a row of
arrays and never a Python object."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from stages.dedup.bands import I64
from stages.dedup.options import DedupTable, Keep

NONE: Final = -1
"""Stands for no URL, no time of capture, and no document."""
DEDUP_STAGES: Final = ("dedup.url", "dedup.exact", "dedup.near")
"""The stages that drop documents, in order: the first with an edge to a kept document decides."""
_URL, _EXACT, _NEAR = range(len(DEDUP_STAGES))
_NEVER: Final = np.iinfo(np.int64).max
"""Sorts after every time: a document without one is not the earliest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The documents of whole components, parallel arrays (N,).

    `node` is unique, also where two outputs hold the same doc_id. `doc_id`, `text`, `url` and `captured_at`
    are numbers that are equal where the documents' are; those of doc_id and of captured_at ascend as they do,
    and those of texts and URLs begin at 0. `has_words` is false where a text has no shingle. `earlier`: it
    was kept by an earlier run, so it stays."""

    component: I64
    node: I64
    doc_id: I64
    text: I64
    url: I64
    num_chars: I64
    captured_at: I64
    has_words: npt.NDArray[np.bool_]
    earlier: npt.NDArray[np.bool_]

    def take(self, rows: npt.NDArray[np.intp]) -> Members:
        return Members(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class NearEdges:
    """Pairs of members of one component (by their row in Members) whose texts are near, of Jaccard
    `similarity`, which holds for every copy of either text: parallel arrays (E,)."""

    a: I64
    b: I64
    similarity: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """What becomes of each document that is not of an earlier run: parallel arrays, components together.

    `row` is its row in Members; `stage` the place in DEDUP_STAGES of the one that drops it, `duplicate_of`
    the row of the kept document that it repeats, and `similarity` their Jaccard (NaN by URL). Kept: NONE,
    NONE and NaN. `first` is the row of its component's least doc_id."""

    row: I64
    stage: I64
    duplicate_of: I64
    similarity: npt.NDArray[np.float64]
    first: I64


def decide(members: Members, edges: NearEdges, table: DedupTable) -> Decisions:
    """The decisions on the members of components; the order given does not matter.

    `duplicate_of` is the first kept document, in the order above, with an edge of the first stage that has
    one."""
    order = _order(members, table.keep)
    taken = members.take(order)
    stage, kept, similarity = _Greedy(taken, _NearTexts(members.text, edges), table).run()
    judged = ~taken.earlier
    duplicate_of = np.where(kept == NONE, NONE, order[kept])
    return Decisions(
        row=order[judged],
        stage=stage[judged],
        duplicate_of=duplicate_of[judged],
        similarity=similarity[judged],
        first=_least_id(members)[order[judged]],
    )


def _order(members: Members, keep: Keep) -> npt.NDArray[np.intp]:
    """Rows as they are taken, component by component."""
    known = members.captured_at
    match keep:
        case "longest":
            preferred = -members.num_chars
        case "earliest":
            preferred = np.where(known == NONE, _NEVER, known)
        case "newest":
            preferred = -known
    return np.lexsort((members.node, members.doc_id, preferred, ~members.earlier, members.component))


def _least_id(members: Members) -> I64:
    """Of each document, the row of its component's least doc_id."""
    order = np.lexsort((members.doc_id, members.component))
    _, begins, component = np.unique(members.component[order], return_index=True, return_inverse=True)
    least = np.empty(len(order), np.int64)
    least[order] = order[begins][component]
    return least


class _NearTexts:
    """The texts that resemble each text, and how much. Texts stand for all their copies, so that the work is
    linear in members and edges however many copies there are."""

    def __init__(self, text: I64, edges: NearEdges) -> None:
        ends = np.concatenate((text[edges.a], text[edges.b]))
        order = np.argsort(ends, kind="stable")
        self.begins = np.searchsorted(ends[order], np.arange(text.max(initial=NONE) + 2))
        self.other = np.concatenate((text[edges.b], text[edges.a]))[order]
        self.similarity = np.tile(edges.similarity, 2)[order]


class _Greedy:
    """Takes documents one by one, and knows the first kept one of each URL and each text by its place in the
    order."""

    def __init__(self, taken: Members, resembling: _NearTexts, table: DedupTable) -> None:
        self._taken, self._table = taken, table
        # Views of the arrays: reading a number of one is as fast as of a list, and holds no Python object.
        self._by_url = np.full(taken.url.max(initial=NONE) + 1, NONE).data
        self._by_text = np.full(taken.text.max(initial=NONE) + 1, NONE).data
        self._begins, self._other = resembling.begins.data, resembling.other.data
        self._similarity = resembling.similarity.data

    def run(self) -> tuple[I64, I64, npt.NDArray[np.float64]]:
        """The stage that drops each document, the place of the one that it repeats, and their similarity."""
        num = len(self._taken.node)
        stages, repeats, similarities = np.full(num, NONE), np.full(num, NONE), np.full(num, np.nan)
        taken = self._taken
        columns = zip(taken.text.data, taken.url.data, taken.has_words.data, taken.earlier.data, strict=True)
        for place, (text, url, has_words, earlier) in enumerate(columns):
            dropped = None if earlier else self._dropped(text, url, bool(has_words))
            if dropped is None:
                self._keep(place, text, url)
            else:
                stages[place], repeats[place], similarities[place] = dropped
        return stages, repeats, similarities

    def _keep(self, place: int, text: int, url: int) -> None:
        if self._by_text[text] == NONE:
            self._by_text[text] = place
        if url != NONE and self._by_url[url] == NONE:
            self._by_url[url] = place

    def _dropped(self, text: int, url: int, has_words: bool) -> tuple[int, int, float] | None:
        """What drops such a document for one that is kept already; None if it has no edge to one."""
        if self._table.url and url != NONE and self._by_url[url] != NONE:
            return _URL, self._by_url[url], np.nan
        same_text = self._by_text[text]
        if self._table.exact and same_text != NONE:
            return _EXACT, same_text, 1.0
        if not self._table.near or not has_words:
            return None
        near = min(self._near(text, same_text), default=None)
        return None if near is None else (_NEAR, *near)

    def _near(self, text: int, same_text: int) -> Iterable[tuple[int, float]]:
        if same_text != NONE:
            yield same_text, 1.0
        for at in range(self._begins[text], self._begins[text + 1]):
            kept = self._by_text[self._other[at]]
            if kept != NONE:
                yield kept, self._similarity[at]
