"""`sluice plan --measure`: how fast this device runs the model's own kernels, as a file that later plans
read."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from trainer.model.attention import document_mask, kernel_for
from trainer.model.optimizer import build_optimizer, clip_gradients
from trainer.model.transformer import Layer, LayerSpan, Llama, rotary_turns
from trainer.options import TrainRecipe
from trainer.planning.layout import PlannedLayout, planned_layout
from trainer.planning.plan import finished_corpus, planned_model
from trainer.planning.products import layer_products, output_product
from trainer.recipe_tables.parallelism import ExpertsTable

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
    if config.experts is None and layout.mesh.tp == layout.mesh.cp == 1:
        found |= _whole_layers(layout, recipe, device, dtype)
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


def _whole_layers(
    layout: PlannedLayout, recipe: TrainRecipe, device: torch.device, dtype: torch.dtype
) -> dict[str, list[float]]:
    """Forward and backward of a layer, and of all that is not in layers; clipping and AdamW, a parameter."""
    config, rows = layout.config, max(1, round(layout.mean_tokens / layout.seq_len))
    positions = torch.arange(layout.seq_len, device=device).expand(rows, -1)
    mask = document_mask(torch.zeros_like(positions, dtype=torch.int32), kernel_for(device))
    layer = Layer(config, 0, ExpertsTable()).to(device, dtype)
    stream = torch.randn(rows, layout.seq_len, config.width, device=device, dtype=dtype, requires_grad=True)
    rotary = rotary_turns(positions, config, torch.float32)
    ends = Llama(config, LayerSpan(first=0, end=0)).to(device, dtype)
    tokens = torch.randint(config.vocab_size, (rows, layout.seq_len), device=device)

    def loss() -> torch.Tensor:
        logits = ends(tokens, positions, mask).float()
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())

    def update(model: nn.Module) -> float:
        optimizer = build_optimizer(model.parameters(), recipe.train.optimizer)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)

        def run() -> None:
            clip_gradients(model.parameters(), recipe.train.optimizer.clip)
            optimizer.step()

        return _seconds(run, device)

    return {
        "layer": _both(lambda: layer(stream, rotary, mask, None).sum(), device),
        "ends": _both(loss, device),
        "update": [update(layer), update(ends)],
    }


def _both(forward: Callable[[], torch.Tensor], device: torch.device) -> list[float]:
    """Seconds of forward, and of backward."""
    ahead = _seconds(forward, device)
    return [ahead, max(0.0, _seconds(lambda: forward().backward(), device) - ahead)]  # type: ignore[no-untyped-call]


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
