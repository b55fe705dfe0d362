"""One training step in its seven phases: data loading, forward, loss, backward, gradient synchronisation,
optimizer, checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.model.experts import Routing, load_figures
from trainer.model.loss import Losses
from trainer.model.rows import DeviceRows, MicroBatch
from trainer.optim.learning_rate import learning_rate
from trainer.optim.optimizer import Optimizer
from trainer.parallel.mesh import ClippedNorms, ParallelModel
from trainer.recipe_tables.optimizer import OptimizerTable
from trainer.recorder.operations import Operations
from trainer.recovery.faults import SpikeWindow
from trainer.telemetry.step_figures import PackedFigures
from trainer.telemetry.timing import PhaseClock, StepTiming


class Batches(Protocol):
    """Where a step's rows come from: this rank's slice, in as many micro-batches on every rank."""

    @property
    def num_sources(self) -> int: ...

    @property
    def global_batch(self) -> int: ...

    def micro_batches(self, step: int) -> Sequence[DeviceRows]: ...


@dataclass(slots=True, kw_only=True)
class StepContext:
    """All that a step touches. `vote`: called once gradients are clipped; where it returns on one rank, all
    have come so far. `ready`: the step that has come there and is not in the weights yet; `applied`: the last
    one that is."""

    model: ParallelModel
    batches: Batches
    optimizer: Optimizer
    table: OptimizerTable
    steps: int
    spikes: SpikeWindow
    clock: PhaseClock
    stop_requested: Callable[[], bool] = lambda: False
    nan_steps: frozenset[int] = frozenset()
    rate_factor: Callable[[int], float] = lambda step: 1.0
    keeps_rows: bool = False
    operations: Operations | None = None
    token_losses: TokenLosses | None = None
    vote: Callable[[], None] = lambda: None
    ready: ReadyStep | None = None
    applied: StepOutcome | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What a step left on the device; `layers`: as `ClippedNorms.local_layers`."""

    step: int
    lr: float
    figures: PackedFigures
    layers: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyStep:
    """A step whose gradients are summed over ranks and clipped: what is left of it needs no other rank."""

    step: int
    loss: Tensor
    norms: ClippedNorms
    routed: Tensor | None
    stop: Tensor
    counts_S: Tensor
    losses: _StepLosses


class TokenLosses:
    """The losses of a step by row of the global batch and document in that row, (G + 1, T) float64: what a
    step is looked at for once more. The last row takes rows that only fill up."""

    def __init__(self, global_batch: int, seq_len: int, device: torch.device) -> None:
        self.sums = torch.zeros(global_batch + 1, seq_len, dtype=torch.float64, device=device)

    def add(self, rows: DeviceRows, losses_BT: Tensor) -> None:
        """Take what a rank has computed of some rows."""
        places = rows.rows_B[:, None] * self.sums.shape[1] + rows.documents_BT
        self.sums.view(-1).index_add_(
            0, places.flatten().long(), losses_BT.detach().flatten().to(torch.float64)
        )


def train_step(
    context: StepContext, step: int, save_if_due: Callable[[int, StepOutcome], None]
) -> tuple[StepOutcome, StepTiming]:
    """Run step `step`. Collective; nothing here waits for the device.

    `save_if_due(t, outcome)` saves a checkpoint of t steps where one is due.

    Loss = sum over counted labels of the global batch ÷ their number over all ranks and micro-batches (0
    labels: 0)."""
    model, clock = context.model, context.clock

    clock.enter("data loading")
    batch = context.batches.micro_batches(step)
    clock.data_arrived()
    counts_S, stop = _count_labels(context, batch)
    losses = _StepLosses(context, step, counts_S)

    if model.pipeline is None:
        model.when_loss_begins(partial(clock.enter, "loss"))
        for index, rows in enumerate(batch):
            last = index == len(batch) - 1
            model.when_backward_ends(partial(_backward_ended, context) if last else None)
            with model.synchronise(last):
                clock.enter("forward")  # and from the last layer on "loss"
                micro = losses.share_of(rows)
                found = model.forward(micro)
                losses.add(micro, found)
                clock.enter("backward")
                torch.autograd.backward(found.objective)
                if context.operations is not None:
                    context.operations.end_reduction()
    else:  # its schedule runs forward, loss and backward of all micro-batches, in turns
        model.pipeline.step(batch, losses.share_of, losses.add, clock)

    clock.enter("gradient synchronisation")
    losses.sum_over_ranks()
    routed = model.expert_figures(losses.routings)
    clock.waiting("all-reduce of the gradient norm")
    norms = model.clip_gradients(context.table.clip)

    clock.enter("optimizer")
    context.optimizer.prepare(clock.waiting)
    context.ready = ReadyStep(
        step=step, loss=losses.mean, norms=norms, routed=routed, stop=stop, counts_S=counts_S, losses=losses
    )
    context.vote()
    outcome = apply_step(context, context.ready)
    model.weights_changed()

    clock.enter("checkpoint")
    save_if_due(step + 1, outcome)
    return outcome, clock.end_step()


def apply_step(context: StepContext, ready: ReadyStep) -> StepOutcome:
    """Judge a step and bring it into weights and moments. No other rank is asked: one whose peers have done
    so may do it when the group that reduced its gradients is gone."""
    model, losses = context.model, ready.losses
    verdict = context.spikes.judge(ready.loss, ready.norms.whole)

    def rate(peak: float) -> float:
        return learning_rate(ready.step, context.steps, context.table, peak) * context.rate_factor(ready.step)

    context.optimizer.step(rate, verdict)
    if ready.routed is not None:
        model.balance_experts(ready.routed, verdict)
    figures = PackedFigures(
        verdict=verdict,
        stop=ready.stop,
        loss=ready.loss,
        gradient_norm=ready.norms.whole,
        context_imbalance=losses.context_imbalance,
        z_loss=losses.z_loss,
        losses_S=losses.sums_S,
        counts_S=ready.counts_S,
        experts=None if ready.routed is None else load_figures(ready.routed),
        rows_2G=losses.by_row,
    )
    outcome = StepOutcome(
        step=ready.step, lr=rate(context.table.lr), figures=figures, layers=ready.norms.local_layers
    )
    context.ready, context.applied = None, outcome
    return outcome


def _backward_ended(context: StepContext) -> None:
    """Every layer has been differentiated: what backward still does is waiting for other ranks' gradients."""
    context.clock.enter("gradient synchronisation")
    group = context.model.reduced_by_ddp
    if group is not None and context.operations is not None:
        context.operations.begin_reduction(group)


class _StepLosses:
    """The losses of a step, micro-batch by micro-batch; `counts_S`: its counted labels by source over all
    ranks."""

    def __init__(self, context: StepContext, step: int, counts_S: Tensor) -> None:
        self._model, self._clock = context.model, context.clock
        self._planted = math.nan if step in context.nan_steps else 1.0
        self._num_counted = counts_S.sum().clamp_min(1)
        # A mean over ranks is made a sum again.
        self._scale = context.model.num_averaged / self._num_counted * self._planted
        self._work = torch.zeros(3, dtype=torch.float64, device=context.model.device)
        self.sums_S = torch.zeros_like(counts_S)
        self.routings: list[Routing] = []
        self._tokens = context.token_losses
        self._rows = None
        if context.keeps_rows:
            self._rows = torch.zeros(
                2, context.batches.global_batch + 1, dtype=torch.float64, device=self._work.device
            )

    def share_of(self, rows: DeviceRows) -> MicroBatch:
        """This rank's share of the rows of a micro-batch."""
        micro = self._model.micro_batch(rows, self._scale)
        self._work[:2] += 1.0 if micro.work is None else micro.work
        self.routings.extend([micro.routing] if micro.routing is not None else [])
        return micro

    def add(self, micro: MicroBatch, found: Losses) -> None:
        """Add up the losses of a micro-batch's rows."""
        of_rows = found.of_tokens_BT.sum(-1, dtype=self.sums_S.dtype) * self._planted
        self.sums_S.index_add_(0, micro.rows.sources_B, of_rows)
        self._work[2] += found.z_BT.sum(dtype=self._work.dtype)
        if self._rows is not None:
            counted_B = micro.rows.num_counted.to(of_rows.dtype)
            self._rows.index_add_(1, micro.rows.rows_B, torch.stack([of_rows, counted_B]))
        if self._tokens is not None:
            self._tokens.add(micro.rows, found.of_tokens_BT)

    def sum_over_ranks(self) -> None:
        """After the last micro-batch. Collective."""
        self._clock.waiting("all-reduce of losses")
        summed = torch.cat([self.sums_S, self._work])
        dist.all_reduce(summed, group=self._model.groups.loss)
        self.sums_S, self._work = summed[:-3], summed[-3:]
        # By themselves: in what order ranks are added up hangs on a number's place in the buffer, and the
        # loss must be the same to the bit whether rows are kept or not.
        if self._rows is not None:
            dist.all_reduce(self._rows, group=self._model.groups.loss)
        if self._tokens is not None:
            dist.all_reduce(self._tokens.sums, group=self._model.groups.loss)

    @property
    def by_row(self) -> Tensor | None:
        """The losses of the global batch's rows and the numbers of their counted labels, (2, G), summed over
        ranks."""
        return None if self._rows is None else self._rows[:, :-1]

    @property
    def mean(self) -> Tensor:
        """The step's loss, once summed over ranks."""
        return self.sums_S.sum() / self._num_counted

    @property
    def z_loss(self) -> Tensor:
        """What `train.z_loss` adds to the mean, once summed over ranks."""
        return self._work[2] / self._num_counted

    @property
    def context_imbalance(self) -> Tensor:
        """Attention's work on the fullest context parallel rank over the mean."""
        return self._work[0] / self._work[1]


def _count_labels(context: StepContext, micro_batches: Sequence[DeviceRows]) -> tuple[Tensor, Tensor]:
    """Counted labels of each source over the global batch, and whether any rank was asked to stop;
    float64."""
    counts = torch.zeros(context.batches.num_sources + 1, dtype=torch.float64, device=context.model.device)
    for micro in micro_batches:
        counts.index_add_(0, micro.sources_B, micro.num_counted.to(counts.dtype))
    if context.stop_requested():
        counts[-1] = 1.0
    context.clock.waiting("all-reduce of label counts")
    # Over all ranks, so that each one hears of a stop. Peers count the same rows: the division leaves whole
    # numbers.
    dist.all_reduce(counts)
    return counts[:-1] / context.model.layout.mesh.num_peers, counts[-1]


@torch.no_grad()
def evaluate(context: StepContext, batches: Iterable[Sequence[DeviceRows]]) -> tuple[Tensor, Tensor]:
    """Sums of losses and numbers of labels of each source over `batches`, summed over ranks, float64.
    Collective."""
    model = context.model
    totals = torch.zeros(2, context.batches.num_sources, dtype=torch.float64, device=model.device)
    model.when_backward_ends(None)
    model.when_loss_begins(lambda: None)
    for micro_batches in batches:
        context.clock.waiting("forward")
        for rows in micro_batches:
            micro = model.micro_batch(rows)
            found = model.evaluate(micro)
            if found is None:
                continue
            loss_B = found.of_tokens_BT.sum(-1, dtype=totals.dtype)
            counted_B = micro.rows.num_counted
            totals[0].index_add_(0, rows.sources_B, loss_B)
            totals[1].index_add_(0, rows.sources_B, counted_B.to(totals.dtype))
    model.reshard()  # a checkpoint may be the next thing
    context.clock.waiting("all-reduce of validation losses")
    dist.all_reduce(totals, group=model.groups.loss)
    return totals[0], totals[1]
