"""Gopher's quality rules (Rae et al. 2021, "Scaling Language Models", section A1.1), in four variants.

- `datatrove`: datatrove 0.10.1, filters/gopher_quality_filter.py. Words are spaCy's tokens; the word count and the mean
  length leave out tokens of punctuation alone, the ratios count them. "..." and the one-character ellipsis; bullets
  • and -; different stop words, by exact case. A share that equals its bound passes.
- `paper`: what the paper says and no more: words stand between white space, bullets are • * -, different stop words in
  any case, lines are those with text on them.
- `dclm`: mlfoundations/dclm, baselines/mappers/filters/content_filters.py in the order of
  baselines_configs/dclm_baseline_refinedweb.yaml, at commit 361714b. Words for the count are fastText's (between ASCII
  white space) that begin with a letter or digit, elsewhere those between any white space; one rule for "#" and
  ellipses together, ". . ." is an ellipsis too; bullets ● • * -; every occurrence of a stop word counts, in any case.
- `dolma`: allenai/dolma, python/dolma/taggers/gopher.py. Words stand between white space; the median length; words that
  hold "#" or the one-character ellipsis; bullets * and - at the very start of a line, empty lines count; every
  occurrence of a stop word counts, by exact case. Thresholds as in the tagger's README.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import median
from typing import Final

from stages.quality.options import Variant
from stages.quality.rules import Rule, RuleSet, Side
from stages.quality.text_view import (
    Measure,
    TextView,
    all_lines,
    counts,
    fasttext_words,
    feed_lines,
    share,
    whitespace_words,
)

_DCLM_SYMBOLS: Final = ("#", "...", ". . .", "…")


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
    return share(sum(line.lstrip().startswith(("•", "-")) for line in lines), len(lines))


def _ellipsis_lines(view: TextView) -> float:
    lines = view.once(all_lines)
    return share(sum(line.rstrip().endswith(("...", "…")) for line in lines), len(lines))


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
    return share(sum(map(view.text.count, _DCLM_SYMBOLS)), _num_whitespace_words(view))


def _whitespace_words_with_symbols(view: TextView) -> float:
    return share(sum("#" in word or "…" in word for word in view.once(whitespace_words)), _num_whitespace_words(view))


def _alphabetic_whitespace_words(view: TextView) -> float:
    return share(sum(any(map(str.isalpha, word)) for word in view.once(whitespace_words)), _num_whitespace_words(view))


def _num_fasttext_words(view: TextView) -> float:
    return len(view.once(fasttext_words))


def _first_bullets(view: TextView) -> float:
    lines = view.once(feed_lines)
    return share(sum(line.startswith(("*", "-")) for line in lines), len(lines))


def _last_ellipses(view: TextView) -> float:
    lines = view.once(feed_lines)
    return share(sum(line.endswith("…") for line in lines), len(lines))


def _different_stop_words(view: TextView, *, stop_words: frozenset[str]) -> float:
    return len(stop_words.intersection(word.lower() for word in view.once(whitespace_words)))


def _all_stop_words(view: TextView, *, stop_words: frozenset[str], lower: bool) -> float:
    words = view.once(whitespace_words)
    return sum((word.lower() if lower else word) in stop_words for word in words)


_paper_bullet_lines = partial(_stripped_bullet_lines, bullets=("•", "*", "-"))
_paper_ellipsis_lines = partial(_stripped_ellipsis_lines, ellipses=("...", "…"))
_dclm_bullet_lines = partial(_stripped_bullet_lines, bullets=("●", "•", "*", "-"))
_dclm_ellipsis_lines = partial(_stripped_ellipsis_lines, ellipses=("...", ". . .", "…"))

_Table = tuple[tuple[str, Measure, Side, str], ...]

_DATATROVE: Final[_Table] = (
    ("too_few_words", _num_words, "below", "min_words"),
    ("too_many_words", _num_words, "above", "max_words"),
    ("words_too_short", _mean_word_length, "below", "min_word_length"),
    ("words_too_long", _mean_word_length, "above", "max_word_length"),
    ("too_many_hashes", _hashes_per_token, "above", "max_hashes_per_word"),
    ("too_many_ellipses", _ellipses_per_token, "above", "max_ellipses_per_word"),
    ("too_many_bullet_lines", _bullet_lines, "above", "max_bullet_lines"),
    ("too_many_ellipsis_lines", _ellipsis_lines, "above", "max_ellipsis_lines"),
    ("too_few_alphabetic_words", _alphabetic_tokens, "below", "min_alphabetic_words"),
)
_PAPER: Final[_Table] = (
    ("too_few_words", _num_whitespace_words, "below", "min_words"),
    ("too_many_words", _num_whitespace_words, "above", "max_words"),
    ("words_too_short", _mean_whitespace_word_length, "below", "min_word_length"),
    ("words_too_long", _mean_whitespace_word_length, "above", "max_word_length"),
    ("too_many_hashes", _hashes_per_whitespace_word, "above", "max_hashes_per_word"),
    ("too_many_ellipses", _ellipses_per_whitespace_word, "above", "max_ellipses_per_word"),
    ("too_many_bullet_lines", _paper_bullet_lines, "above", "max_bullet_lines"),
    ("too_many_ellipsis_lines", _paper_ellipsis_lines, "above", "max_ellipsis_lines"),
    ("too_few_alphabetic_words", _alphabetic_whitespace_words, "below", "min_alphabetic_words"),
)
_DCLM: Final[_Table] = (
    ("too_few_words", _num_fasttext_words, "below", "min_words"),
    ("too_many_words", _num_fasttext_words, "above", "max_words"),
    ("words_too_short", _mean_whitespace_word_length, "below", "min_word_length"),
    ("words_too_long", _mean_whitespace_word_length, "above", "max_word_length"),
    ("too_many_symbols", _symbols_per_whitespace_word, "above", "max_symbols_per_word"),
    ("too_many_bullet_lines", _dclm_bullet_lines, "above", "max_bullet_lines"),
    ("too_many_ellipsis_lines", _dclm_ellipsis_lines, "above", "max_ellipsis_lines"),
    ("too_few_alphabetic_words", _alphabetic_whitespace_words, "below", "min_alphabetic_words"),
)
_DOLMA: Final[_Table] = (
    ("too_few_words", _num_whitespace_words, "below", "min_words"),
    ("too_many_words", _num_whitespace_words, "above", "max_words"),
    ("words_too_short", _median_whitespace_word_length, "below", "min_word_length"),
    ("words_too_long", _median_whitespace_word_length, "above", "max_word_length"),
    ("too_many_symbols", _whitespace_words_with_symbols, "above", "max_symbols_per_word"),
    ("too_few_alphabetic_words", _alphabetic_whitespace_words, "below", "min_alphabetic_words"),
    ("too_many_bullet_lines", _first_bullets, "above", "max_bullet_lines"),
    ("too_many_ellipsis_lines", _last_ellipses, "above", "max_ellipsis_lines"),
)
_TABLES: Final[dict[Variant, _Table]] = {"datatrove": _DATATROVE, "paper": _PAPER, "dclm": _DCLM, "dolma": _DOLMA}


def rule_set(variant: Variant, limits: Mapping[str, float], stop_words: tuple[str, ...]) -> RuleSet:
    """The variant's rules in its order; no stop words: the stop-word rule is off."""
    rules = [
        Rule(name=f"gopher_quality.{name}", measure=measure, side=side, threshold=limits[limit])
        for name, measure, side, limit in _TABLES[variant]
    ]
    if stop_words:
        words = frozenset(word if variant in ("datatrove", "dolma") else word.lower() for word in stop_words)
        measures: dict[Variant, Measure] = {
            "datatrove": _num_stop_words,
            "paper": partial(_different_stop_words, stop_words=words),
            "dclm": partial(_all_stop_words, stop_words=words, lower=True),
            "dolma": partial(_all_stop_words, stop_words=words, lower=False),
        }
        rules.append(
            Rule(
                name="gopher_quality.too_few_stop_words",
                measure=measures[variant],
                side="below",
                threshold=limits["min_stop_words"],
            )
        )
    return RuleSet(name="gopher_quality", rules=tuple(rules))
