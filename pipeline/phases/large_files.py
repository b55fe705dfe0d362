"""Files larger than run.unit_bytes, read in spans by all workers: the same bytes as one worker gives.

    1. lines      count the line ends of each span, where rows are numbered: so each span knows its place
    2. read       every span as a unit of its own, beside the files that are read as a whole
       again      spans that took another place for their begin than the one where the span before them ended
    3. put together  the files of the spans to those of the unit

work/units/<key>.<span>/lines.json                LinesOfSpan
work/units/<key>.<span>/…, unit.json              as of a unit, see `pipeline.phases.read`

A reader that begins within a file can be misled, by a record in the body of another. So where a span begins is
a guess that must be confirmed: the first span begins with the file, and each other one where the reader of the
one before it stopped, in the state in which it was. Where that is so of all, they are what one reader would
have read."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Protocol

from lineage.storage.folder import Folder
from pipeline.inputs.bundles import is_read_whole
from pipeline.inputs.files import CONNECTIONS
from pipeline.inputs.member_starts import MemberStarts, indexes_among, member_starts
from pipeline.phases.phase import Phase, RunState, publish_result, published_results, run_phase
from pipeline.phases.read import (
    ReadJob,
    named_in_errors,
    open_planned,
    publish_unit,
    read_options,
    read_phase,
    tally_of,
    unit_size,
)
from pipeline.plan import Unit
from pipeline.recipe.tables import PipelineRecipe
from pipeline.results.faults import MOST_KINDS
from pipeline.results.unit_results import ReadResult, SpanResult
from pipeline.units.files import UnitWriter
from stages.reading.file_names import is_marker
from stages.reading.give_up import may_give_up
from stages.reading.jsonl import LinesOfSpan, lines_of_span, spans_of_lines
from stages.reading.member_starts import FalseIndexError
from stages.reading.options import MAX_DISTINCT, Border, FileSpan, InputCounts, UnreadableError
from stages.reading.reader import detect_format, most_unfolded, named_format, why_one_reader

_MOST_SPANS: Final = 4096
"""Of one file: all of them lie in the memory of the driver."""


class _OfSpan(Protocol):
    @property
    def began(self) -> Border | None: ...
    @property
    def ended(self) -> Border | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesOf:
    """A span whose line ends are to be counted."""

    unit: Unit

    @property
    def marker(self) -> str:
        return f"{self.unit.folder}/lines.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spliced:
    """A unit whose file is read in `spans`, which tile it."""

    unit: Unit
    spans: tuple[Unit, ...]

    @property
    def marker(self) -> str:
        return self.unit.marker


def read_units(
    run: RunState, job: ReadJob, units: Sequence[Unit], watch: Callable[[ReadResult], None]
) -> list[ReadResult]:
    """What came of each unit, in order, whatever is read in spans; `watch` as of Phase."""
    large = [unit for unit in units if _is_large(run.recipe, unit)]
    if not large:
        return run_phase(run, read_phase(run, job, units, watch))
    finished = published_results(run.out, large, ReadResult)
    nominal, indexes = _nominal_spans(run, [unit for unit in large if unit.marker not in finished])
    split = _spans_of_lines(run, job, nominal, indexes)
    asked = [span for unit in units for span in split.get(unit, (unit,))]
    found = _read(run, job, asked, watch)
    while again := [span for spans in split.values() if (span := _chain(spans, _ends(found))[1])]:
        found |= _read(run, job, again)
    chains = {unit: _chain(spans, _ends(found))[0] for unit, spans in split.items()}
    for unit, index in indexes.items():
        if unit in chains:
            _check_index(run, index, nominal[unit], [found[span.marker].span for span in chains[unit]])
    whole = [
        unit
        for unit, chain in chains.items()
        if not _is_exact(job, unit, [found[span.marker] for span in chain])
    ]
    for unit in whole:
        _say_one_reader(run, unit, "its parts come near a bound that holds for the whole file")
    if whole:
        found |= _read(run, job, whole)
    spliced = [Spliced(unit=unit, spans=tuple(chain)) for unit, chain in chains.items() if unit not in whole]
    for each in spliced:
        if len(each.spans) == 1:
            _say_one_reader(run, each.unit, _why_one_reader(job, each.unit))
    results = run_phase(run, _splice_phase(job, spliced))
    found |= zip((each.marker for each in spliced), results, strict=True)
    return [found[unit.marker] for unit in units]


def _is_large(recipe: PipelineRecipe, unit: Unit) -> bool:
    """Whether a unit's file is read in spans, if its format allows it. Behind its limit_documents nothing of a
    file is read, and how far that is only one reader tells."""
    source, first = recipe.source[unit.source_index], unit.inputs[0]
    is_split = not (is_read_whole(first.name, source.format) or is_marker(first.name))
    is_single = len(unit.inputs) == 1 and is_split and first.records is None
    return 0 < recipe.run.unit_bytes < unit.size and is_single and source.limit_documents is None


def _read(
    run: RunState,
    job: ReadJob,
    units: Sequence[Unit],
    watch: Callable[[ReadResult], None] = lambda result: None,
) -> dict[str, ReadResult]:
    results = run_phase(run, read_phase(run, job, units, watch))
    return dict(zip((unit.marker for unit in units), results, strict=True))


def _ends(found: Mapping[str, ReadResult]) -> dict[str, SpanResult]:
    return {marker: result.span for marker, result in found.items() if result.span is not None}


def _spans_of_lines(
    run: RunState, job: ReadJob, nominal: Mapping[Unit, tuple[Unit, ...]], indexes: dict[Unit, str]
) -> dict[Unit, tuple[Unit, ...]]:
    """The spans in which files are read, those of rows with their numbers; without the files of rows that only one
    reader can read. What is wrong with the `indexes` of files of rows is told, and they leave."""
    split = dict(nominal)
    left = {unit: spans for unit, spans in split.items() if _may_be_rows(job, unit)}
    found: dict[str, LinesOfSpan] = {}
    asked = [span for spans in left.values() for span in spans]
    while asked:
        lines = run_phase(run, _lines_phase(job, asked))
        found |= zip((unit.marker for unit in asked), lines, strict=True)
        left = {unit: spans for unit, spans in left.items() if found[spans[0].marker].is_rows}
        asked = [span for spans in left.values() if (span := _chain(spans, found)[1])]
    for unit, spans in left.items():
        chain, _ = _chain(spans, found)
        counted = [found[span.marker] for span in chain]
        if (index := indexes.pop(unit, None)) is not None:
            _check_index(run, index, spans, counted)
        if counted[-1].ended is None:
            del split[unit]
            _say_one_reader(run, unit, counted[-1].why_not_ended)
            continue
        placed = spans_of_lines([span.span for span in chain if span.span], counted)
        split[unit] = tuple(replace(unit, span=span) for span in placed)
    return split


def _may_be_rows(job: ReadJob, unit: Unit) -> bool:
    """Whether a file may be one of JSON lines, as far as its name tells."""
    return named_format(read_options(job, unit, unit.inputs[0])) in (None, "jsonl")


def _lines_phase(job: ReadJob, units: Sequence[Unit]) -> Phase[ReadJob, LinesOf, LinesOfSpan]:
    return Phase(
        name="number lines",
        operator="number lines",
        kind="read",
        task=_count_lines,
        result=LinesOfSpan,
        job=job,
        units=[LinesOf(unit=unit) for unit in units],
        size=lambda lines: unit_size(lines.unit),
    )


def _count_lines(job: ReadJob, lines: LinesOf) -> LinesOfSpan:
    unit, found = lines.unit, lines.unit.inputs[0]
    assert unit.span is not None
    with named_in_errors(unit), open_planned(job, unit, found) as stream:
        counted = LinesOfSpan(is_rows=False)
        with suppress(UnreadableError):  # as its reading says
            if detect_format(stream, read_options(job, unit, found)) == "jsonl":
                stream.seek(0)
                counted = lines_of_span(stream, unit.span, job.max_window_bytes)
    return publish_result(Folder(job.out), lines.marker, counted)


def _nominal_spans(
    run: RunState, units: Sequence[Unit]
) -> tuple[dict[Unit, tuple[Unit, ...]], dict[Unit, str]]:
    """The spans of each file, which begin where an index says that a member does, if there is one; and what messages
    call the index of each file that has one."""
    borders = {unit: _borders(unit, run.recipe.run.unit_bytes) for unit in units}
    indexes = indexes_among(each for unit in run.plan.units for each in unit.inputs)
    known = {unit: starts for unit in units if (starts := member_starts(unit.inputs[0], indexes))}
    used: dict[Unit, str] = {}
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        moving = {unit: pool.submit(_moved, borders[unit], starts) for unit, starts in known.items()}
    for unit, moved in moving.items():
        try:
            borders[unit], is_indexed = moved.result()
        except (FalseIndexError, OSError) as error:
            run.reporter.say(
                f"{known[unit].index} is not used for {unit.inputs[0].url}: {error}; its members are searched for"
            )
        else:
            used |= {unit: known[unit].index} if is_indexed else {}
    spans = {
        unit: tuple(replace(unit, span=FileSpan(begin=begin, end=end)) for begin, end in pairwise(found))
        for unit, found in borders.items()
    }
    return spans, used


def _borders(unit: Unit, unit_bytes: int) -> list[int]:
    num = min(-(-unit.size // unit_bytes), _MOST_SPANS)
    return [unit.size * number // num for number in range(num + 1)]


def _moved(borders: Sequence[int], starts: MemberStarts) -> tuple[list[int], bool]:
    """The borders, each moved to the first start behind it, without those that have none before the next border; and
    whether there was any start."""
    least: dict[int, int] = {}
    is_indexed = False
    for start in starts.read():
        is_indexed = True
        number = bisect_right(borders, start) - 1
        least[number] = min(start, least.get(number, start))
    if not is_indexed:
        return list(borders), False
    inner = range(1, len(borders) - 1)
    return [0, *(least[number] for number in inner if number in least), borders[-1]], True


def _check_index(run: RunState, index: str, spans: Sequence[Unit], chain: Sequence[_OfSpan | None]) -> None:
    """Say where a file does not begin a member although its index does."""
    began = {found.began.position for found in chain if found is not None and found.began is not None}
    begins = [unit.span.begin for unit in spans[1:] if unit.span is not None]
    wrong = [begin for begin in begins if begin not in began]
    if wrong:
        run.reporter.say(
            f"{index} names byte {wrong[0]:,} of {spans[0].inputs[0].url}, where nothing begins: it is not of this"
            " file; the file was read without it"
        )


def _chain(spans: Sequence[Unit], found: Mapping[str, _OfSpan]) -> tuple[list[Unit], Unit | None]:
    """Of the spans of a file those that tile it, by what was found of them, up to the first one that is to be read
    from another place than it was, and that one."""
    chain: list[Unit] = []
    at: Border | None = None
    for unit in spans:
        assert unit.span is not None
        if at is not None and at.position >= unit.span.end:
            continue  # what began before it goes on behind it
        if at is not None and found[unit.marker].began != at:
            from_there = replace(unit, span=replace(unit.span, start=at))
            if from_there.marker not in found:
                return chain, from_there
            chain.append(from_there)
        else:
            chain.append(unit)
        at = found[chain[-1].marker].ended
        if at is None:
            break  # it cannot be read on from here
    return chain, None


def _is_exact(job: ReadJob, unit: Unit, results: Sequence[ReadResult]) -> bool:
    """Whether the spans of a file hold together what one reader would give: none of them ended before its end, and
    nothing that is bounded in a file was near its bound."""
    spans = [result.span for result in results if result.span is not None]
    most = most_unfolded(unit.size, job.max_compression_ratio)
    names = (
        set().union(*(getattr(result, counter) for result in results))
        for counter in ("by_type", "by_mime", "by_status")
    )
    return (
        spans[-1].ended is not None
        and (most is None or sum(span.num_unfolded for span in spans) <= most)
        and all(len(distinct) <= MAX_DISTINCT for distinct in names)
        and len({row.kind for result in results for row in result.faults}) < MOST_KINDS
        and not may_give_up(spans)
    )


def _say_one_reader(run: RunState, unit: Unit, why: str) -> None:
    run.reporter.say(f"{unit.inputs[0].url} is read by one worker: {why}")


def _why_one_reader(job: ReadJob, unit: Unit) -> str:
    with open_planned(job, unit, unit.inputs[0]) as stream:
        return why_one_reader(stream, read_options(job, unit, unit.inputs[0]))


def _splice_phase(job: ReadJob, units: Sequence[Spliced]) -> Phase[ReadJob, Spliced, ReadResult]:
    return Phase(
        name="put together",
        operator="put together",
        kind="read",
        task=splice_unit,
        result=ReadResult,
        job=job,
        units=units,
        size=lambda spliced: unit_size(spliced.unit),
    )


def splice_unit(job: ReadJob, spliced: Spliced) -> ReadResult:
    """Publish the files of a unit, put together from those of its spans, which are removed."""
    out, unit = Folder(job.out), spliced.unit
    if out.exists(unit.marker):  # a try before this one came so far, and may have removed what it read
        return _result_of(out, unit)
    tally, counts = tally_of(job, unit), InputCounts()
    for span in spliced.spans:
        tally.add_span(_result_of(out, span), counts)
    with UnitWriter(out, job.unit_files, unit, tally) as writer:
        for span in spliced.spans:
            writer.add_span(span)
    tally.count_file(unit.inputs[0], counts)
    result = publish_unit(job, unit, writer, tally)
    for span in spliced.spans:
        for name in sorted(out.names(span.folder), key=lambda name: name != span.marker):
            out.remove(name)
    return result


def _result_of(out: Folder, unit: Unit) -> ReadResult:
    return ReadResult.from_json(json.loads(out.read(unit.marker)))
