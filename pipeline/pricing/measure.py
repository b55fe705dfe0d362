"""A sample of the inputs, carried through the pipeline's own units in this process: what it came to, by replicate.

    1. read      the documents of the cells; their steps, texts and keys, as a unit of a run
    2. compare   the survivors of all of them with each other
    3. tokens    of the texts that stay

What the first documents cost more than the same again (models loaded, caches filled) is counted as start-up."""

from __future__ import annotations

import resource
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow.compute as pc

from lineage.storage.folder import Folder
from pipeline.dedup.compare import dedup_job
from pipeline.dedup.corpus import deduplicate
from pipeline.inputs.files import Input, open_input
from pipeline.inputs.ranges import fetched, read_selected
from pipeline.inputs.selected import SelectedRecords
from pipeline.phases.groups import make_groups, unit_verdicts
from pipeline.phases.read import batches_of, chain_of, read_job, read_options, tally_of
from pipeline.phases.tokenize import kept_tokenizer
from pipeline.plan import RunPlan, Unit, make_plan
from pipeline.pricing.estimate import Repetition
from pipeline.pricing.sample import NUM_REPLICATES, Cell, SourceSample
from pipeline.recipe.tables import PipelineRecipe
from pipeline.results.rows import read_rows, read_texts
from pipeline.results.unit_results import ReadResult
from pipeline.units.files import UnitWriter
from pipeline.units.tally import UnitTally
from stages.document import Document
from stages.html.extraction_child import processor_seconds
from stages.reading.options import InputCounts, ReadOptions, UnreadableError
from stages.reading.sampled import SampledPart, part_of, read_head, read_part

_HEAD_DOCUMENTS: Final = 8
"""Of the beginning of a file, for each cell of one that cannot be read from within."""
_WARM_TEXTS: Final = 4


PART_BYTES: Final = "part bytes"
TEXTS_BYTES: Final = "texts bytes"


@dataclass(slots=True, kw_only=True)
class Replicate:
    """What a replicate of a source came to. `weight` is what its cells count as in the unit of the source's
    `size`: bytes of input, or files. `num_survivors` documents passed all steps, `num_kept` of them repeat no other of
    the sample and have `num_tokens`. `amounts` are processor seconds by step, and the bytes of clean and parsed texts
    (PART_BYTES, TEXTS_BYTES); `apart` those of it that were measured of the replicate by itself."""

    weight: float = 0.0
    num_documents: float = 0.0
    num_survivors: float = 0.0
    num_kept: float = 0.0
    num_tokens: float = 0.0
    amounts: dict[str, float] = field(default_factory=dict)
    apart: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSource:
    """The replicates of a source; `size` is the weight of all of it; `is_all`: all of it was read."""

    replicates: tuple[Replicate, ...]
    size: float
    is_all: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the sample came to. `startup` are the processor seconds of a process until its steps are warm;
    `peak_bytes` this process's most memory; `empty_seconds` and `empty_bytes` what a unit without documents takes;
    `num_heads` files cannot be read from within, and their first documents stand for them; `unreadable` are the
    errors of cells that cannot be read."""

    sources: tuple[MeasuredSource, ...]
    repetition: Repetition
    startup: float
    peak_bytes: int
    empty_seconds: float
    empty_bytes: int
    num_documents: int
    num_heads: int
    unreadable: tuple[str, ...]


def measure(
    recipe: PipelineRecipe, samples: Sequence[SourceSample], notify: Callable[[str], None]
) -> Measured:
    """Carry the samples through the recipe's steps; `notify` gets a line for each part of it. RecipeError where a
    step cannot be built; OSError where an input cannot be reached."""
    with tempfile.TemporaryDirectory(prefix="sluice-plan-") as folder:
        # What lies in earlier outputs is not compared with: that would cost as much as in the run itself.
        dedup = replace(recipe.dedup, against=(), inside=type(recipe.dedup.inside)())
        output = replace(recipe.run, output=folder)
        return _Sampling(replace(recipe, run=output, dedup=dedup), samples, notify).measured()


class _Sampling:
    def __init__(
        self, recipe: PipelineRecipe, samples: Sequence[SourceSample], notify: Callable[[str], None]
    ) -> None:
        self._recipe, self._samples, self._notify = recipe, samples, notify
        self._plan, self._cells = _plan_of(recipe, samples)
        self._job = replace(read_job(recipe), key=self._plan.key)
        self._out = Folder(recipe.run.output)
        self._parts: dict[Cell, SampledPart] = {}
        self._survivors: dict[str, list[Cell]] = {}
        self._heads: set[str] = set()
        self._unreadable: list[str] = []
        self._warm: set[tuple[str, ...]] = set()
        self._is_tokenizer_warm = False
        self._startup = 0.0

    def measured(self) -> Measured:
        self._empty_seconds, self._empty_bytes = self._empty_unit()
        replicates, results = [], []
        for number, unit in enumerate(self._plan.units, 1):
            self._notify(f"the sample's part {number} of {len(self._plan.units)}")
            replicate, result = self._read(unit)
            replicates.append(replicate)
            results.append(result)
        self._as_in_a_run(replicates)
        self._notify("comparing the sample's documents")
        return Measured(
            repetition=self._compare(replicates, results),
            sources=tuple(
                MeasuredSource(
                    replicates=tuple(
                        replicate
                        for unit, replicate in zip(self._plan.units, replicates, strict=True)
                        if unit.source_index == index
                    ),
                    size=sample.num_files if sample.by_file else sample.num_bytes,
                    is_all=sample.is_all,
                )
                for index, sample in enumerate(self._samples)
            ),
            startup=self._startup,
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
            empty_seconds=self._empty_seconds,
            empty_bytes=self._empty_bytes,
            num_documents=sum(len(part.documents) for part in self._parts.values()),
            num_heads=len(self._heads),
            unreadable=tuple(self._unreadable),
        )

    def _empty_unit(self) -> tuple[float, int]:
        """Processor seconds, and bytes of the clean part, of a unit without documents: a run pays them once a
        file."""
        unit = replace(self._plan.units[0], key="empty", file_index=NUM_REPLICATES)
        for _ in range(2):  # the second time its libraries are loaded
            begun = time.process_time()
            with UnitWriter(self._out, self._job.unit_files, unit, tally_of(self._job, unit)) as writer:
                pass
        return time.process_time() - begun, self._out.size(writer.part.file)

    def _read(self, unit: Unit) -> tuple[Replicate, ReadResult]:
        """Carry a replicate through its steps."""
        sample, cells = self._samples[unit.source_index], self._cells[unit.key]
        parts = [self._part(unit, cell) for cell in cells]
        documents = [document for part in parts for document in part.documents]
        cell_of = [cell for cell, part in zip(cells, parts, strict=True) for _ in part.documents]
        steps = self._job.steps[unit.source_index]
        if documents and steps not in self._warm:
            self._warm.add(steps)
            again = replace(unit, key="warm", file_index=NUM_REPLICATES + 1)
            cold, warm = (self._carried(again, documents)[0] for _ in range(2))
            self._startup += max(0.0, cold - warm)
        took, tally, writer, survived = self._carried(unit, documents)
        survivors = [cell for cell, has in zip(cell_of, survived, strict=True) if has]
        self._survivors[unit.key] = survivors
        # Of cells whose records are not just those that begin in them, the number a byte counts.
        covered, asked = sum(part.num_bytes for part in parts), sum(cell.end - cell.begin for cell in cells)
        scale = 1.0 if all(part.is_whole for part in parts) or not covered else asked / covered
        apart = _apart(took, tally, writer, self._out, self._empty_bytes)
        amounts = apart | {"read": sum(part.seconds for part in parts)}
        replicate = Replicate(
            weight=len(cells) if sample.by_file else covered * scale,
            num_documents=len(documents) * scale,
            num_survivors=len(survivors) * scale,
            amounts={name: value * scale for name, value in amounts.items()},
            apart=apart,
        )
        return replicate, tally.result(writer.part, writer.texts)

    def _carried(
        self, unit: Unit, documents: Sequence[Document]
    ) -> tuple[float, UnitTally, UnitWriter, list[bool]]:
        """Documents carried through the steps and written as a unit: the processor seconds that it took, what was
        counted, the files, and which documents survived."""
        tally, survived = tally_of(self._job, unit), list[bool]()
        chain, begun = chain_of(self._job, unit.source_index), processor_seconds()
        with UnitWriter(self._out, self._job.unit_files, unit, tally) as writer:
            parsed = writer.keep_document if self._job.unit_files.keep_text else None
            batches = batches_of(documents, tally, lambda: None)
            for outcome in chain.run(batches, tally.seconds, parsed):
                writer.add(outcome)
                survived.append(isinstance(outcome, Document))
        return processor_seconds() - begun - self._empty_seconds, tally, writer, survived

    def _as_in_a_run(self, replicates: Sequence[Replicate]) -> None:
        """Bring seconds and bytes to what they are in a run, where a step sees hundreds of documents before the next
        one does, and a file holds thousands: a replicate has so few that tables leave the processor's caches, and
        that a file's own bytes count."""
        for index in range(len(self._samples)):
            units = [unit for unit in self._plan.units if unit.source_index == index]
            documents = [
                each
                for unit in units
                for cell in self._cells[unit.key]
                for each in self._parts[cell].documents
            ]
            self._notify(f"the sample of source {self._recipe.source[index].name!r} in one go")
            together = replace(units[0], key=f"together-{index}", file_index=NUM_REPLICATES + 2)
            in_one_go = _apart(*self._carried(together, documents)[:3], self._out, self._empty_bytes)
            of_source = [
                each for unit, each in zip(self._plan.units, replicates, strict=True) if unit in units
            ]
            for name, amount in in_one_go.items():
                apart = sum(each.apart.get(name, 0.0) for each in of_source)
                factor = amount / apart if apart else 1.0
                for each in of_source:
                    each.amounts[name] = each.amounts.get(name, 0.0) * factor

    def _part(self, unit: Unit, cell: Cell) -> SampledPart:
        """What is read of a cell; of one that cannot be read, nothing."""
        if cell in self._parts:
            return self._parts[cell]
        options = replace(read_options(self._job, unit, cell.found), span=None)
        if cell.found.records is not None:
            self._parts[cell] = _selected(cell, cell.found.records.part(cell.begin, cell.end), options)
            return self._parts[cell]
        try:
            with open_input(cell.found) as stream:
                if options.limit_documents is not None:
                    found: SampledPart | None = read_head(stream, options, options.limit_documents)
                else:
                    found = read_part(stream, options, cell.begin, cell.end)
                if found is None:
                    self._heads.add(cell.found.url)
                    same = [
                        each for each in self._samples[unit.source_index].cells if each.found == cell.found
                    ]
                    head = read_head(stream, options, _HEAD_DOCUMENTS * len(same))
                    self._parts |= zip(same, _dealt(head, len(same)), strict=True)
                    return self._parts[cell]
        except UnreadableError as error:
            self._unreadable.append(f"{cell.found.url}: {error}")
            found = SampledPart()
        self._parts[cell] = found
        return found

    def _compare(self, replicates: Sequence[Replicate], results: Sequence[ReadResult]) -> Repetition:
        """Compare the survivors; count in each replicate the documents that stay, and their tokens."""
        compared = deduplicate(dedup_job(self._plan, results))
        cells_of: dict[bytes, set[Cell]] = defaultdict(set)
        by_unit = {unit.key: replicate for unit, replicate in zip(self._plan.units, replicates, strict=True)}
        for group in make_groups(self._plan, compared):
            for unit in group.units:
                verdicts = unit_verdicts(self._out, group.verdicts, unit.file_index)
                repeats = verdicts.filter(pc.equal(verdicts["status"], "duplicate"))
                kept_for = dict(
                    zip(repeats["part_row"].to_pylist(), repeats["duplicate_of"].to_pylist(), strict=True)
                )
                ids = read_rows(self._out, f"{unit.folder}/keys.parquet")["doc_id"].to_pylist()
                for row, (doc_id, cell) in enumerate(zip(ids, self._survivors[unit.key], strict=True)):
                    cells_of[kept_for.get(row) or doc_id].add(cell)
                self._tokenize(
                    unit, [row for row in range(len(ids)) if row not in kept_for], by_unit[unit.key]
                )
        incidence = Counter(map(len, cells_of.values()))
        return Repetition(
            num_documents=sum(map(len, self._survivors.values())),
            num_cells=max(1, len(self._parts)),
            num_texts=len(cells_of),
            num_once=incidence[1],
            num_twice=incidence[2],
        )

    def _tokenize(self, unit: Unit, rows: Sequence[int], replicate: Replicate) -> None:
        scale = replicate.num_survivors / max(1, len(self._survivors[unit.key]))
        replicate.num_kept = len(rows) * scale
        table = self._recipe.tokenize
        if table.off or not rows:
            return
        texts = list(read_texts(self._out, unit.part_file, rows).values())
        if not self._is_tokenizer_warm:
            begun = time.process_time()
            tokenizer = kept_tokenizer(table.encoding, table.end_of_text)
            tokenizer.encode_batch(texts[:_WARM_TEXTS])
            cold = time.process_time() - begun
            tokenizer.encode_batch(texts[:_WARM_TEXTS])
            self._startup += max(0.0, 2 * cold - (time.process_time() - begun))
            self._is_tokenizer_warm = True
        begun = time.process_time()
        tokens = kept_tokenizer(table.encoding, table.end_of_text).encode_batch(texts)
        replicate.amounts["tokenize"] = (time.process_time() - begun) * scale
        # Each document ends with one more.
        replicate.num_tokens = sum(len(each) + 1 for each in tokens) * scale


def _apart(
    took: float, tally: UnitTally, writer: UnitWriter, out: Folder, empty_bytes: int
) -> dict[str, float]:
    """What a unit that `took` so many processor seconds measured, as the amounts of a replicate."""
    return {
        **tally.seconds,
        "write": max(0.0, took - sum(tally.seconds.values())),
        PART_BYTES: float(max(0, out.size(writer.part.file) - empty_bytes)),
        TEXTS_BYTES: float(writer.texts.bytes if writer.texts is not None else 0),
    }


def _plan_of(
    recipe: PipelineRecipe, samples: Sequence[SourceSample]
) -> tuple[RunPlan, Mapping[str, tuple[Cell, ...]]]:
    """A plan whose units are the replicates of the sources, and the cells of each by its key."""
    inputs, cells, probes = [], [], {}
    for source, sample in zip(recipe.source, samples, strict=True):
        by_replicate = defaultdict[int, list[Cell]](list)
        for cell in sample.cells:
            by_replicate[cell.replicate].append(cell)
        of_source = []
        for number, found in sorted(by_replicate.items()):
            size = sum(cell.end - cell.begin for cell in found)
            name = f"replicate-{number:02d}"
            each = Input(source=source.name, index=number, name=name, url=found[0].found.url, size=size)
            of_source.append((each,))
            cells.append(tuple(found))
            probes[f"{source.name}/{name}"] = {"bytes": size}
        inputs.append(of_source)
    plan = make_plan(recipe, inputs, probes)
    return plan, {unit.key: found for unit, found in zip(plan.units, cells, strict=True)}


def _selected(cell: Cell, records: SelectedRecords, options: ReadOptions) -> SampledPart:
    """The documents of records that an index selects."""
    if not len(records):
        return SampledPart()
    found, counts = replace(cell.found, records=records, size=records.num_bytes), InputCounts()
    items = (item for each in fetched((found,)) for item in read_selected(each, records, options, counts))
    return part_of((item for item in items if isinstance(item, Document)), lambda: records.num_bytes)


def _dealt(head: SampledPart, num: int) -> list[SampledPart]:
    """The documents of a file's beginning, dealt to so many cells, neighbours together, each with its share of the
    bytes."""
    all_of_it = head.documents
    dealt = [
        all_of_it[len(all_of_it) * number // num : len(all_of_it) * (number + 1) // num]
        for number in range(num)
    ]
    sizes = [sum(each.num_bytes + len(each.text) for each in documents) for documents in dealt]
    shares = [size / max(sum(sizes), 1) for size in sizes]
    return [
        SampledPart(
            documents=documents,
            num_bytes=head.num_bytes * share,
            is_whole=False,
            seconds=head.seconds * share,
        )
        for documents, share in zip(dealt, shares, strict=True)
    ]
