"""Every collective and message of this process, seen where Python asks torch for it: timed, and noted in the
ring.

    torch.distributed's functions      the step's own collectives, FSDP, pipeline, experts, context, checkpoints
    functional collectives             tensor parallel: they end in a wait of their own
    DDP                                sums gradients within C++: the step says when it begins to wait for that

torch's flight recorder is published beside the ring and does not replace it. On gloo (torch 2.13) it has no
messages, no end of an operation, neither step nor phase, and names a reduce_scatter all_reduce. It is memory of the
process, so nothing of it is left of a killed rank. The waiting time needs these functions wrapped in any case.

What runs within a compiled block is not seen: the compiler finds torch's own functions behind ours. On a GPU
a collective runs on a stream of its own, and the time that counts is how long the stream that computes stands
still for it: events around each of its waits tell that."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, Final, cast

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.distributed import distributed_c10d

from trainer.recorder.noting import UNKNOWN_SIZE, Collective, CountedGroup, Noting, Wait
from trainer.recorder.ring import CallSite, RingBuffer, runs_of
from trainer.telemetry.timing import PhaseClock

_COLLECTIVES: Final = (
    "all_reduce", "all_reduce_coalesced", "reduce", "broadcast", "all_gather", "all_gather_single",
    "all_gather_into_tensor", "all_gather_coalesced", "gather", "scatter", "reduce_scatter", "reduce_scatter_single",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier", "all_gather_object", "gather_object",
    "broadcast_object_list", "scatter_object_list",
)  # fmt: skip
_TO: Final = {"send": ("dst", "group_dst"), "isend": ("dst", "group_dst")}
_FROM: Final = {"recv": ("src", "group_src"), "irecv": ("src", "group_src")}
_FUNCTIONAL: Final = (
    "all_reduce", "broadcast", "all_gather_single", "all_gather_tensor", "all_gather_single_autograd",
    "all_gather_tensor_autograd", "reduce_scatter_single", "reduce_scatter_tensor", "reduce_scatter_single_autograd",
    "reduce_scatter_tensor_autograd", "all_to_all_single", "all_to_all_single_autograd",
)  # fmt: skip
_PLAIN_NAMES: Final = {
    # One collective has had several names, and ranks are compared by it.
    "all_gather_into_tensor": "all_gather_single",
    "all_gather_tensor": "all_gather_single",
    "reduce_scatter_tensor": "reduce_scatter_single",
}
# Bound here, for every operation of a step asks for them. `is_compiling` of torch.compiler itself asks two
# functions more, for what exports a model and never runs here.
is_compiling: Final = torch.compiler.is_dynamo_compiling
_now: Final = time.perf_counter
_getframe: Final = sys._getframe
_get_default_group: Final = distributed_c10d._get_default_group
_OUR_FOLDER: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OUR_RECORDING: Final = frozenset({os.path.abspath(__file__)})


class _Group(CountedGroup):
    """What is noted of a process group: its name and ranks, and how many operations it has had."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group)
        ranks = dist.get_process_group_ranks(group)
        described = group.group_desc if group.group_desc not in ("", "undefined") else "group"
        self.ranks = runs_of(ranks)
        self.name = f"{described} {group.group_name}"
        self.global_ranks = ranks
        self.num_messages: dict[tuple[bool, int], int] = {}

    def next_message(self, name: str, peer: int) -> int:
        """The number of the message that begins."""
        sends = name in _TO
        number = self.num_messages.get((sends, peer), 0) + 1
        self.num_messages[sends, peer] = number
        return number


class Operations:
    """Times what this process waits for, into `clock`, and notes every operation in `ring` (None: in none).

    Made and closed on the thread that runs the steps, whose waiting alone is counted."""

    def __init__(self, clock: PhaseClock, ring: RingBuffer | None) -> None:
        self._clock, self._ring = clock, ring
        self._thread = get_ident()
        self._noting = Noting(
            entries=None if ring is None else ring.entries,
            clock=clock,
            count=_Group,
            site=self._site,
            default=_get_default_group,
            begin_wait=self._begin_wait,
        )
        self._sites: dict[tuple[str, str, str, CodeType, int], int] = {}
        self._lock = threading.Lock()
        self._reduction: tuple[int | None, Any] | None = None
        self._undo: list[Callable[[], None]] = []
        self._own_code: dict[CodeType, bool] = {}
        try:
            self._wrap_all()
        except BaseException:
            self.close()
            raise

    @property
    def step(self) -> int:
        """The step that operations are of."""
        return self._noting.step

    @step.setter
    def step(self, step: int) -> None:
        self._noting.step = step

    def close(self) -> None:
        """Put torch's functions back."""
        while self._undo:
            self._undo.pop()()

    def begin_reduction(self, group: dist.ProcessGroup) -> None:
        """From now until `end_reduction` DDP waits for its buckets."""
        self._reduction = (self._begin("all_reduce", group, UNKNOWN_SIZE), self._clock.now())
        self._noting.reduces = True

    def end_reduction(self) -> None:
        """Backward has returned."""
        if self._reduction is not None:
            (number, waited), self._reduction = self._reduction, None
            self._noting.reduces = False
            self._clock.end_wait(waited)
            self._noting.end(number)

    def _wrap_all(self) -> None:
        for name in _COLLECTIVES:
            self._replace(distributed_c10d, name, functools.partial(self._collective, name))
        for name in (*_TO, *_FROM):
            self._replace(distributed_c10d, name, functools.partial(self._message, name))
        self._replace(distributed_c10d, "batch_isend_irecv", self._batch)
        for name in _FUNCTIONAL:
            self._replace(functional, name, functools.partial(self._functional, name))
        self._replace(functional, "wait_tensor", self._wait_tensor)
        self._put(dist.Work, "wait", self._wait(dist.Work.wait))
        if self._clock.on_gpu:
            # `wait_stream` calls it too.
            self._put(torch.cuda.Stream, "wait_event", self._stream_wait(torch.cuda.Stream.wait_event))

    def _replace(
        self, module: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        function = getattr(module, name, None)
        if function is None:  # of another release of torch
            return
        wrapped = functools.wraps(function)(wrap(function))
        self._put(module, name, wrapped)
        if getattr(dist, name, None) is function:
            self._put(dist, name, wrapped)

    def _put(self, owner: Any, name: str, value: Any) -> None:
        before = getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before))

    def _collective(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = list(inspect.signature(function).parameters)
        at_group, plain = parameters.index("group"), _PLAIN_NAMES.get(name, name)
        # By the input, which is as large on every rank; gathered lists come first in some signatures.
        of_input = next((each for each in ("input_tensor", "input", "tensor") if each in parameters), "")
        at_input = parameters.index(of_input) if of_input else len(parameters)
        ask = Collective(
            self._noting,
            plain,
            function=function,
            at_group=at_group,
            at_input=at_input,
            input=of_input,
            tensor=Tensor,
        ).ask

        # The compiler of a model's blocks looks into a function of Python alone.
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return function(*args, **kwargs)
            return ask(args, kwargs, _getframe(1))

        return call

    def _message(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = list(inspect.signature(function).parameters)
        by_rank, by_group_rank = (_TO | _FROM)[name]
        places = [parameters.index(each) for each in ("tensor", "group", by_rank, by_group_rank)]

        def call(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or self._noting.is_inside():
                return function(*args, **kwargs)
            tensor, group, peer, group_peer = (_argument(args, kwargs, at, parameters) for at in places)
            number = self._begin(name, group, _size(tensor), peer=peer, group_peer=group_peer)
            waited = self._begin_wait()
            self._noting.enter()
            try:
                result = function(*args, **kwargs)
            finally:
                self._noting.leave()
            self._end_wait(waited)
            if isinstance(result, dist.Work):
                self._noting.end_with(id(result), number)
            else:
                self._noting.end(number)
            return result

        return call

    def _batch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(operations: list[dist.P2POp]) -> list[dist.Work]:
            if is_compiling():
                return cast(list[dist.Work], function(operations))
            numbers = [
                self._begin(each.op.__name__, each.group, _size(each.tensor), peer=each.peer)
                for each in operations
            ]
            self._noting.enter()
            try:
                works: list[dist.Work] = function(operations)
            finally:
                self._noting.leave()
            if len(works) == len(numbers):
                for work, number in zip(works, numbers, strict=True):
                    self._noting.end_with(id(work), number)
            elif works:  # coalesced: one ends with all
                self._noting.end_with(id(works[-1]), *numbers)
            return works

        return call

    def _functional(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = list(inspect.signature(function).parameters)
        at_group, plain = parameters.index("group"), _PLAIN_NAMES.get(name, name).removesuffix("_autograd")

        def call(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or self._noting.is_inside() or functional._are_we_tracing():
                return function(*args, **kwargs)
            group = _argument(args, kwargs, at_group, parameters)
            number = self._begin(plain, _resolved(group), _size(_argument(args, kwargs, 0, parameters)))
            self._noting.enter()
            try:
                result = function(*args, **kwargs)
            finally:
                self._noting.leave()
            if isinstance(elem := getattr(result, "elem", result), Tensor):
                self._noting.end_with(elem.data_ptr(), number)
            return result

        return call

    def _wait_tensor(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(tensor: Tensor) -> Any:
            if is_compiling() or self._noting.is_inside() or functional._are_we_tracing():
                return function(tensor)
            waited = self._begin_wait()
            result = function(tensor)
            self._end_wait(waited)
            self._noting.end_all_of(tensor.data_ptr())
            return result

        return call

    def _wait(self, function: Callable[..., Any]) -> Callable[..., Any]:
        ask = Wait(self._noting, function).ask

        def wait(work: dist.Work, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return function(work, *args, **kwargs)
            return ask(work, args, kwargs)

        return wait

    def _stream_wait(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wait(stream: torch.cuda.Stream, other: Any) -> Any:
            # A rank's own batch is no other rank's doing.
            counts = self._clock.has_data and self._is_of_the_step() and self._clock.computes_on(stream)
            if self._noting.is_inside() or not counts:
                return function(stream, other)
            waited = self._clock.now()
            result = function(stream, other)
            self._clock.end_wait(waited)
            return result

        return wait

    def _begin_wait(self) -> Any:
        clock = self._clock
        if not clock.on_gpu:
            return _now() if self._reduction is None and get_ident() == self._thread else None
        return clock.now() if self._is_of_the_step() and clock.computes_on() else None

    def _end_wait(self, waited: Any) -> None:
        if waited is not None:
            self._clock.end_wait(waited)

    def _is_of_the_step(self) -> bool:
        """Whether this thread's waiting is the step's: that of its own thread, and of autograd's on a GPU,
        which no Python code has started."""
        thread = get_ident()
        return self._reduction is None and (
            thread == self._thread or (self._clock.on_gpu and thread not in threading._active)  # type: ignore[attr-defined]
        )

    def _begin(
        self, name: str, group: Any, size: int, *, peer: int | None = None, group_peer: int | None = None
    ) -> int | None:
        """Note that an operation begins, which the caller's caller asks for."""
        return self._noting.begin(name, group, size, _getframe(2), peer=peer, group_peer=group_peer)

    def _site(self, name: str, group: _Group, frame: FrameType) -> int:
        """The site of an operation that `frame` asks for."""
        code, line = self._place(frame)
        key = (name, group.name, self._clock.phase or "", code, line)
        site = self._sites.get(key)
        return self._add_site(key, group) if site is None else site

    def _add_site(self, key: tuple[str, str, str, CodeType, int], group: _Group) -> int:
        name, group_name, phase, code, line = key
        site = CallSite(
            name=name,
            group=group_name,
            ranks=group.ranks,
            phase=phase,
            file=_shown(code.co_filename),
            line=line,
            function=code.co_qualname,
        )
        assert self._ring is not None
        with self._lock:
            if key not in self._sites:
                self._sites[key] = self._ring.add_site(site)
            return self._sites[key]

    def _place(self, frame: FrameType) -> tuple[CodeType, int]:
        """The innermost line of the trainer on the way to `frame`; where there is none (autograd's threads of
        a GPU), that of torch itself."""
        first: FrameType | None = None
        at: FrameType | None = frame
        own = self._own_code
        while at is not None:
            code = at.f_code
            is_ours = own.get(code)
            if is_ours is None:
                path = os.path.abspath(code.co_filename)
                is_ours = own[code] = path.startswith(_OUR_FOLDER) and path not in _OUR_RECORDING
            if is_ours:
                return code, at.f_lineno
            if first is None and code.co_filename not in _OUR_RECORDING:
                first = at
            at = at.f_back
        found = first or frame
        return found.f_code, found.f_lineno


def _argument(args: Sequence[Any], kwargs: dict[str, object], at: int, parameters: Sequence[str]) -> Any:
    return args[at] if at < len(args) else kwargs.get(parameters[at])


def _size(value: Any) -> int:
    return value.nbytes if isinstance(value, Tensor) else UNKNOWN_SIZE


def _resolved(group: Any) -> Any:
    """The process group that a functional collective names: itself, by name, or as a dimension of a mesh."""
    if isinstance(group, str):
        return cast(Any, distributed_c10d)._resolve_process_group(group)
    if isinstance(group, tuple):
        mesh, dimension = group
        return mesh.get_group(dimension)
    return group


def _shown(path: str) -> str:
    """A file's name as people know it: from the package's folder on."""
    for mark in (f"{os.sep}site-packages{os.sep}", os.path.dirname(os.path.dirname(_OUR_FOLDER)) + os.sep):
        if mark in path:
            return path.rsplit(mark, 1)[-1]
    return path
