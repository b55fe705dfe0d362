"""Plain prose in six languages, made from phrases of our own: readable, grammatical, and never twice the
same."""

from __future__ import annotations

import functools
import importlib.resources
import json
import random
from dataclasses import dataclass

LANGUAGES = ("en", "de", "fr", "es", "it", "nl")
_SLOTS = {
    "subject": "subjects", "verb": "verbs", "object": "objects", "place": "places", "time": "times",
    "reason": "reasons", "opener": "openers", "subject2": "subjects", "verb2": "verbs", "object2": "objects",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrases:
    """The phrases of one language, by kind, and the patterns that sentences are made by."""

    menu: tuple[str, ...]
    patterns: tuple[str, ...]
    kinds: dict[str, tuple[str, ...]]


@functools.cache
def phrases(language: str) -> Phrases:
    """The phrases of a language of LANGUAGES."""
    raw = json.loads(
        importlib.resources.files("pipeline.demo").joinpath(f"texts/{language}.json").read_text("utf-8")
    )
    kinds = {kind: tuple(raw[kind]) for kind in set(_SLOTS.values())}
    return Phrases(menu=tuple(raw["menu"]), patterns=tuple(raw["patterns"]), kinds=kinds)


class Writer:
    """Writes sentences of one text: a phrase comes back only after all others of its kind, so that no text
    repeats itself more than prose does."""

    def __init__(self, language: str, rng: random.Random) -> None:
        self._phrases, self._rng = phrases(language), rng
        self._decks: dict[str, list[str]] = {}

    def _draw(self, kind: str, choices: tuple[str, ...]) -> str:
        deck = self._decks.get(kind)
        if not deck:
            deck = self._decks[kind] = self._rng.sample(choices, len(choices))
        return deck.pop()

    def sentence(self) -> str:
        """A sentence of 10 to 25 words."""
        pattern = self._draw("pattern", self._phrases.patterns)
        filled = pattern.format(
            **{
                slot: self._draw(kind, self._phrases.kinds[kind])
                for slot, kind in _SLOTS.items()
                if f"{{{slot}}}" in pattern
            }
        )
        return filled[0].upper() + filled[1:]

    def title(self) -> str:
        """A headline."""
        subject, place = (
            self._draw("subjects", self._phrases.kinds["subjects"]),
            self._draw("places", self._phrases.kinds["places"]),
        )
        return f"{subject[0].upper()}{subject[1:]} {place}"

    def paragraphs(self, num_sentences: int) -> list[str]:
        """Paragraphs of three to five sentences."""
        sentences = [self.sentence() for _ in range(num_sentences)]
        cuts, paragraphs = 0, []
        while cuts < len(sentences):
            size = self._rng.randint(3, 5)
            paragraphs.append(" ".join(sentences[cuts : cuts + size]))
            cuts += size
        return paragraphs
