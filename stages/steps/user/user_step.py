"""Steps of the user's own, named "package.module:name": a function of a document or of a batch of documents,
or a class that is made once in a worker and then called with batches.

What it is called with and gives back is the same: documents in, for each one the document or its Rejection
out. A class is a model step (`model_step.py`): it runs on actors of its own."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, cast

from lineage.recipe import RecipeError, key
from stages.document import Document, Edit, Finding, Outcome, Rejection
from stages.fault import Fault
from stages.steps import model_step
from stages.steps.model_step import Answer, ModelStep
from stages.steps.textfiles import as_local_file
from stages.steps.user.user_code import see_working_folder

_TEXTS = ("text", "url", "record_id", "captured_at", "metadata", "charset", "language")
"""Fields of a Document that a column of texts takes; all but `text` may be None."""
_IDENTITY = ("doc_id", "source", "place", "raw_hash")
"""Fields of a Document that say which one it is: a user's function leaves them."""
_MOST_WHOLE: Final = 2**53
"""A double holds every whole number up to this."""
_OF_CLASSES: Final = ("files", "num_cpus", *model_step.WHERE_IT_RUNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """`[[step]]`: how a step of one's own is carried out."""

    name: str = key(help="as in source.steps: package.module:Class or package.module:function")
    files: dict[str, str] = key(
        {}, is_path=True, help="argument of the class = path or URL of a file; the class gets a local path"
    )
    batch_size: int | None = key(
        None,
        at_least=1,
        help="documents in a batch: a class gets lists of this length (32); a function then gets "
        "lists instead of single documents",
        unit="documents",
    )
    num_cpus: float | None = model_step.num_cpus_key()
    num_gpus: float = model_step.num_gpus_key()
    resources: dict[str, float] = model_step.resources_key()
    actors: tuple[int, int] = model_step.actors_key()


def check_step_tables(tables: Sequence[StepTable], steps: Iterable[Sequence[str]]) -> None:
    """RecipeError for a table that names no step of a source's, or one twice. No module is imported."""
    names, used = [table.name for table in tables], {name for of_source in steps for name in of_source}
    for table in tables:
        if table.name not in used:
            own = ", ".join(repr(name) for name in sorted(used) if ":" in name) or "no step of your own"
            raise RecipeError(f"step.name = {table.name!r}: no source.steps names it; they name {own}")
        if names.count(table.name) > 1:
            raise RecipeError(f"step.name = {table.name!r} is given twice: one [[step]] says all of a step")
        model_step.check_pool(table, f"step.{table.name!r}")


@dataclass(slots=True)
class UserStep:
    """Calls the user's function or class. Its stage in lineage is the given name.

    TypeError or ValueError for an answer that is neither a document nor a rejection, is about another
    document, or cannot be stored; the chain makes of it, and of whatever is raised, a rejection of rule
    `<stage>.error`."""

    stage: str
    table: StepTable | None = None
    _found: Callable[..., object] = field(init=False, repr=False)
    _call: Callable[[Sequence[Document]], object] | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        self._found = _find_function(self.stage)
        self._check_keys()

    @property
    def is_class(self) -> bool:
        """Whether the name is that of a class, which holds a model or another state."""
        return isinstance(self._found, type)

    @property
    def batch_size(self) -> int | None:
        """Documents of a call; None for a function of one document."""
        given = self.table.batch_size if self.table else None
        return given or (model_step.BATCH if self.is_class else None)

    def __call__(self, document: Document, /) -> Outcome:
        answer = model_step.answer_of(document, self.stage)
        if answer is None:
            if self.batch_size is None:
                return _checked(self.stage, document, self._found(document))
            [answer] = self.answers([document])
        if isinstance(answer, Fault):
            return model_step.failed(document, self.stage, answer)
        assert isinstance(answer, (Document, Rejection))
        return answer

    def answers(self, documents: Sequence[Document]) -> list[Answer]:
        """What a function of batches or a class makes of these, in batches in their order."""
        size = self.batch_size
        assert size is not None
        batches = [documents[first : first + size] for first in range(0, len(documents), size)]
        return [answer for batch in batches for answer in model_step.one_by_one(self._together, batch)]

    def look_ahead(self, documents: Iterable[Document], /) -> list[Document]:
        """The documents, with what a function of batches makes of them where the step is one."""
        given = list(documents)
        if self.batch_size is None or self.is_class:
            return given
        return [
            document.but(answers={**(document.answers or {}), self.stage: answer})
            for document, answer in zip(given, self.answers(given), strict=True)
        ]

    def models(self, position: int) -> tuple[ModelStep, ...]:
        """Itself as a model of its chain, in which it stands at `position`, if it is a class."""
        if not self.is_class:
            return ()
        pool = self.table or StepTable(name=self.stage)
        table = f"step.{self.stage!r}"
        load = partial(_load_class, self.stage, self.table)
        return (
            ModelStep(
                name=self.stage, position=position, table=table, pool=pool, gives_scores=False, load=load
            ),
        )

    def _together(self, batch: Sequence[Document]) -> list[Answer]:
        if self._call is None:
            self._call = (
                self._made() if self.is_class else cast(Callable[[Sequence[Document]], object], self._found)
            )
        found = self._call(list(batch))
        if isinstance(found, (str, bytes, Mapping)) or not isinstance(found, Iterable):
            raise TypeError(
                f"{self.stage} gave a {type(found).__name__}: expected a list with an outcome for each document"
            )
        outcomes = list(found)
        if len(outcomes) != len(batch):
            plural = "s" * (len(batch) != 1)
            raise ValueError(
                f"{self.stage} gave {len(outcomes)} outcomes for {len(batch)} document{plural}: expected one"
                " for each, in their order; turn a document down with a Rejection"
            )
        return [_checked(self.stage, document, each) for document, each in zip(batch, outcomes, strict=True)]

    def _made(self) -> Callable[[Sequence[Document]], object]:
        """An instance of the class; its files as local paths while it is made."""
        files = dict(self.table.files) if self.table else {}
        with ExitStack() as stack:
            arguments = {name: stack.enter_context(as_local_file(path)) for name, path in files.items()}
            try:
                made: Any = self._found(**arguments)
            except Exception as error:
                summary = Fault.of(error).summary
                raise RecipeError(f"{self.stage} cannot be made: {summary}: {error}") from error
        if not callable(made):
            raise RecipeError(
                f"{self.stage} has no __call__: expected a method that takes a list of documents"
            )
        return cast(Callable[[Sequence[Document]], object], made)

    def _check_keys(self) -> None:
        if self.is_class or self.table is None:
            return
        for name in _OF_CLASSES:
            if (value := getattr(self.table, name)) and value != (1, 1):
                raise RecipeError(
                    f"step.{self.stage!r}.{name} = {value!r}: the step is a function, which runs inside the"
                    " reading workers; only a class has actors and files of its own"
                )


def _load_class(
    name: str, table: StepTable | None, on_gpu: bool
) -> Callable[[Sequence[Document]], list[Answer]]:
    """The class asks Ray and its libraries itself whether there is a GPU."""
    return UserStep(name, table).answers


def _checked(stage: str, document: Document, outcome: object) -> Outcome:
    """What the user's code gave for a document, as lineage can hold it."""
    if not isinstance(outcome, (Document, Rejection)):
        raise TypeError(f"{stage} gave a {type(outcome).__name__}: expected the document or its Rejection")
    left = outcome.document if isinstance(outcome, Rejection) else outcome
    _check_document(stage, document, left)
    if isinstance(outcome, Document):
        return outcome
    _check_finding(stage, outcome.finding)
    return replace(
        outcome, finding=replace(outcome.finding, stage=stage, rejected=True), findings=(), fault=None
    )


def _find_function(name: str) -> Callable[[Document], object]:
    module_name, _, attribute = name.partition(":")
    see_working_folder()
    try:
        function: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            function = getattr(function, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise RecipeError(
            f"source.steps: {name!r} cannot be found ({error}); expected 'package.module:function', importable here"
        ) from error
    if not callable(function):
        raise RecipeError(
            f"source.steps: {name!r} is a {type(function).__name__}, not a function of a Document"
        )
    return function


def _check_document(stage: str, given: Document, left: Document) -> None:
    """TypeError or ValueError unless `left` is the given document, and every table can hold it."""
    if any(getattr(left, name) != getattr(given, name) for name in _IDENTITY):
        raise ValueError(
            f"{stage} gave another document than it was called with: change its text and leave its id"
        )
    if left.scores != given.scores:
        raise ValueError(
            f"{stage} changed `scores`: they are what the recipe's classifiers gave, leave them as they are"
        )
    for name in _TEXTS:
        _check_text(stage, name, getattr(left, name), optional=name != "text")
    if left.metadata != given.metadata and left.metadata is not None:
        _check_metadata(stage, left.metadata)
    _check_number(stage, "language_score", left.language_score)
    if left.edits != given.edits:
        _check_tuple(stage, "edits", left.edits, Edit)
        for edit in left.edits:
            _check_edit(stage, edit)
    if left.findings != given.findings:
        _check_tuple(stage, "findings", left.findings, Finding)
        for finding in left.findings:
            _check_text(stage, "stage of a finding", finding.stage, optional=False)
            _check_finding(stage, finding)


def _check_metadata(stage: str, metadata: str) -> None:
    """Exports give it as a part of their own JSON, in UTF-8."""
    try:
        plain = json.loads(metadata)
        json.dumps(plain, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{stage} gave metadata that is no strict JSON: {type(error).__name__}") from error
    if not isinstance(plain, dict):
        raise ValueError(f"{stage} gave metadata that is a {type(plain).__name__}: expected a JSON object")


def _check_edit(stage: str, edit: Edit) -> None:
    _check_text(stage, "stage of an edit", edit.stage, optional=False)
    _check_text(stage, "kind of an edit", edit.kind, optional=False)
    if not isinstance(edit.count, int) or isinstance(edit.count, bool):
        raise TypeError(
            f"{stage} gave count of an edit a {type(edit.count).__name__}: expected a whole number"
        )
    _check_number(stage, "count of an edit", edit.count)


def _check_finding(stage: str, finding: Finding) -> None:
    _check_text(stage, "rule of a finding", finding.rule, optional=False)
    _check_number(stage, "value of a finding", finding.value)
    _check_number(stage, "threshold of a finding", finding.threshold)


def _check_tuple(stage: str, name: str, values: object, kind: type) -> None:
    if not isinstance(values, tuple) or not all(isinstance(value, kind) for value in values):
        raise TypeError(f"{stage} gave {name} that are no tuple of {kind.__name__}")


def _check_number(stage: str, name: str, value: object) -> None:
    """Tables hold doubles, and JSON has no other numbers than finite ones."""
    if value is None:
        return
    if not isinstance(value, (int, float)):
        raise TypeError(f"{stage} gave {name} a {type(value).__name__}: expected a number or None")
    if not (math.isfinite(value) if isinstance(value, float) else abs(value) <= _MOST_WHOLE):
        raise ValueError(
            f"{stage} gave {name} a number that no table holds: expected a finite one, a whole one of at most"
            f" 2**53"
        )


def _check_text(stage: str, name: str, value: object, *, optional: bool) -> None:
    if value is None and optional:
        return
    if not isinstance(value, str):
        raise TypeError(f"{stage} gave {name} a {type(value).__name__}: expected a text")
    if not value.isascii():
        value.encode("utf-8")  # UnicodeEncodeError, a ValueError, for a lone surrogate
