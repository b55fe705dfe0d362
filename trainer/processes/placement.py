"""What the processes of a run reserve on a cluster, and where they may lie: tensor-parallel peers share a
node, and neighbours lie near."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lineage.recipe import RecipeError
from trainer.options import TrainTable

_CUSTOM_RESOURCE_SHARE: Final = 0.001
"""Of a custom resource that only says where work may run: a node that has one of it holds a thousand such
processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """`num` processes that reserve `each` (Ray's resource names; memory in bytes): `together` of them always
    on one node, at most `per_node` (None: any number) on a node."""

    each: Mapping[str, float]
    num: int
    together: int
    per_node: int | None


def workers_of(table: TrainTable, cluster_gpus: float, num_spares: int = 0) -> Workers:
    """The workers of a run, and `num_spares` that wait, on a cluster that has `cluster_gpus` GPUs now: where
    the recipe does not say, each gets a GPU if there is one for each."""
    resources, num = table.resources, table.num_workers + num_spares
    gpus = resources.gpus if resources.gpus is not None else int(cluster_gpus >= num)
    each = {"CPU": resources.cpus, "GPU": float(gpus), "memory": float(resources.memory)}
    each |= {resources.resource: _CUSTOM_RESOURCE_SHARE} if resources.resource else {}
    return Workers(
        each={name: amount for name, amount in each.items() if amount},
        num=num,
        together=num if resources.placement == "STRICT_PACK" else table.mesh.tp,
        per_node=1 if resources.placement == "STRICT_SPREAD" else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledNode:
    """A node of a cluster: its labels, and what it has in all (Ray's resource names)."""

    labels: Mapping[str, str]
    resources: Mapping[str, float]

    def room(self, each: Mapping[str, float]) -> int:
        """How many workers fit, were nothing else on the node."""
        return int(
            min((self.resources.get(name, 0.0) / amount for name, amount in each.items()), default=0.0)
        )


def label_selectors(workers: Workers, nodes: Sequence[LabelledNode], label: str) -> list[dict[str, str]]:
    """For each rank the label of the nodes that it may lie on: one value's nodes are filled before those of
    the next, the value with the most room first, so that consecutive ranks are near each other and as few
    borders as possible are crossed. Workers that must be together stay on one side of a border. RecipeError
    where there is no room for all."""
    room: Counter[str] = Counter()
    for node in nodes:
        if label in node.labels:
            room[node.labels[label]] += node.room(workers.each) // workers.together * workers.together
    chosen = [
        {label: value}
        for value, held in sorted(room.items(), key=lambda one: (-one[1], one[0]))
        for _ in range(held)
    ]
    if len(chosen) < workers.num:
        raise RecipeError(
            f"train.resources.near = {label!r}: the nodes with this label have room for {len(chosen)} of "
            f"{workers.num} workers; expected a label of all training nodes, or none"
        )
    return chosen[: workers.num]


def local_cpus(table: TrainTable) -> int:
    """Processors that a machine must offer for all workers of the run and those that wait."""
    return math.ceil(table.resources.cpus * (table.num_workers + table.recovery.spares))


def split_peers(nodes: Sequence[str], tp: int) -> str | None:
    """What is wrong with a placement, None if nothing is: `nodes` names the node of each rank.

    Tensor parallelism exchanges activations in every layer, so its `tp` consecutive ranks (it is the mesh's
    innermost dimension) must not talk over the network between nodes."""
    for first in range(0, len(nodes), tp):
        if len(set(nodes[first : first + tp])) > 1:
            where = ", ".join(
                f"rank {first + at} on {node}" for at, node in enumerate(nodes[first : first + tp])
            )
            return (
                f"train.parallel.tp = {tp}: these share every layer but not a node: {where}. Nodes must have"
                f" room for multiples of {tp} workers: set train.resources.cpus or gpus so, or"
                " train.resources.placement = "
                '"STRICT_PACK" where one node holds them all'
            )
    return None
