"""How good a classifier is on labelled texts: precision and recall by threshold and language, with intervals.

A text counts as *found* where the model's score for the label lies above the threshold. Thresholds lie midway
between neighbouring scores, so that no score equals one and both sides of `classifier.reject` say the same.
Intervals are Wilson's (Wilson 1927), which hold for small numbers and for shares near 0 and 1."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Final

from lineage.recipe import RecipeError, utf8_text
from lineage.secrets import without_secrets
from pipeline.models.encoder import load_encoder
from stages.document import Document, Place
from stages.reading.rows.row import names_shown
from stages.steps.classifier import ClassifierStep, ClassifierTable
from stages.steps.textfiles import json_lines, read_named_file

_TOGETHER: Final = 256
_NAME: Final = "evaluated"
LANGUAGE_KEY: Final = "language"
"""The usual key of a text's language, which no file needs."""
NO_LANGUAGE: Final = "no language"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledText:
    """A text of the file, whether it has the label, and its language where the file names one."""

    text: str
    is_positive: bool
    language: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredText:
    """A labelled text's score, without the text."""

    score: float
    is_positive: bool
    language: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A share with the ends of its interval; None where it is one of nothing."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AtThreshold:
    """What the model does at a threshold: `num_found` texts score above it, `num_right` of them have the
    label."""

    threshold: float
    num_found: int
    num_right: int
    precision: Interval | None
    recall: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """`curve` runs over the thresholds, from the least. `wanted` is the threshold of most recall whose
    precision reaches the wanted one, `sure` that whose interval lies above it; None where no threshold
    does."""

    label: str
    num_texts: int
    num_positive: int
    average_precision: float
    wanted_precision: float
    confidence: float
    curve: tuple[AtThreshold, ...]
    wanted: AtThreshold | None
    sure: AtThreshold | None
    by_language: Mapping[str, Evaluation]


def read_labelled(file: str, label: str, fields: Mapping[str, str]) -> list[LabelledText]:
    """The texts of a JSONL file; `fields` name those of `text`, `label` and `language`. A row has the label
    where its field is the label's name, with or without fastText's prefix, or true or 1; a list has it where
    it holds the name. RecipeError for a line that is none, with its number."""
    found: list[LabelledText] = []
    shown = without_secrets(file)
    named: set[str] = set()
    for number, row in json_lines(utf8_text(read_named_file(file), repr(shown)), shown):
        found.append(_labelled(row, label, fields, f"{shown} line {number}"))
        named.update(row if isinstance(row, dict) else ())
    if (language := fields["language"]) not in named and language != LANGUAGE_KEY:
        raise RecipeError(
            f"{shown} has no key {language!r} (--language-field), only {names_shown(sorted(named))}"
        )
    for is_positive, kind in ((True, "with"), (False, "without")):
        if not any(text.is_positive is is_positive for text in found):
            raise RecipeError(
                f"{shown} has no text {kind} the label {label!r}: expected some of either, under the key"
                f" {fields['label']!r}"
            )
    return found


def _labelled(row: Any, label: str, fields: Mapping[str, str], where: str) -> LabelledText:
    text = row.get(fields["text"]) if isinstance(row, dict) else None
    if not isinstance(text, str) or fields["label"] not in row:
        there = f"it has {names_shown(row)}" if isinstance(row, dict) else "it is none"
        raise RecipeError(
            f"{where}: expected an object with {fields['text']!r}, a text, and {fields['label']!r}; {there}:"
            " other keys are given with --field and --truth"
        )
    truth, language = row[fields["label"]], row.get(fields["language"])
    names = truth if isinstance(truth, list) else [truth]
    is_positive = any(
        name == 1 if isinstance(name, (bool, int)) else str(name).removeprefix("__label__") == label
        for name in names
    )
    return LabelledText(
        text=text, is_positive=is_positive, language=language if isinstance(language, str) else None
    )


def scores_of(texts: Sequence[LabelledText], model: str, label: str) -> list[ScoredText]:
    """The model's scores for the label. RecipeError where the model cannot be read, or has no such label."""
    table = ClassifierTable(name=_NAME, model=model, label=label, reject="never")
    step = ClassifierStep((table,), load_encoder=load_encoder)
    step.prepare()
    scores = _by_encoder(table, texts) if table.is_encoder else [_score(step, text.text) for text in texts]
    return [
        ScoredText(score=score, is_positive=text.is_positive, language=text.language)
        for text, score in zip(texts, scores, strict=True)
    ]


def _by_encoder(table: ClassifierTable, texts: Sequence[LabelledText]) -> list[float]:
    scores = load_encoder(table, False)
    starts = range(0, len(texts), _TOGETHER)
    return [
        score
        for start in starts
        for score in scores([text.text for text in texts[start : start + _TOGETHER]])
    ]


def _score(step: ClassifierStep, text: str) -> float:
    outcome = step(_document(text))
    assert isinstance(outcome, Document), "a classifier that never rejects"
    return dict(outcome.scores)[_NAME]


def _document(text: str) -> Document:
    return Document(
        doc_id=bytes(16), source="labelled", place=Place(file="", offset=0, length=0), raw_hash=b"", text=text
    )


def evaluation(
    texts: Sequence[ScoredText], label: str, wanted_precision: float, confidence: float = 0.95
) -> Evaluation:
    """What the scores are worth, over all texts and by language."""
    whole = _evaluated(texts, label, wanted_precision, confidence)
    languages = sorted({text.language or NO_LANGUAGE for text in texts})
    if len(languages) < 2:
        return whole
    by_language = {
        language: _evaluated(
            [text for text in texts if (text.language or NO_LANGUAGE) == language],
            label,
            wanted_precision,
            confidence,
        )
        for language in languages
    }
    return replace(whole, by_language=by_language)


def _evaluated(
    texts: Sequence[ScoredText], label: str, wanted_precision: float, confidence: float
) -> Evaluation:
    curve = tuple(_curve(texts, confidence))
    num_positive = sum(text.is_positive for text in texts)
    reaching = [at for at in curve if at.precision is not None and at.precision.value >= wanted_precision]
    sure = [at for at in curve if at.precision is not None and at.precision.low >= wanted_precision]
    return Evaluation(
        label=label,
        num_texts=len(texts),
        num_positive=num_positive,
        average_precision=_average_precision(curve, num_positive),
        wanted_precision=wanted_precision,
        confidence=confidence,
        curve=curve,
        wanted=_most_found(reaching),
        sure=_most_found(sure),
        by_language={},
    )


def _most_found(places: Sequence[AtThreshold]) -> AtThreshold | None:
    """The one of most recall; of equals the greatest threshold, which finds the fewest others."""
    return max(places, key=lambda at: (at.num_right, at.threshold), default=None)


def _curve(texts: Sequence[ScoredText], confidence: float) -> Iterator[AtThreshold]:
    """From the least threshold, below which no score lies, to the last, above which the highest scores
    lie."""
    ordered = sorted(texts, key=lambda text: text.score)
    num_positive = sum(text.is_positive for text in texts)
    num_found, num_right = len(ordered), num_positive
    below = -math.inf
    for place, text in enumerate(ordered):
        if text.score != below:
            is_first = math.isinf(below)
            yield AtThreshold(
                threshold=math.nextafter(text.score, -math.inf) if is_first else _between(below, text.score),
                num_found=num_found,
                num_right=num_right,
                precision=wilson(num_right, num_found, confidence),
                recall=wilson(num_right, num_positive, confidence),
            )
        below = text.score
        num_found, num_right = len(ordered) - place - 1, num_right - text.is_positive


def _between(low: float, high: float) -> float:
    """Midway, or the lower score itself where no number lies between."""
    middle = (low + high) / 2
    return middle if middle < high else low


def _average_precision(curve: Sequence[AtThreshold], num_positive: int) -> float:
    """The mean of the precision over the texts with the label, each at the threshold that finds it last: the
    area under the curve of precision over recall, without interpolation."""
    total, before = 0.0, 0
    for at in reversed(curve):
        total += (at.num_right - before) * (at.precision.value if at.precision else 0.0)
        before = at.num_right
    return total / num_positive if num_positive else 0.0


def wilson(num: int, of: int, confidence: float) -> Interval | None:
    """The share num / of with Wilson's interval; None of nothing."""
    if of == 0:
        return None
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = num / of
    centre = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z / (1 + z * z / of) * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    # At the ends the interval's own end is the share, up to rounding.
    return Interval(
        value=share, low=min(max(0.0, centre - half), share), high=max(min(1.0, centre + half), share)
    )


def points(curve: Sequence[AtThreshold], most: int) -> list[AtThreshold]:
    """At most so many of the curve's thresholds, evenly over its length, the first and the last among
    them."""
    if len(curve) <= most:
        return list(curve)
    places = sorted({round(number * (len(curve) - 1) / (most - 1)) for number in range(most)})
    return [curve[place] for place in places]
