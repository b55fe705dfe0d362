import weakref
from collections.abc import Callable
from mmap import mmap
from types import FrameType
from typing import Any

import torch.distributed as dist

from trainer.telemetry.timing import PhaseClock

class Entries:
    """The operations of a ring, written into `map` from byte `at` on, as many as `capacity`; ValueError where they
    do not fit. Safe from several threads."""

    def __init__(self, map: mmap, at: int, capacity: int) -> None: ...
    def begin(self, site: int, step: int, group_number: int, size: int, peer: int = -1) -> int:
        """Note that an operation begins; its number, from 1 on, is for `end`."""

    def end(self, number: int) -> None:
        """Note that it has ended."""

class CountedGroup:
    """A process group with the number of collectives that it has had."""

    of: weakref.ref[dist.ProcessGroup]
    num_collectives: int

    def __init__(self, group: dist.ProcessGroup) -> None: ...

class Noting:
    """Notes operations in `entries` (None: in none) and waits in `clock`; of these those of the thread that made
    it."""

    reduces: bool
    """DDP waits for its buckets, so that other waits are no more than part of that."""

    step: int
    """The step that operations are of."""

    def __init__(
        self,
        entries: Entries | None,
        clock: PhaseClock,
        count: Callable[[dist.ProcessGroup], CountedGroup],
        site: Callable[[str, Any, FrameType], int],
        default: Callable[[], dist.ProcessGroup],
        begin_wait: Callable[[], Any],
    ) -> None:
        """`count` makes what is noted of a group, with `global_ranks` and `next_message` besides; `site` gives the
        site of an operation (its name, what is noted of its group, the frame that asks for it); `default` the group
        that none names; `begin_wait` a mark of the clock where a wait begins on a GPU, None where it is none."""

    def is_inside(self) -> bool:
        """Whether this thread is in an operation that is noted already: what torch calls then is part of it."""

    def enter(self) -> None:
        """This thread is in one from now on."""

    def leave(self) -> None:
        """It is no more."""

    def begin(
        self,
        name: str,
        group: dist.ProcessGroup | None,
        size: int,
        frame: FrameType,
        peer: int | None = None,
        group_peer: int | None = None,
    ) -> int | None:
        """Note that an operation begins, a message where a peer is given; None where nothing is noted."""

    def end(self, number: int | None) -> None:
        """Note that it has ended."""

    def end_with(self, key: int, *numbers: int | None) -> None:
        """Note that these end when what has this key is waited for: a work, or a tensor by its memory."""

    def end_all_of(self, key: int) -> None:
        """It has been waited for."""

class Collective:
    """A collective of torch, noted and timed. `at_group` and `at_input` are the places of these parameters, `input`
    the name of the latter ("" without), `tensor` torch's own type."""

    def __init__(
        self,
        noting: Noting,
        name: str,
        function: Callable[..., Any],
        at_group: int,
        at_input: int,
        input: str,
        tensor: type,
    ) -> None: ...
    def ask(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call it, for the caller of the caller."""

class Wait:
    """`Work.wait` of torch, timed; what ends with the work is noted."""

    def __init__(self, noting: Noting, function: Callable[..., Any]) -> None: ...
    def ask(self, work: dist.Work, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call it."""
