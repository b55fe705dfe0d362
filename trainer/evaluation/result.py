"""What is told of an evaluation: its scores, the items that the model had read in training, and the score on the
rest. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lineage.json_record import JsonRecord, left_out_at
from trainer.evaluation.prepared import Prepared
from trainer.evaluation.scores import TaskScore, score


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenItem(JsonRecord):
    """An item (counted from 0 over all files) that the model had read: in which step first, in how many rows of
    batches. `run`: the earlier run whose step that is, where the model began with its weights."""

    item: int
    first_step: int
    readings: int
    run: str | None = left_out_at(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a model had read of an evaluation's items. `too_short`: the items that are too short to be looked for;
    `last_clean_checkpoint`: the steps done at the newest kept checkpoint that had read none, 0 for the first weights
    where none is kept, None where those had read some. `unknown`: what could not be looked at, a sentence each."""

    items: tuple[SeenItem, ...]
    too_short: tuple[int, ...] = ()
    last_clean_checkpoint: int | None = None
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult(JsonRecord):
    """The scores of a model of `step` steps (null: nothing says how many) on an evaluation. `clean`: of the items that
    it had not read; null, as `seen`, where nothing says what it had read. `num_too_short` items are too short to be
    looked for, and count as clean."""

    name: str
    step: int | None
    num_items: int
    bits_per_byte: float | None
    accuracy: float | None
    accuracy_norm: float | None
    clean: TaskScore | None
    seen: tuple[SeenItem, ...] | None
    num_too_short: int
    last_clean_checkpoint: int | None
    unknown: tuple[str, ...]


def result_of(
    prepared: Prepared,
    nats: Sequence[np.ndarray],
    *,
    step: int | None,
    seen: Seen | None,
    unknown: Iterable[str] = (),
) -> EvaluationResult:
    """What is told of an evaluation, from the losses of `nats_of`. `unknown`: why `seen` is None."""
    whole = score(prepared, nats)
    return EvaluationResult(
        name=prepared.about.name,
        step=step,
        num_items=whole.num_items,
        bits_per_byte=whole.bits_per_byte,
        accuracy=whole.accuracy,
        accuracy_norm=whole.accuracy_norm,
        clean=None if seen is None else score(prepared, nats, {each.item for each in seen.items}),
        seen=None if seen is None else seen.items,
        num_too_short=0 if seen is None else len(seen.too_short),
        last_clean_checkpoint=None if seen is None else seen.last_clean_checkpoint,
        unknown=tuple(unknown) if seen is None else seen.unknown,
    )


def named_scores(results: Iterable[EvaluationResult]) -> Iterator[tuple[str, float]]:
    """Each score of some results by its name, such as `arc/accuracy`, and `arc/clean/accuracy` of the items that were
    not read; the number of those that were."""
    for result in results:
        parts: list[tuple[str, EvaluationResult | TaskScore | None]] = [
            ("", result),
            ("clean/", result.clean),
        ]
        for part, score_ in parts:
            for name in ("bits_per_byte", "accuracy", "accuracy_norm"):
                if score_ is not None and (value := getattr(score_, name)) is not None:
                    yield f"{result.name}/{part}{name}", value
        if result.seen is not None:
            yield f"{result.name}/seen_items", float(len(result.seen))


def described(result: EvaluationResult) -> str:
    """A result on one line."""
    text = f"{result.name} {_figures(result)}"
    if result.seen:
        clean = result.clean
        rest = (
            "none of its items" if clean is None or not clean.num_items else f"{_figures(clean)} on the rest"
        )
        return f"{text} ({len(result.seen):,} of {result.num_items:,} items read before: {rest})"
    return text


def _figures(found: EvaluationResult | TaskScore) -> str:
    figures = (
        ("accuracy", found.accuracy),
        ("norm", found.accuracy_norm),
        ("bits per byte", found.bits_per_byte),
    )
    shown = [f"{name} {value:.4f}" for name, value in figures if value is not None]
    return ", ".join(shown) or "not finite"
