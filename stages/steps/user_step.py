"""A step of the user's own: a function `Document -> Document | Rejection`, named "package.module:function"."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from lineage.recipe import RecipeError
from stages.document import Document, Finding, Outcome, Rejection

_TEXTS = ("text", "url", "record_id", "captured_at", "metadata", "charset", "language")
"""Fields of a Document that a column of texts takes; all but `text` may be None."""
_IDENTITY = ("doc_id", "source", "place", "raw_hash")
"""Fields of a Document that say which one it is: a user's function leaves them."""


class UserStep:
    """Calls the user's function. Its stage in lineage is the given name.

    TypeError or ValueError for an answer that is neither of the two, is about another document, or cannot be stored;
    the chain makes of it, and of whatever the function raises, a rejection of rule `<stage>.error`."""

    def __init__(self, name: str) -> None:
        self.stage = name
        self._function = _find_function(name)

    def __call__(self, document: Document, /) -> Outcome:
        outcome = self._function(document)
        if not isinstance(outcome, (Document, Rejection)):
            raise TypeError(f"{self.stage} gave a {type(outcome).__name__}: expected the document or its Rejection")
        left = outcome.document if isinstance(outcome, Rejection) else outcome
        _check_document(self.stage, document, left)
        if isinstance(outcome, Document):
            return outcome
        _check_finding(self.stage, outcome.finding)
        return replace(
            outcome, finding=replace(outcome.finding, stage=self.stage, rejected=True), findings=(), fault=None
        )


def function_files(steps: Sequence[str]) -> list[str]:
    """The source files of the user's functions among `steps`: they shape a result as the recipe does. RecipeError where
    there is no such module."""
    files = set()
    for name in steps:
        module_name, colon, _ = name.partition(":")
        if not colon:
            continue
        _see_working_folder()
        try:
            spec = importlib.util.find_spec(module_name)
        except (ImportError, ValueError) as error:
            raise RecipeError(f"source.steps: {name!r}: there is no module {module_name!r} ({error})") from error
        if spec is None:
            raise RecipeError(f"source.steps: {name!r}: there is no module {module_name!r}")
        if spec.origin:
            files.add(spec.origin)
    return sorted(files)


def _see_working_folder() -> None:
    """Let the user's modules beside the recipe be found: a console script does not look where it was called."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)


def _find_function(name: str) -> Callable[[Document], object]:
    module_name, _, attribute = name.partition(":")
    _see_working_folder()
    try:
        function: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            function = getattr(function, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise RecipeError(
            f"source.steps: {name!r} cannot be found ({error}); expected 'package.module:function', importable here"
        ) from error
    if not callable(function):
        raise RecipeError(f"source.steps: {name!r} is a {type(function).__name__}, not a function of a Document")
    return function


def _check_document(stage: str, given: Document, left: Document) -> None:
    """TypeError or ValueError unless `left` is the given document, and every table can hold it."""
    if any(getattr(left, name) != getattr(given, name) for name in _IDENTITY):
        raise ValueError(f"{stage} gave another document than it was called with: change its text and leave its id")
    for name in _TEXTS:
        _check_text(stage, name, getattr(left, name), optional=name != "text")
    score = left.language_score
    if score is not None and not isinstance(score, (int, float)):
        raise TypeError(f"{stage} gave language_score a {type(score).__name__}: expected a number or None")


def _check_finding(stage: str, finding: Finding) -> None:
    _check_text(stage, "rule", finding.rule, optional=False)
    for name, value in (("value", finding.value), ("threshold", finding.threshold)):
        if value is not None and not isinstance(value, (int, float)):
            raise TypeError(f"{stage} gave {name} of its finding a {type(value).__name__}: expected a number or None")


def _check_text(stage: str, name: str, value: object, *, optional: bool) -> None:
    if value is None and optional:
        return
    if not isinstance(value, str):
        raise TypeError(f"{stage} gave {name} a {type(value).__name__}: expected a text")
    if not value.isascii():
        value.encode("utf-8")  # UnicodeEncodeError, a ValueError, for a lone surrogate
