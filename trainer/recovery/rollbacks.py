"""A run that goes back to an earlier checkpoint: what was asked for, written down before anything is done.

  rollbacks/00001.json    back to which checkpoint, and why; the next attempt carries it out and says so (`Attempt`)
  rollbacks/00001.ended   the run has done all its steps since

So a call that is killed at any point goes on: a rollback that no attempt has carried out is carried out by
the next start of any kind, and one that an attempt has carried out is never carried out again. No torch here.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Final

from lineage.json_record import JsonRecord
from lineage.storage.folder import Folder
from trainer.attempts import Attempt

_FOLDER: Final = "rollbacks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback(JsonRecord):
    """Back to `step` steps done: to the folder `checkpoint` that attempt `parent` made, or to the first
    weights where it is None. `purges`: what is to be forgotten, none where the step was named. `call`: a hash
    of recipe and content, by which the same call is known again. `left_out`: [first, last] sequence numbers
    that were skipped in a row, for which the run went back by itself and which it leaves out from then on."""

    number: int
    step: int
    checkpoint: str | None
    parent: int | None
    purges: tuple[str, ...] = ()
    call: str = ""
    left_out: tuple[tuple[int, int], ...] = ()


def record_rollback(output: Folder, rollback: Rollback) -> Rollback:
    """Write a rollback down, durably, under the next free number (the one that it has is not used)."""
    # As for attempts: creating the file decides between two calls at once, so neither overwrites the other's.
    number = max((known.number for known in rollbacks(output)), default=0) + 1
    while True:
        numbered = dataclasses.replace(rollback, number=number)
        data = json.dumps(numbered.to_json(), sort_keys=True).encode()
        if output.publish_new(f"{_FOLDER}/{number:05d}.json", data):
            return numbered
        number += 1


def rollbacks(output: Folder) -> tuple[Rollback, ...]:
    """Every rollback that was asked for, by number."""
    names = (name for name in output.names(_FOLDER) if name.endswith(".json"))
    return tuple(Rollback.from_json(json.loads(output.read(name))) for name in names)


def newest_rollback(output: Folder) -> Rollback | None:
    """The last one that was asked for."""
    known = rollbacks(output)
    return known[-1] if known else None


def pending_rollback(output: Folder, begun: tuple[Attempt, ...]) -> Rollback | None:
    """The last one, where no attempt has carried it out yet."""
    last = newest_rollback(output)
    return None if last is None or is_carried_out(last, begun) else last


def is_carried_out(rollback: Rollback, begun: tuple[Attempt, ...]) -> bool:
    """Whether an attempt has begun from where the rollback leads."""
    return any(attempt.rollback == rollback.number for attempt in begun)


def end_rollbacks(output: Folder, begun: tuple[Attempt, ...], attempt: int) -> None:
    """Say that the run has done all its steps since its last rollback: `attempt` has, of those that have
    begun."""
    last = newest_rollback(output)
    if last is not None and any(each.rollback == last.number and each.number <= attempt for each in begun):
        output.publish(f"{_FOLDER}/{last.number:05d}.ended", b"")


def has_ended(output: Folder, rollback: Rollback) -> bool:
    """Whether the run has done all its steps since."""
    return output.exists(f"{_FOLDER}/{rollback.number:05d}.ended")
