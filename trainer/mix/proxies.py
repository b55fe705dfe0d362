"""The proxy runs of an ablation: the training recipe of each, and the results that they leave.

Under `<train.output>/mix`: design.json, runs/<name>/ (training outputs), results/<name>.json; once all are
done results.csv (one row a run), and weights.csv and losses.csv as `mix fit --weights --losses` reads them.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from lineage.ids import content_hash
from lineage.index.output_index import check_outside
from lineage.json_record import JsonRecord
from lineage.recipe import RecipeError, as_plain, as_toml, differing
from lineage.storage.folder import Folder
from trainer.data.corpus import Corpus, open_corpus
from trainer.huggingface.begun_from import check_first_weights
from trainer.huggingface.same_tokenizer import CompareFile, check_first_tokenizer
from trainer.mix.design import Point, make_design
from trainer.mix.optimize import Goal
from trainer.mix.space import Space, make_space
from trainer.mix.swarm import Floats, Swarm
from trainer.model.config.description import ModelConfig
from trainer.model.config.sizes import model_config
from trainer.options import (
    CheckpointTable,
    MixtureTable,
    PlanTable,
    TrainRayTable,
    TrainRecipe,
)
from trainer.ordering.geometry import Geometry, num_validated
from trainer.parallel.checks import check_layout
from trainer.planning.counts import flops_per_token
from trainer.provenance.facts import ablation_name
from trainer.recipe_tables.failures import RecoveryTable
from trainer.recipe_tables.mixing import MixTable
from trainer.recipe_tables.parallelism import ParallelTable, ResourcesTable
from trainer.telemetry.metrics_file import read_reports

_DESIGN: Final = "design.json"
_DRAWN_BY: Final = ("runs", "replicates", "held_out", "design", "caps", "floors", "proxy")
"""The keys of [mix] that decide which runs there are; the others judge them."""
_FEWEST_VALIDATED: Final = 4096
"""Tokens of each source."""


class AblationError(RuntimeError):
    """A proxy run failed, or results are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyResult(JsonRecord):
    """A finished proxy run. `losses`: its last validation loss by source, nats; `tokens`: trained on;
    `seconds`: of its training steps, those of attempts that were killed included."""

    name: str
    role: str
    weights: dict[str, float]
    seed: int
    losses: dict[str, float]
    tokens: int
    seconds: float
    order_fingerprints: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """An ablation as its recipe describes it. `model`: of the proxies. `num_held_out`: sequences by
    source."""

    recipe: TrainRecipe
    table: MixTable
    space: Space
    points: tuple[Point, ...]
    order_fingerprints: tuple[str, ...]
    model: ModelConfig
    num_held_out: Mapping[str, int]

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

    @property
    def flops_per_token(self) -> float:
        """Of training a proxy."""
        return flops_per_token(self.model, self.recipe.train.seq_len)

    @property
    def flops_per_run(self) -> float:
        """Of a proxy run with its validation, which goes forward only: a third of what training on a token
        takes."""
        return self.flops_per_token * (self.tokens + self.validation_tokens / 3)

    @property
    def validation_tokens(self) -> int:
        """Held-out tokens, of all sources, that a proxy run is judged on."""
        most = math.ceil(self.most_validated / self.recipe.train.seq_len)
        return (
            sum(num_validated(held, most) for held in self.num_held_out.values()) * self.recipe.train.seq_len
        )

    @property
    def most_validated(self) -> int:
        """Most of them of one source: see `mix.proxy.validation_tokens`."""
        given = self.table.proxy.validation_tokens or self.recipe.train.validation_tokens
        return given or max(self.tokens // len(self.num_held_out), _FEWEST_VALIDATED)

    def proxy(self, point: Point) -> TrainRecipe:
        """The training recipe of one run: one process, the proxy's model and rate, the point's mixture and
        seed. Where it runs is no part of it: an ablation may move to another machine."""
        train, proxy = self.recipe.train, self.table.proxy
        optimizer = replace(
            train.optimizer,
            lr=proxy.lr or train.optimizer.lr,
            warmup_steps=min(train.optimizer.warmup_steps, max(self.steps // 10, 1)),
        )
        changed = replace(
            train,
            output=self.output(point).url,
            model=proxy.model,
            steps=self.steps,
            seed=point.seed,
            workers=None,
            parallel=ParallelTable(),
            # Tensor parallel's exchanges, of which one process has none. The rest of [train.overlap] changes
            # nothing of a proxy but would change the fingerprint of ablations that are under way.
            overlap=replace(train.overlap, async_tp=False),
            # Layers with experts are not compiled; the recipe's own model may have none.
            compile=train.compile and self.model.experts is None,
            optimizer=optimizer,
            eval_every=0,
            eval=(),
            validation_tokens=self.most_validated,
            profile=None,
            checkpoint=CheckpointTable(every=max(self.steps // 4, 1), keep=1),
            record_batches=False,
            skip=(),
            order=replace(train.order, mixture_block=mixture_block(self.recipe, self.table)),
            mixture=(MixtureTable(weights=point.weights),),
            resources=ResourcesTable(),
            recovery=RecoveryTable(),
        )
        run = replace(self.recipe.run, name=ablation_name(self.recipe.run.name, point.name))
        return replace(self.recipe, run=run, train=changed, mix=None, plan=PlanTable(), ray=TrainRayTable())

    def output(self, point: Point) -> Folder:
        """The training output of one run."""
        return self.folder.folder(f"runs/{point.name}")

    def goal(self) -> Goal:
        """What the mixture is chosen for."""
        targets = self.table.targets or dict.fromkeys(self.space.sources, 1.0)
        weights = np.array([targets.get(source, 0.0) for source in self.space.sources])
        train = self.recipe.train
        return Goal(
            target_weights=weights / weights.sum(),
            kl=self.table.kl,
            max_epochs=self.table.max_epochs,
            budget_tokens=self.table.budget_tokens or train.steps * train.global_batch * train.seq_len,
            mixture_block=train.order.mixture_block,
            seed=self.recipe.seed,
        )


def open_ablation(
    recipe: TrainRecipe, compare: CompareFile | None = None, say: Callable[[str], None] = lambda line: None
) -> Ablation:
    """The ablation of a training recipe with `[mix]`; `compare` is that of `preflight.check_run`, and `say` takes what
    it tells of the tokenizers. RecipeError where the recipe asks for what cannot be."""
    if recipe.mix is None:
        raise RecipeError("the recipe has no [mix]: add at least an empty one, its keys have defaults")
    check_outside("train.output", recipe.train.output, is_folder=True)
    if recipe.train.validation == 0:
        raise RecipeError(
            "train.validation = 0: mixtures are judged by validation loss; hold out some, such as 0.05"
        )
    corpus = open_corpus(recipe.train.outs)
    space = make_space(corpus.epoch_tokens, recipe.mix, _epoch_tokens(corpus, recipe))
    try:
        config = model_config(recipe.mix.proxy.model, corpus.tokenizer.vocab_size)
    except RecipeError as error:
        raise RecipeError(f"mix.proxy.model: {error}") from error
    ablation = Ablation(
        recipe=recipe,
        table=recipe.mix,
        space=space,
        points=make_design(space, recipe.mix, recipe.seed, mixture_block(recipe, recipe.mix)),
        order_fingerprints=tuple(output.order_fingerprint for output in corpus.outputs),
        model=config,
        num_held_out=_num_held_out(corpus, recipe),
    )
    if unjudged := [source for source, held in ablation.num_held_out.items() if held == 0]:
        raise RecipeError(
            f"train.validation = {recipe.train.validation:g} holds out no sequence of"
            f" {', '.join(map(repr, unjudged))}: each mixture is judged by the validation loss of every source;"
            " hold out a larger share, or join a source so small to another",
            "train.validation",
        )
    # What each proxy would refuse. Those of a design that is published began with weights that fit, if any.
    check_layout(ablation.proxy(ablation.points[0]).train, config)
    if not ablation.folder.exists(_DESIGN):
        try:
            check_first_weights(recipe.train, config)
        except RecipeError as error:
            raise RecipeError(f"mix.proxy.model = {recipe.mix.proxy.model!r}: {error}") from error
        for line in check_first_tokenizer(recipe.train, corpus, compare):
            say(line)
    return ablation


def _num_held_out(corpus: Corpus, recipe: TrainRecipe) -> dict[str, int]:
    geometry = _geometry(corpus, recipe)
    return dict(zip(corpus.lengths, geometry.num_validation.tolist(), strict=True))


def _geometry(corpus: Corpus, recipe: TrainRecipe) -> Geometry:
    train = recipe.train
    return Geometry(
        list(corpus.lengths.values()), train.seq_len, train.validation, list(corpus.repeats.values())
    )


def _epoch_tokens(corpus: Corpus, recipe: TrainRecipe) -> dict[str, int]:
    geometry = _geometry(corpus, recipe)
    fed = (geometry.num_train * recipe.train.seq_len).tolist()
    return dict(zip(corpus.lengths, fed, strict=True))


def _steps(recipe: TrainRecipe, table: MixTable) -> int:
    return math.ceil(table.proxy.tokens / (recipe.train.global_batch * recipe.train.seq_len))


def mixture_block(recipe: TrainRecipe, table: MixTable) -> int:
    """The proxy's: no longer than its run, so that a short run has its shares exactly."""
    return min(recipe.train.order.mixture_block, _steps(recipe, table) * recipe.train.global_batch)


def write_design(ablation: Ablation) -> bool:
    """Publish the design once; whether it was new. RecipeError where another one is there already and a run
    of it has begun; before, the new one takes its place. Called by who holds the ablation's folder."""
    if is_designed(ablation):
        return False
    points = [asdict(point) for point in ablation.points]
    design = {
        "run": ablation.recipe.run.name,
        "fingerprint": _fingerprint(ablation),
        "recipe": _shaping_keys(ablation),
        "order_fingerprints": ablation.order_fingerprints,
        "points": points,
    }
    ablation.folder.publish(_DESIGN, json.dumps(design, indent=1).encode())
    return True


def is_designed(ablation: Ablation) -> bool:
    """Whether its design is published. RecipeError, which names the keys that differ, where another one is
    and a run of it has begun."""
    folder = ablation.folder
    if not folder.exists(_DESIGN):
        return False
    held, run = json.loads(folder.read(_DESIGN)), ablation.recipe.run.name
    if held["run"] != run:
        raise RecipeError(
            f"run.name = {run!r}: {folder.at(_DESIGN)} is of the run {held['run']!r}: give that run.name to"
            " go on with it, or another train.output to begin a run",
            "run.name",
        )
    if held["fingerprint"] != _fingerprint(ablation):
        begun = {name.split("/")[1] for name in folder.names("runs")}
        if not begun and not folder.names("results"):
            return False
        raise RecipeError(
            f"{folder.at(_DESIGN)} is of another design, of which {len(folder.names('results'))} runs are"
            f" done and {len(begun)} begun: {_changed(ablation, held)}. Restore them, or take another"
            " train.output and run.name"
        )
    return True


def _changed(ablation: Ablation, held: Mapping[str, Any]) -> str:
    """In what the design that is held differs."""
    found = differing(json.loads(json.dumps(_shaping_keys(ablation))), held["recipe"])
    if tuple(held["order_fingerprints"]) != ablation.order_fingerprints:
        found.append("train.data holds other tokens than it did")
    return "; ".join(found) or "the recipe, [mix] or the data changed since"


def _shaping_keys(ablation: Ablation) -> dict[str, object]:
    """The keys that its runs are a function of: those of [mix] that draw them, and what a proxy takes of
    [train]."""
    proxy = as_plain(ablation.proxy(ablation.points[0]).train)
    own = {
        name: value
        for name, value in proxy.items()
        if name not in ("output", "mixture", "seed", "steps", "model")
    }
    mix = {name: value for name, value in as_plain(ablation.table).items() if name in _DRAWN_BY}
    return {"seed": ablation.recipe.seed, "train": own, "mix": mix}


def _fingerprint(ablation: Ablation) -> str:
    """What its runs are a function of."""
    recipes = [as_toml(ablation.proxy(point)) for point in ablation.points]
    return content_hash(json.dumps([ablation.order_fingerprints, recipes]).encode()).hex()


def pending(ablation: Ablation) -> tuple[Point, ...]:
    """The runs without a result."""
    return tuple(point for point in ablation.points if not ablation.folder.exists(_result_file(point)))


def publish_result(ablation: Ablation, point: Point) -> ProxyResult:
    """The result of a run that has ended, published. AblationError where it has none."""
    reports = read_reports(ablation.output(point))
    validations = [
        report.validation_loss
        for report in reports
        if report.step == ablation.steps - 1 and report.validation_loss
    ]
    missing = [
        source for source in ablation.space.sources if not validations or validations[-1].get(source) is None
    ]
    if missing:
        raise AblationError(
            f"proxy run {point.name} has no validation loss of {', '.join(missing)}: it was stopped or"
            " diverged. The same call continues"
        )
    result = ProxyResult(
        name=point.name,
        role=point.role,
        weights=point.weights,
        seed=point.seed,
        losses=dict(validations[-1]),
        tokens=ablation.tokens,
        seconds=sum(report.seconds for report in reports),
        order_fingerprints=ablation.order_fingerprints,
    )
    ablation.folder.publish(_result_file(point), json.dumps(result.to_json()).encode())
    return result


def _result_file(point: Point) -> str:
    return f"results/{point.name}.json"


def results(ablation: Ablation) -> tuple[ProxyResult, ...]:
    """Every result. AblationError while runs are pending, RecipeError where those that are there are of
    another design."""
    left = pending(ablation)
    if not is_designed(ablation) or left:
        raise AblationError(
            f"{len(left)} of {len(ablation.points)} runs are not done: call `sluice mix run` first"
        )
    return tuple(read_result(ablation, point) for point in ablation.points)


def read_result(ablation: Ablation, point: Point) -> ProxyResult:
    """The published result of one run."""
    return ProxyResult.from_json(json.loads(ablation.folder.read(_result_file(point))))


def fitted(found: Sequence[ProxyResult]) -> list[ProxyResult]:
    """The runs that models are fitted on: neither held out nor repeats."""
    return [result for result in found if result.role not in ("held_out", "replicate")]


def swarm_of(found: Sequence[ProxyResult]) -> Swarm:
    """Results as a table, sources and targets by name."""
    sources = tuple(sorted(found[0].weights))
    return Swarm(
        sources=sources,
        targets=sources,
        weights=np.array([[result.weights[source] for source in sources] for result in found]),
        losses=np.array([[result.losses[source] for source in sources] for result in found]),
    )


def goal_losses(found: Sequence[ProxyResult], goal: Goal) -> Floats:
    """The goal's loss of each run, nats, (runs,)."""
    losses: Floats = swarm_of(found).losses @ goal.target_weights
    return losses


def noise_floor(found: Sequence[ProxyResult], goal: Goal) -> float | None:
    """Standard deviation of the goal's loss over the natural mixture and its replicates, nats; None without
    any."""
    alike = [result for result in found if result.role in ("natural", "replicate")]
    return float(np.std(goal_losses(alike, goal), ddof=1)) if len(alike) > 1 else None


def write_tables(ablation: Ablation) -> None:
    """Publish results.csv, weights.csv and losses.csv."""
    found = results(ablation)
    sources = sorted(found[0].weights)
    weights = [[result.weights[source] for source in sources] for result in found]
    losses = [[result.losses[source] for source in sources] for result in found]
    names = [[result.name] for result in found]
    head = ["run", "role", "seed", "tokens", "seconds", "order_fingerprint"]
    facts = [[r.role, r.seed, r.tokens, round(r.seconds, 3), " ".join(r.order_fingerprints)] for r in found]
    columns = [*head, *(f"weight.{source}" for source in sources), *(f"loss.{source}" for source in sources)]
    folder = ablation.folder
    folder.publish("results.csv", _csv(columns, names, facts, weights, losses))
    folder.publish("weights.csv", _csv(["run", *sources], names, weights))
    folder.publish("losses.csv", _csv(["run", *sources], names, losses))


def _csv(header: Sequence[str], *columns: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([cell for part in parts for cell in part] for parts in zip(*columns, strict=True))
    return text.getvalue().encode()
