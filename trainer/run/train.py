"""A training run from its start or its newest checkpoint to its end, read from top to bottom.

1. open    the feed of batches; refuse a model that the layout cannot hold
2. join    claim the next attempt and find the newest checkpoint
3. build   the model on its mesh, and the parts that run, watch and report its steps
4. load    weights and moments: from that checkpoint, from `train.init_from`, or from the seed
5. step    until all steps are done or a stop is requested; a checkpoint where one is due
6. save    what no checkpoint holds yet
"""

from __future__ import annotations

import dataclasses
import datetime
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from lineage.ids import content_hash
from lineage.storage.folder import Folder
from trainer.checkpoint.state import Saver, held_tensors, load_whole, restore, training_state
from trainer.checkpoint.store import Position, checkpoint_name
from trainer.checkpoint.together import by_first_rank
from trainer.feed.feed import Feed
from trainer.feed.loading import open_feed
from trainer.health.check import Health
from trainer.huggingface.model_card import ModelCard, publish_card
from trainer.model.optimizer import build_optimizer
from trainer.model.sizes import ModelConfig, model_config
from trainer.options import TrainRecipe, TrainTable
from trainer.parallel.checks import check_layout, check_overlap
from trainer.parallel.float8 import check_float8, float8_products
from trainer.parallel.layout import parallel_layout
from trainer.parallel.mesh import ParallelModel, parallelise_model, settle_buckets
from trainer.planning.gpus import machine_of
from trainer.planning.plan import mtbf_hours
from trainer.processes.runtime import Process, collective_timeout
from trainer.provenance.setup import make_setup, record_setup
from trainer.recorder.files import drop_old_recorders
from trainer.recorder.recorder import Recorder, RecorderOptions
from trainer.recovery.attempts import AttemptEnd, Claimant, Fence, attempts, end, record_failure
from trainer.recovery.cadence import FIRST_STEPS, AutoCadence
from trainer.recovery.faults import SpikeWindow
from trainer.recovery.repeats import RepeatedFaultsError, SkipCounter
from trainer.recovery.rollbacks import end_rollbacks
from trainer.recovery.watchdog import Watchdog
from trainer.replay.hardware import hardware_of
from trainer.replay.origin import origin_of
from trainer.replay.repeated import documents_of, go_back_before, left_out, skip_counter
from trainer.run.first_weights import load_first_weights
from trainer.run.joining import Joined, join
from trainer.run.reporter import StepReporter
from trainer.run.result import TrainingResult
from trainer.run.step import StepContext, StepOutcome, evaluate, train_step
from trainer.telemetry.goodput import LiveGoodput, describe_goodput
from trainer.telemetry.profiling import Profiler
from trainer.telemetry.sinks import standard_sinks
from trainer.telemetry.step_report import Sink, StepReport
from trainer.telemetry.symptoms import Symptom
from trainer.telemetry.timing import PhaseClock, StepTiming

T = TypeVar("T")

_SLOWEST_SAVE: Final = datetime.timedelta(hours=2)
"""How long ranks wait for each other's pieces of a checkpoint, in the background."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """What differs between torchrun, Ray Train and tests. `began_at`: when this start of the processes began,
    seconds since the epoch; `opening_groups` wraps what makes process groups. Where processes are replaced in
    place: `claimant` of attempts; `check_place` raises before something is written that another process may
    write by now; `is_replaced`: another one has this one's rank."""

    process: Process
    began_at: float = field(default_factory=time.time)
    more_sinks: Sequence[Sink] = ()
    stop_requested: Callable[[], bool] = lambda: False
    before_step: Callable[[int], None] = lambda step: None
    after_step: Callable[[int], None] = lambda step: None
    after_report: Callable[[StepReport], None] = lambda report: None
    opening_groups: Callable[[], AbstractContextManager[None]] = nullcontext
    claimant: Claimant | None = None
    check_place: Callable[[], None] = lambda: None
    is_replaced: Callable[[], bool] = lambda: False


class Watching(Protocol):
    """What hears of each marker that this process passes: `Watchdog`, or a `Participant`."""

    def at(self, step: int, where: str) -> None: ...

    def rest(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """gloo groups of all ranks: `control` for words between them, `saving` for the background writer's
    collectives."""

    control: dist.ProcessGroup
    saving: dist.ProcessGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """What a run is made of, from its first step to its last. `control` is a gloo group for words between
    ranks."""

    recipe: TrainRecipe
    launch: LaunchContext
    config: ModelConfig
    joined: Joined
    output: Folder
    checkpoints: Folder
    control: dist.ProcessGroup
    feed: Feed
    context: StepContext
    saver: Saver
    watchdog: Watching
    fence: Fence
    recorder: Recorder
    reporter: StepReporter
    profiler: Profiler
    sinks: Sequence[Sink]
    goodput: LiveGoodput | None
    cadence: AutoCadence | None
    health: Health

    @property
    def model(self) -> ParallelModel:
        """The model on its mesh."""
        return self.context.model

    @property
    def rank(self) -> int:
        """This process among those of the run."""
        return self.launch.process.rank


@dataclass(slots=True, kw_only=True)
class Progress:
    """What changes from step to step, besides weights and moments. `step` is the next one; `pending` are
    steps whose figures may still be on the device; `next_save`: steps done at the next checkpoint where the
    run finds its cadence itself; `stall`: what the last reported step's checkpoint stopped it for."""

    step: int
    last_saved: int
    next_save: int | None
    skips: SkipCounter
    checkpoint: str = ""
    skipped: list[int] = field(default_factory=list)
    pending: deque[tuple[StepOutcome, StepTiming]] = field(default_factory=deque)
    stop: bool = False
    stall: float = 0.0
    loss: float | None = None


def train(recipe: TrainRecipe, launch: LaunchContext) -> TrainingResult:
    """Train until `train.steps` steps are done or a stop is requested; where batches are skipped in a row,
    and the recipe says so, as several attempts. Collective.

    RecipeError where the recipe cannot be met; CheckpointError where the newest checkpoint does not fit;
    TrainingStoppedError after too many skips; FencedOutError where a later attempt has begun."""
    control = dist.new_group(backend="gloo", timeout=collective_timeout(recipe.train.faults.watchdog_seconds))
    while True:
        try:
            return _attempt(recipe, launch, control)
        except RepeatedFaultsError as error:
            steps = error.steps
        # Not within `except`: the error holds the frames, and so the model, of the attempt that has ended.
        launch = dataclasses.replace(launch, began_at=time.time())
        lines = by_first_rank(partial(go_back_before, recipe, steps), control)
        if launch.process.rank == 0:
            sys.stderr.writelines(f"{line}\n" for line in lines)


def _attempt(recipe: TrainRecipe, launch: LaunchContext, control: dist.ProcessGroup) -> TrainingResult:
    process, output = launch.process, Folder(recipe.train.output)
    # The background writer's collectives must not mix with the words that the loop's ranks exchange.
    saving = saving_group()
    passed_over = by_first_rank(partial(left_out, output), control)
    with closing(open_feed(recipe, process, passed_over)) as feed:
        joined = join_run(recipe, launch, feed, control)
        watchdog = Watchdog(
            recipe.train.faults.watchdog_seconds,
            store=process.store,
            rank=process.rank,
            world_size=process.world_size,
            record=partial(record_failure, output, process.rank),
        )
        progress = first_progress(joined, recipe)
        words = Words(control=control, saving=saving)
        run = assemble(recipe, launch, feed, joined, progress, words=words, watchdog=watchdog)
        watchdog.dump = run.recorder.dump
        with closing(run.recorder), run.recorder.recording(), closing(watchdog):
            look_at_machines(run)
            load_state(run)
            result = run_steps(run, progress)
    if result.finished and process.rank == 0:
        end_rollbacks(output, attempts(output), result.attempt)
    return result


def saving_group() -> dist.ProcessGroup:
    """The group in which the ranks write checkpoints. Collective."""
    return cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=_SLOWEST_SAVE))


def join_run(recipe: TrainRecipe, launch: LaunchContext, feed: Feed, control: dist.ProcessGroup) -> Joined:
    """Refuse what the layout cannot hold, claim the next attempt, find where it begins, and record how it is
    set up. Collective; errors as of `train`."""
    table, process, output = recipe.train, launch.process, Folder(recipe.train.output)
    config = model_config(table.model, feed.vocab_size)
    layout = parallel_layout(table, process.device)
    check_layout(table, config)
    check_overlap(table.overlap, process.device.type)
    if layout.float8 is not None:
        check_float8(layout.float8, process.device)
    joined = join(
        output,
        checkpoints_of(recipe),
        feed,
        config,
        control,
        recipe=recipe,
        began_at=launch.began_at,
        claimant=launch.claimant,
    )
    begins_with = None if joined.position is not None else table.init_from
    origin = None if begins_with is None else by_first_rank(partial(origin_of, begins_with), control)
    if process.rank == 0:
        setup = make_setup(recipe, process.device.type, origin, hardware_of(process.device))
        record_setup(output, joined.attempt.number, setup, recipe)
    return joined


def checkpoints_of(recipe: TrainRecipe) -> Folder:
    """Where the checkpoints of a run lie."""
    return Folder(recipe.train.checkpoint.path or Folder(recipe.train.output).at("checkpoints"))


def assemble(
    recipe: TrainRecipe,
    launch: LaunchContext,
    feed: Feed,
    joined: Joined,
    progress: Progress,
    *,
    words: Words,
    watchdog: Watching,
) -> RunParts:
    """The model on its mesh, without weights, and the parts that run, watch and report its steps. Collective.
    What it gives has a recorder to close."""
    table, process = recipe.train, launch.process
    output, checkpoints = Folder(table.output), checkpoints_of(recipe)
    config = model_config(table.model, feed.vocab_size)
    timeout = collective_timeout(table.faults.watchdog_seconds)
    with launch.opening_groups():
        model = parallelise_model(config, parallel_layout(table, process.device), process.device, timeout)
    saver = Saver(
        checkpoints,
        output,
        table.checkpoint,
        words.saving,
        steps=table.steps,
        check_place=launch.check_place,
    )
    attempt = joined.attempt.number
    clock = PhaseClock(model.device, lambda where: watchdog.at(progress.step, where))
    goodput = LiveGoodput(output) if process.rank == 0 else None
    nodes = _of_every_rank(socket.gethostname(), words.control)
    if process.rank == 0:
        drop_old_recorders(output, attempt)
    recorder = Recorder(_recorder_options(table, process, output, attempt), clock)
    context = step_context(recipe, feed, model, progress.skips, clock)
    context.stop_requested = launch.stop_requested
    context.operations = recorder.operations
    return RunParts(
        recipe=recipe,
        launch=launch,
        config=config,
        joined=joined,
        output=output,
        checkpoints=checkpoints,
        control=words.control,
        feed=feed,
        context=context,
        saver=saver,
        watchdog=watchdog,
        fence=Fence(output, attempt),
        recorder=recorder,
        reporter=StepReporter(
            recipe,
            config,
            feed,
            model,
            attempt=attempt,
            checkpoint_age=saver.age_seconds,
            recorder=recorder,
            nodes=nodes,
            control=words.control,
        ),
        profiler=Profiler(table.profile, output, process.rank, attempt),
        sinks=standard_sinks(output, table.steps, launch.more_sinks) if process.rank == 0 else (),
        goodput=goodput,
        cadence=_auto_cadence(recipe, goodput),
        health=Health(table, process.device, output, words.control, partial(state_tensors, context)),
    )


def look_at_machines(run: RunParts) -> None:
    """What is looked at before the first step. Collective; errors as of `Health.start`."""
    with run.launch.opening_groups():
        told = run.health.start()
    _tell(run, told)


def _recorder_options(table: TrainTable, process: Process, output: Folder, attempt: int) -> RecorderOptions:
    return RecorderOptions(
        output=output,
        rank=process.rank,
        world_size=process.world_size,
        attempt=attempt,
        device=process.device.type,
        num_operations=table.recorder.operations,
        num_steps=table.recorder.steps,
    )


def _of_every_rank(mine: T, control: dist.ProcessGroup) -> list[T]:
    """What each rank gives. Collective."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine, group=control)
    return found


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
    progress = Progress(
        step=0, last_saved=-1, next_save=None, skips=skip_counter(table.faults, joined.position)
    )
    if joined.position is not None and joined.name is not None:
        progress.step = progress.last_saved = joined.position.step
        progress.checkpoint = checkpoints_of(recipe).folder(joined.name).url
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
        optimizer=build_optimizer(model.parameters().values(), table.optimizer),
        table=table.optimizer,
        steps=table.steps,
        spikes=SpikeWindow(table.faults.spike_window, table.faults.spike_sigma, model.device),
        clock=clock,
        nan_steps=table.faults.nan_steps,
        rate_factor=skips.rate_factor,
        keeps_rows=table.record_losses,
    )


def load_state(run: RunParts) -> None:
    """Weights and moments, from the newest checkpoint, from `init_from`, or from the seed; then the feed
    begins."""
    joined = run.joined
    load_weights(
        run.context,
        run.recipe,
        None if joined.name is None else run.checkpoints.folder(joined.name),
        num_rows=run.feed.num_rows,
        control=run.control,
    )
    run.feed.start(joined.attempt)
    if run.rank == 0:
        if (float8 := run.model.layout.float8) is not None:
            sys.stderr.write("\n".join(float8_products(run.config, float8, run.model.layout.mesh.tp)) + "\n")
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
    context.model.weights_changed()
    settle_buckets(context.model, num_rows, recipe.train.seq_len)


def _model_card(run: RunParts) -> ModelCard:
    return ModelCard(
        config=run.config,
        seq_len=run.recipe.train.seq_len,
        dtype=str(run.model.layout.dtype).removeprefix("torch."),
        tokenizer=run.feed.dataset.corpus.tokenizer,
        checkpoints=run.checkpoints.url,
    )


def state_tensors(context: StepContext) -> dict[str, Tensor]:
    """Every tensor that a run goes on from, as of `training_state`."""
    model = context.model
    return training_state(model.parameters(), context.optimizer, context.spikes.state(), model.buffers())


def run_steps(run: RunParts, progress: Progress) -> TrainingResult:
    """Every step that is left, then a last checkpoint."""
    steps = run.recipe.train.steps
    saving_seconds = 0.0
    is_replaced = False
    try:
        while progress.step < steps and not progress.stop:
            run.launch.before_step(progress.step)
            run.profiler.before(progress.step)
            _run_step(run, progress)
            run.profiler.after(progress.step)
            progress.step += 1
            told = run.health.after_step(progress.step)
            if told:
                run.model.weights_changed()  # a replica may have been mended
                _tell(run, told)
            run.launch.after_step(progress.step)
        _report_pending(run, progress, keep=0)
        run.watchdog.rest()
        began = time.monotonic()
        if progress.last_saved != progress.step:
            _save(run, progress, progress.step)
        run.saver.release()
        run.saver.wait()
        saving_seconds = time.monotonic() - began
    except BaseException:
        # Of one whose place is taken this would be when it woke up, long after its attempt.
        is_replaced = run.launch.is_replaced()
        if run.rank == 0 and not is_replaced:
            with suppress(OSError):  # the storage may be what failed
                end(run.output, run.joined.attempt.number, AttemptEnd(at=time.time(), how="failed"))
        raise
    finally:
        run.saver.close()
        run.profiler.close()
        # One that puts its lines into a store at its end would put those again that another process has put.
        for sink in () if is_replaced else run.sinks:
            sink.close()
    if run.goodput is not None:
        how = AttemptEnd(
            at=time.time(),
            how="finished" if progress.step >= steps else "stopped",
            saving_seconds=saving_seconds,
        )
        end(run.output, run.joined.attempt.number, how)
        came_to = run.goodput.ended(run.joined.attempt.number, how)
        sys.stderr.writelines(f"{line}\n" for line in describe_goodput(came_to))
    return TrainingResult(
        step=progress.step,
        attempt=run.joined.attempt.number,
        loss=progress.loss,
        finished=progress.step >= steps,
        checkpoint=progress.checkpoint,
    )


def _run_step(run: RunParts, progress: Progress) -> None:
    step = run.recorder.operations.step = progress.step
    if run.rank == 0:
        run.fence.check()
    listed = run.feed.is_listed(step)
    if listed:
        _pass_over(run, progress, step)
    else:
        seed_step(run.recipe.seed, step, run.model.dp_rank)
        progress.pending.append(train_step(run.context, step, partial(_save_if_due, run, progress)))
    validation = _validate(run, progress, step)
    saved = progress.last_saved == step + 1
    # On a GPU the figures of this step are still being computed: report the step before, and keep it busy.
    at_rest = bool(validation) or saved or not _computes_behind(run.model.device)
    if listed:
        publish_report(run, run.reporter.listed(step, validation))
    else:
        _report_pending(run, progress, keep=0 if at_rest else 1, validation=validation)
    if saved:
        _after_save(run, progress)


def _steps_to_next_save(run: RunParts, progress: Progress) -> int:
    """Of rank 0, after a checkpoint whose step has been reported."""
    assert run.cadence is not None
    if progress.stall:  # a batch that was passed over has no report that says it
        run.cadence.note_save(progress.stall)
    return run.cadence.steps(run.saver.writing_seconds)


def _tell(run: RunParts, told: Sequence[Symptom]) -> None:
    """What the machines' health is, on stderr and to the sinks of the next report."""
    if run.rank == 0 and told:
        sys.stderr.writelines(f"health: {symptom.text}\n" for symptom in told)
        run.reporter.health = (*run.reporter.health, *told)


def _computes_behind(device: torch.device) -> bool:
    """Whether a step has returned before its figures are there."""
    return device.type != "cpu"


def seed_step(seed: int, step: int, dp_rank: int) -> None:
    """Give this process the random state of a step. It hangs on nothing else, so a checkpoint need not hold
    it and any layout goes on with it; ranks that work on the same rows draw the same numbers."""
    torch.manual_seed(int.from_bytes(content_hash(f"{seed}/{step}/{dp_rank}".encode())[:8], "little") >> 1)


def _pass_over(run: RunParts, progress: Progress, step: int) -> None:
    """A batch that the recipe's `skip` names consumes its step and its sequences, unseen. Steps before it are
    reported first, so that reports stay in order."""
    _report_pending(run, progress, keep=0)
    run.feed.pass_over(step)
    _note_skip(run, progress, step, "listed")
    _save_if_due(run, progress, step + 1, None)


def _validate(run: RunParts, progress: Progress, step: int) -> dict[str, float]:
    """The loss on each source's held-out sequences where it is due after `step`; empty elsewhere."""
    table = run.recipe.train
    last = step + 1 == table.steps
    due = (step + 1) % table.eval_every == 0 if table.eval_every else False
    if table.validation == 0 or not (due or last):
        return {}
    begin = run.context.clock.now()
    sums, counts = evaluate(run.context, run.feed.validation())
    if progress.pending:
        progress.pending[-1][1].evaluated(begin, run.context.clock.now())
    pairs = zip(run.feed.sources, sums.tolist(), counts.tolist(), strict=True)
    return {name: total / count for name, total, count in pairs if count}


def _report_pending(
    run: RunParts, progress: Progress, keep: int, validation: dict[str, float] | None = None
) -> None:
    """Read the figures of all steps but the last `keep`, write them to the sinks, count skips."""
    while len(progress.pending) > keep:
        outcome, timing = progress.pending[0]
        read = run.reporter.report(outcome, timing, validation if len(progress.pending) == 1 else None)
        progress.stop = progress.stop or read.stop
        progress.stall = read.report.phases["checkpoint"]
        if run.cadence is not None:
            run.cadence.note_step(read.report.seconds - progress.stall)
        _note_losses(run, outcome)
        if read.report.skipped is None:
            progress.loss = read.report.loss
        publish_report(
            run, read.report if run.goodput is None else run.goodput.noted(read.report, time.time())
        )
        progress.pending.popleft()  # until here its times may be asked for once more, by the next generation
        _note_skip(run, progress, outcome.step, read.report.skipped)


def end_step(run: RunParts, progress: Progress, report: StepReport) -> None:
    """The end of the step that `report` is of, which is in the weights of all already: evaluation, report,
    count. Collective."""
    publish_report(run, dataclasses.replace(report, validation_loss=_validate(run, progress, report.step)))
    if report.skipped is None:
        progress.loss = report.loss
    _note_skip(run, progress, report.step, report.skipped)
    progress.step = report.step + 1


def publish_report(run: RunParts, report: StepReport) -> None:
    """Give a report to all who want it."""
    if run.sinks:
        run.launch.check_place()
    for sink in run.sinks:
        sink.write(report)
    run.launch.after_report(report)


def _note_losses(run: RunParts, outcome: StepOutcome) -> None:
    """The losses of a step's rows, where the recipe wants them recorded. Waits for the device."""
    if run.context.keeps_rows:
        losses_2G = outcome.figures.read().rows_2G
        assert losses_2G is not None, "the step was asked to keep them"
        run.feed.note_losses(outcome.step, losses_2G)


def _note_skip(run: RunParts, progress: Progress, step: int, reason: str | None) -> None:
    if reason is not None:
        progress.skipped.append(step)
    row = (*progress.skips.row, step)
    lowered = progress.skips.note(step, reason)
    if lowered is not None and run.rank == 0:
        sys.stderr.write(
            f"steps {', '.join(map(str, row))} were skipped in a row: the learning rate of steps"
            f" {lowered.first_step}"
            f" to {lowered.end_step - 1} is {lowered.factor:g} of what it would be (train.faults.on_repeat)\n"
        )
        sys.stderr.writelines(f"{line}\n" for line in documents_of(run.recipe, row))


def _save_if_due(run: RunParts, progress: Progress, step: int, outcome: StepOutcome | None) -> None:
    """The last phase of a step: a checkpoint of `step` steps where one is due."""
    if _is_due(run, progress, step):
        _save(run, progress, step, outcome)


def _is_due(run: RunParts, progress: Progress, step: int) -> bool:
    """Whether a checkpoint of `step` steps is to be saved, one or more."""
    table = run.recipe.train.checkpoint
    if table.every == "auto":
        due = step == progress.next_save or (table.keep_every > 0 and step % table.keep_every == 0)
    else:
        due = step % table.every == 0
    return due or step == run.recipe.train.steps


def save_where_due(run: RunParts, progress: Progress, begun: int) -> None:
    """A checkpoint of the steps that are done where that of `begun` steps was given up, or one is due now.
    Collective; between two steps."""
    step = progress.step
    if step == 0 or (
        progress.last_saved >= begun and (progress.last_saved == step or not _is_due(run, progress, step))
    ):
        return
    _save(run, progress, step)
    _after_save(run, progress)


def _after_save(run: RunParts, progress: Progress) -> None:
    """Let the checkpoint that has begun be published: what is reported of its steps is durable."""
    for sink in run.sinks:
        sink.flush()
    run.saver.release()
    if progress.next_save is not None:
        steps = by_first_rank(partial(_steps_to_next_save, run, progress), run.control)
        progress.next_save = progress.last_saved + steps


def _save(run: RunParts, progress: Progress, step: int, outcome: StepOutcome | None = None) -> None:
    """Begin a checkpoint of `step` steps; `outcome` is that of the last one where its report is still to
    come, as that of the one before it may be on a GPU."""
    skipped: list[int] = list(progress.skipped)
    verdicts: list[tuple[int, str | None]] = []
    for unreported in (
        *(pending for pending, _ in progress.pending),
        *([] if outcome is None else [outcome]),
    ):
        reason = run.reporter.reason(unreported)
        _note_losses(
            run, unreported
        )  # rows are written before the checkpoint, and their report comes after it
        skipped += [unreported.step] if reason else []
        verdicts.append((unreported.step, reason))
    skips = progress.skips.after(verdicts)
    run.launch.check_place()
    if run.rank == 0:
        run.fence.check()  # what follows writes facts of the run
    run.feed.commit(step, skipped)
    attempt = run.joined.attempt.number
    position = Position(
        step=step,
        attempt=attempt,
        plan_fingerprint=run.feed.fingerprint(step),
        order_version=run.feed.order_version,
        world_size=run.launch.process.world_size,
        num_skipped_in_row=len(skips.row),
        skipped_in_row=skips.row,
        lowered=skips.lowered,
        model=run.config,
    )
    _wait_for_storage(run, step)
    run.saver.save(state_tensors(run.context), position)
    progress.checkpoint = run.checkpoints.at(checkpoint_name(step, attempt))
    progress.last_saved = step


def _wait_for_storage(run: RunParts, step: int) -> None:
    """Until the checkpoint before is published. That may take longer than any step: its writers have a limit
    of their own, and the watchdog rests."""
    if run.rank == 0 and run.saver.is_writing:
        sys.stderr.write(
            f"step {step}: waits until the checkpoint before is written; its storage is slower than"
            f" train.checkpoint.every = {run.recipe.train.checkpoint.every}\n"
        )
    run.watchdog.rest()
    run.saver.wait()
    run.watchdog.at(step - 1, "checkpoint")
