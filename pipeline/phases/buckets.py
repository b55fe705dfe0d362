"""Splits sources by language, label and score, and by how often an epoch reads a document: each part has shards
of its own, and each bucket a name of its own.

work/units/<key>[/<bucket>][/times=<k>]/tokens.bin, run.parquet     the rows and tokens of a unit's run in a part
work/units/<key>/parted.json                                        PartResult

Cuts by percentile, and the exact number of repeats, are of all kept documents, so that this phase follows the
tokenizing of every unit."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lineage.index.blocks import TOKEN_BYTES
from lineage.storage.folder import Folder
from pipeline.phases.groups import Group, SourcePart, unit_verdicts
from pipeline.phases.percentiles import Values, Weights, weighted_cuts
from pipeline.phases.phase import Phase, RunState, publish_result, run_phase
from pipeline.phases.repeats import (
    NO_REPEATS,
    CountedRows,
    Firsts,
    OfSource,
    Repeats,
    own_tables,
    plan_repeats,
)
from pipeline.plan import Unit
from pipeline.recipe.parts import check_part, repeated_bucket
from pipeline.recipe.tables import BucketTable, PipelineRecipe
from pipeline.results.rows import publish_table, read_rows
from pipeline.results.run_summary import RunSummary
from pipeline.results.unit_results import BucketCuts, BucketSize, PartResult, PartSize, RepeatSize
from stages.tokens.repeats import RepeatTable, rows_of
from stages.tokens.shards import keys_of

UNDETERMINED = "und"
"""The part of texts whose language nobody named (BCP 47)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartJob:
    """What all units of a run share. `by_language`, `scored` and `repeated` are the sources that languages,
    [[bucket]] and [repeat] part; `tables` name buckets, and `repeat_bucket` is the one by which documents are
    repeated, if one is; `cuts` are those of each one's columns."""

    out: str
    by_language: frozenset[str]
    scored: frozenset[str]
    repeated: frozenset[str]
    tables: tuple[BucketTable, ...]
    cuts: Mapping[str, tuple[tuple[float, ...], ...]]
    repeat: RepeatTable
    repeat_bucket: BucketTable | None = None
    repeats: Repeats = NO_REPEATS

    @property
    def firsts(self) -> Firsts:
        """Where the rows of [repeat] begin; a curve has one for each bucket."""
        return repeat_firsts(
            self.repeat, () if self.repeat_bucket is None else self.cuts[self.repeat_bucket.name]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitToPart:
    """A unit whose source is parted, and the group's verdicts that concern it."""

    unit: Unit
    verdicts: str

    @property
    def marker(self) -> str:
        return f"{self.unit.folder}/parted.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedGroups:
    """The `whole` groups, and those whose shards are cut: where a source is parted, one for each of its
    parts. The cuts of each bucket, what each holds, and how often an epoch reads what."""

    whole: Sequence[Group]
    groups: Sequence[Group]
    cuts: tuple[BucketCuts, ...] = ()
    sizes: tuple[BucketSize, ...] = ()
    repeats: tuple[RepeatSize, ...] = ()


def recorded_cuts(table: BucketTable, summary: RunSummary) -> list[tuple[float, ...]]:
    """The cuts of each of the bucket's columns, as run.json has them."""
    of_column = {each.column: each.cuts for each in summary.bucket_cuts if each.name == table.name}
    return [of_column[column] for column in table.columns]


def repeat_firsts(repeat: RepeatTable, cuts: Sequence[Sequence[float]]) -> Firsts:
    """Where the rows of [repeat] begin, `cuts` being those of the bucket by which documents are repeated; a
    curve has one for each of its parts."""
    if repeat.target is not None:
        return {None: range(1 + max(map(len, cuts), default=0))}
    return {name: repeat.rows_for(name).firsts for name in (None, *repeat.by_language)}


def part_groups(state: RunState, groups: Sequence[Group]) -> PartedGroups:
    """The groups of the recipe's sources, parted as it says. RecipeError where a curve of [repeat] cannot be
    met."""
    recipe = state.recipe
    by_language, scored, repeated = parted_sources(recipe)
    parted = by_language | scored | repeated
    if not parted:
        return PartedGroups(whole=groups, groups=groups)
    items = [
        UnitToPart(unit=unit, verdicts=group.verdicts)
        for group in groups
        for unit in group.units
        if unit.source in parted
    ]
    # Percentiles are of the whole corpus, so they are settled before any unit is split.
    units = [item.unit for item in items]
    cuts = {
        table.name: cuts_of(
            table, partial(_weighed, state.out, [unit for unit in units if unit.source in scored])
        )
        for table in recipe.bucket
    }
    by_bucket = repeated_bucket(recipe)
    job = PartJob(
        out=state.out.url,
        by_language=by_language,
        scored=scored,
        repeated=repeated,
        tables=tuple(table for table in recipe.bucket if table is not by_bucket),
        cuts=cuts,
        repeat=recipe.repeat,
        repeat_bucket=by_bucket,
    )
    if repeated:
        of_repeated = [item for item in items if item.unit.source in repeated]
        # Exact repeats need all documents too: those with the least hashes are read once more than the others.
        job = replace(
            job, repeats=plan_repeats(recipe.repeat, job.firsts, partial(_rows_of_units, job, of_repeated))
        )
    results = run_phase(
        state,
        Phase(
            name="part sources",
            operator="part_sources",
            kind="cut",
            task=part_unit,
            result=PartResult,
            job=job,
            units=items,
        ),
    )
    found = {unit.key: result.parts for unit, result in zip(units, results, strict=True)}
    return PartedGroups(
        whole=groups,
        groups=[part for group in groups for part in _parts_of(group, found)],
        cuts=tuple(
            BucketCuts(name=table.name, column=column, cuts=values)
            for table in recipe.bucket
            for column, values in zip(table.columns, cuts[table.name], strict=True)
        ),
        sizes=_sizes(units, results),
        repeats=job.repeats.sizes,
    )


def parted_sources(recipe: PipelineRecipe) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The sources that are parted by language, those that [[bucket]] parts, and those that [repeat] does."""
    by_language = {
        source.name
        for source in recipe.source
        if recipe.language.keep == "all" and ("language" in source.steps or source.language is not None)
    }
    scored = {source.name for source in recipe.source if recipe.bucket and "classifier" in source.steps}
    by_size = recipe.repeat.by == "cluster_size"
    repeated = {source.name for source in recipe.source} if by_size else scored if recipe.repeat.by else set()
    return frozenset(by_language), frozenset(scored), frozenset(repeated)


def _parts_of(group: Group, found: Mapping[str, Sequence[PartSize]]) -> Iterator[Group]:
    """The group itself, or one for each part that a unit of it has, by the bucket's name and by times."""
    if not any(unit.key in found for unit in group.units):
        yield group
        return
    units: dict[SourcePart, list[Unit]] = defaultdict(list)
    for unit in group.units:
        for size in found[unit.key]:
            units[SourcePart(size.bucket, size.repeats)].append(unit)
    for part in sorted(units, key=_part_order):
        yield replace(group, units=tuple(units[part]), part=part)


def _part_order(part: SourcePart) -> tuple[str, int]:
    """What parts of one source are sorted by."""
    return part.bucket or "", part.repeats or 0


def _sizes(units: Sequence[Unit], results: Sequence[PartResult]) -> tuple[BucketSize, ...]:
    sums: dict[tuple[str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for unit, result in zip(units, results, strict=True):
        for size in result.parts:
            if size.bucket is None:
                continue
            documents, tokens = sums[unit.source, size.bucket]
            sums[unit.source, size.bucket] = documents + size.num_documents, tokens + size.num_tokens
    return tuple(
        BucketSize(source=source, bucket=bucket, num_documents=documents, num_tokens=tokens)
        for (source, bucket), (documents, tokens) in sorted(sums.items())
    )


def cuts_of(
    table: BucketTable, weighed: Callable[[str, str], Iterator[tuple[Values, Weights]]]
) -> tuple[tuple[float, ...], ...]:
    """The cuts of each column of a bucket: as given, or at its percentiles of all kept documents, of which
    `weighed` gives a column's values and their weights."""
    if not table.percentiles:
        return tuple(table.cuts for _ in table.columns)
    found = []
    for column in table.columns:
        cuts = weighted_cuts(partial(weighed, column, table.weigh), table.percentiles)
        found.append(() if cuts is None else tuple(cuts))  # no document, no part
    return tuple(found)


def _weighed(out: Folder, units: Sequence[Unit], column: str, weigh: str) -> Iterator[tuple[Values, Weights]]:
    for unit in units:
        rows = _kept_rows(out, unit, [column])
        weights = (
            np.ones(rows.num_rows, np.int64) if weigh == "documents" else rows[f"num_{weigh}"].to_numpy()
        )
        yield rows[column].to_numpy().astype(np.float64), weights.astype(np.int64)


def _kept_rows(out: Folder, unit: Unit, columns: Sequence[str]) -> pa.Table:
    """The rows of a unit's run with these columns of `documents`."""
    run = read_rows(out, f"{unit.folder}/run.parquet")
    documents = read_rows(out, f"{unit.folder}/documents.parquet", ["part_row", *columns])
    part_rows = documents["part_row"].fill_null(-1).to_numpy()
    survivors = np.flatnonzero(part_rows >= 0)
    # Survivors are numbered as they come, so that the n-th of them has part_row n.
    at = pa.array(survivors[run["part_row"].to_numpy()])
    for column in columns:
        run = run.append_column(column, documents[column].take(at))
    return run


def part_unit(job: PartJob, item: UnitToPart) -> PartResult:
    """Write the rows and tokens of each part of a unit; how many each has."""
    out, unit = Folder(job.out), item.unit
    run = _kept_rows(out, unit, _columns(job, unit))
    # A unit's rows are in the order of the keyed hash. Each part keeps that order, so it is merged like a unit's run.
    names = _names(job, unit, run)
    times = _times(job, item, run, names)
    of_row = [SourcePart(*each) for each in zip(names, times, strict=True)]
    parts = {part: number for number, part in enumerate(sorted(set(of_row), key=_part_order))}
    lengths = run["num_tokens"].to_numpy() * TOKEN_BYTES
    with contextlib.ExitStack() as stack:
        tokens = stack.enter_context(out.open(f"{unit.folder}/tokens.bin"))
        files = {
            part: stack.enter_context(out.writing(f"{part.under(unit.folder)}/tokens.bin")) for part in parts
        }
        # One pass: the tokens of a row follow those of the row before, without an index.
        for part, length in zip(of_row, lengths.tolist(), strict=True):
            files[part].write(tokens.read(length))
    numbers = np.array([parts[part] for part in of_row], np.int64)
    sizes = []
    for part, number in parts.items():
        rows = run.filter(pa.array(numbers == number))
        publish_table(out, f"{part.under(unit.folder)}/run.parquet", rows)
        num_tokens = int(rows["num_tokens"].to_numpy().sum())
        sizes.append(
            PartSize(
                bucket=part.bucket, repeats=part.repeats, num_documents=rows.num_rows, num_tokens=num_tokens
            )
        )
    return publish_result(out, item.marker, PartResult(parts=tuple(sizes)))


def _columns(job: PartJob, unit: Unit) -> list[str]:
    """The columns of `documents` that a unit is parted by, each once."""
    tables = [*job.tables, *([job.repeat_bucket] if job.repeat_bucket is not None else [])]
    columns = [column for table in tables for column in table.columns] if unit.source in job.scored else []
    by_language = unit.source in job.by_language or (unit.source in job.repeated and job.repeat.by_language)
    return [*dict.fromkeys(columns), *(["language"] if by_language else [])]


def _rows_of_units(job: PartJob, items: Sequence[UnitToPart]) -> Iterator[CountedRows]:
    """The rows of [repeat] of every kept document of these units."""
    for item in items:
        run = _kept_rows(Folder(job.out), item.unit, _columns(job, item.unit))
        keys, num_tokens = keys_of(run), run["num_tokens"].to_numpy()
        for of, places, rows in _repeat_rows(job, item, run, _names(job, item.unit, run)):
            yield CountedRows(of, rows, keys[places], num_tokens[places])


def _times(
    job: PartJob, item: UnitToPart, run: pa.Table, names: Sequence[str | None]
) -> Sequence[int | None]:
    """How often an epoch reads the document of each row; None where [repeat] says nothing of the source."""
    if item.unit.source not in job.repeated:
        return [None] * run.num_rows
    keys = keys_of(run)
    times = np.zeros(run.num_rows, np.int64)
    for of, places, rows in _repeat_rows(job, item, run, names):
        for row, each in enumerate(job.repeats.times[of]):
            chosen = places[rows == row]
            times[chosen] = each.of(keys[chosen])
    found: list[int] = times.tolist()
    return found


def _repeat_rows(
    job: PartJob, item: UnitToPart, run: pa.Table, names: Sequence[str | None]
) -> Iterator[tuple[OfSource, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """What [repeat] counts together, with the places of its documents in the run and the row that each
    belongs to. `names` are the documents' buckets."""
    values, firsts = _repeat_values(job, item, run), job.firsts
    languages = run["language"].to_pylist() if job.repeat.by_language else [None] * run.num_rows
    for of, places in by_place(
        OfSource(item.unit.source, bucket, language)
        for bucket, language in zip(names, own_tables(job.repeat, languages), strict=True)
    ):
        yield of, places, rows_of(values[places], firsts[of.language])


def by_place(of_each: Iterable[OfSource]) -> Iterator[tuple[OfSource, npt.NDArray[np.int64]]]:
    """What documents are counted in, each with the places that have it."""
    places: dict[OfSource, list[int]] = defaultdict(list)
    for place, of in enumerate(of_each):
        places[of].append(place)
    for of, at in places.items():
        yield of, np.array(at, np.int64)


def _repeat_values(job: PartJob, item: UnitToPart, run: pa.Table) -> npt.NDArray[np.int64]:
    """The number of each document's bucket, or its cluster's size: what its row of [repeat] hangs on."""
    if job.repeat_bucket is not None:
        return part_numbers(job.repeat_bucket, job.cuts[job.repeat_bucket.name], run)
    verdicts = unit_verdicts(Folder(job.out), item.verdicts, item.unit.file_index)
    part_rows = run["part_row"].to_numpy()
    sizes = np.ones(int(part_rows.max(initial=-1)) + 1, np.int64)  # one that no verdict names is alone
    kept = verdicts.filter(pc.equal(verdicts["status"], "kept"))
    sizes[kept["part_row"].to_numpy()] = kept["cluster_size"].to_numpy()
    found: npt.NDArray[np.int64] = sizes[part_rows]
    return found


def _names(job: PartJob, unit: Unit, run: pa.Table) -> Sequence[str | None]:
    """The bucket of each row: what each way of parting says, joined by dots; None where there is none.
    RecipeError for a language that cannot name one."""
    parts: list[Iterable[str]] = []
    if unit.source in job.by_language:
        languages = [language or UNDETERMINED for language in run["language"].to_pylist()]
        for language in sorted(set(languages)):  # a step of the user's may have named it
            check_part(language, f"source {unit.source!r}: the language")
        parts.append(languages)
    if unit.source in job.scored:
        parts += [_of_table(table, job.cuts[table.name], run) for table in job.tables]
    return [".".join(names) for names in zip(*parts, strict=True)] if parts else [None] * run.num_rows


def _of_table(table: BucketTable, cuts: Sequence[Sequence[float]], run: pa.Table) -> list[str]:
    if table.is_of_labels:
        return [f"{table.name}-{label}" for label in run[table.columns[0]].to_pylist()]
    return [f"{table.name}-{number}" for number in part_numbers(table, cuts, run).tolist()]


def part_numbers(
    table: BucketTable, cuts: Sequence[Sequence[float]], rows: pa.Table
) -> npt.NDArray[np.int64]:
    """The number of each row's bucket: of several scores the highest."""
    values = (rows[column].to_numpy().astype(np.float64) for column in table.columns)
    numbers = [bucket_numbers(of_column, given) for of_column, given in zip(values, cuts, strict=True)]
    highest: npt.NDArray[np.int64] = np.max(numbers, axis=0)
    return highest


def bucket_numbers(values: Values, cuts: Sequence[float]) -> npt.NDArray[np.int64]:
    """How many cuts are no greater than each value: number k holds the values from cut k on, up to before the
    next."""
    return np.digitize(values, np.array(cuts, np.float64)).astype(np.int64)
