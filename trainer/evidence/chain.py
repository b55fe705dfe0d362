"""The chain of attempts that leads to a checkpoint: what each read, how it was set up, and why the last bits may
differ."""

from __future__ import annotations

from collections.abc import Sequence

from lineage.storage.folder import Folder
from trainer.attempts import Attempt, attempts, line_of_attempts
from trainer.checkpoint.store import Checkpoint
from trainer.evidence.rows import ChainLink
from trainer.provenance.facts import FactLog, SegmentFact
from trainer.provenance.setup import Setup, read_setup
from trainer.recovery.same_recipe import changed_since


def recorded_line(output: Folder, checkpoint: Checkpoint) -> list[tuple[Attempt, int]]:
    """The attempts that lead to a checkpoint, the first one first, each with the step up to which it counts,
    as far as they are recorded."""
    known = {each.number: each for each in attempts(output)}
    line = line_of_attempts(known.values(), checkpoint.attempt, checkpoint.step)
    return [(known[number], end) for number, end in reversed(line) if number in known]


def first_setup(output: Folder, checkpoint: Checkpoint) -> Setup | None:
    """The setup of the attempt that the line to a checkpoint began with."""
    first, _ = line_of_attempts(attempts(output), checkpoint.attempt, checkpoint.step)[-1]
    return read_setup(output, first)


def chain_of(output: Folder, checkpoint: Checkpoint) -> list[ChainLink]:
    """The attempts that lead to a checkpoint: what each read, and how it was set up."""
    facts = [fact for _, fact in FactLog(output).facts() if isinstance(fact, SegmentFact)]
    chain: list[ChainLink] = []
    for attempt, end in recorded_line(output, checkpoint):
        # The newest fact about a stretch counts: each is written again as the stretch grows.
        newest = {
            (f.first_step, f.out): f for f in facts if f.attempt == attempt.number and f.first_step < end
        }
        setup = read_setup(output, attempt.number)
        chain.append(
            {
                "attempt": attempt.number,
                "parent": attempt.parent,
                "rollback": attempt.rollback,
                "first_step": attempt.first_step,
                "end_step": end,
                "contents": [
                    {"out": out, "first_step": first, "content_fingerprint": fact.content_fingerprint}
                    for (first, out), fact in sorted(newest.items())
                ],
                "recipe_changes": changed_since(output, chain[-1]["attempt"], attempt.number)
                if chain
                else [],
                "recipe_hash": None if setup is None else setup.recipe_hash,
                "seed": None if setup is None else setup.seed,
                "layout": None if setup is None else setup.layout,
                "device": None if setup is None else setup.device,
                "versions": None if setup is None else setup.versions,
            }
        )
    return chain


def inexact(chain: Sequence[ChainLink]) -> list[str]:
    """Why the weights that chains of attempts lead to may differ in their last bits from those of a run that
    never read the documents."""
    reasons = []
    if any(link["layout"] != chain[0]["layout"] for link in chain):
        reasons.append("attempts had different layouts, which add in another order")
    changes = dict.fromkeys(change for link in chain for change in link["recipe_changes"] or ())
    if changes:
        reasons.append(f"the recipe changed on the way: {'; '.join(changes)}")
    if any(link["versions"] != chain[0]["versions"] for link in chain):
        reasons.append("attempts ran on different versions of the libraries")
    if any(link["device"] != "cpu" for link in chain):
        reasons.append("on a GPU some kernels add in an order that differs from run to run")
    return reasons
