"""What a unit of work reserves of the node that it runs on, and whether the cluster can ever give it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from pipeline.cluster.capacity import Reservation
from pipeline.cluster.session import check_cluster
from pipeline.recipe.tables import RayTable, UnitKindTable

_CUSTOM_RESOURCE_SHARE: Final = 0.001
"""Of a custom resource that only says where a unit may run: a node that has one of it holds a thousand
units."""


Amount = TypeVar("Amount", float, int, str)


@dataclass(frozen=True, slots=True)
class _RequestedAmount(Generic[Amount]):
    """An amount of something, and the recipe's key that asks for it."""

    amount: Amount
    key: str


def _requested(
    name: str, own: Amount | None, general_key: str, general: Amount, kind: str
) -> _RequestedAmount[Amount]:
    return (
        _RequestedAmount(general, general_key)
        if own is None
        else _RequestedAmount(own, f"ray.stages.{kind}.{name}")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResources:
    """How a unit is scheduled: from the recipe's [ray]. `keys` are those of the recipe that said so.
    `in_process`: in this process, where a unit reserves nothing and is not tried again."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory: int = 0
    resource: str = ""
    retries: int = 2
    max_in_flight: int = 0
    grows: bool = False
    in_process: bool = False
    kind: str = ""
    keys: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: RayTable, kind: str = "") -> TaskResources:
        """For the units of a kind (UNIT_KINDS), or of none in particular."""
        own = table.stages.get(kind, UnitKindTable())
        cpus = _requested("cpus", own.cpus, "ray.unit_cpus", table.unit_cpus, kind)
        gpus = _requested("gpus", own.gpus, "", 0.0, kind)
        memory = _requested("memory", own.memory, "ray.unit_memory", table.unit_memory, kind)
        resource = _requested("resource", own.resource, "ray.unit_resource", table.unit_resource, kind)
        return cls(
            cpus=cpus.amount,
            gpus=gpus.amount,
            memory=memory.amount,
            resource=resource.amount,
            retries=table.retries,
            max_in_flight=table.max_in_flight if own.max_in_flight is None else own.max_in_flight,
            grows=table.grows,
            in_process=table.in_process,
            kind=kind,
            keys=tuple(asked.key for asked in (cpus, gpus, memory, resource) if asked.amount),
        )

    @property
    def reserved(self) -> dict[str, float]:
        """What a unit takes of its node, by Ray's names; memory in bytes."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, "memory": float(self.memory)} | (
            {self.resource: _CUSTOM_RESOURCE_SHARE} if self.resource else {}
        )
        return {name: amount for name, amount in wanted.items() if amount}

    @property
    def options(self) -> dict[str, object]:
        """The same as the options of an operator."""
        wanted: dict[str, object] = {"num_cpus": self.cpus}
        wanted |= {"num_gpus": self.gpus} if self.gpus else {}
        wanted |= {"memory": self.memory} if self.memory else {}
        return wanted | ({"resources": {self.resource: _CUSTOM_RESOURCE_SHARE}} if self.resource else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorResources:
    """A pool of actors for one operator: what each reserves, and how many there are. `stage` and `table` name
    them in errors: the operator, and the recipe's table."""

    stage: str
    table: str
    cpus: float
    gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    fewest: int = 1
    most: int = 1

    @property
    def reserved(self) -> dict[str, float]:
        """What an actor takes of its node, by Ray's names."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, **self.resources}
        return {name: amount for name, amount in wanted.items() if amount}

    @property
    def options(self) -> dict[str, object]:
        """The same as the options of an operator."""
        wanted: dict[str, object] = {"num_cpus": self.cpus, "resources": dict(self.resources) or None}
        wanted |= {"num_gpus": self.gpus} if self.gpus else {}
        # Ray Data would put an operator of tasks that asks for the same into the actors of the one behind it.
        # One byte of memory makes the two differ.
        return wanted | {"memory": 1}


def check_actors(actors: ActorResources, *, grows: bool) -> None:
    """ResourceError at once where the cluster can never hold the fewest actors of a pool (see
    `check_resources`)."""
    if grows:
        return
    keys = [
        f"{actors.table}.{name}"
        for name, amount in (("num_cpus", actors.cpus), ("num_gpus", actors.gpus))
        if amount
    ]
    keys += [f"{actors.table}.resources"] * bool(actors.resources)
    check_cluster(
        Reservation(
            what=f"{actors.stage} actor",
            keys=" or ".join(keys) or f"{actors.table}.actors",
            each=actors.reserved,
            num=actors.fewest,
        )
    )


def num_gpus() -> float:
    """GPUs that the connected cluster has."""
    import ray

    return float(ray.cluster_resources().get("GPU", 0.0))


def num_cpus() -> int:
    """Processors that the connected cluster has."""
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def check_resources(work: TaskResources) -> None:
    """Raise ResourceError at once where no node can run a unit, instead of waiting for ever: unless the
    cluster grows, since Ray does not say which nodes its autoscaler may add."""
    if not work.grows and not work.in_process:
        what = f"unit of kind {work.kind}" if work.kind else "unit"
        check_cluster(
            Reservation(what=what, keys=" or ".join(work.keys) or "ray.unit_cpus", each=work.reserved)
        )
