"""Classifier step: any number of fastText models, each with a label, a threshold and the side that is turned down."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from lineage.recipe import RecipeError, blamed_on, key
from stages.document import Document, Finding, Outcome, decide
from stages.steps.fasttext_model import FastTextModel, load_model

STAGE = "classifier"
_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierTable:
    """`[[classifier]]`: one model. A DCLM-like quality filter (2406.11794 section 4.3) rejects below 0.018112."""

    name: str = key(help="letters, digits, '_' and '-': the rule is classifier.<name>")
    model: str = key(help="path of a supervised fastText model")
    label: str = key(help="the label whose score decides, with or without fastText's __label__")
    threshold: float = key(at_least=0, at_most=1, help="a score equal to it is kept")
    reject: Literal["above", "below"] = key("above", help="which side of the threshold is turned down")


class ClassifierStep:
    """Rules: `classifier.<name>`, in the recipe's order; value is the score of the label (0 to 1, 4 decimals)."""

    stage = STAGE

    def __init__(self, tables: Sequence[ClassifierTable], *, ledger: bool = False) -> None:
        check_classifiers(tables)
        self._tables = tuple(tables)
        self._ledger = ledger

    def prepare(self) -> None:
        """Load the models now; RecipeError if one cannot be, or has no such label."""
        _ = self._models

    def __call__(self, document: Document, /) -> Outcome:
        return decide(document, self._findings(document.text), ledger=self._ledger)

    def _findings(self, text: str) -> Iterable[Finding]:
        for table, model, label in self._models:
            score = dict(model.scores(text, -1)).get(label, 0.0)
            rejected = score > table.threshold if table.reject == "above" else score < table.threshold
            yield Finding(
                stage=STAGE,
                rule=f"classifier.{table.name}",
                value=score,
                threshold=table.threshold,
                rejected=rejected,
            )

    @cached_property
    def _models(self) -> tuple[tuple[ClassifierTable, FastTextModel, str], ...]:
        return tuple((table, *_model_and_label(table)) for table in self._tables)


def check_classifiers(tables: Sequence[ClassifierTable]) -> None:
    """RecipeError if a name is unfit for a rule's name, or given twice."""
    names = [table.name for table in tables]
    for name in names:
        if not _NAME.fullmatch(name):
            raise RecipeError(f"classifier.name = {name!r}: expected letters, digits, '_' and '-'")
        if names.count(name) > 1:
            raise RecipeError(f"classifier.name = {name!r} is given twice: each names a rule of its own")


def _model_and_label(table: ClassifierTable) -> tuple[FastTextModel, str]:
    with blamed_on("classifier.model"):
        model = load_model(table.model)
    label = table.label.removeprefix("__label__")
    if label not in model.labels:
        known = ", ".join(sorted(model.labels)[:50])
        raise RecipeError(
            f"classifier.label = {table.label!r}: the model {table.model!r} has no such label; its labels are {known}"
        )
    return model, label
