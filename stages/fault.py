"""An exception that reading or a step raised on one record, as data: what it was and where in the code it
arose."""

from __future__ import annotations

import os
import sysconfig
import traceback
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Final

_MOST_FRAMES: Final = 20
_MOST_CHARS: Final = 8_000
_MESSAGE_CHARS: Final = 500
_CALLERS: Final = frozenset(
    {
        "stages.chain",
        "stages.steps.user.user_step",
        "stages.steps.model_step",
        "stages.steps.purged",
        "contextlib",
    }
)
"""Modules that only call what raised: a traceback is about what they called."""
_LIBRARIES: Final = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`error` is the exception's type and `where` the line, of code that is not a library's, that it passed
    last: both are the same on every machine. `traceback` holds frames and types only.

    `message` is what the exception says. It may quote the page, so it is shown to who waits for the run, and
    never kept in a finished output."""

    error: str
    where: str
    traceback: str
    message: str

    @property
    def summary(self) -> str:
        """Type and place, without a word of the page."""
        return f"{self.error} at {self.where}"

    @classmethod
    def of(cls, error: BaseException) -> Fault:
        """The fault that an exception in flight is."""
        return cls(
            error=_name(error),
            where=_where(error),
            traceback="\n".join(_lines(error))[-_MOST_CHARS:],
            message=_message(error),
        )


def _name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str(error)[:_MESSAGE_CHARS].encode("utf-8", "backslashreplace").decode()
    except Exception as in_turn:  # noqa: BLE001 - an exception of the user's: its __str__ may raise anything
        return f"(its message cannot be had: {type(in_turn).__name__})"


def _where(error: BaseException) -> str:
    called = _called_frames(error.__traceback__)
    own = [each for each in called if not _is_library(each[0])]
    if not called:
        return "no line"
    frame, line = (own or called)[-1]
    return f"{_module(frame)}, line {line}, in {frame.f_code.co_name}"


def _is_library(frame: FrameType) -> bool:
    """Whether the frame is of an installed library; Cython names a file by its path below the library's
    folder."""
    file = frame.f_code.co_filename
    ours = _module(frame).partition(".")[0] == __name__.partition(".")[0]
    return file.startswith((*_LIBRARIES, "<")) or not (ours or os.path.isabs(file))


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "?"))


def _lines(error: BaseException) -> list[str]:
    """The traceback without messages, the cause first, as Python prints it."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    lines = [*_lines(before), "which led to"] if before is not None and before is not error else []
    frames = _called_frames(error.__traceback__)
    dropped = [f"  ... {len(frames) - _MOST_FRAMES} frames"] if len(frames) > _MOST_FRAMES else []
    shown = traceback.StackSummary.extract(iter(frames[-_MOST_FRAMES:]))
    return [*lines, *dropped, *(line.rstrip("\n") for line in shown.format()), _name(error)]


def _called_frames(trace: TracebackType | None) -> list[tuple[FrameType, int]]:
    frames = list(traceback.walk_tb(trace))
    return [each for each in frames if _module(each[0]) not in _CALLERS] or frames
