"""The report of one step: its figures, as a line of metrics.jsonl and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lineage.json_record import JsonRecord, finite, json_name
from trainer.data.figures import LoadFigures
from trainer.evaluation.result import EvaluationResult
from trainer.telemetry.stragglers import Straggler
from trainer.telemetry.symptoms import Symptom


@dataclass(frozen=True, slots=True, kw_only=True)
class OverRanks(JsonRecord):
    """Seconds of one phase over the ranks."""

    least: float = json_name("min")
    mean: float
    most: float = json_name("max")
    slowest_rank: int = json_name("slowest")

    @staticmethod
    def of(seconds: Sequence[float]) -> OverRanks:
        """From one value a rank."""
        return OverRanks(
            least=min(seconds),
            mean=sum(seconds) / len(seconds),
            most=max(seconds),
            slowest_rank=max(range(len(seconds)), key=seconds.__getitem__),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """A step's routing over all layers and ranks. `fullest`: tokens of the fullest expert over the mean of
    its layer, in the layer where that is largest; `dropped`: share of the choices for which there was no
    room; `entropy`: of the router's shares, nats, mean over tokens and layers; the losses without their
    weights, likewise. None: not finite."""

    fullest: float | None
    dropped: float | None
    entropy: float | None
    balance_loss: float | None
    z_loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One step. Seconds, rank 0's own where `ranks` does not say otherwise; losses in nats a token; tokens
    are counted labels. `z_loss`: what `train.z_loss` adds to the loss, which does not contain it.
    `data_wait_seconds`: from asking for the batch until it was on the device (on a GPU:
    what the device waited for it); `ranks` compares that too, as "data wait". `loading`: of all ranks since
    this start. Both are there at every tenth step and the last only. `own` and `waiting`: each of `phases` as
    rank 0's own work and what it spent in collectives and messages, from asking for one until it was done;
    `own_ranks` compares the first over the ranks as `ranks` does the whole. `stragglers`: at the end of each
    window of steps. `pipeline_idle_share`: of the time from rank 0's first pass through a stage to its last,
    that in which none of its stages computes. `context_imbalance`: attention's work on the fullest context
    parallel rank over the mean. `checkpoint_age_seconds`: since this start published a checkpoint, or began.
    `gradient_norm_by_layer`: of a step that was skipped for its loss or gradients, before clipping. `at`:
    when its last phase was over, or on a GPU was asked for, seconds since the epoch. `evaluation_seconds`: of
    the held-out losses and `evaluations` after it. `goodput`: seconds of each part of the run's wall time until
    then, all attempts together, where ranks are compared. `health`: what was found of the machines since the
    report before."""

    step: int
    attempt: int
    loss: float | None
    z_loss: float | None = None
    loss_by_source: Mapping[str, float] = field(default_factory=dict)
    tokens_by_source: Mapping[str, int] = field(default_factory=dict)
    gradient_norm: float | None = None
    lr: float = 0.0
    pipeline_idle_share: float | None = None
    context_imbalance: float | None = None
    experts: ExpertLoad | None = None
    skipped: str | None = None
    first_sequence: int = 0
    last_sequence: int = 0
    seconds: float = 0.0
    tokens_per_second: float = 0.0
    mfu: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    data_wait_seconds: float = 0.0
    own: Mapping[str, float] = field(default_factory=dict)
    waiting: Mapping[str, float] = field(default_factory=dict)
    ranks: Mapping[str, OverRanks] = field(default_factory=dict)
    own_ranks: Mapping[str, OverRanks] = field(default_factory=dict)
    stragglers: tuple[Straggler, ...] = ()
    loading: LoadFigures | None = None
    checkpoint_age_seconds: float | None = None
    validation_loss: Mapping[str, float] = field(default_factory=dict)
    gradient_norm_by_layer: Mapping[str, float | None] = field(default_factory=dict)
    max_memory_bytes: int = 0
    at: float | None = None
    evaluation_seconds: float = 0.0
    evaluations: tuple[EvaluationResult, ...] = ()
    goodput: Mapping[str, float] = field(default_factory=dict)
    health: tuple[Symptom, ...] = ()

    @property
    def data_wait_share(self) -> float:
        """Share of the step that waited for data."""
        return self.data_wait_seconds / self.seconds if self.seconds else 0.0

    @property
    def slowest(self) -> tuple[str, OverRanks] | None:
        """The phase in which one rank's own work is furthest above the mean; None where ranks were not
        compared or are one."""
        behind = {phase: times for phase, times in self.own_ranks.items() if times.most > times.mean}
        return max(behind.items(), key=lambda item: item[1].most - item[1].mean, default=None)

    def as_json(self) -> str:
        """One line of metrics.jsonl; what is not finite is null."""
        row: dict[str, object] = {
            "step": self.step,
            "attempt": self.attempt,
            "loss": finite(self.loss),
            "loss_by_source": {name: finite(value) for name, value in self.loss_by_source.items()},
            "tokens_by_source": dict(self.tokens_by_source),
            "grad_norm": finite(self.gradient_norm),
            "lr": self.lr,
            "skipped": self.skipped is not None,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "mfu": self.mfu,
            "phases": dict(self.phases),
            "own": dict(self.own),
            "waiting": dict(self.waiting),
            "data_wait_seconds": self.data_wait_seconds,
            "data_wait_share": self.data_wait_share,
            "checkpoint_age_seconds": self.checkpoint_age_seconds,
        }
        if self.z_loss is not None:
            row["z_loss"] = finite(self.z_loss)
        if self.pipeline_idle_share is not None:
            row["pipeline_idle_share"] = self.pipeline_idle_share
        if self.context_imbalance is not None:
            row["context_imbalance"] = self.context_imbalance
        if self.experts is not None:
            row["experts"] = {name: finite(value) for name, value in dataclasses.asdict(self.experts).items()}
        if self.skipped is not None:
            row |= {"reason": self.skipped, "sequences": [self.first_sequence, self.last_sequence]}
        if self.ranks:
            row["ranks"] = {phase: times.to_json() for phase, times in self.ranks.items()}
            row["own_ranks"] = {phase: times.to_json() for phase, times in self.own_ranks.items()}
        if self.stragglers:
            row["stragglers"] = [straggler_row(each) for each in self.stragglers]
        if self.loading is not None:
            row["loading"] = dataclasses.asdict(self.loading)
        if self.validation_loss:
            row["validation_loss"] = {name: finite(value) for name, value in self.validation_loss.items()}
        if self.gradient_norm_by_layer:
            row["grad_norm_by_layer"] = {
                name: finite(norm) for name, norm in self.gradient_norm_by_layer.items()
            }
        if self.max_memory_bytes:
            row["max_memory_bytes"] = self.max_memory_bytes
        if self.at is not None:
            row["at"] = round(self.at, 6)
        if self.evaluation_seconds:
            row["evaluation_seconds"] = self.evaluation_seconds
        if self.evaluations:
            row["evaluations"] = [result.to_json() for result in self.evaluations]
        if self.health:
            row["health"] = [dataclasses.asdict(symptom) for symptom in self.health]
        if self.goodput:
            row["goodput"] = dict(self.goodput)
        return json.dumps(row, allow_nan=False)

    @staticmethod
    def from_json(line: str | bytes) -> StepReport:
        """The report in a line of metrics.jsonl."""
        row = json.loads(line)
        first, last = row.get("sequences", (0, 0))
        return StepReport(
            step=row["step"],
            attempt=row["attempt"],
            loss=row["loss"],
            z_loss=row.get("z_loss"),
            loss_by_source=row["loss_by_source"],
            tokens_by_source=row["tokens_by_source"],
            gradient_norm=row["grad_norm"],
            lr=row["lr"],
            pipeline_idle_share=row.get("pipeline_idle_share"),
            context_imbalance=row.get("context_imbalance"),
            experts=ExpertLoad(**row["experts"]) if "experts" in row else None,
            skipped=row.get("reason"),
            first_sequence=first,
            last_sequence=last,
            seconds=row["seconds"],
            tokens_per_second=row["tokens_per_second"],
            mfu=row["mfu"],
            phases=row["phases"],
            data_wait_seconds=row["data_wait_seconds"],
            own=row["own"],
            waiting=row["waiting"],
            ranks={phase: OverRanks.from_json(times) for phase, times in row.get("ranks", {}).items()},
            own_ranks={
                phase: OverRanks.from_json(times) for phase, times in row.get("own_ranks", {}).items()
            },
            stragglers=tuple(_straggler(each) for each in row.get("stragglers", ())),
            loading=LoadFigures(**row["loading"]) if "loading" in row else None,
            checkpoint_age_seconds=row["checkpoint_age_seconds"],
            validation_loss=row.get("validation_loss", {}),
            gradient_norm_by_layer=row.get("grad_norm_by_layer", {}),
            max_memory_bytes=row.get("max_memory_bytes", 0),
            at=row.get("at"),
            evaluation_seconds=row.get("evaluation_seconds", 0.0),
            evaluations=tuple(EvaluationResult.from_json(result) for result in row.get("evaluations", ())),
            goodput=row.get("goodput", {}),
            health=tuple(Symptom(**symptom) for symptom in row.get("health", ())),
        )


def straggler_row(straggler: Straggler) -> dict[str, object]:
    """A straggler as plain values, with its factor; one that is not finite is null."""
    return dataclasses.asdict(straggler) | {"factor": finite(straggler.factor)}


def _straggler(row: Mapping[str, Any]) -> Straggler:
    return Straggler(**{name: value for name, value in row.items() if name != "factor"})


class Sink(Protocol):
    """Where reports go. Rank 0 owns them all."""

    def write(self, report: StepReport) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...
