"""A report as gauges: names, labels and values, as Ray exports them to Prometheus (behind
`ray_sluice_train_`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from trainer.data.figures import LoadFigures
from trainer.evaluation.result import named_scores
from trainer.telemetry.step_report import ExpertLoad, OverRanks, StepReport

_LOADING: Final = tuple(each.name for each in dataclasses.fields(LoadFigures))
_EXPERTS: Final = tuple(each.name for each in dataclasses.fields(ExpertLoad))

GAUGES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "step": ("the last step's number", ()),
    "loss": ("loss of the last step, nats a token", ()),
    "z_loss": ("what train.z_loss adds to the loss of the last step, nats a token", ()),
    "source_loss": ("loss of the last step by source", ("source",)),
    "source_tokens": ("counted labels of the last step by source", ("source",)),
    "validation_loss": ("loss on held-out sequences by source", ("source",)),
    "evaluation": (
        "score of an evaluation (train.eval), on all items or on those that were not read: bits per byte, accuracy",
        ("score",),
    ),
    "gradient_norm": ("gradient norm before clipping", ()),
    "lr": ("learning rate", ()),
    "tokens_per_second": ("of all ranks together", ()),
    "mfu": ("model FLOPs utilisation", ()),
    "seconds": ("of the last step", ()),
    "phase_seconds": ("of the last step by phase, on rank 0", ("phase",)),
    "own_seconds": ("of the last step by phase, rank 0's own work", ("phase",)),
    "waiting_seconds": (
        "of the last step by phase, what rank 0 spent in collectives and messages",
        ("phase",),
    ),
    "rank_own_seconds": ("own work: least, mean and most over ranks, by phase", ("phase", "over")),
    "straggler_factor": (
        "how many times as long as others at the same work a rank takes for its own work; 1: not any more",
        ("rank", "node", "phase"),
    ),
    "rank_seconds": ("least, mean and most over ranks, by phase", ("phase", "over")),
    "slowest_rank": ("the rank that took longest, by phase", ("phase",)),
    "data_wait_seconds": ("how long the last step waited for data", ()),
    "data_wait_share": ("share of the last step that waited for data", ()),
    "pipeline_idle_share": ("share of rank 0's pipeline in which none of its stages computes", ()),
    "context_imbalance": ("attention's work on the fullest context parallel rank over the mean", ()),
    **{
        f"expert_{name}": (f"of the last step's experts, over all layers and ranks: {name}", ())
        for name in _EXPERTS
    },
    "goodput_seconds": ("of each part of the run's wall time, all attempts together", ("part",)),
    "goodput_share": ("share of the run's wall time that was useful steps, all attempts together", ()),
    "health_symptoms": ("signs, slow devices and odd replicas found since the report before", ()),
    "skipped": ("batches skipped since the start", ()),
    "checkpoint_age_seconds": ("since a checkpoint was published, or since the start", ()),
    "max_memory_bytes": ("most GPU memory allocated on rank 0", ()),
    **{name: (f"loading of all ranks since the start: {name}", ()) for name in _LOADING},
}
"""Description and labels of each; all also carry `run`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """What a gauge is set to."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def values(report: StepReport) -> Iterator[Value]:
    """What is known after a step; what is not finite is left as it was."""
    for value in _values(report):
        if math.isfinite(value.value):
            yield value


def _values(report: StepReport) -> Iterator[Value]:
    for name in (
        "step",
        "loss",
        "z_loss",
        "gradient_norm",
        "lr",
        "tokens_per_second",
        "mfu",
        "seconds",
        "data_wait_seconds",
        "data_wait_share",
        "pipeline_idle_share",
        "context_imbalance",
        "checkpoint_age_seconds",
        "max_memory_bytes",
    ):
        value = getattr(report, name)
        if value is not None:
            yield Value(name=name, value=float(value))
    for source, loss in report.loss_by_source.items():
        yield Value(name="source_loss", value=loss, labels={"source": source})
    for source, num_tokens in report.tokens_by_source.items():
        yield Value(name="source_tokens", value=float(num_tokens), labels={"source": source})
    for source, loss in report.validation_loss.items():
        yield Value(name="validation_loss", value=loss, labels={"source": source})
    for score, found in named_scores(report.evaluations):
        yield Value(name="evaluation", value=found, labels={"score": score})
    for phase, seconds in report.phases.items():
        yield Value(name="phase_seconds", value=seconds, labels={"phase": phase})
    for phase, seconds in report.own.items():
        yield Value(name="own_seconds", value=seconds, labels={"phase": phase})
    for phase, seconds in report.waiting.items():
        yield Value(name="waiting_seconds", value=seconds, labels={"phase": phase})
    for phase, times in report.own_ranks.items():
        for over, seconds in _over(times):
            yield Value(name="rank_own_seconds", value=seconds, labels={"phase": phase, "over": over})
    for each in report.stragglers:
        labels = {"rank": str(each.rank), "node": each.node, "phase": each.phase}
        yield Value(name="straggler_factor", value=each.factor, labels=labels)
    for phase, times in report.ranks.items():
        yield Value(name="slowest_rank", value=float(times.slowest_rank), labels={"phase": phase})
        for over, seconds in _over(times):
            yield Value(name="rank_seconds", value=seconds, labels={"phase": phase, "over": over})
    yield Value(name="health_symptoms", value=float(len(report.health)))
    for part, seconds in report.goodput.items():
        yield Value(name="goodput_seconds", value=seconds, labels={"part": part})
    if (wall := sum(report.goodput.values())) > 0:
        yield Value(name="goodput_share", value=report.goodput["steps"] / wall)
    if report.loading is not None:
        for name in _LOADING:
            yield Value(name=name, value=float(getattr(report.loading, name)))
    for name in _EXPERTS if report.experts is not None else ():
        if (figure := getattr(report.experts, name)) is not None:
            yield Value(name=f"expert_{name}", value=figure)


def _over(times: OverRanks) -> tuple[tuple[str, float], ...]:
    return ("min", times.least), ("mean", times.mean), ("max", times.most)
