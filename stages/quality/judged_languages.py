"""Which languages the rules chosen have a table for, and what they lack of the others."""

from __future__ import annotations

from typing import Final, Literal

from lineage.recipe import RecipeError
from stages.quality.fineweb2.configurations import configuration_of, configurations
from stages.quality.languages import (
    SPLIT_BY_SPACY,
    STOP_WORDS,
    UNDETERMINED,
    has_white_space,
    label_hint,
    language_code,
)
from stages.quality.options import QualityTable, is_among, limits, splitter_of, stop_words_of, table_for
from stages.quality.rule_sets.catalogue import OF_ANY_LANGUAGE
from stages.quality.rules import measured_as
from stages.quality.splitters import lacking_packages


def table_of(table: QualityTable, language: str | None) -> str | None:
    """The code of the language by whose table the rules judge a text in `language`: its own, or None where
    there is none. Rules that look at no words judge a text in any language."""
    return None if _lack(table, language) else language_code(language or UNDETERMINED)


Lack = Literal["a language", "a configuration", "white space", "a splitter", "a package", "stop words"]


def _lack(table: QualityTable, language: str | None) -> Lack | None:
    """What the rules chosen need of a language and do not have of this one; None where they have all."""
    table = table_for(table, language)
    needs_words, at_white_space = _needs_words(table), _counts_at_white_space(table)
    needs_stop_words = "gopher_quality" in table.rules and limits(table)["min_stop_words"] > 0
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
    is_off = is_among(table.stop_words_off, language)
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
                f"language {language!r}{hint} {where}, but {_message(of_language, language, lack)}"
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


def _message(table: QualityTable, language: str, lack: Lack) -> str:
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
