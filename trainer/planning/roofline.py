"""`sluice plan --roofline`: what bounds each kind of product; messages of experts and of tensor parallel;
tokens and loss by a scaling law; what the loader must read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from lineage.index.blocks import BLOCK_TOKENS, TOKEN_BYTES
from trainer.model.config.description import Experts, ModelConfig
from trainer.options import TrainRecipe
from trainer.planning.communication import all_to_all_path, ring_bytes, ring_path, traffic
from trainer.planning.counts import attention_flops, num_active_parameters
from trainer.planning.gpus import Gpu, Machine, machine_of
from trainer.planning.layout import PlannedLayout
from trainer.planning.plan import finished_corpus, layout_for, planned_model
from trainer.planning.products import model_products
from trainer.planning.throughput import throughput

CHINCHILLA: Final = (1.8172, 482.01, 2085.43, 0.3478, 0.3658)
"""E, A, B, α, β of L = E + A/N^α + B/D^β, as Besiroglu et al. (2404.10102, table 2) fit them to the data of
Hoffmann et al. (2203.15556, section 3.3), whose own fit does not follow from these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A kind of product of one GPU in one micro-batch, (rows × inner) by (inner × columns), `times` of them
    in a layer. Operations and bytes of one of them, forward alone; `intensity` is one over the other, `ridge`
    the intensity at which neither memory nor the arithmetic of the product's dtype bounds it."""

    name: str
    rows: float
    inner: int
    columns: float
    times: float
    flops: float
    num_bytes: float
    ridge: float

    @property
    def intensity(self) -> float:
        """Operations a byte of memory traffic."""
        return self.flops / self.num_bytes

    @property
    def bound(self) -> Literal["arithmetic", "memory"]:
        """What it waits for."""
        return "arithmetic" if self.intensity >= self.ridge else "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertExchange:
    """Seconds of one layer's forward pass in one micro-batch: an all-to-all there and back over `num_experts`
    GPUs with an expert each, beside tensor parallel's all-reduce of a dense SwiGLU, as an all-gather and a
    reduce-scatter."""

    num_experts: int
    all_to_all_seconds: float
    tensor_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Of a scaling law, for English web text and the tokenizer of its paper: a forecast of another model's
    loss is a guess. Losses in nats a token."""

    num_tokens: int
    loss: float
    optimal_tokens: float
    optimal_loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderReading:
    """What loading asks for: `readers` slices of a batch on `nodes` nodes, each of which reads what it needs
    once. `amplification`: bytes fetched over bytes of the sequences read, where shards are remote."""

    readers: int
    nodes: int
    bytes_per_second: float
    amplification: float
    fetched_bytes_per_second_per_node: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """All that `sluice plan --roofline` shows. `overtaken`: the least mixture of experts whose all-to-all
    takes longer than tensor parallel's all-reduce (None: none of those tried)."""

    gpu: Gpu
    layout: PlannedLayout
    products: tuple[Product, ...]
    exchanges: tuple[ExpertExchange, ...]
    overtaken: ExpertExchange | None
    forecast: Forecast
    reading: LoaderReading


def roofline(recipe: TrainRecipe) -> Roofline:
    """The figures of a recipe's layout; RecipeError as `plan_training`."""
    machine = machine_of(recipe.plan)
    config, _ = planned_model(recipe.train, finished_corpus(recipe.train))
    layout = layout_for(machine, recipe.train, config)
    speed = throughput(layout, traffic(layout, machine), machine)
    exchanges = tuple(_exchanges(layout, machine))
    return Roofline(
        gpu=machine.gpu,
        layout=layout,
        products=tuple(products(layout, machine.gpu)),
        exchanges=exchanges,
        overtaken=next((one for one in exchanges if one.all_to_all_seconds > one.tensor_seconds), None),
        forecast=forecast(config, recipe.train.steps * layout.global_batch * layout.seq_len),
        reading=reading(layout, speed.tokens_per_second, machine, recipe.train.order.window_blocks),
    )


def products(layout: PlannedLayout, gpu: Gpu) -> Iterator[Product]:
    """The kinds of products of a layer and the output matrix. Each reads both factors and writes its result
    once, in `compute_bytes` (float8: one byte a factor); attention does not write its scores (Dao et al.,
    2205.14135)."""
    for product in model_products(layout):
        if product.name == "attention's output":
            yield from (_attention(layout, gpu, window) for window in dict.fromkeys(layout.config.windows))
        yield Product(
            name=product.name,
            rows=layout.tokens * product.rows,
            inner=product.inputs,
            columns=product.outputs,
            times=product.times,
            flops=layout.tokens * product.flops,
            num_bytes=product.moved(layout.tokens, layout.compute_bytes),
            ridge=gpu.ridge(float8=product.float8),
        )


def _attention(layout: PlannedLayout, gpu: Gpu, window: int | None) -> Product:
    """Scores, and their sum over values: for each head queries or outputs pass once, keys or values once a
    row. A window's operations are those of `attention_flops`, of as many columns as make them."""
    config, tp, tokens, length = layout.config, layout.mesh.tp, layout.tokens, layout.seq_len
    seen = attention_flops(config, length, window) / attention_flops(config, 1)
    heads = config.num_heads / tp
    moved = tokens * heads * config.head_dim
    moved += layout.micro_batch * length * config.num_kv_heads / tp * config.head_dim
    return Product(
        name="attention" if window is None else f"attention within {window:,}",
        rows=tokens * heads,
        inner=config.head_dim,
        columns=seen,
        times=2,
        flops=tokens * heads * (config.head_dim + config.value_dim) * seen,
        num_bytes=layout.compute_bytes * moved,
        ridge=gpu.ridge(),
    )


def _exchanges(layout: PlannedLayout, machine: Machine) -> Iterator[ExpertExchange]:
    """For ever more experts, each on a GPU of its own, of which a token sees as many as the model's (2 where
    it has none): beside tensor parallel over the layout's tp, or a node where that is 1."""
    experts = layout.config.experts or Experts(num_experts=2, top_k=2, hidden=layout.config.hidden)
    tp = layout.mesh.tp if layout.mesh.tp > 1 else machine.gpu_domain
    stream = layout.tokens * layout.config.width * layout.compute_bytes
    tensor = 2 * ring_path(1, tp, machine, tp).seconds(ring_bytes(stream, tp))
    ep = 2
    while ep <= max(4096, layout.mesh.num_workers):
        # A GPU has the tokens that it would share with tp − 1 others under tensor parallel.
        sent = ring_bytes(stream / tp * experts.top_k, ep)
        yield ExpertExchange(
            num_experts=ep,
            all_to_all_seconds=2 * all_to_all_path(ep, machine, ep).seconds(sent),
            tensor_seconds=tensor,
        )
        ep *= 2


def expected_loss(num_parameters: float, num_tokens: float) -> float:
    """L = E + A/N^α + B/D^β in nats a token (2203.15556, equation 2)."""
    floor, a, b, alpha, beta = CHINCHILLA
    return float(floor + a / num_parameters**alpha + b / num_tokens**beta)


def optimal_tokens(num_parameters: float) -> float:
    """The tokens at which a model of this size is the best for its operations: where α·A/N^α = β·B/D^β
    (2203.15556, equation 4, with C = 6·N·D)."""
    _, a, b, alpha, beta = CHINCHILLA
    return float((beta * b * num_parameters**alpha / (alpha * a)) ** (1 / beta))


def forecast(config: ModelConfig, num_tokens: int) -> Forecast:
    """The law for the parameters that a token passes: mixtures of experts may learn more."""
    num = float(num_active_parameters(config))
    optimal = optimal_tokens(num)
    return Forecast(
        num_tokens=num_tokens,
        loss=expected_loss(num, num_tokens),
        optimal_tokens=optimal,
        optimal_loss=expected_loss(num, optimal),
    )


def reading(
    layout: PlannedLayout, tokens_per_second: float, machine: Machine, window_blocks: int
) -> LoaderReading:
    """What the processes read at this speed. Data parallel ranks read their own rows, all others the same
    ones; a node fetches each block that it needs once."""
    mesh = layout.mesh
    # Pipeline ranks lie furthest apart: only the nodes of the first and last of them read, the same rows. A
    # node that is partly filled reads too.
    stage, num = mesh.dp * mesh.cp * mesh.tp, mesh.num_workers
    reading_nodes = {rank // machine.gpus_per_node for rank in (*range(stage), *range(num - stage, num))}
    slices = min(mesh.dp, -(-stage // machine.gpus_per_node))
    wanted = tokens_per_second * TOKEN_BYTES
    amplified = read_amplification(slices, layout.global_batch, layout.seq_len, window_blocks)
    return LoaderReading(
        readers=mesh.dp,
        nodes=len(reading_nodes),
        bytes_per_second=wanted,
        amplification=amplified,
        fetched_bytes_per_second_per_node=wanted / slices * amplified,
    )


def read_amplification(num_readers: int, global_batch: int, seq_len: int, window_blocks: int) -> float:
    """Blocks fetched, over blocks there are, where each batch is sorted by place and cut into `num_readers`
    runs: simulated over windows of `window_blocks` blocks whose sequences are permuted, as the order does."""
    if num_readers == 1:
        return 1.0
    per_block = max(1, -(-BLOCK_TOKENS // seq_len))
    generator = np.random.default_rng(0)
    # Enough windows for some batches, and at least one.
    windows = max(1, -(-4 * global_batch // (window_blocks * per_block)))
    in_order = np.arange(windows * window_blocks * per_block).reshape(windows, -1)
    places = generator.permuted(in_order, axis=1).ravel() // per_block
    pairs = []
    for first in range(0, len(places), global_batch):
        batch = np.sort(places[first : first + global_batch])
        reader = np.arange(len(batch)) * num_readers // len(batch)
        pairs.append(batch.astype(np.int64) * num_readers + reader)
    fetched = len(np.unique(np.concatenate(pairs)))
    return fetched / (windows * window_blocks)
