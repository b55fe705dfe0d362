"""What a step of a training run read, or one row of its batch: the documents, where they stand in their rows,
and of one row the part of each text that stood in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from lineage.index.blocks import TOKEN_BYTES
from lineage.index.output_index import Index
from lineage.storage.folder import Folder
from lineage.store.rows import DocumentRow, ShardSpan
from lineage.trace.exposure import Exposure, TrainingRun, plans_of_step
from lineage.trace.tracer import Tracer
from pipeline.page.views.document import row_losses, step_losses
from pipeline.page.views.texts import ShownText, part_shown
from stages.tokens.tokenizer import Tokenizer
from trainer.provenance.exposure import locate_sequences

MOST_PARTS: Final = 400
_MOST_OF_STEP: Final = 50
"""Documents of a step: each is looked up in the order of every run that has read it, and in a large store
lies in a row group of its own."""
_MOST_TOKENS: Final = 100_000
"""Tokens of a row whose texts are shown: longer rows are cut there."""
_TOKENS_AROUND: Final = 200
"""Tokens of a document before and behind its part: personal data is masked in these too, whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRead:
    """A document's part in a row: tokens [first, first + num_tokens) of the document at `exposure`, and their
    text with some of the document around them, where it is at hand. `row_loss` and `step_loss` are None where
    they are not recorded."""

    row: DocumentRow
    exposure: Exposure
    first: int | None
    is_purged: bool
    row_loss: float | None
    step_loss: float | None
    text: ShownText | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRead:
    """What a step read, or one of its rows: the first of `num` parts, by row and position. `num_rows`: the rows
    of a step that were looked at, from its first on; the others are not in `num`."""

    run: TrainingRun
    step: int
    row: int | None
    parts: tuple[PartRead, ...]
    num: int
    num_rows: int

    @property
    def is_whole(self) -> bool:
        """Whether every part of what was asked for is there."""
        return self.num == len(self.parts) and (
            self.row is not None or self.num_rows == self.run.global_batch
        )


def read_batch(
    out: Folder,
    index: Index,
    tracer: Tracer,
    place: tuple[str, int, int | None],
    tokenizer: Tokenizer | None,
) -> BatchRead:
    """`place` is (run, step, row); without a row no texts are read. UnknownError where it is not recorded."""
    name, step, row = place
    if row is None:
        histories, num_rows = tracer.first_of_step(name, step, _MOST_OF_STEP)
        rows = range(num_rows)
    else:
        histories, num_rows = tracer.by_step(name, step, row), 1
        rows = range(row, row + 1)
    run = next(run for run in tracer.runs() if run.run == name)
    found = [
        (exposure, history)
        for history in histories
        for exposure in history.exposures
        if exposure.run == name and exposure.step == step and exposure.row in rows
    ]
    found.sort(key=lambda pair: (pair[0].row, pair[0].first_token))
    some = found[:MOST_PARTS]
    losses = step_losses(run.output, {step}, {exposure.attempt for exposure, _ in some})
    of_rows = row_losses(run.output, {(e.attempt, e.step, e.row) for e, _ in some})
    spans = _spans_of(run, step, {exposure.sequence for exposure, _ in some})
    parts, left = [], _MOST_TOKENS if row is not None else 0
    for exposure, history in some:
        first = _first_token(run, spans[exposure.sequence], exposure, history.row)
        text = None
        if tokenizer is not None and first is not None and history.purged is None and left > 0:
            num = min(exposure.num_tokens, left)
            text = _text_of(out, index, history.row, (first, num), tokenizer)
            left -= num
        parts.append(
            PartRead(
                row=history.row,
                exposure=exposure,
                first=first,
                is_purged=history.purged is not None,
                row_loss=of_rows.get((exposure.attempt, step, exposure.row)),
                step_loss=losses.get((step, exposure.attempt)),
                text=text,
            )
        )
    return BatchRead(run=run, step=step, row=row, parts=tuple(parts), num=len(found), num_rows=num_rows)


def documents_of(batch: BatchRead) -> list[bytes]:
    """The documents in their order; one that several rows read comes once."""
    return list(dict.fromkeys(part.row.doc_id for part in batch.parts))


def _spans_of(run: TrainingRun, step: int, sequences: set[int]) -> dict[int, list[ShardSpan]]:
    """Where these sequences of a step lie, as each plan of the step has it."""
    ordered = sorted(sequences)
    found: dict[int, list[ShardSpan]] = {sequence: [] for sequence in ordered}
    for plan in plans_of_step(run, step):
        for sequence, span in zip(ordered, locate_sequences(plan.plan, ordered), strict=True):
            found[sequence].append(span)
    return found


def _first_token(
    run: TrainingRun, spans: Sequence[ShardSpan], exposure: Exposure, row: DocumentRow
) -> int | None:
    """Which of the document's tokens is the first in the row; None where no plan of the step puts it there."""
    if row.start is None or row.shard is None:
        return None
    sources = {prefix + row.shard_source for prefix in run.prefixes}
    for span in spans:
        first = span.start + exposure.first_token - row.start
        if (span.source in sources and span.shard == row.shard) and 0 <= first < (row.num_tokens or 0):
            return first
    return None


def _text_of(
    out: Folder, index: Index, row: DocumentRow, part: tuple[int, int], tokenizer: Tokenizer
) -> ShownText | None:
    """The text of tokens [first, first + num) of a document that lies in a shard, with some around them."""
    first, num = part
    shard = next((s for s in index.shards if (s.source, s.shard) == (row.shard_source, row.shard)), None)
    if shard is None or row.start is None or row.num_tokens is None:
        return None
    begin, end = max(0, first - _TOKENS_AROUND), min(row.num_tokens, first + num + _TOKENS_AROUND)
    data = out.read_range(shard.file, (row.start + begin) * TOKEN_BYTES, (end - begin) * TOKEN_BYTES)
    tokens = np.frombuffer(data, "<u4")
    pieces = (
        tokens[: first - begin],
        tokens[first - begin : first - begin + num],
        tokens[first - begin + num :],
    )
    before, inside, behind = (tokenizer.decode(piece[piece != index.tokenizer.eot_id]) for piece in pieces)
    return part_shown(before, inside, behind, row)
