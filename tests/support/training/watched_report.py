"""A report that has every figure, given to Ray's metrics as a training worker gives them; for a Prometheus that
asks for them.

    python -m tests.support.training.watched_report HOST:PORT

It tells them until its input ends."""

from __future__ import annotations

import dataclasses
import sys
import time

import ray

from trainer.data.figures import LoadFigures
from trainer.evaluation.result import EvaluationResult, SeenItem
from trainer.evaluation.scores import TaskScore
from trainer.launch import RayMetrics
from trainer.telemetry.goodput import PARTS
from trainer.telemetry.phases import PHASES
from trainer.telemetry.step_report import ExpertLoad, OverRanks, StepReport
from trainer.telemetry.stragglers import Straggler
from trainer.telemetry.symptoms import Symptom

RUN = "watched"


def report() -> StepReport:
    """Each figure another number."""
    ranks = {
        phase: OverRanks(least=0.1 + place, mean=0.2 + place, most=0.4 + place, slowest_rank=2)
        for place, phase in enumerate(PHASES)
    }
    own = {phase: dataclasses.replace(times, most=times.most + 0.1) for phase, times in ranks.items()}
    slow = Straggler(rank=2, node="n7", phase="forward", seconds=0.75, usual=0.5, since_step=20)
    numbers = iter(range(50, 1000))
    return StepReport(
        step=40,
        attempt=1,
        loss=2.5,
        loss_by_source={"web": 2.25},
        tokens_by_source={"web": 700},
        gradient_norm=1.5,
        lr=0.003,
        pipeline_idle_share=0.125,
        context_imbalance=1.25,
        experts=ExpertLoad(**{one.name: float(next(numbers)) for one in dataclasses.fields(ExpertLoad)}),
        seconds=7.5,
        tokens_per_second=1000.0,
        mfu=0.4,
        phases={phase: 1.0 + place for place, phase in enumerate(PHASES)},
        data_wait_seconds=0.5,
        own={phase: 0.75 + place for place, phase in enumerate(PHASES)},
        waiting={phase: 0.25 + place for place, phase in enumerate(PHASES)},
        ranks=ranks,
        own_ranks=own,
        stragglers=(slow,),
        loading=LoadFigures(**{one.name: next(numbers) for one in dataclasses.fields(LoadFigures)}),
        checkpoint_age_seconds=33.0,
        validation_loss={"web": 2.75},
        evaluations=(
            EvaluationResult(
                name="arc",
                step=41,
                num_items=10,
                bits_per_byte=0.875,
                accuracy=0.5,
                accuracy_norm=0.25,
                clean=TaskScore(num_items=9, bits_per_byte=0.75, accuracy=0.375, accuracy_norm=0.125),
                seen=(SeenItem(item=3, first_step=7, readings=2),),
                num_too_short=0,
                last_clean_checkpoint=0,
                unknown=(),
            ),
        ),
        max_memory_bytes=1 << 30,
        goodput={part: 10.0 + place for place, part in enumerate(PARTS)},
        health=(Symptom(rank=1, kind="sign", text="1 uncorrected memory error of mc0"),),
    )


def _tell() -> None:
    RayMetrics(RUN).write(report())
    while True:
        time.sleep(1)


if __name__ == "__main__":
    ray.init(address=sys.argv[1], log_to_driver=False)
    telling = ray.remote(_tell).options(num_cpus=0).remote()
    sys.stdin.read()
