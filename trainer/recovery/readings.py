"""What a run read of the documents that purges took, from the facts on it and the inverse of its order.

A checkpoint stands at the end of a line of attempts: what an attempt fed after the step from which another
one went on is in no weights of that line (`as_of`). No torch here."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from lineage.index.output_index import read_index
from lineage.purge.execution import unfinished_purge
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.delta import read_table
from lineage.store.lookup import Lookup
from lineage.store.rows import PurgedRow, PurgeRow, ShardSpan
from lineage.trace.exposure import Exposure, TrainingRun, erased_from, exposures
from lineage.trace.tracer import all_runs
from trainer.attempts import Attempt, line_of_attempts
from trainer.provenance.exposure import find_readings
from trainer.provenance.facts import FACTS_FILE
from trainer.provenance.reached import read_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgedSpan:
    """A span that a purge took, of which document, and the contents that lack it."""

    doc_id: bytes
    span: ShardSpan
    erased_in: frozenset[str]


@dataclass(frozen=True)
class PurgedOutput:
    """An output of the data pipeline and some of its purges."""

    out: Folder
    purges: tuple[PurgeRow, ...]

    @cached_property
    def doc_ids(self) -> frozenset[bytes]:
        """Every document that these purges took, duplicates that were never placed in a shard too."""
        ids = {purge.purge_id for purge in self.purges}
        return frozenset(row.doc_id for row in self._purged if row.purge_id in ids)

    @cached_property
    def spans(self) -> tuple[PurgedSpan, ...]:
        """Every span that these purges took, one a document, by place."""
        erased = {purge.purge_id: erased_from(purge, self._known) for purge in self._known}
        of_document: dict[bytes, set[str]] = defaultdict(set)
        spans: dict[bytes, ShardSpan] = {}
        for row in self._purged:
            if row.doc_id in self.doc_ids and row.purge_id in erased:
                of_document[row.doc_id].add(row.purge_id)
                place = (row.source, row.shard, row.start, row.num_tokens)
                if None not in place:  # a duplicate that was never placed in a shard
                    spans[row.doc_id] = ShardSpan(*place)  # type: ignore[arg-type]
        # Documents by the thousand lack the same few purges: each set of these is united once.
        without: dict[frozenset[str], frozenset[str]] = {}
        found = []
        for doc_id, span in sorted(spans.items(), key=lambda item: item[1]):
            names = frozenset(of_document[doc_id])
            if names not in without:
                without[names] = frozenset().union(*(erased[name] for name in names))
            found.append(PurgedSpan(doc_id=doc_id, span=span, erased_in=without[names]))
        return tuple(found)

    def runs(self, outputs: Sequence[str] = ()) -> list[TrainingRun]:
        """The runs that read this output, by its store; of those at `outputs` their own facts too, which tell
        of the steps since their last checkpoint."""
        known = [output for output in outputs if Folder(output).exists(FACTS_FILE)]
        return all_runs(Lookup(self.out), read_facts(known, self.out.url))

    def restored_purge(self) -> str | None:
        """A purge whose documents the output holds again, as out of a backup; None where none is."""
        now = read_index(self.out).content_fingerprint
        for purge in self.purges:
            if now not in erased_from(purge, self._known):
                return purge.purge_id
        return None

    @cached_property
    def _known(self) -> list[PurgeRow]:
        return Lookup(self.out).purges()

    @cached_property
    def _purged(self) -> list[PurgedRow]:
        columns = [field.name for field in dataclasses.fields(PurgedRow)]
        return [PurgedRow(**row) for row in read_table(self.out, "purged").select(columns).to_pylist()]


def find_purges(outs: Sequence[str], wanted: Sequence[str]) -> list[PurgedOutput]:
    """These purges, or `all`, by the output that each is of; outputs without one are left out.

    RecipeError for one that no output has, or that has not ended."""
    found, known, begun = [], set(), {}
    for url in dict.fromkeys(outs):
        out = Folder(url)
        rows = Lookup(out).purges()
        known |= {row.purge_id for row in rows}
        unfinished = unfinished_purge(out)
        if unfinished is not None:
            begun[unfinished] = out.url
        chosen = tuple(row for row in rows if "all" in wanted or row.purge_id in wanted)
        if chosen:
            found.append(
                PurgedOutput(out=out, purges=tuple(sorted(chosen, key=lambda row: (row.at, row.purge_id))))
            )
    for purge_id in begun if "all" in wanted else set(wanted) & begun.keys():
        raise RecipeError(
            f"purge {purge_id} of {begun[purge_id]} has begun and did not end: make its call again, which finishes it"
        )
    missing = sorted(set(wanted) - known - {"all"})
    if missing:
        there = ", ".join(sorted(known)) or "none"
        raise RecipeError(
            f"no purge {missing[0]!r} in {', '.join(dict.fromkeys(outs))}: expected one of theirs ({there}), or all"
        )
    return found


def readings(run: TrainingRun, purged: PurgedOutput) -> Iterator[tuple[bytes, Exposure]]:
    """Each row of the run that read tokens of a document that the purges took, and of which document."""
    for purged_span in purged.spans:
        for exposure in exposures(run, purged_span.span, find_readings, purged_span.erased_in):
            yield purged_span.doc_id, exposure


def as_of(run: TrainingRun, begun: Sequence[Attempt], attempt: int, step: int) -> TrainingRun:
    """The run as the checkpoint of `step` steps that `attempt` made has it: the stretches on the line that
    leads there, cut where the next attempt took over. What it read is applied, but for steps that were
    skipped."""
    segments = [
        dataclasses.replace(segment, last_step=min(segment.last_step, end - 1))
        for number, end in line_of_attempts(begun, attempt, step)
        for segment in run.segments
        if segment.attempt == number and segment.first_step < end and segment.last_step is not None
    ]
    return dataclasses.replace(run, segments=tuple(sorted(segments, key=lambda s: (s.attempt, s.first_step))))
