"""The steps of a source, in order, as one callable: `chain(document)` is a Document or a Rejection.

`build_chain(steps, tables)` checks the list and makes the chain; models and lists load when they are first needed, so
it is cheap, and a chain travels between processes as its specification."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from lineage.recipe import RecipeError
from stages.document import STAGES, Document, Finding, Outcome, Rejection, Step
from stages.language import LanguageStep, LanguageTable
from stages.parse import ParseStep, ParseTable
from stages.url import UrlStep, UrlTable

if TYPE_CHECKING:
    from stages.quality.options import QualityTable

_LOG = logging.getLogger(__name__)

DEFAULT_STEPS: Final = STAGES
"""What `steps` is where the recipe names none. A step that its table switches off (`language.prefilter = false`, no
classifier, nothing to decontaminate against, no kinds of personal data) is left out of the chain and of lineage."""

CORPUS_STAGES: Final = ("identity", "dedup.url", "dedup.exact", "dedup.near")
"""Stages that compare documents: they may stand in `steps`, after all others, and are not part of a chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTables:
    """Everything of a recipe that the steps of a chain need. Picklable."""

    max_document_bytes: int
    url: UrlTable = field(default_factory=UrlTable)
    parse: ParseTable = field(default_factory=ParseTable)
    language: LanguageTable = field(default_factory=LanguageTable)
    quality: QualityTable | None = None


def build_chain(steps: Sequence[str], tables: StepTables) -> Chain:
    """The chain of these steps; RecipeError names a step that is unknown, repeated or out of order."""
    check_steps(steps)
    return Chain(steps, tables)


def check_steps(steps: Sequence[str]) -> None:
    """RecipeError unless `steps` is a list that a source can have: known names, each once, in the order of STAGES,
    user functions anywhere before the stages that compare documents, and `parse`, which gives a document its text."""
    seen: list[str] = []
    for name in steps:
        if name in seen:
            raise RecipeError(f"source.steps names {name!r} twice: a step runs once")
        if name not in STAGES and ":" not in name:
            raise RecipeError(
                f"source.steps: unknown step {name!r}; known are {', '.join(STAGES)}, or a function of yours as "
                "'package.module:function'"
            )
        seen.append(name)
    places = [STAGES.index(name) if name in STAGES else -1 for name in steps]
    built_in = [place for place in places if place >= 0]
    if built_in != sorted(built_in):
        right = [STAGES[place] for place in sorted(built_in)]
        raise RecipeError(f"source.steps: {list(steps)} is out of order; built-in steps run as {right}")
    first_corpus = STAGES.index("identity")
    if any(place < 0 and max(places[:i], default=-1) >= first_corpus for i, place in enumerate(places)):
        raise RecipeError("source.steps: a function of yours stands after 'identity': what compares documents is last")
    if "parse" not in steps:
        raise RecipeError(f"source.steps: {list(steps)} has no 'parse', and without it no document has a text")


class Chain:
    """The steps of a source. `stages` are their names, in order, as they show up in lineage."""

    def __init__(self, steps: Sequence[str], tables: StepTables) -> None:
        self._specification = (tuple(steps), tables)
        self.stages: tuple[str, ...] = tuple(name for name in steps if _is_on(name, tables))

    def __reduce__(self) -> tuple[Callable[..., Chain], tuple[object, ...]]:
        return build_chain, self._specification

    def __call__(self, document: Document) -> Outcome:
        for step in self.steps:
            outcome = step(document)
            if isinstance(outcome, Rejection):
                return outcome
            document = outcome
        return document

    def run(self, document: Document, seconds: dict[str, float]) -> Outcome:
        """As calling the chain; the time that each step took is added to `seconds[stage]`."""
        for step in self.steps:
            begun = time.perf_counter()
            outcome = step(document)
            seconds[step.stage] = seconds.get(step.stage, 0.0) + time.perf_counter() - begun
            if isinstance(outcome, Rejection):
                return outcome
            document = outcome
        return document

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The steps themselves, made when first needed."""
        _, tables = self._specification
        return tuple(_make(name, tables) for name in self.stages)


def _is_on(name: str, tables: StepTables) -> bool:
    if name in CORPUS_STAGES or name in ("classifier", "decontaminate", "pii", "prefilter"):
        return False
    return name != "quality" or tables.quality is not None


def _make(name: str, tables: StepTables) -> Step:
    ledger = tables.quality is not None and tables.quality.ledger == "all"
    if name == "url":
        return UrlStep(tables.url, tables.max_document_bytes, ledger=ledger)
    if name == "parse":
        return ParseStep(tables.parse, tables.max_document_bytes, ledger=ledger)
    if name == "language":
        return LanguageStep(tables.language, ledger=ledger)
    if name == "quality" and tables.quality is not None:
        from stages.quality.step import quality_step

        return quality_step(tables.quality, tables.language.keep)
    return UserStep(name)


class UserStep:
    """A function of the user's, `Document -> Document | Rejection`, named "package.module:function".

    Its stage in lineage is that name. Whatever it raises on a document, and an answer that is neither of the two or
    is about another document, is a rejection of rule `<stage>.error`: counted, never a lost run."""

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
        if isinstance(outcome, Document) and outcome.doc_id == document.doc_id:
            return outcome
        _LOG.warning("%s gave %r for document %s", self.stage, type(outcome), document.doc_id.hex())
        return self._error(document)

    def _error(self, document: Document) -> Rejection:
        return Rejection(
            document=document, finding=Finding(stage=self.stage, rule=f"{self.stage}.error", rejected=True)
        )


def _find_function(name: str) -> Callable[[Document], object]:
    module_name, _, attribute = name.partition(":")
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
