"""`sluice plan --measure`: how fast this device runs the model's own kernels, as a file that later plans
read."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F

from trainer.model.optimizer import build_optimizer
from trainer.model.rows import DeviceRows
from trainer.options import TrainRecipe
from trainer.parallel.layout import parallel_layout
from trainer.parallel.mesh import initialise, parallelise_model
from trainer.planning.layout import PlannedLayout, planned_layout
from trainer.planning.plan import finished_corpus, planned_model
from trainer.planning.products import layer_products, output_product
from trainer.recipe_tables.parallelism import Mesh, PipelineTable

SECONDS: Final = 0.2
"""How long each kernel is repeated; its time is the median."""
_MESSAGES: Final = (2**12, 2**24)
"""Bytes of the collectives that are timed: of the small one latency remains, of the large one the rate."""


def measure(recipe: TrainRecipe) -> dict[str, Any]:
    """The device's memory, rates of a copy and of a collective over two processes, and seconds of the
    recipe's products, of one of its layers, of embedding, head and loss, and of an update. RecipeError as
    `plan_training`."""
    config, _ = planned_model(recipe.train, finished_corpus(recipe.train))
    layout = planned_layout(recipe.train, config)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    dtype = torch.bfloat16 if layout.compute_bytes == 2 and device.type == "cuda" else torch.float32
    products = list(_products(layout, device, dtype))
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"CPU, {torch.get_num_threads()} threads",
        "memory_bytes": _memory_bytes(device),
        "peak_flops": max(product["flops_per_second"] for product in products),
        "copy_bytes_per_second": _copy(device),
        "products": products,
        "link": _link() if device.type == "cpu" else None,
    }
    mesh, num_sparse = layout.mesh, config.num_sparse_layers
    if num_sparse in (0, config.num_layers) and mesh.tp == mesh.cp == mesh.ep == 1:
        with _alone():
            found |= _whole_layers(layout, recipe, device)
    return found


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    taken: list[float] = []
    began = time.perf_counter()
    while len(taken) < 5 or time.perf_counter() - began < SECONDS:
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[2:])


def _products(layout: PlannedLayout, device: torch.device, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    kinds = {
        False: layout.config.num_sparse_layers < layout.config.num_layers,
        True: layout.config.num_sparse_layers > 0,
    }
    of_layers = [layer_products(layout, sparse=sparse) for sparse, there in kinds.items() if there]
    for product in dict.fromkeys([*sum(of_layers, ()), output_product(layout)]):
        rows = max(1, round(layout.mean_tokens * product.rows))
        left = torch.randn(rows, product.inputs, device=device, dtype=dtype)
        right = torch.randn(product.outputs, product.inputs, device=device, dtype=dtype)
        seconds = _seconds(lambda left=left, right=right: F.linear(left, right), device)  # type: ignore[misc]
        flops = 2.0 * rows * product.inputs * product.outputs
        yield {
            "name": product.name,
            "shape": [rows, product.inputs, product.outputs],
            "seconds": seconds,
            "flops_per_second": flops / seconds,
        }


def _copy(device: torch.device) -> float:
    numbers = torch.zeros(2**24, device=device)
    return 2 * numbers.nbytes / _seconds(numbers.clone, device)


def _memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


_DEPTHS: Final = (1, 3)
"""Layers of the models that are timed: what a layer takes is what one has more than the other."""


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """A process group of this process, as every layout needs one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _whole_layers(layout: PlannedLayout, recipe: TrainRecipe, device: torch.device) -> dict[str, list[float]]:
    """Forward and backward of a layer, and of all that is not in layers; clipping and the optimizer's pass
    over a layer, and over the rest. All wrapped as training wraps it, in one process: on small models that
    takes as long as the products."""
    shallow, deep = (_step_parts(layout, recipe, device, depth) for depth in _DEPTHS)
    pairs = zip(shallow, deep, strict=True)
    of_layer = [max(0.0, more - less) / (_DEPTHS[1] - _DEPTHS[0]) for less, more in pairs]
    rest = [max(0.0, whole - _DEPTHS[0] * part) for whole, part in zip(shallow, of_layer, strict=True)]
    return {"layer": of_layer[:2], "ends": rest[:2], "update": [of_layer[2], rest[2]]}


def _step_parts(
    layout: PlannedLayout, recipe: TrainRecipe, device: torch.device, num_layers: int
) -> tuple[float, float, float]:
    """Seconds of forward and of backward of a micro-batch, and of an update, of a model with so many
    layers."""
    table = recipe.train
    alone = Mesh(dp_replicate=1, dp_shard=1, tp=1, pp=1, cp=1, ep=1)
    plain = dataclasses.replace(
        parallel_layout(table, device), mesh=alone, pipeline=PipelineTable(), recompute="none"
    )
    config = dataclasses.replace(layout.config, num_layers=num_layers)
    model = parallelise_model(config, plain, device, datetime.timedelta(seconds=60))
    initialise(model, table.seed)
    parameters = model.parameters().values()
    optimizer = build_optimizer(parameters, table.optimizer)
    num_rows = max(1, round(layout.mean_tokens / layout.seq_len))
    tokens_BT = torch.randint(config.vocab_size, (num_rows, layout.seq_len), device=device)
    places_BT = torch.arange(layout.seq_len, dtype=torch.int32, device=device).repeat(num_rows, 1)
    rows = DeviceRows(
        inputs_BT=tokens_BT,
        labels_BT=tokens_BT,
        positions_BT=places_BT,
        documents_BT=torch.zeros_like(places_BT),
        sources_B=torch.zeros_like(tokens_BT[:, 0]),
        rows_B=torch.arange(num_rows, device=device),
    )

    def forward() -> torch.Tensor:
        micro = model.micro_batch(rows, torch.ones((), dtype=torch.float64, device=device))
        logits = model.forward(micro).float().flatten(0, 1)
        losses_BT = F.cross_entropy(logits, tokens_BT.flatten(), reduction="none").view_as(tokens_BT)
        return losses_BT.sum()

    def backward() -> None:
        forward().backward()  # type: ignore[no-untyped-call]

    gradients: list[torch.Tensor] = []

    def update() -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        model.clip_gradients(table.optimizer.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    ahead, both = _seconds(forward, device), _seconds(backward, device)
    gradients += [cast(torch.Tensor, parameter.grad) for parameter in parameters]
    return ahead, max(0.0, both - ahead), _seconds(update, device)


def _link() -> dict[str, float]:
    """Gigabits a second, and microseconds of a hop, of an all-gather between two processes of this
    machine."""
    context = torch.multiprocessing.get_context("spawn")
    results: Any = context.SimpleQueue()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    processes = [context.Process(target=_gather, args=(rank, store.port, results)) for rank in range(2)]
    for process in processes:
        process.start()
    small, large = results.get()
    for process in processes:
        process.join()
    return {"gbps": 8e-9 * _MESSAGES[1] / max(large - small, 1e-9), "hop_us": 1e6 * small}


def _gather(rank: int, port: int, results: Any) -> None:
    store = dist.TCPStore("127.0.0.1", port, is_master=False)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    taken = []
    for size in _MESSAGES:
        mine = torch.zeros(size // 4)
        both = torch.zeros(size // 2)
        times = []
        for _ in range(12):
            start = time.perf_counter()
            dist.all_gather([*both.chunk(2)], mine)
            times.append(time.perf_counter() - start)
        taken.append(statistics.median(times[2:]))
    if rank == 0:
        results.put(taken)
    dist.destroy_process_group()
