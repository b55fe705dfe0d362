"""Where reports of steps go: the terminal, metrics.jsonl, TensorBoard. Rank 0 holds them."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lineage.storage.folder import Folder, StorageError
from trainer.data.figures import LoadFigures
from trainer.order import Order
from trainer.telemetry.step_report import Sink, StepReport

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

METRICS: Final = "metrics.jsonl"
TERMINAL_EVERY: Final = 10


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """An error of the disk as one that names `path`: the system's error on an open file names none."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise StorageError(error.errno, os.strerror(error.errno), path) from error


class JsonLines:
    """`metrics.jsonl`: one flushed line a step. In an object store, which cannot append, it is put whole at each
    `flush` (a checkpoint) and at the end."""

    def __init__(self, output: Folder) -> None:
        self._output = output
        if output.is_remote:
            self._spool = tempfile.TemporaryDirectory(prefix="sluice-metrics-")
            self._path = Path(self._spool.name) / METRICS
            self._path.write_bytes(output.read(METRICS) if output.exists(METRICS) else b"")
        else:
            self._path = Path(output.at(METRICS))
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _end_last_line(self._path)
        self._file = self._path.open("a", encoding="utf-8")

    def write(self, report: StepReport) -> None:
        with _naming(str(self._path)):
            self._file.write(report.as_json() + "\n")
            self._file.flush()

    def flush(self) -> None:
        os.fsync(self._file.fileno())
        if self._output.is_remote:
            self._output.publish(METRICS, self._path.read_bytes())

    def close(self) -> None:
        self.flush()
        self._file.close()
        if self._output.is_remote:
            self._spool.cleanup()


def _end_last_line(path: Path) -> None:
    """An attempt that was killed while writing left half a line: drop it, so that every line is JSON."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        whole = file.read()
        if whole and not whole.endswith(b"\n"):
            file.truncate(whole.rfind(b"\n") + 1)


class Terminal:
    """A line on stderr every few steps, and for every skipped one."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def write(self, report: StepReport) -> None:
        last = report.step == self._steps - 1
        if report.skipped or report.validation_loss or report.step % TERMINAL_EVERY == 0 or last:
            sys.stderr.write(describe(report, self._steps) + "\n")

    def flush(self) -> None:
        sys.stderr.flush()

    def close(self) -> None:
        self.flush()


def describe(report: StepReport, steps: int) -> str:
    """A report on one line."""
    head = f"step {report.step}/{steps}"
    if report.skipped:
        return (
            f"{head}  skipped ({report.skipped}): sequences {report.first_sequence} to {report.last_sequence}; "
            f"`sluice trace … --step {report.step}` names their documents"
        )
    parts = [head, f"loss {report.loss:.4f}", f"norm {report.gradient_norm:.3f}", f"lr {report.lr:.2e}"]
    parts.append(f"{report.tokens_per_second:,.0f} tokens/s")
    if report.mfu is not None:
        parts.append(f"MFU {report.mfu:.1%}")
    parts.append(f"data wait {report.data_wait_share:.1%}")
    if report.slowest is not None:
        phase, times = report.slowest
        parts.append(f"slowest rank {times.slowest_rank} ({phase} {times.most:.2f} s, mean {times.mean:.2f})")
    if report.loading is not None and report.loading.bytes_fetched:
        parts.append(_describe_loading(report.loading))
    parts += [f"validation {name} {loss:.4f}" for name, loss in report.validation_loss.items()]
    return "  ".join(parts)


def _describe_loading(loading: LoadFigures) -> str:
    troubles = {
        "failed reads": loading.failed_reads, "damaged blocks": loading.damaged_blocks,
        "disk errors": loading.disk_errors, "blocks streamed": loading.streamed_blocks,
    }  # fmt: skip
    text = f"cache hits {loading.hit_share:.1%}, {loading.bytes_fetched / 1e6:,.0f} MB fetched"
    text += f" ({loading.read_amplification:.2f} of what was read)"
    return ", ".join([text, *(f"{count} {trouble}" for trouble, count in troubles.items() if count)])


class TensorBoard:
    """Event files under `<output>/tensorboard` (outputs on disk only)."""

    def __init__(self, output: Folder) -> None:
        self._folder = output.at("tensorboard")
        self._events: SummaryWriter | None = None

    def write(self, report: StepReport) -> None:
        # Its thread writes: what that met is raised by a later call.
        with _naming(self._folder):
            self._write(self._open(), report)

    def _write(self, events: SummaryWriter, report: StepReport) -> None:
        scalars: dict[str, Any] = {
            "loss/train": report.loss,
            "optimizer/gradient_norm": report.gradient_norm,
            "optimizer/lr": report.lr,
            "speed/tokens_per_second": report.tokens_per_second,
            "speed/mfu": report.mfu,
            "speed/data_wait_share": report.data_wait_share,
            "speed/data_wait_seconds": report.data_wait_seconds,
            "checkpoint/age_seconds": report.checkpoint_age_seconds,
            "faults/skipped": float(report.skipped is not None),
        }
        scalars |= {f"loss/source/{name}": value for name, value in report.loss_by_source.items()}
        scalars |= {f"loss/validation/{name}": value for name, value in report.validation_loss.items()}
        scalars |= {f"seconds/{name}": value for name, value in report.phases.items()}
        for name, times in report.ranks.items():
            scalars |= {f"ranks/{name}/slowest": times.most, f"ranks/{name}/mean": times.mean}
        if report.loading is not None:
            scalars |= {f"loading/{name}": value for name, value in dataclasses.asdict(report.loading).items()}
        for name, value in scalars.items():
            if value is not None:
                events.add_scalar(name, value, report.step)

    def _open(self) -> SummaryWriter:
        if self._events is None:
            from torch.utils.tensorboard import SummaryWriter  # a second of imports that a short run need not pay first

            self._events = SummaryWriter(self._folder)
        return self._events

    def flush(self) -> None:
        if self._events is not None:
            with _naming(self._folder):
                self._events.flush()

    def close(self) -> None:
        if self._events is not None:
            with _naming(self._folder):
                self._events.close()


def tell_epochs(order: Order, steps: int) -> None:
    """Say on stderr how often a run of `steps` steps will see each source."""
    for source, epochs in order.epochs(steps * order.plan.global_batch).items():
        sys.stderr.write(f"source {source}: {epochs:.2f} epochs in {steps} steps\n")


def standard_sinks(output: Folder, steps: int, more: Sequence[Sink] = ()) -> Sequence[Sink]:
    """The sinks of every run, and `more`."""
    sinks: list[Sink] = [JsonLines(output), Terminal(steps), *more]
    if not output.is_remote:
        sinks.append(TensorBoard(output))
    return sinks
