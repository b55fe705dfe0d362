"""The recorders of an attempt: what its output holds, and what lies in this node's memory still."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lineage.storage.folder import Folder
from trainer.recorder.files import FOLDER, RING, STACKS, left_over
from trainer.recorder.ring import RingContent, RingError, read_ring

_NAME: Final = re.compile(rf"{FOLDER}/(\d+)/rank-(\d+)(\{RING}|\{STACKS})")


class NoRecorderError(ValueError):
    """An output holds no recorder that could be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorders:
    """Of one attempt: rings and stacks by rank, and why a file could not be read, by its name."""

    attempt: int
    rings: Mapping[int, RingContent]
    stacks: Mapping[int, str]
    unreadable: Mapping[str, str]


def read_recorders(output: Folder, attempt: int | None = None) -> Recorders:
    """Those of `attempt`, or of the newest attempt that left any. NoRecorderError where there are none."""
    # In the node's memory is what a process that still runs, or was killed, knows: newer than what it
    # published.
    near = left_over(output)
    matches = [match for name in {*output.names(FOLDER), *near} if (match := _NAME.fullmatch(name))]
    attempts = {int(match[1]) for match in matches}
    if not attempts:
        raise NoRecorderError(
            f"{output.url} holds no recorder: an attempt publishes it when its watchdog acts, on SIGUSR2,"
            " where it fails and at its end, unless train.recorder.operations = 0"
        )
    chosen = max(attempts) if attempt is None else attempt
    if chosen not in attempts:
        known = ", ".join(map(str, sorted(attempts)))
        raise NoRecorderError(f"attempt {chosen} of {output.url} left no recorder: expected one of {known}")
    rings: dict[int, RingContent] = {}
    stacks: dict[int, str] = {}
    unreadable: dict[str, str] = {}
    for match in sorted((each for each in matches if int(each[1]) == chosen), key=lambda each: each[0]):
        name, rank = match[0], int(match[2])
        data = near[name] if name in near else output.read(name)
        if match[3] == STACKS:
            stacks[rank] = data.decode(errors="replace")
            continue
        try:
            rings[rank] = read_ring(data)
        except RingError as error:
            unreadable[name] = str(error)
    if not rings:
        raise NoRecorderError(
            f"attempt {chosen} of {output.url}: {'; '.join(unreadable.values()) or 'no ring'}"
        )
    return Recorders(attempt=chosen, rings=rings, stacks=stacks, unreadable=unreadable)
