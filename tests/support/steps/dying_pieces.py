"""Units that give pieces, and work on pieces, whose processes die: found by name, by workers too."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

from pipeline.cluster.pieces import UnitEnd


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def three(folder: str, item: int) -> Iterator[int | UnitEnd]:
    """Three pieces of a unit."""
    yield from (10 * item + number for number in range(3))
    yield UnitEnd("whole")


def three_and_die(folder: str, item: int) -> Iterator[int | UnitEnd]:
    """The same; of unit 1 the process dies behind the second."""
    for number in range(3):
        Path(folder, f"piece-{item}-{number}").touch()
        yield 10 * item + number
        if item == 1 and number == 1:
            _die()
    yield UnitEnd("whole")


def three_and_fail(folder: str, item: int) -> Iterator[int | UnitEnd]:
    """The same; unit 1 raises behind the second."""
    for number in range(3):
        yield 10 * item + number
        if item == 1 and number == 1:
            raise KeyError("unit 1")
    yield UnitEnd("whole")


def num_pieces(folder: str, item: int) -> int:
    """The pieces that earlier tries gave."""
    return sum(1 for _ in Path(folder).glob(f"piece-{item}-*"))


def add_one(folder: str, piece: int) -> int:
    """Work on a piece."""
    return piece + 1


def die_of_eleven(folder: str, piece: int) -> int:
    """Work of which the process dies for one piece."""
    if piece == 11:
        _die()
    return piece


def die_of_each_once(folder: str, piece: int) -> int:
    """Work of which the process dies on the first try of each piece."""
    scar = Path(folder, f"scar-{piece}")
    if not scar.exists():
        scar.touch()
        _die()
    return piece


def num_deaths(folder: str, piece: int) -> int:
    """The tries that began before this one, less the first."""
    before = sum(1 for _ in Path(folder).glob(f"try-{piece}-*"))
    Path(folder, f"try-{piece}-{uuid.uuid4().hex}").touch()
    return before
