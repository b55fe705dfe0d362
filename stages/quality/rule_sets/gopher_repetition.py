"""Gopher's repetition rules (Rae et al. 2021, "Scaling Language Models", Table A1, bounds strict), in four
variants.

- `datatrove`: datatrove 0.10.1, filters/gopher_repetition_filter.py. Paragraphs before lines; a repeat counts
  after its first occurrence; characters over all of the text's, white space included. The most common n-gram
  is spelled with spaces, the first seen of equals, and counts even if it occurs once (so a short text can
  fail by it); duplicate n-grams are spelled without spaces and taken greedily from the left without overlap.
- `paper`: lines before paragraphs, as in Table A1; a line or paragraph is a duplicate if an earlier one
  equals it; all occurrences of an n-gram that occurs twice count, each character once; words stand between
  white space, and their characters are the whole. The most common n-gram is the longest of equals and occurs
  twice at least.
- `dclm`: mlfoundations/dclm, baselines/mappers/filters/content_filters.py (massive_web_repetition_filters).
  All occurrences of a repeated line or paragraph count, also the first; a text of one line or paragraph
  passes that rule; lines and paragraphs are stripped, empty ones left out. N-grams of UAX #29 words,
  otherwise as `paper`.
- `dolma`: allenai/dolma, python/dolma/taggers/gopher.py. No paragraph rules; all occurrences of a repeated
  line count, empty lines too; the most common n-gram is the first seen of equals and counts even if it occurs
  once; duplicate n-grams: the share of the characters of all n-grams, overlaps and all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from stages.quality.offending import lines_of_grams, repeated_lines, repeated_paragraphs
from stages.quality.rules import Limits, RuleSet, RuleSpec, Threshold, Variant
from stages.quality.text_view import (
    Measure,
    Reader,
    TextView,
    feed_lines,
    line_blocks,
    paragraphs,
    repeats,
    share,
    uax29_words,
    whitespace_words,
    windows,
    windows_of,
)
from stages.quality.windows import Windows

_SOURCE: Final = "Rae et al. 2021 (Gopher), Table A1"

Ints = npt.NDArray[np.int64]


def _is_empty(view: TextView) -> float:
    return not view.text


def _repeated_paragraphs(view: TextView) -> tuple[int, int]:
    return repeats(view.once(paragraphs))


def _repeated_lines(view: TextView) -> tuple[int, int]:
    return repeats(view.once(line_blocks))


def _paragraph_share(view: TextView) -> float:
    return share(view.once(_repeated_paragraphs)[0], len(view.once(paragraphs)))


def _paragraph_chars(view: TextView) -> float:
    return share(view.once(_repeated_paragraphs)[1], len(view.text))


def _line_share(view: TextView) -> float:
    return share(view.once(_repeated_lines)[0], len(view.once(line_blocks)))


def _line_chars(view: TextView) -> float:
    return share(view.once(_repeated_lines)[1], len(view.text))


def _top_gram(view: TextView, *, n: int) -> float:
    grams = view.once(windows)
    found = grams.most_common(n)
    if found is None:
        return 0.0
    start, count = found
    return share((grams.num_chars(start, n) + n - 1) * count, len(view.text))


def _greedy_duplicates(view: TextView, *, n: int) -> float:
    return share(view.once(windows).greedy_duplicate_chars(n), len(view.text))


def _whitespace_word_grams(view: TextView) -> Windows:
    return windows_of(view.once(whitespace_words))


def _uax29_grams(view: TextView) -> Windows:
    return windows_of(view.once(uax29_words))


def _num_chars(grams: Windows) -> int:
    """Characters of all words."""
    return grams.num_chars(0, len(grams))


def _counts_and_sizes(grams: Windows, n: int) -> tuple[Ints, Ints]:
    """For each n-gram how often it occurs, and its characters."""
    return np.array(grams.counts(n), np.int64), np.array(grams.sizes(n), np.int64)


def _stripped_segments(view: TextView, *, separator: str) -> list[str]:
    return [stripped for segment in view.text.split(separator) if (stripped := segment.strip())]


_stripped_lines = partial(_stripped_segments, separator="\n")
_stripped_paragraphs = partial(_stripped_segments, separator="\n\n")


def _has_no_lines(view: TextView) -> float:
    return not view.once(_stripped_lines)


def _later_share(view: TextView, *, segments: Reader[list[str]]) -> float:
    found = view.once(segments)
    return share(repeats(found)[0], len(found))


def _later_chars(view: TextView, *, segments: Reader[list[str]]) -> float:
    found = view.once(segments)
    return share(repeats(found)[1], sum(map(len, found)))


def _all_occurrences(segments: Sequence[str]) -> tuple[int, int]:
    """How many segments equal another one, and their characters."""
    several = [(segment, count) for segment, count in Counter(segments).items() if count > 1]
    return sum(count for _, count in several), sum(len(segment) * count for segment, count in several)


def _every_share(view: TextView, *, segments: Reader[list[str]]) -> float:
    found = view.once(segments)
    return share(_all_occurrences(found)[0], len(found)) if len(found) > 1 else 0.0


def _every_chars(view: TextView, *, segments: Reader[list[str]]) -> float:
    found = view.once(segments)
    return share(_all_occurrences(found)[1], sum(map(len, found))) if len(found) > 1 else 0.0


def _dolma_line_share(view: TextView) -> float:
    lines = view.once(feed_lines)
    return share(_all_occurrences(lines)[0], len(lines))


def _dolma_line_chars(view: TextView) -> float:
    return share(_all_occurrences(view.once(feed_lines))[1], sum(map(len, view.once(whitespace_words))))


def _longest_top_gram(view: TextView, *, n: int, grams: Reader[Windows]) -> float:
    """Characters of the most common n-gram in all its places, the longest of equals; 0 if none comes
    twice."""
    found = view.once(grams)
    counts, sizes = _counts_and_sizes(found, n)
    most = int(counts.max(initial=0))
    return share(int(sizes[counts == most].max()) * most, _num_chars(found)) if most > 1 else 0.0


def _covered_duplicates(view: TextView, *, n: int, grams: Reader[Windows]) -> float:
    """Characters of the words that lie in an n-gram that comes twice, each word once."""
    found = view.once(grams)
    starts = np.flatnonzero(np.array(found.counts(n)) > 1)
    # One more n-gram covers the words from its first on, one less those from behind its last.
    depth = np.zeros(len(found) + 1, np.int64)
    depth[starts] += 1
    depth[starts + n] -= 1
    lengths = np.array(found.sizes(1), np.int64)
    return share(int(lengths[np.cumsum(depth)[:-1] > 0].sum()), _num_chars(found))


def _dolma_top_gram(view: TextView, *, n: int) -> float:
    grams = view.once(_whitespace_word_grams)
    found = grams.most_common(n)
    if found is None:
        return 0.0
    start, count = found
    return share(grams.num_chars(start, n) * count, _num_chars(grams))


def _dolma_duplicates(view: TextView, *, n: int) -> float:
    counts, sizes = _counts_and_sizes(view.once(_whitespace_word_grams), n)
    return share(int(sizes[counts > 1].sum()), int(sizes.sum()))


def _of(measure: Callable[..., float], segments: Reader[list[str]]) -> Measure:
    return partial(measure, segments=segments)


_EMPTY: Final = RuleSpec(
    name="gopher_repetition.empty",
    help="a text without characters (dclm: without a line)",
    measures={"datatrove": _is_empty, "paper": _is_empty, "dclm": _has_no_lines, "dolma": _is_empty},
    datatrove="empty",
)
_PARAGRAPH_SHARE: Final = RuleSpec(
    name="gopher_repetition.duplicate_paragraph_share",
    side="above",
    threshold=Threshold(
        key="max_duplicate_paragraphs",
        help="share of paragraphs that are duplicates (not dolma)",
        source=_SOURCE,
        default=0.3,
        own={"fineweb2": None},
    ),
    help="share of paragraphs that are duplicates",
    measures={
        "datatrove": _paragraph_share,
        "paper": _of(_later_share, _stripped_paragraphs),
        "dclm": _of(_every_share, _stripped_paragraphs),
    },
    lines=lambda variant: repeated_paragraphs,
    datatrove="dup_para_frac",
)
_PARAGRAPH_CHARS: Final = RuleSpec(
    name="gopher_repetition.duplicate_paragraph_chars",
    side="above",
    threshold=Threshold(
        key="max_duplicate_paragraph_chars",
        help="share of characters in duplicate paragraphs (not dolma)",
        source=_SOURCE,
        default=0.2,
        own={"fineweb2": None},
    ),
    help="share of characters in duplicate paragraphs",
    measures={
        "datatrove": _paragraph_chars,
        "paper": _of(_later_chars, _stripped_paragraphs),
        "dclm": _of(_every_chars, _stripped_paragraphs),
    },
    lines=lambda variant: repeated_paragraphs,
    datatrove="dup_para_char_frac",
)
_LINE_SHARE: Final = RuleSpec(
    name="gopher_repetition.duplicate_line_share",
    side="above",
    threshold=Threshold(
        key="max_duplicate_lines", help="share of lines that are duplicates", source=_SOURCE, default=0.3
    ),
    help="share of lines that are duplicates",
    measures={
        "datatrove": _line_share,
        "paper": _of(_later_share, _stripped_lines),
        "dclm": _of(_every_share, _stripped_lines),
        "dolma": _dolma_line_share,
    },
    lines=lambda variant: repeated_lines,
    datatrove="dup_line_frac",
)
_LINE_CHARS: Final = RuleSpec(
    name="gopher_repetition.duplicate_line_chars",
    side="above",
    threshold=Threshold(
        key="max_duplicate_line_chars",
        help="share of characters in duplicate lines",
        source=_SOURCE,
        default=0.2,
        own={"dolma": 0.3, "fineweb2": None},
    ),
    help="share of characters in duplicate lines",
    measures={
        "datatrove": _line_chars,
        "paper": _of(_later_chars, _stripped_lines),
        "dclm": _of(_every_chars, _stripped_lines),
        "dolma": _dolma_line_chars,
    },
    lines=lambda variant: repeated_lines,
    datatrove="dup_line_char_frac",
)
_TOP_GRAMS: Final = tuple(
    RuleSpec(
        name=f"gopher_repetition.top_{n}_gram",
        side="above",
        threshold=Threshold(
            key=f"max_top_{n}_gram",
            help=f"share of characters in the most common {n}-gram",
            source=_SOURCE,
            default=most,
        ),
        help=f"share of characters in the most common {n}-gram",
        measures={
            "datatrove": partial(_top_gram, n=n),
            "paper": partial(_longest_top_gram, n=n, grams=_whitespace_word_grams),
            "dclm": partial(_longest_top_gram, n=n, grams=_uax29_grams),
            "dolma": partial(_dolma_top_gram, n=n),
        },
        lines=lambda variant, n=n: partial(lines_of_grams, size=n, only_top=True),
        datatrove=f"top_{n}_gram",
    )
    for n, most in ((2, 0.2), (3, 0.18), (4, 0.16))
)
_DUPLICATE_GRAMS: Final = tuple(
    RuleSpec(
        name=f"gopher_repetition.duplicate_{n}_grams",
        side="above",
        threshold=Threshold(
            key=f"max_duplicate_{n}_grams",
            help=f"share of characters in duplicate {n}-grams",
            source=_SOURCE,
            default=most,
        ),
        help=f"share of characters in duplicate {n}-grams",
        measures={
            "datatrove": partial(_greedy_duplicates, n=n),
            "paper": partial(_covered_duplicates, n=n, grams=_whitespace_word_grams),
            "dclm": partial(_covered_duplicates, n=n, grams=_uax29_grams),
            "dolma": partial(_dolma_duplicates, n=n),
        },
        lines=lambda variant, n=n: partial(lines_of_grams, size=n, only_top=False),
        datatrove=f"duplicated_{n}_n_grams",
    )
    for n, most in ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.1))
)
_GRAMS: Final = (*_TOP_GRAMS, *_DUPLICATE_GRAMS)

ROWS: Final = (_EMPTY, _PARAGRAPH_SHARE, _PARAGRAPH_CHARS, _LINE_SHARE, _LINE_CHARS, *_GRAMS)
"""The rules in datatrove's order, which is dolma's too."""
_PAPER_ROWS: Final = (_EMPTY, _LINE_SHARE, _PARAGRAPH_SHARE, _LINE_CHARS, _PARAGRAPH_CHARS, *_GRAMS)
"""Shares of lines and paragraphs, then their characters: the order of Table A1, and of DCLM."""


def rule_set(variant: Variant, limits: Limits) -> RuleSet:
    """The variant's rules in its order."""
    rows = _PAPER_ROWS if variant in ("paper", "dclm") else ROWS
    rules = tuple(row.rule(variant, limits) for row in rows if row.is_in(variant, limits))
    return RuleSet(name="gopher_repetition", rules=rules)
