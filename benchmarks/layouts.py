"""A training step in every layout beside a plain loop over the same sequences, on CPU processes: no layout is
absurd.

The plain loop is one process without a wrapper: model, cross entropy, backward, clipping, AdamW. Each side
takes the same global batch in micro-batches of one sequence, one thread a process. All sides run once in each
round, in turn, and a side's figure is its median over the rounds.

    speed               tokens a second over those of the plain loop: 2 at most with two processors
    processor           processor time of all processes over the plain loop's: 1 in a perfect layout
    planned, allocated  MB of the fullest rank: as `sluice plan` reckons, and the most that torch's allocator had given
                        out in the first two steps of a run of its own (as in test_memory_allocated.py)
    bubble, idle        of a pipeline: what its action table leaves idle where every pass takes as long, and the share
                        that a run reports (`pipeline_idle_share`); the same only if each process has a processor

    python -m benchmarks.layouts [--rounds 3] [--steps 8] [--only NAME …]
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

from lineage.storage.folder import Folder
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.processes.forked import run_forked
from tests.support.training.allocated import TwinBatch, peaks, planned_peak, twin_plan
from tests.support.training.layouts import SEED, TABLE, context_of, dataset, mesh, slice_over
from trainer.data.blocks import LocalBlocks
from trainer.data.dataset import IGNORED, Slice
from trainer.feed.feed import Feed, FeedOptions, FeedSource
from trainer.model.attention import document_masks
from trainer.model.config.description import Experts, ModelConfig
from trainer.model.experts import Routing
from trainer.model.rows import DeviceRows
from trainer.model.transformer import CausalLM, initial_weight
from trainer.parallel.layout import ParallelLayout
from trainer.parallel.mesh import parallelise_model
from trainer.parallel.weights import initialise
from trainer.planning.layout import PlannedLayout
from trainer.planning.schedules import PassTimes, PipelinePlan, span
from trainer.processes.runtime import Process
from trainer.recipe_tables.parallelism import ContextTable, PipelineTable, Schedule
from trainer.run.step import train_step

WARM_UP = 1
BATCH = TwinBatch(seq_len=256, global_batch=8, micro_batch=1)
DENSE = ModelConfig(
    num_layers=8, width=256, num_heads=8, num_kv_heads=4, head_dim=32, hidden=768, vocab_size=2048, tied=False
)
SPARSE = dataclasses.replace(DENSE, hidden=256, experts=Experts(num_experts=8, top_k=2, hidden=256))
PLAIN = {"dense": DENSE, "sparse": SPARSE}


def staged(schedule: Schedule, **sizes: int) -> ParallelLayout:
    return ParallelLayout(mesh=mesh(**sizes), pipeline=PipelineTable(schedule=schedule))


LAYOUTS: dict[str, tuple[str, ParallelLayout]] = {
    "one process": ("dense", ParallelLayout(mesh=mesh())),
    "ddp 2": ("dense", ParallelLayout(mesh=mesh(dp_replicate=2), zero=0)),
    "zero 1 over 2": ("dense", ParallelLayout(mesh=mesh(dp_shard=2), zero=1)),
    "zero 2 over 2": ("dense", ParallelLayout(mesh=mesh(dp_shard=2), zero=2)),
    "zero 3 over 2": ("dense", ParallelLayout(mesh=mesh(dp_shard=2))),
    "zero 3 over 4": ("dense", ParallelLayout(mesh=mesh(dp_shard=4))),
    "hsdp 2 x 2": ("dense", ParallelLayout(mesh=mesh(dp_replicate=2, dp_shard=2))),
    "tp 2": ("dense", ParallelLayout(mesh=mesh(tp=2))),
    "cp 2, gathered": ("dense", ParallelLayout(mesh=mesh(cp=2))),
    "cp 2, ring": ("dense", ParallelLayout(mesh=mesh(cp=2), context=ContextTable(method="ring"))),
    **{
        f"pp 2, {schedule}": ("dense", staged(schedule, pp=2))
        for schedule in ("gpipe", "1f1b", "interleaved", "interleaved_zero_bubble", "zbv", "dualpipev")
    },
    "pp 4, 1f1b": ("dense", staged("1f1b", pp=4)),
    "pp 2 x dp_shard 2 x tp 2": ("dense", staged("1f1b", pp=2, dp_shard=2, tp=2)),
    "experts in one process": ("sparse", ParallelLayout(mesh=mesh())),
    "ep 2 of zero 3 over 2": ("sparse", ParallelLayout(mesh=mesh(dp_shard=2, ep=2))),
    "ep 2 of pp 2 x dp_shard 2": ("sparse", staged("1f1b", pp=2, dp_shard=2, ep=2)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Seconds of a rank's step: of the clock, and of its processor; and the idle share of its pipeline."""

    wall: float
    processor: float
    idle: float | None = None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--only", nargs="+", choices=LAYOUTS, default=list(LAYOUTS), metavar="NAME")
    options = parser.parse_args()
    chosen = {name: LAYOUTS[name] for name in options.only}
    with tempfile.TemporaryDirectory(prefix="sluice-layouts-") as scratch:
        url = make_corpus(f"{scratch}/out", {"web": [60_000]}).url
        sides: dict[str, tuple[int, Callable[[Process], StepCost]]] = {
            f"plain {kind}": (1, partial(plain_loop, url, PLAIN[kind], options.steps))
            for kind in dict.fromkeys(kind for kind, _ in chosen.values())
        }
        for name, (kind, layout) in chosen.items():
            sides[name] = (
                layout.mesh.num_workers,
                partial(our_step, url, layout, PLAIN[kind], options.steps),
            )
        found: dict[str, list[StepCost]] = {name: [] for name in sides}
        for _ in range(options.rounds):
            for name, (num_processes, work) in sides.items():
                found[name].append(whole(run_forked(Path(scratch) / "processes", num_processes, work)))
        costs = {name: medians(rounds) for name, rounds in found.items()}
        for name, cost in costs.items():
            told = {
                "milliseconds": round(cost.wall * 1e3, 1),
                "processor_milliseconds": round(cost.processor * 1e3, 1),
            }
            if name in chosen:
                kind, layout = chosen[name]
                plain = costs[f"plain {kind}"]
                told |= {
                    "speed": round(plain.wall / cost.wall, 2),
                    "processor": round(cost.processor / plain.processor, 2),
                }
                allocated = max(peaks(Path(scratch) / "processes", url, layout, PLAIN[kind], BATCH))
                told |= {
                    "planned": round(planned_peak(layout, PLAIN[kind], BATCH).total / 1e6, 1),
                    "allocated": round(allocated / 1e6, 1),
                }
                if cost.idle is not None:
                    told |= {
                        "bubble": bubble(twin_plan(layout, PLAIN[kind], BATCH)),
                        "idle": round(cost.idle, 2),
                    }
            print(json.dumps({name: told}), flush=True)


def whole(ranks: Sequence[StepCost]) -> StepCost:
    """A layout's cost, of its ranks'."""
    return StepCost(
        wall=max(rank.wall for rank in ranks),
        processor=sum(rank.processor for rank in ranks),
        idle=ranks[0].idle,
    )


def medians(rounds: Sequence[StepCost]) -> StepCost:
    idle = [cost.idle for cost in rounds if cost.idle is not None]
    return StepCost(
        wall=statistics.median(cost.wall for cost in rounds),
        processor=statistics.median(cost.processor for cost in rounds),
        idle=statistics.median(idle) if idle else None,
    )


def bubble(layout: PlannedLayout) -> float:
    """The share of a pipeline's time in which a rank has nothing to do, every pass of a stage taking as
    long."""
    mesh, pipeline = layout.mesh, layout.pipeline
    num_stages = mesh.pp * pipeline.num_virtual
    plan = PipelinePlan(pipeline.schedule, mesh.pp, pipeline.num_virtual, layout.num_micro_batches)
    seconds = span(plan, PassTimes(forward=1.0, input=1.0, weight=1.0), (1 / num_stages,) * num_stages)
    return round(1 - 3 * layout.num_micro_batches / mesh.pp / seconds, 2)


def our_step(url: str, layout: ParallelLayout, config: ModelConfig, steps: int, process: Process) -> StepCost:
    """A step of this rank."""
    model = parallelise_model(config, layout, process.device, datetime.timedelta(seconds=60))
    initialise(model, SEED)
    feed = feed_of(url, slice_over(layout, process), layout)
    context = dataclasses.replace(context_of(model, feed), nan_steps=frozenset(), steps=WARM_UP + steps)
    idle = []

    def step_of(step: int) -> None:
        _, timing = train_step(context, step, lambda step, outcome: None)
        if step >= WARM_UP and (share := timing.pipeline_idle_share()) is not None:
            idle.append(share)

    cost = timed(steps, step_of)
    return dataclasses.replace(cost, idle=statistics.median(idle) if idle else None)


def feed_of(url: str, part: Slice, layout: ParallelLayout | None) -> Feed:
    data = dataset(url, part, seq_len=BATCH.seq_len, global_batch=BATCH.global_batch)
    fill_up = None
    if layout is not None and layout.mesh.pp > 1:
        fill_up = partial(layout.pipeline.fill_up, pp=layout.mesh.pp)
    options = FeedOptions(
        run="layouts",
        output=Folder(url),
        device=torch.device("cpu"),
        micro_batch=BATCH.micro_batch,
        fill_up=fill_up,
    )
    return Feed(FeedSource(dataset=data, open_reader=lambda _: LocalBlocks()), options)


def plain_loop(url: str, config: ModelConfig, steps: int, process: Process) -> StepCost:
    """The same of a loop as a textbook has it, over the same micro-batches."""
    model = CausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial_weight(name, parameter.shape, config, SEED, parameter))
    optimizer = torch.optim.AdamW(model.parameters(), lr=TABLE.lr, betas=TABLE.betas, fused=True)
    feed = feed_of(url, Slice(), None)

    def step_of(step: int) -> None:
        batch = feed.micro_batches(step)
        num_counted = sum(int((rows.labels_BT != IGNORED).sum()) for rows in batch)
        for rows in batch:
            masks = document_masks(rows.documents_BT, config.windows, "dense")
            logits_BTV = model(
                rows.inputs_BT, rows.positions_BT, masks, routing_of(config, rows, num_counted)
            )
            loss = F.cross_entropy(
                logits_BTV.flatten(0, 1), rows.labels_BT.flatten(), ignore_index=IGNORED, reduction="sum"
            )
            (loss / num_counted).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), TABLE.clip)
        optimizer.step()
        optimizer.zero_grad()

    return timed(steps, step_of)


def routing_of(config: ModelConfig, rows: DeviceRows, num_counted: int) -> Routing | None:
    if config.experts is None:
        return None
    return Routing(
        places_BT=torch.arange(BATCH.seq_len).expand_as(rows.inputs_BT),
        counted_B=(rows.labels_BT != IGNORED).sum(-1),
        scale=torch.tensor(1 / num_counted),
        sequence=None,
    )


def timed(steps: int, step_of: Callable[[int], None]) -> StepCost:
    """The median of the steps' seconds, and the mean of the processor's."""
    for step in range(WARM_UP):
        step_of(step)
    walls, busy = [], time.process_time()
    for step in range(WARM_UP, WARM_UP + steps):
        dist.barrier()
        began = time.perf_counter()
        step_of(step)
        walls.append(time.perf_counter() - began)
    return StepCost(wall=statistics.median(walls), processor=(time.process_time() - busy) / steps)


if __name__ == "__main__":
    main()
