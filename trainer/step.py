"""One training step in its seven phases: data loading, forward, loss, backward, gradient synchronisation, optimizer,
checkpoint."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainer.data.dataset import IGNORED
from trainer.model.experts import Routing, load_figures
from trainer.model.optimizer import learning_rate
from trainer.model.rows import DeviceRows, MicroBatch
from trainer.options import OptimizerTable
from trainer.parallel.mesh import ParallelModel
from trainer.recovery.faults import SpikeWindow
from trainer.telemetry.timing import Figures, PhaseClock, StepTiming


class Batches(Protocol):
    """Where a step's rows come from: this rank's slice, in as many micro-batches on every rank."""

    @property
    def num_sources(self) -> int: ...

    def micro_batches(self, step: int) -> Sequence[DeviceRows]: ...


@dataclass(slots=True, kw_only=True)
class StepContext:
    """All that a step touches."""

    model: ParallelModel
    batches: Batches
    optimizer: torch.optim.Optimizer
    table: OptimizerTable
    steps: int
    spikes: SpikeWindow
    clock: PhaseClock
    stop_requested: Callable[[], bool] = lambda: False
    nan_steps: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What a step left on the device; `figures` are verdict, stop, loss, gradient norm, attention's work on the fullest
    context parallel rank over the mean, then of each source the sum of losses and the number of labels, then of a model
    with experts the numbers of an ExpertLoad."""

    step: int
    lr: float
    figures: Figures


def train_step(
    context: StepContext, step: int, save_if_due: Callable[[int, StepOutcome], None]
) -> tuple[StepOutcome, StepTiming]:
    """Run step `step`. Collective; nothing here waits for the device.

    `save_if_due(t, outcome)` saves a checkpoint of t steps where one is due.

    Loss = sum over counted labels of the global batch ÷ their number over all ranks and micro-batches (0 labels: 0)."""
    model, clock = context.model, context.clock
    clock.enter("data loading")
    batch = context.batches.micro_batches(step)
    clock.data_came()
    counts_S, stop = _count_labels(context, batch)
    num_counted = counts_S.sum().clamp_min(1)
    losses_S = torch.zeros_like(counts_S)
    work = torch.zeros(2, dtype=torch.float64, device=model.device)

    # A mean over ranks is made a sum again.
    scale = model.num_averaged / num_counted
    routings: list[Routing] = []

    def share(index: int) -> MicroBatch:
        micro = model.micro_batch(batch[index], scale)
        work.add_(1.0 if micro.work is None else micro.work)
        routings.extend([micro.routing] if micro.routing is not None else [])
        return micro

    def loss_of(micro: MicroBatch, logits_BTV: Tensor) -> Tensor:
        clock.enter("loss")
        loss_B = row_losses(logits_BTV, micro.rows.labels_BT)
        if step in context.nan_steps:
            loss_B = loss_B * float("nan")
        losses_S.index_add_(0, micro.rows.sources_B, loss_B.detach().to(losses_S.dtype))
        clock.enter("backward")
        return loss_B.sum() * scale.to(loss_B.dtype)

    def forward_and_loss(micro: MicroBatch) -> Tensor:
        # The logits go with this frame: in backward the loss needs what it has kept of them, and that is as large.
        logits_BTV = model.forward(micro)
        with model.computing_loss():
            return loss_of(micro, logits_BTV)

    if model.pipeline is None:
        for index in range(len(batch)):
            last = index == len(batch) - 1
            model.when_backward_ends((lambda: clock.enter("gradient synchronisation")) if last else None)
            with model.synchronise(last):
                clock.enter("forward")
                loss = forward_and_loss(share(index))
                with model.computing_loss():
                    torch.autograd.backward(loss)
    else:
        with model.computing_loss():
            model.pipeline.step(len(batch), functools.cache(share), loss_of, clock.enter, clock.stage_pass)

    clock.enter("gradient synchronisation")
    clock.waiting("all-reduce of losses")
    summed = torch.cat([losses_S, work])
    dist.all_reduce(summed, group=model.groups.loss)
    losses_S, work = summed[:-2], summed[-2:]
    loss = losses_S.sum() / num_counted
    routed = model.expert_figures(routings)
    clock.waiting("all-reduce of the gradient norm")
    norm = model.clip_gradients(context.table.clip)

    clock.enter("optimizer")
    verdict = context.spikes.judge(loss, norm)
    lr = learning_rate(step, context.steps, context.table)
    _update(context.optimizer, lr, verdict)
    model.weights_changed()
    if routed is not None:
        model.balance_experts(routed, verdict)
    head = torch.stack([verdict.to(torch.float64), stop, loss, norm.to(torch.float64), work[0] / work[1]])
    load = head[:0] if routed is None else load_figures(routed)
    outcome = StepOutcome(step=step, lr=lr, figures=Figures(torch.cat([head, losses_S, counts_S, load])))

    clock.enter("checkpoint")
    save_if_due(step + 1, outcome)
    return outcome, clock.end_step()


def _count_labels(context: StepContext, micro_batches: Sequence[DeviceRows]) -> tuple[Tensor, Tensor]:
    """Counted labels of each source over the global batch, and whether any rank was asked to stop; float64."""
    counts = torch.zeros(context.batches.num_sources + 1, dtype=torch.float64, device=context.model.device)
    for micro in micro_batches:
        counts.index_add_(0, micro.sources_B, (micro.labels_BT != IGNORED).sum(-1).to(counts.dtype))
    if context.stop_requested():
        counts[-1] = 1.0
    context.clock.waiting("all-reduce of label counts")
    # Over all ranks, so that each one hears of a stop. Peers count the same rows: the division leaves whole numbers.
    dist.all_reduce(counts)
    return counts[:-1] / context.model.layout.mesh.num_peers, counts[-1]


def row_losses(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """The sum of each row's counted losses, shape (B,), at least float32; under tensor parallel equal on all peers."""
    wide = logits_BTV.to(torch.promote_types(logits_BTV.dtype, torch.float32))
    loss_N = F.cross_entropy(wide.flatten(0, 1), labels_BT.flatten(), reduction="none", ignore_index=IGNORED)
    if isinstance(loss_N, DTensor):
        loss_N = loss_N.full_tensor()
    return loss_N.view(labels_BT.shape).sum(-1)


def _update(optimizer: torch.optim.Optimizer, lr: float, verdict: Tensor) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
    # The fused kernel reads this on the device and leaves weights, moments and step counts alone where it is 1.
    optimizer.found_inf = (verdict != 0).to(torch.float32)  # type: ignore[attr-defined]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


@torch.no_grad()
def evaluate(context: StepContext, batches: Iterable[Sequence[DeviceRows]]) -> tuple[Tensor, Tensor]:
    """Sums of losses and numbers of labels of each source over `batches`, summed over ranks, float64. Collective."""
    model = context.model
    totals = torch.zeros(2, context.batches.num_sources, dtype=torch.float64, device=model.device)
    model.when_backward_ends(None)
    for micro_batches in batches:
        context.clock.waiting("forward")
        for rows in micro_batches:
            micro = model.micro_batch(rows)
            logits_BTV = model.evaluate(micro)
            if logits_BTV is None:
                continue
            with model.computing_loss():
                loss_B = row_losses(logits_BTV, micro.rows.labels_BT)
            counted_B = (micro.rows.labels_BT != IGNORED).sum(-1)
            totals[0].index_add_(0, rows.sources_B, loss_B.to(totals.dtype))
            totals[1].index_add_(0, rows.sources_B, counted_B.to(totals.dtype))
    model.reshard()  # a checkpoint may be the next thing
    context.clock.waiting("all-reduce of validation losses")
    dist.all_reduce(totals, group=model.groups.loss)
    return totals[0], totals[1]
