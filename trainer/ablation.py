"""Runs an ablation: each mixture of the design is an ordinary training run in a process of its own, with a result file.

What is finished is never run again, and what was killed goes on from its newest checkpoint: the same call continues.
Under `<train.output>/mix`: design.json, runs/<name>/ (training outputs), results/<name>.json, weights.csv, losses.csv.
"""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from lineage.ids import content_hash
from lineage.recipe import RecipeError, as_toml
from lineage.storage import Folder
from trainer.corpus import Corpus, open_corpus
from trainer.mix.design import Point, make_design
from trainer.mix.optimize import Goal
from trainer.mix.options import MixTable
from trainer.mix.space import Space, make_space
from trainer.mix.swarm import Swarm
from trainer.options import CheckpointTable, MixtureTable, ParallelTable, TrainRecipe


class AblationError(RuntimeError):
    """A proxy run failed, or results are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished proxy run. `losses`: its last validation loss by source, nats; `tokens`: trained on."""

    name: str
    role: str
    weights: dict[str, float]
    seed: int
    losses: dict[str, float]
    tokens: int
    order_fingerprints: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """An ablation as its recipe describes it."""

    recipe: TrainRecipe
    table: MixTable
    space: Space
    points: tuple[Point, ...]
    order_fingerprints: tuple[str, ...]

    @property
    def folder(self) -> Folder:
        """Where it keeps everything."""
        return Folder(self.recipe.train.output).folder("mix")

    @property
    def steps(self) -> int:
        """Of one proxy run."""
        return _steps(self.recipe, self.table)

    @property
    def tokens(self) -> int:
        """Of one proxy run."""
        return self.steps * self.recipe.train.global_batch * self.recipe.train.seq_len

    def proxy(self, point: Point) -> TrainRecipe:
        """The training recipe of one run: one process, the proxy's model and rate, the point's mixture and seed."""
        train, proxy = self.recipe.train, self.table.proxy
        optimizer = replace(
            train.optimizer,
            lr=proxy.lr or train.optimizer.lr,
            warmup_steps=min(train.optimizer.warmup_steps, max(self.steps // 10, 1)),
        )
        changed = replace(
            train, output=self.folder.at(f"runs/{point.name}"), model=proxy.model, steps=self.steps, seed=point.seed,
            workers=None, parallel=ParallelTable(), optimizer=optimizer, eval_every=0, profile=None,
            checkpoint=CheckpointTable(every=max(self.steps // 4, 1), keep=1), record_batches=False, skip=(),
            order=replace(train.order, mixture_block=mixture_block(self.recipe, self.table)),
            mixture=(MixtureTable(weights=point.weights),),
        )  # fmt: skip
        run = replace(self.recipe.run, name=f"{self.recipe.run.name}-mix-{point.name}")
        return replace(self.recipe, run=run, train=changed, mix=None)

    def goal(self) -> Goal:
        """What the mixture is chosen for."""
        targets = self.table.targets or dict.fromkeys(self.space.sources, 1.0)
        weights = np.array([targets.get(source, 0.0) for source in self.space.sources])
        train = self.recipe.train
        return Goal(
            target_weights=weights / weights.sum(), kl=self.table.kl, max_epochs=self.table.max_epochs,
            budget_tokens=self.table.budget_tokens or train.steps * train.global_batch * train.seq_len,
            mixture_block=train.order.mixture_block, seed=self.recipe.seed,
        )  # fmt: skip


def open_ablation(recipe: TrainRecipe) -> Ablation:
    """The ablation of a training recipe with `[mix]`. RecipeError where the recipe asks for what cannot be."""
    if recipe.mix is None:
        raise RecipeError("the recipe has no [mix]: add at least an empty one, its keys have defaults")
    if recipe.train.validation == 0:
        raise RecipeError("train.validation = 0: mixtures are judged by validation loss; hold out some, such as 0.05")
    corpus = open_corpus(recipe.train.outs)
    space = make_space(_tokens(corpus), recipe.mix)
    return Ablation(
        recipe=recipe,
        table=recipe.mix,
        space=space,
        points=make_design(space, recipe.mix, recipe.seed, mixture_block(recipe, recipe.mix)),
        order_fingerprints=tuple(output.order_fingerprint for output in corpus.outputs),
    )


def _tokens(corpus: Corpus) -> dict[str, int]:
    return {source: sum(lengths) for source, lengths in corpus.lengths.items()}


def _steps(recipe: TrainRecipe, table: MixTable) -> int:
    return math.ceil(table.proxy.tokens / (recipe.train.global_batch * recipe.train.seq_len))


def mixture_block(recipe: TrainRecipe, table: MixTable) -> int:
    """The proxy's: no longer than its run, so that a short run has its shares exactly."""
    return min(recipe.train.order.mixture_block, _steps(recipe, table) * recipe.train.global_batch)


def write_design(ablation: Ablation) -> bool:
    """Publish the design once; whether it was new. RecipeError where another one is there already."""
    recipes = [as_toml(ablation.proxy(point)) for point in ablation.points]
    fingerprint = content_hash(json.dumps([ablation.order_fingerprints, recipes]).encode()).hex()
    folder = ablation.folder
    if folder.exists("design.json"):
        if json.loads(folder.read("design.json"))["fingerprint"] != fingerprint:
            raise RecipeError(
                f"{folder.at('design.json')} is of another design: the recipe, [mix] or the data changed since. "
                "Restore them, or take another train.output"
            )
        return False
    design = {"fingerprint": fingerprint, "points": [asdict(point) for point in ablation.points]}
    folder.publish("design.json", json.dumps(design, indent=1).encode())
    return True


def pending(ablation: Ablation) -> tuple[Point, ...]:
    """The runs without a result."""
    return tuple(point for point in ablation.points if not ablation.folder.exists(_result_file(point)))


def run_ablation(ablation: Ablation, num_parallel: int, tell: Callable[[str], None]) -> None:
    """Run what is pending, so many at once; then write the tables. AblationError where a proxy run failed: the others
    that had begun are told to save and end."""
    write_design(ablation)
    waiting = list(pending(ablation))
    tell(f"{len(ablation.points) - len(waiting)} of {len(ablation.points)} runs are done")
    running: dict[str, tuple[Point, subprocess.Popen[bytes]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        try:
            while waiting or running:
                while waiting and len(running) < num_parallel:
                    point = waiting.pop(0)
                    running[point.name] = point, _start(ablation.proxy(point), Path(scratch) / point.name)
                point = _await_any(running, Path(scratch))
                _publish(ablation, point)
                tell(f"{point.name} is done, {len(waiting) + len(running)} left")
        finally:
            for _, process in running.values():
                process.terminate()
            for _, process in running.values():
                process.wait()
    _write_tables(ablation.folder, results(ablation))


def _start(recipe: TrainRecipe, path: Path) -> subprocess.Popen[bytes]:
    path.with_suffix(".toml").write_text(as_toml(recipe), encoding="utf-8")
    with path.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "trainer", str(path.with_suffix(".toml"))], stdout=log, stderr=log
        )


def _await_any(running: dict[str, tuple[Point, subprocess.Popen[bytes]]], scratch: Path) -> Point:
    """Wait until one ends and take it out. AblationError where it failed."""
    while True:
        for name, (point, process) in running.items():
            try:
                code = process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                continue
            del running[name]
            if code != 0:
                log = (scratch / name).with_suffix(".log").read_text(encoding="utf-8", errors="replace")
                raise AblationError(f"proxy run {name} ended with exit code {code}: {log.strip()[-800:]}")
            return point


def _publish(ablation: Ablation, point: Point) -> None:
    rows = [json.loads(line) for line in ablation.folder.read(f"runs/{point.name}/metrics.jsonl").splitlines()]
    told = [row["validation_loss"] for row in rows if row["step"] == ablation.steps - 1 and "validation_loss" in row]
    missing = [source for source in ablation.space.sources if not told or told[-1].get(source) is None]
    if missing:
        raise AblationError(
            f"proxy run {point.name} has no validation loss of {', '.join(missing)}: it was stopped or diverged, or "
            "train.validation holds out no sequence of a source so small. The same call continues"
        )
    result = Result(
        name=point.name, role=point.role, weights=point.weights, seed=point.seed, losses=told[-1],
        tokens=ablation.tokens, order_fingerprints=ablation.order_fingerprints,
    )  # fmt: skip
    ablation.folder.publish(_result_file(point), json.dumps(asdict(result)).encode())


def _result_file(point: Point) -> str:
    return f"results/{point.name}.json"


def results(ablation: Ablation) -> tuple[Result, ...]:
    """Every result. AblationError while runs are pending."""
    left = pending(ablation)
    if left:
        raise AblationError(f"{len(left)} of {len(ablation.points)} runs are not done: call `sluice mix run` first")
    rows = (json.loads(ablation.folder.read(_result_file(point))) for point in ablation.points)
    return tuple(Result(**row) for row in rows)


def swarm_of(found: Sequence[Result]) -> Swarm:
    """Results as a table, sources and targets by name."""
    sources = tuple(sorted(found[0].weights))
    return Swarm(
        sources=sources,
        targets=sources,
        weights=np.array([[result.weights[source] for source in sources] for result in found]),
        losses=np.array([[result.losses[source] for source in sources] for result in found]),
    )


def noise_floor(found: Sequence[Result], goal: Goal) -> float | None:
    """Standard deviation of the goal's loss over the natural mixture and its replicates, nats; None without any."""
    alike = [result for result in found if result.role in ("natural", "replicate")]
    if len(alike) < 2:
        return None
    return float(np.std(swarm_of(alike).losses @ goal.target_weights, ddof=1))


def _write_tables(folder: Folder, found: Sequence[Result]) -> None:
    for name in ("weights", "losses"):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        sources = sorted(found[0].weights)
        writer.writerow(["run", *sources])
        for result in found:
            values = result.weights if name == "weights" else result.losses
            writer.writerow([result.name, *(values[source] for source in sources)])
        folder.publish(f"{name}.csv", text.getvalue().encode())
