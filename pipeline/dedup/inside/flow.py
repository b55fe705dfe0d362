"""Repeats inside the documents of a corpus, from its clean texts to what is cut of each and where that stays.

    substring   anchors ─▶ repeated ones ─▶ text around them ─▶ runs ─┐
    line        lines by hash ────────────────────────────────▶ marks ├─▶ cuts ─▶ twins ─▶ found
    paragraph   n-grams ─▶ repeated ones ─▶ states, in rounds ─▶ marks ┘

What is compared meets by hash, what concerns a document by slice of pieces (`pieces`). A document that keeps too little
is rejected, and then the cuts of all others are found without it: so the text of every cut stays in a document that
is kept. Each arrow is a phase whose partitions publish a file each (`partitions`), so a call after a kill repeats none.
The result depends on texts and options alone, not on engine, pieces or partitions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lineage.storage.folder import Folder
from lineage.store.column_names import INSIDE
from lineage.store.tables import VERDICTS
from pipeline.dedup.exchange import Engine
from pipeline.dedup.inputs import DedupUnit, locators, node_of
from pipeline.dedup.inside import cutting, lines, paragraphs, substring, twins
from pipeline.dedup.inside.pieces import (
    InsideContext,
    PieceOfCorpus,
    PieceRows,
    cut_into_pieces,
    publish_pieces,
)
from pipeline.dedup.partitions import PartitionPhases, PublishedPartitions
from pipeline.dedup.rows import PartitionResult, ints, routed
from pipeline.results.dedup_result import DedupCounts, DedupResult, GroupVerdicts
from pipeline.results.rows import read_rows
from stages.dedup.inside.options import InsideTable
from stages.dedup.options import Keep

FOLDER: Final = "dedup/inside"
"""Where everything that is found lies, in the work folder of a run."""
CHARS_A_PIECE: Final = 16 << 20
_CHARS_A_PARTITION: Final = 64 << 20
_MOST_PARTITIONS: Final = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideJob:
    """What is looked into: units in (source, file) order with the verdicts of their group, their rows and characters.
    `work` takes what is published; `compared` is what comparing came to."""

    table: InsideTable
    keep: Keep
    work: Folder
    out: Folder
    units: tuple[tuple[DedupUnit, str, int, int], ...]
    compared: DedupResult
    group_files: int = 1000
    chars_a_piece: int = CHARS_A_PIECE
    chars_a_partition: int = _CHARS_A_PARTITION


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundInside:
    """Where the cuts lie: the files of each slice, by number; the first nodes of slices; the verdicts of groups, with
    the documents that keep too little; and counts."""

    folder: Folder
    slices: tuple[int, ...]
    cuts: dict[int, str]
    verdicts: tuple[GroupVerdicts, ...]
    counts: DedupCounts

    def of_unit(self, source_index: int, file_index: int) -> tuple[str, ...]:
        """The files that may have cuts of a unit's documents."""
        first, end = node_of(source_index, file_index, 0), node_of(source_index, file_index + 1, 0)
        starts = np.array(self.slices, np.int64)
        low = max(0, int(np.searchsorted(starts, first, side="right")) - 1)
        high = int(np.searchsorted(starts, end, side="left"))
        return tuple(self.cuts[number] for number in range(low, high) if number in self.cuts)


def look_inside(
    job: InsideJob, engine: Engine, notify: Callable[[str], None] = lambda name: None
) -> FoundInside:
    """The cuts of every document of `job.units`. `notify` gets the name of each phase that begins. Called again after
    it was killed, it repeats no finished phase."""
    pieces = cut_into_pieces(job.units, job.chars_a_piece)
    folder = job.work.folder(FOLDER)
    if not pieces:
        return FoundInside(
            folder=folder, slices=(), cuts={}, verdicts=job.compared.verdicts, counts=DedupCounts()
        )
    return _Flow(job, pieces, engine, notify).run()


class _Flow:
    """The phases of one job in their order."""

    def __init__(
        self, job: InsideJob, pieces: Sequence[PieceRows], engine: Engine, notify: Callable[[str], None]
    ) -> None:
        self.job = job
        folder = job.work.folder(FOLDER)
        publish_pieces(folder, pieces)
        starts = np.array([piece.first_node for piece in pieces], np.int64)
        num_slices = min(len(pieces), _MOST_PARTITIONS)
        first_pieces = np.arange(num_slices) * len(pieces) // num_slices
        num_chars = sum(chars for *_, chars in job.units)
        num_partitions = min(_MOST_PARTITIONS, max(1, math.ceil(num_chars / job.chars_a_partition)))
        self.context = InsideContext(
            table=job.table,
            keep=job.keep,
            out=job.out,
            work=job.work,
            folder=folder,
            num_partitions=num_partitions,
            starts=starts,
            slices=starts[first_pieces],
        )
        self.num_slices = num_slices
        self.of_piece = np.searchsorted(first_pieces, np.arange(len(pieces)), side="right") - 1
        self.phases = PartitionPhases(folder, engine, notify)

    def run(self) -> FoundInside:
        """All phases."""
        match self.job.table.method:
            case "substring":
                cuts, rejected = self.in_two_rounds(self.by_substrings())
            case "line":
                cuts, rejected = self.in_two_rounds(self.by_lines)
            case _:
                cuts, rejected = self.by_paragraphs()
        found = self.found(cuts)
        verdicts = self.verdicts(rejected)
        counts = DedupCounts(
            dropped=rejected.counts.dropped,
            num_cuts=found.counts.num_cuts,
            cut_chars=found.counts.cut_chars,
        )
        return FoundInside(
            folder=self.context.folder,
            slices=tuple(self.context.slices.tolist()),
            cuts=_by_number(found),
            verdicts=verdicts,
            counts=counts,
        )

    def in_two_rounds(
        self, cuts_of: Callable[[str, dict[str, PublishedPartitions]], PublishedPartitions]
    ) -> tuple[PublishedPartitions, PublishedPartitions]:
        """The cuts, and the file that says who is rejected. Without the documents that are rejected fewer runs are
        repeated, so the cuts of the others only shrink and no more are rejected."""
        first = cuts_of("", {})
        if not first.counts.dropped:
            return first, first
        return cuts_of("-again", {"rejected": first}), first

    def by_substrings(self) -> Callable[[str, dict[str, PublishedPartitions]], PublishedPartitions]:
        """The road from anchors to cuts."""
        everything = self.pieces({})
        anchors = self.phase("anchors", everything, substring.anchor_rows, substring.shared_anchors)
        by_slice = self.phase(
            "anchors-by-slice",
            anchors.names,
            substring.shared_anchor_rows,
            substring.anchors_of_slice,
            self.num_slices,
        )

        def cuts_of(again: str, known: dict[str, PublishedPartitions]) -> PublishedPartitions:
            known = {**known, "anchors": by_slice}
            # A slice without a repeated anchor has nothing to send.
            chosen = [piece for piece in self.pieces(known) if piece.has("anchors")]
            found = self.phase(
                f"runs{again}",
                chosen,
                substring.context_rows,
                functools.partial(substring.runs, self.context),
            )
            marks = self.phase(
                f"runs-by-slice{again}",
                found.names,
                cutting.mark_rows,
                cutting.marks_of_slice,
                self.num_slices,
            )
            chosen = [piece for piece in self.pieces({**known, "marks": marks}) if piece.has("anchors")]
            return self.phase(
                f"cuts{again}",
                chosen,
                substring.substring_cut_rows,
                cutting.cuts_of_slice,
                self.num_slices,
            )

        return cuts_of

    def by_lines(self, again: str, known: dict[str, PublishedPartitions]) -> PublishedPartitions:
        """The road from lines to cuts."""
        found = self.phase(f"lines{again}", self.pieces(known), lines.line_rows, lines.repeated_lines)
        marks = self.phase(
            f"lines-by-slice{again}", found.names, cutting.mark_rows, cutting.marks_of_slice, self.num_slices
        )
        return self.phase(
            f"cuts{again}",
            self.pieces({**known, "marks": marks}),
            lines.line_cut_rows,
            cutting.cuts_of_slice,
            self.num_slices,
        )

    def by_paragraphs(self) -> tuple[PublishedPartitions, PublishedPartitions]:
        """The road from n-grams to cuts: one round, since bff remembers what it kept of a document that it then
        emptied."""
        found = self.phase("ngrams", self.pieces({}), paragraphs.ngram_rows, paragraphs.shared_ngrams)
        ngrams = self.phase(
            "ngrams-by-slice",
            found.names,
            paragraphs.paragraph_rows,
            paragraphs.ngrams_of_slice,
            self.num_slices,
        )
        states: dict[int, str] = {}
        num_unknown, rounds = len(ngrams.partitions), 0
        while num_unknown:
            tasks = self.paragraph_tasks(ngrams, states)
            seen = self.phase(f"seen-{rounds}", tasks, paragraphs.state_rows, paragraphs.seen_before)
            reduce = functools.partial(paragraphs.states_of_slice, self.context, states)
            now = self.phase(
                f"states-{rounds}", seen.names, paragraphs.paragraph_rows, reduce, self.num_slices
            )
            # A slice of which all was decided before has no row now, and its file of that round holds.
            states = states | _by_number(now)
            num_unknown, rounds = now.counts.num_open, rounds + 1
        tasks = self.paragraph_tasks(ngrams, states)
        contained = self.phase("contained", tasks, paragraphs.decided_rows, paragraphs.contained)
        marks = self.phase(
            "contained-by-slice",
            contained.names,
            paragraphs.paragraph_rows,
            paragraphs.contained_of_slice,
            self.num_slices,
        )
        cuts = self.phase(
            "cuts",
            self.pieces({"marks": marks}),
            paragraphs.paragraph_cut_rows,
            cutting.cuts_of_slice,
            self.num_slices,
        )
        return cuts, cuts

    def paragraph_tasks(
        self, ngrams: PublishedPartitions, states: dict[int, str]
    ) -> list[paragraphs.SliceOfParagraphs]:
        return [
            paragraphs.SliceOfParagraphs(name, states.get(number))
            for number, name in _by_number(ngrams).items()
        ]

    def found(self, cuts: PublishedPartitions) -> PublishedPartitions:
        """Where the text of each cut stays."""
        names, rounds = cuts.names, 0
        while True:
            reduce = functools.partial(twins.twins, self.context)
            now = self.phase(f"twins-{rounds}", names, twins.twin_rows, reduce, self.num_slices)
            if not now.counts.num_open:
                return self.phase("found", now.names, twins.found_rows, twins.found_of_slice, self.num_slices)
            names, rounds = now.names, rounds + 1

    def verdicts(self, rejected: PublishedPartitions) -> tuple[GroupVerdicts, ...]:
        """The verdicts of comparing, and on documents that keep too little."""
        groups = self.job.compared.verdicts
        if not rejected.counts.dropped:
            return groups
        starts = [node_of(group.source_index, group.group * self.job.group_files, 0) for group in groups]
        tasks = [_VerdictFile(group.name, number) for number, group in enumerate(groups)]
        tasks += [_VerdictFile(name, None) for name in rejected.names]
        read = functools.partial(_verdict_rows, self.job.work, np.array(starts, np.int64))
        written = _by_number(self.phase("verdicts", tasks, read, _verdicts, len(groups)))
        return tuple(
            GroupVerdicts(
                source_index=group.source_index,
                group=group.group,
                name=f"{FOLDER}/{written[number]}" if number in written else group.name,
            )
            for number, group in enumerate(groups)
        )

    def pieces(self, files: dict[str, PublishedPartitions]) -> list[PieceOfCorpus]:
        """Every piece, with the files of its slice."""
        names = {what: _by_number(published) for what, published in files.items()}
        return [
            PieceOfCorpus(
                number,
                tuple((what, of_slice[each]) for what, of_slice in names.items() if each in of_slice),
            )
            for number, each in enumerate(self.of_piece.tolist())
        ]

    def phase(
        self,
        name: str,
        tasks: Sequence[Any],
        read: Callable[[InsideContext, Any], pa.Table],
        reduce: Callable[[int, pa.Table], PartitionResult],
        num_partitions: int | None = None,
    ) -> PublishedPartitions:
        return self.phases.run(
            name,
            tasks,
            functools.partial(read, self.context),
            reduce,
            num_partitions or self.context.num_partitions,
        )


def _by_number(published: PublishedPartitions) -> dict[int, str]:
    """The files of a phase by the number of their partition."""
    return dict(zip(published.partitions, published.names, strict=True))


@dataclass(frozen=True, slots=True)
class _VerdictFile:
    """The verdicts on a group, by its number; or rows of CUT_ROWS."""

    name: str
    group: int | None


_MADE: Final = pa.schema([("by_inside", pa.bool_()), *VERDICTS])


def _verdict_rows(
    work: Folder, starts: npt.NDArray[np.int64], context: InsideContext, file: _VerdictFile
) -> pa.Table:
    """Verdicts of comparing, and those on documents that keep too little, by group."""
    if file.group is not None:
        rows = read_rows(work, file.name)
        rows = rows.add_column(0, "by_inside", pa.array(np.zeros(len(rows), np.bool_))).cast(_MADE)
        return routed(np.full(len(rows), file.group, np.int64), rows)
    rows = context.read(file.name, ["node", "rule", "value", "threshold"])
    rows = rows.filter(pc.is_valid(rows["rule"]))
    node = ints(rows, "node")
    known: dict[str, object] = dict(
        zip(("source_index", "file_index", "part_row"), locators(node), strict=True)
    )
    known |= {name: rows[name] for name in ("rule", "value", "threshold")}
    known |= {"by_inside": np.ones(len(rows), np.bool_), "cluster_size": np.ones(len(rows), np.int64)}
    known |= {"status": pa.array(["rejected"] * len(rows)), "stage": pa.array([INSIDE] * len(rows))}
    columns = [
        pa.array(known[field.name]).cast(field.type)
        if isinstance(known.get(field.name), np.ndarray)
        else known.get(field.name, pa.nulls(len(rows), field.type))
        for field in _MADE
    ]
    return routed(np.searchsorted(starts, node, side="right") - 1, pa.table(columns, schema=_MADE))


def _verdicts(_: int, rows: pa.Table) -> PartitionResult:
    """A group's verdicts in order of (file_index, part_row). One that keeps too little stays in its cluster."""
    by_inside = rows["by_inside"].to_numpy()
    ours, others = rows.filter(pa.array(by_inside)), rows.filter(pa.array(~by_inside))
    places = ("source_index", "file_index", "part_row")
    at = dict(
        zip(zip(*(ours[name].to_pylist() for name in places), strict=True), ours.to_pylist(), strict=True)
    )
    decided = ("status", "stage", "rule", "value", "threshold")
    merged = []
    for row in others.to_pylist():
        found = at.pop(tuple(row[name] for name in places), None)
        merged.append(row if found is None else row | {name: found[name] for name in decided})
    merged += at.values()
    merged.sort(key=lambda row: (row["file_index"], row["part_row"]))
    return PartitionResult(pa.Table.from_pylist(merged, schema=VERDICTS))
