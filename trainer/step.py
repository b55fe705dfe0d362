"""One training step in its seven phases: data loading, forward, loss, backward, gradient synchronisation, optimizer,
checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainer.data.dataset import IGNORED
from trainer.feed.feed import DeviceRows
from trainer.model.attention import document_mask
from trainer.model.optimizer import clip_gradients, learning_rate
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
    """What a step left on the device; `figures` are verdict, stop, loss, gradient norm, then of each source the sum of
    losses and the number of labels."""

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
    micro_batches = context.batches.micro_batches(step)
    clock.data_came()
    counts_S, stop = _count_labels(context, micro_batches)
    num_counted = counts_S.sum().clamp_min(1)
    losses_S = torch.zeros_like(counts_S)

    for index, micro in enumerate(micro_batches):
        last = index == len(micro_batches) - 1
        model.llama.model.when_backward_ends = (lambda: clock.enter("gradient synchronisation")) if last else None
        with model.synchronise(last):
            clock.enter("forward")
            mask = document_mask(micro.documents_BT, model.kernel)
            logits_BTV = model.forward(micro.inputs_BT, micro.positions_BT, mask)
            clock.enter("loss")
            with model.computing_loss():
                loss_B = row_losses(logits_BTV, micro.labels_BT)
                if step in context.nan_steps:
                    loss_B = loss_B * float("nan")
                losses_S.index_add_(0, micro.sources_B, loss_B.detach().to(losses_S.dtype))
                clock.enter("backward")
                # Gradients are averaged over the data parallel ranks, and a sum is wanted.
                torch.autograd.backward(loss_B.sum() * model.dp_size / num_counted.to(loss_B.dtype))

    clock.enter("gradient synchronisation")
    clock.waiting("all-reduce of losses")
    dist.all_reduce(losses_S, group=model.dp_group)
    loss = losses_S.sum() / num_counted
    clock.waiting("all-reduce of the gradient norm")
    norm = clip_gradients(model.module.parameters(), context.table.clip)

    clock.enter("optimizer")
    verdict = context.spikes.judge(loss, norm)
    lr = learning_rate(step, context.steps, context.table)
    _update(context.optimizer, lr, verdict)
    head = torch.stack([verdict.to(torch.float64), stop, loss, norm.to(torch.float64)])
    outcome = StepOutcome(step=step, lr=lr, figures=Figures(torch.cat([head, losses_S, counts_S])))

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
    dist.all_reduce(counts, group=context.model.dp_group)
    return counts[:-1], counts[-1]


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
    model.llama.model.when_backward_ends = None
    for micro_batches in batches:
        context.clock.waiting("forward")
        for micro in micro_batches:
            mask = document_mask(micro.documents_BT, model.kernel)
            logits_BTV = model.forward(micro.inputs_BT, micro.positions_BT, mask)
            with model.computing_loss():
                loss_B = row_losses(logits_BTV, micro.labels_BT)
            totals[0].index_add_(0, micro.sources_B, loss_B.to(totals.dtype))
            totals[1].index_add_(0, micro.sources_B, (micro.labels_BT != IGNORED).sum(-1).to(totals.dtype))
    context.clock.waiting("all-reduce of validation losses")
    dist.all_reduce(totals, group=model.dp_group)
    return totals[0], totals[1]
