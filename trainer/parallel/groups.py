"""Process groups and device meshes over one world of ranks.

Ranks count, from the outermost dimension: pp, dp_replicate, dp_shard, cp, tp. So tensor parallel peers are
neighbours and share a node, context parallel peers lie next, and pipeline stages are furthest apart: what is
exchanged most often has the shortest way. Two device meshes lie over the same ranks, and weights are sharded
over the one or the other:

    dense     (pp, dp_replicate, dp_shard x cp, tp)
    experts   (pp, dp_replicate, shards of an expert, ep), where ep takes its ranks from dp_shard x cp x tp
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainer.recipe_tables.parallelism import Mesh

DIMENSIONS: Final = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""From the outermost, whose neighbours are furthest apart, to the innermost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meshes:
    """The device meshes that weights are spread over: `dense` (dp_replicate, fsdp, tp), `experts`
    (dp_replicate, expert_fsdp, ep), `whole` (dp_replicate, whole_fsdp): every rank of a stage and replica.
    Parameters are sharded over the dimensions whose names end in fsdp."""

    dense: DeviceMesh
    experts: DeviceMesh | None
    whole: DeviceMesh | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """This rank's process groups. `loss`: all ranks but tensor parallel peers, which have equal losses;
    `pipeline`, `context`: those dimensions; `sequence`: the ranks that share a row's positions (cp x tp);
    `stage`: the ranks of a pipeline stage, which share its weights; `ends`: the first and the last stage's
    ranks. None where a group would be this rank alone, or where this
    rank is in none."""

    loss: dist.ProcessGroup
    pipeline: dist.ProcessGroup | None
    context: dist.ProcessGroup | None
    sequence: dist.ProcessGroup | None
    stage: dist.ProcessGroup | None
    ends: dist.ProcessGroup | None


def make_groups(sizes: Mesh, timeout: datetime.timedelta) -> Groups:
    """Collective over the default group, whose size is that of the mesh."""
    loss = _subgroup(sizes, "loss", ("pp", "dp_replicate", "dp_shard", "cp"), timeout)
    return Groups(
        loss=loss or _alone(timeout),
        pipeline=_subgroup(sizes, "pipeline", ("pp",), timeout),
        context=_subgroup(sizes, "context", ("cp",), timeout),
        sequence=_subgroup(sizes, "sequence", ("cp", "tp"), timeout),
        stage=_subgroup(sizes, "stage", ("dp_replicate", "dp_shard", "cp", "tp"), timeout),
        ends=_ends(sizes, timeout),
    )


def _grid(sizes: Mesh) -> np.ndarray:
    return np.arange(sizes.num_workers).reshape([getattr(sizes, name) for name in DIMENSIONS])


def _subgroup(
    sizes: Mesh, name: str, over: tuple[str, ...], timeout: datetime.timedelta
) -> dist.ProcessGroup | None:
    """The group of the ranks that differ from this one in the dimensions `over` only."""
    axes = [DIMENSIONS.index(name) for name in over]
    kept = [axis for axis in range(len(DIMENSIONS)) if axis not in axes]
    grid = _grid(sizes)
    members = grid.transpose(kept + axes).reshape(-1, int(np.prod([grid.shape[axis] for axis in axes])))
    return _one_of(members, name, timeout)


def _ends(sizes: Mesh, timeout: datetime.timedelta) -> dist.ProcessGroup | None:
    """The first and the last pipeline rank at this rank's other coordinates; None between them."""
    if sizes.pp == 1:
        return None
    columns = _grid(sizes).reshape(sizes.pp, -1)
    return _one_of(columns[[0, -1]].T, "pipeline ends", timeout)


def _one_of(members: np.ndarray, name: str, timeout: datetime.timedelta) -> dist.ProcessGroup | None:
    if members.shape[1] == 1:
        return None
    mine = None
    for ranks in members.tolist():
        # Groups do not inherit the default group's timeout. Every rank must take part in making each.
        group = dist.new_group(ranks, timeout=timeout, group_desc=name)
        if dist.get_rank() in ranks:
            mine = group
    return mine


def _alone(timeout: datetime.timedelta) -> dist.ProcessGroup:
    groups = [
        dist.new_group([rank], timeout=timeout, group_desc="loss") for rank in range(dist.get_world_size())
    ]
    return cast(dist.ProcessGroup, groups[dist.get_rank()])


def make_meshes(
    device_type: str, sizes: Mesh, *, shards: bool, has_experts: bool, timeout: datetime.timedelta
) -> Meshes:
    """Collective. Without `shards` every data parallel rank is a replica, however the recipe names it."""
    on_gloo = dist.get_backend() == "gloo"
    world = init_device_mesh(
        device_type,
        (sizes.num_workers,),
        mesh_dim_names=("world",),
        backend_override={"world": _gloo(timeout)} if on_gloo else None,
    )
    sharded = sizes.dp_shard * sizes.cp
    replicas, fsdp = (sizes.dp_replicate, sharded) if shards else (sizes.dp_replicate * sharded, 1)

    def view(**dimensions: int) -> DeviceMesh:
        names = ("pp", "dp_replicate", *dimensions)
        rest = {"backend_override": dict.fromkeys(names, _gloo(timeout))} if on_gloo else {}
        return world._unflatten(0, (sizes.pp, replicas, *dimensions.values()), names, **cast(Any, rest))

    dense = view(fsdp=fsdp, tp=sizes.tp)
    if not has_experts:
        return Meshes(dense=dense, experts=None, whole=None)
    peers = fsdp * sizes.tp
    return Meshes(
        dense=dense,
        experts=view(expert_fsdp=peers // sizes.ep, ep=sizes.ep),
        whole=view(whole_fsdp=peers),
    )


def _gloo(timeout: datetime.timedelta) -> tuple[str, Any]:
    # Groups of a mesh do not inherit the default group's timeout.
    options = cast(Any, dist.ProcessGroupGloo)._Options()
    options._timeout = timeout
    return "gloo", options
