"""The process that writes a rank's pieces of checkpoints, and the memory in which it finds them.

Serialising and hashing in a thread of the training process takes turns with the loop's own Python and takes
its processors. The writer is a process of its own with a lower priority, so the loop goes first. Tensors are
copied into memory that both share; what passes between them is a list of where they lie in it.

  rank:    copy tensors into the shared memory │ plan (torch, a thread) ── where they lie ──▶ writer ── results ──▶
  writer:  serialise, hash, write, sync; where pieces go to an object store, first to local disk and then up

It starts at the first checkpoint of PROCESS_FROM_BYTES; smaller ones a thread has written before a process is
up."""

from __future__ import annotations

import mmap
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.tensor import DTensor

from lineage.storage.folder import Folder, filesystem
from trainer.checkpoint.files import PieceWriter
from trainer.checkpoint.room import free_bytes
from trainer.checkpoint.store import CheckpointError, record_sums
from trainer.model.peers import local_part

PROCESS_FROM_BYTES: Final = 64 << 20
_ALIGNMENT: Final = 64
_NICENESS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """Where a tensor lies in the shared memory: bytes from its start, and how it is laid out from there."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """One rank's pieces of one checkpoint. `local`: a folder on disk where they are written first, None:
    right into `folder`."""

    folder: str
    rank: int
    plan: SavePlan
    spans: Sequence[_Span]
    num_shared_bytes: int
    local: str | None


class StagingMemory:
    """Host memory for one rank's tensors, which the writer sees too. It is no file: it needs no room in
    /dev/shm."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("sluice-checkpoint")
        self.num_bytes = 0
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._staged: dict[str, Tensor] = {}

    def copy(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of a rank's tensors, sharded as they are; those of the last call are overwritten. The
        tensors must be the same, by name and shape, in every call."""
        if not self._staged:
            self._make(state)
        for name, tensor in state.items():
            local_part(self._staged[name]).copy_(local_part(tensor), non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return self._staged

    def span(self, tensor: Tensor) -> _Span:
        """Where a view of the copies lies."""
        offset = tensor.data_ptr() - self._bytes.data_ptr() if tensor.numel() else 0
        assert 0 <= offset <= self.num_bytes, "the tensor is no view of the shared memory"
        return _Span(offset=offset, dtype=tensor.dtype, shape=tuple(tensor.shape), stride=tensor.stride())

    def close(self) -> None:
        """Give up the name of the memory; it lives as long as what refers to it."""
        os.close(self.fd)

    def _make(self, state: Mapping[str, Tensor]) -> None:
        ends = []
        for tensor in map(local_part, state.values()):
            self.num_bytes += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
            ends.append(self.num_bytes)
        self.num_bytes = max(self.num_bytes, _ALIGNMENT)
        os.ftruncate(self.fd, self.num_bytes)
        self._bytes = torch.frombuffer(mmap.mmap(self.fd, self.num_bytes), dtype=torch.uint8)
        if torch.cuda.is_available():  # pinned, so that the copy from the device runs at the bus's speed
            registered = (
                cast(Any, torch.cuda).cudart().cudaHostRegister(self._bytes.data_ptr(), self.num_bytes, 0)
            )
            torch.cuda.check_error(int(registered))
        for (name, tensor), end in zip(state.items(), ends, strict=True):
            local = local_part(tensor)
            begin = end - -(-local.nbytes // _ALIGNMENT) * _ALIGNMENT
            copied = self._bytes[begin : begin + local.nbytes].view(local.dtype).view(local.shape)
            if isinstance(tensor, DTensor):
                # As torch's own staging has it: a shard in host memory that says how it lies on the devices'
                # mesh.
                copied = DTensor(copied, tensor._spec, requires_grad=False)  # type: ignore[no-untyped-call]
            self._staged[name] = copied


class WriterProcess:
    """The writer as the training process sees it. Calls come one after the other, from any thread."""

    def __init__(self, memory: StagingMemory) -> None:
        self._memory = memory
        self._connection, theirs = Pipe()
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        given = [str(theirs.fileno()), str(memory.fd), str(os.getpid())]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trainer.checkpoint.writer", *given],
                pass_fds=(theirs.fileno(), memory.fd),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal is for the training process, which still wants to save
            )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def write(
        self, folder: Folder, rank: int, plan: SavePlan, tensors: Sequence[Tensor], local: str | None
    ) -> list[Any]:
        """Write the pieces of a plan, whose tensors are views of the shared memory; gives torch's results.
        Returns when they are durable. What the writer met is raised here; CheckpointError where it has
        ended."""
        spans = [self._memory.span(tensor) for tensor in tensors]
        job = _Job(
            folder=folder.url,
            rank=rank,
            plan=plan,
            spans=spans,
            num_shared_bytes=self._memory.num_bytes,
            local=local,
        )
        try:
            self._connection.send(job)
            found = self._connection.recv()
        except (EOFError, OSError) as error:
            self._process.kill()
            code = self._process.wait()
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise CheckpointError(
                f"the process that writes checkpoints ended with {how}: was there too little memory?"
            ) from error
        if isinstance(found, BaseException):
            raise found
        return cast(list[Any], found)

    def close(self) -> None:
        """End the process: it has nothing to do, or what it does is of no use any more."""
        self._process.kill()
        self._process.wait()  # a thread that waits for its answer meets the end of the connection


class _Views(DefaultSavePlanner):
    """The tensors of a plan for torch's writer, item by item."""

    def __init__(self, plan: SavePlan, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self._tensors = {item.index: tensor for item, tensor in zip(plan.items, tensors, strict=True)}

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        """The tensor of an item."""
        return self._tensors[write_item.index]


def local_folder(wanted: str | None, folder: Folder, num_bytes: int) -> str | None:
    """A folder on disk for pieces that then go to `folder`: None where that is on disk itself, or where there
    is no room for so many bytes."""
    if not folder.is_remote:
        return None
    place = wanted or tempfile.gettempdir()
    free = free_bytes(Folder(place))
    return None if free is None or free < num_bytes else place


def _write(job: _Job, shared: mmap.mmap) -> list[Any]:
    tensors = [_view(shared, span) for span in job.spans]
    folder = Folder(job.folder)
    views = _Views(job.plan, tensors)
    if job.local is None:
        writer = PieceWriter(folder)
        results = writer.write_data(job.plan, views).wait()
    else:
        os.makedirs(job.local, exist_ok=True)
        scratch = tempfile.mkdtemp(prefix="sluice-checkpoint-", dir=job.local)
        try:
            writer = PieceWriter(Folder(scratch))
            results = writer.write_data(job.plan, views).wait()
            for name in writer.sums:
                filesystem(folder.url).put_file(os.path.join(scratch, name), folder.at(name))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    record_sums(folder, job.rank, writer.sums)
    return cast(list[Any], results)


def _view(shared: mmap.mmap, span: _Span) -> Tensor:
    """The tensor with a storage of its own bytes alone: torch would copy a part of a larger one before it
    writes it."""
    reach = 1 + sum((size - 1) * step for size, step in zip(span.shape, span.stride, strict=True))
    if 0 in span.shape:
        return torch.empty(span.shape, dtype=span.dtype)
    flat = torch.frombuffer(shared, dtype=span.dtype, count=reach, offset=span.offset)
    return flat.as_strided(span.shape, span.stride)


def _end_with(parent: int) -> None:
    """End this process when the training process is gone: a checkpoint of it is of no use, and a later
    attempt may be deleting it."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def main(connection_fd: int, memory_fd: int, parent: int) -> None:
    """The writer: job after job until the other end closes."""
    os.nice(_NICENESS)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    shared: mmap.mmap | None = None
    with Connection(connection_fd) as connection:
        while True:
            try:
                job: _Job = connection.recv()
            except EOFError:
                return
            if shared is None:
                shared = mmap.mmap(memory_fd, job.num_shared_bytes)
            try:
                found: Any = _write(job, shared)
            except (OSError, RuntimeError, ValueError) as error:
                found = _sendable(error)
            connection.send(found)


def _sendable(error: Exception) -> Exception:
    """The error as it can be passed on: with its kind and number where it is the system's, else its words
    alone."""
    try:
        pickle.loads(pickle.dumps(error))
    except (pickle.PicklingError, TypeError, AttributeError):  # of the libraries of an object store
        if isinstance(error, OSError):
            return OSError(error.errno or 0, str(error))
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
