"""The plan's memory beside what torch's allocator counts while the trainer's own step runs on a CPU."""

from __future__ import annotations

import datetime
import gc
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

from tests.support.forked import run_forked
from trainer.feed.feed import DeviceRows
from trainer.model.optimizer import build_optimizer
from trainer.model.sizes import ModelConfig
from trainer.options import Mesh, OptimizerTable
from trainer.parallel.mesh import ParallelLayout, initialise, parallelise_model
from trainer.planning.layout import PlannedLayout, Recompute, Zero
from trainer.planning.memory import memory
from trainer.planning.shape import Shape
from trainer.processes.runtime import Process
from trainer.recovery.faults import SpikeWindow
from trainer.step import StepContext, train_step
from trainer.telemetry.timing import PhaseClock

CONFIG = ModelConfig(
    num_layers=6, width=256, num_heads=8, num_kv_heads=4, head_dim=32, hidden=768, vocab_size=2048, tied=False
)
ROWS, LENGTH, PARTS = 4, 128, 2


class MadeUpRows:
    """Two micro-batches of rows, each one document."""

    num_sources = 1

    def micro_batches(self, step: int) -> list[DeviceRows]:
        tokens_BT = torch.full((ROWS, LENGTH), 7)
        rows = DeviceRows(
            inputs_BT=tokens_BT,
            labels_BT=tokens_BT,
            positions_BT=torch.arange(LENGTH, dtype=torch.int32).expand(ROWS, -1),
            documents_BT=torch.zeros(ROWS, LENGTH, dtype=torch.int32),
            sources_B=torch.zeros(ROWS, dtype=torch.int64),
        )
        return [rows] * PARTS


def peak_of_a_step(layout: ParallelLayout, process: Process) -> int:
    """The most bytes that torch's CPU allocator has given out at once, from before the model on, in three steps."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        model = parallelise_model(CONFIG, layout, process.device, datetime.timedelta(seconds=60))
        initialise(model, 0)
        table = OptimizerTable(warmup_steps=0)
        context = StepContext(
            model=model,
            batches=MadeUpRows(),
            optimizer=build_optimizer(model.module.parameters(), table),
            table=table,
            steps=3,
            spikes=SpikeWindow(128, 6.0, model.device),
            clock=PhaseClock(model.device),
        )
        for step in range(3):
            train_step(context, step, lambda step, outcome: None)
    results: Any = profiler.profiler.kineto_results  # type: ignore[union-attr]
    waiting, peak = list(results.experimental_event_tree()), 0
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.tag == _EventType.Allocation:
            peak = max(peak, event.extra_fields.total_allocated)
    return peak


def planned(mesh: Mesh, zero: Zero, recompute: Recompute) -> float:
    """The plan's bytes in float32, and those of two kernels that a CPU has not: an unfused norm keeps its input scaled
    too, and attention its mask in float32."""
    layout = PlannedLayout(
        shape=Shape(config=CONFIG), mesh=mesh, zero=zero, recompute=recompute, compute_bytes=4, weight_bytes=4,
        seq_len=LENGTH, global_batch=ROWS * PARTS * mesh.dp, micro_batch=ROWS, num_micro_batches=PARTS,
    )  # fmt: skip
    a_layer = 4 * ROWS * LENGTH * (2 * CONFIG.width / mesh.tp + LENGTH)
    num_layers = {"none": CONFIG.num_layers, "selective": 1, "full": 1}[recompute]
    return memory(layout).total + num_layers * a_layer


def mesh(**sizes: int) -> Mesh:
    return Mesh(**{"dp_replicate": 1, "dp_shard": 1, "tp": 1, "pp": 1, "cp": 1, "ep": 1} | sizes)


LAYOUTS: dict[str, tuple[Mesh, Zero, Recompute]] = {
    "one process": (mesh(), 3, "none"),
    "ddp 2": (mesh(dp_replicate=2), 0, "none"),
    "zero 3 over 2": (mesh(dp_shard=2), 3, "none"),
    "zero 3 over 4": (mesh(dp_shard=4), 3, "none"),
    "zero 2 over 4": (mesh(dp_shard=4), 2, "none"),
    "two replicas of 2": (mesh(dp_replicate=2, dp_shard=2), 3, "none"),
    "tensor parallel 2": (mesh(tp=2), 3, "none"),
    "zero 3 over 2, tensor parallel 2": (mesh(dp_shard=2, tp=2), 3, "none"),
    "zero 3 over 2, some recomputed": (mesh(dp_shard=2), 3, "selective"),
    "zero 3 over 2, all recomputed": (mesh(dp_shard=2), 3, "full"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_step_takes_the_memory_that_is_planned(name: str, tmp_path: Path) -> None:
    sizes, zero, recompute = LAYOUTS[name]
    layout = ParallelLayout(mesh=sizes, zero=zero, recompute=recompute)
    measured = max(run_forked(tmp_path, sizes.num_workers, partial(peak_of_a_step, layout)))
    print(f"{name}: planned {planned(sizes, zero, recompute) / 2**20:.2f} MiB, measured {measured / 2**20:.2f} MiB")
    assert planned(sizes, zero, recompute) == pytest.approx(measured, rel=0.1)
