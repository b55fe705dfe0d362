"""Batches on the device, made ahead: a thread reads and lays out the next ones while the step works on this
one.

On a GPU the thread copies through pinned memory on a stream of its own, so the step waits for an event and
not for a copy. What is recorded is what the step was given."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from lineage.storage.folder import Folder, join, local_path
from trainer.attempts import Attempt, steps_on_line
from trainer.data.blocks import BlockReader
from trainer.data.corpus import Corpus, CorpusOutput, reopen
from trainer.data.dataset import IGNORED, Batch, Dataset, document_layout
from trainer.data.disks import disk_of
from trainer.data.figures import NUM_COUNTED
from trainer.model.rows import DeviceRows
from trainer.order import ORDER_VERSION
from trainer.ordering.geometry import num_validated
from trainer.processes.heard import from_rank
from trainer.provenance.account import Account
from trainer.provenance.batches import BatchRecorder, RecordedStep, recorded, unrecorded_steps
from trainer.provenance.facts import Fact, sweep_fact
from trainer.provenance.reached import AttemptProgress

T = TypeVar("T")

_log = logging.getLogger(__name__)
_LARGEST_MICRO_BATCH: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSource:
    """Where a feed reads: a dataset, and how to read it again when the content of its corpus has changed."""

    dataset: Dataset
    open_reader: Callable[[Corpus], BlockReader]
    cache_folder: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedOptions:
    """How a feed works. `micro_batch`: rows of a forward pass (None: the slice, at most 8); `fill_up`: how
    many there must be of them, all of as many rows, if a step needs so many (None: no matter).
    `prefetch_batches`: batches in the making, the step's own one included. One process of the run keeps its
    account; of processes that get equal rows one records. `group`: gloo, over all processes of the run.
    `most_validated`: held-out sequences of a source that an evaluation reads (None: all). `check_place`: raises
    where another process has this one's rank; called before something is recorded."""

    run: str
    output: Folder
    device: torch.device
    micro_batch: int | None = None
    fill_up: Callable[[int], int] | None = None
    prefetch_batches: int = 2
    keeps_account: bool = False
    records: bool = False
    records_losses: bool = False
    group: dist.ProcessGroup | None = None
    most_validated: int | None = None
    check_place: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedPosition:
    """Where a run stands that goes on in place: `step` steps are done, `skipped` of them without effect, and
    the first `saved` are in a complete checkpoint. `losses`: of steps since, as of `Feed.note_losses`, where
    they are recorded."""

    step: int
    saved: int
    skipped: tuple[int, ...]
    losses: Mapping[int, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadyRows:
    rows: DeviceRows
    copied: torch.cuda.Event | None
    recorded: RecordedStep | None


class Feed:
    """The micro-batches of each step for this rank; every rank has as many, of the same sizes."""

    def __init__(self, source: FeedSource, options: FeedOptions) -> None:
        self._source, self._options, self._dataset = source, options, source.dataset
        self._order = source.dataset.order
        max_rows = source.dataset.part.max_rows(self._order.plan.global_batch)
        self._micro_batch = min(max_rows, options.micro_batch or _LARGEST_MICRO_BATCH)
        on_gpu = options.device.type == "cuda"
        self._stream = torch.cuda.Stream(options.device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._worker = ThreadPoolExecutor(1, "feed")
        self._made: dict[int, Future[_ReadyRows]] = {}
        self._agreed = source.dataset.corpus  # what every rank reads at least as new as
        self._account: Account | None = None
        self._recorder: BatchRecorder | None = None
        self._counted_before = [0.0] * NUM_COUNTED
        self._unrecorded: Sequence[tuple[int, range]] = ()
        self._unrecorded_losses: Mapping[int, np.ndarray] = {}

    @property
    def sources(self) -> tuple[str, ...]:
        """Names, in the order that `sources_B` counts."""
        return self._order.plan.sources

    @property
    def num_sources(self) -> int:
        """How many sources there are."""
        return len(self.sources)

    @property
    def global_batch(self) -> int:
        """Sequences of a step over all ranks."""
        return self._order.plan.global_batch

    @property
    def num_rows(self) -> int:
        """Rows of a step's first forward pass, on every rank."""
        return self._micro_batch

    @property
    def vocab_size(self) -> int:
        """Ids that may occur, end-of-text included."""
        return self._dataset.corpus.tokenizer.vocab_size

    @property
    def outputs(self) -> tuple[CorpusOutput, ...]:
        """The outputs that are read, with their content as it is now."""
        return self._dataset.corpus.outputs

    @property
    def order_version(self) -> int:
        """The version of the order's algorithm."""
        return ORDER_VERSION

    @property
    def dataset(self) -> Dataset:
        """What is read now."""
        return self._dataset

    def fingerprint(self, step: int) -> str:
        """The plan's fingerprint up to step `step`."""
        return self._order.plan.fingerprint(step * self._order.plan.global_batch)

    def start(self, attempt: Attempt) -> None:
        """The attempt begins: record it. Every rank calls this once. StoreError if the run's name is
        taken."""
        options, corpus = self._options, self._dataset.corpus
        if options.records:
            self._recorder = self._new_recorder(attempt)
        if options.keeps_account:
            self._account = Account(options.output, options.run, self._order.plan, attempt, corpus)
            folder = self._source.cache_folder
            self._account.start(
                [sweep_fact(options.run, out, folder) for out in corpus.outputs] if folder else ()
            )

    def go_on(
        self, attempt: Attempt, fed: FeedPosition, corpus: Corpus, group: dist.ProcessGroup | None
    ) -> None:
        """Another attempt of the run begins while this process goes on, or takes the place of a lost one: at
        step `fed.step`, on this content. Every rank calls this once."""
        self._options = dataclasses.replace(self._options, group=group)
        self._agreed = corpus
        if corpus.outputs != self._dataset.corpus.outputs:
            self.take(corpus)
        options, rank = self._options, self._dataset.part.rank
        if self._recorder is not None:
            for step, losses_2G in fed.losses.items():  # this rank may not have come to the last one
                self._recorder.note_losses(step, losses_2G)
            self._recorder.go_on(attempt.number, fed.step)
        elif options.records:
            self._recorder = self._new_recorder(attempt)
            self._unrecorded = unrecorded_steps(
                options.output, rank, steps_on_line(options.output, attempt, fed.saved)
            )
            self._unrecorded_losses = fed.losses
        if options.keeps_account:
            assert attempt.parent is not None
            if self._account is not None:
                self._account.give_up()
            self._account = Account(options.output, options.run, self._order.plan, attempt, corpus)
            self._account.take_over(
                {attempt.parent: AttemptProgress(last_step=fed.step - 1, skipped=fed.skipped)}
            )

    @property
    def agreed(self) -> Corpus:
        """The content that all ranks have agreed on."""
        return self._agreed

    def is_listed(self, step: int) -> bool:
        """Whether the recipe's `skip` leaves this batch out."""
        return self._dataset.skipped(step)

    def pass_over(self, step: int) -> None:
        """Batch `step` is skipped unseen; only the record of batches takes note of it."""
        if self._recorder is not None:
            batch = self._across_a_purge(lambda: self._dataset.batch(step))
            self._recorder.add(recorded(batch, self._order))

    def note_losses(self, step: int, losses_2G: np.ndarray) -> None:
        """Put the losses of a step, by row of the global batch, into the record of batches."""
        if self._recorder is not None:
            self._recorder.note_losses(step, losses_2G)

    def micro_batches(self, step: int) -> Sequence[DeviceRows]:
        """This rank's rows of batch `step`. A shard that is gone, as after a purge, makes the feed read the
        indexes again and go on with the content as it is now; FileNotFoundError if they still name it.

        Other ranks may still read what they hold of the old content, so the account changes at the next
        `commit` only: until then lineage lists too many exposures rather than too few."""
        ready = self._across_a_purge(partial(self._take, step))
        if ready.copied is not None:
            stream = torch.cuda.current_stream(self._options.device)
            stream.wait_event(ready.copied)
            ready.rows.map(lambda tensor: _used_on(tensor, stream))
        if self._recorder is not None and ready.recorded is not None:
            self._recorder.add(ready.recorded)
        return self._cut(ready.rows)

    def validation(self) -> Iterator[Sequence[DeviceRows]]:
        """The held-out sequences, source by source, in as many micro-batches on every rank. A shard that is
        gone is met as in `micro_batches`."""
        for source in range(self.num_sources):
            num = num_validated(int(self._order.num_validation[source]), self._options.most_validated)
            for first in range(0, num, self._order.plan.global_batch):
                batch = self._across_a_purge(partial(self._held_out, source, first))
                yield self._cut(self._to_device(batch))

    def commit(self, step: int, skipped_steps: Sequence[int]) -> None:
        """Make durable what is recorded of the steps below `step`; every rank calls this before each
        checkpoint.

        Here all ranks also take in a purge at once: later batches are read from the content as it is now."""
        if self._recorder is not None:
            self._record_for_the_lost()
            self._recorder.flush()
        if self._account is not None:
            self._account.commit(step, skipped_steps)
        # Compared with what all ranks agreed on last, not with what this rank reads: a rank that met a
        # deleted shard is ahead of the others, and the account must note the change once, at the step from
        # which all have it.
        changed = self._changed_corpus()
        if changed is not None:
            self._agreed = changed
            if changed.outputs != self._dataset.corpus.outputs:
                self.take(changed)
            if self._account is not None:
                self._account.content_changed(step, changed)

    def facts_at(self, step: int, skipped_steps: Sequence[int]) -> list[Fact]:
        """The facts on the run with the steps below `step` done; of the rank that keeps the account."""
        assert self._account is not None, "only that rank is asked"
        return self._account.facts_at(step, skipped_steps)

    def counted(self) -> list[float]:
        """What loading has cost this rank up to now, as numbers that add up over ranks (see
        `load_figures`)."""
        now = self._dataset.figures.counted(self._dataset.num_tokens_read)
        return [before + number for before, number in zip(self._counted_before, now, strict=True)]

    def slowest_reading(self) -> str:
        """Of this rank's latest reading the shard that took longest, and the disk that it, or the cache, lies
        on."""
        slowest = self._dataset.slowest_shard()
        if slowest is None:
            return "it has read nothing"
        cache = self._source.cache_folder
        url = join(slowest.file.folder, slowest.file.file)
        where = (
            f"on {disk_of(local_path(url))}" if cache is None else f"through the cache on {disk_of(cache)}"
        )
        return (
            f"its reading goes to shard {slowest.number} of {slowest.source}: {slowest.seconds:.2f} s of the"
            f" last {slowest.of_seconds:.2f} s, {url}, {where}"
        )

    def give_up(self) -> None:
        """Another process has this one's rank, and writes down what this one was fed: it records nothing any
        more."""
        self._recorder = None
        if self._account is not None:
            self._account.give_up()
        self._account = None

    def close(self) -> None:
        """Stop the thread, write what is left of the record and close the reader."""
        self._worker.shutdown(wait=True, cancel_futures=True)
        if self._recorder is not None:
            self._recorder.close()
        self._dataset.close()
        if self._account is not None:
            self._account.close()

    def _new_recorder(self, attempt: Attempt) -> BatchRecorder:
        options = self._options
        return BatchRecorder(
            options.output,
            options.run,
            attempt.number,
            self._dataset.part.rank,
            with_losses=options.records_losses,
            check_place=options.check_place,
        )

    def _record_for_the_lost(self) -> None:
        """Write down what the process whose place this one took was fed and had not written: its batches are
        a function of the order, and are read once more. Their losses the others had."""
        assert self._recorder is not None
        for attempt, steps in self._unrecorded:
            rows = [
                recorded(self._across_a_purge(partial(self._dataset.batch, step)), self._order)
                for step in steps
            ]
            self._recorder.write(attempt, rows, self._unrecorded_losses)
        self._unrecorded, self._unrecorded_losses = (), {}

    def _changed_corpus(self) -> Corpus | None:
        """The corpus as rank 0 finds it, None where its content is what all ranks read. Collective."""
        # One rank reads the indexes for all: ranks that read them at different times might find different
        # contents.
        found: Corpus | None = None
        if self._options.keeps_account:
            try:
                now = reopen(self._agreed)
                found = now if now.outputs != self._agreed.outputs else None
            except OSError as error:
                _log.warning("the index cannot be read now; the next checkpoint looks again: %s", error)
        return found if self._options.group is None else from_rank(0, found, self._options.group)

    def take(self, corpus: Corpus) -> None:
        """Go on with this content; batches made ahead are made anew."""
        # The thread ends before anything is exchanged: a batch in the making reads through the old reader,
        # and one that is already made may hold tokens that the purge has taken out.
        for future in self._made.values():
            future.cancel()
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._worker = ThreadPoolExecutor(1, "feed")
        self._made.clear()
        # A new dataset counts from zero, and these figures are sums since the start.
        self._counted_before = self.counted()
        self._dataset.close()
        self._dataset = self._dataset.reading(corpus, self._source.open_reader(corpus))

    def _held_out(self, source: int, first: int) -> Batch:
        return self._dataset.validation(source, first, self._options.most_validated)

    def _across_a_purge(self, read: Callable[[], T]) -> T:
        """What `read` gives; where a shard is gone, what it gives of the content as the indexes name it
        now."""
        try:
            return read()
        except FileNotFoundError:
            # A purge publishes its new shards and their index before it deletes the old shards, so an index
            # read now names files that are there. The order is a function of the shards' lengths, which a
            # purge keeps: a step has the same places. Only this rank changes its content here; a collective
            # would hang, since no other rank knows of it.
            now = reopen(self._dataset.corpus)
            if now.outputs == self._dataset.corpus.outputs:
                raise
            self.take(now)
            return read()

    def _take(self, step: int) -> _ReadyRows:
        wanted = range(step, step + self._options.prefetch_batches)
        for ahead in wanted:
            if ahead not in self._made:
                self._made[ahead] = self._worker.submit(self._make, ahead)
        self._made = {made: future for made, future in self._made.items() if made in wanted}
        return self._made.pop(step).result()

    def _make(self, step: int) -> _ReadyRows:
        batch = self._dataset.batch(step)
        rows = recorded(batch, self._order) if self._recorder is not None else None
        if self._stream is None:
            return _ReadyRows(rows=self._to_device(batch), copied=None, recorded=rows)
        with torch.cuda.stream(self._stream):
            on_device = self._to_device(batch)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        return _ReadyRows(rows=on_device, copied=copied, recorded=rows)

    def _to_device(self, batch: Batch) -> DeviceRows:
        eot = self._dataset.corpus.tokenizer.eot_id
        positions, documents = document_layout(batch.inputs_BT, eot)
        sources = np.zeros(len(batch.inputs_BT), np.int64)
        sources[: batch.num_rows] = batch.places.source
        size = self._order.plan.global_batch
        numbers = np.full(len(batch.inputs_BT), size, np.int64)
        if batch.step >= 0:
            numbers[: batch.num_rows] = batch.sequence_R - batch.step * size
        rows = DeviceRows(
            inputs_BT=torch.from_numpy(self._filled(batch.inputs_BT, eot)),
            labels_BT=torch.from_numpy(self._filled(batch.labels_BT, IGNORED)),
            positions_BT=torch.from_numpy(self._filled(positions, 0)),
            documents_BT=torch.from_numpy(self._filled(documents, 0)),
            sources_B=torch.from_numpy(self._filled(sources, 0)),
            rows_B=torch.from_numpy(self._filled(numbers, size)),
        )
        if self._options.device.type == "cpu":
            return rows
        return rows.map(lambda tensor: tensor.pin_memory().to(self._options.device, non_blocking=True))

    def _filled(self, rows: np.ndarray, value: int) -> np.ndarray:
        """`rows`, and as many of `value` as make the number and size of micro-batches what they must be."""
        if self._options.fill_up is None:
            return rows
        wanted = self._options.fill_up(-(-len(rows) // self._micro_batch)) * self._micro_batch
        return np.pad(rows, [(0, wanted - len(rows)), *[(0, 0)] * (rows.ndim - 1)], constant_values=value)

    def _cut(self, rows: DeviceRows) -> list[DeviceRows]:
        size = self._micro_batch
        cuts = [slice(low, low + size) for low in range(0, len(rows.inputs_BT), size)]
        return [rows.map(lambda tensor, cut=cut: tensor[cut]) for cut in cuts]  # type: ignore[misc]


def _used_on(tensor: Tensor, stream: torch.cuda.Stream) -> Tensor:
    tensor.record_stream(stream)
    return tensor
