"""Whether a cluster can ever hold what a recipe requires: an error at once instead of a job that waits for
ever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_GIB: Final = 1 << 30


class ResourceError(ValueError):
    """The recipe requires a resource that the cluster does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """`num` nodes alike, each with these resources (memory in bytes)."""

    resources: Mapping[str, float]
    num: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """`num` things of the kind `what` that reserve `each`; `together` of them always on one node, at most
    `per_node` (None: any number) on a node. `keys` are those of the recipe that require it."""

    what: str
    keys: str
    each: Mapping[str, float]
    num: int = 1
    together: int = 1
    per_node: int | None = None


def check_capacity(wanted: Reservation, cluster: Sequence[Nodes]) -> None:
    """ResourceError where `wanted` would not fit on the cluster even if nothing else ran there."""
    room = sum(_num_on(nodes.resources, wanted) * nodes.num for nodes in cluster)
    if room >= wanted.num:
        return
    at_once = {name: amount * wanted.together for name, amount in wanted.each.items()}
    has = _describe(list(wanted.each), cluster)
    advice = f"Change {wanted.keys}, or add such nodes; where they come when they are asked for, set ray.grows = true."
    if room == 0:
        need = (
            f"{wanted.together} {wanted.what}s on one node need"
            if wanted.together > 1
            else f"a {wanted.what} needs"
        )
        raise ResourceError(f"no node has {_show(at_once)}, which {need}; {has}. {advice}")
    raise ResourceError(
        f"there is room for {room} {wanted.what}s of {_show(wanted.each)}, and {wanted.num} are wanted;"
        f" {has}. {advice}"
    )


def _num_on(node: Mapping[str, float], wanted: Reservation) -> int:
    """How many reservations a node of its own can hold, in whole groups."""
    # The sliver keeps 0.3 / 0.1 at three.
    fits = (int(node.get(name, 0.0) / amount + 1e-9) for name, amount in wanted.each.items() if amount)
    most = min(min(fits, default=wanted.num), wanted.num if wanted.per_node is None else wanted.per_node)
    return most // wanted.together * wanted.together


def _describe(names: Sequence[str], cluster: Sequence[Nodes]) -> str:
    num = sum(nodes.num for nodes in cluster)
    if num == 0:
        return "the cluster has no nodes"
    total = {name: sum(nodes.resources.get(name, 0.0) * nodes.num for nodes in cluster) for name in names}
    most = {name: max(nodes.resources.get(name, 0.0) for nodes in cluster) for name in names}
    return f"the cluster has {_show(total)} in {num} node{'s' * (num > 1)}, at most {_show(most)} in one"


def _show(resources: Mapping[str, float]) -> str:
    return ", ".join(_amount(name, amount) for name, amount in resources.items()) or "nothing"


def _amount(name: str, amount: float) -> str:
    if name == "memory":
        return f"memory {amount / _GIB:.3g} GiB"
    return f"{name} {amount:g}"
