"""The recipe's [quality] table: which rule sets, in which variant, with which thresholds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from lineage.recipe import RecipeError, key
from stages.quality.languages import SPLIT_BY_SPACY, STOP_WORDS, UNDETERMINED, has_white_space, language_code
from stages.quality.words import MAX_STOP_WORDS

RULE_SETS: Final = ("gopher_quality", "gopher_repetition", "c4", "fineweb")
Variant = Literal["datatrove", "paper", "dclm", "dolma"]


_GOPHER: Final = "Rae et al. 2021 (Gopher), section A1.1"
_REPETITION: Final = "Rae et al. 2021 (Gopher), Table A1"
_C4: Final = "TensorFlow Datasets, text/c4_utils.py"
_DCLM: Final = "mlfoundations/dclm, baselines_configs/dclm_baseline_refinedweb.yaml"
_FINEWEB: Final = "Penedo et al. 2024 (FineWeb), Table 2, and datatrove's fineweb_quality_filter.py"


def _share(help: str, source: str, unit: str = "share") -> float | None:
    default: float | None = key(None, at_least=0, help=help, source=source, unit=unit)
    return default


def _count(help: str, source: str, unit: str) -> int | None:
    default: int | None = key(None, at_least=0, help=help, source=source, unit=unit)
    return default


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityTable:
    """[quality]: rule sets are evaluated in the order given. A threshold left out has the variant's own default."""

    rules: tuple[str, ...] = key(
        ("gopher_quality", "gopher_repetition"), choices=RULE_SETS, help="rule sets, in the order of their evaluation"
    )
    variant: Variant = key("datatrove", help="whose variant of the published rules")
    no_table: Literal["refuse", "pass", "reject"] = key(
        "refuse",
        help="a text in a language that the rules have no table for, which no other table ever judges: the recipe is"
        " refused, or the text passes unjudged, or it is turned down as quality.no_table",
    )
    ledger: Literal["first", "all"] = key("first", help="all: every rule is measured and kept, not only the first")
    stop_words: dict[str, tuple[str, ...]] = key({}, help="stop words by language, in place of the built-in ones")
    stop_words_off: tuple[str, ...] = key((), help="languages for which the stop-word rule is off")
    white_space_words: tuple[str, ...] = key(
        (), help="languages whose words are split at white space alone (not those written without it, as ja, zh, th)"
    )

    min_words: int | None = _count("words a page has at least", _GOPHER, "words")
    max_words: int | None = _count("words a page has at most", _GOPHER, "words")
    min_word_length: float | None = _share("mean (dolma: median) characters of a word, at least", _GOPHER, "characters")
    max_word_length: float | None = _share("mean (dolma: median) characters of a word, at most", _GOPHER, "characters")
    max_hashes_per_word: float | None = _share("'#' for each word (datatrove, paper)", _GOPHER, "hashes a word")
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

    max_duplicate_paragraphs: float | None = _share("share of paragraphs that are duplicates (not dolma)", _REPETITION)
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

    c4_terminal_punctuation: bool = key(True, help="lines without terminal punctuation go (FineWeb: false)")
    c4_min_words_per_line: int | None = _count("words a line has at least, or it goes", _C4, "words")
    c4_max_word_chars: int | None = _count(
        "characters of a line's longest word, or it goes (not dolma)", _C4, "characters"
    )
    c4_min_sentences: int | None = _count("sentences that the lines left have at least (not dolma)", _C4, "sentences")
    c4_max_removed_words: float | None = _share("share of a page's words in lines that went (only dclm sets it)", _DCLM)

    fineweb_min_line_punctuation: float | None = _share("share of lines that end in terminal punctuation", _FINEWEB)
    fineweb_max_short_lines: float | None = _share("share of short lines", _FINEWEB)
    fineweb_short_line_chars: int | None = _count("characters up to which a line is short", _FINEWEB, "characters")
    fineweb_max_duplicate_line_chars: float | None = _share("share of characters in duplicate lines", _FINEWEB)
    fineweb_max_newlines_per_word: float | None = _share(
        "line feeds for each word (not paper)", _FINEWEB, "line feeds a word"
    )


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
}  # fmt: skip
"""As the sources print them that QualityTable names for each threshold."""

_OWN: Final[dict[Variant, dict[str, float]]] = {
    "datatrove": {"c4_min_words_per_line": 3, "c4_min_sentences": 5},
    "paper": {},
    "dclm": {"c4_max_removed_words": 0.05},
    "dolma": {"max_duplicate_line_chars": 0.3, "c4_min_words_per_line": 3},
}
"""Where a variant's default differs; the modules of the rule sets name the sources."""

_WITHOUT: Final[dict[Variant, frozenset[str]]] = {
    "datatrove": frozenset({"max_symbols_per_word"}),
    "paper": frozenset({"max_symbols_per_word", "fineweb_max_newlines_per_word"}),
    "dclm": frozenset({"max_hashes_per_word", "max_ellipses_per_word"}),
    "dolma": frozenset({
        "max_hashes_per_word", "max_ellipses_per_word", "max_duplicate_paragraphs", "max_duplicate_paragraph_chars",
        "c4_max_word_chars", "c4_min_sentences",
    }),
}  # fmt: skip
"""Thresholds of rules that a variant does not have."""


def threshold_defaults(name: str) -> dict[Variant, float]:
    """The default of a threshold in each variant that has its rule; none where `name` is no threshold."""
    if name not in _COMMON:
        return {}
    return {variant: _OWN[variant].get(name, _COMMON[name]) for variant in _OWN if name not in _WITHOUT[variant]}


def limits(table: QualityTable) -> dict[str, float]:
    """Every threshold of the table's variant by name; RecipeError for one set that the variant does not have."""
    for name in sorted(_WITHOUT[table.variant]):
        if getattr(table, name) is not None:
            raise RecipeError(
                f"quality.{name} = {getattr(table, name)}: variant {table.variant!r} has no such rule; "
                "leave the key out, or choose another quality.variant"
            )
    own = _OWN[table.variant]
    fields = {field.name for field in dataclasses.fields(table)}
    assert _COMMON.keys() <= fields
    return {
        name: own.get(name, default) if (value := getattr(table, name)) is None else float(value)
        for name, default in _COMMON.items()
        if name not in _WITHOUT[table.variant]
    }


def check_thresholds(table: QualityTable) -> None:
    """RecipeError for a rule set that is named twice, a share above 1, and a least number above the greatest.

    These are no bounds of the keys, since outputs of earlier releases keep such recipes and must stay readable."""
    of_variant = limits(table)
    for name in table.rules:
        if table.rules.count(name) > 1:
            raise RecipeError(f"quality.rules names {name!r} twice: a rule set is evaluated once", "quality.rules")
    for field in dataclasses.fields(table):
        value, unit = getattr(table, field.name), field.metadata.get("unit")
        # The occurrences of the most common n-gram may overlap, so that their characters are more than the text's.
        if value is not None and unit == "share" and not field.name.startswith("max_top_") and value > 1:
            name = f"quality.{field.name}"
            raise RecipeError(f"{name} = {value}: expected a share of at most 1", name)
    for least, most in (("min_words", "max_words"), ("min_word_length", "max_word_length")):
        if of_variant[least] > of_variant[most]:
            raise RecipeError(
                f"quality.{least} = {of_variant[least]:g} is above quality.{most} = {of_variant[most]:g}: no page would"
                " be kept",
                f"quality.{least}",
            )


def stop_words_of(table: QualityTable, language: str) -> tuple[str, ...]:
    """The stop words of `language`; none where there is no table or the rule is off."""
    if _names(table.stop_words_off, language):
        return ()
    code = language_code(language)
    own = (words for label, words in table.stop_words.items() if language_code(label) == code)
    return next(own, STOP_WORDS.get(code, ()))


def splits_at_white_space(table: QualityTable, language: str) -> bool:
    """Whether white space alone splits the words of `language`, and not spaCy."""
    return language_code(language) not in SPLIT_BY_SPACY or _names(table.white_space_words, language)


def table_of(table: QualityTable, language: str | None) -> str | None:
    """The code of the language by whose table the rules judge a text in `language`: its own, or None where there is
    none. Rules that look at no words judge a text in any language."""
    return None if _lack(table, language) else language_code(language or UNDETERMINED)


Lack = Literal["a language", "white space", "a splitter", "stop words"]


def _lack(table: QualityTable, language: str | None) -> Lack | None:
    """What the rules chosen need of a language and do not have of this one; None where they have all."""
    needs_words, at_white_space = _needs_words(table), _counts_at_white_space(table)
    needs_stop_words = _needs_stop_words(table)
    if language is None:
        return "a language" if needs_words or at_white_space or needs_stop_words else None
    if (needs_words or at_white_space) and not has_white_space(language):
        return "white space"
    is_split = language_code(language) in SPLIT_BY_SPACY or _names(table.white_space_words, language)
    if needs_words and not is_split:
        return "a splitter"
    is_off = _names(table.stop_words_off, language)
    return "stop words" if needs_stop_words and not is_off and not stop_words_of(table, language) else None


def judges_any_language(table: QualityTable) -> bool:
    """Whether the rules chosen look at no words, so that no text needs a language."""
    return _lack(table, None) is None


def check_tables(table: QualityTable) -> None:
    """RecipeError where the keys that make tables of languages make none: no words, too many, two lists of one
    language, or white space for a language that has none between its words."""
    for language, words in table.stop_words.items():
        if not 0 < len(words) <= MAX_STOP_WORDS:
            raise RecipeError(f"quality.stop_words.{language} has {len(words)} words: expected 1 to {MAX_STOP_WORDS}")
        same = [label for label in table.stop_words if language_code(label) == language_code(language)]
        if len(same) > 1:
            raise RecipeError(f"quality.stop_words has lists for {', '.join(same)}, which are one language: keep one")
    for language in table.white_space_words:
        if not has_white_space(language):
            raise RecipeError(
                f"quality.white_space_words names {language!r}, which is written without white space between words, so"
                " that a whole sentence would be one word: leave it out, and say what becomes of such texts with"
                ' quality.no_table = "pass" or "reject"',
                "quality.white_space_words",
            )


_NO_TABLE: Final = (
    'set quality.no_table = "pass" to let texts without a table through unjudged, or "reject" to turn them down as'
    " quality.no_table"
)


def check_languages(table: QualityTable, languages: tuple[str, ...], source: str | None = None) -> None:
    """RecipeError where texts in these languages come (none: in any), one of them has no table, and the recipe does not
    say what becomes of its texts. The message names the ways out. `source`: whose language it is, if not a kept one."""
    if table.no_table != "refuse" or judges_any_language(table):
        return
    if not languages:
        raise RecipeError(
            "language.keep is empty, so that texts of any language are kept, and quality.rules have no table for some"
            f" of them (they have one for {', '.join(_known(table))}): {_NO_TABLE}, or name languages in language.keep",
            "language.keep",
        )
    for language in languages:
        if (lack := _lack(table, language)) is not None:
            where = "is kept" if source is None else f"is source.language of {source!r}"
            raise RecipeError(f"language {language!r} {where}, but {_said(table, language, lack)}")


def _known(table: QualityTable) -> list[str]:
    """The languages that have a table for the rules chosen."""
    named = {*SPLIT_BY_SPACY, *table.stop_words, *table.stop_words_off, *table.white_space_words}
    return sorted(language for language in named if _lack(table, language) is None)


def _said(table: QualityTable, language: str, lack: Lack) -> str:
    other_rules = "choose other quality.rules for its source"
    if lack == "white space":
        return (
            "quality.rules count words, and it is written without white space between them, so that the rules have no"
            f" table for it: {_NO_TABLE}, or {other_rules}"
        )
    if lack == "a splitter":
        return (
            f"the rules have no way to split its words (they have one for {', '.join(SPLIT_BY_SPACY)}): add it to"
            f" quality.white_space_words to split it at white space, or {_NO_TABLE}, or {other_rules}"
        )
    return (
        f"gopher_quality has no stop words for it (it has for {', '.join(STOP_WORDS)}): add it to"
        f" quality.stop_words_off to turn that rule off for it, or give quality.stop_words.{language}, or {_NO_TABLE}"
    )


def _names(labels: Iterable[str], language: str) -> bool:
    return language_code(language) in map(language_code, labels)


def _needs_words(table: QualityTable) -> bool:
    """Whether a rule chosen splits words or sentences by language: all of datatrove's do, of the others only FineWeb's
    line feeds for each word and C4's sentences."""
    if table.variant == "datatrove":
        return bool(table.rules)
    by_fineweb = "fineweb" in table.rules and table.variant != "paper"
    return by_fineweb or ("c4" in table.rules and table.variant != "dolma")


def _counts_at_white_space(table: QualityTable) -> bool:
    """Whether a rule chosen takes what stands between white space for a word, in any language: C4's words of a line,
    and Gopher's rules but for datatrove's."""
    by_gopher = {"gopher_quality", "gopher_repetition"} & set(table.rules)
    return "c4" in table.rules or (table.variant != "datatrove" and bool(by_gopher))


def _needs_stop_words(table: QualityTable) -> bool:
    return "gopher_quality" in table.rules and limits(table)["min_stop_words"] > 0
