"""A training run from its start or its newest checkpoint to its end: one road, whatever its processes do when
one of them is lost (`hooks.py`).

1. begin    open the feed of batches, refuse a model that the layout cannot hold, claim the next attempt and
            find the newest checkpoint, make the model and the parts that run, save and report its steps; or take
            over what the processes that are left hold (`in_place/`)
2. load     weights and moments: from that checkpoint, from `train.init_from`, from the seed, or from memory
3. step     until all steps are done or a stop is requested; a checkpoint where one is due
4. go back  before batches that were skipped in a row, where the recipe says so, and begin again
5. end      a checkpoint of what none holds yet, and how the attempt ended
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial

from lineage.openlineage import EventDataset, JobFacts, job_events
from lineage.storage.folder import Folder
from trainer.attempts import AttemptEnd, TrainingStoppedError, attempts, end
from trainer.checkpoint.store import checkpoint_folder
from trainer.feed.feed import Feed
from trainer.huggingface.names import parameter_axes
from trainer.model.config.description import ModelConfig
from trainer.model.config.sizes import model_config
from trainer.optim.roles import check_groups
from trainer.options import TrainRecipe
from trainer.parallel.checks import check_layout, check_overlap
from trainer.parallel.float8 import check_float8
from trainer.parallel.layout import parallel_layout
from trainer.processes.heard import by_first_rank
from trainer.processes.result import TrainingResult
from trainer.provenance.setup import make_setup, record_setup
from trainer.recovery.repeated import go_back_before, left_out
from trainer.recovery.repeats import RepeatedFaultsError
from trainer.recovery.rollbacks import end_rollbacks
from trainer.run.assemble import assemble, first_progress, look_at_machines, open_groups
from trainer.run.first_weights import origin_together
from trainer.run.hardware import hardware_of
from trainer.run.hooks import Hooks
from trainer.run.joining import Joined, join
from trainer.run.parts import GlooGroups, LaunchContext, Run
from trainer.run.saving import save_the_rest
from trainer.run.steps import run_steps
from trainer.telemetry.goodput import describe_goodput


def train(recipe: TrainRecipe, launch: LaunchContext) -> TrainingResult:
    """Train until `train.steps` steps are done or a stop is requested; where batches are skipped in a row,
    and the recipe says so, as several attempts. Collective.

    RecipeError where the recipe cannot be met; CheckpointError where the newest checkpoint does not fit;
    TrainingStoppedError after too many skips; FencedOutError where a later attempt has begun."""
    hooks = launch.hooks or Hooks()
    with hooks.opening_groups():
        groups = open_groups(recipe, launch.process)
    while True:
        try:
            return _attempt(recipe, launch, hooks, groups)
        except RepeatedFaultsError as error:
            steps = error.steps
        # Not within `except`: the error holds the frames, and so the model, of the attempt that has ended.
        launch = dataclasses.replace(launch, began_at=time.time())
        lines = by_first_rank(partial(go_back_before, recipe, steps), groups.control, TrainingStoppedError)
        if launch.process.rank == 0:
            sys.stderr.writelines(f"{line}\n" for line in lines)


def _attempt(recipe: TrainRecipe, launch: LaunchContext, hooks: Hooks, groups: GlooGroups) -> TrainingResult:
    run = hooks.take_over(launch, groups) or _begin(recipe, launch, hooks, groups)
    with hooks.attempt(run), _attempt_events(run) as facts:
        look_at_machines(run)
        hooks.load(run)
        result = _steps_to_the_end(run)
        facts.tags = {**facts.tags, "steps_done": str(result.step)}
    if result.finished and run.rank == 0:
        # Only now: a rollback whose steps were not all done again is carried out by the next call.
        end_rollbacks(run.output, attempts(run.output), result.attempt)
    return result


@contextmanager
def _attempt_events(run: Run) -> Iterator[JobFacts]:
    """What OpenLineage is told of an attempt, by rank 0: its data in its content now, its output, its first step."""
    facts = JobFacts(
        kind="training",
        name=run.recipe.run.name,
        inputs=[
            EventDataset(url=each.url, version=each.content_fingerprint) for each in run.stepping.feed.outputs
        ],
        outputs=[EventDataset(url=run.output.url)],
        tags={"attempt": str(run.attempt), "first_step": str(run.progress.step)},
    )
    with job_events(facts) if run.rank == 0 else nullcontext():
        yield facts


def _begin(recipe: TrainRecipe, launch: LaunchContext, hooks: Hooks, groups: GlooGroups) -> Run:
    """An attempt that goes on from the newest checkpoint, or begins the run. Collective."""
    output = Folder(recipe.train.output)
    passed_over = by_first_rank(partial(left_out, output), groups.control)
    with ExitStack() as opened:
        feed = hooks.open_feed(recipe, launch, groups, passed_over)
        opened.callback(feed.close)
        joined = _join(recipe, launch, hooks, groups, feed)
        run = assemble(
            recipe, launch, hooks, groups, feed, joined=joined, progress=first_progress(joined, recipe)
        )
        opened.pop_all()  # an attempt that has begun closes what it has open
    return run


def _join(recipe: TrainRecipe, launch: LaunchContext, hooks: Hooks, groups: GlooGroups, feed: Feed) -> Joined:
    """Refuse what the layout cannot hold, claim the next attempt, find where it begins, and record how it is
    set up. Collective; errors as of `train`."""
    process, output = launch.process, Folder(recipe.train.output)
    joined = join(
        output,
        checkpoint_folder(recipe),
        feed,
        _checked_model(recipe, launch, feed),
        groups.control,
        recipe=recipe,
        began_at=launch.began_at,
        claimant=hooks.claimant,
    )
    begins_with = None if joined.position is not None else recipe.train.init_from
    origin = None if begins_with is None else origin_together(begins_with, groups.control)
    if process.rank == 0:
        setup = make_setup(recipe, process.device.type, origin, hardware_of(process.device))
        record_setup(output, joined.attempt.number, setup, recipe)
    return joined


def _checked_model(recipe: TrainRecipe, launch: LaunchContext, feed: Feed) -> ModelConfig:
    table, device = recipe.train, launch.process.device
    config = model_config(table.model, feed.vocab_size)
    layout = parallel_layout(table, device)
    check_layout(table, config)
    check_overlap(table.overlap, device.type)
    check_groups(table.optimizer.group, parameter_axes(config))
    if layout.float8 is not None:
        check_float8(layout.float8, device)
    return config


def _steps_to_the_end(run: Run) -> TrainingResult:
    is_replaced = False
    try:
        run_steps(run)
        saving_seconds = save_the_rest(run)
    except BaseException:
        # Of one whose place is taken this would be when it woke up, long after its attempt.
        is_replaced = run.hooks.is_replaced()
        if run.rank == 0 and not is_replaced:
            with suppress(OSError):  # the storage may be what failed
                end(run.output, run.attempt, AttemptEnd(at=time.time(), how="failed"))
        raise
    finally:
        run.saving.saver.close()
        run.stepping.profiler.close()
        # One that puts its lines into a store at its end would put those again that another process has put.
        for sink in () if is_replaced else run.reporting.sinks:
            sink.close()
    return _end(run, saving_seconds)


def _end(run: Run, saving_seconds: float) -> TrainingResult:
    """Write down how the attempt ended."""
    progress, goodput = run.progress, run.reporting.goodput
    finished = progress.step >= run.recipe.train.steps
    if goodput is not None:
        how = AttemptEnd(
            at=time.time(), how="finished" if finished else "stopped", saving_seconds=saving_seconds
        )
        end(run.output, run.attempt, how)
        summary = goodput.ended(run.attempt, how)
        if run.launch.shows_progress:
            sys.stderr.writelines(f"{line}\n" for line in describe_goodput(summary))
    return TrainingResult(
        step=progress.step,
        attempt=run.attempt,
        loss=progress.loss,
        finished=finished,
        checkpoint=progress.checkpoint,
    )
