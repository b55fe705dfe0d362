"""The recipe's [quality] table: which rule sets, in which variant, with which thresholds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from lineage.recipe import RecipeError, key
from stages.quality.fineweb2.configurations import BY_LANGUAGE, configuration_of, configurations
from stages.quality.languages import (
    SPLIT_BY_SPACY,
    STOP_WORDS,
    UNDETERMINED,
    has_white_space,
    label_hint,
    language_code,
)
from stages.quality.splitters import WHITE_SPACE, is_known, lacking_packages
from stages.quality.words import MAX_STOP_WORDS

RULE_SETS: Final = (
    "gopher_quality", "gopher_repetition", "c4", "fineweb", "length", "url_removal", "newlines", "line_edits", "madlad",
    "ftfy", "symbol_lines", "notebooks", "code",
)  # fmt: skip
OF_ANY_LANGUAGE: Final = frozenset({
    "length", "url_removal", "newlines", "line_edits", "madlad", "ftfy", "symbol_lines", "notebooks", "code",
})  # fmt: skip
"""Rule sets that ask for no words in a language, and are the same in every variant."""
_DEFAULT_RULES: Final = ("gopher_quality", "gopher_repetition")
Variant = Literal["datatrove", "paper", "dclm", "dolma", "fineweb2", "code"]
NoTable = Literal["refuse", "pass", "reject"]


def rule_sets_of(variant: Variant) -> tuple[str, ...]:
    """The rule sets that a variant has, in the order of RULE_SETS."""
    return tuple(name for name in RULE_SETS if variant != "code" or name in OF_ANY_LANGUAGE)


def measured_as(variant: Variant) -> Variant:
    """The variant whose measures this one has: FineWeb-2 is datatrove's filters with other thresholds, stop
    words and ways to split words."""
    return "datatrove" if variant == "fineweb2" else variant


_GOPHER: Final = "Rae et al. 2021 (Gopher), section A1.1"
_REPETITION: Final = "Rae et al. 2021 (Gopher), Table A1"
_C4: Final = "TensorFlow Datasets, text/c4_utils.py"
_DCLM: Final = "mlfoundations/dclm, baselines_configs/dclm_baseline_refinedweb.yaml"
_DOLMA3: Final = "allenai/datamap-rs, configs/all_dressed/all_dressed_config.yaml (Dolma 3)"
_STACK: Final = "Lozhkov et al. 2024 (StarCoder 2 and The Stack v2), section 3.1"
_STARCODER: Final = "Li et al. 2023 (StarCoder), section 3.3"
_FINEWEB: Final = "Penedo et al. 2024 (FineWeb), Table 2, and datatrove's fineweb_quality_filter.py"


def _share(help: str, source: str, unit: str = "share") -> float | None:
    default: float | None = key(None, at_least=0, help=help, source=source, unit=unit)
    return default


def _count(help: str, source: str, unit: str) -> int | None:
    default: int | None = key(None, at_least=0, help=help, source=source, unit=unit)
    return default


@dataclass(frozen=True, slots=True, kw_only=True)
class _ForTexts:
    """What [quality] and each [quality.language.NAME] have; None where the latter leaves it to the former."""

    rules: tuple[str, ...] | None = key(
        None, choices=RULE_SETS, help="rule sets, in the order of their evaluation ([quality])"
    )
    variant: Variant | None = key(None, help="whose variant of the published rules ([quality])")
    no_table: NoTable | None = key(
        None, help="what becomes of a text that the rules have no table for ([quality])"
    )
    c4_terminal_punctuation: bool | None = key(None, help="lines without terminal punctuation go ([quality])")
    line_edits: Literal["dclm", "dolma3"] | None = key(None, help="whose line edits ([quality])")

    min_words: int | None = _count("words a page has at least", _GOPHER, "words")
    max_words: int | None = _count("words a page has at most", _GOPHER, "words")
    min_word_length: float | None = _share(
        "mean (dolma: median) characters of a word, at least", _GOPHER, "characters"
    )
    max_word_length: float | None = _share(
        "mean (dolma: median) characters of a word, at most", _GOPHER, "characters"
    )
    max_hashes_per_word: float | None = _share(
        "'#' for each word (datatrove, paper)", _GOPHER, "hashes a word"
    )
    max_ellipses_per_word: float | None = _share(
        "ellipses for each word (datatrove, paper)", _GOPHER, "ellipses a word"
    )
    max_symbols_per_word: float | None = _share(
        "'#' and ellipses together for each word (dclm, dolma)", _GOPHER, "symbols a word"
    )
    max_bullet_lines: float | None = _share("share of lines that start with a bullet", _GOPHER)
    max_ellipsis_lines: float | None = _share("share of lines that end in an ellipsis", _GOPHER)
    min_alphabetic_words: float | None = _share("share of words with a letter", _GOPHER)
    min_stop_words: int | None = _count(
        "stop words a page holds at least (datatrove, paper: different ones)", _GOPHER, "words"
    )

    max_duplicate_paragraphs: float | None = _share(
        "share of paragraphs that are duplicates (not dolma)", _REPETITION
    )
    max_duplicate_paragraph_chars: float | None = _share(
        "share of characters in duplicate paragraphs (not dolma)", _REPETITION
    )
    max_duplicate_lines: float | None = _share("share of lines that are duplicates", _REPETITION)
    max_duplicate_line_chars: float | None = _share("share of characters in duplicate lines", _REPETITION)
    max_top_2_gram: float | None = _share("share of characters in the most common 2-gram", _REPETITION)
    max_top_3_gram: float | None = _share("share of characters in the most common 3-gram", _REPETITION)
    max_top_4_gram: float | None = _share("share of characters in the most common 4-gram", _REPETITION)
    max_duplicate_5_grams: float | None = _share("share of characters in duplicate 5-grams", _REPETITION)
    max_duplicate_6_grams: float | None = _share("share of characters in duplicate 6-grams", _REPETITION)
    max_duplicate_7_grams: float | None = _share("share of characters in duplicate 7-grams", _REPETITION)
    max_duplicate_8_grams: float | None = _share("share of characters in duplicate 8-grams", _REPETITION)
    max_duplicate_9_grams: float | None = _share("share of characters in duplicate 9-grams", _REPETITION)
    max_duplicate_10_grams: float | None = _share("share of characters in duplicate 10-grams", _REPETITION)

    c4_min_words_per_line: int | None = _count("words a line has at least, or it goes", _C4, "words")
    c4_max_word_chars: int | None = _count(
        "characters of a line's longest word, or it goes (not dolma)", _C4, "characters"
    )
    c4_min_sentences: int | None = _count(
        "sentences that the lines left have at least (not dolma)", _C4, "sentences"
    )
    c4_max_removed_words: float | None = _share(
        "share of a page's words in lines that went (only dclm sets it)", _DCLM
    )

    fineweb_min_line_punctuation: float | None = _share(
        "share of lines that end in terminal punctuation", _FINEWEB
    )
    fineweb_max_short_lines: float | None = _share("share of short lines", _FINEWEB)
    fineweb_short_line_chars: int | None = _count(
        "characters up to which a line is short", _FINEWEB, "characters"
    )
    fineweb_max_duplicate_line_chars: float | None = _share(
        "share of characters in duplicate lines", _FINEWEB
    )
    fineweb_max_newlines_per_word: float | None = _share(
        "line feeds for each word (not paper)", _FINEWEB, "line feeds a word"
    )

    min_chars: int | None = _count("characters a page has at least", _DOLMA3, "characters")
    line_edits_max_uppercase: float | None = _share("share of a line's length in capitals, or it goes", _DCLM)
    line_edits_max_digits: float | None = _share("share of a line's length in digits, or it goes", _DCLM)
    line_edits_min_words: int | None = _count("words a line has at least, or it goes", _DCLM, "words")
    line_edits_max_words: int | None = _count(
        "words of a line, at most, that phrases such as 'items in cart' are cut from", _DCLM, "words"
    )
    line_edits_max_removed_words: float | None = _share("share of a page's words that line edits took", _DCLM)
    madlad_min_sentences: int | None = _count("sentences a page has at least", _DOLMA3, "sentences")
    madlad_max_suspect_sentences: float | None = _share(
        "share of sentences that are suspect: from it on a page goes", _DOLMA3
    )
    code_max_lines: int | None = _count(
        "lines a source file has at most (512 of data formats)", _STACK, "lines"
    )
    code_max_line_chars: int | None = _count(
        "characters of a source file's longest line, at most (100,000 of markup and data)",
        _STACK,
        "characters",
    )
    code_max_mean_line_chars: float | None = _share(
        "mean characters of a source file's lines, at most (off for markup and data)", _STACK, "characters"
    )
    code_min_alphabetic: float | None = _share("share of a source file's characters that are letters", _STACK)
    code_min_alphanumeric: float | None = _share("share that are letters or digits", _STACK)
    code_max_encoded_chars: int | None = _count(
        "characters of the longest run of base64, hexadecimal bytes or escapes", _STACK, "characters"
    )
    code_max_encoded: float | None = _share("share of a source file's characters in such runs", _STACK)
    code_min_visible_chars: int | None = _count(
        "visible characters of an HTML file", _STARCODER, "characters"
    )
    code_min_visible: float | None = _share("share of an HTML file's characters that are visible", _STARCODER)


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
    variant: Variant = key(
        "datatrove", help="whose variant of the published rules; code: those of source files"
    )
    no_table: NoTable = key(
        "refuse",
        help="a text in a language that the rules have no table for, which no other table ever judges: the"
        " recipe is refused, or the text passes unjudged, or it is turned down as quality.no_table",
    )
    c4_terminal_punctuation: bool = key(True, help="lines without terminal punctuation go (FineWeb: false)")
    line_edits: Literal["dclm", "dolma3"] = key(
        "dclm", help="whose line edits: they differ in what a word, a digit and a length are (docs/rules.md)"
    )
    ledger: Literal["first", "all"] = key(
        "first", help="all: every rule is measured and kept, not only the first"
    )
    stop_words: dict[str, tuple[str, ...]] = key(
        {}, help="stop words by language, in place of the built-in ones"
    )
    stop_words_off: tuple[str, ...] = key((), help="languages for which the stop-word rule is off")
    white_space_words: tuple[str, ...] = key(
        (),
        help="languages whose words are split at white space alone (not those written without it, as ja, zh,"
        " th)",
    )
    language: dict[str, LanguageQualityTable] = key({}, help="language = what holds for its texts instead")

    def __post_init__(self) -> None:
        # Rules of prose have no variant for source files: what is left out there means that variant's own.
        if self.variant == "code" and self.rules == _DEFAULT_RULES:
            object.__setattr__(self, "rules", ("notebooks", "code"))


_COMMON: Final[dict[str, float]] = {
    "min_words": 50, "max_words": 100_000, "min_word_length": 3, "max_word_length": 10,
    "max_hashes_per_word": 0.1, "max_ellipses_per_word": 0.1, "max_symbols_per_word": 0.1, "max_bullet_lines": 0.9,
    "max_ellipsis_lines": 0.3, "min_alphabetic_words": 0.8, "min_stop_words": 2,
    "max_duplicate_paragraphs": 0.3, "max_duplicate_paragraph_chars": 0.2, "max_duplicate_lines": 0.3,
    "max_duplicate_line_chars": 0.2, "max_top_2_gram": 0.2, "max_top_3_gram": 0.18, "max_top_4_gram": 0.16,
    "max_duplicate_5_grams": 0.15, "max_duplicate_6_grams": 0.14, "max_duplicate_7_grams": 0.13,
    "max_duplicate_8_grams": 0.12, "max_duplicate_9_grams": 0.11, "max_duplicate_10_grams": 0.1,
    "c4_min_words_per_line": 5, "c4_max_word_chars": 1000, "c4_min_sentences": 3, "c4_max_removed_words": 1,
    "fineweb_min_line_punctuation": 0.12, "fineweb_max_short_lines": 0.67, "fineweb_short_line_chars": 30,
    "fineweb_max_duplicate_line_chars": 0.01, "fineweb_max_newlines_per_word": 0.3,
    "min_chars": 150, "line_edits_max_uppercase": 0.5, "line_edits_max_digits": 0.999999, "line_edits_min_words": 2,
    "line_edits_max_words": 10, "line_edits_max_removed_words": 0.05, "madlad_min_sentences": 5,
    "madlad_max_suspect_sentences": 0.2,
    "code_max_lines": 100_000, "code_max_line_chars": 1000, "code_max_mean_line_chars": 100,
    "code_min_alphabetic": 0.25, "code_min_alphanumeric": 0.25, "code_max_encoded_chars": 1024, "code_max_encoded": 0.5,
    "code_min_visible_chars": 100, "code_min_visible": 0.2,
}  # fmt: skip
"""As the sources print them that QualityTable names for each threshold."""

_OWN: Final[dict[Variant, dict[str, float]]] = {
    "datatrove": {"c4_min_words_per_line": 3, "c4_min_sentences": 5},
    "paper": {},
    "dclm": {"c4_max_removed_words": 0.05},
    "dolma": {"max_duplicate_line_chars": 0.3, "c4_min_words_per_line": 3},
    "fineweb2": {"c4_min_words_per_line": 3, "c4_min_sentences": 5, "fineweb_max_duplicate_line_chars": 0.1},
    "code": {},
}
"""Where a variant's default differs; the modules of the rule sets name the sources. FineWeb-2's: Penedo et
al. 2025, and its configurations, which give the thresholds of `BY_LANGUAGE`."""

_OF_PROSE: Final = (
    "min_words", "max_words", "min_word_", "max_word_", "max_hashes", "max_ellip", "max_symbols", "max_bullet",
    "min_alphabetic", "min_stop", "max_duplicate", "max_top", "c4_", "fineweb_",
)  # fmt: skip
"""How the thresholds of rule sets begin that judge words and sentences."""

_WITHOUT: Final[dict[Variant, frozenset[str]]] = {
    "datatrove": frozenset({"max_symbols_per_word"}),
    "paper": frozenset({"max_symbols_per_word", "fineweb_max_newlines_per_word"}),
    "dclm": frozenset({"max_hashes_per_word", "max_ellipses_per_word"}),
    "dolma": frozenset({
        "max_hashes_per_word", "max_ellipses_per_word", "max_duplicate_paragraphs", "max_duplicate_paragraph_chars",
        "c4_max_word_chars", "c4_min_sentences",
    }),
    "fineweb2": frozenset({
        "max_symbols_per_word", "max_duplicate_paragraphs", "max_duplicate_paragraph_chars",
        "max_duplicate_line_chars", "fineweb_max_short_lines", "fineweb_short_line_chars",
    }),
    "code": frozenset(name for name in _COMMON if name.startswith(_OF_PROSE)),
}  # fmt: skip
"""Thresholds of rules that a variant does not have."""

_HTML_ONLY: Final = frozenset({"code_min_visible_chars", "code_min_visible"})
_MARKUP: Final[Mapping[str, float | None]] = {
    "code_max_line_chars": 100_000,
    "code_max_mean_line_chars": None,
}
_DATA: Final[Mapping[str, float | None]] = {"code_max_lines": 512}
_NO_LETTERS: Final[Mapping[str, float | None]] = {"code_min_alphabetic": None}
OF_CODE: Final[Mapping[str, Mapping[str, float | None]]] = {
    "html": {**_MARKUP, **{name: _COMMON[name] for name in sorted(_HTML_ONLY)}},
    "json": {**_MARKUP, **_DATA},
    "text": {**_MARKUP, **_DATA},
    "yaml": _DATA,
    "owl": _DATA,
    "dot": _DATA,
    **dict.fromkeys(("markdown", "roff", "roff-manpage", "smt", "tex", "xml"), _MARKUP),
    **dict.fromkeys(("motorola-68k", "webassembly"), _NO_LETTERS),
}
"""Thresholds of the rule set "code" by programming language, where they are others (None: the rule is off):
Lozhkov et al. 2024, section 3.1; for HTML, Li et al. 2023, section 3.3."""


def threshold_defaults(name: str) -> dict[Variant, float | None]:
    """The default of a threshold in each variant that has its rule, None in one where each language has its
    own; no variant where `name` is no threshold."""
    if name not in _COMMON:
        return {}
    return {
        variant: None if _is_by_language(variant, name) else _OWN[variant].get(name, _COMMON[name])
        for variant in _OWN
        if name not in _WITHOUT[variant]
    }


def _is_by_language(variant: Variant, name: str) -> bool:
    """Whether only single languages have a threshold of this name."""
    return name in _HTML_ONLY or (variant == "fineweb2" and name in BY_LANGUAGE)


def table_for(table: QualityTable, language: str | None) -> QualityTable:
    """What holds for the texts in one language: [quality] with the keys of its own [quality.language.NAME] on
    top."""
    own = own_table_of(table, language)
    if own is None or language is None:
        return table
    given = ((field.name, getattr(own, field.name)) for field in dataclasses.fields(_ForTexts))
    changed: dict[str, Any] = {name: value for name, value in given if value is not None}
    if own.stop_words is not None:
        changed["stop_words"] = {language: own.stop_words} if own.stop_words else {}
        changed["stop_words_off"] = () if own.stop_words else (language,)
    return dataclasses.replace(table, **changed, language={})


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
    for name in sorted(_WITHOUT[table.variant]):
        if getattr(table, name) is not None:
            where = "quality" if getattr(own_table, name, None) is None else f"quality.language.{language}"
            raise RecipeError(
                f"{where}.{name} = {getattr(table, name)}: variant {table.variant!r} has no such rule; "
                "leave the key out, or choose another quality.variant"
            )
    fields = {field.name for field in dataclasses.fields(table)}
    assert _COMMON.keys() <= fields
    of_language = _thresholds_of(table.variant, language)
    own = _OWN[table.variant]
    found: dict[str, float] = {}
    for name, default in _COMMON.items():
        value = getattr(table, name)
        if value is None and (name in of_language or _is_by_language(table.variant, name)):
            value = of_language.get(name)
        elif value is None:
            value = own.get(name, default)
        if value is not None and name not in _WITHOUT[table.variant]:
            found[name] = float(value)
    return found


def _thresholds_of(variant: Variant, language: str | None) -> Mapping[str, float | None]:
    """What a language has of its own, by name; None where it switches the rule off."""
    if language is None:
        return {}
    of_code = OF_CODE.get(language_code(language), {})
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
        own = {code: each[name] for code, each in OF_CODE.items() if name in each}
        found |= {code: is_off if value is None else value for code, value in own.items()}
    for code in map(language_code, table.language):
        if (value := limits(table, code).get(name)) is not None:
            found[code] = value
    return {code: value for code, value in sorted(found.items()) if value != alike}


def check_thresholds(table: QualityTable) -> None:
    """RecipeError for a rule set that is named twice, a share above 1, and a least number above the greatest,
    in [quality] and in each [quality.language.NAME].

    These are no bounds of the keys, since outputs of earlier releases keep such recipes and must stay
    readable."""
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
    if _names(table.stop_words_off, language):
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
    if _names(table.white_space_words, language):
        return WHITE_SPACE
    if table_for(table, language).variant == "fineweb2":
        configuration = configuration_of(language)
        name = None if configuration is None else configuration.words
        return name if name is not None and is_known(name) and not lacking_packages(name) else None
    code = language_code(language)
    return f"spacy:{code}" if code in SPLIT_BY_SPACY else None


def table_of(table: QualityTable, language: str | None) -> str | None:
    """The code of the language by whose table the rules judge a text in `language`: its own, or None where
    there is none. Rules that look at no words judge a text in any language."""
    return None if _lack(table, language) else language_code(language or UNDETERMINED)


Lack = Literal["a language", "a configuration", "white space", "a splitter", "a package", "stop words"]


def _lack(table: QualityTable, language: str | None) -> Lack | None:
    """What the rules chosen need of a language and do not have of this one; None where they have all."""
    table = table_for(table, language)
    needs_words, at_white_space = _needs_words(table), _counts_at_white_space(table)
    needs_stop_words = _needs_stop_words(table)
    needs_configuration = table.variant == "fineweb2" and bool(set(table.rules) - {"c4"} - OF_ANY_LANGUAGE)
    if language is None:
        needs_any = needs_words or at_white_space or needs_stop_words or needs_configuration
        return "a language" if needs_any else None
    if needs_configuration and configuration_of(language) is None:
        return "a configuration"
    if at_white_space and not has_white_space(language):
        return "white space"
    if needs_words and splitter_of(table, language) is None:
        if table.variant == "fineweb2" and _lacking_packages(language):
            return "a package"
        return "a splitter" if has_white_space(language) else "white space"
    is_off = _names(table.stop_words_off, language)
    return "stop words" if needs_stop_words and not is_off and not stop_words_of(table, language) else None


def _lacking_packages(language: str) -> tuple[str, ...]:
    configuration = configuration_of(language)
    return () if configuration is None else lacking_packages(configuration.words)


def judges_any_language(table: QualityTable) -> bool:
    """Whether the rules chosen look at no words, so that no text needs a language."""
    return _lack(table, None) is None and not table.language


def judges_code(table: QualityTable) -> bool:
    """Whether the rules of source files are among those chosen, for texts in any language."""
    return any(
        "code" in (each.rules or ()) or each.variant == "code" for each in (table, *table.language.values())
    )


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
            if _names(labels, language):
                raise RecipeError(
                    f"{where} is given, and quality.{key_name} names the language too: leave one of them out",
                    where,
                )
    for label in table.stop_words:
        if _names(table.stop_words_off, label):
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


_NO_TABLE: Final = (
    'set quality.no_table = "pass" to let texts without a table through unjudged, or "reject" to turn them'
    " down as quality.no_table"
)


def check_languages(table: QualityTable, languages: tuple[str, ...], source: str | None = None) -> None:
    """RecipeError where texts in these languages come (none: in any), one of them has no table, and the
    recipe does not say what becomes of its texts. The message names the ways out. `source`: whose language it
    is, if not a kept one."""
    if not languages and table.no_table == "refuse" and not judges_any_language(table):
        raise RecipeError(
            'language.keep is empty or "all", so that texts of any language are kept, and quality.rules have no table'
            f" for some of them (they have one for {_known(table)}): {_NO_TABLE}, or name languages in language.keep",
            "language.keep",
        )
    for language in languages:
        of_language = table_for(table, language)
        if of_language.no_table == "refuse" and (lack := _lack(table, language)) is not None:
            where = "is kept" if source is None else f"is source.language of {source!r}"
            hint = label_hint(language)
            raise RecipeError(
                f"language {language!r}{hint} {where}, but {_said(of_language, language, lack)}"
            )


def _known(table: QualityTable) -> str:
    """The languages that have a table for the rules chosen."""
    named = {
        *SPLIT_BY_SPACY,
        *table.stop_words,
        *table.stop_words_off,
        *table.white_space_words,
        *table.language,
    }
    if table.variant == "fineweb2":
        num = sum(_lack(table, code) is None for code in configurations())
        return f"{num:,} of FineWeb-2's {len(configurations()):,}"
    return ", ".join(sorted(language for language in named if _lack(table, language) is None))


def _said(table: QualityTable, language: str, lack: Lack) -> str:
    other_rules = "choose other quality.rules for its source"
    configuration = configuration_of(language)
    words = "" if configuration is None else configuration.words.partition(":")[0]
    if lack == "a configuration":
        return (
            "FineWeb-2 has no configuration for it: give"
            f' quality.language.{language}.variant = "datatrove", or another variant that has a table for it,'
            f" or {_NO_TABLE}, or {other_rules}"
        )
    if lack == "a package":
        return (
            f"its words are split by {' and '.join(_lacking_packages(language))}, which cannot be imported:"
            f" install the extra `languages` (pip install '.[languages]' in the checkout), or {_NO_TABLE}, or"
            f" {other_rules}"
        )
    if lack == "white space" and table.variant == "fineweb2" and words:
        return f"FineWeb-2 splits its words with {words}, which is not at hand here: {_NO_TABLE}, or {other_rules}"
    if lack == "white space":
        return (
            "quality.rules count words, and it is written without white space between them, so that the"
            f" rules have no table for it: {_NO_TABLE}, or {other_rules}"
        )
    if lack == "a splitter" and table.variant == "fineweb2":
        return (
            f"FineWeb-2 splits its words with {words}, which is not at hand here: add it to"
            f" quality.white_space_words to split it at white space, or {_NO_TABLE}, or {other_rules}"
        )
    if lack == "a splitter":
        return (
            f"the rules have no way to split its words (they have one for {', '.join(SPLIT_BY_SPACY)}): add"
            f" it to quality.white_space_words to split it at white space, or {_NO_TABLE}, or {other_rules}"
        )
    return (
        f"gopher_quality has no stop words for it (it has for {', '.join(STOP_WORDS)}): add it to"
        f" quality.stop_words_off to turn that rule off for it, or give quality.stop_words.{language}, or"
        f" {_NO_TABLE}"
    )


def _names(labels: Iterable[str], language: str) -> bool:
    return language_code(language) in map(language_code, labels)


def _needs_words(table: QualityTable) -> bool:
    """Whether a rule chosen splits words or sentences by language: all of datatrove's do, of the others only
    FineWeb's line feeds for each word and C4's sentences."""
    if measured_as(table.variant) == "datatrove":
        return not OF_ANY_LANGUAGE.issuperset(table.rules)
    by_fineweb = "fineweb" in table.rules and table.variant != "paper"
    return by_fineweb or ("c4" in table.rules and table.variant != "dolma")


def _counts_at_white_space(table: QualityTable) -> bool:
    """Whether a rule chosen takes what stands between white space for a word, in any language: C4's words of
    a line, and Gopher's rules but for datatrove's."""
    by_gopher = {"gopher_quality", "gopher_repetition"} & set(table.rules)
    return "c4" in table.rules or (measured_as(table.variant) != "datatrove" and bool(by_gopher))


def _needs_stop_words(table: QualityTable) -> bool:
    return "gopher_quality" in table.rules and limits(table)["min_stop_words"] > 0
