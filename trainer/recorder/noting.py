# cython: annotation_typing=False
"""What every collective of a step passes on its way: noting in the ring that it begins and ends, and in the clock how
long this rank waited for it. `operations.py` says what is noted, and does whatever comes seldom.

It runs as it stands here, and set up by `make` it is compiled, with the types in noting.pxd: a collective of a step
finds little of this in the processor's cache, so that it costs as much as it goes through of Python."""

from __future__ import annotations

import itertools
import math
import struct
import time
import weakref
from collections.abc import Callable
from mmap import mmap
from threading import get_ident
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch.distributed as dist

    from trainer.telemetry.timing import PhaseClock

OPERATION: Final = struct.Struct("<QIiqQqdd8x")
"""Number from 1 on, site, peer, step, number of the group, bytes, enter and exit in seconds."""
_EXIT: Final = struct.Struct("<d")
_EXIT_OFFSET: Final = 48
_MOST_ASKED: Final = 4096
"""Operations of a step whose sites are remembered for the next one."""
_MOST_PENDING: Final = 4096
"""Asynchronous operations whose end nobody has waited for: forgotten beyond that."""
UNKNOWN_SIZE: Final = -1
_NO_PEER: Final = -1
# A name of the module is found sooner than an attribute of one, and an operation of a rank asks for each.
_NAN: Final = math.nan
_write: Final = OPERATION.pack_into
_write_exit: Final = _EXIT.pack_into
_now: Final = time.perf_counter


class Entries:
    """The operations of a ring, written into `map` from byte `at` on, as many as `capacity`; ValueError where they
    do not fit. Safe from several threads."""

    def __init__(self, map: mmap, at: int, capacity: int) -> None:
        if capacity < 1 or at < 0 or at + capacity * OPERATION.size > len(map):
            raise ValueError(f"{capacity} operations from byte {at} on do not fit into {len(map)} bytes")
        self._map, self._at, self._capacity, self._size = map, at, capacity, OPERATION.size
        self._numbers = itertools.count(1)
        self._holds = [0] * capacity
        """The number in each place: asked here, and not in the map, for it is asked each time."""

    def note(  # noqa: PLR0917 - names would cost a compiled call more than all else in it
        self, site: int, step: int, group_number: int, size: int, peer: int, enter: float
    ) -> int:
        """Note that an operation began; its number is for `note_end`."""
        number: int = next(self._numbers)
        place = number % self._capacity
        self._holds[place] = number
        _write(
            self._map,
            self._at + place * self._size,
            number,
            site,
            peer,
            step,
            group_number,
            size,
            enter,
            _NAN,
        )
        return number

    def note_end(self, number: int, exit: float) -> None:
        """Note that it has ended."""
        place = number % self._capacity
        if self._holds[place] == number:  # not overwritten meanwhile
            _write_exit(self._map, self._at + place * self._size + _EXIT_OFFSET, exit)

    def begin(self, site: int, step: int, group_number: int, size: int, peer: int = _NO_PEER) -> int:
        """`note` of now."""
        return self.note(site, step, group_number, size, peer, _now())

    def end(self, number: int) -> None:
        """`note_end` of now."""
        self.note_end(number, _now())


class CountedGroup:
    """A process group with the number of collectives that it has had."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.of = weakref.ref(group)
        self.num_collectives = 0


_Asked = tuple[str, CountedGroup, Any, CodeType, int, int]
"""An operation: its name, what is noted of its group, the phase, code and instruction that ask for it, its site."""


class Noting:
    """Notes operations in `entries` (None: in none) and waits in `clock`; of these those of the thread that made
    it.

    `count` makes what is noted of a group, with `global_ranks` and `next_message` besides. `site` gives the site of
    an operation (its name, what is noted of its group, the frame that asks for it), `default` the group that none
    names, `begin_wait` a mark of the clock where a wait begins on a GPU, None where it is none. `reduces`: DDP waits
    for its buckets, so that other waits are no more than part of that."""

    def __init__(
        self,
        *,
        entries: Entries | None,
        clock: PhaseClock,
        count: Callable[[dist.ProcessGroup], CountedGroup],
        site: Callable[[str, Any, FrameType], int],
        default: Callable[[], dist.ProcessGroup],
        begin_wait: Callable[[], Any],
    ) -> None:
        self.entries, self.clock, self.begin_wait = entries, clock, begin_wait
        self._count, self._site, self._default = count, site, default
        self.on_gpu = clock.on_gpu
        self._thread = get_ident()
        self._is_inside = self.reduces = False
        self._others_inside: set[int] = set()
        self._groups: dict[int, CountedGroup] = {}
        self._pending: dict[int, tuple[int | None, ...]] = {}
        self._asked: list[_Asked] = []
        self._num_asked = 0
        self.step_now = -1

    @property
    def step(self) -> int:
        """The step that operations are of."""
        return self.step_now

    @step.setter
    def step(self, step: int) -> None:
        self.step_now, self._num_asked = step, 0

    def is_inside(self) -> bool:
        """Whether this thread is in an operation that is noted already: what torch calls then is part of it."""
        thread = get_ident()
        return self._is_inside if thread == self._thread else thread in self._others_inside

    def enter(self) -> None:
        """This thread is in one from now on."""
        thread = get_ident()
        if thread == self._thread:
            self._is_inside = True
        else:
            self._others_inside.add(thread)

    def leave(self) -> None:
        """It is no more."""
        thread = get_ident()
        if thread == self._thread:
            self._is_inside = False
        else:
            self._others_inside.discard(thread)

    def begin(
        self,
        name: str,
        group: dist.ProcessGroup | None,
        size: int,
        frame: FrameType,
        *,
        peer: int | None = None,
        group_peer: int | None = None,
    ) -> int | None:
        """Note that an operation begins, a message where a peer is given; None where nothing is noted."""
        if self.entries is None:
            return None
        known: Any = self.known(group)
        site = self.place(name, known, frame)
        if peer is None and group_peer is None:
            known.num_collectives += 1
            return self.entries.begin(site, self.step_now, known.num_collectives, size)
        if peer is None:
            peer = known.global_ranks[group_peer]
        return self.entries.begin(site, self.step_now, known.next_message(name, peer), size, peer)

    def end(self, number: int | None) -> None:
        """Note that it has ended."""
        if number is not None and self.entries is not None:
            self.entries.end(number)

    def end_with(self, key: int, *numbers: int | None) -> None:
        """Note that these end when what has this key is waited for: a work, or a tensor by its memory."""
        if self.entries is not None:
            if len(self._pending) >= _MOST_PENDING:
                self._pending.clear()
            self._pending[key] = numbers

    def end_all_of(self, key: int) -> None:
        """It has been waited for."""
        for number in self._pending.pop(key, ()):
            self.end(number)

    def known(self, group: dist.ProcessGroup | None) -> CountedGroup:
        """What is noted of a group."""
        if group is None:  # asking for its type takes longer than all of this
            group = self._default()
        known = self._groups.get(id(group))
        if known is None or known.of() is not group:
            known = self._groups[id(group)] = self._count(group)
        return known

    def place(self, name: str, group: CountedGroup, frame: FrameType) -> int:
        """The site of an operation that `frame` asks for.

        To find the trainer's line is dear where it lies far out, as behind fully_shard's hooks, and one step asks
        like the one before: the same at the same place in it is known."""
        order = self._num_asked
        self._num_asked = order + 1
        phase, code, instruction = self.clock.phase, frame.f_code, frame.f_lasti
        if order < len(self._asked):
            asked = self._asked[order]
            if (
                asked[0] is name
                and asked[1] is group
                and asked[2] is phase
                and asked[3] is code
                and asked[4] == instruction
            ):
                return asked[5]
        site = self._site(name, group, frame)
        if order < _MOST_ASKED:
            self._asked[order : order + 1] = [(name, group, phase, code, instruction, site)]
        return site

    def add_wait(self, began: float, ended: float) -> None:
        """The step waited, without a GPU."""
        if not self.reduces and get_ident() == self._thread:
            self.clock.add_wait(began, ended)


class Collective:
    """A collective of torch, noted and timed. `at_group` and `at_input` are the places of these parameters, `input`
    the name of the latter ("" without), `tensor` torch's own type."""

    def __init__(
        self,
        noting: Noting,
        name: str,
        *,
        function: Callable[..., Any],
        at_group: int,
        at_input: int,
        input: str,
        tensor: type,
    ) -> None:
        self._noting, self._name, self._function = noting, name, function
        self._at_group, self._at_input, self._input, self._tensor = at_group, at_input, input, tensor

    def ask(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
        """Call it, for `frame`."""
        noting = self._noting
        entries = noting.entries
        if noting.is_inside():
            return self._function(*args, **kwargs)
        number = site = group_number = 0
        size = UNKNOWN_SIZE
        if entries is not None:
            given = args[self._at_input] if self._at_input < len(args) else kwargs.get(self._input)
            if isinstance(given, self._tensor):
                size = given.nbytes  # type: ignore[attr-defined]
            known = noting.known(args[self._at_group] if self._at_group < len(args) else kwargs.get("group"))
            site = noting.place(self._name, known, frame)
            known.num_collectives += 1
            group_number = known.num_collectives
        waited = noting.begin_wait() if noting.on_gpu else None
        began = _now()
        if entries is not None:
            number = entries.note(site, noting.step_now, group_number, size, _NO_PEER, began)
        noting.enter()
        try:
            result = self._function(*args, **kwargs)
        finally:
            noting.leave()
        ended = _now()
        if not noting.on_gpu:
            noting.add_wait(began, ended)
        elif waited is not None:
            noting.clock.end_wait(waited)
        if entries is not None:
            if result is None:
                entries.note_end(number, ended)
            else:  # a Work
                noting.end_with(id(result), number)
        return result


class Wait:
    """`Work.wait` of torch, timed; what ends with the work is noted."""

    def __init__(self, noting: Noting, function: Callable[..., Any]) -> None:
        self._noting, self._function = noting, function

    def ask(self, work: dist.Work, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call it."""
        noting = self._noting
        if noting.is_inside():
            return self._function(work, *args, **kwargs)
        waited = noting.begin_wait() if noting.on_gpu else None
        began = _now()
        result = self._function(work, *args, **kwargs)
        ended = _now()
        if not noting.on_gpu:
            noting.add_wait(began, ended)
        elif waited is not None:
            noting.clock.end_wait(waited)
        noting.end_all_of(id(work))
        return result
