"""`sluice prove`: the proof that a run read a URL, a domain or a text, or that it did not, against a published root.

Presence is a leaf with the hashes beside its way to the root. Absence is the two leaves between which the key would
lie, each with its way, neighbours by their numbers; of them a proof shows no values, and of their keys the head alone
wherever that tells them apart from the key."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from trainer.evidence.commitment.commit import FOLDER, Commitment, canonical, read_commitment, read_secret
from trainer.evidence.commitment.keys import Kind, key_of
from trainer.evidence.commitment.tree import BLOCK_LEAVES, LEAF, LeafParts, leaf_hashes, leaf_parts, path_of
from trainer.huggingface.model_card import checkpoints_of
from trainer.provenance.facts import require_run

PROOF_VERSION: Final = 1
_SIZE: Final = LEAF.itemsize


class LeafValues(NamedTuple):
    """What a leaf says of its subject; no steps without readings."""

    readings: int = 0
    first_step: int | None = None
    last_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingProof:
    """A proof: `leaf` is that of the subject, None where it is absent; `way` leads from it, or from its neighbours, to
    the root."""

    commitment: Commitment
    kind: Kind
    subject: str
    leaf: LeafValues | None
    way: Mapping[str, object]

    def as_json(self) -> dict[str, object]:
        """What the file of the proof holds."""
        return {
            "version": PROOF_VERSION,
            "root": self.commitment.root,
            "run": self.commitment.run,
            "kind": self.kind,
            "subject": self.subject,
            "present": self.leaf is not None,
            "commitment": asdict(self.commitment),
            **({} if self.leaf is None else {"leaf": self.leaf._asdict()}),
            **self.way,
        }


def prove(output: Folder, kind: Kind, subjects: Sequence[str], step: int | None = None) -> ReadingProof:
    """The proof for the first of `subjects` that the run read, or of the last one's absence: of the newest checkpoint,
    or that of `step` steps, which must be committed. RecipeError where it is not."""
    commitment = _committed(output, step)
    leaves = PublishedLeaves(output, commitment, read_secret(output))
    for subject in subjects:
        key = key_of(bytes.fromhex(commitment.key), kind, subject)
        at, is_there = leaves.place(key)
        if is_there:
            break
    leaf: LeafValues | None = None
    way: dict[str, object] = {"neighbours": [leaves.neighbour(index, key) for index in leaves.around(at)]}
    if is_there:
        parts, leaf = leaves.leaf(at)
        way = {"salt": parts.salt.hex(), "index": at, "path": leaves.path(at)}
    return ReadingProof(commitment=commitment, kind=kind, subject=subject, leaf=leaf, way=way)


def proof_bytes(proof: ReadingProof) -> bytes:
    """The file of a proof, in the one form that a check takes."""
    return canonical(proof.as_json()) + b"\n"


def _committed(output: Folder, step: int | None) -> Commitment:
    require_run(output)
    found = [each for each in checkpoints_of(output) if step in (None, each.step)]
    names = (
        [found[-1].name]
        if found and step is None
        else [name for name in output.folder(FOLDER).folders() if name.startswith(f"step-{step:08d}.")]
    )
    names.sort(key=lambda name: int(name.rpartition("-")[2]))  # by attempt: the tenth is behind the second
    commitments = [each for name in names if (each := read_commitment(output, name)) is not None]
    if not commitments:
        which = "its newest checkpoint" if step is None else f"step {step}"
        raise RecipeError(
            f"{output.url} has no commitment of {which}: sluice commit {shlex.quote(output.url)} makes one"
        )
    return commitments[-1]


class PublishedLeaves:
    """The published leaves of a commitment, of which a block at a time is read."""

    def __init__(self, output: Folder, commitment: Commitment, secret: bytes) -> None:
        self._folder = output.folder(f"{FOLDER}/{commitment.checkpoint}")
        self._num, self._bits, self._secret = commitment.num_leaves, commitment.head_bits, secret

    def place(self, key: bytes) -> tuple[int, bool]:
        """Where a key stands, or would, and whether it is there."""
        low, high = 0, self._num
        with self._folder.open("leaves.bin") as file:
            while low < high:
                middle = (low + high) // 2
                file.seek(middle * _SIZE)
                found = file.read(32)
                if found == key:
                    return middle, True
                low, high = (middle + 1, high) if found < key else (low, middle)
        return low, False

    def around(self, at: int) -> list[int]:
        """The leaves between which a key at `at` would lie."""
        return [index for index in (at - 1, at) if 0 <= index < self._num]

    def leaf(self, index: int) -> tuple[LeafParts, LeafValues]:
        """A leaf's parts and its values."""
        row = self._rows(index, 1)
        values = (int.from_bytes(row[at : at + 8], "little") for at in range(32, _SIZE, 8))
        return leaf_parts(row, self._secret, self._bits), LeafValues(*values)

    def neighbour(self, index: int, key: bytes) -> dict[str, object]:
        """A leaf beside `key`, with no more of it than tells them apart."""
        parts, _ = self.leaf(index)
        is_told_apart = parts.head != int.from_bytes(key[:8], "big") >> (64 - self._bits)
        shown: dict[str, str | None] = {"key": None, "rest": parts.inner.hex()}
        if not is_told_apart:
            shown = {"key": parts.key.hex(), "rest": parts.rest.hex()}
        return {"index": index, "head": parts.head, **shown, "path": self.path(index)}

    def path(self, index: int) -> list[str]:
        """The hashes beside the way from a leaf to the root."""
        block, within = divmod(index, BLOCK_LEAVES)
        first = block * BLOCK_LEAVES
        here = leaf_hashes(self._rows(first, min(BLOCK_LEAVES, self._num - first)), self._secret, self._bits)
        stored = self._folder.read("blocks.bin")
        blocks = [stored[at : at + 32] for at in range(0, len(stored), 32)]
        return [each.hex() for each in (*path_of(here, within), *path_of(blocks, block))]

    def _rows(self, index: int, num: int) -> bytes:
        return self._folder.read_range("leaves.bin", index * _SIZE, num * _SIZE)
