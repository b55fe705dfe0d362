"""Whether the weights and moments of two runs are equal to the last bit, and why they need not be."""

from __future__ import annotations

from dataclasses import dataclass

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from trainer.checkpoint.digest import weights_digest
from trainer.checkpoint.store import check_files
from trainer.huggingface.model_card import checkpoints_of, read_card
from trainer.replay.certificate import chain_of, inexact


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointComparison:
    """Whether two checkpoints are equal, and what is to be said of it."""

    equal: bool
    why: str


def compare_runs(ours: Folder, theirs: Folder) -> CheckpointComparison:
    """The newest checkpoint of one run and that of the same step of another. RecipeError where there is none;
    CheckpointError where a file of one is damaged."""
    found = {entry.step: entry for entry in checkpoints_of(theirs)}
    mine = checkpoints_of(ours)
    if not mine:
        raise RecipeError(
            f"{ours.url} has no checkpoint: expected the output of a training run (train.output)"
        )
    newest = mine[-1]
    if newest.step not in found:
        there = ", ".join(map(str, found)) or "none"
        raise RecipeError(
            f"--against {theirs.url}: it has no checkpoint of step {newest.step}, the newest of {ours.url};"
            f" its checkpoints: {there}"
        )
    digests = []
    for output, entry in ((ours, newest), (theirs, found[newest.step])):
        folder = Folder(read_card(output).checkpoints).folder(entry.name)
        check_files(folder)
        digests.append(weights_digest(folder))
    one, other = digests
    if one.digest == other.digest:
        return CheckpointComparison(
            equal=True, why=f"{one.num_tensors} of {one.num_tensors} tensors, {one.num_elements:,} elements"
        )
    names = sorted(one.tensors.keys() | other.tensors.keys())
    differing = [name for name in names if one.tensors.get(name) != other.tensors.get(name)]
    why = f"{len(differing)} of {len(names)} tensors differ, {differing[0]} first"
    reasons = inexact([*chain_of(ours, newest), *chain_of(theirs, found[newest.step])])
    return CheckpointComparison(
        equal=False, why=why + (f"; they need not be equal: {'; '.join(reasons)}" if reasons else "")
    )
