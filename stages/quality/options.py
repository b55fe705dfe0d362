"""The recipe's [quality] table: which rule sets, in which variant, with which thresholds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from lineage.recipe import RecipeError, key
from stages.quality.fineweb2.configurations import BY_LANGUAGE, configuration_of, configurations
from stages.quality.languages import SPLIT_BY_SPACY, STOP_WORDS, has_white_space, language_code
from stages.quality.rule_sets.catalogue import (
    RULE_SETS,
    THRESHOLDS,
    is_by_language,
    is_in,
    rule_sets_of,
)
from stages.quality.rules import Variant
from stages.quality.splitters import WHITE_SPACE, is_known, lacking_packages
from stages.quality.words import MAX_STOP_WORDS

_DEFAULT_RULES: Final = ("gopher_quality", "gopher_repetition")
NoTable = Literal["refuse", "pass", "reject"]


def _threshold(name: str) -> Any:
    found = THRESHOLDS[name]
    return key(None, at_least=0, help=found.help, source=found.source, unit=found.unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ForTexts:
    """What [quality] and each [quality.language.NAME] have; None where the latter leaves it to the former."""

    rules: tuple[str, ...] | None = key(
        None, choices=RULE_SETS, help="rule sets, in the order of their evaluation ([quality])"
    )
    variant: Variant | None = key(None, help="variant of the published rules ([quality])")
    no_table: NoTable | None = key(
        None, help="what happens to a text whose language has no table for the rules ([quality])"
    )
    c4_terminal_punctuation: bool | None = key(
        None, help="remove lines without terminal punctuation ([quality])"
    )
    line_edits: Literal["dclm", "dolma3"] | None = key(None, help="which line edits ([quality])")

    min_words: int | None = _threshold("min_words")
    max_words: int | None = _threshold("max_words")
    min_word_length: float | None = _threshold("min_word_length")
    max_word_length: float | None = _threshold("max_word_length")
    max_hashes_per_word: float | None = _threshold("max_hashes_per_word")
    max_ellipses_per_word: float | None = _threshold("max_ellipses_per_word")
    max_symbols_per_word: float | None = _threshold("max_symbols_per_word")
    max_bullet_lines: float | None = _threshold("max_bullet_lines")
    max_ellipsis_lines: float | None = _threshold("max_ellipsis_lines")
    min_alphabetic_words: float | None = _threshold("min_alphabetic_words")
    min_stop_words: int | None = _threshold("min_stop_words")

    max_duplicate_paragraphs: float | None = _threshold("max_duplicate_paragraphs")
    max_duplicate_paragraph_chars: float | None = _threshold("max_duplicate_paragraph_chars")
    max_duplicate_lines: float | None = _threshold("max_duplicate_lines")
    max_duplicate_line_chars: float | None = _threshold("max_duplicate_line_chars")
    max_top_2_gram: float | None = _threshold("max_top_2_gram")
    max_top_3_gram: float | None = _threshold("max_top_3_gram")
    max_top_4_gram: float | None = _threshold("max_top_4_gram")
    max_duplicate_5_grams: float | None = _threshold("max_duplicate_5_grams")
    max_duplicate_6_grams: float | None = _threshold("max_duplicate_6_grams")
    max_duplicate_7_grams: float | None = _threshold("max_duplicate_7_grams")
    max_duplicate_8_grams: float | None = _threshold("max_duplicate_8_grams")
    max_duplicate_9_grams: float | None = _threshold("max_duplicate_9_grams")
    max_duplicate_10_grams: float | None = _threshold("max_duplicate_10_grams")

    c4_min_words_per_line: int | None = _threshold("c4_min_words_per_line")
    c4_max_word_chars: int | None = _threshold("c4_max_word_chars")
    c4_min_sentences: int | None = _threshold("c4_min_sentences")
    c4_max_removed_words: float | None = _threshold("c4_max_removed_words")

    fineweb_min_line_punctuation: float | None = _threshold("fineweb_min_line_punctuation")
    fineweb_max_short_lines: float | None = _threshold("fineweb_max_short_lines")
    fineweb_short_line_chars: int | None = _threshold("fineweb_short_line_chars")
    fineweb_max_duplicate_line_chars: float | None = _threshold("fineweb_max_duplicate_line_chars")
    fineweb_max_newlines_per_word: float | None = _threshold("fineweb_max_newlines_per_word")

    min_chars: int | None = _threshold("min_chars")
    line_edits_max_uppercase: float | None = _threshold("line_edits_max_uppercase")
    line_edits_max_digits: float | None = _threshold("line_edits_max_digits")
    line_edits_min_words: int | None = _threshold("line_edits_min_words")
    line_edits_max_words: int | None = _threshold("line_edits_max_words")
    line_edits_max_removed_words: float | None = _threshold("line_edits_max_removed_words")
    madlad_min_sentences: int | None = _threshold("madlad_min_sentences")
    madlad_max_suspect_sentences: float | None = _threshold("madlad_max_suspect_sentences")
    code_max_lines: int | None = _threshold("code_max_lines")
    code_max_line_chars: int | None = _threshold("code_max_line_chars")
    code_max_mean_line_chars: float | None = _threshold("code_max_mean_line_chars")
    code_min_alphabetic: float | None = _threshold("code_min_alphabetic")
    code_min_alphanumeric: float | None = _threshold("code_min_alphanumeric")
    code_max_encoded_chars: int | None = _threshold("code_max_encoded_chars")
    code_max_encoded: float | None = _threshold("code_max_encoded")
    code_min_visible_chars: int | None = _threshold("code_min_visible_chars")
    code_min_visible: float | None = _threshold("code_min_visible")


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageQualityTable(_ForTexts):
    """[quality.language.NAME]: what holds for the texts in one language instead of what [quality] says."""

    stop_words: tuple[str, ...] | None = key(
        None, help="in place of the built-in ones; an empty list turns the stop-word rule off"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityTable(_ForTexts):
    """[quality]: rule sets are evaluated in the order given. A threshold left out has the variant's own
    default."""

    rules: tuple[str, ...] = key(
        _DEFAULT_RULES,
        choices=RULE_SETS,
        help='rule sets, in the order of their evaluation (variant = "code": "notebooks" and "code", if left'
        " out)",
    )
    variant: Variant = key("datatrove", help="variant of the published rules; code: rules for source files")
    no_table: NoTable = key(
        "refuse",
        help="for texts in a language without a table for the rules (no other table judges them): "
        "refuse the recipe, pass the text unjudged, or reject it as quality.no_table",
    )
    c4_terminal_punctuation: bool = key(
        True, help="remove lines without terminal punctuation (FineWeb: false)"
    )
    line_edits: Literal["dclm", "dolma3"] = key(
        "dclm", help="which line edits; they define words, digits and lengths differently (docs/rules.md)"
    )
    ledger: Literal["first", "all"] = key(
        "first", help="first: record the rule that rejects; all: measure and record every rule"
    )
    stop_words: dict[str, tuple[str, ...]] = key(
        {}, help="stop words by language, in place of the built-in ones"
    )
    stop_words_off: tuple[str, ...] = key((), help="languages for which the stop-word rule is off")
    white_space_words: tuple[str, ...] = key(
        (),
        help="languages whose words are split at white space only (not those written without it, "
        "such as ja, zh, th)",
    )
    language: dict[str, LanguageQualityTable] = key({}, help="language = what holds for its texts instead")

    def __post_init__(self) -> None:
        # Rules of prose have no variant for source files: what is left out there means that variant's own.
        if self.variant == "code" and self.rules == _DEFAULT_RULES:
            object.__setattr__(self, "rules", ("notebooks", "code"))


def table_for(table: QualityTable, language: str | None) -> QualityTable:
    """What holds for the texts in one language: [quality] with the keys of its own [quality.language.NAME] on
    top."""
    own = own_table_of(table, language)
    if own is None or language is None:
        return table
    if own.stop_words is not None:
        table = dataclasses.replace(
            table,
            stop_words={language: own.stop_words} if own.stop_words else {},
            stop_words_off=() if own.stop_words else (language,),
        )
    given = ((field.name, getattr(own, field.name)) for field in dataclasses.fields(_ForTexts))
    return dataclasses.replace(
        table, **{name: value for name, value in given if value is not None}, language={}
    )


def own_table_of(table: QualityTable, language: str | None) -> LanguageQualityTable | None:
    """The [quality.language.NAME] of a language, by whatever label it is named."""
    if language is None:
        return None
    code = language_code(language)
    return next((own for label, own in table.language.items() if language_code(label) == code), None)


def limits(table: QualityTable, language: str | None = None) -> dict[str, float]:
    """Every threshold of the table's variant by name, for texts in a language; without one, those that the
    same holds for in all. A rule that the language's configuration switches off has none. RecipeError for one
    set that the variant does not have."""
    own_table = own_table_of(table, language)
    table = table_for(table, language)
    for name in sorted(THRESHOLDS):
        if getattr(table, name) is not None and not is_in(name, table.variant):
            where = "quality" if getattr(own_table, name, None) is None else f"quality.language.{language}"
            raise RecipeError(
                f"{where}.{name} = {getattr(table, name)}: variant {table.variant!r} has no such rule; "
                "leave the key out, or choose another quality.variant"
            )
    of_language = _thresholds_of(table.variant, language)
    found: dict[str, float] = {}
    for name, threshold in THRESHOLDS.items():
        value = getattr(table, name)
        if value is None and (name in of_language or is_by_language(name, table.variant)):
            value = of_language.get(name)
        elif value is None:
            value = threshold.in_variant(table.variant)
        if value is not None and is_in(name, table.variant):
            found[name] = float(value)
    return found


def _thresholds_of(variant: Variant, language: str | None) -> Mapping[str, float | None]:
    """What a language has of its own, by name; None where it switches the rule off."""
    if language is None:
        return {}
    code = language_code(language)
    of_code = {name: each.by_language[code] for name, each in THRESHOLDS.items() if code in each.by_language}
    configuration = configuration_of(language) if variant == "fineweb2" else None
    return of_code if configuration is None else {**configuration.thresholds, **of_code}


def thresholds_by_language(table: QualityTable, name: str) -> dict[str, float]:
    """The threshold of each language, by code, for which [quality.language.NAME], a configuration of
    FineWeb-2 or the rules of source files give another than `limits(table)` has; infinite, on the side that
    passes, where one switches the rule off."""
    alike = limits(table).get(name)
    found: dict[str, float] = {}
    is_off = -math.inf if "min_" in name else math.inf
    if getattr(table, name) is None:
        if table.variant == "fineweb2" and name in BY_LANGUAGE:
            found = {code: each.thresholds.get(name, is_off) for code, each in configurations().items()}
        own = THRESHOLDS[name].by_language
        found |= {code: is_off if value is None else value for code, value in own.items()}
    for code in map(language_code, table.language):
        if (value := limits(table, code).get(name)) is not None:
            found[code] = value
    return {code: value for code, value in sorted(found.items()) if value != alike}


def check_thresholds(table: QualityTable) -> None:
    """RecipeError for a rule set that is named twice, a share above 1, and a least number above the greatest,
    in [quality] and in each [quality.language.NAME]."""
    _check_thresholds(table, limits(table), "quality")
    for label, own in table.language.items():
        _check_thresholds(own, limits(table, label), f"quality.language.{label}")


def _check_thresholds(table: _ForTexts, limits_of_texts: Mapping[str, float], where: str) -> None:
    for name in (rules := table.rules or ()):
        if rules.count(name) > 1:
            raise RecipeError(
                f"{where}.rules names {name!r} twice: a rule set is evaluated once", f"{where}.rules"
            )
        if table.variant is not None and name not in (known := rule_sets_of(table.variant)):
            raise RecipeError(
                f"{where}.rules names {name!r}, and variant {table.variant!r} has no such rules: choose among"
                f" {', '.join(known)}, or another {where}.variant",
                f"{where}.rules",
            )
    for field in dataclasses.fields(_ForTexts):
        value, unit = getattr(table, field.name), field.metadata.get("unit")
        # The occurrences of the most common n-gram may overlap, so that their characters are more than the
        # text's.
        if value is not None and unit == "share" and not field.name.startswith("max_top_") and value > 1:
            name = f"{where}.{field.name}"
            raise RecipeError(f"{name} = {value}: expected a share of at most 1", name)
    for least, most in (("min_words", "max_words"), ("min_word_length", "max_word_length")):
        low, high = limits_of_texts.get(least, 0.0), limits_of_texts.get(most, math.inf)
        if low > high:
            raise RecipeError(
                f"{where}.{least} = {low:g} is above {where}.{most} = {high:g}: no page would be kept",
                f"{where}.{least}",
            )


def stop_words_of(table: QualityTable, language: str) -> tuple[str, ...]:
    """The stop words of `language`; none where there is no table or the rule is off."""
    table = table_for(table, language)
    if is_among(table.stop_words_off, language):
        return ()
    code = language_code(language)
    own = next((words for label, words in table.stop_words.items() if language_code(label) == code), None)
    if own is not None:
        return own
    if table.variant != "fineweb2":
        return STOP_WORDS.get(code, ())
    configuration = configuration_of(language)
    return () if configuration is None else configuration.stop_words


def splitter_of(table: QualityTable, language: str) -> str | None:
    """What splits the words of `language`, as `stages.quality.splitters` names it; None where nothing at hand
    does."""
    if is_among(table.white_space_words, language):
        return WHITE_SPACE
    if table_for(table, language).variant == "fineweb2":
        configuration = configuration_of(language)
        name = None if configuration is None else configuration.words
        return name if name is not None and is_known(name) and not lacking_packages(name) else None
    code = language_code(language)
    return f"spacy:{code}" if code in SPLIT_BY_SPACY else None


def check_tables(table: QualityTable) -> None:
    """RecipeError where the keys that make tables of languages make none: no words, too many, two tables of
    one language, or white space for a language that has none between its words."""
    for language, words in table.stop_words.items():
        if not 0 < len(words) <= MAX_STOP_WORDS:
            raise RecipeError(
                f"quality.stop_words.{language} has {len(words)} words: expected 1 to {MAX_STOP_WORDS}"
            )
    check_one_each("quality.stop_words has lists for", table.stop_words)
    check_one_each("quality.language has tables for", table.language)
    for language, own in table.language.items():
        where = f"quality.language.{language}.stop_words"
        if own.stop_words is None:
            continue
        if len(own.stop_words) > MAX_STOP_WORDS:
            raise RecipeError(
                f"{where} has {len(own.stop_words)} words: expected at most {MAX_STOP_WORDS}", where
            )
        for key_name, labels in (("stop_words", table.stop_words), ("stop_words_off", table.stop_words_off)):
            if is_among(labels, language):
                raise RecipeError(
                    f"{where} is given, and quality.{key_name} names the language too: leave one of them out",
                    where,
                )
    for label in table.stop_words:
        if is_among(table.stop_words_off, label):
            raise RecipeError(
                f"quality.stop_words.{label} is given, and quality.stop_words_off turns the rule off for that"
                " language: leave one of them out",
                "quality.stop_words_off",
            )
    for language in table.white_space_words:
        if not has_white_space(language):
            raise RecipeError(
                f"quality.white_space_words names {language!r}, which is written without white space between"
                " words, so that a whole sentence would be one word: leave it out, and say what becomes of"
                " such texts with"
                ' quality.no_table = "pass" or "reject"',
                "quality.white_space_words",
            )


def check_one_each(said: str, labels: Iterable[str]) -> None:
    """RecipeError, which `said` begins, where two of the labels name one language."""
    by_code: dict[str, list[str]] = {}
    for label in labels:
        by_code.setdefault(language_code(label), []).append(label)
    for same in by_code.values():
        if len(same) > 1:
            raise RecipeError(f"{said} {', '.join(same)}, which are one language: keep one")


def is_among(labels: Iterable[str], language: str) -> bool:
    """Whether one of the labels names the language."""
    return language_code(language) in map(language_code, labels)
