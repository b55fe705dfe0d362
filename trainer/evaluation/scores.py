"""From the losses of an evaluation's requests to its scores, as lm-eval and OLMo define them. No torch here.

Bits a byte of texts: the sum of losses over the sum of bytes, of all texts together, so each text weighs by its
bytes (lm-eval, `bits_per_byte`). Of choices: the mean over items of the right choice's loss over its own bytes, without
the space before it (OLMo's in-loop evaluation, BPB v2). Accuracy: the likeliest choice is the right one; of equal ones
the first counts (lm-eval, `acc`). Length-normalised: the likeliest by byte is (`acc_bytes`, and `acc_norm` where each
character is a byte)."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from lineage.json_record import JsonRecord
from trainer.evaluation.prepared import AskedItem, Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore(JsonRecord):
    """Of some items. `bits_per_byte` is null without items, and where a loss is not finite; the accuracies are null
    for texts too."""

    num_items: int
    bits_per_byte: float | None = None
    accuracy: float | None = None
    accuracy_norm: float | None = None


def nats_of(prepared: Prepared, losses: np.ndarray) -> list[np.ndarray]:
    """Of each item the loss of each choice, or of the text, in nats, from those of its requests."""
    found = [np.zeros(len(item.num_bytes)) for item in prepared.items]
    for (item, choice), loss in zip(prepared.places.tolist(), losses.tolist(), strict=True):
        found[item][choice] += loss
    return found


def score(prepared: Prepared, nats: Sequence[np.ndarray], left_out: Collection[int] = ()) -> TaskScore:
    """The score on all items but those `left_out`, from `nats_of`."""
    taken = [
        pair for number, pair in enumerate(zip(prepared.items, nats, strict=True)) if number not in left_out
    ]
    if not taken:
        return TaskScore(num_items=0)
    if prepared.about.kind == "text":
        num_bytes = sum(item.num_bytes[0] for item, _ in taken)
        return TaskScore(
            num_items=len(taken), bits_per_byte=_bits(sum(float(own[0]) for _, own in taken), num_bytes)
        )
    of_right = [_bits(float(own[item.answer]), item.num_bytes[item.answer]) for item, own in taken]
    return TaskScore(
        num_items=len(taken),
        bits_per_byte=None if None in of_right else sum(filter(None, of_right)) / len(taken),
        accuracy=sum(_right(item, own) for item, own in taken) / len(taken),
        accuracy_norm=sum(_right(item, own / np.array(item.num_bytes)) for item, own in taken) / len(taken),
    )


def _bits(nats: float, num_bytes: int) -> float | None:
    return nats / num_bytes / math.log(2) if math.isfinite(nats) else None


def _right(item: AskedItem, losses: np.ndarray) -> bool:
    """Whether the right choice has the least loss, which is finite."""
    return bool(np.isfinite(losses).all()) and int(losses.argmin()) == item.answer
