"""What a data run will cost: a sample is read, carried through the steps, and extrapolated to all inputs.

1. sample     cells of the input files, drawn at random by a seed
2. measure    their documents, through the run's own steps and comparison, in this process
3. estimate   documents, tokens and processor time by ratio to the bytes of input, with 90% intervals;
              near-duplicates by the curve of repetitions; phases that depend on counts alone by constants"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, is_remote
from pipeline.inputs.bundles import bundled
from pipeline.inputs.files import Input
from pipeline.inputs.revisions import Revisions
from pipeline.phases.predicted import digest_of
from pipeline.phases.steps import stages_of, step_tables
from pipeline.plan import readable_inputs
from pipeline.pricing.estimate import as_share, kept_share, product, total, with_interval
from pipeline.pricing.measure import PART_BYTES, TEXTS_BYTES, Measured, MeasuredSource, Replicate, measure
from pipeline.pricing.sample import SourceSample, draw, sample_bytes
from pipeline.recipe.tables import PipelineRecipe, effective_dedup
from pipeline.results.estimates import Estimate, Prediction
from pipeline.terminal import counted

_TIMING_ERROR: Final = 0.06
"""Standard error of the logarithm of a processor time: what one run differs by from another on the same machine,
busy or not (`benchmarks.pricing`)."""
_CONSTANT_ERROR: Final = 0.3
"""The same of the constants below on another machine."""


class _PhaseCost(NamedTuple):
    """Processor seconds of a phase: of its own, for each document that comes to it, for each token."""

    own: float
    document: float
    token: float = 0.0


_COMPARE: Final = _PhaseCost(0.03, 15e-6)
_SHARD: Final = _PhaseCost(0.01, 2e-6, 2e-8)
_LINEAGE: Final = _PhaseCost(0.12, 26e-6)
_PUBLISH: Final = _PhaseCost(0.3, 1e-6)
"""Of docs/scale.md and `benchmarks.pricing`: they depend on counts, hardly on what the documents are."""
_PROBE_SECONDS: Final = 3e-9
_PROBE_BYTES: Final = 64 << 20
"""Reading a file's content for its identity, before and behind its reading: seconds a byte, and the most bytes."""
_RAY_SECONDS: Final = 6.0
"""Processor seconds of a local Ray from start to end, without its workers' imports."""
_MOST_IMPORT_SECONDS: Final = 10.0
"""Processor seconds until a process has imported its modules, at most."""
_UNITS_AT_ONCE: Final = 1.15
"""Wall time over the share of each core: workers wait for the last unit of a phase."""

_INDEX_BYTES: Final = 35
_LINEAGE_BYTES: Final = Estimate(value=280, low=180, high=420)
_FINDING_BYTES: Final = 20
_KEY_BYTES: Final = 60
_WORK_BYTES: Final = 300
_OWN_BYTES: Final = 150_000
_FILE_BYTES: Final = 8_000
"""Bytes of OUT: of a shard's index, the lineage of a document, a finding of the whole ledger, the key that a later run
compares with (beside the signature), a document's rows in work/,
what every output has, and what the files of an input have without rows."""
_BASE_BYTES: Final = 300 << 20
_COMPARED_BYTES: Final = 430
_COMPARED_AT_ONCE: Final = 1_000_000
"""Memory of the process that compares: of its own, for each document, up to so many (docs/scale.md)."""
_LARGEST_TIMES: Final = 16
"""What a document of limits.max_document_bytes may take beside those of the sample, in its own length."""


class _Requests(NamedTuple):
    """Requests to an object store: for the run, for each unit, for each shard."""

    run: float
    unit: float
    shard: float


_PUTS: Final = _Requests(56, 16, 4)
_GETS: Final = _Requests(416, 63, 45)
_GETS_OF_INPUT: Final = 7
_READ_AHEAD: Final = 5 << 20
"""Counted by `benchmarks.run_requests`: reads are off by up to 29% there, writes by none. Reads of an input of one
block, and the bytes of an input that each further one gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What things cost, in one currency: a core for an hour, a thousand requests that write and that read, a
    gigabyte read from where the inputs are, and one kept for a month. `cores` work at a time."""

    cores: int
    core_hour: float = 0.04
    put: float = 0.005
    get: float = 0.0004
    read_gb: float = 0.0
    month_gb: float = 0.023


def price(
    recipe: PipelineRecipe,
    prices: Prices,
    *,
    most_bytes: int | None = None,
    seed: int | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> Prediction:
    """What the run of a recipe will come to and cost, by name: documents, kept_documents, kept_share and tokens;
    processor_hours, and of each step; wall_hours on so many cores; memory (a worker's most, bytes), disk (the most
    that OUT takes on the way, bytes) and output (what stays, bytes); requests; money; sample_documents.

    RecipeError where the recipe or its inputs are wrong, or the sample holds no document; OSError where an input
    cannot be reached."""
    # Of a process that has done other work, as in a notebook, its time says nothing.
    imported = min(time.process_time(), _MOST_IMPORT_SECONDS)
    inputs = readable_inputs(recipe, Revisions())
    num_bytes = sum(found.size for of_source in inputs for found in of_source)
    samples = draw(
        recipe.source, inputs, sample_bytes(num_bytes, most_bytes), recipe.run.seed if seed is None else seed
    )
    measured = measure(recipe, samples, notify)
    if not measured.num_documents:
        reason = f": {measured.unreadable[0]}" if measured.unreadable else ""
        raise RecipeError(
            f"the sample of {counted(len(samples[0].cells), 'part')} holds no document{reason}; expected some:"
            " look at the inputs, or read more by --sample-bytes"
        )
    return _Extrapolation(
        recipe, prices, inputs=inputs, samples=samples, measured=measured, imported=imported
    ).prediction()


class _Extrapolation:
    """From what was measured to all figures."""

    def __init__(
        self,
        recipe: PipelineRecipe,
        prices: Prices,
        *,
        inputs: Sequence[Sequence[Input]],
        samples: Sequence[SourceSample],
        measured: Measured,
        imported: float,
    ) -> None:
        self._recipe, self._prices, self._inputs, self._samples = recipe, prices, inputs, samples
        self._measured, self._imported = measured, imported
        self._num_replicates = max(len(source.replicates) for source in measured.sources)
        self._is_all = all(source.is_all for source in measured.sources)
        self._num_units = sum(
            len(bundled(of_source, source.format))
            for source, of_source in zip(recipe.source, inputs, strict=True)
        )
        self._kept = kept_share(measured.repetition, sum(sample.num_cells for sample in samples))

    def prediction(self) -> Prediction:
        documents = self._interval(lambda each: each.num_documents)
        passed = self._ratio(lambda each: each.num_survivors, lambda each: each.num_documents)
        survivors = self._interval(lambda each: each.num_survivors)
        if not self._is_all:
            passed = as_share(passed, self._measured.num_documents)
            if passed.value in (0.0, 1.0):
                low, high = documents.low * passed.low, documents.high * passed.high
                survivors = Estimate(value=survivors.value, low=low, high=high)
        tokens = product(self._of_kept(lambda each: each.num_tokens), self._kept)
        kept = product(survivors, self._kept)
        hours = self._hours(documents, survivors, kept, tokens)
        cores = self._prices.cores
        whole = total(list(hours.values()))
        alone = total([hours[name] for name in ("start", "compare", "publish")])
        wall = Estimate(
            value=self._wall(whole.value - alone.value, alone.value, _UNITS_AT_ONCE),
            low=self._wall(whole.low - alone.low, alone.low, 1.0),
            high=self._wall(whole.high - alone.high, alone.high, _UNITS_AT_ONCE**2),
        )
        output, work = self._bytes(documents, survivors, kept, tokens)
        puts, gets = self._requests(tokens)
        read_bytes = sum(
            found.size for of_source in self._inputs for found in of_source if is_remote(found.url)
        )
        prices = self._prices
        paid = [
            wall.times(cores * prices.core_hour),
            puts.times(prices.put / 1_000),
            gets.times(prices.get / 1_000),
            output.times(prices.month_gb / 1e9),
            _exactly(read_bytes / 1e9 * prices.read_gb),
        ]
        estimates = {
            "documents": documents,
            "kept_documents": kept,
            "kept_share": product(passed, self._kept),
            "tokens": tokens,
            "processor_hours": whole,
            **{f"processor_hours.{name}": value for name, value in hours.items()},
            "wall_hours": wall,
            "memory": self._memory(survivors),
            "disk": total([output, work]),
            "output": output,
            "requests": total([puts, gets]),
            "money": total(paid),
            "sample_documents": _exactly(self._measured.num_documents),
        }
        return Prediction(of=digest_of(self._recipe, self._inputs), estimates=estimates, notes=self._notes())

    def _figure(self, of: Callable[[Replicate], float], used: Sequence[int]) -> float:
        """A figure of all inputs, from these replicates of each source."""
        return sum(_scaled(source, of, used) for source in self._measured.sources)

    def _interval(self, of: Callable[[Replicate], float], error: float = 0.0) -> Estimate:
        return with_interval(lambda used: self._figure(of, used), self._num_replicates, self._is_all, error)

    def _ratio(self, of: Callable[[Replicate], float], to: Callable[[Replicate], float]) -> Estimate:
        def figure(used: Sequence[int]) -> float:
            return self._figure(of, used) / max(self._figure(to, used), 1e-9)

        return with_interval(figure, self._num_replicates, self._is_all)

    def _of_kept(self, of: Callable[[Replicate], float], error: float = 0.0) -> Estimate:
        """A figure of the documents that stay in the sample, as if all survivors stayed."""

        def figure(used: Sequence[int]) -> float:
            kept = self._figure(lambda each: each.num_kept, used)
            share = self._figure(lambda each: each.num_survivors, used) / kept if kept else 0.0
            return self._figure(of, used) * share

        return with_interval(figure, self._num_replicates, self._is_all, error)

    def _hours(
        self, documents: Estimate, survivors: Estimate, kept: Estimate, tokens: Estimate
    ) -> Mapping[str, Estimate]:
        """Processor hours by step and phase."""
        tables = step_tables(self._recipe, prepared=False)
        stages = dict.fromkeys(
            stage for of_source in stages_of(self._recipe, tables).values() for stage in of_source
        )
        measured = {
            name for source in self._measured.sources for each in source.replicates for name in each.amounts
        }
        names = ["read", *(stage for stage in stages if stage in measured), "signature", "write"]
        seconds = {
            name: self._interval(_amount_of(name), _TIMING_ERROR) for name in names if name in measured
        }
        files = self._measured.empty_seconds * self._num_units
        seconds["write"] = total([seconds["write"], _exactly(files)])
        seconds["compare"] = _phase(_COMPARE, survivors)
        if not self._recipe.tokenize.off:
            encoded = self._of_kept(_amount_of("tokenize"), _TIMING_ERROR)
            seconds["tokenize"] = product(encoded, self._kept)
            seconds["shard"] = _phase(_SHARD, kept, tokens)
        seconds["lineage"] = _phase(_LINEAGE, documents)
        seconds["publish"] = _phase(_PUBLISH, documents)
        probes = sum(min(found.size, _PROBE_BYTES) for of_source in self._inputs for found in of_source)
        started = self._imported + self._measured.startup
        ray = self._recipe.ray
        if not ray.in_process:
            started += _RAY_SECONDS * (ray.address == "local") + started * min(
                self._prices.cores, self._num_units
            )
        start = started + _PROBE_SECONDS * probes
        seconds["start"] = Estimate(value=start, low=start / 1.2, high=start * 1.2)
        return {name: each.times(1 / 3600) for name, each in seconds.items()}

    def _wall(self, spread: float, alone: float, waiting: float) -> float:
        """Wall hours of `spread` processor hours on all workers and `alone` of one process."""
        busy = min(self._prices.cores, max(1, self._num_parts()))
        return spread / busy * (waiting if busy > 1 else 1.0) + alone

    def _num_parts(self) -> int:
        """Units that may be read at the same time."""
        unit_bytes = self._recipe.run.unit_bytes
        if not unit_bytes:
            return self._num_units
        return sum(max(1, found.size // unit_bytes) for of_source in self._inputs for found in of_source)

    def _bytes(
        self, documents: Estimate, survivors: Estimate, kept: Estimate, tokens: Estimate
    ) -> tuple[Estimate, Estimate]:
        """What OUT holds at the end, and what work/ holds besides at most."""
        dedup = effective_dedup(self._recipe)
        key = _KEY_BYTES + (4 * dedup.num_perm if dedup.near else 0)
        per_document = _LINEAGE_BYTES
        if self._recipe.quality.ledger == "all":
            num_rules = len(self._recipe.quality.rules) * 10
            per_document = total([per_document, _exactly(num_rules * _FINDING_BYTES)])
        parts = total([self._interval(_amount_of(name)) for name in (PART_BYTES, TEXTS_BYTES)])
        output = total([
            parts,
            tokens.times(4),
            kept.times(key + _INDEX_BYTES),
            product(documents, per_document),
            _exactly(_OWN_BYTES + _FILE_BYTES * self._num_units),
        ])  # fmt: skip
        work = total([tokens.times(4), survivors.times(key), documents.times(_WORK_BYTES)])
        return output, work

    def _memory(self, survivors: Estimate) -> Estimate:
        """The most that one process takes: a worker, or the one that compares."""
        peak = float(self._measured.peak_bytes)
        compared = {
            name: _BASE_BYTES + _COMPARED_BYTES * min(getattr(survivors, name), _COMPARED_AT_ONCE)
            for name in ("value", "low", "high")
        }
        larger = _LARGEST_TIMES * self._recipe.limits.max_document_bytes
        return Estimate(
            value=max(1.15 * peak, compared["value"]),
            low=max(0.85 * peak, compared["low"]),
            high=max(1.15 * peak, peak + larger, compared["high"]),
        )

    def _requests(self, tokens: Estimate) -> tuple[Estimate, Estimate]:
        """Requests that write and that read; none to a disk."""
        puts = gets = _exactly(0.0)
        if Folder(self._recipe.run.output).is_remote:
            shards = max(1.0, tokens.value / self._recipe.tokenize.shard_tokens)
            puts, gets = (
                Estimate(value=num, low=num / 1.5, high=num * 1.5)
                for kind in (_PUTS, _GETS)
                for num in [kind.run + kind.unit * self._num_units + kind.shard * shards]
            )
        remote = [found for of_source in self._inputs for found in of_source if is_remote(found.url)]
        read = sum(_GETS_OF_INPUT + found.size // _READ_AHEAD for found in remote)
        return puts, total([gets, Estimate(value=read, low=read / 1.5, high=read * 1.5)])

    def _notes(self) -> tuple[str, ...]:
        measured, seen = self._measured, self._measured.repetition
        num_cells = sum(len(sample.cells) for sample in self._samples)
        all_cells = sum(sample.num_cells for sample in self._samples)
        notes = [
            f"A sample of {counted(measured.num_documents, 'document')} from {counted(num_cells, 'part')} of the"
            f" inputs ({num_cells / all_cells:.2%} of them), carried through the recipe's steps."
        ]
        if any(getattr(effective_dedup(self._recipe), name) for name in ("url", "exact", "near")):
            notes.append(
                "Duplicates are an extrapolation: of"
                f" {counted(seen.num_documents, 'compared document')} of the sample"
                f" {seen.num_documents - seen.num_texts:,} repeat another one, and {seen.num_twice:,} texts stand in"
                f" two parts of it; from that curve {1 - self._kept.value:.1%} of all"
                f" ({1 - self._kept.high:.1%} to {1 - self._kept.low:.1%}) would go."
            )
        if not seen.num_documents:
            notes.append(
                "No document of the sample passes all steps: tokens, and what follows from them, are of none. Read"
                " more by --sample-bytes, or loosen the steps."
            )
        if self._recipe.dedup.against:
            notes.append("Documents that an output of dedup.against holds are not taken off.")
        if self._recipe.dedup.inside.is_on:
            notes.append("What [dedup.inside] cuts, and the time that it takes, is in no figure.")
        if measured.num_heads:
            notes.append(
                f"{counted(measured.num_heads, 'file')} of the sample cannot be read from within (one compressed"
                " stream): the first documents stand for the whole file."
            )
        if measured.unreadable:
            notes.append(
                f"{counted(len(measured.unreadable), 'part')} of the sample cannot be read; the first:"
                f" {measured.unreadable[0]}"
            )
        chains = {model for source in self._recipe.source for model in source.steps if model == "classifier"}
        if chains and any(table.num_gpus for table in self._recipe.classifier):
            notes.append("Classifiers were timed on this processor: a GPU takes other times.")
        notes.append(
            "Waiting for a network or a disk is in no figure; compare, shard, lineage and publish follow constants"
            " of docs/pricing.md."
        )
        return tuple(notes)


def _scaled(source: MeasuredSource, of: Callable[[Replicate], float], used: Sequence[int]) -> float:
    """A figure of a source: a ratio to what its replicates count as. All of a source that was read whole are
    used."""
    chosen = source.replicates
    if not source.is_all:
        chosen = tuple(chosen[number] for number in used if number < len(chosen))
    weight = sum(each.weight for each in chosen)
    return source.size * sum(map(of, chosen)) / weight if weight else 0.0


def _amount_of(name: str) -> Callable[[Replicate], float]:
    return lambda each: each.amounts.get(name, 0.0)


def _phase(cost: _PhaseCost, documents: Estimate, tokens: Estimate | None = None) -> Estimate:
    """Processor seconds of a phase by its constants."""
    factor = 1 + 1.645 * _CONSTANT_ERROR

    def seconds(name: str) -> float:
        num_tokens = 0.0 if tokens is None else getattr(tokens, name)
        return float(cost.own + cost.document * getattr(documents, name) + cost.token * num_tokens)

    return Estimate(value=seconds("value"), low=seconds("low") / factor, high=seconds("high") * factor)


def _exactly(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value)


def usual_cores(recipe: PipelineRecipe) -> int:
    """Cores that a run takes where nothing else is said."""
    if recipe.ray.in_process:
        return 1
    return recipe.ray.num_cpus or len(os.sched_getaffinity(0))
