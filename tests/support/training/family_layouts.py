"""Families on layouts: loss and gradients of one step on several processes beside those of one.

`python -m tests.support.training.family_layouts NAME… [--layout LAYOUT…]` prints how far each is from one process."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from tests.support.processes.forked import run_forked
from tests.support.training.family_models import (
    PLAIN_EXPERTS,
    by_our_names,
    computed,
    config_of,
    device_rows,
)
from tests.support.training.layouts import double, shared, staged
from tests.support.training.transformers_models import FAMILIES, VARIANTS, reference_model, reference_rows
from trainer.data.dataset import IGNORED
from trainer.model.config.description import ModelConfig
from trainer.model.loss import Losses
from trainer.model.rows import DeviceRows, MicroBatch
from trainer.parallel.layout import ParallelLayout
from trainer.parallel.mesh import ParallelModel, parallelise_model
from trainer.parallel.weights import assign
from trainer.processes.runtime import Process
from trainer.telemetry.timing import PhaseClock

LAYOUTS = {
    "tensor 2": double(tp=2),
    "shard 2": double(dp_shard=2),
    "pipeline 2": staged("1f1b", pp=2),
    "context 2, gathered": shared("gather", "zigzag", cp=2),
    "context 2, ring": shared("ring", "documents", cp=2),
}
LARGER = {
    "pipeline 2 x tensor 2": staged("interleaved", pp=2, tp=2),
    "context 2 x tensor 2, ring": shared("ring", "zigzag", cp=2, tp=2),
    "shard 2 x tensor 2, recomputed": dataclasses.replace(double(dp_shard=2, tp=2), recompute="full"),
    "shard 2, some recomputed": dataclasses.replace(double(dp_shard=2), recompute="selective"),
    "replicas 2": double(dp_replicate=2, zero=0),
    "replicas 2 x shard 2": double(dp_replicate=2, dp_shard=2),
    "shard 2, zero 2": double(dp_shard=2, zero=2),
    "shard 2, once a step": double(dp_shard=2, zero=1),
    "pipeline 2, zbv": staged("zbv", pp=2),
}
COMPILED = {
    "shard 2, compiled": dataclasses.replace(double(dp_shard=2), compile=True, compile_backend="aot_eager"),
    "context 2, ring, compiled": dataclasses.replace(
        shared("ring", "documents", cp=2), compile=True, compile_backend="aot_eager"
    ),
}
"""For families without experts, which are not compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, its weights and buffers, rows, and what one process computes of them."""

    config: ModelConfig
    tensors: Mapping[str, Tensor]
    rows: DeviceRows
    loss: float
    gradients: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """How far a layout is from one process: the loss, and the gradient that differs most."""

    loss: float
    gradient: float
    of: str


def case_of(name: str) -> Case:
    """The case of a family, or of a variant."""
    reference = reference_model(name)
    config, rows = config_of(reference), device_rows(reference_rows())
    tensors = by_our_names(reference.tensors)
    found = computed(config, tensors, rows)
    return Case(config=config, tensors=tensors, rows=rows, loss=found.loss, gradients=found.gradients)


def nothing() -> None:
    """No fault."""


def compare(
    folder: Path, names: Iterable[str], layout: ParallelLayout, plant: Callable[[], None] = nothing
) -> dict[str, Apart]:
    """Each case on this layout, the worst of its ranks. `plant`: called in each process first, to break
    something."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({name: case_of(name) for name in names}, folder / "cases")
    of_ranks = run_forked(
        folder, layout.mesh.num_workers, partial(_compared, folder / "cases", layout, plant)
    )
    return {
        name: Apart(
            loss=max(found[name].loss for found in of_ranks),
            gradient=max(found[name].gradient for found in of_ranks),
            of=max((found[name] for found in of_ranks), key=lambda one: one.gradient).of,
        )
        for name in of_ranks[0]
    }


def _compared(
    cases: Path, layout: ParallelLayout, plant: Callable[[], None], process: Process
) -> dict[str, Apart]:
    torch.set_num_threads(1)
    plant()
    layout = dataclasses.replace(layout, experts=PLAIN_EXPERTS)
    return {
        name: _case(case, layout, process) for name, case in torch.load(cases, weights_only=False).items()
    }


def _case(case: Case, layout: ParallelLayout, process: Process) -> Apart:
    model = parallelise_model(case.config, layout, process.device, datetime.timedelta(seconds=60))
    with torch.no_grad():
        for name, parameter in model.parameters().items():
            assign(parameter, case.tensors[name])
        for name, buffer in model.buffers().items():
            buffer.copy_(case.tensors[name])
    model.weights_changed()
    loss = _step(model, case.rows)
    model.clip_gradients(0.0)
    worst, of = 0.0, ""
    for name, parameter in model.parameters().items():
        if (gradient := parameter.grad) is None:
            return Apart(loss=loss, gradient=float("inf"), of=name)
        whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        worst, of = max((worst, of), (float((whole - case.gradients[name]).abs().max()), name))
    return Apart(loss=abs(loss - case.loss), gradient=worst, of=of)


def _step(model: ParallelModel, rows: DeviceRows) -> float:
    """The loss of a step whose micro-batches have a row each; its gradients stay in the parameters."""
    num_rows, mesh = len(rows.inputs_BT), model.layout.mesh
    count = int((rows.labels_BT != IGNORED).sum())
    of_rank = range(model.dp_rank, num_rows, mesh.dp)
    batch = [rows.map(lambda one, row=row: one[row : row + 1]) for row in of_rank]
    if not batch:  # more ranks than rows: this one's only fills up
        filling = rows.map(lambda one: one[:1])
        batch = [dataclasses.replace(filling, labels_BT=torch.full_like(filling.labels_BT, IGNORED))]
    scale = torch.tensor(model.num_averaged / count, dtype=torch.float64)
    losses: list[Tensor] = []

    def add(micro: MicroBatch, found: Losses) -> None:
        losses.append(found.of_tokens_BT.sum())

    def share_of(part: DeviceRows) -> MicroBatch:
        return model.micro_batch(part, weights_B1=scale)

    if model.pipeline is None:
        for number, part in enumerate(batch):
            with model.synchronise(last=number == len(batch) - 1):
                micro = share_of(part)
                found = model.forward(micro)
                add(micro, found)
                torch.autograd.backward(found.objective)
    else:
        model.pipeline.step(batch, share_of, add, PhaseClock(model.device))
    total = torch.stack(losses).sum() if losses else torch.zeros((), dtype=torch.float64)
    dist.all_reduce(total, group=model.groups.loss)
    return float(total) / count


def main() -> None:
    """Prints the differences of the families that the call names."""
    every = LAYOUTS | LARGER | COMPILED | {"experts 2": double(dp_shard=2, ep=2)}
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="+", choices=[*FAMILIES, *VARIANTS], metavar="NAME")
    parser.add_argument("--layout", nargs="+", choices=[*every], default=[*LAYOUTS])
    asked = parser.parse_args()
    for layout in asked.layout:
        with tempfile.TemporaryDirectory() as folder:
            for name, found in compare(Path(folder), asked.names, every[layout]).items():
                print(f"{layout}: {name}: loss {found.loss:.1e}, {found.of} {found.gradient:.1e}", flush=True)


if __name__ == "__main__":
    main()
