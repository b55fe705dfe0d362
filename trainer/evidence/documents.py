"""The rows and documents of a replayed step, with their losses: documents by what they add beyond the usual."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lineage.storage.folder import Folder
from lineage.store.lookup import Lookup
from lineage.store.rows import ShardSpan
from trainer.data.corpus import Corpus
from trainer.data.recipe_order import make_order
from trainer.data.row_loss import RowLoss
from trainer.evidence.observed import ObservedStep, ReplayResult
from trainer.evidence.replayed_step import ReplayedStep
from trainer.provenance.exposure import sequences_of, spans_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentInStep:
    """A document's part of a row. `loss`: nats a counted label; `usual` that of its source; `excess`: what it
    adds to the sum of the step's losses beyond the usual, by which documents are ranked. `doc_id` in hex;
    None where lineage has none, as for what was purged since."""

    doc_id: str | None
    url: str | None
    out: str | None
    source: str
    row: int
    first_token: int
    num_labels: int
    loss: float
    usual: float
    excess: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RowInStep:
    """A row of the batch: `loss` in nats a counted label."""

    row: int
    sequence: int
    source: str
    shard: int
    start: int
    num_tokens: int
    num_labels: int
    loss: float


def usual_losses(asked: ReplayedStep, last: ObservedStep) -> dict[str, float]:
    """The usual loss of each source: over the steps before that counted, or the step's own where there are
    none."""
    sums: dict[str, list[float]] = {}
    for report in asked.before:
        if report.skipped is None:
            for name, loss in report.loss_by_source.items():
                count = report.tokens_by_source.get(name, 0)
                total = sums.setdefault(name, [0.0, 0.0])
                total[0] += loss * count
                total[1] += count
    usual = {name: total / count for name, (total, count) in sums.items() if count}
    return {**last.losses_by_source, **usual}


def rows_and_documents(
    asked: ReplayedStep, corpus: Corpus, seen: ReplayResult, usual: Mapping[str, float]
) -> tuple[tuple[RowInStep, ...], tuple[DocumentInStep, ...]]:
    """The rows and the documents of the step, with what lineage knows of these."""
    size = asked.recipe.train.global_batch
    numbers = sequences_of(asked.step, size)
    places = spans_of(make_order(asked.recipe, corpus), numbers)
    losses = seen.last.rows or (RowLoss(math.nan, 0),) * size
    rows = [
        RowInStep(
            row=row, sequence=numbers[row], **place._asdict(), num_labels=loss.num_labels, loss=loss.mean
        )
        for row, (place, loss) in enumerate(zip(places, losses, strict=True))
    ]
    documents = []
    known = _placed(corpus, places)
    for row, first, num_labels, loss in seen.documents:
        place = places[row]
        at = place.start + first
        placed = next((one for one in known.get(place, ()) if one.start <= at < one.end), None)
        mean, expected = loss / num_labels, usual.get(place.source, math.nan)
        documents.append(
            DocumentInStep(
                doc_id=None if placed is None else placed.doc_id.hex(),
                url=None if placed is None else placed.url,
                out=None if placed is None else placed.out,
                source=place.source,
                row=row,
                first_token=first,
                num_labels=num_labels,
                loss=mean,
                usual=expected,
                excess=num_labels * (mean - expected),
            )
        )
    return (
        tuple(sorted(rows, key=lambda row: (not math.isnan(row.loss), -row.loss, row.row))),
        tuple(
            sorted(
                documents, key=lambda one: (not math.isnan(one.excess), -one.excess, one.row, one.first_token)
            )
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TokenSpan:
    """A document's tokens [start, end) of a shard."""

    doc_id: bytes
    url: str | None
    out: str
    start: int
    end: int


def _placed(corpus: Corpus, places: Sequence[ShardSpan]) -> dict[ShardSpan, list[_TokenSpan]]:
    """The documents of each span that the lineage of its output has."""
    found: dict[ShardSpan, list[_TokenSpan]] = {}
    for output in corpus.outputs:
        lookup = Lookup(Folder(output.url))
        placements = lookup.at_spans_of_run(output.prefix, places)
        ids = list(dict.fromkeys(one.doc_id for of_span in placements.values() for one in of_span))
        urls = {row.doc_id: row.url for row in lookup.documents(ids)}
        for place, of_span in placements.items():
            found.setdefault(place, []).extend(
                _TokenSpan(
                    doc_id=one.doc_id,
                    url=urls.get(one.doc_id),
                    out=output.url,
                    start=one.start,
                    end=one.start + one.num_tokens,
                )
                for one in of_span
            )
    return found
