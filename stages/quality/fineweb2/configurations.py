"""FineWeb-2's configuration of each language: thresholds, stop words, whose words its texts are split into.

`SOURCE.txt` beside this says where the table comes from. A value of 0 switches a rule off in datatrove's
filters, and is no threshold of 0: such a rule is left out here."""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from stages.quality.languages import language_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A language. `label` is GlotLID's (deu_Latn); `words` whose word tokenizer splits its texts, as
    `stages.quality.splitters` names them; `language_score` the least score of a text; `thresholds` are by the
    keys of [quality]."""

    label: str
    words: str
    language_score: float
    thresholds: Mapping[str, float]
    stop_words: tuple[str, ...]


@functools.cache
def configurations() -> Mapping[str, Configuration]:
    """Every configuration by the code of its language (`language_code`)."""
    text = importlib.resources.files(__package__).joinpath("languages.jsonl").read_text(encoding="utf-8")
    found = map(_configuration, map(json.loads, text.splitlines()))
    return MappingProxyType({language_code(each.label): each for each in found})


def configuration_of(language: str) -> Configuration | None:
    """That of the language which a label names. A label without a script (abk) names the one configuration
    that its language has; None where there is none, or several."""
    code = language_code(language)
    if code in configurations():
        return configurations()[code]
    alone = _without_script().get(code, ())
    return configurations()[alone[0]] if len(alone) == 1 else None


@functools.cache
def _without_script() -> Mapping[str, tuple[str, ...]]:
    codes: dict[str, tuple[str, ...]] = {}
    for code in configurations():
        language = code.partition("-")[0]
        codes[language] = (*codes.get(language, ()), code)
    return codes


_TOP_GRAMS: Final = tuple(f"max_top_{n}_gram" for n in (2, 3, 4))
_DUPLICATE_GRAMS: Final = tuple(f"max_duplicate_{n}_grams" for n in (5, 6, 7, 8, 9, 10))
BY_LANGUAGE: Final = (
    "max_duplicate_lines",
    *_TOP_GRAMS,
    *_DUPLICATE_GRAMS,
    "fineweb_min_line_punctuation",
    "fineweb_max_newlines_per_word",
    "min_word_length",
    "max_word_length",
    "min_alphabetic_words",
)
"""The keys of [quality] that a configuration has a threshold for."""


def _configuration(row: list[Any]) -> Configuration:
    (
        label,
        words,
        score,
        lines,
        top,
        duplicate,
        punctuation,
        newlines,
        shortest,
        longest,
        letters,
        stop_words,
    ) = row
    values = (lines, *top, *duplicate, punctuation, newlines, shortest, longest, letters)
    thresholds = dict(zip(BY_LANGUAGE, map(float, values), strict=True))
    if not lines:
        del thresholds["max_duplicate_lines"]
    return Configuration(
        label=label,
        words=words,
        language_score=score,
        thresholds=MappingProxyType(thresholds),
        stop_words=tuple(stop_words),
    )
