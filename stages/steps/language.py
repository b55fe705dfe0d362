"""Language step: keeps documents whose text is surely in one of the wanted languages."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

from lineage.recipe import RecipeError, errors_about, key
from stages.document import Document, Finding, Outcome, decide
from stages.quality.code.language import language_of, languages, path_of
from stages.quality.fineweb2.configurations import configurations
from stages.quality.languages import LABELS, label_hint, language_code
from stages.rules import Rule
from stages.steps.models.fasttext_model import BUNDLED, NEGLIGIBLE, FastTextModel, load_model

STAGE = "language"
EXTENSION: Final = "extension"
"""The name of the model that tells the programming language of a source file."""
_NOT_KEPT: Final = Rule(
    stage=STAGE,
    name="language.not_kept",
    side="not among",
    keys=("language.keep",),
    help="the likeliest language",
)
_LOW_SCORE: Final = Rule(
    stage=STAGE,
    name="language.low_score",
    side="at most",
    keys=("language.min_score",),
    help="score of the language",
)
_BELOW_SCORE: Final = replace(_LOW_SCORE, side="below", keys=("language.score_table",))


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageTable:
    """`[language]`: which languages stay, and how sure the model must be."""

    keep: Literal["all"] | tuple[str, ...] = key(
        ("en",),
        help="labels of the model (ISO 639 codes for the bundled one); empty: all languages, and "
        'quality.no_table decides on those that no rule can judge; "all": the same, and each '
        "language gets its own shards, named <source>.<language>",
    )
    min_score: float = key(0.65, at_least=0, at_most=1, help="a document is kept if its score is above this")
    min_scores: dict[str, float] = key(
        {}, at_least=0, at_most=1, help="language = its own minimum score instead of min_score"
    )
    score_table: Literal["none", "fineweb2"] = key(
        "none",
        help="fineweb2: languages without an entry in min_scores take the minimum score of "
        "FineWeb-2's configuration (for scores of GlotLID); an equal score passes",
    )
    model: str = key(
        BUNDLED,
        is_path=True,
        help="'bundled' (fastText's lid.176), the path of a fastText model, or 'extension': the "
        "programming language of a source file as in GitHub's Linguist, by its file name (from "
        "its URL or source.id_field) and its text",
    )
    prefilter: bool = key(
        False,
        help="identify the language on the text of a fast extractor first, so that pages in other "
        "languages skip the slow one",
    )

    @property
    def kept(self) -> tuple[str, ...]:
        """The languages that stay; none where all do."""
        return () if isinstance(self.keep, str) else self.keep


class LanguageStep:
    """Rules: `language_rules`, in order.

    As datatrove's LanguageFilter (FineWeb, 2406.17557 section 3.2): a document stays if a wanted language
    scores strictly above the threshold, so with thresholds under one half also where another language scores
    higher; its language is then the best wanted one. With the model "extension" it is the programming
    language that the file's name and text tell, with a score of 1."""

    stage = STAGE

    def __init__(self, table: LanguageTable, *, ledger: bool = False) -> None:
        self._table = table
        self._ledger = ledger
        self._low_score = _low_score(table)
        self._rule_of = functools.lru_cache(maxsize=4096)(self._made_for)

    def prepare(self) -> None:
        """Load the model now; RecipeError if it cannot be, or has no label for one of the wanted
        languages."""
        _ = self._kept

    def __call__(self, document: Document, /) -> Outcome:
        language, score = (
            self._by_name(document) if self._table.model == EXTENSION else self._best(document.text)
        )
        named = document.but(language=language, language_score=score)
        return decide(named, self._findings(language, score), ledger=self._ledger)

    def _by_name(self, document: Document) -> tuple[str | None, float]:
        language = language_of(path_of(document), document.text)
        return language, 0.0 if language is None else 1.0

    def _made_for(self, language: str | None) -> Rule:
        """The rule of low scores as texts in a language meet it."""
        own = None if language is None else self._low_score.by_language.get(language_code(language))
        return replace(self._low_score.at(self._table.min_score if own is None else own), by_language={})

    @cached_property
    def _least(self) -> float:
        """The least score that a wanted language passes with."""
        return min(
            (float(self._rule_of(label).threshold or 0.0) for label in self._kept),
            default=self._table.min_score,
        )

    def _best(self, text: str) -> tuple[str | None, float]:
        """The language that decides: the likeliest, or the best wanted one whose score is enough for it."""
        # Above one half only the likeliest label can pass, and asking for one is cheaper than for all.
        if self._least >= 0.5:
            found = self._model.scores(text, 1)
        else:
            found = self._model.scores(text, -1, min(self._least, NEGLIGIBLE))
        if not found:
            return None, 0.0
        wanted = (
            (label, score)
            for label, score in found
            if label in self._kept and not self._rule_of(label).rejects(score)
        )
        return next(wanted, found[0])

    def _findings(self, language: str | None, score: float) -> Iterable[Finding]:
        if self._table.kept:
            is_rejected = _NOT_KEPT.rejects(language, self._kept)
            if is_rejected or self._ledger:
                # What is recorded is the score of the language that is judged.
                yield _NOT_KEPT.finding(score, rejected=is_rejected)
        rule = self._rule_of(language)
        if self._ledger or rule.rejects(score):
            yield rule.finding(score)

    @cached_property
    def _model(self) -> FastTextModel:
        return language_model(self._table)

    @cached_property
    def _kept(self) -> frozenset[str]:
        return labels_of(self._table.kept, known_labels(self._table))


def language_rules(table: LanguageTable) -> tuple[Rule, ...]:
    """Every rule of the step, in order."""
    return *((replace(_NOT_KEPT, among=table.kept),) if table.kept else ()), _low_score(table)


def _low_score(table: LanguageTable) -> Rule:
    rule = _LOW_SCORE if table.score_table == "none" else _BELOW_SCORE
    return replace(rule, threshold=table.min_score, by_language=_scores_by_language(table))


def _scores_by_language(table: LanguageTable) -> Mapping[str, float]:
    """The least scores of languages that have one of their own, by code."""
    published = configurations() if table.score_table == "fineweb2" else {}
    of_table = {code: each.language_score for code, each in published.items()}
    return of_table | {language_code(label): score for label, score in table.min_scores.items()}


def least_score(table: LanguageTable) -> float:
    """The least score that a text in any language passes with."""
    return min([table.min_score, *_scores_by_language(table).values()])


def check_language_model(table: LanguageTable) -> None:
    """RecipeError for keys that ask the model for what a file's name does not tell."""
    if table.model == EXTENSION and table.prefilter:
        raise RecipeError(
            'language.prefilter = true looks at a page\'s text, and language.model = "extension" at a'
            " source file's name: leave one of them out",
            "language.prefilter",
        )


def labels_at_hand(table: LanguageTable) -> Iterable[str] | None:
    """Every label that the table's model can give, where no file needs to be opened to know it; else None."""
    at_hand: Mapping[str, Iterable[str]] = {BUNDLED: LABELS, EXTENSION: languages()}
    return at_hand.get(table.model)


def check_min_scores(table: LanguageTable) -> None:
    """RecipeError where two labels of language.min_scores name one language, or one names a language that is
    not kept, or that the model has no label for."""
    codes = [language_code(label) for label in table.min_scores]
    kept = set(map(language_code, table.kept))
    at_hand = labels_at_hand(table)
    known = None if at_hand is None else set(map(language_code, at_hand))
    for label, code in zip(table.min_scores, codes, strict=True):
        name = f"language.min_scores.{label}"
        if codes.count(code) > 1:
            same = ", ".join(other for other in table.min_scores if language_code(other) == code)
            raise RecipeError(f"language.min_scores names {same}, which are one language: keep one", name)
        if kept and code not in kept:
            raise RecipeError(
                f"{name} is given, and language.keep does not name that language{label_hint(label, table.kept)}:"
                f" add it there, or leave the score out",
                name,
            )
        if known is not None and code not in known:
            raise RecipeError(
                f"{name} is given{label_hint(label, at_hand or ())}, and the model {table.model!r} has no label for"
                " that language: leave the score out, or name another language.model",
                name,
            )


def language_model(table: LanguageTable) -> FastTextModel:
    """The table's fastText model; RecipeError if it has no label for one of the wanted languages."""
    with errors_about("language.model"):
        model = load_model(table.model)
    _check_kept(table, model.labels)
    return model


def known_labels(table: LanguageTable) -> frozenset[str]:
    """Every label that the table's model can give; RecipeError if one of the wanted languages is none of
    them."""
    if table.model != EXTENSION:
        return language_model(table).labels
    _check_kept(table, languages())
    return languages()


def _check_kept(table: LanguageTable, labels: frozenset[str]) -> None:
    unknown = [language for language in sorted(set(table.kept)) if not labels_of([language], labels)]
    if unknown:
        named = ", ".join(f"{language!r}{label_hint(language, labels)}" for language in unknown)
        first = sorted(labels)
        known = ", ".join(first[:20]) + (f" and {len(first) - 20} more" if len(first) > 20 else "")
        raise RecipeError(
            f"language.keep: the model {table.model!r} has no label {named}: its labels are {known};"
            " language.keep = [] keeps every language",
            "language.keep",
        )


def labels_of(languages: Iterable[str], labels: Iterable[str]) -> frozenset[str]:
    """Those of the `labels` that name one of the languages: the label itself, or where there is no such label
    those of the same language (`nb` and `no` are one)."""
    known = frozenset(labels)
    others = {language_code(language) for language in languages if language not in known}
    return known.intersection(languages) | {label for label in known if language_code(label) in others}
