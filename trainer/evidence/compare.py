"""Whether the weights and moments of two runs are equal to the last bit, and why they need not be."""

from __future__ import annotations

from dataclasses import dataclass

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.storage.places import same_place, shared_files, shown_place
from trainer.checkpoint.store import Checkpoint, DigestWeights, check_files
from trainer.evidence.chain import chain_of, inexact
from trainer.huggingface.model_card import checkpoints_of, read_card


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointComparison:
    """Whether two checkpoints are equal, and what is to be said of it; `read`: the folders of both."""

    equal: bool
    why: str
    read: tuple[str, str]


def compare_runs(ours: Folder, theirs: Folder, digest: DigestWeights) -> CheckpointComparison:
    """The newest checkpoint of one run and that of the same step of another. RecipeError where there is none,
    or where both are one; CheckpointError where a file of one is damaged."""
    if same_place(ours, theirs):
        raise RecipeError(
            f"--against {theirs.url} is {ours.url} itself: a comparison takes the outputs of two runs"
        )
    mine = checkpoints_of(ours)
    if not mine:
        raise RecipeError(
            f"{ours.url} has no checkpoint: expected the output of a training run (train.output)"
        )
    newest = mine[-1]
    found = {entry.step: entry for entry in checkpoints_of(theirs)}
    if newest.step not in found:
        there = ", ".join(map(str, found)) or "none"
        raise RecipeError(
            f"--against {theirs.url}: it has no checkpoint of step {newest.step}, the newest of {ours.url};"
            f" its checkpoints: {there}"
        )
    one, other = folders = _folder(ours, newest), _folder(theirs, found[newest.step])
    if same_place(one, other) or shared_files(one, other):
        raise RecipeError(
            f"--against {theirs.url}: {shown_place(other)} and {shown_place(one)} hold the same files: a"
            " comparison takes two checkpoints"
        )
    for folder in folders:
        check_files(folder)
    read = shown_place(one), shown_place(other)
    mine_digest, other_digest = map(digest, folders)
    if mine_digest.digest == other_digest.digest:
        num = mine_digest.num_tensors
        return CheckpointComparison(
            equal=True, why=f"{num} of {num} tensors, {mine_digest.num_elements:,} elements", read=read
        )
    names = sorted(mine_digest.tensors.keys() | other_digest.tensors.keys())
    differing = [name for name in names if mine_digest.tensors.get(name) != other_digest.tensors.get(name)]
    why = f"{len(differing)} of {len(names)} tensors differ, {differing[0]} first"
    reasons = inexact([*chain_of(ours, newest), *chain_of(theirs, found[newest.step])])
    return CheckpointComparison(
        equal=False,
        why=why + (f"; they need not be equal: {'; '.join(reasons)}" if reasons else ""),
        read=read,
    )


def _folder(output: Folder, checkpoint: Checkpoint) -> Folder:
    return Folder(read_card(output).checkpoints).folder(checkpoint.name)
