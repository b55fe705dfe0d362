"""Texts at the edges of every rule, and what datatrove says of a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.peers.recipes import REASONS
from stages.document import Document, Outcome, Place, Rejection
from stages.quality.options import QualityTable
from stages.quality.step import quality_step

Q, R, C, F = "gopher_quality", "gopher_repetition", "c4", "fineweb"


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A text that one rule set rejects by `rule`, or passes (None)."""

    name: str
    rules: str
    text: str
    rule: str | None = None
    keys: dict[str, Any] = field(default_factory=dict)


def _edge(rules: str, name: str, text: str, rule: str | None = None, **keys: Any) -> Edge:
    return Edge(name=name, rules=rules, text=text, rule=rule and f"{rules}.{rule}", keys=keys)


def document(text: str, language: str | None = "en") -> Document:
    return Document(
        doc_id=b"\0" * 16,
        source="s",
        place=Place(file="f", offset=0, length=1),
        raw_hash=b"",
        text=text,
        language=language,
    )


def judge(text: str, *rules: str, **keys: Any) -> Outcome:
    return quality_step(QualityTable(rules=rules, **keys))(document(text))


def verdict(text: str, *rules: str, **keys: Any) -> str | None:
    outcome = judge(text, *rules, **keys)
    return outcome.finding.rule if isinstance(outcome, Rejection) else None


def filler(number: int, length: int = 6) -> str:
    """The number-th word of `length` letters (at least 4): all different, none a stop word or a special
    case."""
    letters = "bcdfghklmprtvz"
    digits = []
    for _ in range(4):
        number, rest = divmod(number, len(letters))
        digits.append(letters[rest])
    return "".join(digits) + "q" * (length - 4)


def fillers(count: int, length: int = 6, start: int = 0) -> list[str]:
    return [filler(start + number, length) for number in range(count)]


def exactly(text: str, length: int, start: int = 9000) -> str:
    """`text` and different words after it, `length` characters in all."""
    number = start
    while (room := length - len(text)) > 12:
        text += " " + filler(number, 6)
        number += 1
    assert room >= 5, (room, length)
    return text + " " + filler(number, room - 1)


def gopher_words(count: int, *extra: str, stop: str = "the of", length: int = 6) -> str:
    """`count` words of which two are stop words, and the extra tokens."""
    stops = stop.split()
    return " ".join([*stops, *fillers(count - len(stops), length), *extra])


def word_edges() -> Iterator[Edge]:
    edge = partial(_edge, Q)

    few, many = "too_few_words", "too_many_words"
    yield edge("no text", "", few)
    yield edge("white space", " \n\t ", few)
    yield edge("49 words", gopher_words(49), few)
    yield edge("50 words", gopher_words(50))
    yield edge("51 words", gopher_words(51))
    yield edge("symbols are no words", gopher_words(49, "!", "-", "(", ")", "…"), few)
    yield edge("49 words and a number", gopher_words(49, "1984"))
    yield edge("49 words and an emoji", gopher_words(49, "🙂"))
    yield edge("49 words and an odd quote", gopher_words(49, "‘"), None)
    yield edge("a contraction is two words", gopher_words(48, "don't"))
    yield edge("a unit after a number is a word", gopher_words(48, "10km"))
    yield edge("a joined special case across a space", gopher_words(48, ": )", "zz"), few)
    yield edge("no-break spaces split words", gopher_words(50).replace(" ", "\u00a0"))
    yield edge("100,000 words", gopher_words(38_416 - 9000, length=6) + " zeta" * (100_000 - 38_416 + 9000))
    yield edge(
        "100,001 words", gopher_words(38_416 - 9000, length=6) + " zeta" * (100_001 - 38_416 + 9000), many
    )
    three = "the and " + " ".join(f"b{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(58))
    yield edge("words of 3 letters", three)
    yield edge("words of 3 letters but one", three + " ab", "words_too_short")
    ten = " ".join(["the", "and", filler(1, 17), filler(2, 17), *fillers(56, 10, 3)])
    yield edge("words of 10 letters on average", ten)
    yield edge("words of 10 letters and one letter more", ten + "q", "words_too_long")
    yield edge("symbols do not shorten words", three + " ! ! ! ! !")


def symbol_edges() -> Iterator[Edge]:
    edge = partial(_edge, Q)
    for name, mark, rule in (
        ("#", "#", "too_many_hashes"),
        ("...", "...", "too_many_ellipses"),
        ("…", "…", "too_many_ellipses"),
    ):
        marks = " ".join(f"{word} {mark}" for word in fillers(6, 6, 200))
        yield edge(f"{name}: 6 of 60", f"{gopher_words(48)} {marks} end".replace(" of ", " ", 1) + " of")
        yield edge(f"{name}: 6 of 66", f"{gopher_words(54)} {marks} end")
        yield edge(f"{name}: 8 of 68", f"{gopher_words(54)} {marks} {mark} {mark} end", rule)
    yield edge("# in one word", gopher_words(54) + " " + "#" * 12, "too_many_hashes")
    yield edge("...... is two", gopher_words(54) + " ......" * 4 + " end", "too_many_ellipses")


def line_edges() -> Iterator[Edge]:
    edge = partial(_edge, Q)
    for bullet, counts in (("•", True), ("-", True), ("  •", True), ("*", False), ("–", False), ("·", False)):
        for number in (9, 10):
            lines = [" ".join(fillers(7, 6, 10 * line)) for line in range(10)]
            lines = [f"{bullet} {text}" if line < number else text for line, text in enumerate(lines)]
            bad = counts and number == 10
            yield edge(
                f"{number} of 10 lines start with {bullet!r}",
                "\n".join([*lines[:-1], lines[-1] + " the of"]),
                "too_many_bullet_lines" if bad else None,
            )
    for ending, counts in (("...", True), ("…", True), ("...  ", True), (". . .", False), ("....", True)):
        for number in (3, 4):
            lines = [" ".join(fillers(7, 6, 10 * line)) for line in range(10)]
            lines = [text + ending if line < number else text for line, text in enumerate(lines)]
            bad = counts and number == 4
            yield edge(
                f"{number} of 10 lines end in {ending!r}",
                "\n".join([*lines, "the of"])[: -len("\nthe of")]
                .replace(filler(90), "the", 1)
                .replace(filler(91), "of", 1),
                "too_many_ellipsis_lines" if bad else None,
            )


def letter_edges() -> Iterator[Edge]:
    edge = partial(_edge, Q)
    numbers = " ".join(str(1000 + n) for n in range(20))
    yield edge("80 of 100 words have letters", f"{gopher_words(80)} {numbers}")
    yield edge("79 of 99 words have letters", f"{gopher_words(79)} {numbers}", "too_few_alphabetic_words")
    yield edge("letters of any script", gopher_words(40) + " слово" * 20 + " 語" * 20)
    yield edge(
        "letters and digits mixed", gopher_words(60) + " a1" * 40, "words_too_short", min_word_length=4.5
    )
    yield edge("two stop words", gopher_words(50, stop="be to"))
    yield edge("one stop word", gopher_words(50, stop="the"), "too_few_stop_words")
    yield edge("one stop word twice", gopher_words(50, stop="the the"), "too_few_stop_words")
    yield edge("stop words in capitals", gopher_words(50, stop="The Of"), "too_few_stop_words")
    yield edge("stop words beside punctuation", gopher_words(50, "(the", "of)", stop="") + "")
    yield edge("stop words inside words", gopher_words(60, "then", "often", stop=""), "too_few_stop_words")


def _apart(phrase: str, count: int) -> str:
    """The phrase `count` times with a different word after each."""
    return " ".join(f"{phrase} {filler(5000 + number, 4)}" for number in range(count))


def _word(position: int, phrase: int, length: int) -> str:
    return "bcdfghjklm"[position] + "xzqwv"[phrase] * (length - 1)


def _repeated_segments(size: int, separator: str) -> str:
    """70 one-word segments, 20 of them a second time, 10 characters each, in a text of `size` characters; no
    two words stand side by side twice."""
    repeated = fillers(20, 10)
    room = size - 69 * len(separator) - 400
    others = fillers(29, room // 30, 100)
    others.append(filler(200, room - 29 * (room // 30)))
    first = [word for pair in zip(repeated, others[:20], strict=True) for word in pair]
    return separator.join([*first, *others[20:], *reversed(repeated)])


def repetition_edges() -> Iterator[Edge]:
    edge = partial(_edge, R)

    yield edge("no text", "", "empty")
    yield edge("white space alone", "  ", None)
    yield edge("line feeds alone", "\n\n\n", "duplicate_line_share")
    yield edge("one word", "word", None)
    yield edge("two words", "hello world", "top_2_gram")
    yield edge("a short text that repeats nothing", "one two three four five six seven", "top_2_gram")
    long = [" ".join(fillers(30, 6, 40 * number)) for number in range(10)]
    for separator, name in (("\n\n", "paragraph"), ("\n", "line"), ("\n\n\n", "paragraph")):
        for repeated, rule in ((3, None), (4, f"duplicate_{name}_share")):
            parts = [*long[: 9 - repeated], *["zz"] * (repeated + 1)]
            yield edge(f"{repeated} of 10 {name}s repeat ({separator!r})", separator.join(parts), rule)
        for size, rule in ((1000, None), (999, f"duplicate_{name}_chars")):
            yield edge(
                f"{name}s that repeat have 200 of {size} characters ({separator!r})",
                _repeated_segments(size, separator),
                rule,
            )
    yield edge("blank paragraphs at both ends count as lines", "\n" + long[0] + "\n" + long[1] + "\n", None)
    yield edge("two lines and their line feeds", "\n" + long[0] + "\n", "duplicate_line_share")
    for n, phrase, count, size in (
        (2, "aa bb", 8, 200),
        (3, "aa bb cc", 9, 400),
        (4, "aa bb cc dd", 16, 1100),
    ):
        yield edge(f"top {n}-gram at its bound", exactly(_apart(phrase, count), size))
        yield edge(f"top {n}-gram above its bound", exactly(_apart(phrase, count), size - 1), f"top_{n}_gram")
    sizes = {
        5: [6] * 5,
        6: [5, 5, 5, 5, 4, 4],
        7: [4] * 5 + [3] * 2,
        8: [3] * 8,
        9: [3] * 4 + [2] * 5,
        10: [2] * 10,
    }
    for n, lengths in sizes.items():
        phrases = [
            " ".join(_word(at, phrase, length) for at, length in enumerate(lengths)) for phrase in range(5)
        ]
        text = " ".join(f"{phrase} {filler(number)}" for number, phrase in enumerate(phrases * 2))
        yield edge(f"duplicate {n}-grams at their bound", exactly(text, 1000))
        yield edge(f"duplicate {n}-grams above their bound", exactly(text, 999), f"duplicate_{n}_grams")
    halves = [" ".join(_word(at, phrase, 6) for at in range(5)) for phrase in range(5)]
    alike = [half[:6] + half[7] + " " + half[8:] for half in halves]
    text = " ".join(f"{phrase} {filler(number)}" for number, phrase in enumerate(halves + alike))
    yield edge("five-grams of other words but the same letters, at the bound", exactly(text, 1000))
    yield edge("five-grams of other words but the same letters", exactly(text, 999), "duplicate_5_grams")
    yield edge("overlapping repeats of one word", exactly(" ".join(["echo"] * 12), 2000))
    yield edge("many overlapping repeats of one word", exactly(" ".join(["echo"] * 30), 900), "top_2_gram")
    yield edge("repeats across line feeds", exactly("aa bb cc\ndd ee ff gg. aa bb\ncc dd ee ff gg.", 600))


_LINE = "Some words that make up a line"
_GOOD = [f"This is line {filler(number)} of text." for number in range(5)]


def c4_sentence_edges() -> Iterator[Edge]:
    edge = partial(_edge, C)

    few = "too_few_sentences"
    yield edge("no text", "", few)
    yield edge("no text, no sentences needed", "", None, c4_min_sentences=0)
    yield edge("five lines", "\n".join(_GOOD))
    yield edge("four lines", "\n".join(_GOOD[:4]), few)
    yield edge("four lines, five sentences", "\n".join([*_GOOD[:3], _GOOD[3] + " And one more."]))
    yield edge("one line of five sentences", " ".join(_GOOD))
    yield edge("one line of four sentences", " ".join(_GOOD[:4]), few)
    yield edge(
        "abbreviations end no sentence", "He met Mr. Smith and Dr. Jones at 5 p.m. on Main St. today.", few
    )
    yield edge("dots without spaces", "a.b.c.d.e.f is a name in this.program.here.", few)
    yield edge("five questions", "Really so? " * 5, None)
    yield edge("two spaces after a full stop", "So it is.  " * 5)
    yield edge("sentence marks in a row", "What a day it is!!! ?! ... And so on.", few)
    for end, passes in (
        (".", True),
        ("?", True),
        ("!", True),
        ('"', True),
        ("'", True),
        (":", False),
        ("", False),
        ("...", False),
        ("....", False),
        ("…", False),
        ("。", False),
        (".)", False),
    ):
        yield edge(f"lines that end in {end!r}", "\n".join([_LINE + end] * 5), None if passes else few)
    for end in ("", ":", "..."):
        yield edge(
            f"{end!r} where endings are free",
            "\n".join([_LINE + end] * 5),
            None,
            c4_terminal_punctuation=False,
        )
    yield edge("lines of three words", "\n".join(["Three small words."] * 5))
    yield edge("lines of two words", "\n".join(["Two words."] * 5), few)
    yield edge("a citation counts as a word before it goes", "\n".join(["Two words [1]."] * 5))
    yield edge("a citation after the full stop", "\n".join(["Three words here.[12]"] * 5))
    yield edge("[edit] and [citation needed]", "\n".join(["Some [edit] words [citation needed]."] * 5))
    yield edge("citations alone", "\n".join(["[1] [2] [3]"] * 5), None, c4_terminal_punctuation=False)
    yield edge(
        "a citation leaves two spaces at the end",
        "One thing is so. [1] [2]",
        few,
        c4_terminal_punctuation=False,
    )
    yield edge("a word of 1,000 characters", "\n".join(["A line " + "w" * 999 + "."] * 5))
    yield edge("a word of 1,001 characters", "\n".join(["A line " + "w" * 1000 + "."] * 5), few)


def c4_page_edges() -> Iterator[Edge]:
    edge = partial(_edge, C)
    yield edge("lorem ipsum", "\n".join([*_GOOD, "Then Lorem Ipsum dolor sit."]), "lorem_ipsum")
    yield edge("lorem ipsum on a line that goes", "\n".join([*_GOOD, "Lorem ipsum"]))
    yield edge(
        "lorem ipsum put together by a citation",
        "\n".join([*_GOOD, "Then lorem[1] ipsum dolor."]),
        "lorem_ipsum",
    )
    yield edge("a curly bracket", "\n".join([*_GOOD, "Some code { is here."]), "curly_bracket")
    yield edge("a curly bracket on a line that goes", "\n".join([*_GOOD, "code {"]))
    yield edge("a closing bracket", "\n".join([*_GOOD, "Some code } is here."]))
    yield edge(
        "lorem ipsum before a bracket", "\n".join(["A lorem ipsum is.", "A { is here."]), "lorem_ipsum"
    )
    yield edge(
        "a bracket before lorem ipsum", "\n".join(["A { is here.", "A lorem ipsum is."]), "curly_bracket"
    )
    yield edge("lorem ipsum and a bracket on one line", "A { and lorem ipsum.", "lorem_ipsum")
    yield edge("a bracket beside javascript", "\n".join([*_GOOD, "Use JavaScript { here."]))
    yield edge(
        "javascript lines go", "\n".join([*_GOOD[:4], "Please enable JavaScript in it."]), "too_few_sentences"
    )
    for policy in (
        "Terms of Use",
        "privacy policy",
        "cookie policy",
        "uses cookies",
        "use of cookies",
        "use cookies",
    ):
        yield edge(
            f"{policy} lines go", "\n".join([*_GOOD[:4], f"We have the {policy} here."]), "too_few_sentences"
        )
    yield edge(
        "a bracket beside a policy", "\n".join([*_GOOD, "The privacy policy { here."]), "curly_bracket"
    )
    yield edge("other line boundaries", "\u2028".join(_GOOD))
    yield edge("an indented page", "\n".join("  \t" + line + "  " for line in _GOOD))


def fineweb_edges() -> Iterator[Edge]:
    edge = partial(_edge, F)

    def lines(ended: int, short: int, end: str = ".") -> list[str]:
        made = []
        for number in range(100):
            text = " ".join(fillers(2 if number < short else 6, 6, 7 * number))
            made.append(text + end if 100 - number <= ended else text + " and")
        return made

    yield edge("no text", "", "empty")
    yield edge("white space", " \n \n", "empty")
    yield edge("12 of 100 lines end in punctuation", "\n".join(lines(12, 0)))
    yield edge("11 of 100 lines end in punctuation", "\n".join(lines(11, 0)), "too_little_line_punctuation")
    for end in ("!", "?", "。", "؟", "।", "‽", "．"):
        yield edge(f"lines that end in {end}", "\n".join(lines(12, 0, end)))
    for end in ('"', "…", ":", ".)", ". "):
        yield edge(f"lines that end in {end!r}", "\n".join(lines(12, 0, end)), "too_little_line_punctuation")
    yield edge("67 of 100 lines are short", "\n".join(lines(20, 67)))
    yield edge("68 of 100 lines are short", "\n".join(lines(20, 68)), "too_many_short_lines")
    thirty, more = "aa bb cc dd ee ff gg hh ii jj.", "aa bb cc dd ee ff gg hh ii jjj."
    yield edge("a line of 30 characters", thirty, "too_many_short_lines")
    yield edge("a line of 31 characters", more)
    once = "An own line of text, and it ends here too"
    for size, rule in ((1000, None), (999, "duplicate_line_chars")):
        rest = exactly(once, size - 21, 10) + "."
        yield edge(
            f"10 of {size} repeated characters",
            "\n".join(["ten chars.", rest, "ten chars."]),
            rule,
            fineweb_max_short_lines=1.0,
        )
    yield edge(
        "blank lines repeat nothing", "\n\n\n".join(lines(100, 0)), None, fineweb_max_newlines_per_word=1.0
    )
    ten = [" ".join(fillers(10, 6, 20 * number)) for number in range(4)]
    yield edge("3 line feeds for 10 words", "\n\n\n" + " ".join(ten[0].split()[:9]) + ".")
    yield edge(
        "4 line feeds for 10 words", "\n\n\n\n" + " ".join(ten[0].split()[:9]) + ".", "too_many_newlines"
    )
    yield edge("punctuation counts among the words", "\n\n\n" + " ".join(ten[0].split()[:8]) + ", a.")


EDGES = [
    *word_edges(),
    *symbol_edges(),
    *line_edges(),
    *letter_edges(),
    *repetition_edges(),
    *c4_sentence_edges(),
    *c4_page_edges(),
    *fineweb_edges(),
]


def peer(rules: str, **keys: Any) -> Any:
    """datatrove's filter for one of our rule sets, with a few keys translated."""
    from datatrove.pipeline import filters

    if rules == Q:
        return filters.GopherQualityFilter(min_avg_word_length=keys.get("min_word_length", 3))
    if rules == R:
        return filters.GopherRepetitionFilter()
    if rules == C:
        return filters.C4QualityFilter(
            filter_no_terminal_punct=keys.get("c4_terminal_punctuation", True),
            min_num_sentences=keys.get("c4_min_sentences", 5),
        )
    return filters.FineWebQualityFilter(
        new_line_ratio=keys.get("fineweb_max_newlines_per_word", 0.3),
        short_line_thr=keys.get("fineweb_max_short_lines", 0.67),
    )


def peer_verdict(rules: str, text: str, **keys: Any) -> tuple[str | None, str]:
    """datatrove's reason, by our name (None: passes), and the text as it left it."""
    from datatrove.data import Document as PeerDocument

    theirs = PeerDocument(text=text, id="x")
    result = peer(rules, **keys).filter(theirs)
    if result is True:
        return None, theirs.text
    reason = result[1]
    return (f"{rules}.empty" if reason == "empty" else REASONS[reason]), theirs.text
