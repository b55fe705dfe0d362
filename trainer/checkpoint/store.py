"""Checkpoints as files: which are complete and part of the run, whether they are intact, which may go. No
torch here.

<path>/run.json                                   which run they are of, where <path> is not within its output
<path>/step-00000100.attempt-2/__0_0.distcp, …   the ranks' pieces
                               .metadata         which tensor lies where
                               sums-00000.json   each rank's files, with size and hash
                               complete.json     written last: without it there is no checkpoint
<path>/set-aside/step-…                          of steps that a rollback undid; deleted once the replay has passed them
<path>/damaged/step-…                          not as it was published; the run went on from one before; never deleted
"""

from __future__ import annotations

import dataclasses
import errno
import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from blake3 import blake3

from lineage.ids import ID_BYTES, content_hash
from lineage.json_record import JsonRecord
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, split
from lineage.storage.places import name_in, same_place
from trainer.attempts import Attempt, attempts, counts
from trainer.model.config.description import ModelConfig
from trainer.options import CheckpointTable, TrainRecipe

T = TypeVar("T")

COMPLETE: Final = "complete.json"
OWNER: Final = "run.json"
"""In a folder of its own, which run the checkpoints are of."""
METADATA: Final = ".metadata"
SET_ASIDE: Final = "set-aside"
"""Within the folder of checkpoints: the complete ones that are no part of the run any more."""
DAMAGED: Final = "damaged"
"""Within the folder of checkpoints: those that an attempt found damaged, and went on from one before."""
_READERS: Final = 32
_DAMAGE: Final = (
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ELOOP,
)
"""Errors of a disk that are the file's own. Others may be gone at the next try, as those of a network are."""
_NAME: Final = re.compile(r"step-(\d{8,})\.attempt-(\d+)")


class CheckpointError(RuntimeError):
    """A checkpoint is damaged or does not fit; the message names it and says what to do."""


class LoweredRate(NamedTuple):
    """The learning rate of steps [first_step, end_step) is multiplied with `factor`."""

    first_step: int
    end_step: int
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Position(JsonRecord):
    """Where the run stands with this checkpoint: `step` steps are done. The fingerprint and version are the
    order's. `model`: the one that was saved; `skipped_in_row`: the last steps, where they were skipped in a
    row; `lowered`: stretches of steps whose learning rate is lowered."""

    step: int
    attempt: int
    plan_fingerprint: str
    order_version: int
    model: ModelConfig
    world_size: int = 1
    skipped_in_row: tuple[int, ...] = ()
    lowered: tuple[LoweredRate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint in a folder of them."""

    name: str
    step: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsDigest:
    """`digest`: BLAKE3 (hex) over name, dtype, shape and hash of every tensor, by name; `tensors`: the hash
    of each."""

    digest: str
    num_tensors: int
    num_elements: int
    tensors: Mapping[str, str]


DigestWeights = Callable[[Folder], WeightsDigest]
"""Gives the digest of a checkpoint's weights and moments (`digest.py`, with torch)."""


def checkpoint_name(step: int, attempt: int) -> str:
    """The folder of a checkpoint."""
    return f"step-{step:08d}.attempt-{attempt}"


def checkpoint_folder(recipe: TrainRecipe) -> Folder:
    """Where the checkpoints of a run lie."""
    return Folder(recipe.train.checkpoint.path or Folder(recipe.train.output).at("checkpoints"))


def newest_step(recipe: TrainRecipe) -> int:
    """The steps in the newest complete checkpoint of a run; 0 where it has none."""
    saved = complete_checkpoints(checkpoint_folder(recipe), attempts(Folder(recipe.train.output)))
    return saved[-1].step if saved else 0


def complete_checkpoints(folder: Folder, begun: tuple[Attempt, ...]) -> tuple[Checkpoint, ...]:
    """The complete checkpoints that are part of the run, by step; of two at one step the later attempt's
    counts."""
    found: dict[int, Checkpoint] = {}
    for entry in _complete(folder):
        # Two attempts may have saved the same step: after a rollback the later one holds what the run goes on with.
        known = found.get(entry.step)
        if counts(entry.step, entry.attempt, begun) and (known is None or known.attempt < entry.attempt):
            found[entry.step] = entry
    return tuple(found[step] for step in sorted(found))


def _complete(folder: Folder) -> list[Checkpoint]:
    """Every complete checkpoint right in a folder, of whatever attempt, by name."""
    found = []
    for name in folder.names():
        top, _, rest = name.partition("/")
        match = _NAME.fullmatch(top)
        if rest == COMPLETE and match is not None:
            found.append(Checkpoint(name=top, step=int(match[1]), attempt=int(match[2])))
    return found


def set_aside(folder: Folder, begun: tuple[Attempt, ...]) -> tuple[Checkpoint, ...]:
    """Move the complete checkpoints that are no part of the run, as after a rollback, out of the way, and those
    that an attempt found damaged: killed at any point, the same call moves the rest. Gives those that were
    undone."""
    damaged = {each.name for attempt in begun for each in attempt.damaged}
    undone = []
    for entry in _complete(folder):
        # complete.json moves last, so a checkpoint that was half moved is still found here and moved on.
        if entry.name in damaged and not folder.exists(f"{DAMAGED}/{entry.name}/{COMPLETE}"):
            folder.move(entry.name, f"{DAMAGED}/{entry.name}", last=COMPLETE)
        elif not counts(entry.step, entry.attempt, begun):
            folder.move(entry.name, f"{SET_ASIDE}/{entry.name}", last=COMPLETE)
            undone.append(entry)
    return tuple(undone)


def damaged_checkpoints(folder: Folder) -> tuple[Checkpoint, ...]:
    """Those that `set_aside` moved because they are damaged, by step."""
    return tuple(sorted(_complete(folder.folder(DAMAGED)), key=lambda entry: (entry.step, entry.attempt)))


def up_to(complete: tuple[Checkpoint, ...], name: str | None) -> tuple[Checkpoint, ...]:
    """The checkpoints that a run may go on from which goes back to one: that, and those before it where it is
    damaged; none where it is there no more, or the first weights (None) are meant."""
    found = [entry.step for entry in complete if entry.name == name]
    return tuple(entry for entry in complete if found and entry.step <= found[0])


def newest_with_files(
    folder: Folder, entries: Sequence[Checkpoint], most: int | None = None
) -> Checkpoint | None:
    """The newest of these checkpoints (by step), of at most `most` steps, that says where the run stands and
    whose files are all there with their sizes; None where none is."""
    for entry in reversed(entries):
        if most is None or entry.step <= most:
            try:
                check_sizes(folder.folder(entry.name))
            except CheckpointError:
                continue
            return entry
    return None


def checkpoints_set_aside(folder: Folder) -> tuple[Checkpoint, ...]:
    """Those that `set_aside` moved and that are still there, by step."""
    return tuple(sorted(_complete(folder.folder(SET_ASIDE)), key=lambda entry: (entry.step, entry.attempt)))


def delete_passed(folder: Folder, step: int) -> None:
    """Delete what was set aside of steps up to `step`: the run has done them again."""
    for entry in checkpoints_set_aside(folder):
        if entry.step <= step:
            delete(folder, f"{SET_ASIDE}/{entry.name}")


def claim_folder(checkpoints: Folder, output: Folder) -> None:
    """Make a folder of checkpoints that lies apart from the run's output that run's own, once and for all.
    RecipeError as of `check_owner`; of two runs that claim it at once one gets it."""
    if not _lies_in(checkpoints, output):
        checkpoints.publish_new(OWNER, json.dumps({"output": output.url}).encode())
        check_owner(checkpoints, output)


def check_owner(checkpoints: Folder, output: Folder) -> None:
    """RecipeError where the checkpoints are those of another run: each would go on from the other's, and
    delete them."""
    if (owner := other_owner(checkpoints, output)) is not None:
        raise RecipeError(
            f"train.checkpoint.path = {checkpoints.url!r} holds the checkpoints of the run with the output"
            f" {owner!r}, not {output.url!r}: give this run a folder of its own; where that output was moved"
            f" here, remove {checkpoints.at(OWNER)}",
            "train.checkpoint.path",
        )


def other_owner(checkpoints: Folder, output: Folder) -> str | None:
    """The output whose checkpoints a folder apart holds, if it is another than this one."""
    if _lies_in(checkpoints, output) or not checkpoints.exists(OWNER):
        return None
    owner = str(json.loads(checkpoints.read(OWNER))["output"])
    return None if same_place(Folder(owner), output) else owner


def _lies_in(checkpoints: Folder, output: Folder) -> bool:
    return name_in(output, checkpoints.url) is not None


def is_checkpoint(folder: Folder) -> bool:
    """Whether the folder that `train.init_from` names is a complete checkpoint, or one of safetensors.
    RecipeError where it is neither."""
    if folder.exists(COMPLETE):
        return True
    if folder.exists("config.json"):
        return False
    raise RecipeError(
        f"train.init_from = {folder.url!r}: expected a checkpoint (with {COMPLETE}) or a folder of"
        " safetensors (with config.json)",
        "train.init_from",
    )


def record_sums(folder: Folder, rank: int, sums: dict[str, tuple[int, str]]) -> None:
    """Write down (bytes, hash) of each file that a rank wrote into a checkpoint."""
    folder.publish(f"sums-{rank:05d}.json", json.dumps(sums, sort_keys=True).encode())


def publish_complete(folder: Folder, position: Position) -> None:
    """Make the checkpoint in `folder` exist: gather the ranks' sums and write complete.json."""
    files: dict[str, list[int | str]] = {}
    # A file for each rank: one after the other they would take minutes in an object store.
    with ThreadPoolExecutor(_READERS) as readers:
        sums = [name for name in folder.names() if name.startswith("sums-")]
        for read in readers.map(folder.read, sums):
            files |= json.loads(read)
    metadata = folder.read(METADATA)
    files[METADATA] = [len(metadata), content_hash(metadata).hex()]
    # Through JSON: the digest must be of what a reader will parse (tuples become lists).
    row = json.loads(json.dumps({**dataclasses.asdict(position), "files": files}))
    folder.publish(COMPLETE, _canonical({**row, "digest": _digest(row)}))


def _canonical(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, sort_keys=True).encode()


def _digest(row: Mapping[str, Any]) -> str:
    """Of what complete.json says, which stands in it too: no hash of another file covers it."""
    return content_hash(_canonical(row)).hex()


def read_position(folder: Folder) -> Position:
    """The position that a complete checkpoint records. CheckpointError where that is not what was published,
    or where the checkpoint lies under another one's name."""
    return _record(folder)[0]


def _record(folder: Folder) -> tuple[Position, dict[str, tuple[int, str]]]:
    """What complete.json says: the position, and (bytes, hash) of each file that was published."""
    try:
        row = json.loads(_reading(folder, COMPLETE, folder.read))
        if row.pop("digest") != _digest(row):
            raise ValueError("its digest is another")
        files = {name: (size, hash_) for name, (size, hash_) in row.pop("files").items()}
        position = _position(row)
        if not all(type(size) is int and type(hash_) is str for size, hash_ in files.values()):
            raise ValueError("it does not list files")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(
            _damaged(folder, COMPLETE, f"does not hold what was published ({type(error).__name__}: {error})")
        ) from error
    named = _NAME.fullmatch(split(folder.url)[1])
    if named is not None and (int(named[1]), int(named[2])) != (position.step, position.attempt):
        there = f"is of step {position.step} of attempt {position.attempt}"
        raise CheckpointError(_damaged(folder, COMPLETE, there))
    return position, files


def _position(row: Mapping[str, Any]) -> Position:
    if not all(type(row[name]) is int for name in ("step", "attempt", "world_size")):
        raise ValueError("it has no numbers of step and attempt")
    return Position.from_json(row)


def check_sizes(folder: Folder, *, part: int = 0, num_parts: int = 1) -> None:
    """CheckpointError unless complete.json is whole, and every `num_parts`-th file that was published, from
    `part` on, is there with its size."""
    for name, (size, _) in _published(folder)[part::num_parts]:
        if not folder.exists(name) or _reading(folder, name, folder.size) != size:
            raise CheckpointError(
                _damaged(folder, name, "is missing or has another size than when it was published")
            )


def check_files(folder: Folder, *, part: int = 0, num_parts: int = 1) -> None:
    """CheckpointError unless the files are those that were published: the sizes and content of each
    `num_parts`-th file from `part` on, so that ranks share the work. Were each to ask for all sizes, requests
    would be the square of their number."""
    check_sizes(folder, part=part, num_parts=num_parts)
    for name, (_, expected) in _published(folder)[part::num_parts]:
        if _reading(folder, name, partial(_hash_of, folder)) != expected:
            raise CheckpointError(_damaged(folder, name, "has other bytes than when it was published"))


def _published(folder: Folder) -> list[tuple[str, tuple[int, str]]]:
    """(name, (bytes, hash)) of each file that was published, by name."""
    files = _record(folder)[1]
    if not files:
        raise CheckpointError(_damaged(folder, COMPLETE, "lists no file"))
    return sorted(files.items())


def _reading(folder: Folder, name: str, read: Callable[[str], T]) -> T:
    """What `read` gives of a file; CheckpointError where the disk cannot give it."""
    try:
        return read(name)
    except OSError as error:
        if folder.is_remote or error.errno not in _DAMAGE:
            raise
        raise CheckpointError(_damaged(folder, name, f"cannot be read ({error.strerror})")) from error


def _hash_of(folder: Folder, name: str) -> str:
    hasher = blake3()
    with folder.open(name) as file:
        while data := file.read(1 << 24):
            hasher.update(data)
    return hasher.hexdigest(length=ID_BYTES)


def _damaged(folder: Folder, name: str, what: str) -> str:
    return f"checkpoint {folder.url} is damaged: {name} {what}"


def superseded(
    checkpoints: tuple[Checkpoint, ...], keep: int, keep_every: int, *, keep_spaced: int = 0, steps: int = 0
) -> tuple[Checkpoint, ...]:
    """Those that may be deleted: all but the last `keep`, the multiples of `keep_every` steps (0: no such),
    and the newest in each of `keep_spaced` equal stretches of the run's `steps`: going back to any step then
    costs no more than such a stretch and the steps between two checkpoints."""
    newest_in: dict[int, int] = {}
    for entry in checkpoints if keep_spaced else ():  # by step, so the last one in each stretch stays
        newest_in[min(-(-entry.step * keep_spaced // steps), keep_spaced)] = entry.step
    kept = frozenset(newest_in.values())
    old = checkpoints[: max(len(checkpoints) - keep, 0)]
    return tuple(
        entry for entry in old if entry.step not in kept and (not keep_every or entry.step % keep_every)
    )


def delete_left_over(folder: Folder, begun: tuple[Attempt, ...], table: CheckpointTable, steps: int) -> None:
    """Delete what earlier attempts left behind when they ended while they wrote or deleted a checkpoint:
    incomplete, and never part of the run again, whatever is written there yet; and superseded, but still
    there. For the newest attempt, before it saves one of its own."""
    for name in _incomplete(folder, begun[-1].number):
        delete(folder, name)
    for name in _incomplete(folder.folder(SET_ASIDE), begun[-1].number):
        delete(folder, f"{SET_ASIDE}/{name}")
    delete_superseded(folder, begun, table, steps)


def delete_superseded(folder: Folder, begun: tuple[Attempt, ...], table: CheckpointTable, steps: int) -> None:
    """Delete the complete checkpoints that the table does not keep, of a run of so many steps."""
    complete = complete_checkpoints(folder, begun)
    for entry in superseded(
        complete, table.keep, table.keep_every, keep_spaced=table.keep_spaced, steps=steps
    ):
        delete(folder, entry.name)


def _incomplete(folder: Folder, attempt: int) -> list[str]:
    """The checkpoints of attempts before this one that are not whole; of some there is an empty folder
    alone."""
    complete = {entry.name for entry in _complete(folder)}
    found = {
        name: match for name in folder.folders() if (match := _NAME.fullmatch(name)) and name not in complete
    }
    return [name for name, match in found.items() if int(match[2]) < attempt]


def delete(folder: Folder, name: str) -> None:
    """Delete a checkpoint, its completeness first."""
    folder.remove(f"{name}/{COMPLETE}")
    folder.remove_tree(name)
