"""Saving and loading the whole state of a run with torch's distributed checkpoint, on disk or in an object
store.

Only tensors are saved, so loading never unpickles a value. Any layout can load what another has saved: pieces
are found by name and offset."""

from __future__ import annotations

import errno
import threading
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from concurrent import futures
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import async_save

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from trainer.attempts import DamagedCheckpoint, FencedOutError, attempts, check_fence
from trainer.checkpoint.files import CheckpointReader, CheckpointWriter
from trainer.checkpoint.room import free_bytes, no_room
from trainer.checkpoint.store import (
    Checkpoint,
    CheckpointError,
    Position,
    check_files,
    checkpoint_name,
    delete,
    delete_passed,
    delete_superseded,
    publish_complete,
)
from trainer.checkpoint.writer import PROCESS_FROM_BYTES, StagingMemory, WriterProcess, local_folder
from trainer.optim.optimizer import Optimizer
from trainer.options import CheckpointTable

WEIGHTS: Final = "weights."
BUFFERS: Final = "buffers."
OPTIMIZER: Final = "optimizer."


def training_state(
    parameters: dict[str, nn.Parameter],
    optimizer: Optimizer,
    spikes: dict[str, Tensor],
    buffers: dict[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Every tensor that a run goes on from, by name, sharing memory with the run: loading into it restores
    the run (then `restore`). Of a pipeline's rank those of its stages. Random states are not among them: each
    step begins with one that follows from the seed, the step and the data parallel rank. `buffers`: what else
    training changes."""
    state: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        state[WEIGHTS + name] = parameter.detach()
        kept = optimizer.state(parameter)
        state |= {f"{OPTIMIZER}{kind}.{name}": tensor for kind, tensor in kept.items()}
    state |= {BUFFERS + name: buffer for name, buffer in (buffers or {}).items()}
    state[OPTIMIZER + "num_updates"] = optimizer.num_updates
    state |= {f"spikes.{name}": tensor for name, tensor in spikes.items()}
    return state


def restore(state: dict[str, Tensor], optimizer: Optimizer) -> None:
    """Put what was loaded into `state` and is no shared memory back in place: update counts."""
    optimizer.set_num_updates(state[OPTIMIZER + "num_updates"])


class Saver:
    """Saves checkpoints in the background: `save` blocks for the copy to host memory only. Large ones are
    written by a process of their own (`writer.py`). Collective throughout.

    `group` must be a gloo group of its own: the writing thread's collectives would mix with the step's.
    `steps`: those of the whole run, over which `keep_spaced` is counted. `check_place`: raises where another
    process has this one's rank; called from the writing thread."""

    def __init__(
        self,
        folder: Folder,
        output: Folder,
        table: CheckpointTable,
        group: dist.ProcessGroup,
        *,
        steps: int,
        check_place: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder = folder
        self._output = output
        self._table = table
        self._steps = steps
        self._check_place = check_place
        self._group = group
        self._memory = StagingMemory()
        self._writer: WriterProcess | None = None
        self._pending: Future[Any] | None = None
        self._decided = threading.Event()
        self._abandoned = self._is_closed = False
        self._published_at = time.monotonic()
        self._begun_at = self._published_at
        self.writing_seconds = 0.0
        """How long the last published checkpoint took from its copy on. On the group's first rank: it
        publishes."""
        self._writing, self._num_bytes = "", 0

    def age_seconds(self) -> float:
        """Since this saver last published a checkpoint, or was made. On the group's first rank: it
        publishes."""
        return time.monotonic() - self._published_at

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is still under way."""
        return self._pending is not None and not self._pending.done()

    def save(self, state: dict[str, Tensor], position: Position) -> None:
        """Begin to save; the one before is finished first."""
        self.wait()
        self._decided.clear()
        staged = self._memory.copy(state)
        self._begun_at = time.monotonic()
        self._writing = checkpoint_name(position.step, position.attempt)
        self._num_bytes = sum(tensor.nbytes for tensor in state.values())
        folder = self.folder.folder(self._writing)
        if self._writer is None and self._memory.num_bytes >= PROCESS_FROM_BYTES:
            self._writer = WriterProcess(self._memory)
        rank, elsewhere = dist.get_rank(self._group), None
        if self._writer is not None:
            local = local_folder(self._table.local, folder, self._memory.num_bytes)
            elsewhere = partial(self._writer.write, folder, rank, local=local)
        writer = CheckpointWriter(folder, rank, partial(self._publish, position), elsewhere)
        self._pending = cast(
            "Future[Any]", async_save(staged, storage_writer=writer, process_group=self._group)
        )

    def release(self) -> None:
        """Let the checkpoint under way be published: the reports of all steps before it are durable."""
        self._decided.set()

    def close(self) -> None:
        """Give the checkpoint under way up unless it was released: its thread would wait for that for ever.
        One that was is written to its end. Once."""
        if self._is_closed:
            return
        self._is_closed = True
        if not self._decided.is_set():
            self._abandoned = True
            self._decided.set()
        if (writer := self._writer) is not None:
            if self._abandoned or self._pending is None:
                writer.close()
            else:
                self._pending.add_done_callback(lambda _: writer.close())
        self._memory.close()

    def abandon(self, seconds: float) -> None:
        """`close`, give up a checkpoint that was released too, and wait until its thread has ended: its group
        is about to go, or to serve another saver. RuntimeError where it has not ended after so many
        seconds."""
        self.close()
        if self._writer is not None:
            self._writer.close()
        if self._pending is not None:
            _, unfinished = futures.wait([self._pending], seconds)
            if unfinished:
                raise RuntimeError(
                    f"the writer of checkpoint {self._writing} did not end within {seconds:g} s"
                )
            self._pending = None

    def wait(self) -> None:
        """Return when the last save is published; FencedOutError or CheckpointError where it could not be.
        Where the disk is full, what was written of it is removed: the error is a DiskFullError then."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        try:
            pending.result()
        except CheckpointException as error:
            causes = [cause for cause, _ in error.failures.values()]
            fenced = next((cause for cause in causes if isinstance(cause, FencedOutError)), None)
            if fenced is not None:
                raise fenced from error
            if self._is_full(causes):
                if dist.get_rank(self._group) == 0:
                    delete(self.folder, self._writing)
                raise no_room(self.folder, self._num_bytes) from error
            reasons = "; ".join(dict.fromkeys(str(cause) or repr(cause) for cause in causes))
            raise CheckpointError(
                f"a checkpoint under {self.folder.url} could not be written: {reasons}"
            ) from error

    def _is_full(self, causes: Sequence[BaseException]) -> bool:
        """Whether a save failed for lack of room. Of a failed write torch says only where in its code it
        was."""
        if any(
            isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT) for cause in causes
        ):
            return True
        free = free_bytes(self.folder)
        return (
            free is not None
            and free < self._num_bytes
            and any("inline_container" in str(each) for each in causes)
        )

    def _publish(self, position: Position) -> None:
        """Called once all ranks have written: make the checkpoint count, then drop those it supersedes."""
        self._decided.wait()
        if self._abandoned:
            raise CheckpointError(
                f"the checkpoint of step {position.step} was given up: the run failed in that step"
            )
        self._check_place()
        check_fence(self._output, position.attempt)
        name = checkpoint_name(position.step, position.attempt)
        publish_complete(self.folder.folder(name), position)
        self._published_at = time.monotonic()
        self.writing_seconds = self._published_at - self._begun_at
        delete_superseded(self.folder, attempts(self._output), self._table, self._steps)
        delete_passed(self.folder, position.step)


def load_whole(folder: Folder, state: dict[str, Tensor], group: dist.ProcessGroup | None) -> None:
    """Read all of a complete checkpoint into `state`; CheckpointError where it lacks a tensor of these, or
    holds one that no rank asks for. Collective over `group`; None: this process alone."""
    _check_none_left(folder, state.keys(), group, kinds=("",))
    _check_none_missing(folder, load(folder, state, group))


def load_weights(
    folder: Folder,
    parameters: dict[str, nn.Parameter],
    buffers: dict[str, Tensor],
    group: dist.ProcessGroup | None,
) -> None:
    """Read the weights of a complete checkpoint, and what it holds of `buffers`: the others stay as they are,
    for routers may get a bias later. CheckpointError as of `load_whole`. Collective."""
    weights = {WEIGHTS + name: parameter.detach() for name, parameter in parameters.items()}
    state = weights | {BUFFERS + name: buffer for name, buffer in buffers.items()}
    _check_none_left(folder, state.keys(), group, kinds=(WEIGHTS, BUFFERS))
    _check_none_missing(folder, load(folder, state, group) & weights.keys())


def check_together(folder: Folder, group: dist.ProcessGroup) -> None:
    """`check_files`, each rank its part; what one rank finds, all raise. What is loaded goes through it
    first: torch's reader does not notice a flipped bit. Collective."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    raised_together(partial(check_files, folder, part=rank, num_parts=world_size), group)


def raised_together(act: Callable[[], None], group: dist.ProcessGroup) -> None:
    """Do what each rank does by itself; the first rank's error that has one is raised on all, so that none
    waits for it in what follows. Collective."""
    found: list[Exception | None] = [None] * dist.get_world_size(group)
    mine = None
    try:
        act()
    except (CheckpointError, RecipeError, OSError) as error:
        mine = error
    dist.all_gather_object(found, mine, group=group)
    for raised in found:
        if raised is not None:
            raise raised


def newest_whole(
    folder: Folder, entries: Sequence[Checkpoint], group: dist.ProcessGroup, *, goes_back: bool
) -> tuple[Checkpoint | None, tuple[DamagedCheckpoint, ...]]:
    """The newest of these checkpoints (by step) that is as it was published, and the newer ones, which are
    not; None where there is none at all. CheckpointError where one is damaged and the run does not go back,
    or where none is whole. Collective."""
    damaged: list[DamagedCheckpoint] = []
    for entry in reversed(entries):
        try:
            check_together(folder.folder(entry.name), group)
        except CheckpointError as error:
            if not goes_back:
                raise CheckpointError(
                    f'{error}; train.checkpoint.on_damage = "go_back" goes on from the newest whole one'
                ) from error
            damaged.append(DamagedCheckpoint(name=entry.name, why=str(error)))
        else:
            return entry, tuple(damaged)
    if not damaged:
        return None, ()
    more = f"; so are the {len(damaged) - 1:,} before it" if len(damaged) > 1 else ""
    raise CheckpointError(
        f"{damaged[0].why}{more}: no checkpoint of the run under {folder.url} is whole. Restore one from a copy, or"
        " begin again from the first weights with sluice train RECIPE --from-step 0"
    )


def refuse_not_finite(folder: Folder, names: Sequence[str]) -> None:
    """CheckpointError where there are tensors of a folder that hold a NaN or an infinity: the first batch
    would be blamed for what they do to its loss."""
    if names:
        shown, more = ", ".join(names[:3]), len(names) - 3
        raise CheckpointError(
            f"{folder.url}: {shown}{f' and {more:,} more' if more > 0 else ''} hold numbers that are not finite"
            " (NaN or infinite) as the run takes them: nothing can be trained from there"
        )


def _check_none_left(
    folder: Folder, names: Collection[str], group: dist.ProcessGroup | None, kinds: tuple[str, ...]
) -> None:
    """A model with fewer layers would otherwise go on without the rest."""
    held = sorted(name for name in held_tensors(folder) if name.startswith(kinds))
    taken = torch.tensor([name in names for name in held], dtype=torch.uint8)
    if group is not None:
        dist.all_reduce(taken, dist.ReduceOp.MAX, group=group)  # a pipeline's ranks have their stages only
    left = [name for name, is_taken in zip(held, taken.tolist(), strict=True) if not is_taken]
    if left:
        raise CheckpointError(
            f"checkpoint {folder.url} holds {len(left)} tensors that this run lacks, {left[0]} first: does"
            f" {_made_by(left[0])} differ?"
        )


def _check_none_missing(folder: Folder, missing: Collection[str]) -> None:
    if missing:
        raise CheckpointError(
            f"checkpoint {folder.url} lacks {len(missing)} tensors, {min(missing)} first: does"
            f" {_made_by(min(missing))} differ?"
        )


def _made_by(name: str) -> str:
    """The keys that decide whether a run has that tensor."""
    if name.startswith(OPTIMIZER):
        return "train.optimizer.name or train.optimizer.ema"
    return "train.model or train.experts.bias_rate"


def load(folder: Folder, state: dict[str, Tensor], group: dist.ProcessGroup | None) -> frozenset[str]:
    """Read a complete checkpoint into the tensors of `state`; gives the names that it does not hold.
    Collective over `group`; None: this process alone."""
    reader = CheckpointReader(folder)
    held = reader.read_metadata().state_dict_metadata
    wanted = {name: tensor for name, tensor in state.items() if name in held}
    for name, tensor in wanted.items():
        entry = held[name]
        if not isinstance(entry, TensorStorageMetadata) or entry.size != tensor.shape:
            found = getattr(entry, "size", "no tensor")
            raise CheckpointError(
                f"checkpoint {folder.url}: {name} is {found}, expected {tuple(tensor.shape)}; does"
                f" train.model differ?"
            )
    with warnings.catch_warnings():
        # It warns that one process loads alone, which is what a call without a group asks for.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        # A pipeline's ranks ask for different tensors, which the reader can do.
        warnings.filterwarnings("ignore", message="Detected mismatched keys", category=UserWarning)
        load_state(
            cast(dict[str, object], wanted), storage_reader=reader, process_group=group, no_dist=group is None
        )
    return frozenset(state) - frozenset(wanted)


def held_tensors(folder: Folder) -> dict[str, TensorStorageMetadata]:
    """Name, shape and dtype of every tensor in a checkpoint."""
    held = CheckpointReader(folder).read_metadata().state_dict_metadata
    return {name: entry for name, entry in held.items() if isinstance(entry, TensorStorageMetadata)}
