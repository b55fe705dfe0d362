"""Where the records of a run contradict each other: its attempts, its facts, and what stores took of these.

A certificate is made of records, and they can be edited. Each thing is recorded in several places, by several
processes: who changes one of them is found by the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from lineage.storage.folder import Folder
from lineage.store.lookup import Lookup
from trainer.checkpoint.store import Checkpoint, read_position
from trainer.evidence.certified import CertifiedCheckpoint
from trainer.evidence.chain import recorded_line
from trainer.evidence.origin import links
from trainer.order import OrderPlan
from trainer.provenance.facts import (
    FACTS_FILE,
    Fact,
    FactLog,
    SegmentFact,
    StartFact,
    recorded_places,
    segment_row,
)
from trainer.provenance.setup import Origin, read_setup
from trainer.recovery.readings import PurgedOutput
from trainer.recovery.rollbacks import rollbacks

_COMPARED: Final = ("attempt", "first_step", "last_step", "content_fingerprint", "weights", "skipped_steps")
"""What decides which rows a stretch read, and whether they count."""


def contradictions(certified: CertifiedCheckpoint) -> list[str]:
    """Where the records of the run, or of one with whose weights it began, contradict each other: a chain
    that does not begin at step 0, a parent that is another one by the facts, weights to begin with that are
    others by the facts."""
    problems = _contradictions(certified.output, certified.run, certified.checkpoint, certified.purged)
    position = read_position(certified.folder)
    for purged in certified.purged:
        own = [run for run in certified.runs(purged) if run.run == certified.run]
        for plan in [OrderPlan.from_json(run.plan) for run in own]:
            found = plan.fingerprint(position.step * plan.global_batch)
            if found != position.plan_fingerprint:
                problems.append(
                    f"{certified.checkpoint.name} was saved in the order {position.plan_fingerprint} by its"
                    f" own record, and the run has the order {found} by its facts"
                )
    # A reading hidden in the run that made the first weights is in this one's too: its records are held to the same.
    for link in links(certified):
        if link.made_by is not None:
            output, run, checkpoint = link.made_by
            of_link = _contradictions(output, run, checkpoint, certified.purged)
            problems += [f"{output.url}, with whose weights it began: {problem}" for problem in of_link]
    return problems


def _contradictions(
    output: Folder, run: str, checkpoint: Checkpoint, purged: Sequence[PurgedOutput]
) -> list[str]:
    line, problems = recorded_line(output, checkpoint), []
    if not line or line[0][0].first_step != 0 or line[0][0].parent is not None:
        missing = line[0][0].parent if line else checkpoint.attempt
        problems.append(f"the chain of checkpoints does not reach step 0: attempt {missing} is not recorded")
    beginnings = _recorded_beginnings(output, run, purged)
    starts = {fact.attempt: fact for _, fact in FactLog(output).facts() if isinstance(fact, StartFact)}
    rollback_of = {rollback.number: (rollback.step, rollback.parent) for rollback in rollbacks(output)}
    ends = {attempt.number: end for attempt, end in line}
    problems += [
        problem for each in purged if (problem := _changed_fact(output, run, each, ends)) is not None
    ]
    for attempt, end in line:
        back = None if attempt.rollback is None else rollback_of.get(attempt.rollback)
        # Where the checkpoint that was asked for is damaged, it goes back further.
        further = back is not None and attempt.damaged and attempt.first_step < back[0]
        if attempt.rollback is not None and back != (attempt.first_step, attempt.parent) and not further:
            problems.append(
                f"attempt {attempt.number} went back to step {attempt.first_step} of attempt {attempt.parent} by its"
                f" own record, and rollback {attempt.rollback} asks for another step, or is not recorded"
            )
        for where, parent, first_step in beginnings.get(attempt.number, ()):
            if (parent, first_step) != (attempt.parent, attempt.first_step):
                problems.append(
                    f"attempt {attempt.number} began from attempt {attempt.parent} at step"
                    f" {attempt.first_step} by its"
                    f" own record, and from attempt {parent} at step {first_step} by {where}"
                )
        if attempt.number not in beginnings and end > attempt.first_step:
            problems.append(f"attempt {attempt.number} has no facts: what it read is not known")
        # Written by two code paths, to two files: who hides an init_from has to change both.
        setup, start = read_setup(output, attempt.number), starts.get(attempt.number)
        ours = None if setup is None else (setup.recipe_hash, *_origin_key(setup.origin))
        theirs = None if start is None else (start.recipe_hash, start.init_from, start.init_digest)
        if ours != theirs:
            problems.append(
                f"attempt {attempt.number} was set up with (recipe, init_from, digest) = {ours} by its own"
                f" record, and with {theirs} by its facts"
            )
    return problems


def _changed_fact(output: Folder, run: str, purged: PurgedOutput, ends: Mapping[int, int]) -> str | None:
    """A fact that the store of the data took from the run's output, and that stands otherwise there now.

    The original of a copy may have added facts since; then the copy's own must reach its checkpoint."""
    facts = dict(FactLog(output).facts())
    # Facts beyond the end of a log are either its original's, if this is a copy, or were cut off it: those of a
    # copy that was made of a whole output reach the checkpoint without them.
    is_elsewhere = output.url not in recorded_places(output)
    for row in Lookup(purged.out).segments():
        if row.run == run and row.fact is not None:
            reached = _reached(facts.values(), row.attempt)
            if is_elsewhere and row.fact >= len(facts) and reached >= ends.get(row.attempt, 0):
                continue
            fact = facts.get(row.fact)
            ours = segment_row(row.fact, fact) if isinstance(fact, SegmentFact) else {}
            differing = [name for name in _COMPARED if ours.get(name) != getattr(row, name)]
            if differing:
                found = "; ".join(
                    f"{name} {getattr(row, name)!r}, there {ours.get(name)!r}" for name in differing
                )
                return (
                    f"the store of {purged.out.url} took facts from {output.at(FACTS_FILE)} that stand there"
                    f" otherwise now: of attempt {row.attempt} from step {row.first_step} on {found}"
                )
    return None


def _reached(facts: Iterable[Fact], attempt: int) -> int:
    """The steps that an attempt had done by its facts."""
    of_it = (fact for fact in facts if isinstance(fact, SegmentFact) and fact.attempt == attempt)
    return max((fact.last_step + 1 for fact in of_it), default=0)


def _origin_key(origin: Origin | None) -> tuple[str | None, str | None]:
    return (None, None) if origin is None else (origin.url, origin.digest)


def _recorded_beginnings(
    output: Folder, name: str, purged: Sequence[PurgedOutput]
) -> dict[int, list[tuple[str, int | None, int]]]:
    """(where, parent, first step) of each attempt, by the facts in the output and by each store."""
    told: dict[int, dict[str, tuple[int | None, int]]] = {}

    def note(where: str, attempt: int, parent: int | None, first_step: int) -> None:
        known = told.setdefault(attempt, {}).get(where)
        told[attempt][where] = (parent, first_step if known is None else min(known[1], first_step))

    for _, fact in FactLog(output).facts():
        if isinstance(fact, SegmentFact):
            note("the facts in its output", fact.attempt, fact.parent_attempt, fact.first_step)
    for each in purged:
        for run in each.runs():
            if run.run == name:
                for segment in run.segments:
                    note(
                        f"the store of {each.out.url}",
                        segment.attempt,
                        segment.parent_attempt,
                        segment.first_step,
                    )
    return {attempt: [(where, *row) for where, row in found.items()] for attempt, found in told.items()}
