"""What datatrove's filters say of a text as FineWeb-2's pipeline calls them, from FineWeb-2's own
configuration."""

from __future__ import annotations

import functools
from typing import Any

from stages.quality.fineweb2.configurations import configuration_of
from tests.support.inputs.quality_texts import REASONS

RULES = ("gopher_repetition", "fineweb", "gopher_quality")
"""In FineWeb-2's order."""


def fineweb2_verdict(text: str, language: str) -> str | None:
    """The rule, by our name, for which FineWeb-2 turns a text down; None where it passes."""
    from datatrove.data import Document

    for rules, each in zip(RULES, fineweb2_filters(language), strict=True):
        result = each.filter(Document(text=text, id="x"))
        if result is not True:
            return f"{rules}.empty" if result[1] == "empty" else REASONS[result[1]]
    return None


@functools.cache
def fineweb2_filters(language: str) -> tuple[Any, ...]:
    """datatrove's filters with the values of the configuration, as its files have them: 0 where a rule is
    off."""
    from datatrove.pipeline.filters import FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter

    configuration = configuration_of(language)
    assert configuration is not None
    label, of = configuration.label, configuration.thresholds
    return (
        GopherRepetitionFilter(
            language=label,
            dup_para_frac=0,
            dup_line_char_frac=0,
            dup_para_char_frac=0,
            dup_line_frac=of.get("max_duplicate_lines", 0),
            top_n_grams=tuple((n, of[f"max_top_{n}_gram"]) for n in (2, 3, 4)),
            dup_n_grams=tuple((n, of[f"max_duplicate_{n}_grams"]) for n in range(5, 11)),
        ),
        FineWebQualityFilter(
            language=label,
            short_line_thr=999,
            char_duplicates_ratio=0.1,
            line_punct_thr=of["fineweb_min_line_punctuation"],
            new_line_ratio=of["fineweb_max_newlines_per_word"],
        ),
        GopherQualityFilter(
            language=label,
            min_avg_word_length=of["min_word_length"],
            max_avg_word_length=of["max_word_length"],
            max_non_alpha_words_ratio=of["min_alphabetic_words"],
            stop_words=list(configuration.stop_words),
            min_stop_words=2,
        ),
    )
