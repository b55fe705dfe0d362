"""What one rank finds and all hear, and what each has and all hear. Collective throughout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import torch.distributed as dist

T = TypeVar("T")

_HEARD: Final = (ValueError, OSError)
"""Errors of rank 0 that all ranks raise. Any other it raises alone: of a process whose place is taken the
others do not wait for a word."""


def by_first_rank(find: Callable[[], T], group: dist.ProcessGroup | None, *errors: type[Exception]) -> T:
    """What rank 0 finds, on every rank; so are its ValueError, OSError and `errors` raised on each."""
    found: T | Exception | None = None
    heard: tuple[type[Exception], ...] = (*_HEARD, *errors)
    if dist.get_rank() == 0:
        try:
            found = find()
        except heard as error:
            found = error
    shared: Any = from_rank(0, found, group)
    if isinstance(shared, Exception):
        raise shared
    return cast(T, shared)


def from_rank(source: int, value: T | None, group: dist.ProcessGroup | None) -> T:
    """The value of rank `source`, on every rank."""
    shared: list[Any] = [value]
    dist.broadcast_object_list(shared, src=source, group=group)
    return cast(T, shared[0])


def of_every_rank(mine: T, group: dist.ProcessGroup | None) -> list[T]:
    """What each rank gives, by rank."""
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, mine, group=group)
    return found
