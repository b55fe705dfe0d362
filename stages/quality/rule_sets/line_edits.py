"""RefinedWeb's line edits (Penedo et al. 2023, appendix G.2), as DCLM and Dolma 3 carry them out.

- `dclm`: mlfoundations/dclm, baselines/mappers/modifiers.py in the order of dclm_baseline_refinedweb.yaml.
  Words stand between white space, lengths are characters, phrases count in any case.
- `dolma3`: allenai/datamap-rs, src/map_fxn.rs in the order of configs/all_dressed/all_dressed_config.yaml, at
  commit f771794. Words are those of UAX #29, lengths are bytes of UTF-8, digits are ASCII's, phrases count as
  they are spelt ("items in cart" leaves a space). Its configuration bounds the lines that phrases are cut
  from to 10 words, by a name that the code does not know: the bound is kept here (`line_edits_max_words`). It
  gives an expression of counters without its end too, which the code does not read either: a counter is a
  whole line, and "3 likes and more" stays.

In order: a line goes for upper-case letters, for digits, as a counter ("3 likes"), for too few words; then
"items in cart" is cut out, "Read more..." from ends, "Sign-in" from beginnings, and a line of which nothing
is left goes. In "Read more..." the dots stand for any characters, as in both sources. A page goes that has
nothing left, or from which more than a share of the words went."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from stages.quality.rules import Limits, RuleSet, RuleSpec, Threshold, in_all
from stages.quality.text_view import TextView, fasttext_words, share, uax29_words, uax29_words_of

Manner = Literal["dclm", "dolma3"]
Cut = Literal["uppercase", "digits", "counters", "short", "phrases"]

_SOURCE: Final = "mlfoundations/dclm, baselines_configs/dclm_baseline_refinedweb.yaml"

_MANY_NEWLINES: Final = re.compile(r"\n{3,}")
_COUNTER: Final = re.compile(
    r"\W*\d(?:,|\.|\d)*(?:k|m|b)?\s+(?:likes|shares|comments|retweets|reposts|quotes|bookmarks|upvotes|downvotes"
    r"|downloads|views|followers)\W*"
)
_PHRASES: Final[dict[Manner, tuple[tuple[re.Pattern[str], str], ...]]] = {
    "dclm": (
        (re.compile(r"\s?items in cart", re.IGNORECASE), ""),
        (re.compile(r"\s?read more...$", re.IGNORECASE), ""),
        (re.compile(r"^sign-in\s?", re.IGNORECASE), ""),
    ),
    "dolma3": (
        (re.compile(r"\s?items in cart\s?"), " "),
        (re.compile(r"\s?Read more...$"), ""),
        (re.compile(r"^Sign-in\s?"), ""),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedLines:
    """What is left of a text, how many lines each cut took or changed, and how many characters went."""

    text: str
    lines: tuple[tuple[Cut, int], ...]
    num_chars: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineEditor:
    """The edits in one manner: a text in, its lines out."""

    manner: Manner
    max_uppercase: float
    max_digits: float
    min_words: float
    max_words: float

    def __call__(self, view: TextView) -> EditedLines:
        lines = view.text.split("\n")
        counts: dict[Cut, int] = {}
        is_python = self.manner == "dclm"
        whole: list[tuple[Cut, Callable[[str], bool]]] = [
            ("uppercase", self._has_few_capitals),
            ("digits", self._has_few_digits),
            ("counters", _is_no_counter),
            ("short", self._has_words),
        ]
        for cut, stays in whole:
            kept = [line for line in lines if not line or stays(line)]
            counts[cut] = len(lines) - len(kept)
            # DCLM strips the page after each edit but that of short lines, and so its first and last line.
            lines = _stripped(kept) if is_python and cut != "short" else kept
        for phrase, instead in _PHRASES[self.manner]:
            lines, num = self._without(phrase, instead, lines if is_python else _as_rust_reads(lines))
            counts["phrases"] = counts.get("phrases", 0) + num
            lines = _stripped(lines) if is_python else lines
        text = "\n".join(lines)
        if not is_python:
            text = _MANY_NEWLINES.sub("\n\n", text)
        found = tuple((cut, count) for cut, count in counts.items() if count)
        return EditedLines(text=text, lines=found, num_chars=len(view.text) - len(text))

    def _has_few_capitals(self, line: str) -> bool:
        return sum(map(str.isupper, line)) / self._length(line) <= self.max_uppercase

    def _has_few_digits(self, line: str) -> bool:
        is_digit = str.isdigit if self.manner == "dclm" else "0123456789".__contains__
        return sum(map(is_digit, line)) / self._length(line) <= self.max_digits

    def _length(self, line: str) -> int:
        return len(line) if self.manner == "dclm" else len(line.encode("utf-8", "replace"))

    def _num_words(self, line: str) -> int:
        return len(line.split() if self.manner == "dclm" else uax29_words_of(line))

    def _has_words(self, line: str) -> bool:
        return self._num_words(line) >= self.min_words

    def _without(self, phrase: re.Pattern[str], instead: str, lines: list[str]) -> tuple[list[str], int]:
        """The lines without the phrase, and how many it was cut from."""
        kept: list[str] = []
        num = 0
        for line in lines:
            if phrase.search(line) is None or self._num_words(line) > self.max_words:
                kept.append(line)
                continue
            num += 1
            left = phrase.sub(instead, line)
            if left and not left.isspace():
                kept.append(left)
        return kept, num


def _is_no_counter(line: str) -> bool:
    return _COUNTER.fullmatch(line.lower()) is None


def _stripped(lines: list[str]) -> list[str]:
    return "\n".join(lines).strip().split("\n")


def _as_rust_reads(lines: list[str]) -> list[str]:
    """Rust's `lines`: a carriage return at a line's end belongs to the break, and a break ends the last
    line."""
    lines = [line.removesuffix("\r") for line in lines]
    return lines[:-1] if lines[-1:] == [""] else lines


def _is_empty(view: TextView, *, editor: LineEditor) -> float:
    return not view.once(editor).text.strip()


def _removed_words(view: TextView, *, editor: LineEditor) -> float:
    words_of = fasttext_words if editor.manner == "dclm" else uax29_words
    before = len(view.once(words_of))
    after = len(words_of(TextView(view.once(editor).text, view.splitter)))
    return share(before - after, before)


def _any_chars_removed(view: TextView, *, editor: LineEditor) -> float:
    """Never below `_removed_words`, which is a share."""
    return bool(view.once(editor).lines)


def _edit(view: TextView, *, editor: LineEditor) -> tuple[str, tuple[tuple[str, int], ...]]:
    edited = view.once(editor)
    if edited.text == view.text:
        return view.text, ()
    lines = tuple((f"line_edits.{cut}", count) for cut, count in edited.lines)
    return edited.text, (*lines, ("line_edits.chars_removed", edited.num_chars))


SETTINGS: Final = (
    Threshold(
        key="line_edits_max_uppercase",
        help="share of a line's length in capitals, or it goes",
        source=_SOURCE,
        default=0.5,
    ),
    Threshold(
        key="line_edits_max_digits",
        help="share of a line's length in digits, or it goes",
        source=_SOURCE,
        default=0.999999,
    ),
    Threshold(
        key="line_edits_min_words",
        help="words a line has at least, or it goes",
        source=_SOURCE,
        unit="words",
        default=2,
    ),
    Threshold(
        key="line_edits_max_words",
        help="words of a line, at most, that phrases such as 'items in cart' are cut from",
        source=_SOURCE,
        unit="words",
        default=10,
    ),
)
"""What the edits go by."""

ROWS: Final = (
    RuleSpec(
        name="line_edits.empty",
        help="nothing is left of the lines",
        measures=in_all(_is_empty),
    ),
    RuleSpec(
        name="line_edits.too_many_words_removed",
        side="above",
        threshold=Threshold(
            key="line_edits_max_removed_words",
            help="share of a page's words that line edits took",
            source=_SOURCE,
            default=0.05,
        ),
        help="share of the words that went with lines and phrases",
        measures=in_all(_removed_words),
        quick=_any_chars_removed,
    ),
)


def rule_set(limits: Limits, manner: Manner) -> RuleSet:
    """The rules, and the edit."""
    editor = LineEditor(
        manner=manner,
        max_uppercase=limits["line_edits_max_uppercase"],
        max_digits=limits["line_edits_max_digits"],
        min_words=limits["line_edits_min_words"],
        max_words=limits["line_edits_max_words"],
    )
    rules = tuple(row.rule("dclm", limits, editor=editor) for row in ROWS)
    return RuleSet(name="line_edits", rules=rules, edit=partial(_edit, editor=editor))
