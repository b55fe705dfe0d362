"""Where a rank was: the stacks that Python's faulthandler wrote, of which the last of its stepping thread
counts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_THREAD: Final = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+).*\(most recent call first\)")
_FRAME: Final = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_PACKAGE: Final = Path(__file__).parents[2]
_RECORDING: Final = ("trainer/recorder/operations.py", "trainer/recorder/recorder.py")
"""Frames of these lie around every collective, and say nothing of where a rank is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A line that was being executed."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The stack of a thread, innermost frame first; `why`: for what reason it was written, empty for a
    signal."""

    frames: tuple[Frame, ...]
    why: str

    @property
    def in_trainer(self) -> Frame | None:
        """The innermost frame that is the trainer's own."""
        return next((frame for frame in self.frames if frame.file.startswith("trainer/")), None)


def last_stack(text: str, thread: int) -> Stack | None:
    """The last stack of a thread in what was written; None where there is none."""
    why, found, inside = "", None, False
    frames: list[Frame] = []
    for line in text.splitlines():
        if line.startswith("== "):
            why, inside = line.removeprefix("== "), False
        elif match := _THREAD.match(line):
            inside = int(match[1], 16) == thread
            if inside:
                frames = []
                found = (why, frames)
        elif inside and (match := _FRAME.match(line)) and _shown(match[1]) not in _RECORDING:
            frames.append(Frame(file=_shown(match[1]), line=int(match[2]), function=match[3]))
    return None if found is None else Stack(frames=tuple(found[1]), why=found[0])


def _shown(path: str) -> str:
    _, found, module = path.rpartition("/trainer/")
    if found and (_PACKAGE / module).is_file():
        return f"trainer/{module}"
    return path.rsplit("/site-packages/", 1)[-1]
