"""Keeps a patch's own fault apart from a page's: trafilatura and its callers take most exceptions for odd
pages."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_OURS: Final = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


class PatchFault(BaseException):
    """A patch raised by itself; the cause is what it raised."""


def own_fault(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, a patch or our call of what is patched, whose own exceptions are a PatchFault. Those of the
    libraries that it calls stay as they are, and so do those of a page that is too large or too deep for the
    process."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:
            raise_as_own(error)
            raise

    return guarded


def raise_as_own(error: Exception) -> None:
    """PatchFault if a patch raised this itself. For a patch that is asked so often that `own_fault`'s call would
    count."""
    where = _own_line(error)
    if where is not None:
        raise PatchFault(f"our patch of trafilatura is broken at {where}") from error


def _own_line(error: BaseException) -> str | None:
    """Where in this package an exception was raised; None if it came from elsewhere."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return None
    file = os.path.abspath(trace.tb_frame.f_code.co_filename)
    return f"{os.path.basename(file)}:{trace.tb_lineno}" if file.startswith(_OURS) else None
