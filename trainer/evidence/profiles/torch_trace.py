"""A Chrome trace of torch.profiler as a `RankTrace`: on a GPU from its kernels, on a CPU from the operators."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypedDict

from trainer.evidence.profiles.communication import Launch, launches_of, message_of, with_launches
from trainer.evidence.profiles.intervals import union
from trainer.evidence.profiles.rank_trace import (
    Activity,
    Message,
    Named,
    RankTrace,
    Started,
    TraceError,
    Work,
)
from trainer.evidence.profiles.work import UNKNOWN, cost_of
from trainer.telemetry.phases import PHASES
from trainer.telemetry.trace_file import STEPS_KEY

_HOST_KINDS: Final = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "python_function")
_KERNELS: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_OUTSIDE: Final = ("c10d::", "_c10d_functional::", "symm_mem::")
"""Operators that ask for a collective or wait for it: nothing is computed in them."""
_WRAPPERS: Final = ("autograd::", "torch::autograd::")
_COMPILED: Final = "## Call CompiledFxGraph"
"""Its kernels on a CPU are no operators: what this annotation spends outside of other operators is theirs."""


class _TraceEvent(TypedDict, total=False):
    """An event of a Chrome trace: `ph` is its kind, `ts` and `dur` are microseconds."""

    ph: str
    ts: float
    dur: float
    name: str
    cat: str
    pid: object
    tid: object
    args: dict[str, object] | None


class _Event(NamedTuple):
    start: int
    end: int
    name: str
    kind: str
    thread: str
    arguments: dict[str, object]


def read_torch_trace(data: bytes, rank: int) -> RankTrace:
    """The trace of a rank, gzipped or not. TraceError where it is none."""
    try:
        whole = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        events = list(_events(whole["traceEvents"]))
        base = int(whole.get("baseTimeNanoseconds", 0))
        distributed = whole.get("distributedInfo") or {}
        devices = whole.get("deviceProperties") or []
        own = whole.get(STEPS_KEY) or {}
        host_name = str(whole.get("host_name", ""))
        groups = {str(one["pg_name"]): list(one["ranks"]) for one in distributed.get("pg_config") or []}
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TraceError(f"expected a Chrome trace of torch.profiler ({error!r})") from error
    kernels = [event for event in events if event.kind in _KERNELS]
    host = [event for event in events if event.kind in _HOST_KINDS]
    if not host and not kernels:
        raise TraceError("it holds no operator and no kernel")
    phases = [event for event in host if event.name in PHASES and event.kind == "user_annotation"]
    marks = phases or kernels or host
    begin, end = min(event.start for event in marks), max(event.end for event in [*marks, *kernels])
    shifted = [event._replace(start=event.start - begin, end=event.end - begin) for event in events]
    read = _of_gpu(shifted, groups) if kernels else _of_cpu(shifted, groups)
    steps = _steps(own)
    return RankTrace(
        rank=int(distributed.get("rank", rank)),
        host_name=host_name,
        device=str(devices[0].get("name", "GPU")) if kernels and devices else "GPU" if kernels else "CPU",
        begin=base + begin,
        end=base + end,
        first_step=steps[0],
        num_steps=steps[1],
        phases=[Named(one.start - begin, one.end - begin, one.name) for one in phases],
        activity=read,
    )


def _steps(own: dict[str, object]) -> tuple[int | None, int | None]:
    first, last = own.get("first_step"), own.get("last_step")
    if isinstance(first, int) and isinstance(last, int):
        return first, last - first + 1
    return None, None


def _events(rows: Iterable[_TraceEvent]) -> Iterator[_Event]:
    """Complete events, from microseconds to nanoseconds."""
    for row in rows:
        if row.get("ph") == "X":
            start = round(float(row["ts"]) * 1e3)
            end = start + round(float(row.get("dur", 0)) * 1e3)
            thread = f"{row.get('pid')}/{row.get('tid')}"
            yield _Event(start, end, row["name"], row.get("cat", ""), thread, row.get("args") or {})


def _of_gpu(events: Sequence[_Event], groups: dict[str, list[int]]) -> Activity:
    """Kernels carry the operator that started them ("External id") and the call that launched them
    ("correlation")."""
    operators = {
        event.arguments["External id"]: event
        for event in events
        if event.kind == "cpu_op" and "External id" in event.arguments
    }
    calls = {
        event.arguments["correlation"]: event
        for event in events
        if event.kind in ("cuda_runtime", "cuda_driver") and "correlation" in event.arguments
    }
    computing: list[_Event] = []
    copying: list[_Event] = []
    messages: list[Message] = []
    starts: list[Started] = []
    for event in events:
        if event.kind not in _KERNELS:
            continue
        call = calls.get(event.arguments.get("correlation"))
        starts.append(Started(event.start, call and call.start, call.thread if call else ""))
        message = message_of(event.name, event.start, event.end, event.arguments, groups)
        if event.kind != "kernel":
            copying.append(event)
        elif message is not None:
            messages.append(message)
        else:
            computing.append(event)
    return Activity(
        computing=union([one.start for one in computing], [one.end for one in computing]),
        copying=union([one.start for one in copying], [one.end for one in copying]),
        works=list(_kernel_works(computing, operators)),
        messages=messages,
        starts=sorted(starts),
        waits=[
            Named(event.start, event.end, event.name)
            for event in events
            if event.kind in ("cuda_runtime", "cuda_driver") and "Synchronize" in event.name
        ],
        host=_by_thread(events),
        on_gpu=True,
    )


def _kernel_works(kernels: Sequence[_Event], operators: dict[Any, _Event]) -> Iterator[Work]:
    """An operator's cost goes to the longest of the kernels that it started."""
    longest: dict[Any, _Event] = {}
    for kernel in kernels:
        key = kernel.arguments.get("External id")
        if key not in longest or kernel.end - kernel.start > longest[key].end - longest[key].start:
            longest[key] = kernel
    for kernel in kernels:
        key = kernel.arguments.get("External id")
        operator = operators.get(key)
        cost = UNKNOWN
        if operator is not None and longest[key] is kernel:
            cost = cost_of(operator.name, operator.arguments)
        name = "" if operator is None else operator.name
        yield Work(kernel.name, name, kernel.end - kernel.start, *cost)


def _by_thread(events: Sequence[_Event]) -> dict[str, Sequence[Named]]:
    found: dict[str, list[Named]] = defaultdict(list)
    for event in events:
        if event.kind in _HOST_KINDS and event.name not in PHASES:
            found[event.thread].append(Named(event.start, event.end, event.name))
    return dict(found)


def _of_cpu(events: Sequence[_Event], groups: dict[str, list[int]]) -> Activity:
    """An operator computes as long as no other runs inside it; gloo's own threads carry out collectives, each
    an annotation "gloo:…", and what is copied inside of one belongs to it."""
    threads: dict[str, list[_Event]] = defaultdict(list)
    for event in events:
        if event.kind in ("cpu_op", "user_annotation"):
            threads[event.thread].append(event)
    starts: list[int] = []
    ends: list[int] = []
    works: list[Work] = []
    for own in threads.values():
        for event, pieces in _own_times(own):
            starts += [piece[0] for piece in pieces]
            ends += [piece[1] for piece in pieces]
            duration = sum(end - start for start, end in pieces)
            cost = cost_of(event.name, event.arguments)
            name = _COMPILED if event.name.startswith(_COMPILED) else event.name
            works.append(Work(name, event.name, duration, *cost))
    launches = launches_of(
        Launch(event.start, event.name, event.arguments)
        for event in events
        if event.name.startswith("c10d::")
    )
    sent = [event for event in events if event.name.startswith("gloo:")]
    computing = union(starts, ends)
    return Activity(
        computing=computing,
        copying=union([], []),
        works=works,
        messages=with_launches(
            [Launch(event.start, event.name, event.arguments) for event in sent],
            [event.end for event in sent],
            launches,
            groups,
        ),
        starts=[Started(int(start), int(start), "") for start in computing.bounds_N2[:, 0]],
        waits=[],
        host=_by_thread(events),
        on_gpu=False,
    )


def _own_times(events: Sequence[_Event]) -> Iterator[tuple[_Event, list[tuple[int, int]]]]:
    """Of the computing operators of one thread: each with the stretches in which none runs inside it that
    computes, waits or communicates. Wrappers (a node of autograd, an annotation) belong to what they are
    in."""
    pieces: dict[int, list[tuple[int, int]]] = defaultdict(list)
    order = sorted(events, key=lambda event: (event.start, -event.end))
    stack: list[tuple[int, int | None]] = []  # end, and the place of the event that owns this time
    now = 0

    def spend(until: int) -> None:
        owner = stack[-1][1] if stack else None
        if owner is not None and until > now:
            pieces[owner].append((now, until))

    for place, event in enumerate(order):
        while stack and stack[-1][0] <= event.start:
            spend(stack[-1][0])
            now = max(now, stack.pop()[0])
        spend(event.start)
        now = max(now, event.start)
        if event.name.startswith((*_OUTSIDE, "gloo:")):
            owner: int | None = None
        elif _computes(event):
            owner = place
        else:
            owner = stack[-1][1] if stack else None
        # What began inside another ends with it: annotations of hooks may be cut off.
        stack.append((min(event.end, stack[-1][0]) if stack else event.end, owner))
    while stack:
        spend(stack[-1][0])
        now = max(now, stack.pop()[0])
    for place, own in pieces.items():
        yield order[place], own


def _computes(event: _Event) -> bool:
    if event.kind == "user_annotation":
        return event.name.startswith(_COMPILED)
    return "::" in event.name and not event.name.startswith(_WRAPPERS)
