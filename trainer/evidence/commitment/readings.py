"""How often the weights of a checkpoint have read each document, shard by shard: the order inverted for a whole shard
at once, and its sequences joined with the shard's placements.

A document's readings are the rows of batches that held some of its tokens, as `sluice trace` lists them, of steps
that are applied in the checkpoint. What a step met after a purge was end-of-text, and counts for nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lineage.index.output_index import Index, Shard, read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.delta import arrow_dataset
from lineage.store.lookup import Lookup
from lineage.trace.exposure import AppliedStretch, applied_stretches
from lineage.trace.tracer import all_runs
from trainer.attempts import attempts
from trainer.checkpoint.store import Checkpoint
from trainer.huggingface.model_card import checkpoints_of
from trainer.order import Order, OrderPlan
from trainer.provenance.facts import outs_read, outs_to_read, require_run
from trainer.provenance.reached import read_facts
from trainer.recovery.readings import as_of, find_purges

Int64s = npt.NDArray[np.int64]
READINGS: Final = pa.schema([
    ("doc_id", pa.binary()), ("readings", pa.int64()), ("first_step", pa.int64()), ("last_step", pa.int64()),
    ("read_tokens", pa.int64()),
])  # fmt: skip
"""A row for each document that was read; `read_tokens` counts a token as often as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOutput:
    """An output of the data pipeline that a checkpoint has read: in which stretches of steps, and which contents
    lack a document that was purged."""

    out: Folder
    index: Index
    stretches: tuple[AppliedStretch, ...]
    erased_in: Mapping[bytes, frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCheckpoint:
    """The newest checkpoint of a run, and what its steps have read."""

    output: Folder
    run: str
    checkpoint: Checkpoint
    outputs: tuple[ReadOutput, ...]


def open_read(
    output: Folder, outs: Sequence[str] = (), checkpoint: Checkpoint | None = None
) -> ReadCheckpoint:
    """The newest checkpoint of the run at `output`, or this one; `outs`: where the outputs that the run read lie now.
    RecipeError where it is no run's output or has no checkpoint, or where `outs` are not all that it read;
    StorageError where an output cannot be read."""
    run = require_run(output)
    found = checkpoints_of(output)
    if checkpoint is None and not found:
        raise RecipeError(f"{output.url} has no complete checkpoint yet: the same `sluice train` saves one")
    chosen = checkpoint or found[-1]
    read = [_read_output(Folder(out), output, run, chosen) for out in outs_to_read(output, outs)]
    _check_all_read(output, read)
    # An output that lies in two places, such as a copy from which the run went on, is read once: the later place.
    places = {each.stretches: each for each in read}
    return ReadCheckpoint(output=output, run=run, checkpoint=chosen, outputs=tuple(places.values()))


def _check_all_read(output: Folder, read: Sequence[ReadOutput]) -> None:
    """RecipeError where the outputs lack a source that the run read: what it read of that would count as not read."""
    planned, found = set[str](), set[str]()
    for each in read:
        for stretch in each.stretches:
            planned.update(dict(OrderPlan.from_json(stretch.plan).lengths))
            found.update(stretch.prefix + shard.source for shard in each.index.shards)
    if missing := sorted(planned - found):
        places = ", ".join(each.out.url for each in read)
        recorded = ", ".join(outs_read(output))
        raise RecipeError(
            f"{output.url} has read {', '.join(missing)} too, of which {places} holds nothing: give every output"
            f" that it read, at its present place ({recorded} as recorded)"
        )


def _read_output(out: Folder, output: Folder, run: str, checkpoint: Checkpoint) -> ReadOutput:
    index = read_index(out)
    (known,) = [each for each in all_runs(Lookup(out), read_facts([output.url], out.url)) if each.run == run]
    at_checkpoint = as_of(known, attempts(output), checkpoint.attempt, checkpoint.step)
    return ReadOutput(
        out=out,
        index=index,
        stretches=tuple(applied_stretches(at_checkpoint)),
        erased_in={
            purged.doc_id: purged.erased_in
            for each in find_purges([out.url], ["all"])
            for purged in each.spans
        },
    )


def read_documents(read: ReadOutput) -> Iterator[pa.Table]:
    """The documents of the output that were read, as of READINGS, a table for each shard. DamagedFileError where
    lineage is damaged."""
    placements = arrow_dataset(read.out, "placements")
    orders = {stretch.plan: Order(OrderPlan.from_json(stretch.plan)) for stretch in read.stretches}
    for shard in read.index.shards:
        here = (pc.field("source") == shard.source) & (pc.field("shard") == shard.shard)
        rows = placements.to_table(columns=["doc_id", "start", "num_tokens"], filter=here)
        if rows.num_rows:
            yield _of_shard(read, orders, shard, rows)


def _of_shard(read: ReadOutput, orders: Mapping[str, Order], shard: Shard, rows: pa.Table) -> pa.Table:
    start, size = rows["start"].to_numpy(), rows["num_tokens"].to_numpy()
    ids = rows["doc_id"].to_pylist()
    columns = np.zeros((4, len(ids)), np.int64)
    # Documents that a purge took were read by steps before it alone: each such set of contents is counted apart.
    without: dict[frozenset[str], list[int]] = {}
    for row, doc_id in enumerate(ids if read.erased_in else ()):
        if (erased := read.erased_in.get(doc_id)) is not None:
            without.setdefault(erased, []).append(row)
    taken = {row for those in without.values() for row in those}
    groups: list[tuple[Collection[str], Any]] = [
        (erased, np.array(those)) for erased, those in without.items()
    ]
    left = [row for row in range(len(ids)) if row not in taken]
    # A purge can take all documents of a shard: an empty array has no type of its own.
    groups.append(((), np.array(left, np.int64) if taken else slice(None)))
    for contents, those in groups:
        sequences = _read_sequences(read, orders, shard, contents)
        if sequences is not None:
            columns[:, those] = sequences.of_spans(start[those], size[those])
    was_read = pa.array(columns[0] > 0)
    table = pa.table([rows["doc_id"].cast(pa.binary()), *map(pa.array, columns)], schema=READINGS)
    return table.filter(was_read)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadSequences:
    """The sequences of a shard that were read, by rising place: tokens [begin, end), how often, first and last
    step."""

    begin: Int64s
    end: Int64s
    readings: Int64s
    first_step: Int64s
    last_step: Int64s

    def of_spans(self, start: Int64s, size: Int64s) -> Int64s:
        """Readings, first step, last step and tokens read of each span, shape (4, num); the steps of a span that was
        not read mean nothing."""
        first = np.searchsorted(self.end, start, side="right")
        end = np.searchsorted(self.begin, start + size, side="left")
        counted = np.concatenate(([0], np.cumsum(self.readings)))
        edges = np.stack([first, np.maximum(first, end)], axis=1).ravel()
        # A last entry of no effect, since an edge may lie behind the last sequence.
        least = np.minimum.reduceat(np.append(self.first_step, np.iinfo(np.int64).max), edges)[::2]
        most = np.maximum.reduceat(np.append(self.last_step, -1), edges)[::2]
        tokens = self._tokens_before(start + size) - self._tokens_before(start)
        return np.stack([counted[np.maximum(first, end)] - counted[first], least, most, tokens])

    def _tokens_before(self, place: Int64s) -> Int64s:
        """Tokens read of the shard up to each place, as often as they were."""
        whole = np.concatenate(([0], np.cumsum(self.readings * (self.end - self.begin))))
        last = np.searchsorted(self.begin, place, side="right") - 1
        within = np.minimum(place, self.end[last]) - self.begin[last]
        return np.where(last < 0, 0, whole[last] + self.readings[last] * within)


def _read_sequences(
    read: ReadOutput, orders: Mapping[str, Order], shard: Shard, erased: Collection[str]
) -> _ReadSequences | None:
    """The sequences of a shard that applied steps read, but for those of contents in `erased`; None for none."""
    found = []
    for plan, order in orders.items():
        stretches = [
            stretch
            for stretch in read.stretches
            if stretch.plan == plan and stretch.content_fingerprint not in erased
        ]
        for prefix in {stretch.prefix for stretch in stretches}:
            if shard.shard < len(dict(order.plan.lengths).get(prefix + shard.source, ())):
                found.append(_located(order, shard, [each for each in stretches if each.prefix == prefix]))
    begin, end, step = np.concatenate(found, axis=1) if found else np.empty((3, 0), np.int64)
    if not len(begin):
        return None
    by_place = np.lexsort((step, begin))
    begin, end, step = begin[by_place], end[by_place], step[by_place]
    first = np.flatnonzero(np.diff(begin, prepend=-1))
    last = np.append(first[1:], len(begin)) - 1
    return _ReadSequences(
        begin=begin[first],
        end=end[first],
        readings=last - first + 1,
        first_step=step[first],
        last_step=step[last],
    )


def _located(order: Order, shard: Shard, stretches: Sequence[AppliedStretch]) -> Int64s:
    """Begin, end and step of every sequence of a shard that applied steps of these stretches read, shape (3, num)."""
    num_steps, size = max(stretch.end_step for stretch in stretches), order.plan.global_batch
    applied = np.zeros(num_steps, bool)
    for stretch in stretches:
        applied[stretch.first_step : stretch.end_step] = True
        applied[sorted(stretch.skipped)] = False
    source = stretches[0].prefix + shard.source
    sequence = order.find(source, shard.shard, 0, shard.num_tokens, num_steps * size).sequence
    sequence = sequence[applied[sequence // size]]
    if not len(sequence):
        return np.empty((3, 0), np.int64)
    places = order.locate(sequence)
    return np.stack([places.start, places.start + places.num_tokens, sequence // size])
