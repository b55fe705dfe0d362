"""The figures of a report as scalars, by the names that TensorBoard and the other trackers show."""

from __future__ import annotations

import dataclasses

from trainer.evaluation.result import named_scores
from trainer.telemetry.step_report import StepReport


def scalars(report: StepReport) -> dict[str, float]:
    """Those that are known; some may be infinite or no number."""
    found: dict[str, float | None] = {
        "loss/train": report.loss,
        "loss/z": report.z_loss,
        "optimizer/gradient_norm": report.gradient_norm,
        "optimizer/lr": report.lr,
        "speed/tokens_per_second": report.tokens_per_second,
        "speed/mfu": report.mfu,
        "speed/data_wait_share": report.data_wait_share,
        "speed/data_wait_seconds": report.data_wait_seconds,
        "parallel/pipeline_idle_share": report.pipeline_idle_share,
        "parallel/context_imbalance": report.context_imbalance,
        "memory/max_bytes": report.max_memory_bytes or None,
        "checkpoint/age_seconds": report.checkpoint_age_seconds,
        "faults/skipped": float(report.skipped is not None),
    }
    found |= {f"goodput/{name}": value for name, value in report.goodput.items()}
    found |= {f"loss/source/{name}": value for name, value in report.loss_by_source.items()}
    found |= {f"loss/validation/{name}": value for name, value in report.validation_loss.items()}
    found |= {f"evaluation/{name}": value for name, value in named_scores(report.evaluations)}
    found |= {f"tokens/source/{name}": count for name, count in report.tokens_by_source.items()}
    found |= {f"seconds/{name}": value for name, value in report.phases.items()}
    found |= {f"own_seconds/{name}": value for name, value in report.own.items()}
    found |= {f"waiting_seconds/{name}": value for name, value in report.waiting.items()}
    for name, times in report.ranks.items():
        found |= {f"ranks/{name}/slowest": times.most, f"ranks/{name}/mean": times.mean}
    for name, times in report.own_ranks.items():
        found |= {f"own_ranks/{name}/slowest": times.most, f"own_ranks/{name}/mean": times.mean}
    for each in report.stragglers:
        found[f"stragglers/rank {each.rank}/{each.phase}"] = each.factor
    if report.loading is not None:
        found |= {f"loading/{name}": value for name, value in dataclasses.asdict(report.loading).items()}
    if report.experts is not None:
        found |= {f"experts/{name}": value for name, value in dataclasses.asdict(report.experts).items()}
    return {name: value for name, value in found.items() if value is not None}
