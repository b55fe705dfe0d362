"""FineWeb's rules (Penedo et al. 2024, "The FineWeb Datasets", section 3.6 and Table 2).

`datatrove` is datatrove 0.10.1, filters/fineweb_quality_filter.py: strict bounds and a fourth rule, line
feeds for each word. The paper prints inclusive bounds and has three rules (its text says both .1 and .01 for
duplicate lines; its Table 2 and the code say .01). DCLM and dolma have no variant of their own and get
datatrove's. FineWeb-2 has no rule of short lines."""

from __future__ import annotations

from typing import Final

from stages.quality.characters import TERMINAL_PUNCTUATION
from stages.quality.offending import lines_that, repeated_lines
from stages.quality.rules import Limits, RuleSet, RuleSpec, Threshold, Variant, in_all
from stages.quality.text_view import (
    TextView,
    counts,
    feed_lines,
    repeats,
    share,
    whitespace_words,
    written_lines,
)
from stages.rules import Lines

_SOURCE: Final = "Penedo et al. 2024 (FineWeb), Table 2, and datatrove's fineweb_quality_filter.py"


def _line_punctuation(view: TextView) -> float:
    lines = view.once(written_lines)
    return share(sum(line[-1] in TERMINAL_PUNCTUATION for line in lines), len(lines))


def _short_lines(view: TextView, *, chars: float) -> float:
    lines = view.once(written_lines)
    return share(sum(len(line) <= chars for line in lines), len(lines))


def _duplicate_line_chars(view: TextView) -> float:
    return share(repeats(view.once(written_lines))[1], len(view.text) - view.text.count("\n"))


def _newlines_per_word(view: TextView) -> float:
    return share(len(view.once(feed_lines)) - 1, counts(view).num_tokens)


def _most_newlines_per_word(view: TextView) -> float:
    """Never below `_newlines_per_word`: each word holds so many runs between white space at most."""
    newlines = len(view.once(feed_lines)) - 1
    if not newlines:
        return 0.0
    return share(newlines * view.splitter.runs_per_word, len(view.once(whitespace_words)))


def _is_empty(view: TextView) -> float:
    return not view.once(written_lines)


def _mark_short(variant: Variant, *, chars: float) -> Lines:
    return lines_that(lambda line: len(line) <= chars)


SETTINGS: Final = (
    Threshold(
        key="fineweb_short_line_chars",
        help="characters up to which a line is short",
        source=_SOURCE,
        unit="characters",
        default=30,
        own={"fineweb2": None},
    ),
)
"""What a short line is."""

ROWS: Final = (
    RuleSpec(
        name="fineweb.empty", help="a text without a line", measures=in_all(_is_empty), datatrove="empty"
    ),
    RuleSpec(
        name="fineweb.too_little_line_punctuation",
        side="below",
        own_sides={"paper": "at most"},
        threshold=Threshold(
            key="fineweb_min_line_punctuation",
            help="share of lines that end in terminal punctuation",
            source=_SOURCE,
            default=0.12,
        ),
        help="share of lines that end in terminal punctuation",
        measures=in_all(_line_punctuation),
        lines=lambda variant: lines_that(lambda line: line[-1] not in TERMINAL_PUNCTUATION),
        datatrove="line_punct_ratio",
    ),
    RuleSpec(
        name="fineweb.too_many_short_lines",
        side="above",
        own_sides={"paper": "at least"},
        threshold=Threshold(
            key="fineweb_max_short_lines",
            help="share of short lines",
            source=_SOURCE,
            default=0.67,
            own={"fineweb2": None},
        ),
        help="share of lines of up to `fineweb_short_line_chars` characters",
        measures=in_all(_short_lines),
        lines=_mark_short,
        datatrove="short_line_ratio",
    ),
    RuleSpec(
        name="fineweb.duplicate_line_chars",
        side="above",
        own_sides={"paper": "at least"},
        threshold=Threshold(
            key="fineweb_max_duplicate_line_chars",
            help="share of characters in duplicate lines",
            source=_SOURCE,
            default=0.01,
            own={"fineweb2": 0.1},
        ),
        help="share of characters in duplicate lines",
        measures=in_all(_duplicate_line_chars),
        lines=lambda variant: repeated_lines,
        datatrove="char_dup_ratio",
    ),
    RuleSpec(
        name="fineweb.too_many_newlines",
        side="above",
        threshold=Threshold(
            key="fineweb_max_newlines_per_word",
            help="line feeds for each word (not paper)",
            source=_SOURCE,
            unit="line feeds a word",
            default=0.3,
        ),
        help="line feeds for each word",
        measures={"datatrove": _newlines_per_word, "dclm": _newlines_per_word, "dolma": _newlines_per_word},
        quick=_most_newlines_per_word,
        datatrove="list_ratio",
    ),
)
"""The rules in datatrove's order."""


def rule_set(variant: Variant, limits: Limits) -> RuleSet:
    """The variant's rules."""
    chars = {"fineweb.too_many_short_lines": {"chars": limits.get("fineweb_short_line_chars", 0.0)}}
    rules = (
        row.rule(variant, limits, **chars.get(row.name, {})) for row in ROWS if row.is_in(variant, limits)
    )
    return RuleSet(name="fineweb", rules=tuple(rules))
