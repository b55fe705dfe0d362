"""From a step's figures on the device to its report."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist

from trainer.faults import VERDICTS, Reason
from trainer.metrics import PHASES, Lap, OverRanks, StepReport, mfu, peak_flops
from trainer.options import TrainRecipe
from trainer.parallel import Spread
from trainer.sizes import ModelConfig
from trainer.step import Outcome

RANKS_EVERY: Final = 10
"""Steps between two comparisons of the ranks' phase times (each costs an all-gather of seven numbers)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A report, and whether a rank was asked to stop."""

    report: StepReport
    stop: bool


class Reporter:
    """Reads figures and makes reports; every rank has one, since the ranks' times are gathered."""

    def __init__(
        self, recipe: TrainRecipe, config: ModelConfig, sources: tuple[str, ...], attempt: int, spread: Spread
    ) -> None:
        self._table = recipe.train
        self._config = config
        self._sources = sources
        self._attempt = attempt
        self._device = spread.device
        self._peak = peak_flops(spread.device)
        self._last_end = time.perf_counter()

    def reason(self, outcome: Outcome) -> Reason | None:
        """Why the step was skipped, if it was. Waits for the device."""
        return VERDICTS[int(outcome.figures.read()[0])]

    def report(self, outcome: Outcome, lap: Lap, validation: dict[str, float] | None) -> Told:
        """The report of a step. Collective at every RANKS_EVERY-th step; waits until the device has finished it."""
        verdict, stop, loss, norm, *by_source = outcome.figures.read()
        losses, counts = by_source[: len(self._sources)], by_source[len(self._sources) :]
        phases = lap.seconds()
        seconds = sum(phases.values())
        table = self._table
        speed = table.global_batch * table.seq_len / seconds if seconds else 0.0
        per_device = speed / table.num_workers
        seen = [(name, total, count) for name, total, count in zip(self._sources, losses, counts, strict=True) if count]
        report = StepReport(
            step=outcome.step,
            attempt=self._attempt,
            loss=loss,
            loss_by_source={name: total / count for name, total, count in seen},
            tokens_by_source={name: int(count) for name, _, count in seen},
            gradient_norm=norm,
            lr=outcome.lr,
            skipped=VERDICTS[int(verdict)],
            first_sequence=outcome.step * table.global_batch,
            last_sequence=(outcome.step + 1) * table.global_batch - 1,
            seconds=seconds,
            tokens_per_second=speed,
            mfu=mfu(self._config, table.seq_len, per_device, self._peak) if self._peak else None,
            phases={str(phase): phases[phase] for phase in PHASES},
            data_wait_share=phases["data loading"] / seconds if seconds else 0.0,
            ranks=self._over_ranks([phases[phase] for phase in PHASES]) if outcome.step % RANKS_EVERY == 0 else {},
            validation_loss=validation or {},
            max_memory_bytes=torch.cuda.max_memory_allocated() if self._device.type == "cuda" else 0,
        )
        return Told(report=report, stop=stop > 0)

    def listed(self, step: int) -> StepReport:
        """The report of a batch that the recipe leaves out."""
        size = self._table.global_batch
        return StepReport(
            step=step,
            attempt=self._attempt,
            loss=None,
            skipped="listed",
            first_sequence=step * size,
            last_sequence=(step + 1) * size - 1,
        )

    def _over_ranks(self, seconds: list[float]) -> dict[str, OverRanks]:
        mine = torch.tensor(seconds, dtype=torch.float32, device=self._device)
        every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(every, mine)
        by_phase = torch.stack(every).T.tolist()
        return {phase: OverRanks.of(row) for phase, row in zip(PHASES, by_phase, strict=True)}
