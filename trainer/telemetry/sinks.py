"""Where reports of steps go: the terminal, metrics.jsonl, TensorBoard. Rank 0 holds them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lineage.storage.errors import naming_path
from lineage.storage.folder import Folder
from trainer.data.figures import LoadFigures
from trainer.evaluation.result import described
from trainer.telemetry.metrics_file import JsonLines
from trainer.telemetry.scalars import scalars
from trainer.telemetry.step_report import Sink, StepReport
from trainer.telemetry.stragglers import Straggler

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

TERMINAL_EVERY: Final = 10


class Terminal:
    """A line on stderr every few steps, and for every skipped one."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def write(self, report: StepReport) -> None:
        for straggler in report.stragglers:
            sys.stderr.write(describe_straggler(straggler) + "\n")
        last = report.step == self._steps - 1
        for result in report.evaluations:
            sys.stderr.write(f"step {report.step}/{self._steps}  {described(result)}\n")
        if report.skipped or report.validation_loss or report.step % TERMINAL_EVERY == 0 or last:
            sys.stderr.write(describe(report, self._steps) + "\n")

    def flush(self) -> None:
        sys.stderr.flush()

    def close(self) -> None:
        self.flush()


def describe_straggler(straggler: Straggler) -> str:
    """A straggler on one line."""
    who = f"rank {straggler.rank} on {straggler.node}"
    if straggler.ended:
        return f"straggler no more: {who} keeps up with the others in {straggler.phase} again"
    detail = f"; {straggler.detail}" if straggler.detail else ""
    return (
        f"straggler: {who} takes {straggler.factor:.2f} times as long as others at the same work in"
        f" {straggler.phase} ({straggler.seconds:.3f} s a step beside {straggler.usual:.3f}) since step"
        f" {straggler.since_step}{detail}"
    )


def describe(report: StepReport, steps: int) -> str:
    """A report on one line."""
    head = f"step {report.step}/{steps}"
    validation = [f"validation {name} {loss:.4f}" for name, loss in report.validation_loss.items()]
    if report.skipped:
        skipped = (
            f"skipped ({report.skipped}): sequences {report.first_sequence} to {report.last_sequence}; "
            f"`sluice trace … --step {report.step}` names their documents"
        )
        return "  ".join([head, skipped, *validation])
    left = (steps - 1 - report.step) * report.seconds
    parts = [
        f"{head}, {_duration(left)} left" if left else head,
        f"loss {report.loss:.4f}",
        f"norm {report.gradient_norm:.3f}",
        f"lr {report.lr:.2e}",
    ]
    parts.append(f"{report.tokens_per_second:,.0f} tokens/s")
    if report.mfu is not None:
        parts.append(f"MFU {report.mfu:.1%}")
    parts.append(f"data wait {report.data_wait_share:.1%}")
    if report.pipeline_idle_share is not None:
        parts.append(f"pipeline idle {report.pipeline_idle_share:.1%}")
    if report.context_imbalance is not None:
        parts.append(f"attention's fullest rank {report.context_imbalance:.2f} of the mean")
    if (
        report.experts is not None
        and report.experts.fullest is not None
        and report.experts.dropped is not None
    ):
        parts.append(
            f"fullest expert {report.experts.fullest:.2f} of the mean, {report.experts.dropped:.1%} dropped"
        )
    if (wall := sum(report.goodput.values())) >= _SHORTEST_RUN:
        parts.append(f"goodput {report.goodput['steps'] / wall:.1%}")
    if report.slowest is not None:
        phase, times = report.slowest
        slowest = f"own {phase} {times.most:.2f} s, mean {times.mean:.2f}"
        parts.append(f"slowest rank {times.slowest_rank} ({slowest})")
    if report.loading is not None and report.loading.bytes_fetched:
        parts.append(_describe_loading(report.loading))
    return "  ".join([*parts, *validation])


_SHORTEST_RUN: Final = 60.0
"""Seconds: the goodput of a shorter one is that of its start."""


def _duration(seconds: float) -> str:
    """A stretch of time in the unit that people would use."""
    for size, unit, most in ((1, "s", 90), (60, "min", 90), (3600, "h", 48)):
        if seconds < size * most:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds / 86_400:,.1f} days"


def _describe_loading(loading: LoadFigures) -> str:
    troubles = {
        "failed reads": loading.failed_reads,
        "damaged blocks": loading.damaged_blocks,
        "disk errors": loading.disk_errors,
        "blocks streamed": loading.streamed_blocks,
    }
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
        with naming_path(self._folder):
            self._write(self._open(), report)

    def _write(self, events: SummaryWriter, report: StepReport) -> None:
        for name, value in scalars(report).items():
            events.add_scalar(name, value, report.step)

    def _open(self) -> SummaryWriter:
        if self._events is None:
            from torch.utils.tensorboard import (
                SummaryWriter,
            )  # a second of imports that a short run need not pay first

            self._threads_end = threading.excepthook
            threading.excepthook = self._at_end_of_thread
            try:
                self._events = SummaryWriter(self._folder)
            except BaseException:
                threading.excepthook = self._threads_end
                raise
        return self._events

    def _at_end_of_thread(self, ended: threading.ExceptHookArgs) -> None:
        """Print no traceback where TensorBoard's thread ends: what it met is raised by our next call."""
        if not type(ended.thread).__module__.startswith("tensorboard."):
            self._threads_end(ended)

    def flush(self) -> None:
        if self._events is not None:
            with naming_path(self._folder):
                self._events.flush()

    def close(self) -> None:
        if self._events is not None:
            try:
                with naming_path(self._folder):
                    self._events.close()
            finally:
                threading.excepthook = self._threads_end


def standard_sinks(output: Folder, more: Sequence[Sink]) -> Sequence[Sink]:
    """The sinks of every run, and `more`."""
    sinks: list[Sink] = [JsonLines(output), *more]
    if not output.is_remote:
        sinks.append(TensorBoard(output))
    return sinks
