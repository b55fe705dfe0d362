"""`sluice plan --measure`: how fast this device runs the model's own kernels, for later plans to read."""

from __future__ import annotations

import datetime
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainer.model.config.description import ModelConfig
from trainer.model.config.families import TRAINED_KINDS
from trainer.model.rows import DeviceRows
from trainer.optim.optimizer import Optimizer
from trainer.options import TrainRecipe
from trainer.parallel.layout import parallel_layout
from trainer.parallel.mesh import parallelise_model
from trainer.parallel.weights import initialise
from trainer.planning.layout import PlannedLayout, planned_layout
from trainer.planning.plan import finished_corpus, planned_model
from trainer.planning.products import model_products
from trainer.recipe_tables.optimizer import MuonTable
from trainer.recipe_tables.parallelism import Mesh, OverlapTable, PipelineTable
from trainer.recovery.faults import SpikeWindow
from trainer.run.step import StepContext, train_step
from trainer.telemetry.timing import PhaseClock, StepTiming

SECONDS: Final = 0.2
"""How long each kernel is repeated; its time is the median."""
IN_FLIGHT: Final = 10
"""Calls that a GPU is asked for before it is waited for: as in a run of steps, what the host takes to ask for
them is hidden behind those before."""
_MESSAGES: Final = (2**12, 2**24)
"""Bytes of the collectives that are timed: of the small one latency remains, of the large one the rate."""


class _TimedProduct(NamedTuple):
    """A product of matrices: rows, inputs and outputs, and what it took."""

    name: str
    shape: tuple[int, int, int]
    seconds: float
    flops_per_second: float


def measure(recipe: TrainRecipe) -> dict[str, object]:
    """The device's memory, rates of a copy and of a collective over two processes, and seconds of the
    recipe's products, of a layer of each kind, of embedding, head and loss, and of an update. RecipeError as
    `plan_training`."""
    config, _ = planned_model(recipe.train, finished_corpus(recipe.train))
    layout = planned_layout(recipe.train, config)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.set_num_threads(max(1, int(recipe.train.resources.cpus)))  # as `sluice train` gives a process
    dtype = torch.bfloat16 if layout.compute_bytes == 2 and cuda else torch.float32
    products, numbers = list(_products(layout, device, dtype)), torch.zeros(2**24, device=device)
    found = {
        "device": torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} threads",
        "memory_bytes": torch.cuda.get_device_properties(device).total_memory
        if cuda
        else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "peak_flops": max(product.flops_per_second for product in products),
        "copy_bytes_per_second": 2 * numbers.nbytes / _seconds(numbers.clone, device),
        "products": [product._asdict() for product in products],
        "link": None if cuda else _link(),
    }
    if config.family in TRAINED_KINDS:
        found |= _whole_layers(layout, recipe, device)
    return found


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of a call, the median. The first calls, which fill caches, do not count."""
    taken: list[float] = []
    began = time.perf_counter()
    while (start := time.perf_counter()) - began < SECONDS or len(taken) < 5:
        num = IN_FLIGHT if device.type == "cuda" and taken else 1
        for _ in range(num):
            run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append((time.perf_counter() - start) / num)
    return statistics.median(taken[2:])


def _products(layout: PlannedLayout, device: torch.device, dtype: torch.dtype) -> Iterator[_TimedProduct]:
    for product in model_products(layout):
        rows = max(1, round(layout.mean_tokens * product.rows))
        left = torch.randn(rows, product.inputs, device=device, dtype=dtype)
        right = torch.randn(product.outputs, product.inputs, device=device, dtype=dtype)
        seconds = _seconds(lambda left=left, right=right: F.linear(left, right), device)  # type: ignore[misc]
        flops = 2.0 * rows * product.inputs * product.outputs
        yield _TimedProduct(product.name, (rows, product.inputs, product.outputs), seconds, flops / seconds)


_DEPTHS: Final = (1, 3)
"""Layers of the models that are timed: what a layer takes is what one has more than the other."""


def _whole_layers(layout: PlannedLayout, recipe: TrainRecipe, device: torch.device) -> dict[str, object]:
    """Forward and backward of a layer of each kind, and of all that is not in layers; the rest of a step, clipping
    and the optimizer's pass above all, of both, as if nothing were sharded. All as one rank of the layout does it: on
    small models what wraps the products takes as long as they do."""
    mesh = layout.mesh
    # What wraps two shards or replicas wraps any number of them; experts need as many ranks as share them.
    num_shards = max(min(2, mesh.dp_shard), mesh.ep // math.gcd(mesh.ep, mesh.tp * mesh.cp))
    mesh = replace(mesh, dp_replicate=min(2, mesh.dp_replicate), dp_shard=num_shards, pp=1)
    # A group whose collectives copy this rank's own part and wait for nobody: a plan adds what they take.
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=mesh.num_workers)
    try:
        timed = [
            [
                _step_parts(
                    layout, mesh, recipe, device, replace(kind.alone(layout.config), num_layers=depth)
                )
                for depth in _DEPTHS
            ]
            for kind in layout.kernels.kinds()
        ]
    finally:
        dist.destroy_process_group()
    num_shards, layers = replace(layout, mesh=mesh).shards.split, []
    for kind, (shallow, deep) in zip(layout.kernels.kinds(), timed, strict=True):
        pairs = zip(shallow, deep, strict=True)
        *passes, update = (max(0.0, more - less) / (_DEPTHS[1] - _DEPTHS[0]) for less, more in pairs)
        layers.append({"of": layout.kernels.described(kind), "seconds": [*passes, num_shards * update]})
        rest = [
            max(0.0, whole - _DEPTHS[0] * part)
            for whole, part in zip(shallow, (*passes, update), strict=True)
        ]
    return {"layers": layers, "ends": rest[:2], "update": num_shards * rest[2]}


@dataclass(frozen=True, slots=True, kw_only=True)
class _SameRows:
    """The same micro-batch in every step, which is always there."""

    rows: DeviceRows
    global_batch: int
    num_sources: int = 1

    def micro_batches(self, step: int) -> Sequence[DeviceRows]:
        return (self.rows,)


def _step_parts(
    layout: PlannedLayout, mesh: Mesh, recipe: TrainRecipe, device: torch.device, config: ModelConfig
) -> tuple[float, float, float]:
    """Median seconds of forward, of backward and of the rest of a step of a model."""
    table, plain = recipe.train, parallel_layout(recipe.train, device)
    plain = replace(plain, mesh=mesh, pipeline=PipelineTable(), recompute="none")
    plain = replace(plain, overlap=OverlapTable())  # a plan reckons what of sending is hidden
    model = parallelise_model(config, plain, device, datetime.timedelta(seconds=60))
    initialise(model, 0)
    # Its reducer wants futures, which collectives of that group do not give.
    if isinstance(model.parts[0], DistributedDataParallel):
        model.parts[0].register_comm_hook(None, noop_hook)
    num_rows = max(1, round(layout.mean_tokens * mesh.cp / layout.seq_len))
    # A plan reckons what Muon's matrices take more, for any number of owners.
    asked = replace(table.optimizer, name="adamw", muon=MuonTable())
    tokens_BT = torch.randint(config.vocab_size, (num_rows, layout.seq_len), device=device)
    context = StepContext(
        model=model,
        batches=_SameRows(rows=DeviceRows.of_one_document(tokens_BT), global_batch=num_rows * mesh.dp),
        optimizer=Optimizer(model.parameters(), asked, model.groups.stage, model.config.latent),
        table=asked,
        steps=table.steps,
        spikes=SpikeWindow(table.faults.spike_window, table.faults.spike_sigma, device),
        clock=PhaseClock(device),
    )
    timings: list[StepTiming] = []
    began = time.perf_counter()
    while len(timings) < 7 or time.perf_counter() - began < 5 * SECONDS:
        timings.append(train_step(context, 0, lambda step, outcome: None)[1])
    # The first steps, which fill caches, do not count.
    steps = [timing.seconds() for timing in timings[2:]]
    ahead = statistics.median(step["forward"] + step["loss"] for step in steps)
    back = statistics.median(step["backward"] for step in steps)
    return ahead, back, max(0.0, statistics.median(sum(step.values()) for step in steps) - ahead - back)


def _link() -> dict[str, float]:
    """Gigabits a second, and microseconds of a hop, of all-gathers between two processes of this machine."""
    results: Any = torch.multiprocessing.get_context("spawn").SimpleQueue()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    torch.multiprocessing.spawn(_gather, (store.port, results), nprocs=2)  # type: ignore[attr-defined,no-untyped-call]
    small, large = results.get()
    return {"gbps": 8e-9 * _MESSAGES[1] / max(large - small, 1e-9), "hop_us": 1e6 * small}


def _gather(rank: int, port: int, results: Any) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    taken, work = [], torch.randn(384, 384)
    for size in _MESSAGES:
        mine, both, times = torch.zeros(size // 4), torch.zeros(size // 2), []
        for _ in range(40):
            _ = work @ work  # steps compute in between, and threads that waited longer wake up later
            start = time.perf_counter()
            dist.all_gather([*both.chunk(2)], mine)
            times.append(time.perf_counter() - start)
        taken.append(statistics.median(times[2:]))
    results.put(taken)
    dist.destroy_process_group()
