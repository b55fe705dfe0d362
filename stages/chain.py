"""The steps of a source, in order, as one callable: `chain(document)` is a Document or a Rejection.

`build_chain(steps, tables)` checks the list and makes the chain; models and lists load when they are first
needed, so it is cheap, and a chain travels between processes as its specification."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Final, Protocol, runtime_checkable

from lineage.recipe import RecipeError
from stages.document import Document, Finding, Outcome, Rejection, Step, error_rule
from stages.fault import Fault
from stages.html.extraction import BrokenPatchError
from stages.html.extraction_child import IsolatedExtraction, processor_seconds
from stages.html.page import PageReader
from stages.steps.catalogue import CORPUS_STAGES, STAGES, StepInputs, StepTables, spec_of
from stages.steps.classifier import check_classifiers
from stages.steps.model_step import ModelStep
from stages.steps.purged import PurgeFilter

DEFAULT_STEPS: Final = STAGES
"""What `steps` is where the recipe names none. A step that its table switches off (`language.prefilter =
false`, no classifier, no benchmark to look for, no kinds of personal data) is left out of the chain
and of lineage."""

_TOGETHER: Final = 256
_MOST_CHARS: Final = 16 << 20
"""Documents, and characters of their texts, that steps after parse wait for."""


def build_chain(steps: Sequence[str], tables: StepTables) -> Chain:
    """The chain of these steps; RecipeError names a step that is unknown, repeated or out of order."""
    check_steps(steps)
    check_classifiers(tables.classifier)
    return Chain(steps, tables)


def check_steps(steps: Sequence[str]) -> None:
    """RecipeError unless `steps` is a list that a source can have: known names, each once, in the order of
    STAGES, user functions anywhere before the stages that compare documents, and `parse`, which gives a
    document its text."""
    seen: list[str] = []
    for name in steps:
        if name in seen:
            raise RecipeError(f"source.steps names {name!r} twice: a step runs once")
        if name not in STAGES and ":" not in name:
            raise RecipeError(
                f"source.steps: unknown step {name!r}; known are {', '.join(STAGES)}, or a function of yours"
                " as 'package.module:function'"
            )
        seen.append(name)
    places = [STAGES.index(name) if name in STAGES else -1 for name in steps]
    built_in = [place for place in places if place >= 0]
    if built_in != sorted(built_in):
        right = [STAGES[place] for place in sorted(built_in)]
        raise RecipeError(f"source.steps: {list(steps)} is out of order; built-in steps run as {right}")
    first_corpus = STAGES.index("identity")
    if any(place < 0 and max(places[:i], default=-1) >= first_corpus for i, place in enumerate(places)):
        raise RecipeError(
            "source.steps: a function of yours stands after 'identity': what compares documents is last"
        )
    if "parse" not in steps:
        raise RecipeError(
            f"source.steps: {list(steps)} has no 'parse', and without it no document has a text"
        )


@runtime_checkable
class _Prepares(Protocol):
    def prepare(self) -> None: ...


@runtime_checkable
class _HasModels(Protocol):
    def models(self, position: int, /) -> tuple[ModelStep, ...]: ...


@runtime_checkable
class _LooksAhead(Protocol):
    def look_ahead(self, documents: Iterable[Document], /) -> list[Document]: ...


class Chain:
    """The steps of a source. `stages` are their names, in order, as they show up in lineage."""

    def __init__(self, steps: Sequence[str], tables: StepTables) -> None:
        self._specification = (tuple(steps), tables)
        self.stages: tuple[str, ...] = tuple(
            name for name in steps if name not in CORPUS_STAGES and spec_of(name).is_on(tables)
        )
        after_parse = self.stages.index("parse") + 1
        self._reading, self._judging = slice(after_parse), slice(after_parse, None)
        self._pages = PageReader(tables.parse.bounds(tables.max_document_bytes), tables.parse.timeout_seconds)

    def __reduce__(self) -> tuple[Callable[..., Chain], tuple[object, ...]]:
        return build_chain, self._specification

    def __call__(self, document: Document) -> Outcome:
        return next(self.run([[document]], {}))

    def run(
        self,
        batches: Iterable[Sequence[Document]],
        seconds: dict[str, float],
        parsed: Callable[[Document], None] | None = None,
        stop: int | None = None,
    ) -> Iterator[Outcome]:
        """What calling the chain gives for each document, in order; the processor time that each step took is added to
        `seconds[stage]`. `payload` is empty in what comes out, unless a function of the user's stands after
        parse. `parsed` sees each document that parse let pass, in order, before the steps after it. With
        `stop`, a position after parse, only the steps before it are run.

        Each step sees many documents before the next step sees any, so that its tables stay in the
        processor's caches: up to parse those of one batch, and no more pages are held than it has; after it,
        where texts are all there is, those of several."""
        read: list[Outcome] = []
        num_chars = 0
        judging = slice(self._judging.start, stop)
        needs_payload = any(":" in name for name in self.stages[judging])
        for documents in batches:
            outcomes = self._pass(self._reading, list(documents), seconds)
            if parsed is not None:
                for outcome in outcomes:
                    if isinstance(outcome, Document):
                        parsed(outcome)
            read += outcomes if needs_payload else map(_without_payload, outcomes)
            num_chars += sum(map(_num_chars, outcomes))
            if needs_payload or len(read) >= _TOGETHER or num_chars >= _MOST_CHARS:
                yield from self._pass(judging, read, seconds)
                read, num_chars = [], 0
        yield from self._pass(judging, read, seconds)

    @cached_property
    def models(self) -> tuple[ModelStep, ...]:
        """The models of the chain that run apart from the other steps, in order. RecipeError where one stands
        before parse, and so has no text to look at."""
        found = [
            model
            for position, step in enumerate(self._plain_steps)
            if isinstance(step, _HasModels)
            for model in step.models(position)
        ]
        for model in found:
            if model.position < self._judging.start:
                raise RecipeError(
                    f"source.steps: the class {model.name!r} stands before 'parse': it needs a text"
                )
        return tuple(found)

    def run_from(
        self, first: int, outcomes: Sequence[Outcome], seconds: dict[str, float], stop: int | None = None
    ) -> list[Outcome]:
        """What comes of documents that have passed the steps before `stages[first]`, as these left them, with
        `stop` up to before that position; rejections stay. Steps after parse are for documents without their
        `payload`."""
        return self._pass(slice(first, stop), list(outcomes), seconds)

    def _pass(self, part: slice, outcomes: list[Outcome], seconds: dict[str, float]) -> list[Outcome]:
        """Send the documents among `outcomes` through some of the steps, in place."""
        live = [(i, document) for i, document in enumerate(outcomes) if isinstance(document, Document)]
        for plain, step in zip(self._plain_steps[part], self.steps[part], strict=True):
            if not live:
                break
            begun = processor_seconds()
            if isinstance(plain, _LooksAhead):
                ahead = plain.look_ahead(document for _, document in live)
                live = [(i, document) for (i, _), document in zip(live, ahead, strict=True)]
            for i, document in live:
                outcomes[i] = attempt(step, document)
            seconds[step.stage] = seconds.get(step.stage, 0.0) + processor_seconds() - begun
            live = [(i, kept) for i, _ in live if isinstance(kept := outcomes[i], Document)]
        return outcomes

    def plain_step(self, stage: str) -> Step:
        """The step of a stage, by itself: without what keeps purged documents out."""
        return self._plain_steps[self.stages.index(stage)]

    def prepare(self, first: int = 0) -> None:
        """Load now what the steps from `stages[first]` on would load on their first document. RecipeError for
        everything that is wrong with the recipe's steps: a model, list or function that is not there."""
        for step in self._plain_steps[first:]:
            if isinstance(step, _Prepares):
                step.prepare()

    @property
    def tables(self) -> StepTables:
        """What the chain was made of, besides the names of its steps."""
        return self._specification[1]

    @contextmanager
    def isolation(self, wanted: bool = True) -> Iterator[None]:
        """Within it, if `wanted`, extractors run in a child process, so that a page which hangs or kills its
        process becomes `parse.timeout` or `parse.crashed`. The texts are the same; it costs half a
        millisecond a page."""
        if not wanted:
            yield
            return
        child = IsolatedExtraction()
        self._pages.isolation = child
        try:
            yield
        finally:
            self._pages.isolation = None
            child.close()

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The steps themselves, made when first needed."""
        made, purged = self._plain_steps, self._specification[1].purged
        if purged is None:
            return made
        last = len(made) - 1
        return tuple(
            PurgeFilter(
                step=step, purged=purged, origin=i == 0, parsed=step.stage == "parse", clean=i == last
            )
            for i, step in enumerate(made)
        )

    @cached_property
    def _plain_steps(self) -> tuple[Step, ...]:
        inputs = StepInputs(
            tables=self.tables, pages=self._pages, has_user_steps=any(":" in name for name in self.stages)
        )
        makers = [spec_of(name).make for name in self.stages]
        return tuple(make(inputs) for make in makers if make is not None)


def attempt(step: Step, document: Document) -> Outcome:
    """What the step says of the document; where it raises, a rejection by rule `<stage>.error` that bears the
    fault: one page never stops a run. What is not about the page passes: a wrong recipe, a broken patch of
    ours, and memory that is used up."""
    try:
        return step(document)
    except (RecipeError, BrokenPatchError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - hostile pages and the user's own code: anything may come out of them
        finding = Finding(stage=step.stage, rule=error_rule(step.stage), rejected=True)
        return Rejection(document=document, finding=finding, fault=Fault.of(error))


def _num_chars(outcome: Outcome) -> int:
    """What an outcome holds besides its payload: its text, or where it has more of them, its other fields."""
    document = outcome if isinstance(outcome, Document) else outcome.document
    others = len(document.metadata or "") + len(document.url or "")
    return max(len(document.text) if isinstance(outcome, Document) else 0, others)


def _without_payload(outcome: Outcome) -> Outcome:
    if isinstance(outcome, Rejection):
        return replace(outcome, document=outcome.document.but(payload=b"", decoded=None))
    return outcome.but(payload=b"", decoded=None)
