"""A step of the user's own: a function `Document -> Document | Rejection`, named "package.module:function"."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from lineage.recipe import RecipeError
from stages.document import Document, Finding, Outcome, Rejection

_LOG = logging.getLogger(__name__)


class UserStep:
    """Calls the user's function. Its stage in lineage is the given name.

    Whatever it raises on a document, and an answer that is neither of the two or is about another document, is a
    rejection of rule `<stage>.error`: logged and counted, never a lost run."""

    def __init__(self, name: str) -> None:
        self.stage = name
        self._function = _find_function(name)

    def __call__(self, document: Document, /) -> Outcome:
        try:
            outcome = self._function(document)
        except Exception:  # noqa: BLE001 - it is the user's code: anything may come out of it
            _LOG.warning("%s raised on document %s", self.stage, document.doc_id.hex(), exc_info=True)
            return self._error(document)
        if isinstance(outcome, Rejection) and outcome.document.doc_id == document.doc_id:
            return replace(outcome, finding=replace(outcome.finding, stage=self.stage, rejected=True))
        if isinstance(outcome, Document) and outcome.doc_id == document.doc_id and _is_unicode(outcome.text):
            return outcome
        _LOG.warning(
            "%s gave a %s for document %s: expected the document itself, its text in valid Unicode, or its rejection",
            self.stage,
            type(outcome).__name__,
            document.doc_id.hex(),
        )
        return self._error(document)

    def _error(self, document: Document) -> Rejection:
        return Rejection(
            document=document, finding=Finding(stage=self.stage, rule=f"{self.stage}.error", rejected=True)
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


def _is_unicode(text: object) -> bool:
    """Whether UTF-8 can hold a text: whether it has no lone surrogate."""
    try:
        return isinstance(text, str) and (text.isascii() or bool(text.encode("utf-8")))
    except UnicodeEncodeError:
        return False
