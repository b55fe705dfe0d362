"""How the attempt of a generation begins from what its processes hold: the steps that only some of them take, or
that rank 0 takes for all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import torch.distributed as dist

from lineage.storage.folder import Folder
from trainer.attempts import Attempt, Claimant, attempts, begin, claim_next
from trainer.checkpoint.state import restore
from trainer.checkpoint.store import checkpoint_folder, complete_checkpoints, delete_left_over
from trainer.in_place.memory import InMemoryState, Snapshot, StepCopies
from trainer.in_place.pieces import as_bytes, from_bytes, receive
from trainer.model.peers import local_part
from trainer.options import TrainRecipe
from trainer.parallel.weights import settle_buckets
from trainer.processes.agreement import Agreement, keeps_copy_of
from trainer.provenance.setup import read_setup, record_setup
from trainer.recovery.repeated import skip_counter
from trainer.run.assemble import state_tensors
from trainer.run.parts import Progress, Run
from trainer.telemetry.metrics_file import last_reports
from trainer.telemetry.step_report import StepReport


class ClaimedAttempt(NamedTuple):
    """The attempt that goes on, the steps in the newest complete checkpoint (-1: there is none) and its
    place."""

    attempt: Attempt
    saved: int
    checkpoint: str


def claim_attempt(
    recipe: TrainRecipe, snapshot: Snapshot, claimant: Claimant, began_at: float
) -> ClaimedAttempt:
    """By rank 0. FencedOutError where another start of the run, or a later generation, has claimed one."""
    output = Folder(recipe.train.output)
    # First of all, and atomically: a generation that another start or generation has superseded ends here.
    number = claim_next(output, snapshot.attempt, claimant)
    attempt = Attempt(number=number, first_step=snapshot.applied, parent=snapshot.attempt, began_at=began_at)
    setup = read_setup(output, snapshot.attempt)
    assert setup is not None, "an attempt of this start wrote it"
    # Whatever the run began with, this attempt goes on from what it holds.
    record_setup(output, number, dataclasses.replace(setup, origin=None), recipe)
    begin(output, attempt)
    folder, begun = checkpoint_folder(recipe), attempts(output)
    delete_left_over(folder, begun, recipe.train.checkpoint, recipe.train.steps)
    newest = complete_checkpoints(folder, begun)[-1:]
    return ClaimedAttempt(attempt, *((newest[0].step, folder.at(newest[0].name)) if newest else (-1, "")))


def progress_from(snapshot: Snapshot, claimed: ClaimedAttempt, recipe: TrainRecipe) -> Progress:
    """The progress with which the claimed attempt goes on."""
    skips = skip_counter(recipe.train, None)
    skips.row, skips.lowered = snapshot.skipped_in_row, snapshot.lowered
    return Progress(
        step=snapshot.step,
        last_saved=claimed.saved,
        next_save=snapshot.next_save,
        skips=skips,
        checkpoint=claimed.checkpoint,
        skipped=list(snapshot.skipped),
        stop=snapshot.stop,
        loss=snapshot.loss,
    )


def fill(run: Run, memory: InMemoryState, agreed: Agreement, snapshot: Snapshot) -> None:
    """Weights, moments and windows: this rank's own, or those of the rank that sends them. Collective."""
    rank, num_ranks, control = run.rank, run.launch.process.world_size, run.groups.control
    state = state_tensors(run.stepping.context)
    memory.pieces = {name: local_part(tensor) for name, tensor in state.items()}
    pieces = memory.pieces.values()
    # Own pieces first: after this every sender holds the agreed step, whether it goes back to a copy or not.
    if agreed.from_copies and memory.state is not None:
        from_bytes(memory.copies[agreed.step].own, pieces)
    elif memory.state is not None:
        for name, piece in memory.pieces.items():
            piece.copy_(memory.state.tensors[name])
    # In the same order on every rank: a send waits for its receive.
    for lost, source in sorted(agreed.filled_by.items()):
        if rank == source:
            keeps = agreed.from_copies and keeps_copy_of(rank, num_ranks) == lost
            # Of a replica the own pieces are the lost ones; of a neighbour it keeps them apart.
            sent = memory.copies[agreed.step].neighbours if keeps else as_bytes(pieces)
            assert sent is not None, "a rank that keeps no copy says so"
            dist.send(sent, lost, group=control)
        elif rank == lost:
            receive(source, pieces, control)
    # The number of updates is held once, and each moment has a count of its own.
    restore(state, run.stepping.context.optimizer)
    run.stepping.model.weights_changed()
    settle_buckets(run.stepping.model, run.stepping.feed.num_rows, run.recipe.train.seq_len)
    # Copies of later steps are of steps that will be repeated.
    memory.copies = {step: copies for step, copies in memory.copies.items() if step <= agreed.step}
    if agreed.from_copies and not memory.copies:  # a new process: its own state, and no neighbour's yet
        memory.copies[agreed.step] = StepCopies(own=as_bytes(pieces), neighbours=None, snapshot=snapshot)


def publish_missing(run: Run, reports: Sequence[StepReport]) -> None:
    """What a rank 0 that died had not reported yet. By rank 0."""
    if not reports:
        return
    # By what the file has, not by what rank 0 had acknowledged: it may have died between writing and saying so.
    written = last_reports(run.output, lambda report: report.step >= reports[0].step)
    there = {(report.step, report.attempt) for report in written}
    for report in reports:
        if (report.step, report.attempt) not in there:
            for sink in run.reporting.sinks:
                sink.write(report)
