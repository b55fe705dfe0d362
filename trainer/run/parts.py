"""What a run is made of, by who needs it: its steps, its checkpoints, its reports."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch.distributed as dist

from lineage.storage.folder import Folder
from trainer.attempts import Fence
from trainer.checkpoint.cadence import AutoCadence
from trainer.checkpoint.state import Saver
from trainer.feed.feed import Feed
from trainer.health.check import Health
from trainer.model.config.description import ModelConfig
from trainer.options import TrainRecipe
from trainer.parallel.mesh import ParallelModel
from trainer.processes.runtime import Process
from trainer.recorder.recorder import Recorder
from trainer.recovery.repeats import SkipCounter
from trainer.run.joining import Joined
from trainer.run.reporter import StepReporter
from trainer.run.step import StepContext, StepOutcome
from trainer.telemetry.goodput import LiveGoodput
from trainer.telemetry.profiling import Profiler
from trainer.telemetry.step_report import Sink
from trainer.telemetry.timing import StepTiming

if TYPE_CHECKING:
    from trainer.run.evaluating import RunEvaluation
    from trainer.run.hooks import Hooks


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """What differs between torchrun, Ray Train and tests. `began_at`: when this start of the processes began,
    seconds since the epoch. `shows_progress`: steps are shown on stderr, and what the attempt came to; what goes
    wrong always is. `hooks`: of what replaces processes while the run goes on; None: a lost process means a
    restart of all."""

    process: Process
    began_at: float = field(default_factory=time.time)
    more_sinks: Sequence[Sink] = ()
    stop_requested: Callable[[], bool] = lambda: False
    shows_progress: bool = True
    hooks: Hooks | None = None


class ProgressWatcher(Protocol):
    """What hears of each marker that this process passes: `Watchdog`, or a `Participant`."""

    dump: Callable[[str], None]

    def at(self, step: int, where: str) -> None: ...

    def rest(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GlooGroups:
    """gloo groups of all ranks: `control` for what they tell each other between collectives of the step;
    `feed` for a new content of the data, None where this process is alone."""

    control: dist.ProcessGroup
    feed: dist.ProcessGroup | None


@dataclass(slots=True, kw_only=True)
class Progress:
    """What changes from step to step, besides weights and moments. `step` is the next one; `pending` are
    steps whose figures may still be on the device; `next_save`: steps done at the next checkpoint where the
    run finds its cadence itself; `stall`: what the last reported step's checkpoint stopped it for."""

    step: int
    last_saved: int
    next_save: int | None
    skips: SkipCounter
    checkpoint: str = ""
    skipped: list[int] = field(default_factory=list)
    pending: deque[tuple[StepOutcome, StepTiming]] = field(default_factory=deque)
    stop: bool = False
    stall: float = 0.0
    loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepping:
    """What a step needs."""

    context: StepContext
    feed: Feed
    health: Health
    profiler: Profiler
    recorder: Recorder
    watchdog: ProgressWatcher
    evaluations: Sequence[RunEvaluation] = ()

    @property
    def model(self) -> ParallelModel:
        """The model on its mesh."""
        return self.context.model


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What a checkpoint needs. `fence`: asked before facts of the run are written; `cadence`: on rank 0 of a
    run that finds it itself."""

    saver: Saver
    fence: Fence
    config: ModelConfig
    cadence: AutoCadence | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """What a report needs. `sinks` and `goodput`: on rank 0."""

    reporter: StepReporter
    sinks: Sequence[Sink]
    goodput: LiveGoodput | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One attempt of a run, as this process takes part in it."""

    recipe: TrainRecipe
    launch: LaunchContext
    hooks: Hooks
    groups: GlooGroups
    output: Folder
    joined: Joined
    progress: Progress
    stepping: Stepping
    saving: Saving
    reporting: Reporting

    @property
    def rank(self) -> int:
        """This process among those of the run."""
        return self.launch.process.rank

    @property
    def attempt(self) -> int:
        """The number of this attempt."""
        return self.joined.attempt.number
