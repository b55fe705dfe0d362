"""From a step's figures on the device to its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final, Protocol

import torch
import torch.distributed as dist

from trainer.data.figures import LoadFigures, load_figures
from trainer.evaluation.result import EvaluationResult
from trainer.model.config.description import ModelConfig
from trainer.options import TrainRecipe, TrainTable
from trainer.parallel.mesh import ParallelModel
from trainer.planning.gpus import mfu, peak_of_device
from trainer.processes.heard import of_every_rank
from trainer.recorder.recorder import Recorder
from trainer.recovery.faults import STEP_VERDICTS, Reason
from trainer.run.step import StepOutcome
from trainer.telemetry.phases import PHASES
from trainer.telemetry.step_report import OverRanks, StepReport
from trainer.telemetry.stragglers import MORE_TO_DO, StepWindow, Straggler, StragglerDetector
from trainer.telemetry.symptoms import Symptom
from trainer.telemetry.timing import StepTiming

RANKS_EVERY: Final = 10
"""Steps between two comparisons of the ranks' times and sums of their loading (an all-gather of 24
numbers)."""
DATA_WAIT: Final = "data wait"
"""What `StepReport.ranks` calls the wait for data, beside the seven phases."""


_READING: Final = "data loading"


class Loading(Protocol):
    """What a report says of the data: names of the sources, this rank's counts (see `load_figures`), and what
    of its reading takes longest."""

    @property
    def sources(self) -> tuple[str, ...]: ...

    def counted(self) -> list[float]: ...

    def slowest_reading(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOutcome:
    """A report, and whether a rank was asked to stop."""

    report: StepReport
    stop: bool


class StepReporter:
    """Reads figures and makes reports; every rank has one, since the ranks' times are gathered."""

    def __init__(
        self,
        recipe: TrainRecipe,
        config: ModelConfig,
        data: Loading,
        model: ParallelModel,
        *,
        attempt: int,
        checkpoint_age: Callable[[], float],
        recorder: Recorder,
        nodes: Sequence[str],
        control: dist.ProcessGroup,
    ) -> None:
        self._table = recipe.train
        self._config = config
        self._data = data
        self._sources = data.sources
        self._attempt = attempt
        self._model = model
        self._device = model.device
        self._peak = _peak_flops(recipe.train, model.device)
        self._num_peers = recipe.train.num_workers // model.dp_size
        self._checkpoint_age = checkpoint_age
        self.health: tuple[Symptom, ...] = ()
        """What was found of the machines' health since the last report, on rank 0."""
        self._recorder, self._control = recorder, control
        limits = recipe.train.stragglers
        self._window = StepWindow(limits.window)
        self._detector = StragglerDetector(
            limits,
            recipe.train.mesh.same_work(),
            nodes,
            exempt=MORE_TO_DO,
        )

    def reason(self, outcome: StepOutcome) -> Reason | None:
        """Why the step was skipped, if it was. Waits for the device."""
        return STEP_VERDICTS[outcome.figures.read().verdict]

    def report(
        self,
        outcome: StepOutcome,
        timing: StepTiming,
        validation: dict[str, float] | None,
        *,
        alone: bool = False,
    ) -> ReadOutcome:
        """The report of a step. Collective at every RANKS_EVERY-th step, the last, and a skipped one;
        `alone`: without what other ranks would add. Waits for the device."""
        figures = outcome.figures.read()
        phases, waiting, waited = timing.seconds(), timing.waiting_seconds(), timing.data_wait_seconds()
        self._recorder.add_step(outcome.step, phases, waiting)
        seconds = sum(phases.values())
        own = {str(phase): max(phases[phase] - waiting[phase], 0.0) for phase in PHASES}
        times = {**{str(phase): phases[phase] for phase in PHASES}, DATA_WAIT: waited}
        compares = not alone and (outcome.step % RANKS_EVERY == 0 or outcome.step == self._table.steps - 1)
        ranks, own_ranks, loading = self._over_ranks(times, own) if compares else ({}, {}, None)
        table = self._table
        speed = table.global_batch * table.seq_len / seconds if seconds else 0.0
        per_device = speed / table.num_workers
        by_source = zip(self._sources, figures.losses, figures.counts, strict=True)
        seen = [(name, total, count) for name, total, count in by_source if count]
        report = StepReport(
            step=outcome.step,
            attempt=self._attempt,
            loss=figures.loss,
            z_loss=figures.z_loss if table.z_loss else None,
            loss_by_source={name: total / count for name, total, count in seen},
            tokens_by_source={name: int(count) for name, _, count in seen},
            gradient_norm=figures.gradient_norm,
            lr=outcome.lr,
            experts=figures.experts,
            pipeline_idle_share=timing.pipeline_idle_share(),
            context_imbalance=figures.context_imbalance if self._table.mesh.cp > 1 else None,
            skipped=STEP_VERDICTS[figures.verdict],
            first_sequence=outcome.step * table.global_batch,
            last_sequence=(outcome.step + 1) * table.global_batch - 1,
            seconds=seconds,
            tokens_per_second=speed,
            mfu=mfu(self._config, table.seq_len, per_device, self._peak) if self._peak else None,
            phases={str(phase): phases[phase] for phase in PHASES},
            data_wait_seconds=waited,
            own=own,
            waiting={str(phase): waiting[phase] for phase in PHASES},
            ranks=ranks,
            own_ranks=own_ranks,
            stragglers=() if alone else tuple(self._stragglers(outcome.step, own, seconds)),
            loading=loading,
            checkpoint_age_seconds=self._checkpoint_age(),
            validation_loss=validation or {},
            # Every rank has the same verdict, so all of them come here.
            gradient_norm_by_layer=self._model.layer_norms(outcome.layers)
            if figures.verdict and not alone
            else {},
            max_memory_bytes=torch.cuda.max_memory_allocated() if self._device.type == "cuda" else 0,
            at=timing.ended_at,
            evaluation_seconds=timing.evaluation_seconds(),
            health=self.health,
        )
        self.health = ()
        return ReadOutcome(report=report, stop=figures.stop)

    def listed(
        self, step: int, validation: dict[str, float], evaluations: tuple[EvaluationResult, ...] = ()
    ) -> StepReport:
        """The report of a batch that the recipe leaves out; `validation`, `evaluations`: what was evaluated
        after it."""
        size = self._table.global_batch
        return StepReport(
            step=step,
            attempt=self._attempt,
            loss=None,
            skipped="listed",
            first_sequence=step * size,
            last_sequence=(step + 1) * size - 1,
            validation_loss=validation,
            evaluations=evaluations,
        )

    def _over_ranks(
        self, times: dict[str, float], own: dict[str, float]
    ) -> tuple[dict[str, OverRanks], dict[str, OverRanks], LoadFigures]:
        columns = list(
            zip(*self._of_every_rank([*times.values(), *own.values(), *self._data.counted()]), strict=True)
        )
        end, own_end = len(times), len(times) + len(own)
        ranks = {phase: OverRanks.of(seconds) for phase, seconds in zip(times, columns[:end], strict=True)}
        own_ranks = {
            phase: OverRanks.of(seconds) for phase, seconds in zip(own, columns[end:own_end], strict=True)
        }
        return ranks, own_ranks, load_figures([sum(column) for column in columns[own_end:]], self._num_peers)

    def _of_every_rank(self, numbers: Sequence[float]) -> list[list[float]]:
        """These numbers of each rank. Collective."""
        mine = torch.tensor(numbers, dtype=torch.float64, device=self._device)
        every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(every, mine)
        found: list[list[float]] = torch.stack(every).tolist()
        return found

    def _stragglers(self, step: int, own: dict[str, float], seconds: float) -> list[Straggler]:
        """Who is slower than others at the same work, where a window ends with this step: equal on every
        rank. Collective there."""
        ended = self._window.add(step, own, seconds)
        if ended is None:
            return []
        first_step, medians, step_seconds = ended
        every = self._of_every_rank([*medians.values(), step_seconds])
        found = self._detector.add_window(
            first_step,
            [dict(zip(medians, numbers[:-1], strict=True)) for numbers in every],
            median(numbers[-1] for numbers in every),
        )
        if any(each.phase == _READING and not each.ended for each in found):
            # A slow reader knows what it reads from; the others need its word for it.
            reading = of_every_rank(self._data.slowest_reading(), self._control)
            found = [
                replace(each, detail=reading[each.rank]) if each.phase == _READING else each for each in found
            ]
        return found


def _peak_flops(table: TrainTable, device: torch.device) -> float | None:
    """A device's operations a second at its peak: as the recipe says, or as the GPU's name does."""
    if table.peak_teraflops is not None:
        return table.peak_teraflops * 1e12
    return peak_of_device(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
