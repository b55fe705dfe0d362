"""Gopher's quality rules (Rae et al. 2021, "Scaling Language Models", section A1.1), in four variants.

- `datatrove`: datatrove 0.10.1, filters/gopher_quality_filter.py. Words are spaCy's tokens; the word count
  and the mean length leave out tokens of punctuation alone, the ratios count them. "..." and the
  one-character ellipsis; bullets • and -; different stop words, by exact case. A share that equals its bound
  passes.
- `paper`: what the paper says and no more: words stand between white space, bullets are • * -, different stop
  words in any case, lines are those with text on them.
- `dclm`: mlfoundations/dclm, baselines/mappers/filters/content_filters.py in the order of
  baselines_configs/dclm_baseline_refinedweb.yaml, at commit 361714b. Words for the count are fastText's
  (between ASCII white space) that begin with a letter or digit, elsewhere those between any white space; one
  rule for "#" and ellipses together, ". . ." is an ellipsis too; bullets ● • * -; every occurrence of a stop
  word counts, in any case.
- `dolma`: allenai/dolma, python/dolma/taggers/gopher.py. Words stand between white space; the median length;
  words that hold "#" or the one-character ellipsis; bullets * and - at the very start of a line, empty lines
  count; every occurrence of a stop word counts, by exact case. Thresholds as in the tagger's README.
"""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import Final

from stages.quality.offending import lines_that, lines_with
from stages.quality.rules import Limits, RuleSet, RuleSpec, Threshold, Variant
from stages.quality.text_view import (
    TextView,
    all_lines,
    counts,
    fasttext_words,
    feed_lines,
    share,
    whitespace_words,
)
from stages.rules import Lines

_SOURCE: Final = "Rae et al. 2021 (Gopher), section A1.1"

_BULLETS: Final[dict[Variant, tuple[str, ...]]] = {
    "datatrove": ("•", "-"),
    "paper": ("•", "*", "-"),
    "dclm": ("●", "•", "*", "-"),
    "dolma": ("*", "-"),
}
_ELLIPSES: Final[dict[Variant, tuple[str, ...]]] = {
    "datatrove": ("...", "…"),
    "paper": ("...", "…"),
    "dclm": ("...", ". . .", "…"),
    "dolma": ("…",),
}


def _num_words(view: TextView) -> float:
    return counts(view).num_words


def _mean_word_length(view: TextView) -> float:
    found = counts(view)
    return share(found.word_chars, found.num_words)


def _hashes_per_token(view: TextView) -> float:
    return share(view.text.count("#"), counts(view).num_tokens)


def _ellipses(view: TextView) -> int:
    return view.text.count("...") + view.text.count("…")


def _ellipses_per_token(view: TextView) -> float:
    return share(_ellipses(view), counts(view).num_tokens)


def _alphabetic_tokens(view: TextView) -> float:
    found = counts(view)
    return share(found.num_alphabetic, found.num_tokens)


def _num_stop_words(view: TextView) -> float:
    return counts(view).num_stop_words


def _bullet_lines(view: TextView) -> float:
    lines = view.once(all_lines)
    return share(sum([line.lstrip().startswith(_BULLETS["datatrove"]) for line in lines]), len(lines))


def _ellipsis_lines(view: TextView) -> float:
    if not _ellipses(view):  # most texts
        return 0.0
    lines = view.once(all_lines)
    return share(sum(line.rstrip().endswith(_ELLIPSES["datatrove"]) for line in lines), len(lines))


def _stripped_lines(view: TextView) -> list[str]:
    return [stripped for line in view.once(feed_lines) if (stripped := line.strip())]


def _stripped_bullet_lines(view: TextView, *, bullets: tuple[str, ...]) -> float:
    lines = view.once(_stripped_lines)
    return share(sum(line.startswith(bullets) for line in lines), len(lines))


def _stripped_ellipsis_lines(view: TextView, *, ellipses: tuple[str, ...]) -> float:
    lines = view.once(_stripped_lines)
    return share(sum(line.endswith(ellipses) for line in lines), len(lines))


def _num_whitespace_words(view: TextView) -> float:
    return len(view.once(whitespace_words))


def _mean_whitespace_word_length(view: TextView) -> float:
    words = view.once(whitespace_words)
    return share(sum(map(len, words)), len(words))


def _median_whitespace_word_length(view: TextView) -> float:
    words = view.once(whitespace_words)
    return float(median(map(len, words))) if words else 0.0


def _hashes_per_whitespace_word(view: TextView) -> float:
    return share(view.text.count("#"), _num_whitespace_words(view))


def _ellipses_per_whitespace_word(view: TextView) -> float:
    return share(_ellipses(view), _num_whitespace_words(view))


def _symbols_per_whitespace_word(view: TextView) -> float:
    return share(sum(map(view.text.count, ("#", *_ELLIPSES["dclm"]))), _num_whitespace_words(view))


def _whitespace_words_with_symbols(view: TextView) -> float:
    return share(
        sum("#" in word or "…" in word for word in view.once(whitespace_words)), _num_whitespace_words(view)
    )


def _alphabetic_whitespace_words(view: TextView) -> float:
    return share(
        sum(any(map(str.isalpha, word)) for word in view.once(whitespace_words)), _num_whitespace_words(view)
    )


def _num_fasttext_words(view: TextView) -> float:
    return len(view.once(fasttext_words))


def _first_bullets(view: TextView) -> float:
    lines = view.once(feed_lines)
    return share(sum(line.startswith(_BULLETS["dolma"]) for line in lines), len(lines))


def _last_ellipses(view: TextView) -> float:
    lines = view.once(feed_lines)
    return share(sum(line.endswith(_ELLIPSES["dolma"]) for line in lines), len(lines))


def _different_stop_words(view: TextView, *, stop_words: frozenset[str]) -> float:
    return len(stop_words.intersection(word.lower() for word in view.once(whitespace_words)))


def _all_stop_words(view: TextView, *, stop_words: frozenset[str], lower: bool) -> float:
    words = view.once(whitespace_words)
    return sum((word.lower() if lower else word) in stop_words for word in words)


def _mark_bullets(variant: Variant) -> Lines:
    # Dolma looks for bullets at the very start of a line.
    return lines_that(
        lambda line: (line if variant == "dolma" else line.lstrip()).startswith(_BULLETS[variant])
    )


def _mark_last_ellipses(variant: Variant) -> Lines:
    return lines_that(lambda line: line.rstrip().endswith(_ELLIPSES[variant]))


_LENGTHS: Final = (
    RuleSpec(
        name="gopher_quality.too_few_words",
        side="below",
        threshold=Threshold(
            key="min_words", help="words a page has at least", source=_SOURCE, unit="words", default=50
        ),
        help="words",
        measures={
            "datatrove": _num_words,
            "paper": _num_whitespace_words,
            "dclm": _num_fasttext_words,
            "dolma": _num_whitespace_words,
        },
        datatrove="gopher_short_doc",
    ),
    RuleSpec(
        name="gopher_quality.too_many_words",
        side="above",
        threshold=Threshold(
            key="max_words", help="words a page has at most", source=_SOURCE, unit="words", default=100_000
        ),
        help="words",
        measures={
            "datatrove": _num_words,
            "paper": _num_whitespace_words,
            "dclm": _num_fasttext_words,
            "dolma": _num_whitespace_words,
        },
        datatrove="gopher_long_doc",
    ),
    RuleSpec(
        name="gopher_quality.words_too_short",
        side="below",
        threshold=Threshold(
            key="min_word_length",
            help="mean (dolma: median) characters of a word, at least",
            source=_SOURCE,
            unit="characters",
            default=3,
        ),
        help="mean characters of a word (dolma: the median)",
        measures={
            "datatrove": _mean_word_length,
            "paper": _mean_whitespace_word_length,
            "dclm": _mean_whitespace_word_length,
            "dolma": _median_whitespace_word_length,
        },
        datatrove="gopher_below_avg_threshold",
    ),
    RuleSpec(
        name="gopher_quality.words_too_long",
        side="above",
        threshold=Threshold(
            key="max_word_length",
            help="mean (dolma: median) characters of a word, at most",
            source=_SOURCE,
            unit="characters",
            default=10,
        ),
        help="mean characters of a word (dolma: the median)",
        measures={
            "datatrove": _mean_word_length,
            "paper": _mean_whitespace_word_length,
            "dclm": _mean_whitespace_word_length,
            "dolma": _median_whitespace_word_length,
        },
        datatrove="gopher_above_avg_threshold",
    ),
)
_SYMBOLS: Final = (
    RuleSpec(
        name="gopher_quality.too_many_hashes",
        side="above",
        threshold=Threshold(
            key="max_hashes_per_word",
            help="'#' for each word (datatrove, paper)",
            source=_SOURCE,
            unit="hashes a word",
            default=0.1,
        ),
        help="`#` for each word",
        measures={"datatrove": _hashes_per_token, "paper": _hashes_per_whitespace_word},
        lines=lambda variant: lines_with("#"),
        datatrove="gopher_too_many_hashes",
    ),
    RuleSpec(
        name="gopher_quality.too_many_ellipses",
        side="above",
        threshold=Threshold(
            key="max_ellipses_per_word",
            help="ellipses for each word (datatrove, paper)",
            source=_SOURCE,
            unit="ellipses a word",
            default=0.1,
        ),
        help="ellipses for each word",
        measures={"datatrove": _ellipses_per_token, "paper": _ellipses_per_whitespace_word},
        lines=lambda variant: lines_with(*_ELLIPSES[variant]),
        datatrove="gopher_too_many_ellipsis",
    ),
    RuleSpec(
        name="gopher_quality.too_many_symbols",
        side="above",
        threshold=Threshold(
            key="max_symbols_per_word",
            help="'#' and ellipses together for each word (dclm, dolma)",
            source=_SOURCE,
            unit="symbols a word",
            default=0.1,
        ),
        help="`#` and ellipses together for each word",
        measures={"dclm": _symbols_per_whitespace_word, "dolma": _whitespace_words_with_symbols},
        lines=lambda variant: lines_with("#", *_ELLIPSES[variant]),
    ),
)
_LINES: Final = (
    RuleSpec(
        name="gopher_quality.too_many_bullet_lines",
        side="above",
        threshold=Threshold(
            key="max_bullet_lines",
            help="share of lines that start with a bullet",
            source=_SOURCE,
            default=0.9,
        ),
        help="share of lines that start with a bullet",
        measures={
            "datatrove": _bullet_lines,
            "paper": partial(_stripped_bullet_lines, bullets=_BULLETS["paper"]),
            "dclm": partial(_stripped_bullet_lines, bullets=_BULLETS["dclm"]),
            "dolma": _first_bullets,
        },
        lines=_mark_bullets,
        datatrove="gopher_too_many_bullets",
    ),
    RuleSpec(
        name="gopher_quality.too_many_ellipsis_lines",
        side="above",
        threshold=Threshold(
            key="max_ellipsis_lines",
            help="share of lines that end in an ellipsis",
            source=_SOURCE,
            default=0.3,
        ),
        help="share of lines that end in an ellipsis",
        measures={
            "datatrove": _ellipsis_lines,
            "paper": partial(_stripped_ellipsis_lines, ellipses=_ELLIPSES["paper"]),
            "dclm": partial(_stripped_ellipsis_lines, ellipses=_ELLIPSES["dclm"]),
            "dolma": _last_ellipses,
        },
        lines=_mark_last_ellipses,
        datatrove="gopher_too_many_end_ellipsis",
    ),
)
_LETTERS: Final = RuleSpec(
    name="gopher_quality.too_few_alphabetic_words",
    side="below",
    threshold=Threshold(
        key="min_alphabetic_words", help="share of words with a letter", source=_SOURCE, default=0.8
    ),
    help="share of words with a letter",
    measures={
        "datatrove": _alphabetic_tokens,
        "paper": _alphabetic_whitespace_words,
        "dclm": _alphabetic_whitespace_words,
        "dolma": _alphabetic_whitespace_words,
    },
    lines=lambda variant: lines_that(lambda line: not any(map(str.isalpha, line))),
    datatrove="gopher_below_alpha_threshold",
)
_STOP_WORDS: Final = RuleSpec(
    name="gopher_quality.too_few_stop_words",
    side="below",
    threshold=Threshold(
        key="min_stop_words",
        help="stop words a page holds at least (datatrove, paper: different ones)",
        source=_SOURCE,
        unit="words",
        default=2,
    ),
    help="stop words of the text's language (datatrove, paper: different ones)",
    measures={
        "datatrove": _num_stop_words,
        "paper": _different_stop_words,
        "dclm": partial(_all_stop_words, lower=True),
        "dolma": partial(_all_stop_words, lower=False),
    },
    datatrove="gopher_enough_stop_words",
)

ROWS: Final = (*_LENGTHS, *_SYMBOLS, *_LINES, _LETTERS, _STOP_WORDS)
"""The rules in the order of datatrove, the paper and DCLM."""
_DOLMA_ROWS: Final = (*_LENGTHS, *_SYMBOLS, _LETTERS, *_LINES, _STOP_WORDS)


def rule_set(variant: Variant, limits: Limits, stop_words: tuple[str, ...]) -> RuleSet:
    """The variant's rules in its order; no stop words: the stop-word rule is off."""
    words = frozenset(word if variant in ("datatrove", "dolma") else word.lower() for word in stop_words)
    rules = [
        row.rule(variant, limits, **_given(row, variant, words))
        for row in (_DOLMA_ROWS if variant == "dolma" else ROWS)
        if row.is_in(variant, limits) and (row is not _STOP_WORDS or stop_words)
    ]
    return RuleSet(name="gopher_quality", rules=tuple(rules))


def _given(row: RuleSpec, variant: Variant, stop_words: frozenset[str]) -> dict[str, object]:
    # datatrove's stop words are counted while words are split, by the splitter.
    return {"stop_words": stop_words} if row is _STOP_WORDS and variant != "datatrove" else {}
