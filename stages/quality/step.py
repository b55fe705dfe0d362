"""The quality step: rule sets in the recipe's order over one document's text.

1. The text is split into words once (`words.py`), lazily, by the document's language.
2. Each rule set (a module of `rule_sets/`) is a table of rules: a measure of the page, a side and a
  threshold.
3. The first rule that rejects decides. C4 edits the text it passes; the rule sets after it see the edited
  text.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from stages.document import Document, Edit, Finding, Outcome, Rejection, decide, weigh
from stages.quality.code.language import path_of
from stages.quality.code.licenses import license_of
from stages.quality.judged_languages import table_of
from stages.quality.options import (
    QualityTable,
    check_tables,
    limits,
    splitter_of,
    stop_words_of,
    table_for,
    thresholds_by_language,
)
from stages.quality.rule_sets.catalogue import CATALOGUE, THRESHOLDS, RuleSetInputs, is_by_language, is_in
from stages.quality.rules import STAGE, Limits, RuleSet, TextRule, measured_as
from stages.quality.splitters import WHITE_SPACE, AnySplitter, make_splitter
from stages.quality.text_view import TextView
from stages.quality.words import MEMO_BYTES
from stages.rules import Rule

_NO_TABLE: Final = Rule(
    stage=STAGE,
    name="quality.no_table",
    side="always",
    help="a text whose language the other rules have no table for",
    keys=("quality.no_table",),
)

MEMOS_BYTES: Final = 4 * MEMO_BYTES
"""What the memos of all languages weigh, about, before those of the languages not at hand are emptied."""


class QualityStep:
    """Judges each document by the table of its own language.

    Rule besides those of the rule sets: `quality.no_table`, a text whose language has no table. With
    quality.no_table = "pass" it passes unjudged. A source file that the rules of code judge has its licence
    among its labels. With `keep_measured`, and without the whole ledger, what rules measured goes along with
    the document."""

    stage = STAGE

    def __init__(self, table: QualityTable, *, keep_measured: bool = False) -> None:
        self._table = table
        self._keep_measured = keep_measured and table.ledger == "first"
        self._rules_for = functools.lru_cache(maxsize=256)(self._made_for)

    def __call__(self, document: Document, /) -> Outcome:
        ledger = self._table.ledger == "all"
        rules = self._rules_for(document.language)
        if rules is None:
            # "refuse" comes here where a step of the user's named a language that nobody could know of
            # beforehand.
            finding = _no_table(table_for(self._table, document.language)).finding()
            return decide(document, [finding], ledger=ledger)
        if rules.is_of_code and (named := license_of(document.text, document.metadata)) is not None:
            document = document.but(labels=(*document.labels, ("license", named)))
        measured: dict[str, float] | None = {} if self._keep_measured else None
        judging = _Evaluation(document, splitter(rules.splitter, rules.stop_words), measured)
        weighed = weigh(judging.findings(rules.sets, every=ledger), ledger=ledger)
        # The document as it is once the findings are weighed: with the edits of the sets that it passed.
        judged = judging.document
        return weighed.outcome(judged.but(measured=tuple(measured.items())) if measured else judged)

    def judge_again(
        self,
        document: Document,
        earlier: QualityStep,
        measured: Mapping[str, float],
        turned_down_by: str | None,
    ) -> Outcome | None:
        """What the step says of a document which an `earlier` step, that differs in thresholds alone, turned
        down by this rule, or let pass (None), when its rules had `measured` these values; nothing is
        measured. None where they do not tell.

        Where it passes, its text is as it came, and rule sets that edit would have edited it as they did
        then."""
        rules, before = self._rules_for(document.language), earlier._rules_for(document.language)
        if rules is None or before is None or rules.is_of_code:  # a licence is read in the text
            return None
        same = {rule.name: rule for of_set in before.sets for rule in of_set.rules}
        is_edited, passed_then = False, True
        for rule_set in rules.sets:
            for rule in rule_set.rules:
                if rule.name in measured:
                    rejects = rule.rejects(measured[rule.name])
                elif passed_then and rule.name in same and rule.verdict_is_that_of(same[rule.name]):
                    # A yes or a no, or a text that passed by a cheaper measure.
                    rejects = rule.name == turned_down_by
                else:
                    return None
                if rejects:
                    if is_edited:  # the text that the rule looked at is not kept
                        return None
                    finding = rule.finding(measured.get(rule.name, 1.0))
                    return Rejection(document=document.but(measured=tuple(measured.items())), finding=finding)
                passed_then = passed_then and rule.name != turned_down_by
            is_edited = is_edited or rule_set.edit is not None
        if not passed_then and is_edited:
            return None
        is_known = turned_down_by is None or not passed_then
        return document.but(measured=tuple(measured.items())) if is_known else None

    def _made_for(self, language: str | None) -> _LanguageRules | None:
        code = table_of(self._table, language)
        if code is None:
            return None
        return _LanguageRules(
            sets=rule_sets(self._table, code),
            splitter=splitter_of(self._table, code) or WHITE_SPACE,
            stop_words=stop_words_of(self._table, code),
            is_of_code="code" in table_for(self._table, code).rules,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _LanguageRules:
    """The rule sets for texts in one language; `splitter` is what splits their words
    (`stages.quality.splitters`)."""

    sets: tuple[RuleSet, ...]
    splitter: str
    stop_words: tuple[str, ...]
    is_of_code: bool


_splitters: Final[dict[tuple[str, tuple[str, ...]], AnySplitter]] = {}


def splitter(name: str, stop_words: tuple[str, ...]) -> AnySplitter:
    """This process's splitter of a name, for these stop words. The memos of all languages together are
    bounded: where they weigh too much, those of the others are emptied."""
    key = (name, stop_words)
    if (found := _splitters.get(key)) is None:
        found = _splitters[key] = make_splitter(name, stop_words)
    if len(_splitters) > 1 and sum(one.memo_bytes_used for one in _splitters.values()) > MEMOS_BYTES:
        for other in _splitters.values():
            if other is not found:
                other.forget()
    return found


def forget_splitters() -> None:
    """Drops this process's splitters and their memos (to measure what a cold start costs)."""
    _splitters.clear()


def quality_step(table: QualityTable, *, keep_measured: bool = False) -> QualityStep:
    """The step; RecipeError where a threshold is set that the variant does not have, or a key makes no
    table."""
    for language in (None, *table.language):
        limits(table, language)
    check_tables(table)
    return QualityStep(table, keep_measured=keep_measured)


def rule_sets(table: QualityTable, language: str) -> tuple[RuleSet, ...]:
    """The rule sets for documents of one language, in order."""
    of_texts = table_for(table, language)
    return _sets(of_texts, limits(table, language), stop_words_of(table, language), language)


def _sets(
    table: QualityTable, bounds: Limits, stop_words: tuple[str, ...], language: str
) -> tuple[RuleSet, ...]:
    inputs = RuleSetInputs(
        variant=measured_as(table.variant),
        limits=bounds,
        stop_words=stop_words,
        language=language,
        terminal_punctuation=table.c4_terminal_punctuation,
        line_edits=table.line_edits,
    )
    return tuple(CATALOGUE[name].make(inputs) for name in table.rules)


_ANY_STOP_WORDS: Final = ("the", "of")
"""Stands for the stop words of whatever language, where only the rules themselves are asked for."""


def every_rule(table: QualityTable) -> tuple[RuleSet, ...]:
    """The rule sets of [quality] with all rules that a language may have, in order. The threshold of a rule
    that every language has its own for is None."""
    by_language = [
        key for key in THRESHOLDS if is_in(key, table.variant) and is_by_language(key, table.variant)
    ]
    sets = _sets(table, dict.fromkeys(by_language, math.nan) | limits(table), _ANY_STOP_WORDS, "")
    return tuple(replace(found, rules=tuple(map(_without_nan, found.rules))) for found in sets)


def _without_nan(rule: TextRule) -> TextRule:
    return (
        replace(rule, threshold=None) if rule.threshold is not None and math.isnan(rule.threshold) else rule
    )


def quality_rules(table: QualityTable) -> tuple[Rule, ...]:
    """Every rule of the step, in order; behind them those that only the tables of single languages have."""
    of_languages = (found for language in table.language for found in rule_sets(table, language))
    rules: dict[str, TextRule] = {}
    for found in (*every_rule(table), *of_languages):
        for rule in found.rules:
            rules.setdefault(rule.name, rule)
    return (_no_table(table), *(_with_languages(rule, table) for rule in rules.values()))


def _with_languages(rule: TextRule, table: QualityTable) -> TextRule:
    key = rule.keys[0].removeprefix(f"{STAGE}.") if rule.keys else ""
    by_language = thresholds_by_language(table, key) if key else {}
    return replace(rule, by_language=by_language) if by_language else rule


def edits_texts(table: QualityTable) -> bool:
    """Whether a rule set edits a text that it lets pass, of whatever language."""
    of_languages = (found for language in table.language for found in rule_sets(table, language))
    return any(found.edit is not None for found in (*every_rule(table), *of_languages))


def _no_table(table: QualityTable) -> Rule:
    return replace(_NO_TABLE, side="never") if table.no_table == "pass" else _NO_TABLE


class _Evaluation:
    """One document on its way through rule sets. `document` is edited after each set that passes it and
    edits."""

    def __init__(self, document: Document, splitter: AnySplitter, measured: dict[str, float] | None) -> None:
        self.document = document
        self._splitter = splitter
        self._measured = measured

    def findings(self, sets: Sequence[RuleSet], *, every: bool) -> Iterator[Finding]:
        """What the rules find, set by set. A set after one that rejected sees the text as it was then."""
        path = path_of(self.document)
        view = TextView(self.document.text, self._splitter, path)
        is_rejected = False
        for rule_set in sets:
            for finding in rule_set.findings(view, every=every, measured=self._measured):
                is_rejected = is_rejected or finding.rejected
                yield finding
            if rule_set.edit is not None and not is_rejected:
                text, changes = rule_set.edit(view)
                if changes:
                    edits = [Edit(stage=STAGE, kind=kind, count=count) for kind, count in changes]
                    self.document = self.document.with_text(text, *edits)
                    view = TextView(text, self._splitter, path)
