"""Which lines of a text count against it: what a person looks at before moving a threshold. Rows of rules
name these.

Rules of lines are marked as they count. Rules of n-grams are marked by words between white space, which is
near enough to see what repeats; of a text of more than 200,000 words by the first ones. Rules of a whole text
(its number of words, say) mark nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from stages.rules import Lines

_MOST_WORDS: Final = 200_000
"""Words of a text whose n-grams are looked at, about 60 MB of them: an excerpt shows a hundred."""


def lines_that(counts: Callable[[str], bool]) -> Lines:
    """Those lines with text that count by themselves."""
    return lambda lines: frozenset(i for i, line in enumerate(lines) if line.strip() and counts(line))


def lines_with(*marks: str) -> Lines:
    """The lines that hold one of the marks."""
    return lines_that(lambda line: any(mark in line for mark in marks))


def repeated_lines(lines: Sequence[str]) -> frozenset[int]:
    """The lines that repeat an earlier one, and that one."""
    times = Counter(line for line in lines if line.strip())
    return frozenset(i for i, line in enumerate(lines) if times[line] > 1)


def repeated_paragraphs(lines: Sequence[str]) -> frozenset[int]:
    """The lines of paragraphs that occur more than once."""
    where: dict[tuple[str, ...], list[int]] = defaultdict(list)
    times: Counter[tuple[str, ...]] = Counter()
    for numbers in _paragraphs(lines):
        paragraph = tuple(lines[number].strip() for number in numbers)
        times[paragraph] += 1
        where[paragraph] += numbers
    return frozenset(number for paragraph, num in times.items() if num > 1 for number in where[paragraph])


def _paragraphs(lines: Sequence[str]) -> Iterator[list[int]]:
    numbers: list[int] = []
    for number, line in enumerate(lines):
        if line.strip():
            numbers.append(number)
        elif numbers:
            yield numbers
            numbers = []
    if numbers:
        yield numbers


def _num_characters(gram: tuple[str, ...]) -> int:
    return sum(map(len, gram))


def lines_of_grams(lines: Sequence[str], *, size: int, only_top: bool) -> frozenset[int]:
    """The lines that hold a word of an n-gram that occurs more than once; `only_top`: of the most common
    one."""
    words, numbers = list[str](), list[int]()
    for number, line in enumerate(lines):
        of_line = line.split()[: _MOST_WORDS - len(words)]
        words += of_line
        numbers += [number] * len(of_line)
        if len(words) == _MOST_WORDS:
            break
    grams = list(zip(*(words[start:] for start in range(size)), strict=False))
    times = Counter(grams)
    repeated = {gram: num for gram, num in times.items() if num > 1}
    wanted: Collection[tuple[str, ...]] = repeated
    if only_top and repeated:
        most = max(repeated.values())
        # Of equally common ones the longest, then the first.
        wanted = (max((gram for gram, num in repeated.items() if num == most), key=_num_characters),)
    return frozenset(
        number for at, gram in enumerate(grams) if gram in wanted for number in numbers[at : at + size]
    )
