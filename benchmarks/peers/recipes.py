"""The peer: FineWeb and FineWeb-2 as datatrove's own blocks, on a text whose language is known.

`judged_by_datatrove` says of a text which rule turns it down, by our name, and how it reads before and after
personal data is replaced. Blocks that remember the texts before, as PIIFormatter does, are made anew for each
text."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from stages.quality.fineweb2.configurations import configuration_of

RecipeName = Literal["fineweb", "fineweb2"]

REASONS: Final[Mapping[str, str]] = {
    "gopher_short_doc": "gopher_quality.too_few_words",
    "gopher_long_doc": "gopher_quality.too_many_words",
    "gopher_below_avg_threshold": "gopher_quality.words_too_short",
    "gopher_above_avg_threshold": "gopher_quality.words_too_long",
    "gopher_too_many_hashes": "gopher_quality.too_many_hashes",
    "gopher_too_many_ellipsis": "gopher_quality.too_many_ellipses",
    "gopher_too_many_bullets": "gopher_quality.too_many_bullet_lines",
    "gopher_too_many_end_ellipsis": "gopher_quality.too_many_ellipsis_lines",
    "gopher_below_alpha_threshold": "gopher_quality.too_few_alphabetic_words",
    "gopher_enough_stop_words": "gopher_quality.too_few_stop_words",
    "dup_para_frac": "gopher_repetition.duplicate_paragraph_share",
    "dup_para_char_frac": "gopher_repetition.duplicate_paragraph_chars",
    "dup_line_frac": "gopher_repetition.duplicate_line_share",
    "dup_line_char_frac": "gopher_repetition.duplicate_line_chars",
    **{f"top_{n}_gram": f"gopher_repetition.top_{n}_gram" for n in (2, 3, 4)},
    **{f"duplicated_{n}_n_grams": f"gopher_repetition.duplicate_{n}_grams" for n in range(5, 11)},
    "lorem_ipsum": "c4.lorem_ipsum",
    "curly_bracket": "c4.curly_bracket",
    "too_few_sentences": "c4.too_few_sentences",
    "line_punct_ratio": "fineweb.too_little_line_punctuation",
    "short_line_ratio": "fineweb.too_many_short_lines",
    "char_dup_ratio": "fineweb.duplicate_line_chars",
    "list_ratio": "fineweb.too_many_newlines",
}
"""datatrove's reasons and our rules; its "empty" is that of the rule set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What came of a text: the rule that turned it down, or how it reads once rules and formatters have
    edited it, `edited` with its personal data, `clean` without."""

    rule: str | None
    edited: str = ""
    clean: str = ""


def judged_by_datatrove(recipe: RecipeName, text: str, language: str) -> Judged:
    """The blocks of a recipe on one text; what a block raises is raised."""
    from datatrove.data import Document
    from datatrove.pipeline.formatters import FTFYFormatter, PIIFormatter, SymbolLinesFormatter

    document = Document(text=text, id="x")
    filters = fineweb_filters() if recipe == "fineweb" else fineweb2_filters(language)
    for rules, each in filters.items():
        result = each.filter(document)
        if result is not True:
            return Judged(rule=f"{rules}.empty" if result[1] == "empty" else REASONS[result[1]])
    if recipe == "fineweb":
        return Judged(rule=None, edited=document.text, clean=PIIFormatter().format(document.text))
    mended: str = FTFYFormatter().format(document.text)
    without_lines: Callable[[str], str] = SymbolLinesFormatter(
        symbols_to_remove=["|"], replace_char="\n"
    ).format
    return Judged(rule=None, edited=without_lines(mended), clean=without_lines(PIIFormatter().format(mended)))


@functools.cache
def fineweb_filters() -> Mapping[str, Any]:
    """datatrove's filters as examples/fineweb.py has them, in order, by the names of our rule sets."""
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )

    return {
        "gopher_repetition": GopherRepetitionFilter(),
        "gopher_quality": GopherQualityFilter(),
        "c4": C4QualityFilter(filter_no_terminal_punct=False),
        "fineweb": FineWebQualityFilter(),
    }


@functools.lru_cache(maxsize=2048)
def fineweb2_filters(language: str) -> Mapping[str, Any]:
    """The same for FineWeb-2, with the values of the language's configuration as its files have them: 0 where
    a rule is off."""
    from datatrove.pipeline.filters import FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter

    configuration = configuration_of(language)
    if configuration is None:
        raise ValueError(f"FineWeb-2 has no configuration for {language!r}")
    label, of = configuration.label, configuration.thresholds
    return {
        "gopher_repetition": GopherRepetitionFilter(
            language=label,
            dup_para_frac=0,
            dup_line_char_frac=0,
            dup_para_char_frac=0,
            dup_line_frac=of.get("max_duplicate_lines", 0),
            top_n_grams=tuple((n, of[f"max_top_{n}_gram"]) for n in (2, 3, 4)),
            dup_n_grams=tuple((n, of[f"max_duplicate_{n}_grams"]) for n in range(5, 11)),
        ),
        "fineweb": FineWebQualityFilter(
            language=label,
            short_line_thr=999,
            char_duplicates_ratio=0.1,
            line_punct_thr=of["fineweb_min_line_punctuation"],
            new_line_ratio=of["fineweb_max_newlines_per_word"],
        ),
        "gopher_quality": GopherQualityFilter(
            language=label,
            min_avg_word_length=of["min_word_length"],
            max_avg_word_length=of["max_word_length"],
            max_non_alpha_words_ratio=of["min_alphabetic_words"],
            stop_words=list(configuration.stop_words),
            min_stop_words=2,
        ),
    }


@functools.cache
def splits_words(label: str) -> bool:
    """Whether datatrove's word tokenizer of a language runs here: some want models that must be downloaded,
    or packages that no test of ours asks for."""
    from datatrove.utils.word_tokenizers import KiwiTokenizer, load_word_tokenizer

    try:
        tokenizer = load_word_tokenizer(label)
        if isinstance(tokenizer, KiwiTokenizer):
            _give_kiwi(tokenizer)
        tokenizer.word_tokenize("a b")
    except (ImportError, OSError, RuntimeError):
        return False
    return True


def _give_kiwi(tokenizer: Any) -> None:
    """datatrove asks for Kiwi's skip-bigram model, which its packages hold no more: their own choice of a
    model in its place."""
    from kiwipiepy import Kiwi

    tokenizer._tokenizer = Kiwi(num_workers=1)
