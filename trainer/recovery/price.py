"""What a replay would cost: from which checkpoint, how many steps, and how long by the run's own step times.

Several purges are one replay: it goes back before the first reading of any of them, and does no step twice.
No torch here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from lineage.storage.folder import Folder
from lineage.trace.exposure import TrainingRun
from trainer.attempts import attempts, counts
from trainer.provenance.setup import read_setup
from trainer.recovery.readings import PurgedOutput, readings
from trainer.telemetry.metrics_file import recent_reports


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPrice:
    """A replay that leaves out what is first read in some step. `from_step`: of the checkpoint that it goes
    back to, 0 for the first weights; `num_steps`: to where the run has come. Seconds are predicted from the
    median of the run's last steps, None where it has none; `device_hours` are those of all processes, each
    with one processor or GPU.

    `waiting`: purges that were carried out, and whose documents are in the run's weights yet;
    `num_steps_together`: of one replay for them and this one, `num_steps_apart`: of one for each."""

    from_step: int
    num_steps: int
    seconds: float | None
    device: str | None
    num_processes: int | None
    device_hours: float | None
    waiting: tuple[str, ...] = ()
    num_steps_together: int = 0
    num_steps_apart: int = 0


def price_of(
    run: TrainingRun, kept: Sequence[int], first_step: int, purged: PurgedOutput | None
) -> ReplayPrice:
    """The price for `run` to leave out what it first read in `first_step`. `kept`: the steps of its
    checkpoints; `purged`: what has been purged of the output before, None for nothing."""
    output = Folder(run.output)
    reached = _reached(run)
    num_steps = _num_steps(reached, kept, first_step)
    waiting = {} if purged is None else _waiting(run, output, purged)
    apart = [_num_steps(reached, kept, first) for first in waiting.values()]
    times = [report.seconds for report in recent_reports(output) if report.seconds > 0]
    begun = attempts(output)
    setup = read_setup(output, begun[-1].number) if begun else None
    sizes = ("dp_replicate", "dp_shard", "tp", "pp", "cp")
    num_processes = None if setup is None else math.prod(setup.layout[name] for name in sizes)
    seconds = num_steps * statistics.median(times) if times else None
    return ReplayPrice(
        from_step=reached - num_steps,
        num_steps=num_steps,
        seconds=seconds,
        device=None if setup is None else setup.device,
        num_processes=num_processes,
        device_hours=None if seconds is None or num_processes is None else seconds * num_processes / 3600,
        waiting=tuple(waiting),
        num_steps_together=max([num_steps, *apart]),
        num_steps_apart=num_steps + sum(apart),
    )


def _reached(run: TrainingRun) -> int:
    """The steps that the newest attempt has come to: one that was undone may have done more."""
    newest = max(segment.attempt for segment in run.segments)
    ends = (
        s.first_step if s.last_step is None else s.last_step + 1 for s in run.segments if s.attempt == newest
    )
    return max(ends)


def _num_steps(reached: int, kept: Sequence[int], first_step: int) -> int:
    return reached - max((step for step in kept if step <= first_step), default=0)


def _waiting(run: TrainingRun, output: Folder, purged: PurgedOutput) -> dict[str, int]:
    """The first step that read what each earlier purge took, of those that are in the run's weights."""
    begun = attempts(output)
    found = {}
    for purge in purged.purges:
        one = PurgedOutput(out=purged.out, purges=(purge,))
        steps = [e.step for _, e in readings(run, one) if counts(e.step + 1, e.attempt, begun)]
        if steps:
            found[purge.purge_id] = min(steps)
    return found
