"""Collectives in a trace: NCCL's kernels by what torch writes beside them, gloo's work by the operator that
asked for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from trainer.evidence.profiles.rank_trace import Message
from trainer.evidence.profiles.work import ITEM_SIZES, tensors_of

_NAMES: Final = (
    ("reduce-scatter", re.compile(r"reduce_?scatter", re.IGNORECASE)),
    ("all-gather", re.compile(r"all_?gather", re.IGNORECASE)),
    ("all-reduce", re.compile(r"all_?reduce", re.IGNORECASE)),
    ("all-to-all", re.compile(r"all_?to_?all", re.IGNORECASE)),
    ("broadcast", re.compile(r"broadcast", re.IGNORECASE)),
    ("barrier", re.compile(r"barrier", re.IGNORECASE)),
    ("send, receive", re.compile(r"send|recv|receive", re.IGNORECASE)),
    ("reduce", re.compile(r"reduce", re.IGNORECASE)),
    ("gather", re.compile(r"gather", re.IGNORECASE)),
    ("scatter", re.compile(r"scatter", re.IGNORECASE)),
)
_KERNEL: Final = re.compile(r"nccl|rccl|mscclpp", re.IGNORECASE)
_GLOO_DOES: Final = {"reduce-scatter": "all-reduce"}
"""What gloo carries a collective out as."""


def collective_name(text: str) -> str:
    """The field's name of a collective; the text itself where it is none that is known."""
    return next((name for name, pattern in _NAMES if pattern.search(text)), text)


def is_communication(kernel: str) -> bool:
    """Whether a kernel of this name belongs to NCCL or a library like it."""
    return _KERNEL.search(kernel) is not None


def message_of(
    name: str, start: int, end: int, arguments: Mapping[str, Any], groups: Mapping[str, list[int]]
) -> Message | None:
    """The collective that a kernel carries out; None: it is none. torch writes name, group and sizes beside
    the kernels of its own NCCL groups; `groups` has the ranks of each."""
    given = arguments.get("Collective name")
    if given is None and not is_communication(name):
        return None
    what = collective_name(str(given or name))
    elements, size = arguments.get("In msg nelems"), arguments.get("Group size")
    itemsize = _NCCL_SIZES.get(str(arguments.get("dtype", "")).lower())
    sent = None
    if isinstance(elements, int) and isinstance(size, int) and itemsize is not None:
        sent = sent_bytes(what, elements * itemsize, size)
    group = str(arguments.get("Process Group Name", ""))
    return Message(what, start, end, group, tuple(groups.get(group, ())), sent)


_NCCL_SIZES: Final = {
    "byte": 1, "char": 1, "bool": 1, "half": 2, "bfloat16": 2, "short": 2, "int": 4, "float": 4, "long": 8,
    "double": 8, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


def sent_bytes(name: str, given: float, size: int) -> float:
    """What a rank of `size` sends on a ring where it gives `given` bytes into the collective; trees and other
    algorithms differ a little."""
    share = (size - 1) / size if size else 0.0
    if name == "all-reduce":
        return 2 * share * given
    if name in ("all-gather", "gather"):
        return (size - 1) * given
    if name in ("reduce-scatter", "all-to-all", "reduce", "scatter"):
        return share * given
    return given if size > 1 and name != "barrier" else 0.0


class Launch(NamedTuple):
    """An event with its begin, its name, and what the profile writes beside it."""

    start: int
    name: str
    arguments: Mapping[str, Any]


def launches_of(events: Iterable[Launch]) -> list[Launch]:
    """The operators that ask for a collective, in the order in which they did."""
    return sorted(events, key=lambda event: event.start)


def with_launches(
    sent: Sequence[Launch], ends: Sequence[int], launches: Sequence[Launch], groups: Mapping[str, list[int]]
) -> list[Message]:
    """gloo's work with the name of the collective that was asked for: gloo does a reduce-scatter as an
    all-reduce. A queue serves those who ask in turn, so a piece of work belongs to the first open request of
    its kind and size that came before it.

    A gloo trace does not say which group a collective is of. Where every group of more than one rank has the
    same ranks, it is that one."""
    of_ranks = {tuple(ranks) for ranks in groups.values() if len(ranks) > 1}
    (members,) = of_ranks if len(of_ranks) == 1 else ((),)
    size = len(members)
    open_launches = list(launches)
    found = []
    for work, end in sorted(zip(sent, ends, strict=True), key=lambda pair: pair[0].start):
        does, numel = (
            collective_name(work.name),
            sum(shape.numel for shape in tensors_of(work.arguments) if shape is not None),
        )
        name, fallback = does, None
        for place, launch in enumerate(open_launches):
            if launch.start > work.start:
                break
            asked = collective_name(launch.name)
            if _GLOO_DOES.get(asked, asked) != does:
                continue
            fallback = place if fallback is None else fallback
            if numel in {shape.numel for shape in tensors_of(launch.arguments) if shape is not None}:
                fallback = place
                break
        if fallback is not None:
            name = collective_name(open_launches.pop(fallback).name)
        num_bytes = sent_bytes(name, _given_bytes(work.arguments), size) if size else None
        found.append(Message(name, work.start, end, "", members, num_bytes))
    return found


def _given_bytes(arguments: Mapping[str, Any]) -> float:
    shapes = [shape for shape in tensors_of(dict(arguments)) if shape is not None]
    return float(sum(shape.numel * ITEM_SIZES.get(shape.dtype, 4) for shape in shapes))
