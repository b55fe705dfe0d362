"""Batches of the order, as arrays: a pure function of the plan, the step and the slice, so its state is the
step.

A batch is G consecutive sequences. Which rank reads which row changes nothing in the loss, so rows are
assigned by place: sorted by block, then cut into as many runs of rows as there are data parallel ranks.
Neighbouring ranks share a node; so they read neighbouring blocks, and a node reads few blocks that others
read too."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lineage.index.blocks import BLOCK_TOKENS
from trainer.data.blocks import BlockReader
from trainer.data.corpus import Corpus, ShardFile
from trainer.data.figures import ReadFigures
from trainer.order import Order, Places
from trainer.ordering.geometry import num_validated
from trainer.ordering.permutation import Int64s

IGNORED: Final = -100
"""The label of a position that does not count."""

_LOCATED_AT_ONCE: Final = 2048  # sequences: a call of the order costs as much for one as for a few hundred
_RECENT_READS: Final = 4096
_TOKENS_AT_ONCE: Final = 1 << 15  # positions worked on at once, so that they stay in the processor's cache


class RowRead(NamedTuple):
    """How long reading a row took: source and shard by number."""

    source: int
    shard: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """This rank's share of each batch: rank `rank` of `num_ranks` that are data parallel."""

    rank: int = 0
    num_ranks: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.num_ranks, f"rank {self.rank} of {self.num_ranks}"

    def bounds(self, num_rows: int) -> tuple[int, int]:
        """The first of the sorted rows that this rank takes, and the end."""
        return self.rank * num_rows // self.num_ranks, (self.rank + 1) * num_rows // self.num_ranks

    def max_rows(self, num_rows: int) -> int:
        """Rows of the largest slice: every rank's arrays have as many, so that collectives match."""
        return -(-num_rows // self.num_ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A slice of batch `step`. B is the largest slice's rows; those from `num_rows` on are end-of-text
    throughout and none of their labels counts.

    `sequence_R`, `places`: number and place of the R real rows. `inputs_BT`, `labels_BT`: int64; a label is
    the next token, or IGNORED where the input is end-of-text or the sequence's last token."""

    step: int
    num_rows: int
    sequence_R: Int64s
    places: Places
    inputs_BT: Int64s
    labels_BT: Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowestShard:
    """A shard, and how many of the last `of_seconds` of reading went to it."""

    source: str
    number: int
    file: ShardFile
    seconds: float
    of_seconds: float


class Dataset:
    """Batches of `order` from `corpus` for one slice. `skip`: [first, last] sequence numbers that are left
    out."""

    def __init__(
        self,
        corpus: Corpus,
        order: Order,
        reader: BlockReader,
        part: Slice,
        skip: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self.corpus, self.order, self.part = corpus, order, part
        self._reader, self._skip = reader, skip
        self.num_tokens_read = 0
        self.reads: deque[RowRead] = deque(maxlen=_RECENT_READS)
        self._located: tuple[int, Places] | None = None
        self._shards = [corpus.sources.get(source, ()) for source in order.plan.sources]

    def skipped(self, step: int) -> bool:
        """Whether batch `step` holds a sequence that `skip` names: it is then left out whole."""
        first, end = self._bounds(step)
        return any(low < end and high >= first for low, high in self._skip)

    def places(self, step: int) -> tuple[Int64s, Places]:
        """The sequence numbers that this slice of batch `step` holds, sorted by place, and their places."""
        size = self.order.plan.global_batch
        steps_at_once = max(1, _LOCATED_AT_ONCE // size)
        number = step // steps_at_once
        located = self._located
        if located is None or located[0] != number:
            first = number * steps_at_once * size
            located = (
                number,
                self.order.locate(np.arange(first, first + steps_at_once * size, dtype=np.int64)),
            )
            self._located = located
        rows = slice(step % steps_at_once * size, (step % steps_at_once + 1) * size)
        first, end = self._bounds(step)
        places = Places(*(column[rows] for column in located[1]))
        return rows_of_slice(np.arange(first, end, dtype=np.int64), places, self.part)

    def batch(self, step: int) -> Batch:
        """This slice of batch `step`. FileNotFoundError where a shard is gone: `reopen` the corpus."""
        self._reader.at(step)
        sequence, places = self.places(step)
        return self._read(step, sequence, places, self.part.max_rows(self.order.plan.global_batch))

    def sequences(self, numbers: Int64s) -> Batch:
        """Any sequences of the order by number, in the order given; step is -1."""
        return self._read(-1, numbers, self.order.locate(numbers), len(numbers))

    def validation(self, source: int, first: int, most: int | None = None) -> Batch:
        """This slice of the up to G held-out sequences of a source (by number) from `first` on, of `most`
        evenly spaced ones (None: of all); step is -1."""
        held = int(self.order.num_validation[source])
        num = num_validated(held, most)
        numbers = (
            np.arange(first, min(first + self.order.plan.global_batch, num), dtype=np.int64) * held // num
        )
        low, high = self.part.bounds(len(numbers))
        places = self.order.validation(self.order.plan.sources[source], numbers[low:high])
        return self._read(-1, numbers[low:high], places, self.part.max_rows(len(numbers)))

    def reading(self, corpus: Corpus, reader: BlockReader) -> Dataset:
        """The same batches from `corpus` as it is now."""
        return Dataset(corpus, self.order, reader, self.part, self._skip)

    @property
    def figures(self) -> ReadFigures:
        """What its reader has done."""
        return self._reader.figures

    def slowest_shard(self) -> SlowestShard | None:
        """The shard whose rows took longest of those that were read last; None where none were."""
        reads = list(self.reads)
        seconds: dict[tuple[int, int], float] = {}
        for source, shard, took in reads:
            seconds[source, shard] = seconds.get((source, shard), 0.0) + took
        if not seconds:
            return None
        (source, shard), most = max(seconds.items(), key=lambda item: (item[1], item[0]))
        return SlowestShard(
            source=self.order.plan.sources[source],
            number=shard,
            file=self._shards[source][shard],
            seconds=most,
            of_seconds=sum(seconds.values()),
        )

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()

    def _bounds(self, step: int) -> tuple[int, int]:
        size = self.order.plan.global_batch
        return step * size, (step + 1) * size

    def _read(self, step: int, sequence: Int64s, places: Places, max_rows: int) -> Batch:
        seq_len, eot = self.order.plan.seq_len, self.corpus.tokenizer.eot_id
        inputs = np.empty((max_rows, seq_len), np.int64)
        labels = np.empty_like(inputs)
        inputs[len(sequence) :], labels[len(sequence) :] = eot, IGNORED
        self.num_tokens_read += int(places.num_tokens.sum())
        rows = list(zip(*(column.tolist() for column in places), strict=True))
        at_once = max(1, _TOKENS_AT_ONCE // seq_len)
        for low in range(0, len(rows), at_once):
            part = rows[low : low + at_once]
            into = slice(low, low + len(part))
            self._copy(part, inputs[into], eot)
            _label(inputs[into], labels[into], [place[4] for place in part], eot)
        return Batch(
            step=step,
            num_rows=len(sequence),
            sequence_R=sequence,
            places=places,
            inputs_BT=inputs,
            labels_BT=labels,
        )

    def _copy(self, rows: list[tuple[int, ...]], inputs_BT: Int64s, eot: int) -> None:
        for row, (source, _, shard, start, num_tokens) in enumerate(rows):
            number, within = divmod(start, BLOCK_TOKENS)
            began = time.perf_counter()
            block = self._reader.block(self._shards[source][shard], number)
            inputs_BT[row, :num_tokens] = block[
                within : within + num_tokens
            ]  # of a mapped file, this is the reading
            self.reads.append(RowRead(source, shard, time.perf_counter() - began))
            if num_tokens < inputs_BT.shape[1]:
                inputs_BT[row, num_tokens:] = eot


def _label(inputs_BT: Int64s, labels_BT: Int64s, num_tokens: list[int], eot: int) -> None:
    labels_BT[:, :-1] = inputs_BT[:, 1:]
    labels_BT[inputs_BT == eot] = IGNORED
    for row, num in enumerate(num_tokens):
        labels_BT[row, num - 1 :] = IGNORED


def rows_of_slice(sequence: Int64s, places: Places, part: Slice) -> tuple[Int64s, Places]:
    """Of a batch's rows (numbers and places) those that fall to `part`, sorted by place.

    All ranks sort alike, by (source, shard, start), and take neighbouring runs. Within a window the same
    blocks come back in every batch, so each run keeps to its share of them."""
    low, high = part.bounds(len(sequence))
    taken = np.lexsort((places.start, places.shard, places.source))[low:high]
    return sequence[taken], Places(*(column[taken] for column in places))


def document_layout(inputs_BT: Int64s, eot: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """(positions, documents), int32 of shape (B, T): positions restart after each end-of-text, and documents
    counts those before, so that attention stays within equal numbers."""
    num_rows, seq_len = inputs_BT.shape
    begins = np.zeros((num_rows, seq_len), np.bool_)
    begins[:, 1:] = inputs_BT[:, :-1] == eot
    documents = np.cumsum(begins, axis=1, dtype=np.int32)
    at = np.arange(seq_len, dtype=np.int32)
    first = np.maximum.accumulate(np.where(begins, at, 0), axis=1)
    return at - first, documents
