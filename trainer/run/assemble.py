"""The parts of a run from its recipe, and what is in them before its first step."""

from __future__ import annotations

import datetime
import socket
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor

from lineage.recipe import as_plain
from lineage.storage.folder import Folder
from trainer.attempts import Fence, record_failure
from trainer.checkpoint.cadence import FIRST_STEPS, AutoCadence
from trainer.checkpoint.state import Saver, held_tensors, load_whole, restore, training_state
from trainer.checkpoint.store import checkpoint_folder
from trainer.feed.feed import Feed
from trainer.feed.loading import feed_group
from trainer.health.check import Health
from trainer.huggingface.model_card import ModelCard, publish_card
from trainer.model.config.sizes import model_config
from trainer.optim.optimizer import Optimizer
from trainer.options import TrainRecipe
from trainer.parallel.float8 import float8_products
from trainer.parallel.layout import parallel_layout
from trainer.parallel.mesh import ParallelModel, parallelise_model
from trainer.parallel.weights import settle_buckets
from trainer.planning.gpus import machine_of
from trainer.planning.plan import mtbf_hours
from trainer.processes.heard import of_every_rank
from trainer.processes.runtime import Process, collective_timeout
from trainer.processes.watchdog import Watchdog
from trainer.provenance.setup import recipe_hash
from trainer.recorder.files import drop_old_recorders
from trainer.recorder.recorder import Recorder, RecorderOptions
from trainer.recovery.faults import SpikeWindow
from trainer.recovery.repeated import skip_counter
from trainer.recovery.repeats import SkipCounter
from trainer.run.evaluating import open_evaluations
from trainer.run.first_weights import load_first_weights
from trainer.run.joining import Joined
from trainer.run.parts import (
    GlooGroups,
    LaunchContext,
    Progress,
    ProgressWatcher,
    Reporting,
    Run,
    Saving,
    Stepping,
)
from trainer.run.reporter import StepReporter
from trainer.run.step import StepContext
from trainer.telemetry.goodput import LiveGoodput
from trainer.telemetry.profiling import Profiler
from trainer.telemetry.sinks import Terminal, standard_sinks
from trainer.telemetry.step_report import Sink
from trainer.telemetry.symptoms import Symptom
from trainer.telemetry.timing import PhaseClock
from trainer.telemetry.trackers import TrackedRun, Tracker, dotted

if TYPE_CHECKING:
    from trainer.run.hooks import Hooks

_SLOWEST_SAVE: Final = datetime.timedelta(hours=2)
"""How long ranks wait for each other's pieces of a checkpoint, in the background."""


def open_groups(recipe: TrainRecipe, process: Process) -> GlooGroups:
    """The groups that serve every attempt of these processes. Collective."""
    timeout = collective_timeout(recipe.train.faults.watchdog_seconds)
    return GlooGroups(control=dist.new_group(backend="gloo", timeout=timeout), feed=feed_group(process))


def assemble(
    recipe: TrainRecipe,
    launch: LaunchContext,
    hooks: Hooks,
    groups: GlooGroups,
    feed: Feed,
    *,
    joined: Joined,
    progress: Progress,
) -> Run:
    """The model on its mesh, without weights, and the parts that run, save and report its steps. Collective.
    What it gives has a recorder to close, and a watchdog."""
    table, process = recipe.train, launch.process
    output, attempt = Folder(table.output), joined.attempt.number
    config = model_config(table.model, feed.vocab_size)
    timeout = collective_timeout(table.faults.watchdog_seconds)
    with hooks.opening_groups():
        # A group of its own: the background writer's collectives must not mix with those of the steps.
        saving = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=_SLOWEST_SAVE))
        model = parallelise_model(config, parallel_layout(table, process.device), process.device, timeout)
    saver = Saver(
        checkpoint_folder(recipe),
        output,
        table.checkpoint,
        saving,
        steps=table.steps,
        check_place=hooks.check_place,
    )
    watchdog = hooks.watchdog or _watchdog(recipe, process)
    profiler = Profiler(table.profile, output, process.rank, attempt)

    def at(where: str) -> None:
        watchdog.at(progress.step, where)
        profiler.at(where)

    clock = PhaseClock(model.device, at)
    goodput = LiveGoodput(output) if process.rank == 0 else None
    nodes = of_every_rank(socket.gethostname(), groups.control)
    if process.rank == 0:
        drop_old_recorders(output, attempt)
    recorder = Recorder(_recorder_options(recipe, process, attempt), clock)
    watchdog.dump = recorder.dump
    context = step_context(recipe, feed, model, progress.skips, clock)
    context.stop_requested = launch.stop_requested
    context.operations = recorder.operations
    return Run(
        recipe=recipe,
        launch=launch,
        hooks=hooks,
        groups=groups,
        output=output,
        joined=joined,
        progress=progress,
        stepping=Stepping(
            context=context,
            feed=feed,
            health=Health(table, process.device, output, groups.control, partial(state_tensors, context)),
            profiler=profiler,
            recorder=recorder,
            watchdog=watchdog,
            evaluations=open_evaluations(recipe, feed.dataset.corpus.tokenizer.hash, groups.control),
        ),
        saving=Saving(
            saver=saver, fence=Fence(output, attempt), config=config, cadence=_auto_cadence(recipe, goodput)
        ),
        reporting=Reporting(
            reporter=StepReporter(
                recipe,
                config,
                feed,
                model,
                attempt=attempt,
                checkpoint_age=saver.age_seconds,
                recorder=recorder,
                nodes=nodes,
                control=groups.control,
            ),
            sinks=_sinks(recipe, launch, output, feed, attempt) if process.rank == 0 else (),
            goodput=goodput,
        ),
    )


def _sinks(
    recipe: TrainRecipe, launch: LaunchContext, output: Folder, feed: Feed, attempt: int
) -> Sequence[Sink]:
    shown = (Terminal(recipe.train.steps),) if launch.shows_progress else ()
    identity = {
        "run": recipe.run.name,
        "output": output.url,
        "plan_fingerprint": feed.fingerprint(recipe.train.steps),
        "order_version": feed.order_version,
        "attempt": attempt,
        "recipe_hash": recipe_hash(recipe),
    }
    config = dotted({"lineage": identity, **as_plain(recipe)})
    tracked = TrackedRun(name=recipe.run.name, output=output, config=config)
    trackers = (Tracker(name, tracked) for name in recipe.train.trackers)
    return standard_sinks(output, (*shown, *trackers, *launch.more_sinks))


def _watchdog(recipe: TrainRecipe, process: Process) -> ProgressWatcher:
    return Watchdog(
        recipe.train.faults.watchdog_seconds,
        store=process.store,
        rank=process.rank,
        world_size=process.world_size,
        record=partial(record_failure, Folder(recipe.train.output), process.rank),
    )


def _recorder_options(recipe: TrainRecipe, process: Process, attempt: int) -> RecorderOptions:
    return RecorderOptions(
        output=Folder(recipe.train.output),
        rank=process.rank,
        world_size=process.world_size,
        attempt=attempt,
        device=process.device.type,
        num_operations=recipe.train.recorder.operations,
        num_steps=recipe.train.recorder.steps,
    )


def _auto_cadence(recipe: TrainRecipe, goodput: LiveGoodput | None) -> AutoCadence | None:
    """On rank 0 of a run that finds its cadence itself; None elsewhere."""
    if goodput is None or recipe.train.checkpoint.every != "auto":
        return None
    nodes = -(-recipe.train.num_workers // machine_of(recipe.plan).gpus_per_node)
    past = goodput.until_now()
    return AutoCadence(
        prior=mtbf_hours(recipe.plan, nodes) * 3600,
        run_seconds=past.wall_seconds,
        num_failures=past.num_failures,
    )


def first_progress(joined: Joined, recipe: TrainRecipe) -> Progress:
    """That of a run which begins, or goes on from a checkpoint."""
    table = recipe.train
    progress = Progress(step=0, last_saved=-1, next_save=None, skips=skip_counter(table, joined.position))
    if joined.position is not None and joined.name is not None:
        progress.step = progress.last_saved = joined.position.step
        progress.checkpoint = checkpoint_folder(recipe).folder(joined.name).url
    if table.checkpoint.every == "auto":
        progress.next_save = progress.step + FIRST_STEPS
    return progress


def step_context(
    recipe: TrainRecipe, feed: Feed, model: ParallelModel, skips: SkipCounter, clock: PhaseClock
) -> StepContext:
    """What the steps of a recipe touch; weights are not loaded yet."""
    table = recipe.train
    return StepContext(
        model=model,
        batches=feed,
        optimizer=Optimizer(model.parameters(), table.optimizer, model.groups.stage, model.config.latent),
        table=table.optimizer,
        steps=table.steps,
        spikes=SpikeWindow(table.faults.spike_window, table.faults.spike_sigma, model.device),
        clock=clock,
        nan_steps=table.faults.nan_steps,
        rate_factor=skips.rate_factor,
        keeps_rows=table.record_losses,
    )


def look_at_machines(run: Run) -> None:
    """What is looked at before the first step. Collective; errors as of `Health.start`."""
    with run.hooks.opening_groups():
        symptoms = run.stepping.health.start()
    note_health(run, symptoms)


def note_health(run: Run, symptoms: Sequence[Symptom]) -> None:
    """What the machines' health is, on stderr and to the sinks of the next report."""
    if run.rank == 0 and symptoms:
        sys.stderr.writelines(f"health: {symptom.text}\n" for symptom in symptoms)
        reporter = run.reporting.reporter
        reporter.health = (*reporter.health, *symptoms)


def load_state(run: Run) -> None:
    """Weights and moments, from the newest checkpoint, from `init_from`, or from the seed; then the feed
    begins. Collective."""
    joined, stepping = run.joined, run.stepping
    load_weights(
        stepping.context,
        run.recipe,
        None if joined.name is None else run.saving.saver.folder.folder(joined.name),
        num_rows=stepping.feed.num_rows,
        control=run.groups.control,
    )
    stepping.feed.start(joined.attempt)
    if run.rank == 0:
        layout = stepping.model.layout
        if layout.float8 is not None:
            lines = float8_products(run.saving.config, layout.float8, layout.mesh.tp)
            sys.stderr.write("\n".join(lines) + "\n")
        publish_card(run.output, _model_card(run))


def load_weights(
    context: StepContext,
    recipe: TrainRecipe,
    checkpoint: Folder | None,
    *,
    num_rows: int,
    control: dist.ProcessGroup,
) -> None:
    """Weights, moments and the window of losses of a checkpoint, which is whole; without one, the weights that
    the run begins with. `num_rows`: of a step's first forward pass. Collective."""
    if checkpoint is not None:
        state, spikes = state_tensors(context), context.spikes
        held = held_tensors(checkpoint).get("spikes.losses")  # of another size where spike_window was changed
        held_N = torch.zeros_like(spikes.losses) if held is None else spikes.losses.new_zeros(held.size)
        load_whole(checkpoint, state | {"spikes.losses": held_N}, control)
        spikes.take_over(held_N)
        restore(state, context.optimizer)
    else:
        load_first_weights(context.model, recipe, control)
        context.optimizer.begin()
    context.model.weights_changed()
    settle_buckets(context.model, num_rows, recipe.train.seq_len)


def _model_card(run: Run) -> ModelCard:
    return ModelCard(
        config=run.saving.config,
        seq_len=run.recipe.train.seq_len,
        dtype=str(run.stepping.model.layout.dtype).removeprefix("torch."),
        tokenizer=run.stepping.feed.dataset.corpus.tokenizer,
        checkpoints=run.saving.saver.folder.url,
    )


def state_tensors(context: StepContext) -> dict[str, Tensor]:
    """Every tensor that a run goes on from, as of `training_state`."""
    model = context.model
    return training_state(model.parameters(), context.optimizer, context.spikes.state(), model.buffers())
