"""Texts that one rule each rejects: every Gopher rule has a plant of its own.

The thresholds are those of Rae et al. 2021, Table A1, in the datatrove variant; each text is far beyond one
of them and within the others, so that the rule which decides is known."""

from __future__ import annotations

import random
from collections.abc import Callable

from pipeline.demo.prose import Writer


def _sentences(rng: random.Random, num: int) -> list[str]:
    writer = Writer("en", rng)
    return [writer.sentence() for _ in range(num)]


def too_short(rng: random.Random) -> str:
    return _sentences(rng, 1)[0]


def long_words(rng: random.Random) -> str:
    adjectives = [
        "administrative",
        "interdisciplinary",
        "uncharacteristic",
        "telecommunications",
        "environmental",
        "pharmaceutical",
        "constitutional",
        "multidimensional",
        "entrepreneurial",
        "international",
        "philosophical",
        "infrastructural",
        "organizational",
        "unprecedented",
    ]
    nouns = [
        "responsibilities",
        "recommendations",
        "representatives",
        "transformations",
        "qualifications",
        "characteristics",
        "interpretations",
        "specifications",
        "administrators",
        "considerations",
        "collaborations",
        "achievements",
        "understandings",
        "establishments",
    ]
    return "\n".join(
        f"The {' '.join(rng.sample(adjectives, 2))} {rng.choice(nouns)} and"
        f" {' '.join(rng.sample(adjectives, 2))}"
        f" {rng.choice(nouns)} have {rng.choice(adjectives)} {rng.choice(nouns)}."
        for _ in range(12)
    )


def hash_signs(rng: random.Random) -> str:
    return "\n".join(
        " ".join(f"#{word}" if i % 3 == 0 else word for i, word in enumerate(sentence.split()))
        for sentence in _sentences(rng, 15)
    )


def bullets(rng: random.Random) -> str:
    return "\n".join(f"• {sentence}" for sentence in _sentences(rng, 20))


def ellipses(rng: random.Random) -> str:
    return "\n".join(f"{sentence.rstrip('.')}..." for sentence in _sentences(rng, 20))


def few_letters(rng: random.Random) -> str:
    lines = []
    for sentence in _sentences(rng, 12):
        words = sentence.split()
        for place in range(0, len(words), 2):
            words[place] += f" {rng.randrange(100, 999)}"
        lines.append(" ".join(words))
    return "\n".join(lines)


def no_stop_words(rng: random.Random) -> str:
    nouns = [
        "camera",
        "battery",
        "charger",
        "wireless",
        "leather",
        "black",
        "cheap",
        "discount",
        "original",
        "bottle",
        "summer",
        "shoes",
        "jacket",
        "watch",
        "silver",
        "kitchen",
        "garden",
        "table",
        "lamp",
        "carpet",
        "mirror",
        "printer",
        "paper",
        "yellow",
        "children",
        "winter",
        "cotton",
        "shirt",
        "trousers",
        "sport",
    ]
    return "\n".join(" ".join(rng.sample(nouns, 10)) + "." for _ in range(14))


def repeated_lines(rng: random.Random) -> str:
    lines = _sentences(rng, 12)
    return "\n".join(line for index, line in enumerate(lines) for _ in range(2 if index < 8 else 1))


def repeated_paragraphs(rng: random.Random) -> str:
    paragraphs = [" ".join(_sentences(rng, 2)) for _ in range(9)]
    return "\n\n".join(text for index, text in enumerate(paragraphs) for _ in range(2 if index < 6 else 1))


def one_phrase(rng: random.Random) -> str:
    return "\n".join(
        f"{sentence} Best cheap hotels. Best cheap hotels. Best cheap hotels."
        for sentence in _sentences(rng, 8)
    )


def repeated_passages(rng: random.Random) -> str:
    passage = " ".join(_sentences(rng, 3))
    return "\n".join(f"{sentence} {passage}" for sentence in _sentences(rng, 6))


SPAM: dict[str, Callable[[random.Random], str]] = {
    "gopher_quality.too_few_words": too_short,
    "gopher_quality.words_too_long": long_words,
    "gopher_quality.too_many_hashes": hash_signs,
    "gopher_quality.too_many_bullet_lines": bullets,
    "gopher_quality.too_many_ellipsis_lines": ellipses,
    "gopher_quality.too_few_alphabetic_words": few_letters,
    "gopher_quality.too_few_stop_words": no_stop_words,
    "gopher_repetition.duplicate_line_share": repeated_lines,
    "gopher_repetition.duplicate_paragraph_share": repeated_paragraphs,
    "gopher_repetition.top_3_gram": one_phrase,
    "gopher_repetition.duplicate_5_grams": repeated_passages,
}
"""The rule that must decide, and a writer of texts for it."""
