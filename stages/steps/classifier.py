"""Classifier step: fastText models and transformers encoders, each with a label, a threshold and the side
rejected.

A fastText model, a file, is asked by the step itself. An encoder, a folder, is a model step
(`model_step.py`): the step takes the score that the document bears."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Final, Literal, NamedTuple

from lineage.recipe import RecipeError, errors_about, key
from lineage.store.column_names import LABEL
from stages.document import Document, Finding, Outcome, weigh
from stages.fault import Fault
from stages.rules import Rule
from stages.steps import model_step
from stages.steps.model_step import Answer, ModelStep
from stages.steps.models.encoder_folder import EncoderConfig, is_folder, read_encoder_config
from stages.steps.models.fasttext_model import FastTextModel, load_model

STAGE = "classifier"
_NAME = re.compile(r"[A-Za-z0-9_-]+")
ANY_LABEL: Final = "*"
_OF_ENCODERS: Final = ("max_tokens", "batch_size", "num_cpus", "num_gpus", "resources", "actors")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierTable:
    """`[[classifier]]`: one model. A DCLM-like quality filter (2406.11794 section 4.3) rejects below
    0.018112."""

    name: str = key(help="letters, digits, '_' and '-': the rule is classifier.<name>")
    model: str = key(
        is_path=True,
        help="path of a supervised fastText model, or folder of a transformers encoder with its head",
    )
    label: str = key(
        help="the label whose score decides, with or without fastText's __label__; '*' (fastText, "
        "with reject = 'never'): the likeliest label is stored as column label_<name>, with its"
        " score"
    )
    threshold: float | None = key(
        None,
        help="an equal score is kept; 0 to 1, or the value of a head with one output; required "
        "unless `never`",
    )
    reject: Literal["above", "below", "never"] = key(
        "above",
        help="which side of the threshold is rejected; never: the score is only stored, as column "
        "score_<name>",
    )
    max_tokens: int = key(
        512, at_least=1, help="encoders: tokens that the model reads from the start of a text", unit="tokens"
    )
    batch_size: int = key(model_step.BATCH, at_least=1, help="encoders: texts in a batch", unit="texts")
    num_cpus: float | None = model_step.num_cpus_key()
    num_gpus: float = model_step.num_gpus_key()
    resources: dict[str, float] = model_step.resources_key()
    actors: tuple[int, int] = model_step.actors_key()

    @property
    def stage(self) -> str:
        """Its operator, where it is an encoder, and the rule."""
        return f"{STAGE}.{self.name}"

    @property
    def is_argmax(self) -> bool:
        """Whether it gives the likeliest label, whichever that is."""
        return self.label == ANY_LABEL

    @property
    def rejects(self) -> bool:
        """Whether it turns documents down; else its score is a column."""
        return self.reject != "never"

    @property
    def rule(self) -> Rule:
        """The rule, whose `side` is what `reject` says."""
        return Rule(
            stage=STAGE,
            name=self.stage,
            side=self.reject,
            keys=("classifier.threshold", "classifier.reject"),
            threshold=self.threshold,
            help=f"score of the label {self.label}",
        )

    @property
    def is_encoder(self) -> bool:
        """Whether the model is a folder. RecipeError for a URL of an unknown kind."""
        with errors_about(f"classifier.model of {self.name!r}"):
            return is_folder(self.model)


def classifier_rules(tables: Sequence[ClassifierTable]) -> tuple[Rule, ...]:
    """Every rule of the step, in order: one for each classifier."""
    return tuple(table.rule for table in tables)


LoadEncoder = Callable[[ClassifierTable, bool], Callable[[Sequence[str]], list[float]]]
"""(a table, whether on a GPU) -> a function of texts to their scores. It lies where torch may be imported."""


class ClassifierStep:
    """Rules: `classifier.<name>`, in the recipe's order; value is the score of the label (0 to 1, or what an
    encoder's head with one output gives).

    A classifier that never rejects gives its score to the document instead."""

    stage = STAGE

    def __init__(
        self,
        tables: Sequence[ClassifierTable],
        *,
        ledger: bool = False,
        load_encoder: LoadEncoder | None = None,
    ) -> None:
        check_classifiers(tables)
        self._tables = tuple(tables)
        self._ledger = ledger
        self._load_encoder = load_encoder
        self._loaded: dict[str, Callable[[Sequence[Document]], list[Answer]]] = {}
        self._rules = classifier_rules(tables)

    def prepare(self) -> None:
        """Load the fastText models now and read the encoders' configurations; RecipeError if one cannot be,
        or has no such label."""
        _ = self._models

    def __call__(self, document: Document, /) -> Outcome:
        given: list[tuple[ClassifierTable, _LabelScore]] = []
        try:
            found = weigh(self._findings(document, given), ledger=self._ledger)
        except _ModelFailedError as failure:
            return model_step.failed(document, STAGE, failure.fault)
        if given:
            scores = tuple((table.name, scored.score) for table, scored in given)
            labels = tuple((LABEL + table.name, scored.label) for table, scored in given if table.is_argmax)
            document = document.but(scores=document.scores + scores, labels=document.labels + labels)
        return found.outcome(document)

    def models(self, position: int) -> tuple[ModelStep, ...]:
        """The encoders, where the step stands at `position` of its chain."""
        return tuple(
            ModelStep(
                name=table.stage,
                position=position,
                table=f"classifier.{table.name}",
                pool=table,
                gives_scores=True,
                load=partial(_load_answers, table, self._load_encoder),
            )
            for table in self._tables
            if table.is_encoder
        )

    def _findings(
        self, document: Document, given: list[tuple[ClassifierTable, _LabelScore]]
    ) -> Iterable[Finding]:
        """What each classifier finds; what one that turns nothing down gives goes to `given` too."""
        for (table, scored_by), rule in zip(self._models, self._rules, strict=True):
            scored = scored_by(document)
            if not table.rejects:
                given.append((table, scored))
            yield rule.finding(scored.score)

    @cached_property
    def _models(self) -> tuple[tuple[ClassifierTable, Callable[[Document], _LabelScore]], ...]:
        return tuple((table, self._scored_by(table)) for table in self._tables)

    def _scored_by(self, table: ClassifierTable) -> Callable[[Document], _LabelScore]:
        if table.is_encoder:
            _check_encoder(table)
            return partial(self._by_encoder, table)
        _check_file(table)
        model, label = _model_and_label(table)
        return partial(_by_fasttext, model, label)

    def _by_encoder(self, table: ClassifierTable, document: Document) -> _LabelScore:
        """The score that the document bears; that of the model in this process where it bears none."""
        answer = model_step.answer_of(document, table.stage)
        if answer is None:
            if table.name not in self._loaded:
                self._loaded[table.name] = _load_answers(table, self._load_encoder, False)
            [answer] = self._loaded[table.name]([document])
        if isinstance(answer, Fault):
            raise _ModelFailedError(answer)
        assert isinstance(answer, float)
        return _LabelScore(table.label, answer)


class _LabelScore(NamedTuple):
    """A label and its score."""

    label: str
    score: float


class _ModelFailedError(Exception):
    """A model raised on the document."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.summary)
        self.fault = fault


def _by_fasttext(model: FastTextModel, label: str, document: Document) -> _LabelScore:
    if label != ANY_LABEL:
        return _LabelScore(label, dict(model.scores(document.text, -1, 0.0)).get(label, 0.0))
    # Of equally likely labels the least by name: fastText's own order hangs on a heap's.
    found = model.scores(document.text, -1, 0.0)
    return min(
        (_LabelScore(*each) for each in found),
        key=lambda each: (-each.score, each.label),
        default=_LabelScore("", 0.0),
    )


def _load_answers(
    table: ClassifierTable, load_encoder: LoadEncoder | None, on_gpu: bool
) -> Callable[[Sequence[Document]], list[Answer]]:
    assert load_encoder is not None, "the caller of build_chain gives StepTables.load_encoder"
    scores = load_encoder(table, on_gpu)

    def together(documents: Sequence[Document]) -> list[Answer]:
        return list(scores([document.text for document in documents]))

    return lambda documents: list(model_step.one_by_one(together, documents))


def check_classifiers(tables: Sequence[ClassifierTable]) -> None:
    """RecipeError if a name is unfit for a rule's name, or given twice, or its actors cannot be. No file is
    opened."""
    names = [table.name for table in tables]
    for table in tables:
        if not _NAME.fullmatch(table.name):
            raise RecipeError(f"classifier.name = {table.name!r}: expected letters, digits, '_' and '-'")
        if names.count(table.name) > 1:
            raise RecipeError(
                f"classifier.name = {table.name!r} is given twice: each names a rule of its own"
            )
        if table.rejects and table.threshold is None:
            raise RecipeError(
                f"classifier.threshold of {table.name!r} is missing: expected a number, as reject is"
                f" {table.reject!r};"
                ' with reject = "never" the score is a column and turns nothing down'
            )
        if table.is_argmax and (table.rejects or table.is_encoder):
            only = 'only with reject = "never"' if table.rejects else "only of a fastText model"
            raise RecipeError(
                f'classifier.label of {table.name!r} = "*": the likeliest label is a column, {only}; name a'
                f" label, or {'set reject' if table.rejects else 'an encoder for each label that counts'}",
                "classifier.label",
            )
        model_step.check_pool(table, f"classifier.{table.name}")
    scores = [table.name.lower() for table in tables if not table.rejects]
    for table in tables:
        if scores.count(table.name.lower()) > 1:
            raise RecipeError(
                f'classifier.name = {table.name!r}: another one with reject = "never" has this name but for'
                " capital letters, which SQL does not tell apart in the column score_<name>"
            )


def _check_file(table: ClassifierTable) -> None:
    """RecipeError if a fastText model, which the reading workers ask themselves, is given what only an
    encoder has."""
    defaults: Mapping[str, object] = {field.name: field.default for field in fields(ClassifierTable)}
    for name in _OF_ENCODERS:
        value = getattr(table, name)
        if value and value != defaults[name]:
            raise RecipeError(
                f"classifier.{table.name}.{name} = {value!r}: the model {table.model!r} is a fastText file,"
                " which runs inside the reading workers; only an encoder, a folder, has actors of its own"
            )
    _check_share(table)


def _check_share(table: ClassifierTable) -> None:
    if table.threshold is not None and not 0 <= table.threshold <= 1:
        raise RecipeError(
            f"classifier.threshold = {table.threshold:g} of {table.name!r}: expected 0 to 1, where the scores lie"
        )


def _check_encoder(table: ClassifierTable) -> EncoderConfig:
    """RecipeError if the folder is no encoder, or its head has no such label."""
    with errors_about("classifier.model"):
        config = read_encoder_config(table.model)
    if table.label not in config.labels:
        raise RecipeError(_no_label(table, config.labels))
    if not config.is_regression:
        _check_share(table)
    return config


def _model_and_label(table: ClassifierTable) -> tuple[FastTextModel, str]:
    with errors_about("classifier.model"):
        model = load_model(table.model)
    label = table.label.removeprefix("__label__")
    if label not in model.labels and not table.is_argmax:
        raise RecipeError(_no_label(table, sorted(model.labels)))
    return model, label


def _no_label(table: ClassifierTable, labels: Sequence[str]) -> str:
    known = ", ".join(labels[:50])
    return f"classifier.label = {table.label!r}: the model {table.model!r} has no such label; its labels are {known}"
