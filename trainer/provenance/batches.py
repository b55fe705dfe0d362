"""The record of batches: what was really fed, a row for each training sequence, to hold traced exposures
against.

A rank writes the rows it was given into `<output>/batches/batches-<attempt>-<rank>-<first>-<end>.parquet`,
renamed into place when a checkpoint is due. Peers that get the same rows (tensor, pipeline, context) must not
record too."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lineage.ids import tokens_hash
from lineage.storage.folder import Folder
from trainer.attempts import FencedOutError, check_fence
from trainer.data.dataset import Batch
from trainer.order import Order

BATCHES: Final = pa.schema([
    ("run", pa.string()), ("attempt", pa.int64()), ("step", pa.int64()), ("row", pa.int64()), ("epoch", pa.int64()),
    ("sequence", pa.int64()), ("source", pa.string()), ("shard", pa.int64()), ("start", pa.int64()),
    ("num_tokens", pa.int64()), ("tokens_hash", pa.string()),
])  # fmt: skip
"""`num_tokens` are real tokens, padding not counted; `tokens_hash` is their BLAKE3-128 (hex) as uint32
little-endian, of the batch that the model was given."""

LOSSES: Final = (pa.field("loss", pa.float64()), pa.field("num_labels", pa.int64()))
"""Behind them with `train.record_losses`: the sum of the row's losses in nats, and how many labels were
counted; null where the batch was skipped unseen."""

_FLUSH_ROWS: Final = 1 << 16
_NAME: Final = re.compile(r"batches-(?P<attempt>\d+)-(?P<rank>\d+)-(?P<first>\d+)-(?P<end>\d+)\.parquet$")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """The rows of one step, as columns of BATCHES without run and attempt."""

    step: int
    rows: Sequence[int]
    columns: dict[str, Sequence[object]]


def recorded(batch: Batch, order: Order) -> RecordedStep:
    """What `batch` feeds; padding rows are no sequences and leave no row."""
    places, num = batch.places, batch.num_rows
    inputs = batch.inputs_BT.astype(np.uint32)
    lengths = places.num_tokens.tolist()
    rows: list[int] = (batch.sequence_R - batch.step * order.plan.global_batch).tolist()
    columns: dict[str, Sequence[object]] = {
        "step": [batch.step] * num,
        "row": rows,
        "epoch": places.epoch.tolist(),
        "sequence": batch.sequence_R.tolist(),
        "source": [order.plan.sources[source] for source in places.source.tolist()],
        "shard": places.shard.tolist(),
        "start": places.start.tolist(),
        "num_tokens": lengths,
        "tokens_hash": [tokens_hash(inputs[row, :length]).hex() for row, length in enumerate(lengths)],
    }
    return RecordedStep(step=batch.step, rows=rows, columns=columns)


class BatchRecorder:
    """Writes the rows of one rank, with their losses where asked. Rows of steps before a flush are durable
    after it. `check_place`: called before anything is written; raises where another process has this one's
    rank."""

    def __init__(
        self,
        output: Folder,
        run: str,
        attempt: int,
        rank: int,
        *,
        with_losses: bool = False,
        check_place: Callable[[], None] = lambda: None,
    ) -> None:
        self._output, self._run, self._attempt, self._rank = output, run, attempt, rank
        self._folder, self._check_place = output.folder("batches"), check_place
        self._schema = pa.schema([*BATCHES, *(LOSSES if with_losses else ())])
        self._losses: dict[int, np.ndarray] = {}
        self._rows: list[RecordedStep] = []
        self._num_rows = 0

    def add(self, rows: RecordedStep) -> None:
        """Take one step's rows; a buffer that was full before is written."""
        if self._num_rows >= _FLUSH_ROWS and (
            len(self._schema) == len(BATCHES) or self._rows[-1].step in self._losses
        ):
            self.flush()
        self._rows.append(rows)
        self._num_rows += len(rows.rows)

    def note_losses(self, step: int, losses_2G: np.ndarray) -> None:
        """Take of a step the sums of losses and the numbers of counted labels, by row of the global batch,
        before its rows are flushed."""
        self._losses[step] = losses_2G

    def go_on(self, attempt: int, step: int) -> None:
        """Write what was taken of the steps before `step`; those from there on are done again, as attempt
        `attempt`."""
        self._rows = [rows for rows in self._rows if rows.step < step]
        self.flush()
        self._attempt = attempt

    def flush(self) -> None:
        """Write what was taken since the last flush."""
        self.write(self._attempt, self._rows, self._losses)
        self._rows.clear()
        self._losses.clear()
        self._num_rows = 0

    def close(self) -> None:
        """Write what is left, unless a later attempt has begun: who took the place of a process that was given
        up, as one whose machine was cut off, has written down what it was fed."""
        with suppress(FencedOutError):
            check_fence(self._output, self._attempt)
            self.flush()

    def write(self, attempt: int, every: Sequence[RecordedStep], losses: Mapping[int, np.ndarray]) -> None:
        """Write these rows, which rise by step, as those of an attempt; `losses`: by step, as of
        `note_losses`."""
        if not every:
            return
        self._check_place()
        table = pa.concat_tables([self._table(attempt, rows, losses.get(rows.step)) for rows in every])
        first, end = every[0].step, every[-1].step + 1
        with self._folder.writing(
            f"batches-{attempt:05d}-{self._rank:05d}-{first:09d}-{end:09d}.parquet"
        ) as f:
            pq.write_table(table, f, compression="zstd")

    def _table(self, attempt: int, rows: RecordedStep, losses_2G: np.ndarray | None) -> pa.Table:
        num = len(rows.rows)
        columns = {"run": [self._run] * num, "attempt": [attempt] * num, **rows.columns}
        if len(self._schema) > len(BATCHES):
            columns["loss"] = [None] * num if losses_2G is None else losses_2G[0, rows.rows]
            columns["num_labels"] = (
                [None] * num if losses_2G is None else losses_2G[1, rows.rows].astype(np.int64)
            )
        return pa.table(columns, schema=self._schema)


def unrecorded_steps(output: Folder, rank: int, line: Sequence[tuple[int, range]]) -> list[tuple[int, range]]:
    """Of the steps that attempts have done (`line`: attempt, steps) those of which no file of this rank
    tells."""
    named = [_NAME.search(name) for name in output.names("batches")]
    mine = [parts for parts in named if parts is not None and int(parts["rank"]) == rank]
    missing = []
    for attempt, steps in line:
        told = sorted((int(p["first"]), int(p["end"])) for p in mine if int(p["attempt"]) == attempt)
        at = steps.start
        for first, end in [*told, (steps.stop, steps.stop)]:
            if at < min(first, steps.stop):
                missing.append((attempt, range(at, min(first, steps.stop))))
            at = max(at, end)
    return missing


def read_row_losses(
    output: Folder, wanted: Collection[tuple[int, int, int]], most_files: int
) -> dict[tuple[int, int, int], float]:
    """The mean loss (nats a counted label) of these rows, by (attempt, step, row), where the run recorded
    losses; of as many of its files as may be opened."""
    named = {name: _NAME.search(name) for name in output.names("batches")}
    steps = {(attempt, step) for attempt, step, _ in wanted}
    found: dict[tuple[int, int, int], float] = {}
    opened = 0
    for name, parts in sorted(named.items()):
        if parts is None or opened == most_files:
            continue
        attempt, first, end = (int(parts[group]) for group in ("attempt", "first", "end"))
        if not any(attempt == each and first <= step < end for each, step in steps):
            continue
        opened += 1
        with output.open(name) as file:
            table = pq.ParquetFile(file)
            if "loss" not in table.schema_arrow.names:
                continue
            rows = table.read(columns=["step", "row", "loss", "num_labels"])
        rows = rows.filter(
            pc.is_in(rows["step"], pa.array([step for each, step in steps if each == attempt]))
        )
        for row in rows.to_pylist():
            place = attempt, row["step"], row["row"]
            if place in wanted and row["loss"] is not None and row["num_labels"]:
                found[place] = row["loss"] / row["num_labels"]
    return found
