"""The ring of a rank: its last operations and the times of its last steps, in a file of fixed size that
outlives it.

The file is mapped into memory and every entry is written there at once, so what a process did last is known
however it ended: killed, aborted by a library, or hung. No torch here.

    header       4 KiB    a line that names the format, then one JSON object
    sites       64 KiB    JSON lines, one for each operation at a place in the program; an entry names its line
    operations  64 bytes each, of the last `num_operations`
    steps      128 bytes each, of the last `num_steps`

Times are seconds of `time.perf_counter`: durations within a rank. `wall` of the header is what to add for the
time of day."""

from __future__ import annotations

import itertools
import json
import math
import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from lineage.json_record import JsonRecord
from trainer.recorder.noting import OPERATION, Entries

_MAGIC: Final = b"sluice ring 1\n"
_HEADER_BYTES: Final = 4096
_SITES_BYTES: Final = 64 << 10
_NUM_PHASES: Final = 7
_STEP: Final = struct.Struct(f"<Qq{2 * _NUM_PHASES}d")
_UNNAMED: Final = 0
"""The site of operations for whose own there was no room left."""


class RingError(ValueError):
    """A file is not a ring, or not one of this release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingHeader:
    """Whose ring it is. `device`: of the rank's tensors; on a GPU an operation's exit is when it was started
    on the device. `thread`: the identity of the thread that runs the steps; `wall`: time of day less
    `time.perf_counter`."""

    rank: int
    world_size: int
    attempt: int
    node: str
    pid: int
    thread: int
    device: str
    num_operations: int
    num_steps: int
    wall: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite(JsonRecord):
    """An operation at a place in the program: `ranks` is the group as [first, end, stride] runs, `file` and
    `line` where the trainer asked for it."""

    name: str
    group: str
    ranks: tuple[tuple[int, int, int], ...]
    phase: str
    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation of a rank. `number`: among all of the rank; `group_number`: among those of its group (of
    messages: of the same direction with the same peer). `size` in bytes, -1 where it is not known; `peer`:
    the other rank of a message, -1 without. `exit` is None while it is under way, or where it ended in an
    error."""

    number: int
    site: CallSite
    peer: int
    step: int
    group_number: int
    size: int
    enter: float
    exit: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds of own work and of waiting in each of the seven phases of a step."""

    step: int
    own: tuple[float, ...]
    waiting: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RingContent:
    """What a ring holds, oldest first."""

    header: RingHeader
    operations: tuple[Operation, ...]
    steps: tuple[StepTimes, ...]


def ring_bytes(num_operations: int, num_steps: int) -> int:
    """The size of a file."""
    return _HEADER_BYTES + _SITES_BYTES + num_operations * OPERATION.size + num_steps * _STEP.size


class RingBuffer:
    """The ring of one rank, as its process writes it. Safe from several threads; OSError where there is no
    room for the file."""

    def __init__(self, path: str, header: RingHeader) -> None:
        size = ring_bytes(header.num_operations, header.num_steps)
        described = _MAGIC + json.dumps(asdict(header)).encode()
        assert len(described) <= _HEADER_BYTES, "a host name has at most 255 characters"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # Room is reserved now: a mapped page that the disk cannot hold would end the process by a signal.
            os.posix_fallocate(file, 0, size)
            self._map = mmap.mmap(file, size)
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(file)
        self.path, self.header = path, header
        self._map[: len(described)] = described
        self._num_steps = header.num_steps
        self._operations_at = _HEADER_BYTES + _SITES_BYTES
        self._steps_at = self._operations_at + header.num_operations * OPERATION.size
        self.entries = Entries(self._map, self._operations_at, header.num_operations)
        """Where operations are noted."""
        self._step_number = itertools.count(1)
        self._site_numbers, self._site_end = itertools.count(), _HEADER_BYTES
        unnamed = CallSite(name="other operation", group="", ranks=(), phase="", file="", line=0, function="")
        assert self.add_site(unnamed) == _UNNAMED

    def add_site(self, site: CallSite) -> int:
        """The number under which entries name this site. Not for two threads at once."""
        line = json.dumps(asdict(site)).encode() + b"\n"
        if self._site_end + len(line) > self._operations_at:
            return _UNNAMED
        self._map[self._site_end : self._site_end + len(line)] = line
        self._site_end += len(line)
        return next(self._site_numbers)

    def add_step(self, step: int, own: Sequence[float], waiting: Sequence[float]) -> None:
        """Note the times of a step, by phase."""
        number = next(self._step_number)
        at = self._steps_at + number % self._num_steps * _STEP.size
        _STEP.pack_into(self._map, at, number, step, *own, *waiting)

    def content(self) -> bytes:
        """The file as it is now."""
        return self._map[:]


def read_ring(data: bytes) -> RingContent:
    """What a ring's file holds, however its process ended. RingError where it is none."""
    if not data.startswith(_MAGIC):
        raise RingError(f"expected a file that begins with {_MAGIC!r}, found {data[:16]!r}")
    try:
        header = RingHeader(**json.loads(data[len(_MAGIC) : _HEADER_BYTES].rstrip(b"\0")))
        expected = ring_bytes(header.num_operations, header.num_steps)
        if len(data) != expected:
            raise RingError(
                f"the ring of rank {header.rank} has {len(data)} bytes, its header says {expected}"
            )
        sites = _sites(data[_HEADER_BYTES : _HEADER_BYTES + _SITES_BYTES])
    except (TypeError, KeyError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RingError(f"not a ring of this release: {error}") from error
    at = _HEADER_BYTES + _SITES_BYTES
    end = at + header.num_operations * OPERATION.size
    operations = [_operation(row, sites) for row in OPERATION.iter_unpack(data[at:end]) if row[0]]
    steps = sorted(row for row in _STEP.iter_unpack(data[end:]) if row[0])
    return RingContent(
        header=header,
        operations=tuple(sorted(operations, key=lambda each: each.number)),
        steps=tuple(
            StepTimes(step=row[1], own=row[2 : 2 + _NUM_PHASES], waiting=row[2 + _NUM_PHASES :])
            for row in steps
        ),
    )


def _sites(data: bytes) -> list[CallSite]:
    # The last line may be half written.
    return [CallSite.from_json(json.loads(line)) for line in data.rstrip(b"\0").split(b"\n")[:-1]]


def _operation(row: tuple[Any, ...], sites: Sequence[CallSite]) -> Operation:
    number, site, peer, step, group_number, size, enter, exit_ = row
    return Operation(
        number=number,
        # A site is written before the first entry that names it; a torn file may lack it.
        site=sites[site if site < len(sites) else _UNNAMED],
        peer=peer,
        step=step,
        group_number=group_number,
        size=size,
        enter=enter,
        exit=None if math.isnan(exit_) else exit_,
    )


def runs_of(ranks: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """Ranks in a rising order as few [first, end, stride] runs: those of a mesh's dimension are one."""
    runs: list[tuple[int, int, int]] = []
    at = 0
    while at < len(ranks):
        stride = ranks[at + 1] - ranks[at] if at + 1 < len(ranks) else 1
        end = at + 1
        while end < len(ranks) and ranks[end] - ranks[end - 1] == stride:
            end += 1
        runs.append((ranks[at], ranks[end - 1] + 1, stride))
        at = end
    return tuple(runs)


def ranks_of(runs: Sequence[tuple[int, int, int]]) -> list[int]:
    """The ranks of such runs."""
    return [rank for first, end, stride in runs for rank in range(first, end, stride)]
