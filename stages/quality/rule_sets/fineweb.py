"""FineWeb's rules (Penedo et al. 2024, "The FineWeb Datasets", section 3.6 and Table 2).

`datatrove` is datatrove 0.10.1, filters/fineweb_quality_filter.py: strict bounds and a fourth rule, line feeds for each
word. The paper prints inclusive bounds and has three rules (its text says both .1 and .01 for duplicate lines; its
Table 2 and the code say .01). DCLM and dolma have no variant of their own and get datatrove's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from stages.quality.characters import TERMINAL_PUNCTUATION
from stages.quality.options import Variant
from stages.quality.rules import Rule, RuleSet, Side
from stages.quality.text_view import TextView, counts, feed_lines, repeats, share, whitespace_words, written_lines


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


def _newlines_per_whitespace_word(view: TextView) -> float:
    """Never below `_newlines_per_word`: what stands between white space holds one word at least."""
    return share(len(view.once(feed_lines)) - 1, len(view.once(whitespace_words)))


def _is_empty(view: TextView) -> float:
    return not view.once(written_lines)


def rule_set(variant: Variant, limits: Mapping[str, float]) -> RuleSet:
    """The rules in datatrove's order."""
    low: Side = "at most" if variant == "paper" else "below"
    high: Side = "at least" if variant == "paper" else "above"
    short = partial(_short_lines, chars=limits["fineweb_short_line_chars"])
    rules = [
        Rule(name="fineweb.empty", measure=_is_empty),
        Rule(
            name="fineweb.too_little_line_punctuation",
            measure=_line_punctuation,
            side=low,
            threshold=limits["fineweb_min_line_punctuation"],
        ),
        Rule(
            name="fineweb.too_many_short_lines", measure=short, side=high, threshold=limits["fineweb_max_short_lines"]
        ),
        Rule(
            name="fineweb.duplicate_line_chars",
            measure=_duplicate_line_chars,
            side=high,
            threshold=limits["fineweb_max_duplicate_line_chars"],
        ),
    ]
    if variant != "paper":
        limit = limits["fineweb_max_newlines_per_word"]
        rules.append(
            Rule(
                name="fineweb.too_many_newlines",
                measure=_newlines_per_word,
                threshold=limit,
                quick=_newlines_per_whitespace_word,
            )
        )
    return RuleSet(name="fineweb", rules=tuple(rules))
