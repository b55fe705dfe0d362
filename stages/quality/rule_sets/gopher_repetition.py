"""Gopher's repetition rules (Rae et al. 2021, "Scaling Language Models", Table A1, bounds strict), in four variants.

- `datatrove`: datatrove 0.10.1, filters/gopher_repetition_filter.py. Paragraphs before lines; a repeat counts after its
  first occurrence; characters over all of the text's, white space included. The most common n-gram is spelled with
  spaces, the first seen of equals, and counts even if it occurs once (so a short text can fail by it); duplicate
  n-grams are spelled without spaces and taken greedily from the left without overlap.
- `paper`: lines before paragraphs, as in Table A1; a line or paragraph is a duplicate if an earlier one equals it; all
  occurrences of an n-gram that occurs twice count, each character once; words stand between white space, and their
  characters are the whole. The most common n-gram is the longest of equals and occurs twice at least.
- `dclm`: mlfoundations/dclm, baselines/mappers/filters/content_filters.py (massive_web_repetition_filters). All
  occurrences of a repeated line or paragraph count, also the first; a text of one line or paragraph passes that rule;
  lines and paragraphs are stripped, empty ones left out. N-grams of UAX #29 words, otherwise as `paper`.
- `dolma`: allenai/dolma, python/dolma/taggers/gopher.py. No paragraph rules; all occurrences of a repeated line count,
  empty lines too; the most common n-gram is the first seen of equals and counts even if it occurs once; duplicate
  n-grams: the share of the characters of all n-grams, overlaps and all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from stages.quality.options import Variant
from stages.quality.rules import Rule, RuleSet
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

Ints = npt.NDArray[np.int64]

_TOP: Final = (2, 3, 4)
_DUPLICATE: Final = (5, 6, 7, 8, 9, 10)


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
    """Characters of the most common n-gram in all its places, the longest of equals; 0 if none comes twice."""
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


_Table = tuple[tuple[str, Measure, str], ...]


def _segment_rules(name: str, share_of: Measure, chars_of: Measure) -> tuple[tuple[str, Measure, str], ...]:
    limit = f"max_duplicate_{name}"
    return (f"duplicate_{name}_share", share_of, f"{limit}s"), (f"duplicate_{name}_chars", chars_of, f"{limit}_chars")


def _gram_rules(top: Callable[..., float], duplicate: Callable[..., float], **grams: Reader[Windows]) -> _Table:
    tops = tuple((f"top_{n}_gram", partial(top, n=n, **grams), f"max_top_{n}_gram") for n in _TOP)
    rest = tuple(
        (f"duplicate_{n}_grams", partial(duplicate, n=n, **grams), f"max_duplicate_{n}_grams") for n in _DUPLICATE
    )
    return tops + rest


def _shares_first(lines: _Table, parts: _Table) -> _Table:
    """Shares of lines and paragraphs, then their characters: the order of Table A1."""
    return (lines[0], parts[0], lines[1], parts[1])


def _of(measure: Callable[..., float], segments: Reader[list[str]]) -> Measure:
    return partial(measure, segments=segments)


_DATATROVE: Final[_Table] = (
    *_segment_rules("paragraph", _paragraph_share, _paragraph_chars),
    *_segment_rules("line", _line_share, _line_chars),
    *_gram_rules(_top_gram, _greedy_duplicates),
)
_PAPER: Final[_Table] = (
    *_shares_first(
        _segment_rules("line", _of(_later_share, _stripped_lines), _of(_later_chars, _stripped_lines)),
        _segment_rules("paragraph", _of(_later_share, _stripped_paragraphs), _of(_later_chars, _stripped_paragraphs)),
    ),
    *_gram_rules(_longest_top_gram, _covered_duplicates, grams=_whitespace_word_grams),
)
_DCLM: Final[_Table] = (
    *_shares_first(
        _segment_rules("line", _of(_every_share, _stripped_lines), _of(_every_chars, _stripped_lines)),
        _segment_rules("paragraph", _of(_every_share, _stripped_paragraphs), _of(_every_chars, _stripped_paragraphs)),
    ),
    *_gram_rules(_longest_top_gram, _covered_duplicates, grams=_uax29_grams),
)
_DOLMA: Final[_Table] = (
    *_segment_rules("line", _dolma_line_share, _dolma_line_chars),
    *_gram_rules(_dolma_top_gram, _dolma_duplicates),
)
_TABLES: Final[dict[Variant, _Table]] = {"datatrove": _DATATROVE, "paper": _PAPER, "dclm": _DCLM, "dolma": _DOLMA}


def rule_set(variant: Variant, limits: Mapping[str, float]) -> RuleSet:
    """The variant's rules in its order."""
    empty = _has_no_lines if variant == "dclm" else _is_empty
    rules = [Rule(name="gopher_repetition.empty", measure=empty)]
    rules += [
        Rule(name=f"gopher_repetition.{name}", measure=measure, threshold=limits[limit])
        for name, measure, limit in _TABLES[variant]
    ]
    return RuleSet(name="gopher_repetition", rules=tuple(rules))
