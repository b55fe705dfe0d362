"""Which attempt of a run may publish: numbers claimed atomically in the output, and where each began.

An attempt is one start of the training processes. It claims the next number, then writes down the checkpoint
it goes on from. From then on older attempts publish nothing that counts: a checkpoint of attempt a at step t
is part of the run only if every later attempt began at step t or after it. So a process that outlives its
attempt can write without being read; the check before publishing only spares the work. No torch here."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from lineage.json_record import JsonRecord
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.trace.attempt_line import AttemptStart, line_to

FORMAT: Final = 1
"""Of all files in the output of a run. Each attempt writes it down where it begins; another is refused."""
_FOLDER: Final = "attempts"
_ASK_EVERY_SECONDS: Final = 5.0


class FencedOutError(RuntimeError):
    """A later attempt of the run has begun: this one must end without publishing."""


class TrainingStoppedError(RuntimeError):
    """The run ended itself for a reason that trying again does not mend; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedCheckpoint:
    """A checkpoint that an attempt would have begun from, and what is wrong with it."""

    name: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(JsonRecord):
    """One start: its number from 1, the step it began at and the attempt that made the checkpoint it began
    from; `rollback`: the number of the one that it carried out (`recovery/rollbacks.py`); `began_at`: when
    its first process began, seconds since the epoch; `damaged`: newer checkpoints, before which it went
    back."""

    number: int
    first_step: int
    parent: int | None
    began_at: float
    rollback: int | None = None
    damaged: tuple[DamagedCheckpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd(JsonRecord):
    """How an attempt ended that could say so: seconds since the epoch; `saving_seconds` of its end went into
    waiting for its last checkpoint."""

    at: float
    how: Literal["finished", "stopped", "failed"]
    saving_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """Who claims a number where processes are replaced in place: a generation of the processes of a launch. One
    of an earlier generation claims nothing any more: it was stopped, and woke up when another had its rank."""

    launch: str
    generation: int


def claim(output: Folder, claimant: Claimant | None = None) -> int:
    """Claim the next number; atomic, so two claimants never share one. FencedOutError where a later
    generation of the claimant's launch has claimed one."""
    # The listing may be stale; creating the file decides. A turn that fails met a claim, so the next number is tried.
    number = max(_claimed(output), default=0)
    while True:
        if number and claimant is not None:
            _claimed_by(output, number, claimant)
        number += 1
        if output.publish_new(_claim_file(number), _claim_row(claimant)):
            return number


def claim_next(output: Folder, number: int, claimant: Claimant) -> int:
    """Claim a number after attempt `number` of the claimant's launch, which goes on in place. FencedOutError
    where another launch, or a later generation of this one, has claimed one; a number that this launch
    claimed and lost the claimant of is passed over."""
    while True:
        number += 1
        if output.publish_new(_claim_file(number), _claim_row(claimant)):
            return number
        if not _claimed_by(output, number, claimant):
            raise FencedOutError(_superseded(number - 1, output))


def _claim_file(number: int) -> str:
    return f"{_FOLDER}/{number:05d}.claim"


def _claim_row(claimant: Claimant | None) -> bytes:
    return json.dumps({} if claimant is None else dataclasses.asdict(claimant)).encode()


def _claimed_by(output: Folder, number: int, claimant: Claimant) -> bool:
    """Whether the claimant's launch has claimed that number; FencedOutError where a later generation of it
    has."""
    row = json.loads(output.read(_claim_file(number)))
    if row.get("launch") != claimant.launch:
        return False
    if row["generation"] > claimant.generation:
        raise FencedOutError(
            f"generation {claimant.generation} of the processes of {output.url} has been superseded by"
            f" generation {row['generation']}: a process of it that wakes up claims nothing"
        )
    return True


def steps_on_line(output: Folder, attempt: Attempt, since: int) -> list[tuple[int, range]]:
    """The attempts that lead to one that begins now, each with the steps from `since` on that it did, the
    newest first."""
    if attempt.parent is None:
        return []
    begun = attempts(output)
    first = {each.number: each.first_step for each in begun}
    line = line_of_attempts(begun, attempt.parent, attempt.first_step)
    return [
        (number, range(max(first[number], since), end))
        for number, end in line
        if number in first and max(first[number], since) < end
    ]


def line_of_attempts(begun: Iterable[Attempt], attempt: int, step: int) -> list[tuple[int, int]]:
    """As of `line_to`, the attempts that lead to the checkpoint of `step` steps that `attempt` made."""
    known = {each.number: AttemptStart(each.first_step, each.parent) for each in begun}
    return list(line_to(known, attempt, step))


def begin(output: Folder, attempt: Attempt) -> None:
    """Write down where a claimed attempt begins."""
    row = attempt.to_json() | {"format": FORMAT}
    output.publish(f"{_FOLDER}/{attempt.number:05d}.json", json.dumps(row).encode())


def end(output: Folder, number: int, ended: AttemptEnd) -> None:
    """Write down how an attempt ended, unless that stands there already: what its first process to end says
    holds."""
    output.publish_new(f"{_FOLDER}/{number:05d}.ended", json.dumps(ended.to_json()).encode())


def attempt_ends(output: Folder) -> dict[int, AttemptEnd]:
    """How attempts ended, by number; of a killed one nothing is known."""
    found = {}
    for name in output.names(_FOLDER):
        if name.endswith(".ended"):
            number = int(name.rsplit("/", 1)[-1].removesuffix(".ended"))
            found[number] = AttemptEnd.from_json(json.loads(output.read(name)))
    return found


def attempts(output: Folder) -> tuple[Attempt, ...]:
    """Every attempt that has begun, by number. RecipeError where the run's output has another format."""
    found = []
    for name in output.names(_FOLDER):
        if name.endswith(".json"):
            row = json.loads(output.read(name))
            if (written := row.pop("format", None)) != FORMAT:
                raise RecipeError(
                    f"{output.url} is the output of a training run in format {written}, this version reads"
                    f" {FORMAT}: train again into another train.output, or use the version that wrote it"
                )
            found.append(Attempt.from_json(row))
    return tuple(found)


def check_fence(output: Folder, number: int) -> None:
    """FencedOutError if a later attempt than `number` has claimed the run."""
    # Numbers are claimed without gaps, so the next one tells of all: one request, whatever the number of attempts.
    if output.exists(_claim_file(number + 1)):
        raise FencedOutError(_superseded(number, output))


def _superseded(number: int, output: Folder) -> str:
    return f"attempt {number} of {output.url} has been superseded: it ends without publishing"


class Fence:
    """`check_fence` for every step: an object store is asked every few seconds only."""

    def __init__(self, output: Folder, number: int) -> None:
        self._output = output
        self._number = number
        self._asked = -_ASK_EVERY_SECONDS

    def check(self) -> None:
        """FencedOutError if a later attempt has claimed the run."""
        now = time.monotonic()
        if not self._output.is_remote or now - self._asked >= _ASK_EVERY_SECONDS:
            self._asked = now
            check_fence(self._output, self._number)


def counts(step: int, attempt: int, begun: tuple[Attempt, ...]) -> bool:
    """Whether what `attempt` published at `step` is part of the run."""
    return all(step <= later.first_step for later in begun if later.number > attempt)


def _claimed(output: Folder) -> list[int]:
    names = (name.rsplit("/", 1)[-1] for name in output.names(_FOLDER))
    return [int(name.removesuffix(".claim")) for name in names if name.endswith(".claim")]


def record_failure(output: Folder, rank: int, message: str) -> None:
    """Keep why a process of the newest attempt ended, for people and for `failures`."""
    number = max(_claimed(output), default=0)
    output.publish(f"{_FOLDER}/{number:05d}.rank-{rank:05d}.error", message.encode())
    end(output, number, AttemptEnd(at=time.time(), how="failed"))


def failures(output: Folder) -> dict[tuple[int, int], str]:
    """What `record_failure` kept, by (attempt, rank)."""
    found = {}
    for name in output.names(_FOLDER):
        attempt, _, rank = name.rsplit("/", 1)[-1].removesuffix(".error").partition(".rank-")
        if name.endswith(".error"):
            found[int(attempt), int(rank)] = output.read(name).decode()
    return found
