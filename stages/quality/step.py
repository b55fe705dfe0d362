"""The quality step: rule sets in the recipe's order over one document's text.

1. The text is split into words once (`words.py`), lazily, by the document's language.
2. Each rule set (a module of `rule_sets/`) is a table of rules: a measure of the page, a side and a threshold.
3. The first rule that rejects decides. C4 edits the text it passes; the rule sets after it see the edited text.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stages.document import Document, Edit, Finding, Outcome, weigh
from stages.quality.languages import SPLIT_BY_SPACY
from stages.quality.options import QualityTable, check_languages, limits, stop_words_of
from stages.quality.rule_sets import c4, fineweb, gopher_quality, gopher_repetition
from stages.quality.rules import RuleSet
from stages.quality.text_view import TextView
from stages.quality.words import Splitter

STAGE = "quality"


@dataclass(frozen=True, slots=True)
class QualityStep:
    """Judges documents by `table`; one without a language, or of one not kept, is read as the first of `languages`."""

    table: QualityTable
    languages: tuple[str, ...]
    rule_sets: dict[str, tuple[RuleSet, ...]]
    stage: str = STAGE

    def __call__(self, document: Document, /) -> Outcome:
        known = document.language in self.rule_sets
        language = document.language if known and document.language is not None else self.languages[0]
        ledger = self.table.ledger == "all"
        judging = _Judging(document, self.splitter(language))
        # The document as it is once the findings are weighed: with the edits of the sets that it passed.
        return weigh(judging.findings(self.rule_sets[language], every=ledger), ledger=ledger).outcome(judging.document)

    def splitter(self, language: str) -> Splitter:
        """This process's splitter for a language."""
        by_spacy = language in SPLIT_BY_SPACY and language not in self.table.white_space_words
        return _splitter(language if by_spacy else None, stop_words_of(self.table, language))


@functools.cache
def _splitter(language: str | None, stop_words: tuple[str, ...]) -> Splitter:
    return Splitter(language, stop_words)


def forget_splitters() -> None:
    """Drops this process's splitters and their memos (to measure what a cold start costs)."""
    _splitter.cache_clear()


def quality_step(table: QualityTable, languages: tuple[str, ...] = ("en",)) -> QualityStep:
    """The step for documents of `languages` (those that the language step keeps; none: English).

    RecipeError where a kept language has no way to be judged, or a threshold is set that the variant does not have."""
    kept = languages or ("en",)
    check_languages(table, kept)
    return QualityStep(table, kept, {language: rule_sets(table, language) for language in kept})


def rule_sets(table: QualityTable, language: str) -> tuple[RuleSet, ...]:
    """The table's rule sets for documents of one language, in order."""
    bounds, variant = limits(table), table.variant
    build = {
        "gopher_quality": lambda: gopher_quality.rule_set(variant, bounds, stop_words_of(table, language)),
        "gopher_repetition": lambda: gopher_repetition.rule_set(variant, bounds),
        "c4": lambda: c4.rule_set(variant, bounds, terminal_punctuation=table.c4_terminal_punctuation),
        "fineweb": lambda: fineweb.rule_set(variant, bounds),
    }
    return tuple(build[name]() for name in table.rules)


class _Judging:
    """One document on its way through rule sets. `document` is edited after each set that passes it and edits."""

    def __init__(self, document: Document, splitter: Splitter) -> None:
        self.document = document
        self._splitter = splitter

    def findings(self, sets: Sequence[RuleSet], *, every: bool) -> Iterator[Finding]:
        """What the rules find, set by set. A set after one that rejected sees the text as it was then."""
        view = TextView(self.document.text, self._splitter)
        is_rejected = False
        for rule_set in sets:
            for finding in rule_set.findings(view, every=every):
                is_rejected = is_rejected or finding.rejected
                yield finding
            if rule_set.edit is not None and not is_rejected:
                text, changes = rule_set.edit(view)
                if changes:
                    edits = [Edit(stage=STAGE, kind=kind, count=count) for kind, count in changes]
                    self.document = self.document.with_text(text, *edits)
                    view = TextView(text, self._splitter)
