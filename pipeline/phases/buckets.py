"""Part sources by language, label and score: each part has shards of its own, under a name of its own.

work/units/<key>/<bucket>/tokens.bin, run.parquet       the rows and tokens of a unit's run that are in a bucket
work/units/<key>/parted.json                            PartResult

Cuts by percentile are of all kept documents, so that this phase follows the tokenizing of every unit."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lineage.index.blocks import TOKEN_BYTES
from lineage.storage.folder import Folder
from pipeline.phases.groups import Group
from pipeline.phases.percentiles import Values, Weights, weighted_cuts
from pipeline.phases.phase import Phase, Run, publish_result, run_phase
from pipeline.plan import Unit
from pipeline.recipe import BucketTable, PipelineRecipe, check_part
from pipeline.results.rows import publish_table, read_rows
from pipeline.results.unit_results import BucketCuts, BucketSize, PartResult

UNDETERMINED = "und"
"""The part of texts whose language nobody named (BCP 47)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartJob:
    """What all units of a run share. `by_language` and `scored` are the sources that languages and [[bucket]]
    part; `cuts` are those of each bucket's columns."""

    out: str
    by_language: frozenset[str]
    scored: frozenset[str]
    tables: tuple[BucketTable, ...]
    cuts: Mapping[str, tuple[tuple[float, ...], ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitToPart:
    """A unit whose source is parted."""

    unit: Unit

    @property
    def marker(self) -> str:
        return f"{self.unit.folder}/parted.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedGroups:
    """The `whole` groups, and those whose shards are cut: where a source is parted, one for each of its
    parts. The cuts of each bucket, and what each part holds."""

    whole: Sequence[Group]
    groups: Sequence[Group]
    cuts: tuple[BucketCuts, ...] = ()
    sizes: tuple[BucketSize, ...] = ()


def part_groups(state: Run, groups: Sequence[Group]) -> PartedGroups:
    """The groups of the recipe's sources, parted as it says."""
    recipe = state.recipe
    by_language, scored = parted_sources(recipe)
    if not by_language | scored:
        return PartedGroups(whole=groups, groups=groups)
    units = [unit for group in groups for unit in group.units if unit.source in by_language | scored]
    cuts = {
        table.name: _cuts_of(state.out, table, [unit for unit in units if unit.source in scored])
        for table in recipe.bucket
    }
    job = PartJob(out=state.out.url, by_language=by_language, scored=scored, tables=recipe.bucket, cuts=cuts)
    results = run_phase(
        state,
        Phase(
            name="part sources",
            operator="part_sources",
            kind="cut",
            task=part_unit,
            result=PartResult,
            job=job,
            units=[UnitToPart(unit=unit) for unit in units],
        ),
    )
    found = {unit.key: result.buckets for unit, result in zip(units, results, strict=True)}
    return PartedGroups(
        whole=groups,
        groups=[part for group in groups for part in _parts_of(group, found)],
        cuts=tuple(
            BucketCuts(name=table.name, column=column, cuts=values)
            for table in recipe.bucket
            for column, values in zip(table.columns, cuts[table.name], strict=True)
        ),
        sizes=_sizes(units, results),
    )


def parted_sources(recipe: PipelineRecipe) -> tuple[frozenset[str], frozenset[str]]:
    """The sources that are parted by language, and those that [[bucket]] parts."""
    by_language = {
        source.name
        for source in recipe.source
        if recipe.language.keep == "all" and ("language" in source.steps or source.language is not None)
    }
    scored = {source.name for source in recipe.source if recipe.bucket and "classifier" in source.steps}
    return frozenset(by_language), frozenset(scored)


def _parts_of(group: Group, found: Mapping[str, Sequence[BucketSize]]) -> Iterator[Group]:
    """The group itself, or one for each bucket that a unit of it has, by name."""
    if not any(unit.key in found for unit in group.units):
        yield group
        return
    units: dict[str, list[Unit]] = defaultdict(list)
    for unit in group.units:
        for size in found[unit.key]:
            units[size.bucket].append(unit)
    for bucket, of_bucket in sorted(units.items()):
        yield replace(group, units=tuple(of_bucket), bucket=bucket)


def _sizes(units: Sequence[Unit], results: Sequence[PartResult]) -> tuple[BucketSize, ...]:
    sums: dict[tuple[str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for unit, result in zip(units, results, strict=True):
        for size in result.buckets:
            documents, tokens = sums[unit.source, size.bucket]
            sums[unit.source, size.bucket] = documents + size.num_documents, tokens + size.num_tokens
    return tuple(
        BucketSize(source=source, bucket=bucket, num_documents=documents, num_tokens=tokens)
        for (source, bucket), (documents, tokens) in sorted(sums.items())
    )


def _cuts_of(out: Folder, table: BucketTable, units: Sequence[Unit]) -> tuple[tuple[float, ...], ...]:
    """The cuts of each column of a bucket: as given, or at its percentiles of all kept documents of these
    units."""
    if not table.percentiles:
        return tuple(table.cuts for _ in table.columns)
    found = []
    for column in table.columns:
        cuts = weighted_cuts(partial(_weighed, out, units, column, table.weigh), table.percentiles)
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
    """Write the rows and tokens of each bucket of a unit; how many each has."""
    out, unit = Folder(job.out), item.unit
    columns = (
        [column for table in job.tables for column in table.columns] if unit.source in job.scored else []
    )
    run = _kept_rows(
        out, unit, [*dict.fromkeys(columns), *(["language"] if unit.source in job.by_language else [])]
    )
    names = np.array(_names(job, unit, run), dtype=object)
    buckets = sorted(set(names.tolist()))
    lengths = run["num_tokens"].to_numpy() * TOKEN_BYTES
    with contextlib.ExitStack() as stack:
        tokens = stack.enter_context(out.open(f"{unit.folder}/tokens.bin"))
        parts = {
            bucket: stack.enter_context(out.writing(f"{run_folder(unit, bucket)}/tokens.bin"))
            for bucket in buckets
        }
        for bucket, length in zip(names.tolist(), lengths.tolist(), strict=True):
            parts[bucket].write(tokens.read(length))
    sizes = []
    for bucket in buckets:
        rows = run.filter(pa.array(names == bucket))
        publish_table(out, f"{run_folder(unit, bucket)}/run.parquet", rows)
        num_tokens = int(rows["num_tokens"].to_numpy().sum())
        sizes.append(
            BucketSize(source=unit.source, bucket=bucket, num_documents=rows.num_rows, num_tokens=num_tokens)
        )
    return publish_result(out, item.marker, PartResult(buckets=tuple(sizes)))


def run_folder(unit: Unit, bucket: str | None) -> str:
    """Where the run of a unit lies, or of a bucket of it."""
    return unit.folder if bucket is None else f"{unit.folder}/{bucket}"


def _names(job: PartJob, unit: Unit, run: pa.Table) -> list[str]:
    """The bucket of each row: what each way of parting says, joined by dots. RecipeError for a language that
    cannot name one."""
    parts: list[Iterable[str]] = []
    if unit.source in job.by_language:
        languages = [language or UNDETERMINED for language in run["language"].to_pylist()]
        for language in sorted(set(languages)):  # a step of the user's may have named it
            check_part(language, f"source {unit.source!r}: the language")
        parts.append(languages)
    if unit.source in job.scored:
        parts += [_of_table(table, job.cuts[table.name], run) for table in job.tables]
    return [".".join(names) for names in zip(*parts, strict=True)]


def _of_table(table: BucketTable, cuts: Sequence[Sequence[float]], run: pa.Table) -> list[str]:
    if table.is_of_labels:
        return [f"{table.name}-{label}" for label in run[table.columns[0]].to_pylist()]
    values = (run[column].to_numpy().astype(np.float64) for column in table.columns)
    numbers = [bucket_numbers(of_column, given) for of_column, given in zip(values, cuts, strict=True)]
    return [f"{table.name}-{number}" for number in np.max(numbers, axis=0).tolist()]


def bucket_numbers(values: Values, cuts: Sequence[float]) -> npt.NDArray[np.int64]:
    """How many cuts are no greater than each value: number k holds the values from cut k on, up to before the
    next."""
    return np.digitize(values, np.array(cuts, np.float64)).astype(np.int64)
