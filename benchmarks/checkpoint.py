"""How long a checkpoint stops the training loop: written in the background, beside written while the loop
waits.

One process holds the weights and AdamW's moments of a model (at least 1 GB). Rounds alternate between the two
ways and two bounds: copying the same bytes to other memory, and writing them to the same disk with one fsync.
A stall: how long the loop is blocked; the price of the background is what a fixed work of matrix products
takes longer beside it.

    python -m benchmarks.checkpoint [--model 125M] [--rounds 5] [--scratch DIR]
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from lineage.storage.folder import Folder
from trainer.checkpoint.state import Saver, training_state
from trainer.checkpoint.store import Position
from trainer.model.config.sizes import model_config
from trainer.model.peers import local_part
from trainer.optim.optimizer import Optimizer
from trainer.options import CheckpointTable
from trainer.parallel.layout import ParallelLayout
from trainer.parallel.mesh import parallelise_model
from trainer.parallel.weights import initialise
from trainer.recipe_tables.optimizer import OptimizerTable
from trainer.recipe_tables.parallelism import Mesh

VOCABULARY = 50_304
LEAST_BYTES = 10**9
WORK_SECONDS = 4.0  # of matrix products, about as long as the writing in the background


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="125M")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--scratch", type=Path, help="a folder on the disk to measure; not given: a temporary one"
    )
    options = parser.parse_args()
    cast(Any, dist).init_process_group("gloo", store=cast(Any, dist).HashStore(), rank=0, world_size=1)
    with (
        tempfile.TemporaryDirectory(prefix="sluice-checkpoint-", dir=options.scratch) as scratch,
        torch.no_grad(),
    ):
        bench = Bench(state_of(options.model), Folder(scratch))
        print(
            json.dumps({"state_gb": round(bench.num_bytes / 1e9, 2), "tensors": len(bench.state)}), flush=True
        )
        bench.stall_in_background()
        bench.saver.wait()  # the first save makes its memory and its threads
        for _ in range(options.rounds):
            bench.round()
        bench.saver.close()
    print(json.dumps(bench.summary(), indent=1))
    dist.destroy_process_group()


def state_of(name: str) -> dict[str, Tensor]:
    """All that a run of this model saves, with memory of its own."""
    mesh = Mesh(dp_replicate=1, dp_shard=1, tp=1, pp=1, cp=1, ep=1)
    config = model_config(name, VOCABULARY)
    model = parallelise_model(
        config, ParallelLayout(mesh=mesh), torch.device("cpu"), datetime.timedelta(minutes=5)
    )
    initialise(model, seed=0)
    optimizer = Optimizer(model.parameters(), OptimizerTable(), model.groups.stage)
    return training_state(model.parameters(), optimizer, {})


class Bench:
    """The contenders over one state. `seconds`: of each, by round."""

    def __init__(self, state: dict[str, Tensor], folder: Folder) -> None:
        self.state, self.folder = state, folder
        self.pieces = [local_part(tensor) for tensor in state.values()]
        self.num_bytes = sum(piece.nbytes for piece in self.pieces)
        if self.num_bytes < LEAST_BYTES:
            raise SystemExit(
                f"--model: {self.num_bytes} bytes of state, expected at least {LEAST_BYTES}: a larger one"
            )
        self.other = [piece.clone() for piece in self.pieces]
        table = CheckpointTable(every=1, keep=1)
        self.saver = Saver(
            folder.folder("checkpoints"), folder, table, dist.new_group(backend="gloo"), steps=1
        )
        self.steps = itertools.count(1)
        self.num_products = 50
        self.num_products = round(50 * WORK_SECONDS / seconds_of(self.work))
        self.seconds: dict[str, list[float]] = {}

    def round(self) -> None:
        """Each contender once."""
        self._note("copied (bound)", self.copy)
        self._note("asynchronous, stall", self.stall_in_background)
        self.saver.wait()
        self._note("synchronous, stall", self.stall_until_written)
        self._note("written plainly (bound)", self.write)
        self._note("work alone", self.work)
        self.stall_in_background()
        self._note("work beside the background", self.work)
        self._note("the background afterwards", self.saver.wait)

    def copy(self) -> None:
        for there, here in zip(self.other, self.pieces, strict=True):
            there.copy_(here)

    def stall_in_background(self) -> None:
        step = next(self.steps)
        model = model_config("debug", 250)  # complete.json names one: any
        position = Position(step=step, attempt=1, plan_fingerprint="", order_version=1, model=model)
        self.saver.save(self.state, position)
        self.saver.release()

    def stall_until_written(self) -> None:
        self.stall_in_background()
        self.saver.wait()

    def write(self) -> None:
        path = Path(self.folder.at("plain"))
        with path.open("wb") as file:
            for piece in self.pieces:
                file.write(piece.reshape(-1).numpy().data.cast("B"))
            file.flush()
            os.fsync(file.fileno())
        path.unlink()

    def work(self) -> None:
        """As many products of matrices as take WORK_SECONDS alone."""
        left = torch.ones(1024, 1024)
        for _ in range(self.num_products):
            left @ left

    def summary(self) -> dict[str, float]:
        """Medians in seconds, and the ratios that are claimed."""
        medians = {name: statistics.median(rounds) for name, rounds in self.seconds.items()}
        stall = medians["asynchronous, stall"]
        ratios = {
            "synchronous stall over asynchronous": medians["synchronous, stall"] / stall,
            "asynchronous stall over a plain copy": stall / medians["copied (bound)"],
            "synchronous over writing plainly": medians["synchronous, stall"]
            / medians["written plainly (bound)"],
            "work beside the background over alone": medians["work beside the background"]
            / medians["work alone"],
        }
        return {name: round(value, 3) for name, value in (medians | ratios).items()}

    def _note(self, name: str, act: Callable[[], None]) -> None:
        self.seconds.setdefault(name, []).append(seconds_of(act))


def seconds_of(act: Callable[[], None]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
