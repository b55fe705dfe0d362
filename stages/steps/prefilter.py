"""Prefilter step: the language of a fast extractor's text, looked at before the slow extractor is paid
for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Final

from stages.document import Document, Outcome, Rejection, decide
from stages.html.page import PageReader
from stages.rules import Rule
from stages.steps.language import LanguageTable, labels_of, language_model
from stages.steps.models.fasttext_model import FastTextModel

STAGE = "prefilter"

LEAST_SCORE: Final = 0.05
"""A page goes on if a kept language has at least this score: far below what the language step asks for, since
the fast extractor keeps menus and footers, which may be in another language than the text."""

LEAST_CHARS: Final = 100
"""A shorter text says too little: its page goes on."""

MOST_CHARS: Final = 2_000
"""What is looked at of a longer text. On 1,138 crawled pages these three numbers, keeping English, spared the
slow extractor 789 of the 815 pages that the language step rejects and lost 1 of the 323 that it keeps;
keeping German, 456 of 477 and 2 of 661."""


RULES: Final = (
    Rule(
        stage=STAGE,
        name="prefilter.language",
        side="below",
        threshold=LEAST_SCORE,
        help="best score of a kept language on the fast extractor's text",
    ),
)


class PrefilterStep:
    """Its rule looks at resiliparse's main text.

    A page that it rejects bears the likeliest language of that text with its score, and the text as
    `judged_text`. A page that this step cannot judge goes on: no HTML, over a bound of parse, unreadable to
    the fast extractor, or with too little text. Parse and language decide about it."""

    stage = STAGE

    def __init__(self, table: LanguageTable, pages: PageReader, *, ledger: bool = False) -> None:
        self._table = table
        self._pages = pages
        self._ledger = ledger

    def prepare(self) -> None:
        """Load the model now; RecipeError if it cannot be, or has no label for one of the wanted
        languages."""
        _ = self._model

    def look_ahead(self, documents: Iterable[Document], /) -> list[Document]:
        """The documents with the texts that they are judged by, made before the first is judged: extractor
        and model throw each other's tables out of the processor's caches, and in turns a prediction takes
        nearly twice as long."""
        return [self._with_fast_text(document) for document in documents]

    def _with_fast_text(self, document: Document) -> Document:
        try:
            return self._pages.with_fast_text(document)
        except Exception:  # noqa: BLE001 - it raises again where the page is judged, and is about that page alone there
            return document

    def __call__(self, document: Document, /) -> Outcome:
        document = self._pages.with_fast_text(document)
        fast = self._pages.read(document).fast if document.is_html else None
        text = None if fast is None else fast.text
        if text is None or len(text) < LEAST_CHARS:
            return document
        judged = text[:MOST_CHARS]
        found = self._model.scores(judged, -1)
        likely = dict(found)
        score = max((likely.get(language, 0.0) for language in self._kept), default=0.0)
        outcome = decide(document, [rule.finding(score) for rule in RULES], ledger=self._ledger)
        if isinstance(outcome, Rejection):  # no step behind looks at its page
            language, likeliest = found[0] if found else (None, None)
            seen = document.but(decoded=None, language=language, language_score=likeliest)
            return replace(outcome, document=seen, judged_text=judged)
        return outcome

    @cached_property
    def _model(self) -> FastTextModel:
        return language_model(self._table)

    @cached_property
    def _kept(self) -> frozenset[str]:
        return labels_of(self._table.kept, self._model.labels)
