"""Skipped batches in a row: what a run leaves out when it goes back before them, and what they hold.

What is left out stands in `rollbacks/` of the output, so every later attempt passes over it as over what the
recipe's `skip` names. No torch here."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from lineage.storage.folder import Folder
from lineage.store.delta import StoreError
from lineage.store.lookup import Lookup
from trainer.attempts import TrainingStoppedError, attempts
from trainer.checkpoint.store import Position, checkpoint_folder, complete_checkpoints, newest_with_files
from trainer.data.corpus import open_corpus
from trainer.data.recipe_order import make_order
from trainer.options import TrainRecipe, TrainTable
from trainer.provenance.exposure import sequences_of, spans_of
from trainer.recovery.repeats import MOST_IN_A_ROW, OnRepeat, SkipCounter
from trainer.recovery.rollbacks import Rollback, record_rollback, rollbacks

Ranges = tuple[tuple[int, int], ...]

_SHOWN: Final = 20
"""Documents that are named of the batches that were skipped."""


def skip_counter(table: TrainTable, position: Position | None) -> SkipCounter:
    """The count of skipped batches in a row, as the checkpoint that a run goes on from has it."""
    asked = OnRepeat(
        max_skips=table.faults.max_skips,
        action=table.faults.on_repeat,
        lower_factor=table.faults.lower_factor,
        lower_steps=table.faults.lower_steps,
    )
    if position is None:
        return SkipCounter(asked)
    return SkipCounter(asked, position.skipped_in_row, position.lowered)


def left_out(output: Folder) -> Ranges:
    """The [first, last] sequence numbers that a run leaves out since it went back before them, rising."""
    return tuple(sorted({bounds for rollback in rollbacks(output) for bounds in rollback.left_out}))


def go_back_before(recipe: TrainRecipe, steps: Sequence[int]) -> list[str]:
    """Write down that the run goes back to its newest whole checkpoint before these skipped steps (or to its
    first weights) and leaves their sequences out; gives what the user should read. TrainingStoppedError where
    it has done so several times right before them: it is not the data then."""
    output = Folder(recipe.train.output)
    folder = checkpoint_folder(recipe)
    size = recipe.train.global_batch
    known = {last + 1: first for first, last in left_out(output)}
    first, num = steps[0] * size, 0
    while first in known:
        first, num = known[first], num + 1
    if num >= MOST_IN_A_ROW:
        raise TrainingStoppedError(
            f"steps {steps[0]} to {steps[-1]} were skipped in a row, right behind others that the run went"
            f" back before {num} times and left out: it is not their data. Lower the learning rate, or set"
            " train.faults.on_repeat ="
            ' "lower_lr" or "stop"'
        )
    chosen = newest_with_files(folder, complete_checkpoints(folder, attempts(output)), steps[0])
    ranges = _ranges(steps, size)
    record_rollback(
        output,
        Rollback(
            number=0,
            step=0 if chosen is None else chosen.step,
            checkpoint=None if chosen is None else chosen.name,
            parent=None if chosen is None else chosen.attempt,
            left_out=ranges,
        ),
    )
    where = "its first weights" if chosen is None else f"checkpoint {chosen.name}"
    sequences = ", ".join(f"{low} to {high}" for low, high in ranges)
    return [
        f"steps {', '.join(map(str, steps))} were skipped in a row: the run goes back to {where} and leaves"
        f" sequences {sequences} out (train.faults.on_repeat)",
        *documents_of(recipe, steps),
    ]


def documents_of(recipe: TrainRecipe, steps: Sequence[int]) -> Iterator[str]:
    """The documents that these steps read, the first of them a line each with its URL."""
    corpus = open_corpus(recipe.train.outs)
    order = make_order(recipe, corpus)
    size = recipe.train.global_batch
    spans = spans_of(order, [number for step in steps for number in sequences_of(step, size)])
    num = 0
    for output in corpus.outputs:
        try:
            lookup = Lookup(Folder(output.url))
            placed = lookup.at_spans_of_run(output.prefix, spans).values()
            found = {placement.doc_id for of_span in placed for placement in of_span}
            shown = sorted(found)[: max(_SHOWN - num, 0)]
            for row in lookup.documents(shown):
                yield f"  document {row.doc_id.hex()}{'' if row.url is None else f' {row.url}'}"
        except (StoreError, OSError) as error:
            yield f"  documents of {output.url} cannot be named: {error}"
            continue
        num += len(found)
    if num > _SHOWN:
        name = shlex.quote(recipe.run.name)
        step = steps[0]
        yield f"  and {num - _SHOWN:,} more: sluice trace OUT --run {name} --step {step} lists a step's"


def _ranges(steps: Sequence[int], size: int) -> Ranges:
    """The sequences of these steps, those of neighbours together."""
    found: list[tuple[int, int]] = []
    for step in steps:
        first, last = step * size, (step + 1) * size - 1
        if found and found[-1][1] + 1 == first:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return tuple(found)
