"""Which lines of a text count against it by a rule: what a person looks at before moving a threshold.

Rules of lines are marked as they count. Rules of n-grams are marked by words between white space, which is near enough
to see what repeats; of a text of more than 200,000 words by the first ones. Rules of a whole text (its number of words,
say) mark nothing.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from stages.quality.characters import TERMINAL_PUNCTUATION
from stages.quality.options import QualityTable, Variant, limits
from stages.quality.rule_sets import c4
from stages.quality.text_view import TextView
from stages.quality.words import Splitter

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
_MOST_WORDS: Final = 200_000
"""Words of a text whose n-grams are looked at, about 60 MB of them: an excerpt shows a hundred."""

_LORE: Final = {"c4.lorem_ipsum": "lorem ipsum", "c4.curly_bracket": "{", "c4.javascript": "javascript"}


def offending_lines(table: QualityTable, rule: str, text: str) -> frozenset[int]:
    """The numbers, from 0, of the lines of `text` (cut at line feeds) that count against it by `rule`, a full name such
    as fineweb.too_many_short_lines."""
    lines = text.split("\n")
    name = rule.rpartition(".")[2]
    if "paragraph" in name:
        return _of_repeated_paragraphs(lines)
    if "duplicate_line" in name:
        return _repeated(lines)
    size = next((part for part in name.split("_") if part.isdigit()), "")
    if size and name.endswith(("gram", "grams")):
        return _of_grams(lines, int(size), only_top=name.startswith("top"))
    counts = _line_test(table, rule, name)
    return frozenset(i for i, line in enumerate(lines) if line.strip() and counts(line))


def _line_test(table: QualityTable, rule: str, name: str) -> Callable[[str], bool]:
    """Whether a line with text counts against its page by a rule that looks at lines one by one."""
    bullets, ellipses = _BULLETS[table.variant], _ELLIPSES[table.variant]
    if rule in _LORE:
        return lambda line: _LORE[rule] in line.lower()
    if rule in ("c4.too_few_sentences", "c4.too_many_words_removed"):
        return _removed_by_c4(table)
    match name:
        case "too_many_bullet_lines":
            # Dolma looks for bullets at the very start of a line.
            return lambda line: (line if table.variant == "dolma" else line.lstrip()).startswith(bullets)
        case "too_many_ellipsis_lines":
            return lambda line: line.rstrip().endswith(ellipses)
        case "too_many_ellipses":
            return lambda line: any(mark in line for mark in ellipses)
        case "too_many_hashes":
            return lambda line: "#" in line
        case "too_many_symbols":
            return lambda line: any(mark in line for mark in ("#", *ellipses))
        case "too_few_alphabetic_words":
            return lambda line: not any(map(str.isalpha, line))
        case "too_little_line_punctuation":
            return lambda line: line[-1] not in TERMINAL_PUNCTUATION
        case "too_many_short_lines":
            chars = limits(table)["fineweb_short_line_chars"]
            return lambda line: len(line) <= chars
    return lambda line: False


def _removed_by_c4(table: QualityTable) -> Callable[[str], bool]:
    bounds = limits(table)
    cleaner = c4.Cleaner(
        variant=table.variant,
        terminal_punctuation=table.c4_terminal_punctuation,
        min_words=bounds["c4_min_words_per_line"],
        max_word_chars=bounds.get("c4_max_word_chars", 0.0),
    )
    no_splitter = Splitter(None, ())
    return lambda line: not cleaner(TextView(line, no_splitter)).lines


def _repeated(lines: Sequence[str]) -> frozenset[int]:
    """The lines that repeat an earlier one, and that one."""
    times = Counter(line for line in lines if line.strip())
    return frozenset(i for i, line in enumerate(lines) if times[line] > 1)


def _of_repeated_paragraphs(lines: Sequence[str]) -> frozenset[int]:
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


def _of_grams(lines: Sequence[str], size: int, *, only_top: bool) -> frozenset[int]:
    """The lines that hold a word of an n-gram that occurs more than once; `only_top`: of the most common one."""
    every = ((word, number) for number, line in enumerate(lines) for word in line.split())
    words = list(itertools.islice(every, _MOST_WORDS))
    grams = [tuple(word for word, _ in words[at : at + size]) for at in range(len(words) - size + 1)]
    times = Counter(grams)
    if only_top:
        # Of equally common ones the longest, then the first.
        top = max(times, key=lambda gram: (times[gram], sum(map(len, gram))), default=())
        wanted = {top} if times[top] > 1 else set()
    else:
        wanted = {gram for gram, num in times.items() if num > 1}
    return frozenset(number for at, gram in enumerate(grams) if gram in wanted for _, number in words[at : at + size])
