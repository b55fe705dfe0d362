"""AdamW without decay on norms, and clipping over mixed meshes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from trainer.options import OptimizerTable


def build_optimizer(parameters: Iterable[nn.Parameter], table: OptimizerTable) -> torch.optim.AdamW:
    """AdamW whose step the device can skip: set `found_inf` to a tensor of 1 and nothing changes, not even
    counts."""
    # Fused kernels take tensors of one device mesh at a time, and experts live on another than the rest.
    by_mesh: dict[tuple[DeviceMesh | None, bool], list[nn.Parameter]] = {}
    for parameter in parameters:
        by_mesh.setdefault((mesh_of(parameter), parameter.ndim >= 2), []).append(parameter)
    groups = [
        {"params": members, "weight_decay": table.weight_decay if is_matrix else 0.0}
        for (_, is_matrix), members in by_mesh.items()
    ]
    return torch.optim.AdamW(groups, lr=table.lr, betas=table.betas, eps=1e-8, fused=True)


def clip_gradients(
    parameters: Iterable[nn.Parameter],
    clip: float,
    *,
    copies: Collection[nn.Parameter] = (),
    stages: dist.ProcessGroup | None = None,
) -> Tensor:
    """Scale the gradients so that their global norm is at most `clip` (0: leave them); gives the norm before.

    Parameters may live on different meshes (or on none): norms are taken mesh by mesh, then joined, also over
    the pipeline's `stages`. `copies` among them are parameters that another stage has too: scaled, but not
    counted. A scalar on the device, equal on every rank."""
    with_gradients = [parameter for parameter in parameters if parameter.grad is not None]
    by_mesh: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in with_gradients:
        by_mesh.setdefault(mesh_of(parameter), []).append(parameter)
    norms = []
    for members in by_mesh.values():
        counted = [cast(Tensor, p.grad) for p in members if all(p is not copy for copy in copies)]
        norms += [_whole(get_total_norm(counted))] if counted else []
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    if stages is not None:
        squared = total.square()
        dist.all_reduce(squared, group=stages)
        total = squared.sqrt()
    if clip > 0:
        for members in by_mesh.values():
            clip_grads_with_norm_(members, clip, total)
    return total


def mesh_of(parameter: Tensor) -> DeviceMesh | None:
    """The device mesh that a tensor is spread over; None: it is whole."""
    return parameter.device_mesh if isinstance(parameter, DTensor) else None


def _whole(norm: Tensor) -> Tensor:
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
