"""Which reformatted benchmark items a scan and `[decontaminate]` find, and how many clean pages they take for
one.

usage: python -m benchmarks.contamination CRAWL_DIR [--items 200] [--show]

Items are questions of a few sentences with four answers to choose from; no two share 13 words in a row. Each
is put, in each of eight ways, into the text of a real English page that holds none. `scan` takes a document
for one that holds an item where they share any 13-gram of words, or 8-grams of tokens that cover more than
half of the item; the step `decontaminate` where n-grams cover more than `decontaminate.ratio` (0.5) of it.
Clean are the pages as they are."""

from __future__ import annotations

import argparse
import random
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from benchmarks.support.texts import english, extracted
from pipeline.demo.questions import question
from stages.composition import clean_text
from stages.contamination import LEAST_OVERLAP
from stages.ngrams import NgramIndex
from stages.steps.decontaminate import DecontaminateTable
from stages.tokens.tokenizer import load_tokenizer

Ngram = Literal["13w", "8t"]
_ANSWERS: Final = (
    "baskets of pears",
    "litres on Monday",
    "minutes past noon",
    "pages in a week",
    "trees in a row",
)
_EVERY_TYPO: Final = 10  # words from one typo to the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A question with answers to choose from."""

    question: str
    answers: tuple[str, ...]

    @property
    def text(self) -> str:
        letters = "ABCD"
        return "\n".join(
            [self.question, *(f"{letters[at]}. {answer}" for at, answer in enumerate(self.answers))]
        )


def _moved(item: Item) -> str:
    return Item(question=item.question, answers=item.answers[::-1]).text


def _typos(item: Item) -> str:
    """The two middle letters of every tenth word change places."""
    words = item.text.split(" ")
    for at in range(_EVERY_TYPO - 1, len(words), _EVERY_TYPO):
        word = words[at]
        middle = len(word) // 2
        if middle:
            words[at] = word[: middle - 1] + word[middle] + word[middle - 1] + word[middle + 1 :]
    return " ".join(words)


def _wrapped(item: Item) -> str:
    words = item.text.split()
    return "\n".join(" ".join(words[at : at + 8]) for at in range(0, len(words), 8))


WAYS: Final[dict[str, tuple[Callable[[Item], str], int]]] = {
    "verbatim": (lambda item: item.text, 1),
    "capitals": (lambda item: item.text.upper(), 1),
    "wrapped at 8 words": (_wrapped, 1),
    "quoted": (lambda item: textwrap.indent(item.text, "> "), 1),
    "answers moved": (_moved, 1),
    "typos": (_typos, 1),
    "filler of 10x": (lambda item: item.text, 10),
    "filler of 100x": (lambda item: item.text, 100),
    "question alone": (lambda item: item.question, 1),
}
"""How an item is put down, and how many times as much other text stands around it."""


def _items(num: int, rng: random.Random) -> list[Item]:
    return [
        Item(
            question=question(number, rng).partition(": ")[2],
            answers=tuple(f"{rng.randint(11, 997)} {answer}" for answer in rng.sample(_ANSWERS, 4)),
        )
        for number in range(num)
    ]


def _within(text: str, filler: Sequence[str], times: int, rng: random.Random) -> str:
    """The text in the middle of `times` as many words of filler."""
    num = len(text.split()) * times
    start = rng.randrange(max(1, len(filler) - num))
    around = (list(filler) * (num // len(filler) + 1))[start : start + num]
    return " ".join([*around[: num // 2], text, *around[num // 2 :]])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("crawl", type=Path, help="a folder of WARC files")
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--show", action="store_true", help="print what clean pages are taken for")
    options = parser.parse_args()
    rng = random.Random(17)
    pages = [clean_text(text)[0] for text in english(extracted(options.crawl, "resiliparse", 2000))]
    long_pages = [page.split() for page in pages if len(page.split()) > 300]
    items = _items(options.items, rng)
    encode = load_tokenizer("cl100k_base").encode_batch
    ngrams: tuple[Ngram, ...] = get_args(Ngram)
    indexes = {ngram: NgramIndex([item.text for item in items], ngram, encode) for ngram in ngrams}
    bounds = {f"scan {ngram}": (ngram, LEAST_OVERLAP[ngram]) for ngram in ngrams}
    bounds |= {f"decontaminate {ngram}": (ngram, DecontaminateTable().ratio) for ngram in ngrams}

    print(f"{len(items)} items, {len(pages)} English pages\n")
    print(f"| | {' | '.join(bounds)} |\n| --- |{' ---: |' * len(bounds)}")
    for way, (put, times) in WAYS.items():
        found = dict.fromkeys(bounds, 0)
        for number, item in enumerate(items):
            text = _within(put(item), rng.choice(long_pages), times, rng)
            overlaps = {ngram: {m.item: m.overlap for m in indexes[ngram].match(text)} for ngram in ngrams}
            for name, (ngram, least) in bounds.items():
                found[name] += overlaps[ngram].get(number, 0.0) > least
        print(f"| {way} | {' | '.join(f'{num / len(items):.0%}' for num in found.values())} |")
    taken = dict.fromkeys(bounds, 0)
    for page in pages:
        for ngram in ngrams:
            matches = indexes[ngram].match(page)
            for name, (of, least) in bounds.items():
                if of == ngram and any(match.overlap > least for match in matches):
                    taken[name] += 1
                    if options.show:
                        print(name, page[:200])
    print(f"| clean pages | {' | '.join(f'{num} of {len(pages)}' for num in taken.values())} |")


if __name__ == "__main__":
    main()
