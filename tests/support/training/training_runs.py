"""Training runs of the debug model for tests, forked, and what they left."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from lineage.recipe import parse_table
from tests.support.processes.forked import killed, run_forked, start_forked, wait
from trainer.options import TrainRecipe
from trainer.processes.result import TrainingResult
from trainer.processes.runtime import Process
from trainer.run.hooks import Hooks
from trainer.run.parts import LaunchContext
from trainer.run.train import train


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of the recipe below over `data`, with `changes` to its [train] table."""

    data: str
    output: Path
    changes: Mapping[str, Any] = field(default_factory=dict)

    def recipe(self, changes: Mapping[str, Any] | None = None) -> TrainRecipe:
        return parse_table(TrainRecipe, {"run": {"name": str(self.output)}, "train": self.table(changes)})

    def table(self, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """[train], as TOML says it."""
        table: dict[str, Any] = {
            "data": self.data,
            "output": str(self.output),
            "model": "debug",
            "seq_len": 32,
            "global_batch": 7,
            "micro_batch": 2,
            "steps": 12,
            "dtype": "float64",
            "record_batches": True,
            "optimizer": {"lr": 3e-3, "warmup_steps": 3},
            "checkpoint": {"every": 4},
        }
        return table | {**self.changes, **(changes or {})}

    def start(self, **changes: Any) -> TrainingResult:
        """Run until the end; gives rank 0's result."""
        recipe = self.recipe(changes)
        results: list[TrainingResult] = run_forked(
            self.scratch, recipe.train.num_workers, partial(_train, recipe)
        )
        return results[0]

    def start_and_kill(self, after_step: int, *, at_once: bool = False, **changes: Any) -> None:
        """Every process kills itself once `after_step` steps are done: no cleanup, no last checkpoint. The
        checkpoint that was due last is published by then (it is written beside the steps after it), unless
        `at_once`."""
        recipe = self.recipe(changes)
        every = recipe.train.checkpoint.every
        assert isinstance(every, int)
        due = 0 if at_once else after_step // every * every
        work = partial(_train, recipe, after_step=partial(_kill_at, after_step, self.output, due))
        assert killed(wait(start_forked(self.scratch, recipe.train.num_workers, work)))

    @property
    def scratch(self) -> Path:
        return self.output.parent / f"{self.output.name}-processes"

    def metrics(self) -> dict[int, dict[str, Any]]:
        """The newest attempt's line of each step."""
        rows = [json.loads(line) for line in (self.output / "metrics.jsonl").read_text().splitlines()]
        return {row["step"]: row for row in sorted(rows, key=lambda row: row["attempt"])}

    def losses(self) -> list[float | None]:
        rows = self.metrics()
        return [rows[step]["loss"] for step in sorted(rows)]

    def sequences(self) -> dict[int, list[tuple[int, int, str]]]:
        """(row, sequence, hash of its tokens) as the newest attempt was fed them at each step."""
        rows = [
            row
            for file in (self.output / "batches").glob("*.parquet")
            for row in pq.read_table(file).to_pylist()
        ]
        newest = {row["step"]: 0 for row in rows}
        for row in rows:
            newest[row["step"]] = max(newest[row["step"]], row["attempt"])
        fed: dict[int, list[tuple[int, int, str]]] = {step: [] for step in sorted(newest)}
        for row in rows:
            if row["attempt"] == newest[row["step"]]:
                fed[row["step"]].append((row["row"], row["sequence"], row["tokens_hash"]))
        return {step: sorted(entries) for step, entries in fed.items()}

    def checkpoints(self) -> list[str]:
        return sorted(path.parent.name for path in self.output.glob("checkpoints/*/complete.json"))


def _kill_at(after_step: int, output: Path, due: int, step: int) -> None:
    if step == after_step:
        while due and not any(output.glob(f"checkpoints/step-{due:08d}.*/complete.json")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


def _train(
    recipe: TrainRecipe, process: Process, after_step: Callable[[int], None] = lambda step: None
) -> TrainingResult:
    return train(recipe, LaunchContext(process=process, hooks=AfterStep(after_step)))


class AfterStep(Hooks):
    """Calls a function after each step, with the number of steps done."""

    def __init__(self, call: Callable[[int], None]) -> None:
        self._call = call

    def after_step(self, steps: int) -> None:
        self._call(steps)
