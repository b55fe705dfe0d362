"""A training run from its start or its newest checkpoint to its end: join, load, step, report, save."""

from __future__ import annotations

import datetime
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from lineage.recipe import RecipeError
from lineage.storage import Folder
from trainer.attempts import Fence, record_failure
from trainer.checkpoint import Saver, load, load_weights, require, restore, training_state
from trainer.checkpoint_store import COMPLETE, Position, checkpoint_name
from trainer.export import ModelCard, publish_card
from trainer.faults import SkipCounter, SpikeWindow
from trainer.feed import Feed
from trainer.joining import Joined, check_together, join
from trainer.llama_io import import_weights
from trainer.loading import open_feed
from trainer.metrics import Lap, PhaseClock
from trainer.optimizer import build_optimizer
from trainer.options import TrainRecipe
from trainer.parallel import Spread, check_layout, initialise, layout_of, settle_buckets, spread_model
from trainer.profiling import Profiler
from trainer.reporter import Reporter
from trainer.runtime import Process, collective_timeout
from trainer.sinks import standard_sinks, tell_epochs
from trainer.sizes import ModelConfig, model_config
from trainer.step import Outcome, Rig, evaluate, train_step
from trainer.step_report import Sink
from trainer.watchdog import Watchdog

_SLOWEST_SAVE: Final = datetime.timedelta(hours=2)
"""How long ranks wait for each other's pieces of a checkpoint, in the background."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What differs between torchrun, Ray Train and tests."""

    process: Process
    more_sinks: Sequence[Sink] = ()
    stop_requested: Callable[[], bool] = lambda: False
    after_step: Callable[[int], None] = lambda step: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a start of the run ended. `loss`: of the last step that counted, None where this start had none;
    `checkpoint`: the folder of the newest one."""

    step: int
    attempt: int
    loss: float | None
    finished: bool
    checkpoint: str


@dataclass(slots=True, kw_only=True)
class _State:
    """What changes from step to step besides the model."""

    last_saved: int
    skipped: list[int] = field(default_factory=list)
    pending: deque[tuple[Outcome, Lap]] = field(default_factory=deque)
    stop: bool = False
    loss: float | None = None


def train(recipe: TrainRecipe, around: Surroundings) -> Result:
    """Train until `train.steps` steps are done or a stop is requested. Collective.

    RecipeError for what the recipe asks in vain; CheckpointError where the newest checkpoint does not fit;
    TrainingStoppedError after too many skips; FencedOutError where a later attempt has begun."""
    table, process = recipe.train, around.process
    output = Folder(table.output)
    checkpoints = Folder(table.checkpoint.path or output.at("checkpoints"))
    seconds = table.faults.watchdog_seconds
    timeout = collective_timeout(seconds)
    control = dist.new_group(backend="gloo", timeout=timeout)
    saving = dist.new_group(backend="gloo", timeout=_SLOWEST_SAVE)
    with closing(open_feed(recipe, process)) as data:
        config = model_config(table.model, data.vocab_size)
        layout = layout_of(table, process.device)
        check_layout(layout, config, table.seq_len)
        joined = join(output, checkpoints, data, control)
        run = _Run(recipe, around, data, config, spread_model(config, layout, process.device, timeout))
        run.saver = Saver(checkpoints, output, table.checkpoint, saving)
        watchdog = Watchdog(
            seconds, store=process.store, rank=process.rank, world_size=process.world_size,
            record=partial(record_failure, output, process.rank),
        )  # fmt: skip
        with closing(watchdog):
            run.watch(watchdog)
            run.start(joined, checkpoints, control)
            return run.steps_until_done()


class _Run:
    """The parts of a run, put together."""

    saver: Saver

    def __init__(
        self, recipe: TrainRecipe, around: Surroundings, data: Feed, config: ModelConfig, spread: Spread
    ) -> None:
        table = recipe.train
        self.recipe, self.around, self.data, self.config, self.spread = recipe, around, data, config, spread
        self.table = table
        self.output = Folder(table.output)
        self.rank = around.process.rank
        self.skips = SkipCounter(table.faults.max_skips)
        self.step = 0
        self.state = _State(last_saved=-1)

    def watch(self, watchdog: Watchdog) -> None:
        """Make the parts that need the watchdog."""
        table, device = self.table, self.spread.device
        self.watchdog = watchdog
        self.rig = Rig(
            spread=self.spread,
            batches=self.data,
            optimizer=build_optimizer(self.spread.model.parameters(), table.optimizer),
            table=table.optimizer,
            steps=table.steps,
            spikes=SpikeWindow(table.faults.spike_window, table.faults.spike_sigma, device),
            clock=PhaseClock(device, lambda where: watchdog.at(self.step, where)),
            at_boundary=self._at_boundary,
            stop_requested=self.around.stop_requested,
            nan_steps=table.faults.nan_steps,
        )

    def start(self, joined: Joined, checkpoints: Folder, control: dist.ProcessGroup) -> None:
        """Weights, moments and position: from the newest checkpoint, from `init_from`, or from the seed."""
        self.attempt = joined.attempt.number
        self.fence = Fence(self.output, self.attempt)
        torch.manual_seed(self.recipe.seed * 1_000_003 + self.rank)
        self.reporter = Reporter(
            self.recipe, self.config, self.data, self.spread,
            attempt=self.attempt, checkpoint_age=self.saver.age_seconds,
        )  # fmt: skip
        self.sinks = standard_sinks(self.output, self.table.steps, self.around.more_sinks) if self.rank == 0 else ()
        if joined.position is not None and joined.name is not None:
            self._load(checkpoints.folder(joined.name), joined.position, control)
        elif self.table.init_from is not None:
            self._import(Folder(self.table.init_from), control)
        else:
            initialise(self.spread, self.recipe.seed)
        settle_buckets(self.spread, self.data.num_rows, self.table.seq_len)
        self.data.start(joined.attempt)
        if self.rank == 0:
            tell_epochs(self.data.dataset.order, self.table.steps)
            publish_card(self.output, self._card(checkpoints))

    def _card(self, checkpoints: Folder) -> ModelCard:
        return ModelCard(
            config=self.config,
            seq_len=self.table.seq_len,
            dtype=str(self.spread.layout.dtype).removeprefix("torch."),
            tokenizer=self.data.dataset.corpus.tokenizer,
            checkpoints=checkpoints.url,
        )

    def _load(self, folder: Folder, position: Position, control: dist.ProcessGroup) -> None:
        check_together(folder, control)
        state = self._tensors()
        require(folder, load(folder, state, control))
        restore(state, self.rig.optimizer, self.rank)
        self.skips.num_in_row = position.num_skipped_in_row
        self.step = self.state.last_saved = position.step
        self.checkpoint = folder.url

    def _import(self, folder: Folder, control: dist.ProcessGroup) -> None:
        if folder.exists(COMPLETE):
            load_weights(folder, self.spread.parameters(), control)
        elif folder.exists("config.json"):
            import_weights(folder, self.config, self.spread.parameters())
        else:
            raise RecipeError(
                f"train.init_from = {folder.url!r}: expected a checkpoint (with {COMPLETE}) or a folder of "
                "safetensors (with config.json)"
            )

    def _tensors(self) -> dict[str, Tensor]:
        return training_state(self.spread.parameters(), self.rig.optimizer, self.rig.spikes.state(), self.rank)

    def steps_until_done(self) -> Result:
        """Every step that is left, then a last checkpoint."""
        state, table = self.state, self.table
        profiler = Profiler(table.profile, self.output, self.rank, self.attempt)
        try:
            while self.step < table.steps and not state.stop:
                profiler.before(self.step)
                self._one_step()
                profiler.after(self.step)
                self.step += 1
                self.around.after_step(self.step)
            self._resolve(keep=0)
            self.watchdog.rest()
            if state.last_saved != self.step:
                self._save(self.step)
            self.saver.release()
            self.saver.wait()
        finally:
            self.saver.close()
            profiler.close()
            for sink in self.sinks:
                sink.close()
        return Result(
            step=self.step,
            attempt=self.attempt,
            loss=state.loss,
            finished=self.step >= table.steps,
            checkpoint=self.checkpoint,
        )

    def _one_step(self) -> None:
        step, state = self.step, self.state
        if self.rank == 0:
            self.fence.check()
        if self.data.is_listed(step):
            self._pass_over(step)
        else:
            state.pending.append(train_step(self.rig, step))
        validation = self._validate(step)
        at_rest = bool(validation) or state.last_saved == step + 1 or self.spread.device.type == "cpu"
        # On a GPU the figures of this step are still being computed: report the step before, and keep it busy.
        self._resolve(keep=0 if at_rest else 1, validation=validation)
        if state.last_saved == step + 1:
            for sink in self.sinks:
                sink.flush()
            self.saver.release()

    def _pass_over(self, step: int) -> None:
        self._resolve(keep=0)
        self.data.pass_over(step)
        self._note_skip(step, "listed")
        report = self.reporter.listed(step)
        for sink in self.sinks:
            sink.write(report)
        self._at_boundary(step + 1, None)

    def _validate(self, step: int) -> dict[str, float]:
        table = self.table
        last = step + 1 == table.steps
        due = (step + 1) % table.eval_every == 0 if table.eval_every else False
        if table.validation == 0 or not (due or last):
            return {}
        sums, counts = evaluate(self.rig, self.data.validation())
        pairs = zip(self.data.sources, sums.tolist(), counts.tolist(), strict=True)
        return {name: total / count for name, total, count in pairs if count}

    def _resolve(self, keep: int, validation: dict[str, float] | None = None) -> None:
        """Read the figures of all steps but the last `keep`, tell the sinks, count skips."""
        state = self.state
        while len(state.pending) > keep:
            outcome, lap = state.pending.popleft()
            told = self.reporter.report(outcome, lap, validation if not state.pending else None)
            state.stop = state.stop or told.stop
            if told.report.skipped is None:
                state.loss = told.report.loss
            for sink in self.sinks:
                sink.write(told.report)
            self._note_skip(outcome.step, told.report.skipped)

    def _note_skip(self, step: int, reason: str | None) -> None:
        if reason is not None:
            self.state.skipped.append(step)
        self.skips.note(step, reason)

    def _at_boundary(self, step: int, outcome: Outcome | None) -> None:
        """A checkpoint of `step` steps where one is due; called inside the step that makes them `step`."""
        if step % self.table.checkpoint.every == 0 or step == self.table.steps:
            self._save(step, outcome)

    def _save(self, step: int, outcome: Outcome | None = None) -> None:
        skipped = list(self.state.skipped)
        in_row = self.skips.num_in_row
        if outcome is not None:
            reason = self.reporter.reason(outcome)
            skipped += [outcome.step] if reason else []
            in_row = in_row + 1 if reason else 0
        if self.rank == 0:
            self.fence.check()  # what follows writes facts of the run
        self.data.commit(step, skipped)
        position = Position(
            step=step,
            attempt=self.attempt,
            plan_fingerprint=self.data.fingerprint(step),
            order_version=self.data.order_version,
            world_size=self.around.process.world_size,
            num_skipped_in_row=in_row,
        )
        self.saver.save(self._tensors(), position)
        self.checkpoint = self.saver.folder.at(checkpoint_name(step, self.attempt))
        self.state.last_saved = step
