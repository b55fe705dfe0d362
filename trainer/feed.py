"""Batches on the device, one ahead: a thread reads and lays out the next ones while the step works on this one.

On a GPU the thread copies through pinned memory on a stream of its own, so the step waits for an event and not for a
copy. What is recorded is what the step was given.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from trainer.batches import BatchRecorder, Recorded, recorded
from trainer.blocks import BlockReader
from trainer.corpus import Corpus, reopen
from trainer.dataset import Batch, Dataset, document_layout

_AHEAD: Final = 2  # batches in the making: one that the step needs next, one more against jitter
_LARGEST_MICRO_BATCH: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRows:
    """Rows of one forward pass, on the device. Rows that only fill up carry IGNORED labels throughout.

    inputs, labels int64; positions, documents int32; sources int64, the number of each row's source."""

    inputs_BT: Tensor
    labels_BT: Tensor
    positions_BT: Tensor
    documents_BT: Tensor
    sources_B: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    rows: DeviceRows
    copied: torch.cuda.Event | None
    recorded: Recorded | None


class Feed:
    """The micro-batches of each step for this rank. `micro_batch`: rows of one forward pass (none: the slice, at most
    8); every rank has as many of the same sizes. `wait_seconds`: how long the last step waited for its data."""

    def __init__(
        self, dataset: Dataset, device: torch.device, micro_batch: int | None, recorder: BatchRecorder | None = None
    ) -> None:
        max_rows = dataset.part.max_rows(dataset.order.plan.global_batch)
        self._dataset, self._device, self._recorder = dataset, device, recorder
        self._micro_batch = micro_batch or min(max_rows, _LARGEST_MICRO_BATCH)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._worker = ThreadPoolExecutor(1, "feed")
        self._made: dict[int, Future[_Ready]] = {}
        self.wait_seconds = 0.0

    @property
    def num_sources(self) -> int:
        """Sources of the plan, by name."""
        return len(self._dataset.order.plan.sources)

    @property
    def corpus(self) -> Corpus:
        """What is read now."""
        return self._dataset.corpus

    def micro_batches(self, step: int) -> Sequence[DeviceRows]:
        """This rank's rows of batch `step`, in as many micro-batches on every rank. FileNotFoundError where a shard is
        gone, as after a purge: then every rank calls `reread` and asks again."""
        began = time.perf_counter()
        for ahead in range(step, step + _AHEAD):
            if ahead not in self._made:
                self._made[ahead] = self._worker.submit(self._make, ahead)
        self._made = {made: future for made, future in self._made.items() if step <= made < step + _AHEAD}
        ready = self._made.pop(step).result()
        self.wait_seconds = time.perf_counter() - began
        if ready.copied is not None:
            torch.cuda.current_stream(self._device).wait_event(ready.copied)
            for tensor in (ready.rows.inputs_BT, ready.rows.labels_BT, ready.rows.positions_BT,
                           ready.rows.documents_BT, ready.rows.sources_B):  # fmt: skip
                tensor.record_stream(torch.cuda.current_stream(self._device))
        self._record(ready.recorded)
        return self._cut(ready.rows)

    def leave_out(self, step: int) -> None:
        """Batch `step` is skipped unseen (`train.skip`): only the record of batches takes note of it."""
        if self._recorder is not None:
            self._record(recorded(self._dataset.batch(step), self._dataset.order))

    def validation(self) -> Iterator[Sequence[DeviceRows]]:
        """The held-out sequences, source by source, in as many micro-batches on every rank."""
        for source in range(self.num_sources):
            held = int(self._dataset.order.num_validation[source])
            for first in range(0, held, self._dataset.order.plan.global_batch):
                yield self._cut(self._to_device(self._dataset.validation(source, first)))

    def reread(self, reader: BlockReader, corpus: Corpus | None = None) -> bool:
        """Read the indexes again (or take `corpus`) and go on with `reader`; says whether the content is another.
        Batches made ahead are dropped, so the next one asked for is read anew. ValueError if the order changed."""
        now = reopen(self.corpus) if corpus is None else corpus
        changed = now.outputs != self.corpus.outputs
        for future in self._made.values():
            future.cancel()
        self._made.clear()
        self._dataset = self._dataset.reading(now, reader)
        return changed

    def flush(self) -> None:
        """Make the record of every batch given out so far durable; before a checkpoint commits, on every rank."""
        if self._recorder is not None:
            self._recorder.flush()

    def close(self) -> None:
        """Stop the thread and write what is left of the record."""
        self._worker.shutdown(wait=True, cancel_futures=True)
        self.flush()

    def _record(self, rows: Recorded | None) -> None:
        if self._recorder is not None and rows is not None:
            self._recorder.add(rows)

    def _make(self, step: int) -> _Ready:
        batch = self._dataset.batch(step)
        rows = recorded(batch, self._dataset.order) if self._recorder is not None else None
        if self._stream is None:
            return _Ready(rows=self._to_device(batch), copied=None, recorded=rows)
        with torch.cuda.stream(self._stream):
            on_device = self._to_device(batch)
            copied = torch.cuda.Event()
            copied.record(self._stream)
        return _Ready(rows=on_device, copied=copied, recorded=rows)

    def _to_device(self, batch: Batch) -> DeviceRows:
        positions, documents = document_layout(batch.inputs_BT, self._dataset.corpus.tokenizer.eot_id)
        sources = np.zeros(len(batch.inputs_BT), np.int64)
        sources[: batch.num_rows] = batch.places.source
        tensors = [
            torch.from_numpy(array) for array in (batch.inputs_BT, batch.labels_BT, positions, documents, sources)
        ]
        if self._device.type != "cpu":
            tensors = [tensor.pin_memory().to(self._device, non_blocking=True) for tensor in tensors]
        inputs, labels, positions_BT, documents_BT, sources_B = tensors
        return DeviceRows(
            inputs_BT=inputs, labels_BT=labels, positions_BT=positions_BT, documents_BT=documents_BT,
            sources_B=sources_B,
        )  # fmt: skip

    def _cut(self, rows: DeviceRows) -> list[DeviceRows]:
        size = self._micro_batch
        return [
            DeviceRows(
                inputs_BT=rows.inputs_BT[low : low + size], labels_BT=rows.labels_BT[low : low + size],
                positions_BT=rows.positions_BT[low : low + size], documents_BT=rows.documents_BT[low : low + size],
                sources_B=rows.sources_B[low : low + size],
            )
            for low in range(0, len(rows.inputs_BT), size)
        ]  # fmt: skip
