"""What the processes of a new generation agree on: the step from which they go on, and which rank sends its state to
which. Pure, without torch.

Each member reports what it holds (`RankReport`), and all draw the same conclusion from all reports. If the vote on a
step (`StepContext.vote`) is complete on any rank, every rank had its clipped gradients: ranks without the step in their
weights apply it themselves, and are at most one step behind. If no rank saw the vote complete, the step is repeated. A
dead rank may have been further; nobody knows, and the repeated step gives the same bits.

If no replica holds a piece, copies on neighbours are used: all ranks go back to the newest step with a copy of every
lost piece and of each survivor's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lineage.json_record import JsonRecord


class CannotRecoverError(RuntimeError):
    """What was lost cannot be filled from memory; the message says why. The run starts again from its
    checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport(JsonRecord):
    """What the process that is `rank` of a new generation holds of the run.

    `holds`: weights and moments, with `applied` steps in them (those that the recipe leaves out are counted,
    as far as the next one that it does not). `done`: steps whose end (report, evaluation, checkpoint) is
    behind it too. `ready`: it holds clipped gradients of the step after those in the weights. `attempt`: the
    one that it was part of. `kept`: the steps of which it keeps its own state and that of rank `keeps_of`."""

    rank: int
    holds: bool = False
    applied: int = 0
    done: int = 0
    ready: bool = False
    attempt: int = 0
    kept: tuple[int, ...] = ()
    keeps_of: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How a generation begins. `step`: steps in everyone's weights. `progress_from`: the rank whose progress all
    take over, the furthest of those that have them. `behind`: ranks that apply the last step first.
    `filled_by`: for each rank that holds nothing, the rank that sends it its state. `from_copies`: all go back to
    the copies of `step`. `attempt`: the one that ended."""

    step: int
    progress_from: int
    attempt: int
    behind: tuple[int, ...] = ()
    filled_by: Mapping[int, int] = field(default_factory=dict)
    from_copies: bool = False


def agree(reports: Sequence[RankReport], replicas_of: Callable[[int], Sequence[int]]) -> Agreement | None:
    """What follows from the reports of all ranks; None where no rank holds anything, as at a start.
    `replicas_of` gives the ranks that hold the same pieces as one. CannotRecoverError where a piece is
    lost."""
    holding = [report for report in reports if report.holds]
    if not holding:
        return None
    lost = [report.rank for report in reports if not report.holds]
    filled_by = {}
    for rank in lost:
        peers = [peer for peer in replicas_of(rank) if reports[peer].holds]
        if not peers:
            # One lost piece takes all ranks back: weights of different steps do not fit together.
            return _from_copies(reports, lost, replicas_of)
        # Any of them holds the same bits; the first, so that all ranks name the same one.
        filled_by[rank] = peers[0]
    # Where one rank has the step in its weights, the vote on it was finished: the others hold its gradients.
    step = max(report.applied for report in holding)
    behind = tuple(report.rank for report in holding if report.applied < step)
    for rank in behind:
        if reports[rank].applied != step - 1 or not reports[rank].ready:
            raise CannotRecoverError(
                f"rank {rank} has {reports[rank].applied} steps in its weights and no gradients for the next,"
                f" and others have {step}"
            )
    # Of those the one that has come furthest with reports and checkpoints: what it ended is not done again.
    at_step = [report for report in holding if report.applied == step]
    return Agreement(
        step=step,
        progress_from=max(at_step, key=lambda report: report.done).rank,
        attempt=max(report.attempt for report in holding),
        behind=behind,
        filled_by=filled_by,
    )


def _from_copies(
    reports: Sequence[RankReport], lost: Sequence[int], replicas_of: Callable[[int], Sequence[int]]
) -> Agreement:
    holding = [report for report in reports if report.holds]
    keepers = {report.keeps_of: report.rank for report in holding if report.keeps_of is not None}
    filled_by = {}
    for rank in lost:
        holders = [
            peer
            for peer in (keepers.get(rank), *replicas_of(rank))
            if peer is not None and reports[peer].holds
        ]
        if not holders:
            keeper = (rank + 1) % len(reports)
            raise CannotRecoverError(
                f"rank {rank} is lost, and rank {keeper}, which keeps its copy, is lost too"
                if keepers
                else f"rank {rank} is lost, and no other rank holds its weights and moments"
            )
        # A replica will do too: it restores its own copy before it sends, so what it sends is of that step.
        filled_by[rank] = holders[0]
    # A rank that was cut off within its copy keeps one step less: only what all keep can be gone back to.
    common = frozenset.intersection(*(frozenset(report.kept) for report in holding))
    if not common:
        raise CannotRecoverError("the ranks that are left keep no copies of one step")
    return Agreement(
        step=max(common),
        progress_from=holding[0].rank,  # any: each copy has the progress of its step beside it
        attempt=max(report.attempt for report in holding),
        filled_by=filled_by,
        from_copies=True,
    )


def keeps_copy_of(rank: int, num_ranks: int) -> int:
    """The rank whose copy this one keeps: the one before it, around the ring."""
    return (rank - 1) % num_ranks
