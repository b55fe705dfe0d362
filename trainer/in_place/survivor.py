"""A training run whose processes go on when one of them dies, read from top to bottom.

A generation is one set of processes. It ends when one of them dies; those that are left keep their process
and the pieces of weights and moments that they hold, and form the next one with a spare that takes the dead
one's number:

1. leave   whatever waits for the dead rank is freed; the checkpoint under way is given up
2. agree   each says what it holds; all draw the same conclusion (`recovery/agreement.py`)
3. catch up  a rank that did not hear of the last vote brings that step in
4. form    new process groups; the model is made again on them
5. fill    each from its own memory, the new one from a rank that holds the same pieces
6. go on   as another attempt of the run: with the progress, the reports and the account of those that are left

Each rank sums in the place that it had, so what comes out is to the bit what it would have been. A death in
the middle of this ends that generation too, and the next one begins with what is held by then. What cannot be
filled so is told to the supervisor, which starts all processes again from the newest checkpoint."""

from __future__ import annotations

import dataclasses
import gc
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from lineage.recipe import RecipeError, as_plain, parse_table
from lineage.storage.folder import Folder
from lineage.store.delta import StoreError
from trainer.checkpoint.state import restore
from trainer.checkpoint.store import CheckpointError, complete_checkpoints, delete_left_over
from trainer.checkpoint.together import by_first_rank
from trainer.data.asked_order import make_order
from trainer.data.corpus import Corpus, open_corpus
from trainer.feed.feed import FedSoFar, Feed
from trainer.feed.loading import feed_of, words_of_feed
from trainer.options import TrainRecipe
from trainer.parallel.mesh import local_part, settle_buckets
from trainer.processes.participant import GenerationOverError, Participant, Rendezvous
from trainer.processes.runtime import Process, collective_timeout, local_device
from trainer.provenance.setup import read_setup, record_setup
from trainer.recovery.agreement import Agreement, CannotRecoverError, RankReport, agree, keeps_copy_of
from trainer.recovery.attempts import (
    Attempt,
    Claimant,
    FencedOutError,
    attempts,
    begin,
    claim_next,
    record_failure,
)
from trainer.recovery.repeats import LoweredRate, RepeatedFaultsError, TrainingStoppedError
from trainer.recovery.rollbacks import end_rollbacks
from trainer.replay.repeated import go_back_before, left_out, skip_counter
from trainer.run.joining import Joined
from trainer.run.result import TrainingResult
from trainer.run.step import ReadyStep, StepOutcome, apply_step
from trainer.run.train import (
    LaunchContext,
    Progress,
    RunParts,
    Words,
    assemble,
    checkpoints_of,
    end_step,
    first_progress,
    join_run,
    load_state,
    look_at_machines,
    run_steps,
    save_where_due,
    saving_group,
    state_tensors,
)
from trainer.telemetry.asked_stacks import stacks_to_stderr
from trainer.telemetry.metrics_file import last_reports
from trainer.telemetry.sinks import describe_straggler
from trainer.telemetry.step_report import Sink, StepReport

_WRITER_SECONDS: Final = 60.0
"""How long the thread that writes a checkpoint may take to give it up."""

_ENDING_THE_RUN: Final = (RecipeError, FencedOutError, StoreError, TrainingStoppedError)
"""Errors that another start would meet again, whoever met them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticipantJob:
    """What each process of a run gets. `launch` names this start of all of them, which began at `began_at`,
    seconds since the epoch."""

    recipe: dict[str, Any]
    launch: str
    began_at: float

    @staticmethod
    def of(recipe: TrainRecipe, launch: str, began_at: float) -> ParticipantJob:
        return ParticipantJob(recipe=as_plain(recipe), launch=launch, began_at=began_at)


def participate(
    job: ParticipantJob, place: Rendezvous, more_sinks: Callable[[], Sequence[Sink]] = tuple
) -> int:
    """What each process does, the spares too: returns 0 once it said how the run ended, or was not needed."""
    stacks_to_stderr()
    recipe = parse_table(TrainRecipe, job.recipe)
    participant = Participant(place, recipe.train.faults.watchdog_seconds)
    try:
        result = _Survivor(recipe, participant, job, more_sinks).run()
    except (*_ENDING_THE_RUN, CheckpointError) as error:
        participant.ended({"error": type(error).__name__, "message": str(error)})
    except BaseException as error:
        traceback.print_exc()
        if not participant.is_replaced():
            record_failure(
                Folder(recipe.train.output), max(participant.rank, 0), f"{type(error).__name__}: {error}"
            )
        raise
    else:
        if result is None:
            return 0
        participant.ended({"result": dataclasses.asdict(result)})
    # Others may still need what this process holds, as its last words in a group.
    participant.await_end()
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """The progress of a run, as all take it over from one rank. `attempt`: the one that ended; `step`: steps
    that are done. `ends`: the report of step `step` where that is in the weights and its end is still to be
    done, without what is evaluated there. `reports`: those since the last checkpoint but one; `row_losses`:
    by step, as of `Feed.note_losses`, those of as many steps, that of `ends` among them, where the recipe
    records them."""

    attempt: int
    step: int
    last_saved: int
    next_save: int | None
    skips_row: tuple[int, ...]
    lowered: tuple[LoweredRate, ...]
    skipped: tuple[int, ...]
    stop: bool
    loss: float | None
    reports: tuple[StepReport, ...]
    row_losses: Mapping[int, np.ndarray]
    corpus: Corpus
    ends: StepReport | None

    @property
    def applied(self) -> int:
        """Steps in the weights."""
        return self.step + (self.ends is not None)


@dataclass(slots=True, kw_only=True)
class _Held:
    """What a process holds of a run between two generations. `tensors`: its pieces of weights and moments,
    and whatever else a checkpoint has, by name. `run`: the parts of the generation that ended, until the
    ranks have agreed: its context may have the gradients of the step after those in the weights."""

    tensors: dict[str, Tensor]
    told: _Told
    run: RunParts | None = None

    @property
    def ready(self) -> ReadyStep | None:
        """The step after those in the weights, where its gradients are there."""
        ready = None if self.run is None else self.run.context.ready
        return ready if ready is not None and ready.step == self.told.applied else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copies:
    """At the beginning of a step: what this rank held and what the rank before it did, as bytes in the order
    of `_Survivor._pieces`, and the progress. `neighbours`: None on a rank that took a lost one's place at
    that step."""

    own: Tensor
    neighbours: Tensor | None
    told: _Told


class _Survivor:
    """A process of the run, from generation to generation."""

    def __init__(
        self,
        recipe: TrainRecipe,
        participant: Participant,
        job: ParticipantJob,
        more_sinks: Callable[[], Sequence[Sink]],
    ) -> None:
        self._recipe, self._participant, self._launch = recipe, participant, job.launch
        self._more_sinks = more_sinks
        self._output = Folder(recipe.train.output)
        # Whatever does not hang on the rank is ready when a spare gets one.
        self._corpus = open_corpus(recipe.train.outs)
        self._order = make_order(recipe, self._corpus)
        self._device = local_device()
        self._feed: Feed | None = None
        self._assembled: RunParts | None = None
        self._run: RunParts | None = None
        self._progress: Progress | None = None
        self._held: _Held | None = None
        self._pieces: dict[str, Tensor] = {}
        self._kept: dict[int, _Copies] = {}
        self._num_neighbours_bytes = 0
        self._stepped_in = -1
        self._flushed = (-1, -1)
        # What has been imported by now stays: looking for the remains of a model need not go through it each
        # time.
        gc.freeze()
        self._began_at = self._start_began_at = job.began_at
        self._in_place = False
        self._reports: list[StepReport] = []
        self._row_losses: dict[int, np.ndarray] = {}

    def run(self) -> TrainingResult | None:
        """Train until the run ends; None where this process was not needed. Errors as of
        `trainer.run.train.train`."""
        try:
            while self._participant.await_rank():
                result = self._generation()
                if result is not None:
                    return result
            if self._feed is not None:
                self._feed.give_up()
        finally:
            if self._feed is not None:
                self._feed.close()
        return None

    def _generation(self) -> TrainingResult | None:
        """One generation; None where it ended before the run did."""
        try:
            return self._train()
        except GenerationOverError:
            pass
        except _ENDING_THE_RUN:
            if not self._participant.is_replaced():
                raise
        except CannotRecoverError as error:
            self._participant.cannot_recover(str(error))
            self._participant.await_over(error)
        except RuntimeError as error:  # gloo's errors, and what threads that were cut off raise
            self._participant.await_over(error)
        # Not within `except`: the error holds the frames, and so the model, of what has ended.
        if self._run is not None and self._held is None:
            self._held = self._what_is_held()
        if self._assembled is not None:
            self._assembled.saver.abandon(_WRITER_SECONDS)
            self._assembled.recorder.close()
        self._assembled = self._run = self._progress = None
        self._participant.leave_group()
        return None

    def _train(self) -> TrainingResult:
        participant, recipe = self._participant, self._recipe
        self._num_neighbours_bytes = 0
        # A generation after a loss begins here; the first one with the start of its processes, whose imports
        # count.
        self._began_at = time.time() if participant.generation else self._start_began_at
        participant.at(0, "agreement of the ranks that are left")
        participant.tell(self._report())
        agreed = agree(
            participant.reports(), partial(recipe.train.mesh.replicas_of, shards=recipe.train.zero != 0)
        )
        if agreed is not None and participant.rank in agreed.behind:
            self._catch_up()
        if self._held is not None:
            self._held.run = None  # with the model of the generation before
        gc.collect()
        participant.at(0, "forming of process groups")
        participant.form_group()
        process = Process(rank=participant.rank, world_size=participant.num_ranks, device=self._device)
        with participant.opening_groups():
            timeout = collective_timeout(recipe.train.faults.watchdog_seconds)
            words = Words(control=dist.new_group(backend="gloo", timeout=timeout), saving=saving_group())
            of_feed = words_of_feed(process)
        launch = LaunchContext(
            process=process,
            began_at=self._began_at,
            more_sinks=self._more_sinks() if participant.rank == 0 else (),
            stop_requested=participant.stop_requested,
            before_step=self._copy,
            after_step=self._after_step,
            after_report=self._after_report,
            opening_groups=participant.opening_groups,
            claimant=Claimant(launch=self._launch, generation=participant.generation),
            check_place=participant.check_place,
            is_replaced=participant.is_replaced,
        )
        if agreed is None:
            if participant.rank == 0 and participant.generation:
                sys.stderr.write(
                    "no process holds weights and moments: they are read from the newest checkpoint\n"
                )
            self._start(launch, words, of_feed)
        else:
            self._go_on(launch, words, of_feed, agreed)
        if participant.rank == 0:
            participant.begun()
        while True:
            assert self._run is not None
            assert self._progress is not None
            self._held = None  # what is held is what the run works in
            try:
                result = run_steps(self._run, self._progress)
            except RepeatedFaultsError as error:
                steps = error.steps
            else:
                break
            # The next one saves in the same group.
            self._run.saver.abandon(_WRITER_SECONDS)
            self._run.recorder.close()
            self._assembled = self._run = self._progress = None
            lines = by_first_rank(partial(go_back_before, recipe, steps), words.control)
            if participant.rank == 0:
                sys.stderr.writelines(f"{line}\n" for line in lines)
            self._start(launch, words, of_feed)
        self._run.recorder.close()
        if result.finished and participant.rank == 0:
            end_rollbacks(self._output, attempts(self._output), result.attempt)
        return result

    def _start(self, launch: LaunchContext, words: Words, of_feed: dist.ProcessGroup | None) -> None:
        """From the newest checkpoint, or from the first weights, as any start."""
        recipe, process = self._recipe, launch.process
        self._participant.rest()
        if self._feed is not None:
            self._feed.close()
        corpus = by_first_rank(partial(open_corpus, recipe.train.outs), words.control)
        passed_over = by_first_rank(partial(left_out, self._output), words.control)
        self._reports.clear()
        self._row_losses.clear()
        self._kept.clear()
        self._flushed = (-1, -1)
        self._feed = feed_of(
            recipe,
            process,
            corpus,
            self._order,
            passed_over,
            group=of_feed,
            check_place=self._participant.check_place,
        )
        joined = join_run(recipe, launch, self._feed, words.control)
        progress = first_progress(joined, recipe)
        run = assemble(recipe, launch, self._feed, joined, progress, words=words, watchdog=self._participant)
        self._assembled, self._participant.dump = run, run.recorder.dump
        run.context.vote = partial(vote, run)
        look_at_machines(run)
        load_state(run)
        self._pieces = {name: local_part(tensor) for name, tensor in state_tensors(run.context).items()}
        self._run, self._progress, self._in_place = run, progress, False

    def _go_on(
        self, launch: LaunchContext, words: Words, of_feed: dist.ProcessGroup | None, agreed: Agreement
    ) -> None:
        """With what those that are left hold, as another attempt."""
        recipe, process, participant = self._recipe, launch.process, self._participant
        told = self._hear(agreed, words.control)
        participant.at(told.step, "claim of the next attempt")
        attempt, saved, checkpoint = by_first_rank(partial(self._claim, told, launch.claimant), words.control)
        if self._feed is None:
            passed_over = left_out(self._output)
            self._feed = feed_of(
                recipe,
                process,
                told.corpus,
                self._order,
                passed_over,
                group=of_feed,
                check_place=participant.check_place,
            )
        skips = skip_counter(recipe.train.faults, None)
        skips.row, skips.lowered = told.skips_row, told.lowered
        progress = Progress(
            step=told.step,
            last_saved=saved,
            next_save=told.next_save,
            skips=skips,
            checkpoint=checkpoint,
            skipped=list(told.skipped),
            stop=told.stop,
            loss=told.loss,
        )
        participant.at(told.step, "making of the model")
        run = assemble(
            recipe, launch, self._feed, Joined(attempt=attempt), progress, words=words, watchdog=participant
        )
        self._assembled, participant.dump = run, run.recorder.dump
        run.context.vote = partial(vote, run)
        participant.at(told.step, "filling of the model")
        self._fill(run, agreed)
        look_at_machines(run)
        self._held = _Held(tensors=self._pieces, told=told)
        self._kept = {step: copies for step, copies in self._kept.items() if step <= agreed.step}
        if agreed.from_copies and not self._kept:
            self._kept[agreed.step] = _Copies(
                own=_as_bytes(self._pieces.values()), neighbours=None, told=told
            )
        self._run, self._progress, self._in_place = run, progress, True
        self._reports[:], self._row_losses = told.reports, dict(told.row_losses)
        if process.rank == 0:
            self._publish_missing(told.reports)
        fed = FedSoFar(step=told.applied, saved=saved, skipped=told.skipped, losses=told.row_losses)
        self._feed.go_on(attempt, fed, told.corpus, of_feed)
        if told.ends is not None:
            end_step(run, progress, told.ends)
            self._held.told = self._told()
        save_where_due(run, progress, begun=told.last_saved)

    def _fill(self, run: RunParts, agreed: Agreement) -> None:
        """Weights, moments and windows: this rank's own, or those of the rank that fills it. Collective."""
        rank = self._participant.rank
        state = state_tensors(run.context)
        self._pieces = {name: local_part(tensor) for name, tensor in state.items()}
        if agreed.from_copies and self._held is not None:
            _from_bytes(self._kept[agreed.step].own, self._pieces.values())
        elif self._held is not None:
            for name, piece in self._pieces.items():
                piece.copy_(self._held.tensors[name])
        for lost, source in sorted(agreed.filled_by.items()):
            if rank == source:
                keeps = agreed.from_copies and keeps_copy_of(rank, self._participant.num_ranks) == lost
                sent = self._kept[agreed.step].neighbours if keeps else _as_bytes(self._pieces.values())
                assert sent is not None, "a rank that keeps no copy says so"
                dist.send(sent, lost, group=run.control)
            elif rank == lost:
                came = torch.empty(_num_bytes(self._pieces.values()), dtype=torch.uint8)
                dist.recv(came, source, group=run.control)
                _from_bytes(came, self._pieces.values())
        restore(state, run.context.optimizer)
        run.model.weights_changed()
        settle_buckets(run.model, run.feed.num_rows, self._recipe.train.seq_len)

    def _copy(self, step: int) -> None:
        """Keep what this rank holds at the beginning of a step, and what the rank before it does.
        Collective."""
        if not self._recipe.train.recovery.neighbour_copy:
            return
        run, participant = self._run, self._participant
        assert run is not None
        participant.at(step, "copy to the neighbour")
        rank, num = participant.rank, participant.num_ranks
        before, behind = keeps_copy_of(rank, num), (rank + 1) % num
        own = _as_bytes(self._pieces.values())
        if not self._num_neighbours_bytes:
            sizes = [0] * num
            dist.all_gather_object(sizes, len(own), group=run.control)
            self._num_neighbours_bytes = sizes[before]
            if rank == 0:
                sys.stderr.write(
                    f"copies on neighbours: each step sends {max(sizes):,} bytes from each process to the"
                    f" next, and keeps up to {4 * max(sizes):,} in the host memory of each\n"
                )
        neighbours = torch.empty(self._num_neighbours_bytes, dtype=torch.uint8)
        exchange = [
            dist.P2POp(dist.isend, own, behind, run.control),
            dist.P2POp(dist.irecv, neighbours, before, run.control),
        ]
        for request in dist.batch_isend_irecv(exchange):
            request.wait()
        # Two steps: one that dies within this copy leaves that of the step before on all.
        self._kept = {kept: copies for kept, copies in self._kept.items() if kept == step - 1}
        self._kept[step] = _Copies(own=own, neighbours=neighbours, told=self._told())

    def _claim(self, told: _Told, claimant: Claimant | None) -> tuple[Attempt, int, str]:
        """The attempt that goes on, the steps in the newest complete checkpoint (-1: there is none) and its
        place. By rank 0. FencedOutError where another start of the run, or a later generation, has claimed
        one."""
        assert claimant is not None, "given with the rank"
        self._participant.check_place()
        number = claim_next(self._output, told.attempt, claimant)
        attempt = Attempt(
            number=number, first_step=told.applied, parent=told.attempt, began_at=self._began_at
        )
        setup = read_setup(self._output, told.attempt)
        assert setup is not None, "an attempt of this start wrote it"
        # Whatever the run began with, this attempt goes on from what it holds.
        record_setup(self._output, number, dataclasses.replace(setup, origin=None), self._recipe)
        begin(self._output, attempt)
        folder = checkpoints_of(self._recipe)
        begun, table = attempts(self._output), self._recipe.train
        delete_left_over(folder, begun, table.checkpoint, table.steps)
        newest = complete_checkpoints(folder, begun)[-1:]
        return attempt, *((newest[0].step, folder.at(newest[0].name)) if newest else (-1, ""))

    def _hear(self, agreed: Agreement, control: dist.ProcessGroup) -> _Told:
        told = None
        if agreed.told_by == self._participant.rank:
            assert self._held is not None
            told = self._kept[agreed.step].told if agreed.from_copies else self._held.told
        shared = [told]
        dist.broadcast_object_list(shared, src=agreed.told_by, group=control)
        assert shared[0] is not None
        return shared[0]

    def _publish_missing(self, reports: Sequence[StepReport]) -> None:
        """What a rank 0 that died had not reported yet."""
        assert self._run is not None
        if not reports:
            return
        told = last_reports(self._output, lambda report: report.step >= reports[0].step)
        there = {(report.step, report.attempt) for report in told}
        for report in reports:
            if (report.step, report.attempt) not in there:
                for sink in self._run.sinks:
                    sink.write(report)

    def _after_report(self, report: StepReport) -> None:
        """Keep it for those that may need it, and ask for another process where a rank is slower than its
        peers, or its node shows a sign of failing."""
        self._reports.append(report)
        assert self._run is not None
        applied = self._run.context.applied
        if applied is not None and applied.step == report.step:
            self._row_losses |= _row_losses(applied)
        slow = [each for each in report.stragglers if not each.ended]
        if slow and self._participant.rank == 0 and self._recipe.train.recovery.on_straggler == "replace":
            self._participant.replace(slow[0].rank, describe_straggler(slow[0]))
            return
        signs = [symptom for symptom in report.health if symptom.kind == "sign"]
        if signs and self._participant.rank == 0 and self._recipe.train.recovery.on_sign == "drain":
            self._participant.replace(signs[0].rank, signs[0].text)

    def _after_step(self, step: int) -> None:
        """Tell of the first step of a generation, and forget reports: those before a checkpoint are flushed
        with it. Of the last one rank 0 may not have come so far: those before the last but one are known to
        be."""
        assert self._progress is not None
        if self._participant.rank == 0 and self._stepped_in < self._participant.generation:
            self._stepped_in = self._participant.generation
            self._participant.stepped()
        if self._progress.last_saved > self._flushed[1]:
            self._flushed = (self._flushed[1], self._progress.last_saved)
        since = self._flushed[0]
        self._reports[:] = [report for report in self._reports if report.step >= since]
        self._row_losses = {step: rows for step, rows in self._row_losses.items() if step >= since}

    def _report(self) -> RankReport:
        rank, held, feed = self._participant.rank, self._held, self._feed
        if held is None or feed is None:
            return RankReport(rank=rank)
        applied = held.told.applied
        # A listed step changes no weight, so ranks may be several of them apart.
        while applied < self._recipe.train.steps and feed.is_listed(applied):
            applied += 1
        keeps = bool(self._kept) and all(copies.neighbours is not None for copies in self._kept.values())
        return RankReport(
            rank=rank,
            holds=True,
            applied=applied,
            done=held.told.step,
            ready=held.ready is not None,
            attempt=held.told.attempt,
            kept=tuple(sorted(self._kept)),
            keeps_of=keeps_copy_of(rank, self._participant.num_ranks) if keeps else None,
        )

    def _catch_up(self) -> None:
        """Bring the step in on which the others know that all had voted."""
        held = self._held
        assert held is not None
        assert held.run is not None
        assert held.ready is not None
        sys.stderr.write(
            f"rank {self._participant.rank} brings step {held.ready.step} in, as the others have\n"
        )
        outcome = apply_step(held.run.context, held.ready)
        read = held.run.reporter.report(outcome, held.run.context.clock.end_step(), None, alone=True)
        held.told = dataclasses.replace(
            held.told,
            ends=read.report,
            stop=held.told.stop or read.stop,
            row_losses={**held.told.row_losses, **_row_losses(outcome)},
        )

    def _what_is_held(self) -> _Held:
        return _Held(tensors=self._pieces, told=self._told(), run=self._run)

    def _told(self) -> _Told:
        """The progress of the run as this rank has it."""
        run, progress = self._run, self._progress
        assert run is not None
        assert progress is not None
        step, stop, ends = progress.step, progress.stop, None
        row_losses = dict(self._row_losses)
        applied = run.context.applied
        if self._reports and self._reports[-1].step == step:
            step += 1  # reported, so nothing is left of it that another rank takes part in
        elif applied is not None and applied.step == step:
            timing = progress.pending[-1][1] if progress.pending else run.context.clock.end_step()
            read = run.reporter.report(applied, timing, None, alone=True)
            stop, ends = stop or read.stop, read.report
            row_losses |= _row_losses(applied)
        begun = run.joined.attempt
        # One that goes on in place has no facts before its first step, and none can be its child then.
        is_known = not self._in_place or step + (ends is not None) > begun.first_step
        ended = begun.number if is_known else begun.parent
        assert ended is not None
        return _Told(
            attempt=ended,
            step=step,
            last_saved=progress.last_saved,
            next_save=progress.next_save,
            skips_row=progress.skips.row,
            lowered=progress.skips.lowered,
            skipped=tuple(sorted(set(progress.skipped))),
            stop=stop,
            loss=progress.loss,
            reports=tuple(self._reports),
            row_losses=row_losses,
            corpus=run.feed.agreed,
            ends=ends,
        )


def _row_losses(outcome: StepOutcome) -> dict[int, np.ndarray]:
    """The losses of a step's rows, by its number; empty where they are not recorded."""
    losses_2G = outcome.figures.read().rows_2G
    return {} if losses_2G is None else {outcome.step: losses_2G}


def _num_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _as_bytes(tensors: Iterable[Tensor]) -> Tensor:
    """A copy of the tensors' bytes, one tensor's behind another's."""
    return torch.cat([tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in tensors])


def _from_bytes(whole: Tensor, tensors: Iterable[Tensor]) -> None:
    """Write into the tensors what `_as_bytes` gave of such ones."""
    at = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        # A copy: a number of eight bytes may not begin at any place.
        tensor.copy_(whole[at : at + size].clone().view(tensor.dtype).reshape(tensor.shape))
        at += size


def vote(run: RunParts) -> None:
    """Returns on a rank only when every rank has called it for the same step."""
    run.context.clock.waiting("vote on the step")
    dist.all_reduce(torch.zeros(1), group=run.control)
