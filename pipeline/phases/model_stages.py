"""Reading where a source's steps hold models: they work on actors of their own while reading goes on.

    1. read       the steps before the first model; a unit's documents as fragments, each named when it is published
    2. models     each fragment's documents to a model: what it answers is a file beside the fragment
       steps      those between two models, fragment by fragment
    3. finish     the last steps, on fragments and answers; the unit's files as reading without models publishes them

1 and 2 are one Dataset whose operators all run at once, 3 is another. Fragments are cut by what is in them, batches
never cross them, and each file is named by what it was made from. So the bytes are the same with any number of actors,
in any order and after any death; they are a function of the kind of device that a model ran on, which the run records.
"""

from __future__ import annotations

import contextlib
import functools
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.cluster.dataset import most_rows
from pipeline.cluster.metrics import PhaseMetrics
from pipeline.cluster.pieces import Ended, PieceOperator, PieceReader, run_pieces
from pipeline.cluster.tasks import ActorResources, TaskResources, check_actors, num_cpus, num_gpus
from pipeline.models.device import device_kind
from pipeline.phases.fragments import (
    Answers,
    Fragment,
    FragmentContent,
    cut,
    publish_answers,
    publish_fragment,
    publish_named,
    read_answers,
    read_fragment,
    with_answers,
)
from pipeline.phases.phase import Phase, Run, publish_result, published_results, run_phase
from pipeline.phases.read import (
    ReadJob,
    chain_of,
    named_in_errors,
    outcomes_of,
    read_counts,
    read_note,
    read_phase,
    tally_of,
)
from pipeline.phases.results import CleanPart, FragmentsResult, ReadResult
from pipeline.phases.unit_facts import publish_facts
from pipeline.phases.unit_files import ParsedTextsWriter, UnitTally, UnitWriter
from pipeline.plan import Unit
from pipeline.recipe import RayTable
from pipeline.report.faults import StrictError, fault_of, strict_message
from stages.chain import Chain, StepTables, build_chain
from stages.document import Document, Outcome, Rejection
from stages.fault import Fault
from stages.steps.model_stage import Answer, ModelStage, failed

DEVICES: Final = "work/devices.json"
"""The kind of device that each model of a run works on, by the model's name."""
_NO_PART: Final = CleanPart(file="", num_rows=0, hash="")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelJob:
    """What all units share. `on_gpu` names the models that run on GPUs; `devices` are the kinds that are settled."""

    read: ReadJob
    on_gpu: frozenset[str]
    devices: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFragment:
    """A fragment of a unit on its way; `devices` are those that models worked on it with."""

    unit: Unit
    fragment: Fragment
    devices: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"fragment {self.fragment.name} of {self.unit.input.url}"


def models_of(steps: Sequence[Sequence[str]], tables: StepTables) -> tuple[ModelStage, ...]:
    """The models of all sources, each once."""
    found = {model.name: model for of_source in steps for model in build_chain(of_source, tables).models}
    return tuple(found.values())


def plan_actors(models: Sequence[ModelStage], ray: RayTable, say: Callable[[str], None]) -> dict[str, ActorResources]:
    """The actors of each model, by its name. ResourceError where the cluster can never hold the fewest of them.

    A model that asks for GPUs where there are none runs on processors, and where no processor would be left for
    reading the actors reserve none; both is said."""
    any_gpu = ray.grows or num_gpus() > 0
    found: dict[str, ActorResources] = {}
    for model in models:
        pool = model.pool
        gpus = pool.num_gpus if any_gpu else 0.0
        if pool.num_gpus and not gpus:
            say(f"{model.name}: no node has a GPU, so it runs on processors.")
        cpus = (0.0 if gpus else 1.0) if pool.num_cpus is None else pool.num_cpus
        fewest, most = pool.actors
        actors = ActorResources(
            stage=model.name,
            table=model.table,
            cpus=cpus,
            gpus=gpus,
            resources=pool.resources,
            fewest=fewest,
            most=most,
        )
        check_actors(actors, grows=ray.grows)
        found[model.name] = actors
    reserved = sum(actors.cpus * actors.fewest for actors in found.values())
    if found and not ray.grows and reserved + TaskResources.of(ray, "read").cpus > num_cpus():
        say(f"{', '.join(found)}: shares the {num_cpus()} processors with reading, which needs one of them.")
        return {name: replace(actors, cpus=0.0) for name, actors in found.items()}
    return found


def read_inputs(
    run: Run, job: ReadJob, actors: Mapping[str, ActorResources], watch: Callable[[ReadResult], None]
) -> list[ReadResult]:
    """What came of every input file, in plan order: those of sources without models as `read_phase` has it."""
    chains = {steps: build_chain(steps, job.tables) for steps in dict.fromkeys(job.steps)}
    by_chain: dict[tuple[str, ...], list[Unit]] = {}
    plain: list[Unit] = []
    for unit in run.plan.units:
        steps = job.steps[unit.source_index]
        (by_chain.setdefault(steps, []) if chains[steps].models else plain).append(unit)
    found: dict[str, ReadResult] = {}
    if plain or not by_chain:
        results = run_phase(run, read_phase(run.plan, job, plain, watch))
        found |= zip((unit.marker for unit in plain), results, strict=True)
    for steps, units in by_chain.items():
        results = _read_with_models(run, job, chains[steps], units, actors=actors, watch=watch)
        found |= zip((unit.marker for unit in units), results, strict=True)
    return [found[unit.marker] for unit in run.plan.units]


def _read_with_models(
    run: Run,
    job: ReadJob,
    chain: Chain,
    units: Sequence[Unit],
    *,
    actors: Mapping[str, ActorResources],
    watch: Callable[[ReadResult], None],
) -> list[ReadResult]:
    """The units of sources with one chain, some hundreds after the others: so the fragments of a large run never lie
    in its output all at once."""
    results: list[ReadResult] = []
    on_gpu = frozenset(model.name for model in chain.models if actors[model.name].gpus)
    for first in range(0, len(units), most_rows()):
        now = units[first : first + most_rows()]
        model_job = ModelJob(read=job, on_gpu=on_gpu, devices=_settled(run))
        _ask_models(run, model_job, chain, now, actors)
        results += run_phase(run, _finish_phase(run, replace(model_job, devices=_settled(run)), chain, now, watch))
    return results


def _ask_models(
    run: Run, job: ModelJob, chain: Chain, units: Sequence[Unit], actors: Mapping[str, ActorResources]
) -> None:
    """1 and 2 for those of the units that are not finished."""
    started = time.perf_counter()
    finished = published_results(run.out, units, ReadResult)
    left = [unit for unit in units if unit.marker not in finished]
    left.sort(key=lambda unit: unit.input.size, reverse=True)
    name, note = "read and ask models", ""
    num_fragments = num_documents = 0
    with run.reporter.phase(name, sum(unit.input.size or 1 for unit in units)) as progress:
        progress.step(sum(unit.input.size or 1 for unit in units if unit.marker in finished))
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
            if isinstance(piece, Ended):
                progress.step(unit.input.size or 1, note)
                continue
            num_fragments, num_documents = num_fragments + 1, num_documents + piece.fragment.num_documents
            note = f"{num_documents:,} documents in {num_fragments:,} fragments"
            _settle(run, piece)
            progress.step(0, note)
    run.took(name, started, note)


def _settled(run: Run) -> dict[str, str]:
    """The kinds of device that are settled, by model."""
    if not run.devices and run.out.exists(DEVICES):
        run.devices |= json.loads(run.out.read(DEVICES))
    return dict(run.devices)


def _settle(run: Run, piece: UnitFragment) -> None:
    """The first device that a model worked on is that of the run. RecipeError for another one."""
    for model, device in piece.devices.items():
        if model not in run.devices:
            run.devices[model] = device
            run.out.publish(DEVICES, json.dumps(run.devices, sort_keys=True).encode())
        _check_device(model, device, run.devices[model], piece)


def _check_device(model: str, device: str, settled: str, piece: UnitFragment) -> None:
    if device != settled:
        raise RecipeError(
            f"{model}: {piece} was to be scored on {device!r}, and the run's other scores are of {settled!r}, whose"
            " last digits differ: make the same call again where all its actors find the one kind (its key `resources`"
            " keeps them to nodes that have it), or run into a new output"
        )


def _reader(chain: Chain) -> PieceReader[ModelJob, Unit, UnitFragment, None]:
    return PieceReader(
        name="->".join(("read", *chain.stages[: _cuts(chain)[0]])),
        pieces=_read_fragments,
        num_pieces=lambda job, unit: len(Folder(job.read.out).names(unit.folder)),
        isolate=lambda job: replace(job, read=replace(job.read, isolation=True)),
    )


def _operators(chain: Chain, actors: Mapping[str, ActorResources]) -> list[PieceOperator[ModelJob, UnitFragment]]:
    """The models in order, and between those of two steps the steps from the one to before the other."""
    found: list[PieceOperator[ModelJob, UnitFragment]] = []
    cuts = _cuts(chain)
    for level, position in enumerate(cuts):
        found += [
            PieceOperator(
                name=model.name, work=_Ask(model.name, level), num_deaths=_Deaths(model.name), actors=actors[model.name]
            )
            for model in chain.models
            if model.position == position
        ]
        if level + 1 < len(cuts):
            name = "->".join(chain.stages[position : cuts[level + 1]])
            found.append(PieceOperator(name=name, work=_CarryOn(level), num_deaths=_Deaths(name)))
    return found


def _cuts(chain: Chain) -> list[int]:
    """The positions in the chain before which it is cut."""
    return sorted({model.position for model in chain.models})


def _read_fragments(job: ModelJob, unit: Unit) -> Iterator[UnitFragment | Ended]:
    """The unit's fragments, each as soon as it is published. What an earlier call read whole is not read again."""
    out, marker = Folder(job.read.out), _marker(unit)
    if out.exists(marker):
        known = FragmentsResult.from_json(json.loads(out.read(marker)))
        yield from (UnitFragment(unit=unit, fragment=fragment) for fragment in known.fragments)
        yield Ended(None)
        return
    tally, started = tally_of(job.read, unit), time.perf_counter()
    fragments: list[Fragment] = []
    stop = _cuts(chain_of(job.read, unit.source_index))[0]
    with (
        named_in_errors(unit),
        ParsedTextsWriter(out, unit, is_on=job.read.what.keep_text) as texts,
        contextlib.closing(outcomes_of(job.read, unit, tally, texts.keep_document, stop)) as outcomes,
    ):
        for number, some in enumerate(cut(outcomes)):
            if job.read.strict:
                _stop_at_fault(some)
            fragments.append(publish_fragment(out, unit.folder, number, some))
            yield UnitFragment(unit=unit, fragment=fragments[-1])
    tally.seconds["all"] = time.perf_counter() - started
    read = tally.result(_NO_PART, texts.file)
    publish_result(out, marker, FragmentsResult(read=read, fragments=tuple(fragments)))
    yield Ended(None)


def _stop_at_fault(outcomes: Sequence[Outcome]) -> None:
    """StrictError if a step raised on one of these."""
    for outcome in outcomes:
        row = fault_of(outcome) if isinstance(outcome, Rejection) else None
        if row is not None:
            raise StrictError(strict_message(row))


def _marker(unit: Unit) -> str:
    return f"{unit.folder}/fragments.json"


@dataclass(frozen=True, slots=True)
class _Ask:
    """The work of a model's operator."""

    model: str
    level: int

    def __call__(self, job: ModelJob, piece: UnitFragment) -> UnitFragment:
        """Publish what the model answers for a fragment's documents, if that is not known already."""
        out, fragment = Folder(job.read.out), _at_level(piece.fragment, self.level)
        settled = job.devices.get(self.model)
        known = read_answers(out, fragment, self.model)
        if known is not None and settled in (None, known.device):
            return _on(piece, self.model, known.device)
        documents = [each for each in read_fragment(out, fragment).outcomes if isinstance(each, Document)]
        if not documents:
            return piece
        on_gpu = self.model in job.on_gpu
        stage = next(stage for stage in chain_of(job.read, piece.unit.source_index).models if stage.name == self.model)
        device = device_kind(on_gpu) if stage.gives_scores or on_gpu else "cpu"
        if settled is not None:
            _check_device(self.model, device, settled, piece)
        ask = _loaded_model(job, stage)
        started = time.perf_counter()
        answers = tuple(_stored(stage, documents, ask(documents)))
        seconds = time.perf_counter() - started
        publish_answers(out, fragment, self.model, Answers(device=device, seconds=seconds, answers=answers))
        return _on(piece, self.model, device)


_models: dict[tuple[str, str], Callable[[Sequence[Document]], list[Answer]]] = {}
"""The models of this process, by the plan's key and the model's name: an actor has one."""


def _loaded_model(job: ModelJob, stage: ModelStage) -> Callable[[Sequence[Document]], list[Answer]]:
    key = (job.read.key, stage.name)
    if key not in _models:
        _models[key] = stage.load(stage.name in job.on_gpu)
    return _models[key]


def _stored(stage: ModelStage, documents: Sequence[Document], answers: Sequence[Answer]) -> Iterator[Answer]:
    """The answers as a file holds them: among outcomes, that a class raised is one of them."""
    for document, answer in zip(documents, answers, strict=True):
        yield failed(document, stage.name, answer) if isinstance(answer, Fault) and not stage.gives_scores else answer


def _on(piece: UnitFragment, model: str, device: str) -> UnitFragment:
    return replace(piece, devices={**piece.devices, model: device})


@dataclass(frozen=True, slots=True)
class _CarryOn:
    """The work of the operator between the models of two steps."""

    level: int

    def __call__(self, job: ModelJob, piece: UnitFragment) -> UnitFragment:
        """Publish what comes of a fragment's documents up to before the next model."""
        out, chain = Folder(job.read.out), chain_of(job.read, piece.unit.source_index)
        following = _at_level(piece.fragment, self.level + 1)
        if not out.exists(following.file):
            seconds: dict[str, float] = {}
            outcomes = _answered(job, chain, piece.fragment, self.level, seconds)
            publish_named(out, following, FragmentContent(outcomes=tuple(outcomes), seconds=seconds))
        return piece


def _at_level(fragment: Fragment, level: int) -> Fragment:
    """The fragment as it is before the models of the level-th cut."""
    return fragment if level == 0 else replace(fragment, name=f"{fragment.name}.{level}")


def _answered(job: ModelJob, chain: Chain, fragment: Fragment, level: int, seconds: dict[str, float]) -> list[Outcome]:
    """What the steps behind a cut, up to the next one or the last, make of a fragment, when its models have answered.
    The seconds that this took, the models and earlier steps, are added to `seconds` by stage.

    RecipeError where the answers are of another kind of device than the run's."""
    out, at_level, cuts = Folder(job.read.out), _at_level(fragment, level), _cuts(chain)
    content = read_fragment(out, at_level)
    given: dict[str, Answers] = {}
    _add(seconds, content.seconds)
    for model in chain.models:
        answers = read_answers(out, at_level, model.name) if model.position == cuts[level] else None
        if answers is not None:
            given[model.name] = answers
            _add(seconds, {chain.stages[model.position]: answers.seconds})
    stop = cuts[level + 1] if level + 1 < len(cuts) else None
    return chain.run_from(cuts[level], with_answers(content.outcomes, given), seconds, stop)


def _add(seconds: dict[str, float], more: Mapping[str, float]) -> None:
    for stage, some in more.items():
        seconds[stage] = seconds.get(stage, 0.0) + some


@dataclass(frozen=True, slots=True)
class _Deaths:
    """How often an operator's work on a fragment began, by files that each try leaves where a worker has died."""

    operator: str

    def __call__(self, job: ModelJob, piece: UnitFragment) -> int:
        """The tries before this one."""
        out, name = Folder(job.read.out), piece.fragment.answers(self.operator).removesuffix(".arrow")
        num_before = sum(each.startswith(f"{name}.try-") for each in out.names(piece.unit.folder))
        out.publish(f"{name}.try-{uuid.uuid4().hex}", b"")
        return num_before


def _finish_phase(
    run: Run, job: ModelJob, chain: Chain, units: Sequence[Unit], watch: Callable[[ReadResult], None]
) -> Phase[ModelJob, Unit, ReadResult]:
    return Phase(
        name="filter and write",
        operator="->".join((*chain.stages[_cuts(chain)[-1] :], "write")),
        stage="read",
        task=finish_unit,
        result=ReadResult,
        job=job,
        items=units,
        size=lambda unit: unit.input.size or 1.0,
        note=read_note,
        counts=functools.partial(read_counts, {source.name: source.steps for source in run.recipe.source}),
        watch=watch,
    )


def finish_unit(job: ModelJob, unit: Unit) -> ReadResult:
    """Publish what reading the unit without models apart would publish, from its fragments and the answers; remove
    these."""
    out = Folder(job.read.out)
    if out.exists(unit.marker):  # the task ran before and its worker was lost behind the marker
        return ReadResult.from_json(json.loads(out.read(unit.marker)))
    known = FragmentsResult.from_json(json.loads(out.read(_marker(unit))))
    tally, chain = UnitTally.resumed(known.read, strict=job.read.strict), chain_of(job.read, unit.source_index)
    started, level = time.perf_counter(), len(_cuts(chain)) - 1
    what = replace(job.read.what, keep_text=False)  # reading has written the texts after parse
    with named_in_errors(unit), UnitWriter(out, what, unit, tally) as writer:
        for fragment in known.fragments:
            for outcome in _answered(job, chain, fragment, level, tally.seconds):
                writer.add(outcome)
    tally.seconds["all"] += time.perf_counter() - started
    result = tally.result(writer.part, known.read.texts)
    if job.read.what.keep_facts:
        result = replace(result, facts=publish_facts(out, unit, result))
    publish_result(out, unit.marker, result)
    for name in out.names(unit.folder):
        if name == _marker(unit) or not name.endswith((".parquet", ".json")):
            out.remove(name)
    return result
