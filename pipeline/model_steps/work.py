"""What workers and actors do with a unit: cut it into fragments, ask a model of each, make the unit's files
of them."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.cluster.pieces import UnitEnd
from pipeline.model_steps.fragments import (
    Answers,
    Fragment,
    FragmentContent,
    FragmentsResult,
    cut,
    publish_answers,
    publish_fragment,
    publish_named,
    read_answers,
    read_fragment,
    with_answers,
)
from pipeline.models.device import device_of_class, device_of_encoder
from pipeline.phases.phase import publish_result
from pipeline.phases.read import ReadJob, chain_of, named_in_errors, outcomes_of, tally_of
from pipeline.plan import Unit
from pipeline.results.faults import StrictError, fault_of, strict_message
from pipeline.results.unit_results import CleanPart, ReadResult
from pipeline.units.facts import publish_facts
from pipeline.units.files import UnitWriter
from pipeline.units.parsed_texts import ParsedTextsWriter, without_purged
from pipeline.units.tally import UnitTally
from stages.chain import Chain
from stages.document import Document, Outcome, Rejection
from stages.fault import Fault
from stages.steps.model_step import Answer, ModelStep, failed

_NO_PART: Final = CleanPart(file="", num_rows=0, hash="")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelJob:
    """What all units share. `on_gpu` names the models that run on GPUs; `devices` are the kinds that are
    settled."""

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
        return f"fragment {self.fragment.name} of {self.unit.shown}"


def read_fragments(job: ModelJob, unit: Unit) -> Iterator[UnitFragment | UnitEnd]:
    """The unit's fragments, each as soon as it is published. What an earlier call read whole is not read
    again."""
    out, marker = Folder(job.read.out), _marker(unit)
    if out.exists(marker):
        known = FragmentsResult.from_json(json.loads(out.read(marker)))
        yield from (UnitFragment(unit=unit, fragment=fragment) for fragment in known.fragments)
        yield UnitEnd(None)
        return
    tally, started = tally_of(job.read, unit), time.process_time()
    fragments: list[Fragment] = []
    stop = cuts_of(chain_of(job.read, unit.source_index))[0]
    with (
        named_in_errors(unit),
        ParsedTextsWriter(out, unit, is_on=job.read.unit_files.keep_text) as texts,
        contextlib.closing(outcomes_of(job.read, unit, tally, texts.keep_document, stop)) as outcomes,
    ):
        for number, some in enumerate(cut(outcomes)):
            if job.read.strict:
                _stop_at_fault(some)
            fragments.append(publish_fragment(out, unit.folder, number, some))
            yield UnitFragment(unit=unit, fragment=fragments[-1])
    tally.seconds["all"] = time.process_time() - started
    read = tally.result(_NO_PART, texts.file)
    publish_result(out, marker, FragmentsResult(read=read, fragments=tuple(fragments)))
    yield UnitEnd(None)


def _stop_at_fault(outcomes: Sequence[Outcome]) -> None:
    """StrictError if a step raised on one of these."""
    for outcome in outcomes:
        row = fault_of(outcome) if isinstance(outcome, Rejection) else None
        if row is not None:
            raise StrictError(strict_message(row))


@dataclass(frozen=True, slots=True)
class ModelWork:
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
        stage = next(
            stage for stage in chain_of(job.read, piece.unit.source_index).models if stage.name == self.model
        )
        device = device_of_encoder(on_gpu) if stage.gives_scores else device_of_class(on_gpu)
        if settled is not None:
            check_device(self.model, device, settled, piece)
        ask = _loaded_model(job, stage)
        started = time.perf_counter()
        answers = tuple(_stored(stage, documents, ask(documents)))
        seconds = time.perf_counter() - started
        publish_answers(out, fragment, self.model, Answers(device=device, seconds=seconds, answers=answers))
        return _on(piece, self.model, device)


_models: dict[tuple[str, str], Callable[[Sequence[Document]], list[Answer]]] = {}
"""The models of this process, by the plan's key and the model's name: an actor has one."""


def _loaded_model(job: ModelJob, stage: ModelStep) -> Callable[[Sequence[Document]], list[Answer]]:
    key = (job.read.key, stage.name)
    if key not in _models:
        _models[key] = stage.load(stage.name in job.on_gpu)
    return _models[key]


def _stored(stage: ModelStep, documents: Sequence[Document], answers: Sequence[Answer]) -> Iterator[Answer]:
    """The answers as a file holds them: among outcomes, that a class raised is one of them."""
    for document, answer in zip(documents, answers, strict=True):
        yield (
            failed(document, stage.name, answer)
            if isinstance(answer, Fault) and not stage.gives_scores
            else answer
        )


def _on(piece: UnitFragment, model: str, device: str) -> UnitFragment:
    return replace(piece, devices={**piece.devices, model: device})


def check_device(model: str, device: str, settled: str, piece: UnitFragment) -> None:
    if device != settled:
        raise RecipeError(
            f"{model}: {piece} was to be scored on {device!r}, and the run's other scores are of {settled!r},"
            " whose last digits differ: make the same call again where all its actors find the one kind (its"
            " key `resources` keeps them to nodes that have it), or run into a new output"
        )


@dataclass(frozen=True, slots=True)
class StepsBetween:
    """The work of the operator that carries out the steps between two models."""

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


def finish_unit(job: ModelJob, unit: Unit) -> ReadResult:
    """Publish what reading the unit without models apart would publish, from its fragments and the answers;
    remove these."""
    out = Folder(job.read.out)
    if out.exists(unit.marker):  # the task ran before and its worker was lost behind the marker
        return ReadResult.from_json(json.loads(out.read(unit.marker)))
    known = FragmentsResult.from_json(json.loads(out.read(_marker(unit))))
    tally, chain = (
        UnitTally.resumed(known.read, strict=job.read.strict),
        chain_of(job.read, unit.source_index),
    )
    started, level = time.process_time(), len(cuts_of(chain)) - 1
    options = replace(job.read.unit_files, keep_text=False)  # reading has written the texts after parse
    with named_in_errors(unit), UnitWriter(out, options, unit, tally) as writer:
        for fragment in known.fragments:
            for outcome in _answered(job, chain, fragment, level, tally.seconds):
                writer.add(outcome)
    tally.seconds["all"] += time.process_time() - started
    result = tally.result(writer.part, without_purged(out, known.read.texts, tally))
    if job.read.unit_files.keep_facts:
        result = replace(result, facts=publish_facts(out, unit, result))
    publish_result(out, unit.marker, result)
    for name in out.names(unit.folder):
        if name == _marker(unit) or not name.endswith((".parquet", ".json")):
            out.remove(name)
    return result


def _answered(
    job: ModelJob, chain: Chain, fragment: Fragment, level: int, seconds: dict[str, float]
) -> list[Outcome]:
    """What the steps behind a cut, up to the next one or the last, make of a fragment, when its models have
    answered. The seconds that this took, the models and earlier steps, are added to `seconds` by stage.

    RecipeError where the answers are of another kind of device than the run's."""
    out, at_level, cuts = Folder(job.read.out), _at_level(fragment, level), cuts_of(chain)
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
class CountTries:
    """How often an operator's work on a fragment began, by files that each try leaves where a worker has
    died."""

    operator: str

    def __call__(self, job: ModelJob, piece: UnitFragment) -> int:
        """The tries before this one."""
        out, name = Folder(job.read.out), piece.fragment.answers(self.operator).removesuffix(".arrow")
        num_before = sum(each.startswith(f"{name}.try-") for each in out.names(piece.unit.folder))
        out.publish(f"{name}.try-{uuid.uuid4().hex}", b"")
        return num_before


def cuts_of(chain: Chain) -> list[int]:
    """The positions in the chain before which it is cut."""
    return sorted({model.position for model in chain.models})


def _at_level(fragment: Fragment, level: int) -> Fragment:
    """The fragment as it is before the models of the level-th cut."""
    return fragment if level == 0 else replace(fragment, name=f"{fragment.name}.{level}")


def _marker(unit: Unit) -> str:
    return f"{unit.folder}/fragments.json"
