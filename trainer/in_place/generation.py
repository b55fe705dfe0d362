"""One generation: a set of processes that train together until one of them dies.

1. agree     each says what it holds; all draw the same conclusion (`processes/agreement.py`)
2. catch up  a rank that did not hear of the last vote applies that step
3. form      new process groups
4. train     from what these processes hold, or from the newest checkpoint (`run/train.py`)
5. leave     keep what this process holds for the next generation; the checkpoint under way is given up

A generation is also what the run asks of its processes while it trains (`run/hooks.py`)."""

from __future__ import annotations

import dataclasses
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Final

import torch
import torch.distributed as dist

from lineage.storage.folder import Folder
from trainer.attempts import Claimant
from trainer.feed.feed import Feed, FeedPosition
from trainer.feed.loading import feed_of, open_feed
from trainer.in_place.memory import (
    InMemoryState,
    LocalState,
    Snapshot,
    StepCopies,
    row_losses_of,
    snapshot_of,
)
from trainer.in_place.pieces import as_bytes, pass_on
from trainer.in_place.takeover import ClaimedAttempt, claim_attempt, fill, progress_from, publish_missing
from trainer.model.peers import local_part
from trainer.options import TrainRecipe
from trainer.processes.agreement import Agreement, RankReport, agree, keeps_copy_of
from trainer.processes.heard import by_first_rank, from_rank, of_every_rank
from trainer.processes.participant import Participant
from trainer.processes.result import TrainingResult
from trainer.processes.runtime import Process
from trainer.recovery.repeated import left_out
from trainer.recovery.repeats import RepeatedFaultsError
from trainer.run.assemble import assemble, load_state, state_tensors
from trainer.run.hooks import Hooks
from trainer.run.joining import Joined
from trainer.run.parts import GlooGroups, LaunchContext, Run
from trainer.run.saving import save_where_due
from trainer.run.step import apply_step
from trainer.run.steps import end_step
from trainer.run.train import train
from trainer.telemetry.sinks import describe_straggler
from trainer.telemetry.step_report import Sink, StepReport

_WRITER_SECONDS: Final = 60.0
"""How long the thread that writes a checkpoint may take to give it up."""


class Generation(Hooks):
    """This process in a generation. `launch`: the name of this start of all processes; `began_at`: when this
    generation began, seconds since the epoch; `shows_progress` as of `LaunchContext`."""

    def __init__(
        self,
        recipe: TrainRecipe,
        participant: Participant,
        memory: InMemoryState,
        *,
        launch: str,
        began_at: float,
        shows_progress: bool,
    ) -> None:
        self._recipe, self._participant, self._memory = recipe, participant, memory
        self._began_at, self._shows_progress = began_at, shows_progress
        self.claimant = Claimant(launch=launch, generation=participant.generation)
        self.watchdog = participant
        self._agreed: Agreement | None = None
        self._snapshot: Snapshot | None = None
        self._run: Run | None = None
        self._is_loaded = self._has_begun = self._has_stepped = False
        self._num_neighbours_bytes = 0

    def train(self, device: torch.device, more_sinks: Callable[[], Sequence[Sink]]) -> TrainingResult:
        """Until the run ends. GenerationOverError, or an error of gloo, where a process dies first;
        CannotRecoverError where what was lost cannot be filled."""
        participant = self._participant
        self._agreed = self._agree()
        if self._agreed is not None and participant.rank in self._agreed.behind:
            self._catch_up()
        if self._memory.state is not None:
            self._memory.state.run = None  # with the model of the generation before
        # Before the next model takes as much memory: parts of a model refer to each other in circles.
        gc.collect()
        participant.at(0, "forming of process groups")
        participant.form_group()
        if self._agreed is None and participant.rank == 0 and participant.generation:
            sys.stderr.write(
                "no process holds weights and moments: they are read from the newest checkpoint\n"
            )
        launch = LaunchContext(
            process=Process(rank=participant.rank, world_size=participant.num_ranks, device=device),
            began_at=self._began_at,
            more_sinks=more_sinks() if participant.rank == 0 else (),
            stop_requested=participant.stop_requested,
            shows_progress=self._shows_progress,
            hooks=self,
        )
        return train(self._recipe, launch)

    def leave(self) -> None:
        """After its end: keep what this process holds, and drop the groups."""
        run, memory = self._run, self._memory
        if run is not None:
            # Before anything is closed: the report of a step that is not reported yet is made from the run's parts. A
            # model that was not filled yet is worth nothing: `memory.state` is still that of the generation before.
            if self._is_loaded and memory.state is None:
                memory.state = LocalState(tensors=memory.pieces, snapshot=self._now(run), run=run)
            self._give_up(run)
            if run.stepping.feed is not memory.feed:
                run.stepping.feed.close()
        self._participant.leave_group()

    # 1 and 2: before there are groups.

    def _agree(self) -> Agreement | None:
        """None where no process holds anything, as at a start."""
        self._participant.at(0, "agreement of the ranks that are left")
        self._participant.tell(self._report())
        # Where nothing is sharded (DDP), each data parallel rank holds what the others hold.
        replicas_of = partial(self._recipe.train.mesh.replicas_of, shards=self._recipe.train.zero != 0)
        return agree(self._participant.reports(), replicas_of)

    def _report(self) -> RankReport:
        rank, state, feed, copies = (
            self._participant.rank,
            self._memory.state,
            self._memory.feed,
            self._memory.copies,
        )
        if state is None or feed is None:
            return RankReport(rank=rank)
        applied = state.snapshot.applied
        # A listed step changes no weight, so ranks may be several of them apart.
        while applied < self._recipe.train.steps and feed.is_listed(applied):
            applied += 1
        keeps = bool(copies) and all(each.neighbours is not None for each in copies.values())
        return RankReport(
            rank=rank,
            holds=True,
            applied=applied,
            done=state.snapshot.step,
            ready=state.ready is not None,
            attempt=state.snapshot.attempt,
            kept=tuple(sorted(copies)),
            keeps_of=keeps_copy_of(rank, self._participant.num_ranks) if keeps else None,
        )

    def _catch_up(self) -> None:
        """Apply the step that the other ranks already applied: its gradients are summed and clipped here
        too."""
        state = self._memory.state
        assert state is not None
        assert state.run is not None
        assert state.ready is not None
        sys.stderr.write(
            f"rank {self._participant.rank} applies step {state.ready.step}, which the others have applied\n"
        )
        # The run of the generation before: its model holds the gradients, and applying them needs no other rank.
        context = state.run.stepping.context
        outcome = apply_step(context, state.ready)
        read = state.run.reporting.reporter.report(outcome, context.clock.end_step(), None, alone=True)
        state.snapshot = dataclasses.replace(
            state.snapshot,
            unfinished=read.report,
            stop=state.snapshot.stop or read.stop,
            row_losses={**state.snapshot.row_losses, **row_losses_of(outcome)},
        )

    # 4: what the run asks for.

    def opening_groups(self) -> AbstractContextManager[None]:
        return self._participant.opening_groups()

    def open_feed(
        self,
        recipe: TrainRecipe,
        launch: LaunchContext,
        groups: GlooGroups,
        left_out: tuple[tuple[int, int], ...],
    ) -> Feed:
        # Called only for a run that begins from a checkpoint, so nothing in memory belongs to it.
        self._memory.forget()
        return open_feed(
            recipe,
            launch.process,
            left_out,
            order=self._memory.order,
            group=groups.feed,
            check_place=self.check_place,
        )

    def take_over(self, launch: LaunchContext, groups: GlooGroups) -> Run | None:
        recipe, participant, memory, agreed = self._recipe, self._participant, self._memory, self._agreed
        if agreed is None:
            # Reading a checkpoint may take longer than any step.
            participant.rest()
            return None
        # One rank's progress for all: ranks may have reported differently far, and each step is reported once.
        snapshot = self._snapshot = self._heard_snapshot(agreed, groups)
        participant.at(snapshot.step, "claim of the next attempt")
        claimed = by_first_rank(lambda: self._claim(snapshot), groups.control)
        if memory.feed is None:
            memory.feed = feed_of(
                recipe,
                launch.process,
                snapshot.corpus,
                memory.order,
                left_out(Folder(recipe.train.output)),
                group=groups.feed,
                check_place=self.check_place,
            )
        participant.at(snapshot.step, "making of the model")
        return assemble(
            recipe,
            launch,
            self,
            groups,
            memory.feed,
            joined=Joined(attempt=claimed.attempt),
            progress=progress_from(snapshot, claimed, recipe),
        )

    @contextmanager
    def attempt(self, run: Run) -> Iterator[None]:
        self._run = run
        # A step changes no weight before all ranks voted. So at a death either no rank has applied the step, or every
        # rank can: survivors are never more than this one step apart.
        run.stepping.context.vote = partial(vote, run)
        try:
            yield
        except RepeatedFaultsError:
            # The run begins again from a checkpoint: nothing that is held here counts any more.
            self._give_up(run)
            self._agreed = self._snapshot = self._run = None
            self._is_loaded = False
            raise
        run.stepping.recorder.close()

    def load(self, run: Run) -> None:
        memory, snapshot = self._memory, self._snapshot
        if snapshot is None:
            load_state(run)
            state = state_tensors(run.stepping.context)
            memory.pieces = {name: local_part(tensor) for name, tensor in state.items()}
            memory.feed, self._is_loaded = run.stepping.feed, True
        else:
            self._go_on(run, snapshot)
        if run.rank == 0 and not self._has_begun:
            self._participant.begun()
        self._has_begun = True
        memory.state = None  # what is held is what the run works in

    def before_step(self, step: int) -> None:
        if self._recipe.train.recovery.neighbour_copy:
            self._copy(step)

    def after_step(self, steps: int) -> None:
        assert self._run is not None
        if self._participant.rank == 0 and not self._has_stepped:
            self._participant.stepped()
        self._has_stepped = True
        self._memory.forget_before_checkpoint(self._run.progress.last_saved)

    def after_report(self, report: StepReport) -> None:
        """Keep it, and ask for another process where a rank is slower than its peers, or its node shows a
        sign of failing."""
        assert self._run is not None
        self._memory.note_report(report, self._run.stepping.context.applied)
        if self._participant.rank != 0:  # one rank asks, or a slow process would be replaced several times
            return
        recovery = self._recipe.train.recovery
        slow = [each for each in report.stragglers if not each.ended]
        signs = [symptom for symptom in report.health if symptom.kind == "sign"]
        if slow and recovery.on_straggler == "replace":
            self._participant.replace(slow[0].rank, describe_straggler(slow[0]))
        elif signs and recovery.on_sign == "drain":
            self._participant.replace(signs[0].rank, signs[0].text)

    def check_place(self) -> None:
        self._participant.check_place()

    def is_replaced(self) -> bool:
        return self._participant.is_replaced()

    def _heard_snapshot(self, agreed: Agreement, groups: GlooGroups) -> Snapshot:
        mine, state = None, self._memory.state
        if agreed.progress_from == self._participant.rank:
            assert state is not None
            mine = self._memory.copies[agreed.step].snapshot if agreed.from_copies else state.snapshot
        return from_rank(agreed.progress_from, mine, groups.control)

    def _claim(self, snapshot: Snapshot) -> ClaimedAttempt:
        assert self.claimant is not None, "given with the rank"
        # A process that was stopped may wake up right here, when another has its rank.
        self.check_place()
        return claim_attempt(self._recipe, snapshot, self.claimant, self._began_at)

    def _go_on(self, run: Run, snapshot: Snapshot) -> None:
        """Fill the model from memory, and finish the step that is in the weights already."""
        memory, agreed = self._memory, self._agreed
        assert agreed is not None
        self._participant.at(snapshot.step, "filling of the model")
        fill(run, memory, agreed, snapshot)
        # From here on a death leaves what was filled, and no more the state before it.
        state = memory.state = LocalState(tensors=memory.pieces, snapshot=snapshot)
        self._is_loaded = True
        memory.reports[:], memory.row_losses = snapshot.reports, dict(snapshot.row_losses)
        if run.rank == 0:
            publish_missing(run, snapshot.reports)
        run.stepping.feed.go_on(
            run.joined.attempt,
            FeedPosition(
                step=snapshot.applied,
                saved=run.progress.last_saved,
                skipped=snapshot.skipped,
                losses=snapshot.row_losses,
            ),
            snapshot.corpus,
            run.groups.feed,
        )
        if snapshot.unfinished is not None:
            end_step(run, snapshot.unfinished)
            # Who dies now leaves a step that is done: the next generation must not end it a second time.
            state.snapshot = self._now(run)
        # The generation before may have died between the step and its checkpoint.
        save_where_due(run, begun=snapshot.last_saved)

    def _copy(self, step: int) -> None:
        """Keep what this rank holds at the beginning of a step, and what the rank before it does.
        Collective."""
        run, memory = self._run, self._memory
        assert run is not None
        self._participant.at(step, "copy to the neighbour")
        own, control = as_bytes(memory.pieces.values()), run.groups.control
        # Sizes differ between ranks (uneven shards), and stay the same within a generation: asked once.
        if not self._num_neighbours_bytes:
            sizes = of_every_rank(len(own), control)
            self._num_neighbours_bytes = sizes[keeps_copy_of(run.rank, len(sizes))]
            if run.rank == 0:
                sys.stderr.write(
                    f"copies on neighbours: each step sends {max(sizes):,} bytes from each process to the"
                    f" next, and keeps up to {4 * max(sizes):,} in the host memory of each\n"
                )
        neighbours = pass_on(own, self._num_neighbours_bytes, control)
        # Two steps: one that dies within this copy leaves that of the step before on all.
        memory.copies = {kept: copies for kept, copies in memory.copies.items() if kept == step - 1}
        memory.copies[step] = StepCopies(own=own, neighbours=neighbours, snapshot=self._now(run))

    def _now(self, run: Run) -> Snapshot:
        return snapshot_of(run, self._memory, went_on=self._snapshot is not None)

    def _give_up(self, run: Run) -> None:
        """The checkpoint under way, whose group is about to go; its thread has ended then."""
        run.saving.saver.abandon(_WRITER_SECONDS)
        run.stepping.recorder.close()


def vote(run: Run) -> None:
    """Returns on a rank only when every rank has called it for the same step."""
    run.stepping.context.clock.waiting("vote on the step")
    dist.all_reduce(torch.zeros(1), group=run.groups.control)
