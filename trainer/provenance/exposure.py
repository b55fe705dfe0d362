"""The order in the two directions of lineage: from a run's recorded plan to the sequences that read a span,
and back.

`lineage.trace.exposure` joins these with the facts on a run; it takes them as functions, since lineage
imports no trainer."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from lineage.store.rows import ShardSpan
from lineage.trace.exposure import Reading
from trainer.order import Order, OrderPlan


def find_readings(plan: str, span: ShardSpan, up_to: int) -> list[Reading]:
    """Every sequence below `up_to` of the run with `plan` (JSON) that reads any of `span`, rising; none for a
    source or shard that the run did not have. `first_token` is a position in the sequence."""
    order = _order(plan)
    lengths = dict(order.plan.lengths).get(span.source, ())
    if span.shard >= len(lengths):
        return []
    found = order.find(span.source, span.shard, span.start, span.num_tokens, up_to)
    return [Reading(*row) for row in zip(*(column.tolist() for column in found), strict=True)]


def locate_sequences(plan: str, sequences: Sequence[int]) -> list[ShardSpan]:
    """Where each sequence of the run with `plan` (JSON) lies."""
    return spans_of(_order(plan), sequences)


def spans_of(order: Order, sequences: Sequence[int]) -> list[ShardSpan]:
    """Where each sequence of an order lies."""
    places = order.locate(np.array(sequences, np.int64))
    columns = (places.source, places.shard, places.start, places.num_tokens)
    return [
        ShardSpan(order.plan.sources[source], shard, start, num_tokens)
        for source, shard, start, num_tokens in zip(*(column.tolist() for column in columns), strict=True)
    ]


def sequences_of(step: int, global_batch: int) -> range:
    """The sequences that a step reads, by row."""
    return range(step * global_batch, (step + 1) * global_batch)


@functools.lru_cache(maxsize=4)
def _order(plan: str) -> Order:
    return Order(OrderPlan.from_json(plan))
