"""An export of Nsight Systems (`nsys export --type sqlite`) as `RankTrace`s, one for each process and GPU in it.

Its schema is in NVIDIA's "SQLite Export Schema Reference". Tables are there only if something of their kind was
recorded, so each is looked for; times are nanoseconds from the begin of the recording."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from trainer.evidence.profiles.communication import message_of
from trainer.evidence.profiles.intervals import union
from trainer.evidence.profiles.rank_trace import Activity, Named, RankTrace, Started, TraceError, Work
from trainer.telemetry.phases import PHASES

_PUSHED: Final = (59, 60)
"""NVTX_EVENTS.eventType of ranges: pushed and popped, started and ended."""
_PROCESS: Final = 1 << 24
"""A globalTid over this is its globalPid: the low 24 bits are the thread."""


class _Kernel(NamedTuple):
    start: int
    end: int
    name: str
    call: int | None


class _Call(NamedTuple):
    start: int
    end: int
    name: str
    thread: int


def read_nsight(path: Path, first_rank: int = 0) -> list[RankTrace]:
    """The traces in an export; ranks are counted from `first_rank`, by process and GPU. TraceError where it is
    none."""
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
            return _read(database, first_rank)
    except sqlite3.Error as error:
        raise TraceError(f"expected an SQLite export of Nsight Systems ({error})") from error


def _read(database: sqlite3.Connection, first_rank: int) -> list[RankTrace]:
    strings = dict(_rows(database, "StringIds", "id", "value"))
    kernels: dict[tuple[int, int], list[_Kernel]] = defaultdict(list)
    columns: tuple[str, ...] = ("globalPid", "deviceId", "start", '"end"', "demangledName", "correlationId")
    for process, device, start, end, name, call in _rows(database, "CUPTI_ACTIVITY_KIND_KERNEL", *columns):
        kernels[process or 0, device or 0].append(_Kernel(start, end, strings.get(name, str(name)), call))
    if not kernels:
        raise TraceError("it holds no kernel: expected a recording with --trace=cuda")
    copies: dict[tuple[int, int], list[_Kernel]] = defaultdict(list)
    columns = ("globalPid", "deviceId", "start", '"end"', "correlationId")
    for table in ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"):
        for process, device, start, end, call in _rows(database, table, *columns):
            copies[process or 0, device or 0].append(_Kernel(start, end, table, call))
    calls: dict[int, dict[int, _Call]] = defaultdict(dict)
    columns = ("globalTid", "start", '"end"', "nameId", "correlationId")
    for thread, start, end, name, call in _rows(database, "CUPTI_ACTIVITY_KIND_RUNTIME", *columns):
        calls[_process(thread)][call] = _Call(start, end, strings.get(name, str(name)), thread or 0)
    ranges: dict[int, dict[str, list[Named]]] = defaultdict(lambda: defaultdict(list))
    columns = ("globalTid", "start", '"end"', "text", "textId", "eventType")
    for thread, start, end, text, text_id, kind in _rows(database, "NVTX_EVENTS", *columns):
        if end is not None and (kind in _PUSHED or kind is None):
            name = text if text is not None else strings.get(text_id, "")
            ranges[_process(thread)][str(thread)].append(Named(start, end, name))
    names = [name for (name,) in _rows(database, "TARGET_INFO_GPU", "name")]
    began = [at for (at,) in _rows(database, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")]
    hosts = _rows(database, "TARGET_INFO_SYSTEM_ENV", "name", "value")
    return [
        _trace(
            kernels[key],
            copies[key],
            calls[key[0]],
            ranges[key[0]],
            rank=first_rank + place,
            host_name=next((value for name, value in hosts if name == "Hostname"), ""),
            device=names[key[1]] if key[1] < len(names) else names[0] if names else "GPU",
            epoch=began[0] if began else 0,
        )
        for place, key in enumerate(sorted(kernels))
    ]


def _process(thread: int | None) -> int:
    return 0 if thread is None else thread // _PROCESS * _PROCESS


def _rows(database: sqlite3.Connection, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """Those columns of a table, None for one that this version of the export lacks; no row where the table is
    not there."""
    known = {row[1] for row in database.execute(f'PRAGMA table_info("{table}")')}
    if not known:
        return []
    asked = [name if name.strip('"') in known else "NULL" for name in columns]
    return database.execute(f'SELECT {", ".join(asked)} FROM "{table}"').fetchall()


def _trace(
    kernels: Sequence[_Kernel],
    copies: Sequence[_Kernel],
    calls: Mapping[int, _Call],
    ranges: Mapping[str, Sequence[Named]],
    *,
    rank: int,
    host_name: str,
    device: str,
    epoch: int,
) -> RankTrace:
    phases = [one for own in ranges.values() for one in own if one.name in PHASES]
    marks: Sequence[Named | _Kernel] = phases or [*kernels, *copies]
    begin = min(one.start for one in marks)
    end = max(one.end for one in [*marks, *kernels, *copies])
    messages, computing = [], []
    for one in kernels:
        message = message_of(one.name, one.start - begin, one.end - begin, {}, {})
        if message is None:
            computing.append(one)
        else:
            messages.append(message)
    host: dict[str, list[Named]] = defaultdict(list)
    for thread, own in ranges.items():
        host[thread] += [_shifted(one, begin) for one in own if one.name not in PHASES]
    for call in calls.values():
        host[str(call.thread)].append(Named(call.start - begin, call.end - begin, call.name))
    return RankTrace(
        rank=rank,
        host_name=host_name,
        device=device,
        begin=epoch + begin,
        end=epoch + end,
        first_step=None,
        num_steps=None,
        phases=[_shifted(one, begin) for one in phases],
        activity=Activity(
            computing=union([one.start - begin for one in computing], [one.end - begin for one in computing]),
            copying=union([one.start - begin for one in copies], [one.end - begin for one in copies]),
            works=[Work(one.name, "", one.end - one.start, None, None, "") for one in computing],
            messages=messages,
            starts=sorted(_started(one, calls, begin) for one in [*kernels, *copies]),
            waits=[
                Named(call.start - begin, call.end - begin, call.name)
                for call in calls.values()
                if "Synchronize" in call.name
            ],
            host=dict(host),
            on_gpu=True,
        ),
    )


def _shifted(one: Named, begin: int) -> Named:
    return Named(one.start - begin, one.end - begin, one.name)


def _started(kernel: _Kernel, calls: Mapping[int, _Call], begin: int) -> Started:
    call = calls.get(kernel.call) if kernel.call is not None else None
    if call is None:
        return Started(kernel.start - begin, None, "")
    return Started(kernel.start - begin, call.start - begin, str(call.thread))
