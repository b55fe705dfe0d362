"""The recorder of a rank: its ring, the stacks of its threads and torch's own flight recorder, kept in the
node's memory and published where people will look.

    <output>/recorder/<attempt>/rank-NNNNN.ring      the last operations and steps (`ring.py`)
    <output>/recorder/<attempt>/rank-NNNNN.stacks    where each thread was
    <output>/recorder/<attempt>/flight_rank_N        torch's flight recorder, as its `torchfrtrace` reads it

It is published when the watchdog acts, on SIGUSR2, where the attempt fails, and at its end. What a killed
process left stays in the node's memory until the next attempt on that node publishes it; of outputs that are
never started again that of the newest few stays."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import pickle
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from lineage.storage.folder import Folder
from trainer.processes.asked_stacks import stacks_to_stderr
from trainer.recorder.files import (
    FLIGHT,
    RING,
    STACKS,
    attempt_folder,
    drop_left_by_others,
    local_name,
    node_folder,
    publish_left_over,
)
from trainer.recorder.operations import Operations
from trainer.recorder.ring import RingBuffer, RingHeader
from trainer.telemetry.phases import PHASES, Phase
from trainer.telemetry.timing import PhaseClock

_LOOK_EVERY_SECONDS: Final = 0.5
_PUBLISH_SECONDS: Final = 10.0
_MOST_STACKS_BYTES: Final = 1 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderOptions:
    """Whose recorder it is, and how much it keeps."""

    output: Folder
    rank: int
    world_size: int
    attempt: int
    device: str
    num_operations: int
    num_steps: int


class Recorder:
    """Times what this rank waits for, and keeps what it did last. Made and closed on the thread that runs the
    steps.

    Where the node has no room for it, or `num_operations` is 0, nothing is kept; waiting is timed all the
    same."""

    def __init__(self, options: RecorderOptions, clock: PhaseClock) -> None:
        self._options = options
        self._ring: RingBuffer | None = None
        self._stacks: int | None = None
        self._watch: threading.Thread | None = None
        self._publishing = threading.Lock()
        self._closed = threading.Event()
        if options.num_operations:
            try:
                self._open()
            except OSError as error:
                self._drop()
                _log.warning("nothing is recorded of rank %d's operations: %s", options.rank, error)
        self.operations = Operations(clock, self._ring)
        if self._stacks is not None:
            # In C, so that it comes while Python waits in a collective.
            faulthandler.register(signal.SIGUSR2, file=self._stacks, all_threads=True)
            self._watch = threading.Thread(target=self._publish_when_asked, name="recorder", daemon=True)
            self._watch.start()

    def add_step(self, step: int, phases: Mapping[Phase, float], waiting: Mapping[Phase, float]) -> None:
        """Note the seconds of a step by phase, and what of them was waiting."""
        if self._ring is not None:
            own = [max(phases[phase] - waiting[phase], 0.0) for phase in PHASES]
            self._ring.add_step(step, own, [waiting[phase] for phase in PHASES])

    def dump(self, why: str, raised: TracebackType | None = None) -> None:
        """Publish what is recorded, with the stacks of all threads as they are; that of the steps is the one
        of an error if it is given. From any thread; OSError where the storage fails."""
        if self._stacks is None:
            return
        if os.fstat(self._stacks).st_size > _MOST_STACKS_BYTES:
            os.ftruncate(self._stacks, 0)
        os.write(self._stacks, f"\n== {' '.join(why.split())}\n".encode())
        faulthandler.dump_traceback(file=self._stacks, all_threads=True)
        if raised is not None:
            os.write(self._stacks, _as_faulthandler(raised, self._ring).encode())
        self._publish()

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Around the steps: an error that ends them is a reason to publish."""
        try:
            yield
        except BaseException as error:
            self._in_time(partial(self.dump, f"{type(error).__name__}: {error}", error.__traceback__))
            raise

    def close(self) -> None:
        """Publish what is recorded, and end. Once."""
        self.operations.close()
        if self._stacks is None:
            return
        self._closed.set()
        if self._watch is not None:
            self._watch.join(_PUBLISH_SECONDS)  # the storage may hang while it publishes
        stacks_to_stderr()
        if self._in_time(self._publish):
            self._drop()

    def _open(self) -> None:
        options = self._options
        folder = node_folder(options.output)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if os.stat(folder).st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to another user")
        drop_left_by_others(folder)
        with self._storage_errors():
            publish_left_over(options.output, folder)
        header = RingHeader(
            rank=options.rank,
            world_size=options.world_size,
            attempt=options.attempt,
            node=socket.gethostname(),
            pid=os.getpid(),
            thread=threading.get_ident(),
            device=options.device,
            num_operations=options.num_operations,
            num_steps=options.num_steps,
            wall=time.time() - time.perf_counter(),
        )
        name = local_name(options.attempt, options.rank, os.getpid())
        self._ring = RingBuffer(os.path.join(folder, name + RING), header)
        self._stacks = os.open(self._stacks_path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600)

    @property
    def _stacks_path(self) -> str:
        assert self._ring is not None
        return self._ring.path.removesuffix(RING) + STACKS

    def _publish_when_asked(self) -> None:
        assert self._stacks is not None
        seen = 0
        while not self._closed.wait(_LOOK_EVERY_SECONDS):
            # The signal's handler can do no more than write the stacks: their growth is the word to go on.
            size = os.fstat(self._stacks).st_size
            if size > seen:
                with self._storage_errors():
                    self._publish()
            seen = size

    def _publish(self) -> None:
        options = self._options
        assert self._ring is not None
        folder = attempt_folder(options.attempt)
        with self._publishing:
            name = f"{folder}/rank-{options.rank:05d}"
            options.output.publish(name + RING, self._ring.content())
            with open(self._stacks_path, "rb") as file:
                stacks = file.read()
            if stacks:
                options.output.publish(name + STACKS, stacks)
                options.output.publish(f"{folder}/{FLIGHT}{options.rank}", _flight())

    def _in_time(self, publish: Callable[[], None]) -> bool:
        """Whether it has succeeded within a few seconds: the storage may be what has failed, and must not
        keep a run from ending. What is not published stays in the node's memory for the next attempt
        there."""
        done = threading.Event()

        def work() -> None:
            with self._storage_errors():
                publish()
                done.set()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(_PUBLISH_SECONDS)
        return done.is_set()

    def _drop(self) -> None:
        """Forget what lies in the node's memory."""
        if self._stacks is not None:
            os.close(self._stacks)
            os.unlink(self._stacks_path)
        if self._ring is not None:
            # The map goes with the last thread that notes something in it: one that saves a checkpoint may.
            os.unlink(self._ring.path)
            with contextlib.suppress(OSError):  # the last rank of the node takes the folder along
                os.rmdir(os.path.dirname(self._ring.path))
        self._ring = self._stacks = None

    @contextlib.contextmanager
    def _storage_errors(self) -> Iterator[None]:
        """What is recorded must never be what ends a run."""
        try:
            yield
        except OSError as error:
            _log.warning("the recorder of rank %d was not published: %s", self._options.rank, error)


def _as_faulthandler(raised: TracebackType, ring: RingBuffer | None) -> str:
    """Where an error was raised, written as faulthandler writes where a thread is."""
    thread = 0 if ring is None else ring.header.thread
    frames = [
        f'  File "{frame.filename}", line {frame.lineno} in {frame.name}\n'
        for frame in reversed(traceback.extract_tb(raised))
    ]
    return f"Thread 0x{thread:016x} (most recent call first):\n{''.join(frames)}"


def _flight() -> bytes:
    """torch's flight recorder, as `torchfrtrace` reads it: gloo writes all groups there under one empty name,
    which that program does not take."""
    trace: dict[str, object] = pickle.loads(cast(Any, torch._C._distributed_c10d)._dump_fr_trace())
    trace["pg_config"] = {
        group.group_name: {
            "name": group.group_name,
            "desc": group.group_desc,
            "ranks": str(dist.get_process_group_ranks(group)),
        }
        for group in distributed_c10d._world.pg_map
    }
    return pickle.dumps(trace)
