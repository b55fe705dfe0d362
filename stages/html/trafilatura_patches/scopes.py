"""Functions of trafilatura in which names stand for something else."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any


def in_scope(function: Any, **names: Any) -> Callable[..., Any]:
    """The function with these names instead of those that its module has now."""
    scope = {**function.__globals__, **names}
    return FunctionType(
        function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
    )
