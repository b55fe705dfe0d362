"""What training on a layout really allocates, on CPU processes, beside what the plan of that layout says.

torch's CPU allocator reports every block that it gives or takes back to torch.profiler while that runs with
`profile_memory`; it runs here from before the model is made until a second step is done, so the running sum
is all that the training thread holds, and its largest value the peak. What gloo's own threads copy is not in
it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

from lineage.storage.folder import Folder
from tests.support.processes.forked import run_forked
from tests.support.training.layouts import SEED, context_of, dataset, slice_over
from trainer.data.blocks import LocalBlocks
from trainer.feed.feed import Feed, FeedOptions, FeedSource
from trainer.model.config.description import ModelConfig
from trainer.parallel.layout import ParallelLayout
from trainer.parallel.mesh import parallelise_model
from trainer.parallel.weights import initialise, settle_buckets
from trainer.planning import memory as memory_module
from trainer.planning.layout import PlannedLayout, micro_batches
from trainer.planning.memory import Memory, layer_activations
from trainer.processes.runtime import Process
from trainer.run.step import train_step


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinBatch:
    """Sequences of a twin's step."""

    seq_len: int = 256
    global_batch: int = 8
    micro_batch: int = 2


def twin_plan(layout: ParallelLayout, config: ModelConfig, batch: TwinBatch) -> PlannedLayout:
    """The plan's view of a layout."""
    num_rows = -(-batch.global_batch // layout.mesh.dp)
    micro_batch = min(batch.micro_batch, num_rows)
    return PlannedLayout(
        config=config,
        mesh=layout.mesh,
        pipeline=layout.pipeline,
        context=layout.context,
        zero=layout.zero,
        recompute=layout.recompute,
        compute_bytes=layout.dtype.itemsize,
        weight_bytes=layout.weight_dtype.itemsize,
        seq_len=batch.seq_len,
        global_batch=batch.global_batch,
        micro_batch=micro_batch,
        num_micro_batches=micro_batches(layout.pipeline, layout.mesh.pp, -(-num_rows // micro_batch)),
    )


def planned_peak(layout: ParallelLayout, config: ModelConfig, batch: TwinBatch) -> Memory:
    """What the plan says of a layout, with what a CPU keeps more than a GPU."""
    with patch.object(memory_module, "layer_activations", on_a_cpu):
        return memory_module.memory(twin_plan(layout, config, batch))


def on_a_cpu(layout: PlannedLayout, *, sparse: bool = False) -> float:
    """A layer's activations where norms are not fused, which keeps their inputs scaled too, and attention
    keeps its mask in float32 for each layer: the only ways in which a CPU keeps more than a GPU. Where scores are
    capped or have sinks, and in a ring, it keeps no mask. In windows, whose outputs are joined, it keeps these
    twice; with sinks once, where a GPU keeps the output with and without them."""
    config = layout.config
    norms = (4 if config.norms == "both" else 2) * config.width / layout.mesh.tp
    if config.query_key_norm == "head":
        norms += config.head_dim * (config.num_heads + config.num_kv_heads)
    kept = 0.0
    if config.score_cap is None and not config.sinks:
        seen = layout.seq_len if layout.mesh.cp == 1 or layout.context.method == "gather" else 0
        joined = config.num_heads * config.value_dim
        kinds = [
            2 * window + joined if window and 2 * window < seen else float(seen) for window in config.windows
        ]
        kept = sum(kinds) / len(kinds)
    elif config.sinks:
        kept = -float(config.num_heads * config.value_dim)
    return layer_activations(layout, sparse=sparse) + layout.weight_bytes * layout.tokens * (norms + kept)


def peaks(folder: Path, url: str, layout: ParallelLayout, config: ModelConfig, batch: TwinBatch) -> list[int]:
    """The most bytes that each rank held at once."""
    return run_forked(folder, layout.mesh.num_workers, partial(_peak, url, layout, config, batch))


def _peak(url: str, layout: ParallelLayout, config: ModelConfig, batch: TwinBatch, process: Process) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        model = parallelise_model(config, layout, process.device, datetime.timedelta(seconds=60))
        initialise(model, SEED)
        part = slice_over(layout, process)
        data = dataset(url, part, seq_len=batch.seq_len, global_batch=batch.global_batch)
        options = FeedOptions(
            run="twin",
            output=Folder(url),
            device=process.device,
            micro_batch=batch.micro_batch,
            fill_up=partial(layout.pipeline.fill_up, pp=layout.mesh.pp) if layout.mesh.pp > 1 else None,
        )
        feed = Feed(FeedSource(dataset=data, open_reader=lambda _: LocalBlocks()), options)
        context = context_of(model, feed)
        settle_buckets(model, feed.num_rows, batch.seq_len)
        # The optimizer makes its moments in the first.
        for step in range(2):
            train_step(context, step, lambda step, outcome: None)
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    return _most(_allocations(profiler.profiler.kineto_results.experimental_event_tree()))


def _allocations(roots: Sequence[Any]) -> list[tuple[int, int, int]]:
    """Time, address and change of each block that was taken or given back."""
    found, waiting = [], list(roots)
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.tag == _EventType.Allocation:
            found.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size))
    return sorted(found)


def _most(changes: Sequence[tuple[int, int, int]]) -> int:
    live: dict[int, int] = {}
    held = most = 0
    for _, address, change in changes:
        # A block whose last reference one of gloo's threads let go has been given back unseen.
        held -= live.pop(address, 0)
        if change > 0:
            live[address] = change
            held += change
            most = max(most, held)
    return most
