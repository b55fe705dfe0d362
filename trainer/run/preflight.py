"""What is wrong with a training recipe, found before Ray or a process starts: model, data, name, order,
processors.

No torch here: importing it takes seconds, and a wrong name should not wait for it.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterator
from typing import Final

from lineage.index.output_index import check_outside
from lineage.recipe import IN_PROCESS, RecipeError
from lineage.storage.folder import Folder
from lineage.store.delta import StoreError
from trainer.attempts import attempts
from trainer.checkpoint.room import check_room
from trainer.checkpoint.same_model import check_resumed
from trainer.checkpoint.store import (
    CheckpointError,
    Position,
    check_files,
    check_owner,
    checkpoint_folder,
    complete_checkpoints,
    newest_with_files,
    read_position,
    up_to,
)
from trainer.data.corpus import Corpus, open_corpus
from trainer.data.recipe_order import make_order
from trainer.huggingface.begun_from import check_first_weights
from trainer.huggingface.names import model_shapes, parameter_axes
from trainer.huggingface.same_tokenizer import CompareFile, check_first_tokenizer
from trainer.model.config.description import ModelConfig
from trainer.model.config.sizes import check_model_name, model_config
from trainer.optim.roles import check_groups
from trainer.options import TrainRecipe, TrainTable
from trainer.order import Order
from trainer.parallel.checks import check_layout
from trainer.processes.placement import local_cpus
from trainer.processes.result import TrainingResult
from trainer.provenance.facts import FactLog, check_name, check_output, commit
from trainer.provenance.same_plan import check_same_plan
from trainer.recipe_tables.parallelism import ExpertsTable, Float8Table
from trainer.recovery.rollbacks import pending_rollback
from trainer.telemetry.metrics_file import last_reports

_USEFUL_EPOCHS: Final = 16
"""Passes beyond which repeated data adds almost nothing: Muennighoff et al. 2023 (2305.16264), section 6: the
fit has a half-life of about 15 repetitions."""
_CHECKPOINT_BYTES: Final = 12
"""Of a parameter: its weight and AdamW's two moments, in float32."""
_MOST_SHARING: Final = 8
"""Workers that may share a processor of this machine before a start is refused."""


class MissingShardError(FileNotFoundError):
    """A file of an output that is to be trained on is not there."""


def check_recipe(
    recipe: TrainRecipe, compare: CompareFile | None = None, from_step: int | None = None
) -> list[str]:
    """`check_run` of a run that `sluice train` starts. RecipeError also for far more workers than this machine
    has processors, and for workers that nothing would start."""
    _check_starter(recipe)
    sharing = list(_sharing(recipe))
    return [*check_run(recipe, compare, from_step), *sharing]


def check_run(
    recipe: TrainRecipe, compare: CompareFile | None = None, from_step: int | None = None
) -> list[str]:
    """Lines that the user should read before the run: how many epochs it sees, and what looks like a mistake.
    `compare`: how the tokenizer in the folder of `train.init_from` is compared; None: it is told that it is not.
    `from_step`: the checkpoint to which the call goes back, which `go_back_to` checks in place of the newest.

    RecipeError for a model that is none, a place to write within the output of a data run, a layout or a group of
    parameters that does not fit the model, a checkpoint of another model or order, first weights of another
    tokenizer, a run.name that belongs to another output, an output or checkpoints of another run, and sizes or a
    mixture that do not fit the data; NotFinishedError where train.data is no output, MissingShardError where a shard
    of it is gone."""
    check_model_name(recipe.train.model)
    for name, place in _written(recipe.train).items():
        if place is not None:
            check_outside(name, place, is_folder=True)
    corpus = open_corpus(recipe.train.outs)
    _check_shards(corpus)
    _check_name(recipe, corpus)
    config = model_config(recipe.train.model, corpus.tokenizer.vocab_size)
    check_layout(recipe.train, config)
    check_groups(recipe.train.optimizer.group, parameter_axes(config))
    first = _check_init_from(recipe, config, corpus, compare)
    if recipe.train.checkpoint.path is not None:
        check_owner(Folder(recipe.train.checkpoint.path), Folder(recipe.train.output))
    order = make_order(recipe, corpus)
    newest = _newest(recipe)
    # What was done behind the step is undone, so a mixture that begins there may be another.
    if newest is not None and not from_step:
        _check_newest(Folder(recipe.train.output), newest[1], config, order)
    # A run that is finished saves none.
    if newest is None or newest[1].step < recipe.train.steps:
        num_parameters = sum(map(math.prod, model_shapes(config).values()))
        check_room(checkpoint_folder(recipe), num_parameters * _CHECKPOINT_BYTES)
    return [*first, *_unread_tables(recipe.train, config), *_epochs(order, recipe.train.steps)]


def check_training(recipe: TrainRecipe) -> None:
    """RecipeError now for what every worker would find out later: `check_recipe` finds the rest, sooner."""
    corpus = open_corpus(recipe.train.outs)
    make_order(recipe, corpus)
    config = model_config(recipe.train.model, corpus.tokenizer.vocab_size)
    check_layout(recipe.train, config)


def _unread_tables(table: TrainTable, config: ModelConfig) -> Iterator[str]:
    """Tables that this run does not read. They may stay in the recipe, for a call with another model or dtype."""
    if config.experts is None and table.experts != ExpertsTable():
        yield "[train.experts] has no effect: the model has no experts"
    if table.dtype != "float8" and table.float8 != Float8Table():
        yield f'[train.float8] has no effect: train.dtype = "{table.dtype}"'


def _newest(recipe: TrainRecipe) -> tuple[Folder, Position] | None:
    """The newest complete checkpoint that the run may go on from and what it records, where there is one. Damaged
    ones are passed over: what becomes of them is decided where the run joins."""
    output = Folder(recipe.train.output)
    folder = checkpoint_folder(recipe)
    begun = attempts(output)
    complete = complete_checkpoints(folder, begun)
    if (rollback := pending_rollback(output, begun)) is not None:
        complete = up_to(complete, rollback.checkpoint)
    entry = newest_with_files(folder, complete)
    if entry is None:
        return None
    newest = folder.folder(entry.name)
    return newest, read_position(newest)


def _check_newest(output: Folder, position: Position, config: ModelConfig, order: Order) -> None:
    """RecipeError where the run cannot go on from its newest checkpoint: another model, another order."""
    check_resumed(position, config)
    check_same_plan(
        output,
        order.plan,
        step=position.step,
        order_version=position.order_version,
        fingerprint=position.plan_fingerprint,
    )


def finished(recipe: TrainRecipe) -> TrainingResult | None:
    """What a run came to that has done all its steps: nothing has to be started for it. None where steps are
    left. Facts that a store of the data has not taken yet are committed, as each start does."""
    found, output = _newest(recipe), Folder(recipe.train.output)
    if found is None or found[1].step < recipe.train.steps:
        return None
    if pending_rollback(output, attempts(output)) is not None:
        return None  # the run is to go back, and has steps to do again
    try:
        check_files(found[0])
    except CheckpointError:
        return None  # its last steps are done again
    commit(FactLog(output), open_corpus(recipe.train.outs).outputs)
    return so_far(recipe)


def so_far(recipe: TrainRecipe) -> TrainingResult | None:
    """What a run has come to by its newest checkpoint; None where it has none."""
    found, output = _newest(recipe), Folder(recipe.train.output)
    if found is None:
        return None
    folder, position = found
    counted = [report.loss for report in last_reports(output, lambda report: report.step < position.step)]
    return TrainingResult(
        step=position.step,
        attempt=position.attempt,
        loss=next((loss for loss in reversed(counted) if loss is not None), None),
        finished=position.step >= recipe.train.steps,
        checkpoint=folder.url,
    )


def _written(table: TrainTable) -> dict[str, str | None]:
    """The places that a training writes to, by the key that names each."""
    return {
        "train.output": table.output,
        "train.checkpoint.path": table.checkpoint.path,
        "train.cache.dir": table.cache.dir,
    }


def _check_shards(corpus: Corpus) -> None:
    """MissingShardError where a file that the indexes name is not there: by one listing of each output, so
    that a run does not begin that must fail at the step which reads it."""
    for output in corpus.outputs:
        there = set(Folder(output.url).names("shards"))
        named = [
            shard for shards in corpus.sources.values() for shard in shards if shard.folder == output.url
        ]
        gone = sorted(
            file for shard in named for file in (shard.file, shard.blocks_file) if file not in there
        )
        if gone:
            more = f" and {len(gone) - 1:,} more files" if len(gone) > 1 else ""
            raise MissingShardError(
                f"{output.url} lacks {gone[0]}{more}: sluice verify {shlex.quote(output.url)} lists what does"
                " not hold; restore it, or run the pipeline again into a new output"
            )


def _check_name(recipe: TrainRecipe, corpus: Corpus) -> None:
    check_output(recipe.run.name, Folder(recipe.train.output))
    try:
        check_name(recipe.run.name, Folder(recipe.train.output), corpus.outputs)
    except StoreError as error:
        raise RecipeError(f"run.name: {error}", "run.name") from error


def _check_init_from(
    recipe: TrainRecipe, config: ModelConfig, corpus: Corpus, compare: CompareFile | None
) -> list[str]:
    """A run that has begun goes on from its own checkpoint, and needs that folder no more."""
    if attempts(Folder(recipe.train.output)):
        return []
    check_first_weights(recipe.train, config)
    return check_first_tokenizer(recipe.train, corpus, compare)


def _epochs(order: Order, steps: int) -> Iterator[str]:
    for source, epochs in order.epochs(steps * order.plan.global_batch).items():
        yield f"source {source}: {epochs:.2f} epochs in {steps} steps"
        if epochs > _USEFUL_EPOCHS:
            yield (
                f"warning: source {source} is read {epochs:,.0f} times; past {_USEFUL_EPOCHS} epochs further ones add"
                " almost nothing (2305.16264): take fewer train.steps, another mixture, or more data"
            )


def _check_starter(recipe: TrainRecipe) -> None:
    """Without Ray one process trains, or as many as a run that recovers in place starts itself."""
    table = recipe.train
    if recipe.ray.in_process and table.num_workers > 1 and table.recovery.mode != "in_place":
        raise RecipeError(
            f'ray.address = "{IN_PROCESS}": the run is one process, and train.workers = {table.num_workers}: start'
            f" them with `torchrun --nproc-per-node={table.num_workers} -m trainer RECIPE`, let the run start them"
            ' itself with train.recovery.mode = "in_place", or name a Ray in ray.address',
            "ray.address",
        )


def _sharing(recipe: TrainRecipe) -> Iterator[str]:
    """What a local Ray would make of more workers than processors: it is told that it has as many as they
    reserve."""
    wanted, there = local_cpus(recipe.train), os.cpu_count() or 1
    if recipe.ray.address != "local" or recipe.ray.num_cpus is not None or wanted <= there:
        return
    if wanted > _MOST_SHARING * there:
        raise RecipeError(
            f"train.workers = {recipe.train.num_workers}: they reserve {wanted} processors and this machine"
            f" has {there}: ask for {there} workers, name a cluster in ray.address, or insist with"
            f" ray.num_cpus = {wanted}",
            "train.workers",
        )
    yield (
        f"warning: {recipe.train.num_workers} workers reserve {wanted} processors and this machine has"
        f" {there}: they take turns, so fewer workers are faster"
    )
