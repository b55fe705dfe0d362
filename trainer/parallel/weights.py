"""The weights of a model on its mesh: their first values, a rank's pieces of them, and what the first step needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.parallel import DistributedDataParallel

from trainer.model.peers import local_part
from trainer.model.rows import DeviceRows
from trainer.model.transformer import initial_weight

if TYPE_CHECKING:
    from trainer.parallel.mesh import ParallelModel


def initialise(model: ParallelModel, seed: int) -> None:
    """Give every parameter its first value: equal in every layout, without a collective."""
    with torch.no_grad():
        for name, parameter in model.parameters().items():
            local = local_part(parameter)
            assign(parameter, initial_weight(name, parameter.shape, model.config, seed, local))
        for buffer in model.buffers().values():
            buffer.zero_()
    model.weights_changed()


def settle_buckets(model: ParallelModel, num_rows: int, seq_len: int) -> None:
    """Make the buckets in which DDP sums gradients final, by a backward pass whose gradients are dropped.
    Collective; nothing to do in other layouts. The shape is that of a step's micro-batch, so that nothing is
    compiled twice.

    DDP packs its buckets anew after its first backward pass, by the order in which gradients came, and from
    three ranks on the place in a bucket decides in which order the ranks are added. The first step of each
    start would therefore round differently than the same step of a run that was never interrupted."""
    (module, *_) = model.parts
    if not isinstance(module, DistributedDataParallel):
        return
    zeros_BT = torch.zeros(num_rows, seq_len, dtype=torch.int64, device=model.device)
    rows = DeviceRows.of_one_document(zeros_BT)
    micro = model.micro_batch(rows, torch.ones((), device=model.device))
    torch.autograd.backward(model.forward(micro).objective)
    module.zero_grad(set_to_none=True)


def assign(target: Tensor, whole: Tensor) -> None:
    """Write this rank's piece of `whole` into `target`."""
    if isinstance(target, DTensor):
        shape, offset = compute_local_shape_and_global_offset(
            target.shape, target.device_mesh, target.placements
        )
        whole = whole[tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))]
    local_part(target).copy_(whole)
