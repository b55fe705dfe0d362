"""Reading where a source's steps hold models: they work on actors of their own while reading goes on.

    1. read       the steps before the first model; a unit's documents as fragments, each named when it is published
    2. models     each fragment's documents to a model: what it answers is a file beside the fragment
       steps      those between two models, fragment by fragment
    3. finish     the last steps, on fragments and answers; the unit's files as reading without models publishes them

1 and 2 are one Dataset whose operators all run at once, 3 is another. Fragments are cut by what is in them,
batches never cross them, and each file is named by what it was made from. So the bytes are the same with any
number of actors, in any order and after any death; they are a function of the kind of device that a model ran
on, which the run records."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from lineage.storage.folder import Folder
from pipeline.cluster.dataset import most_rows
from pipeline.cluster.metrics import PhaseMetrics
from pipeline.cluster.pieces import PieceOperator, PieceReader, UnitEnd, run_pieces
from pipeline.cluster.tasks import ActorResources, TaskResources
from pipeline.model_steps.work import (
    CountTries,
    ModelJob,
    ModelWork,
    StepsBetween,
    UnitFragment,
    check_device,
    cuts_of,
    finish_unit,
    read_fragments,
)
from pipeline.phases.phase import Phase, RunState, published_results, run_phase, size_under_way
from pipeline.phases.read import ReadJob, read_counts, read_note_of, unit_size
from pipeline.plan import Unit
from pipeline.results.unit_results import ReadResult
from pipeline.terminal import counted
from stages.chain import Chain, build_chain

DEVICES: Final = "work/devices.json"
"""The kind of device that each model of a run works on, by the model's name."""


def read_inputs(
    run: RunState, job: ReadJob, actors: Mapping[str, ActorResources], watch: Callable[[ReadResult], None]
) -> list[ReadResult]:
    """What came of every input file, in plan order: those of sources without models as `read_phase` has
    it, those larger than run.unit_bytes in spans."""
    chains = {steps: build_chain(steps, job.tables) for steps in dict.fromkeys(job.steps)}
    by_chain: dict[tuple[str, ...], list[Unit]] = {}
    plain: list[Unit] = []
    for unit in run.plan.units:
        steps = job.steps[unit.source_index]
        (by_chain.setdefault(steps, []) if chains[steps].models else plain).append(unit)
    found: dict[str, ReadResult] = {}
    if plain or not by_chain:
        from pipeline.phases.large_files import read_units  # its readers are not needed by a run from texts

        results = read_units(run, job, plain, watch)
        found |= zip((unit.marker for unit in plain), results, strict=True)
    for steps, units in by_chain.items():
        results = _read_with_models(run, job, chains[steps], units, actors=actors, watch=watch)
        found |= zip((unit.marker for unit in units), results, strict=True)
    return [found[unit.marker] for unit in run.plan.units]


def _read_with_models(
    run: RunState,
    job: ReadJob,
    chain: Chain,
    units: Sequence[Unit],
    *,
    actors: Mapping[str, ActorResources],
    watch: Callable[[ReadResult], None],
) -> list[ReadResult]:
    """The units of sources with one chain, some hundreds after the others: so the fragments of a large run
    never lie in its output all at once."""
    results: list[ReadResult] = []
    on_gpu = frozenset(model.name for model in chain.models if actors[model.name].gpus)
    for first in range(0, len(units), most_rows()):
        now = units[first : first + most_rows()]
        model_job = ModelJob(read=job, on_gpu=on_gpu, devices=_settled(run))
        _ask_models(run, model_job, chain, now, actors)
        results += run_phase(
            run, _finish_phase(run, replace(model_job, devices=_settled(run)), chain, now, watch)
        )
    return results


def _ask_models(
    run: RunState, job: ModelJob, chain: Chain, units: Sequence[Unit], actors: Mapping[str, ActorResources]
) -> None:
    """1 and 2 for those of the units that are not finished."""
    started = time.perf_counter()
    finished = published_results(run.out, units, ReadResult)
    left = [unit for unit in units if unit.marker not in finished]
    left.sort(key=lambda unit: unit.size, reverse=True)
    name, note = "read and ask models", ""
    num_fragments = num_documents = 0
    with run.reporter.phase(name, sum(map(unit_size, units))) as progress:
        progress.step(sum(unit_size(unit) for unit in units if unit.marker in finished))
        ended: set[str] = set()
        progress.under_way = partial(size_under_way, left, unit_size, ended, on_ray=True)
        metrics = PhaseMetrics(run.recipe.run.name, name, len(left))
        pieces = run_pieces(
            _reader(chain),
            _operators(chain, actors),
            job,
            left,
            TaskResources.of(run.recipe.ray, "read"),
            retried=metrics.retried,
            ended=run.datasets.append,
        )
        for unit, piece in pieces:
            if isinstance(piece, UnitEnd):
                ended.add(unit.marker)
                progress.step(unit_size(unit), note)
                continue
            num_fragments, num_documents = num_fragments + 1, num_documents + piece.fragment.num_documents
            note = f"{counted(num_documents, 'document')} in {counted(num_fragments, 'fragment')}"
            _settle(run, piece)
            progress.step(0, note)
    run.took(name, started, note)


def _settled(run: RunState) -> dict[str, str]:
    """The kinds of device that are settled, by model."""
    if not run.devices and run.out.exists(DEVICES):
        run.devices |= json.loads(run.out.read(DEVICES))
    return dict(run.devices)


def _settle(run: RunState, piece: UnitFragment) -> None:
    """The first device that a model worked on is that of the run. RecipeError for another one."""
    for model, device in piece.devices.items():
        if model not in run.devices:
            run.devices[model] = device
            run.out.publish(DEVICES, json.dumps(run.devices, sort_keys=True).encode())
        check_device(model, device, run.devices[model], piece)


def _reader(chain: Chain) -> PieceReader[ModelJob, Unit, UnitFragment, None]:
    return PieceReader(
        name="->".join(("read", *chain.stages[: cuts_of(chain)[0]])),
        pieces=read_fragments,
        num_pieces=lambda job, unit: len(Folder(job.read.out).names(unit.folder)),
        isolate=lambda job: replace(job, read=replace(job.read, isolation=True)),
    )


def _operators(
    chain: Chain, actors: Mapping[str, ActorResources]
) -> list[PieceOperator[ModelJob, UnitFragment]]:
    """The models in order, and between those of two steps the steps from the one to before the other."""
    found: list[PieceOperator[ModelJob, UnitFragment]] = []
    cuts = cuts_of(chain)
    for level, position in enumerate(cuts):
        for model in chain.models:
            if model.position == position:
                ask = ModelWork(model.name, level)
                pool, tries = actors[model.name], CountTries(model.name)
                found.append(PieceOperator(name=model.name, work=ask, num_deaths=tries, actors=pool))
        if level + 1 < len(cuts):
            name = "->".join(chain.stages[position : cuts[level + 1]])
            found.append(PieceOperator(name=name, work=StepsBetween(level), num_deaths=CountTries(name)))
    return found


def _finish_phase(
    run: RunState, job: ModelJob, chain: Chain, units: Sequence[Unit], watch: Callable[[ReadResult], None]
) -> Phase[ModelJob, Unit, ReadResult]:
    return Phase(
        name="filter and write",
        operator="->".join((*chain.stages[cuts_of(chain)[-1] :], "write")),
        kind="read",
        task=finish_unit,
        result=ReadResult,
        job=job,
        units=units,
        size=unit_size,
        note=read_note_of(run),
        counts=read_counts(run.recipe),
        watch=watch,
    )
