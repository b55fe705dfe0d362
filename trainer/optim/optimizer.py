"""AdamW, and Muon beside it; clipping over mixed meshes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from trainer.model.config.description import LatentAttention
from trainer.model.peers import local_part
from trainer.optim.muon import Member, Muon
from trainer.optim.roles import DECAYING, group_of, role_of, rows_of_matrices
from trainer.recipe_tables.optimizer import OptimizerTable

MATRICES: Final = "exchange of matrices with their owners"
_MOMENTS: Final = ("exp_avg", "exp_avg_sq")
"""AdamW's, by torch's names."""


class Optimizer:
    """What updates a rank's parameters, each by the optimizer that it is for, and averages them.

    `adamw`, `muon`: either is None where nothing is for it."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        table: OptimizerTable,
        group: dist.ProcessGroup | None,
        latent: LatentAttention | None = None,
    ) -> None:
        """`parameters` by their names; `group`: the ranks that share them, None: this rank has them alone.
        Every rank of it makes one. `latent`: the model's latent attention, whose parameters hold several
        matrices each."""
        # Fused kernels take tensors of one device mesh at a time, and experts live on another than the rest.
        for_adamw: dict[tuple[DeviceMesh | None, float, float], list[nn.Parameter]] = {}
        for_muon = []
        for name, parameter in parameters.items():
            role = role_of(name, parameter.ndim)
            is_muons = table.name == "muon" and role == "matrix"
            own = table.muon if is_muons else table
            peak, decay = own.lr, own.weight_decay if role in DECAYING else 0.0
            if (group_ := group_of(name, role, table.group)) is not None:
                peak = peak * group_.lr_factor
                decay = decay if group_.weight_decay is None else group_.weight_decay
            if is_muons:
                rows = rows_of_matrices(name, parameter.shape[-2], latent)
                for_muon.append(Member(parameter=parameter, rows=rows, peak=peak, weight_decay=decay))
            else:
                for_adamw.setdefault((mesh_of(parameter), peak, decay), []).append(parameter)
        groups = [
            {"params": members, "peak": peak, "weight_decay": decay}
            for (_, peak, decay), members in for_adamw.items()
        ]
        self.adamw = torch.optim.AdamW(groups, lr=table.lr, betas=table.betas, eps=1e-8, fused=True)
        self.muon = Muon(for_muon, table.muon, group) if for_muon else None
        self._parameters = [*parameters.values()]
        self._ema = table.ema
        self._averages = {p: p.detach().clone() for p in self._parameters} if table.ema else {}

    def begin(self) -> None:
        """The weights are those that a run begins with: averages begin there."""
        for parameter, average in self._averages.items():
            average.copy_(parameter.detach())

    def prepare(self, waiting: Callable[[str], None] = lambda where: None) -> None:
        """What a step needs other ranks for, before it is brought into the weights. `waiting`: told of the
        exchange that comes next. Collective."""
        if self.muon is not None:
            waiting(MATRICES)
            self.muon.prepare()

    @torch.no_grad()
    def step(self, rate: Callable[[float], float], verdict: Tensor) -> None:
        """Bring a prepared step into weights, states and averages, and drop its gradients. Where `verdict`, a
        number on the device, is not 0, nothing changes, not even counts. `rate`: of a peak, the learning rate
        now."""
        for group in self.adamw.param_groups:
            group["lr"] = rate(group["peak"])
        # The fused kernel reads this on the device.
        self.adamw.found_inf = (verdict != 0).to(torch.float32)  # type: ignore[attr-defined]
        self.adamw.step()
        counts = verdict == 0
        if self.muon is not None:
            self.muon.apply(rate, counts)
        for parameter, average in self._averages.items():
            share = counts.to(average.dtype) * (1 - self._ema)
            local_part(average).lerp_(local_part(parameter.detach()), share)
        for parameter in self._parameters:
            parameter.grad = None

    def state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """What is kept of a parameter from step to step, by kind, sharing memory. KeyError for a tensor that
        is not updated here, as a gathered copy."""
        kept = {"ema": self._averages[parameter]} if self._ema else {}
        if self.muon is not None and parameter in self.muon.momenta:
            return kept | {"momentum": self.muon.momenta[parameter]}
        moments = self._moments(parameter)
        return kept | {kind: moments[kind] for kind in _MOMENTS}

    @property
    def num_updates(self) -> Tensor:
        """How many steps counted, as AdamW keeps it."""
        return self._moments(self.adamw.param_groups[0]["params"][0])["step"]

    def set_num_updates(self, num: Tensor) -> None:
        """Make the counts that of a step which others, or a checkpoint, have come to."""
        for group in self.adamw.param_groups:
            for parameter in group["params"]:
                self._moments(parameter)["step"].copy_(num)

    def _moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        moments = cast(dict[str, Tensor], self.adamw.state[parameter])
        if not moments:
            # What AdamW makes at its first step: fused kernels keep the count on the parameter's device.
            moments["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            moments |= {kind: torch.zeros_like(parameter).detach() for kind in _MOMENTS}
        return moments


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
        norms += [_full_norm(get_total_norm(counted))] if counted else []
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


def _full_norm(norm: Tensor) -> Tensor:
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
