"""What training runs read of the items that a scan found: the first step, how often, the last checkpoint
before it.

The documents that hold an item are where the scan found them; which steps read their tokens is computed, as
`trace` does. Only the tokens that hold the item count, not the rest of a long document. What a purge took
before the scan is found by none: the plan of a purge and a certificate tell of that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lineage.json_record import JsonRecord
from lineage.storage.folder import Folder
from lineage.trace.exposure import Exposure, TrainingRun
from lineage.trace.tracer import DocumentPart
from pipeline.inspect.trace.tracing import known_checkpoints, make_tracer
from stages.steps.benchmark_items import short_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark(JsonRecord):
    """A file of items: which of all items are its (`num_items` from `first_item` on), how many were too short
    to look for, how many were found. `digest`: BLAKE3-128 (hex) of its bytes; `was_checked`: whether the run
    that made the output looked for the items of a file of these bytes."""

    file: str
    digest: str
    first_item: int
    num_items: int
    num_skipped: int
    num_found: int
    was_checked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadItem:
    """An item in a document: the spans of the document's tokens that hold it."""

    item: int
    doc_id: bytes
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemReadings(JsonRecord):
    """How a run read an item. `num_readings` are rows of batches whose step counts, `num_undone` those whose
    step does not (skipped, or undone by going back). Steps are of the former, null without any; so is
    `last_clean_checkpoint`, which is 0 for the first weights where no checkpoint is kept that is clean, and
    null where checkpoints are unknown."""

    item: int
    num_readings: int
    num_undone: int
    first_step: int | None
    last_step: int | None
    last_clean_checkpoint: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkReadings(JsonRecord):
    """The same of all items of a benchmark, of which `num_read` were read."""

    file: str
    digest: str
    was_checked: bool
    num_items: int
    num_found: int
    num_read: int
    num_readings: int
    first_step: int | None
    last_clean_checkpoint: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedRun(JsonRecord):
    """A run that read the output: `num_steps` recorded, the steps done at each checkpoint that is there (and
    why that is unknown), every benchmark, and the items that it read."""

    run: str
    output: str
    num_steps: int
    checkpoints: tuple[int, ...]
    checkpoints_unknown: str | None
    benchmarks: tuple[BenchmarkReadings, ...]
    items: tuple[ItemReadings, ...]


class ReadingRuns:
    """The runs that read an output, by its store and by the facts in these training outputs; StorageError
    where one of these has none."""

    def __init__(self, out: Folder, outputs: Sequence[str]) -> None:
        self._tracer = make_tracer(out.url, runs=outputs)
        self._runs = self._tracer.runs()

    def readings(self, benchmarks: Sequence[Benchmark], items: Iterable[ReadItem]) -> tuple[ScannedRun, ...]:
        """What each run read of the items, runs by name."""
        parts = [
            (read.item, DocumentPart(doc_id=read.doc_id, start=start, end=end))
            for read in items
            for start, end in read.spans
        ]
        read = self._tracer.exposures_of([part for _, part in parts])
        found = rows_of_items([item for item, _ in parts], read)
        return tuple(_scanned(run, benchmarks, found.get(run.run, {})) for run in self._runs)


def rows_of_items(
    items: Sequence[int], read: Sequence[Sequence[Exposure]]
) -> dict[str, dict[int, dict[tuple[int, int], bool]]]:
    """By run and item the (step, row) that read it, and whether the step counts. A row counts once for an item, though
    several of its documents or spans lie in it: where attempts read others of them there, it counts if one does."""
    found: dict[str, dict[int, dict[tuple[int, int], bool]]] = {}
    for item, rows in zip(items, read, strict=True):
        for row in rows:
            of_item, place = found.setdefault(row.run, {}).setdefault(item, {}), (row.step, row.row)
            of_item[place] = row.applied or of_item.get(place, False)
    return found


def _scanned(
    run: TrainingRun, benchmarks: Sequence[Benchmark], found: dict[int, dict[tuple[int, int], bool]]
) -> ScannedRun:
    checkpoints, unknown = known_checkpoints(run)
    kept = None if unknown else checkpoints
    items = tuple(_item(item, found[item], kept) for item in sorted(found))
    return ScannedRun(
        run=run.run,
        output=run.output,
        num_steps=run.num_steps,
        checkpoints=tuple(checkpoints),
        checkpoints_unknown=unknown,
        benchmarks=tuple(_benchmark(benchmark, items, kept) for benchmark in benchmarks),
        items=items,
    )


def _item(item: int, rows: dict[tuple[int, int], bool], kept: Sequence[int] | None) -> ItemReadings:
    steps = sorted(step for (step, _), applied in rows.items() if applied)
    return ItemReadings(
        item=item,
        num_readings=len(steps),
        num_undone=len(rows) - len(steps),
        first_step=steps[0] if steps else None,
        last_step=steps[-1] if steps else None,
        last_clean_checkpoint=_clean(steps[0] if steps else None, kept),
    )


def _benchmark(
    benchmark: Benchmark, items: Sequence[ItemReadings], kept: Sequence[int] | None
) -> BenchmarkReadings:
    mine = range(benchmark.first_item, benchmark.first_item + benchmark.num_items)
    read = [item for item in items if item.item in mine and item.first_step is not None]
    first = min((item.first_step for item in read if item.first_step is not None), default=None)
    return BenchmarkReadings(
        file=benchmark.file,
        digest=benchmark.digest,
        was_checked=benchmark.was_checked,
        num_items=benchmark.num_items,
        num_found=benchmark.num_found,
        num_read=len(read),
        num_readings=sum(item.num_readings for item in read),
        first_step=first,
        last_clean_checkpoint=_clean(first, kept),
    )


def _clean(first_step: int | None, kept: Sequence[int] | None) -> int | None:
    """The newest checkpoint before a step: it has that step's number of steps done at most."""
    if first_step is None or kept is None:
        return None
    return max((done for done in kept if done <= first_step), default=0)


def run_lines(runs: Sequence[ScannedRun]) -> Iterator[str]:
    """A table in Markdown for each run, as a model card has it."""
    for run in runs:
        names = short_names([row.file for row in run.benchmarks])
        yield ""
        yield f"Run {run.run} ({run.num_steps:,} steps recorded):"
        yield ""
        yield "| benchmark | items | in the data | read | times | first step | last clean checkpoint | checked |"
        yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
        for row in run.benchmarks:
            yield (
                f"| {names[row.file]} | {row.num_items:,} | {row.num_found:,} | {row.num_read:,} |"
                f" {row.num_readings:,} | {'-' if row.first_step is None else row.first_step} |"
                f" {_shown_clean(run, row)} | {'yes' if row.was_checked else 'no'} |"
            )
        if run.checkpoints_unknown:
            yield f"Checkpoints: {run.checkpoints_unknown}"
    if not runs:
        yield "no training run is recorded: --runs RUN_OUTPUT names one whose facts the store lacks"


def _shown_clean(run: ScannedRun, row: BenchmarkReadings) -> str:
    if row.first_step is None:
        return "all"
    if row.last_clean_checkpoint is None:
        return "unknown"
    return str(row.last_clean_checkpoint) if row.last_clean_checkpoint in run.checkpoints else "none kept"
