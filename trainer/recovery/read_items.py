"""What a run read of the items of an evaluation, from the facts on it and the inverse of its order. No torch here."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from lineage.storage.folder import Folder
from lineage.storage.places import same_place
from lineage.store.rows import RunRow, SegmentRow, ShardSpan
from lineage.trace.exposure import exposures, fold
from trainer.attempts import Attempt
from trainer.evaluation.result import SeenItem
from trainer.evaluation.scanned import ScannedItems, ScannedOutput
from trainer.provenance.exposure import find_readings
from trainer.provenance.facts import Fact, RunFact, SegmentFact, segment_row
from trainer.recovery.readings import as_of


def read_items(
    scanned: ScannedItems, facts: Sequence[Fact], begun: Sequence[Attempt], *, attempt: int, step: int
) -> tuple[SeenItem, ...]:
    """The items that the run read on the line to the checkpoint of `step` steps that `attempt` made, by item. A row of
    a batch counts once for an item, though several of its documents or spans lie in it; steps that were skipped do not
    count. `facts`: in the order in which they were written; `begun`: the attempts of the run."""
    rows: dict[int, set[tuple[int, int]]] = {}
    plans = [
        RunRow(**dataclasses.asdict(fact), fact=number)
        for number, fact in enumerate(facts)
        if isinstance(fact, RunFact)
    ]
    for output in scanned.outputs:
        segments = [
            SegmentRow(**segment_row(number, fact))  # type: ignore[arg-type]
            for number, fact in _facts_about(output, scanned, facts)
        ]
        # An output that was moved between attempts has several places, and is one run's.
        (run,) = fold([dataclasses.replace(plan, output="") for plan in plans], segments)
        run = as_of(run, begun, attempt, step)
        found = [(output.spans, frozenset[str]())]
        found += [(each.spans, frozenset(each.erased_in)) for each in output.erased]
        for spans, erased_in in found:
            for held in spans:
                place = ShardSpan(held.source, held.shard, held.start, held.num_tokens)
                for read in exposures(run, place, find_readings, erased_in):
                    if read.applied:
                        rows.setdefault(held.item, set()).add((read.step, read.row))
    return tuple(
        SeenItem(item=item, first_step=min(rows[item])[0], readings=len(rows[item])) for item in sorted(rows)
    )


def _facts_about(
    output: ScannedOutput, scanned: ScannedItems, facts: Sequence[Fact]
) -> Iterator[tuple[int, SegmentFact]]:
    """The facts of the stretches that read an output, with their numbers: those that name its place, and of an attempt
    that found it elsewhere those with its prefix and the place of no other output."""
    alike = [
        (number, fact)
        for number, fact in enumerate(facts)
        if isinstance(fact, SegmentFact) and fact.prefix == output.prefix
    ]
    of_place = {out: _scanned_at(out, scanned) for out in {fact.out for _, fact in alike}}
    named = {fact.attempt for _, fact in alike if of_place[fact.out] is output}
    for number, fact in alike:
        if of_place[fact.out] is (output if fact.attempt in named else None):
            yield number, fact


def _scanned_at(out: str, scanned: ScannedItems) -> ScannedOutput | None:
    return next((one for one in scanned.outputs if same_place(Folder(one.out), Folder(out))), None)
