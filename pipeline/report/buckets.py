"""The parts that [[bucket]] makes of sources: how the scores of kept documents are distributed, where they are
cut, and the texts on either side of each cut."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from lineage.index.output_index import Index
from lineage.storage.folder import Folder
from lineage.store.column_names import SCORE
from lineage.store.rows import shard_source
from pipeline.report.data import CutColumn, ExampleGroup, Excerpt, PartRow, ScoreBar
from pipeline.report.examples import web_link
from pipeline.report.thresholds import shown_edge
from pipeline.results.excerpts import excerpt_of
from pipeline.results.rows import read_texts
from pipeline.results.run_summary import RunSummary
from stages.pii.regions import region_of

_BINS: Final = 40
_PER_SIDE: Final = 3
"""Texts that are shown on either side of a cut; one, where there are many cuts."""
_MANY_CUTS: Final = 10

_Ask = Callable[[str], list[tuple[Any, ...]]]
_Show = Callable[[tuple[Any, ...]], Excerpt]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scores:
    """A column of scores, and the documents that are kept and have one, as SQL names them."""

    column: str
    kept: str


def parts_of(summary: RunSummary) -> tuple[PartRow, ...]:
    """The parts of each source, as the run made them."""
    whole = Counter[str]()
    for size in summary.buckets:
        whole[size.source] += size.num_tokens
    return tuple(
        PartRow(
            name=shard_source(size.source, size.bucket),
            num_documents=size.num_documents,
            num_tokens=size.num_tokens,
            share=size.num_tokens / max(1, whole[size.source]),
        )
        for size in summary.buckets
    )


def cut_columns(ask: _Ask, out: Folder, index: Index, summary: RunSummary) -> tuple[CutColumn, ...]:
    """The scores that each [[bucket]] cuts; those of documents that were purged since are left out."""
    found, show = [], _shower(out, index)
    for bucket in summary.bucket_cuts:
        if not bucket.column.startswith(SCORE):
            continue  # a label has classes and no cuts
        column = '"' + bucket.column.replace('"', '""') + '"'
        scores = _Scores(
            column=column,
            kept=f"documents WHERE status = 'kept' AND purged IS NULL AND {column} IS NOT NULL",
        )
        found.append(
            CutColumn(
                bucket=bucket.name,
                column=bucket.column,
                cuts=tuple(map(shown_edge, bucket.cuts)),
                bars=_bars(ask, scores, bucket.cuts),
                examples=tuple(_examples(ask, show, scores, bucket.cuts)),
            )
        )
    return tuple(found)


def _bars(ask: _Ask, scores: _Scores, cuts: Sequence[float]) -> tuple[ScoreBar, ...]:
    """Bars of one width from the least score to the highest; a cut stands before the first bar that lies
    above it wholly or in part."""
    column, kept = scores.column, scores.kept
    ((low, high, num),) = ask(f"SELECT min({column})::DOUBLE, max({column})::DOUBLE, count(*) FROM {kept}")
    if not num:
        return ()
    width = (high - low) / _BINS or 1.0
    rows = ask(
        f"SELECT least(floor(({column} - {low!r}::DOUBLE) / {width!r}::DOUBLE)::INT, {_BINS - 1}) b, count(*)"
        f" FROM {kept} GROUP BY 1"
    )
    counts = {int(number): int(count) for number, count in rows}
    bars = _BINS if high > low else 1
    edges = [low + number * width for number in range(bars)] + [high]
    highest = math.sqrt(max(counts.values()))
    before = Counter(
        next((number for number, edge in enumerate(edges[1:]) if edge > cut), bars - 1) for cut in cuts
    )
    return tuple(
        ScoreBar(
            label=f"{shown_edge(start)} to {shown_edge(end)}",
            num=counts.get(number, 0),
            height=math.sqrt(counts.get(number, 0)) / highest,
            num_cuts=before[number],
        )
        for number, (start, end) in enumerate(pairwise(edges))
    )


def _examples(ask: _Ask, show: _Show, scores: _Scores, cuts: Sequence[float]) -> Iterator[ExampleGroup]:
    """The texts next to each cut, those below it and those that begin the next part."""
    num = _PER_SIDE if len(cuts) <= _MANY_CUTS else 1
    for number, cut in enumerate(cuts, start=1):
        for title, side, order in (
            (f"Next below cut {number} ({shown_edge(cut)})", "<", "DESC"),
            (f"From cut {number} ({shown_edge(cut)}) on", ">=", "ASC"),
        ):
            rows = ask(
                f"SELECT doc_id, source, part, part_row, url, host, language, {scores.column}::DOUBLE FROM"
                f" {scores.kept} AND {scores.column} {side} {cut!r}::DOUBLE ORDER BY {scores.column} {order},"
                f" doc_id LIMIT {num}"
            )
            yield ExampleGroup(title=title, excerpts=tuple(map(show, rows)))


def _shower(out: Folder, index: Index) -> _Show:
    """What makes of a row of `_examples` an excerpt without personal data."""
    files = {(part.source, part.part): part.file for part in index.documents}

    def show(row: tuple[Any, ...]) -> Excerpt:
        doc_id, source, part, part_row, url, host, language, score = row
        file = files.get((source, part))
        text = None if file is None or part_row is None else read_texts(out, file, [part_row]).get(part_row)
        return Excerpt(
            doc_id=doc_id,
            url=url or "",
            link=web_link(url or ""),
            note=f"score {shown_edge(score)}",
            pieces=() if text is None else ((excerpt_of(text, region_of(language, host)), False),),
        )

    return show
