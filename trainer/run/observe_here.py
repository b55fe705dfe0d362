"""A replay on this machine without Ray: a process for each rank of the run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import torch.distributed as dist

from lineage.recipe import RecipeError
from trainer.checkpoint.store import CheckpointError
from trainer.evidence.observed import ObserveRequest, ReplayResult
from trainer.options import TrainRecipe
from trainer.processes.runtime import join_process_group
from trainer.provenance.setup import Hardware
from trainer.run.hardware import hardware_of
from trainer.run.observe import observe


def observe_here(recipe: TrainRecipe, request: ObserveRequest) -> tuple[ReplayResult, Hardware]:
    """What rank 0 saw of the steps (`trainer.run.observe`), and what computed them. Errors as of that;
    RuntimeError where a process was lost."""
    # Forked from a server that has imported everything, which is done once for all of them. It keeps the
    # environment of its own start, and what is set there since, as credentials, goes along.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with tempfile.TemporaryDirectory(prefix="sluice-replay-") as folder:
        processes, waiting = [], dict[Connection, int]()
        try:
            num = str(recipe.train.num_workers)
            for rank in range(recipe.train.num_workers):
                members = {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": num,
                    "LOCAL_WORLD_SIZE": num,
                }
                environment = {**os.environ, **members}
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(
                    target=_rank, args=(theirs, folder, environment, recipe, request), daemon=True
                )
                process.start()
                theirs.close()
                processes.append(process)
                waiting[ours] = rank
            return _first_of(waiting)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _first_of(waiting: dict[Connection, int]) -> tuple[ReplayResult, Hardware]:
    """What rank 0 sends, once all have sent; an error that one sends is raised."""
    first: tuple[ReplayResult, Hardware] | None = None
    while waiting:
        for ended in wait(list(waiting)):
            assert isinstance(ended, Connection)
            rank = waiting.pop(ended)
            try:
                sent = ended.recv()
            except EOFError as error:
                raise RuntimeError(f"rank {rank} of the replay was lost: its process ended") from error
            if isinstance(sent, Exception):
                raise sent
            first = sent if rank == 0 else first
    assert first is not None
    return first


def _rank(
    parent: Connection, folder: str, environment: dict[str, str], recipe: TrainRecipe, request: ObserveRequest
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to every process of a terminal
    os.environ |= environment
    seconds = recipe.train.faults.watchdog_seconds
    try:
        store = cast(Any, dist).FileStore(f"{folder}/store", recipe.train.num_workers)
        process = join_process_group(recipe.train.num_workers, seconds, store=store)
        parent.send((observe(recipe, process, request), hardware_of(process.device)))
    except (RecipeError, CheckpointError, OSError) as error:
        parent.send(error)
