"""The kernels of a layer, as one GPU runs them: products with weights by their sides, which of them run in
float8, attention, and what memory bounds; and how long each takes."""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

from trainer.parallel.checks import takes_float8
from trainer.planning.counts import attention_flops, num_latent, num_sparse_layers
from trainer.planning.gpus import Machine
from trainer.planning.layout import Kernels, LayerKind, PlannedLayout

TILE: Final = 128
"""Rows and columns that a product's kernel does at once: what a side lacks to the next multiple takes time
too (NVIDIA, "Matrix multiplication background user's guide", tile quantization)."""
ROUTED: Final = 4
"""How often a token's copy for an expert is read or written outside of products, forward: written to be sent,
read and written as it is sorted by expert, read for the sum."""
EAGER: Final = 3.0
"""How many times the bytes of fused kernels it takes where each operation is a kernel of its own
(train.compile off): torchtitan's table 1, 5,762 beside 6,667 tokens a second."""
SCALING_BYTES: Final = 6
"""Memory traffic of bringing a 16-bit number to float8 with a scale of the moment: read for the largest, read
again, written as the product and as its gradient take it (in rows and in columns)."""
PARTS: Final = 1.4
"""What attention of a sequence takes whose positions context peers share, beside that of a whole one: blocks
are masked by place, and the results of parts merged in float32. Fitted to torchtitan's tables 2 and 6."""
BYTES_A_SCORE: Final = 9.0
"""Memory traffic of softmax and dropout of an attention that writes its scores, beside its products:
2205.05198, section 4.1, of two 16-bit numbers and a mask kept."""


class LayerProduct(NamedTuple):
    """A kind of product, of `rows` rows for each token of a micro-batch, `times` of them in a layer; `inputs`
    and `outputs` are the sides of the matrix on one GPU. `again`: how many of them selective recomputation
    does again."""

    name: str
    rows: float
    inputs: int
    outputs: int
    times: float
    again: float
    float8: bool

    @property
    def flops(self) -> float:
        """Operations of one of them for a token of a micro-batch, forward."""
        return 2.0 * self.rows * self.inputs * self.outputs

    def moved(self, tokens: float, compute_bytes: int) -> float:
        """Bytes that it reads and writes for so many tokens; a factor in float8 has one a number."""
        rows, factor = tokens * self.rows, 1 if self.float8 else compute_bytes
        factors = factor * (rows * self.inputs + self.inputs * self.outputs)
        return factors + compute_bytes * rows * self.outputs


class LayerSeconds(NamedTuple):
    """Seconds of one micro-batch in a layer, forward: products with weights, attention, and what memory
    bounds. `again`: what selective recomputation adds to backward; `more`: what backward was measured to take
    beside twice forward, and `update` of the optimizer; `measured`: whether such layers were."""

    products: float
    attention: float
    elementwise: float
    again: float
    more: float = 0.0
    update: float = 0.0
    measured: bool = False

    @property
    def forward(self) -> float:
        """All of it, forward."""
        return self.products + self.attention + self.elementwise


def product_seconds(product: LayerProduct, tokens: float, compute_bytes: int, machine: Machine) -> float:
    """Seconds of one product: its operations, in whole tiles, at what large products reach of the peak, and
    its bytes. So its speed saturates with its intensity I as r·P·I / (I + r·ridge). `plan.efficiency`: at
    that share of P."""
    rows, inner, columns = tokens * product.rows, product.inputs, product.outputs
    peak, reached, given = machine.gpu.peak_flops, machine.reached, machine.plan.efficiency
    if product.float8 and machine.gpu.peak_float8:
        peak, reached = machine.gpu.peak_float8, machine.reached_float8
        given = machine.plan.float8_efficiency or given
    if given is not None:
        return 2.0 * rows * inner * columns / (given * peak)
    if machine.measured is not None and (
        known := machine.measured.products.get((round(rows), inner, columns))
    ):
        return known
    wide = -(-rows // TILE) * -(-columns // TILE) * TILE**2
    return (
        2.0 * wide * inner / (reached * peak)
        + product.moved(tokens, compute_bytes) / machine.memory_bandwidth
    )


@functools.lru_cache(maxsize=4096)
def layer_seconds(
    layer: Kernels, machine: Machine, *, sparse: bool, window: int | None = None
) -> LayerSeconds:
    """Of a layer with experts (`sparse`) or without, in a micro-batch of `mean_tokens`. Selective
    recomputation does again what `trainer.parallel.recompute` does not keep: keys, attention's output
    projection, up, the router; attention is kept. Of latent attention it does again what is made from latents
    (2412.19437, section 3.2.3)."""
    config, tp, tokens, size = layer.config, layer.tp, layer.tokens, layer.compute_bytes
    products = again = 0.0
    for product in layer_products(layer, sparse=sparse):
        seconds = product_seconds(product, tokens, size, machine)
        products += product.times * seconds
        again += product.again * seconds
    flops = tokens / tp * attention_flops(config, layer.seq_len, window) / 3
    if machine.plan.efficiency is not None:
        return LayerSeconds(products, flops / (machine.plan.efficiency * machine.gpu.peak_flops), 0.0, again)
    if machine.measured is not None and (
        known := machine.measured.layers.get(layer.described(LayerKind(sparse, layer.acting(window))))
    ):
        rest, more = max(0.0, known.forward - products), known.backward - 2 * known.forward
        return LayerSeconds(min(products, known.forward), 0.0, rest, again, more, known.update, True)
    heads, pairs = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    latent = 2 * num_latent(config)  # each is normed
    hidden = config.hidden
    if sparse and config.experts is not None:
        hidden = config.experts.hidden * (config.experts.top_k + config.experts.num_shared)
    # Numbers read and written: two norms and two sums of the stream, or four norms, rotation of queries and keys,
    # norms of these, and the gate.
    routed = 0
    if sparse and config.experts is not None:
        routed = ROUTED * config.experts.top_k * config.width
    stream = 14 if config.norms == "both" else 10
    turned = 2 if config.query_key_norm == "none" else 4
    numbers = tokens * (stream * config.width + latent + turned * (heads + pairs) + 3 * hidden) / tp
    moved = size * numbers + SCALING_BYTES * tokens * _scaled(layer, sparse=sparse)
    # Routing is a kernel an operation, compiled or not.
    moved = moved * (1.0 if layer.compiled else EAGER) + size * tokens * routed / tp
    elementwise = moved / machine.memory_bandwidth
    if machine.plan.fused_attention:
        # A causal mask leaves half of the operations.
        attention = flops / 2 / (machine.attention * machine.gpu.peak_flops)
        attention *= PARTS if layer.cp > 1 else 1.0
        return LayerSeconds(products, attention, elementwise, again + elementwise)
    scores = tokens * config.num_heads / tp * min(window or layer.seq_len, layer.seq_len)
    attention = flops / (machine.reached * machine.gpu.peak_flops)
    attention += scores * (2 * size + BYTES_A_SCORE) / machine.memory_bandwidth
    return LayerSeconds(products, attention, elementwise, attention)


def _scaled(layer: Kernels, *, sparse: bool) -> float:
    """Numbers that a token brings to float8 in a layer's forward pass and, as three times as many go by in a
    step, the mean of that and of backward: inputs of products once a kind, gradients of their outputs."""
    kinds = [product for product in layer_products(layer, sparse=sparse) if product.float8]
    return sum(product.rows * (product.inputs + product.outputs * product.times) for product in kinds) / 3


def model_products(layout: PlannedLayout) -> tuple[LayerProduct, ...]:
    """Those of all kinds of layers, each once, and the output matrix last."""
    num_sparse, num_layers = num_sparse_layers(layout.config), layout.config.num_layers
    kinds = [sparse for sparse, num in ((False, num_layers - num_sparse), (True, num_sparse)) if num]
    of_layers = [product for sparse in kinds for product in layer_products(layout.kernels, sparse=sparse)]
    return tuple(dict.fromkeys([*of_layers, output_product(layout)]))


@functools.lru_cache(maxsize=4096)
def layer_products(layer: Kernels, *, sparse: bool) -> tuple[LayerProduct, ...]:
    """Those of a layer with experts (`sparse`) or without."""
    config, tp, ep, float8 = layer.config, layer.tp, layer.ep, layer.float8
    width, experts = config.width, config.experts

    def product(
        name: str, sides: tuple[int, int], times: float, again: float, rows: float = 1.0
    ) -> LayerProduct:
        return LayerProduct(name, rows, *sides, times, again, float8 and takes_float8(*sides))

    queries, values = config.num_heads * config.head_dim // tp, config.num_heads * config.value_dim // tp
    if (latent := config.latent) is None:
        pairs = config.num_kv_heads * config.head_dim // tp
        found = [
            product("queries", (width, queries), 1, 0),
            product("keys, values", (width, pairs), 2, 1),
        ]
    else:
        pairs = config.num_heads * (latent.nope_dim + latent.value_dim) // tp
        found = [
            product("keys' and values' latent", (width, latent.kv_rank + latent.rope_dim), 1, 0),
            product("keys and values", (latent.kv_rank, pairs), 1, 1),
            product("queries", (latent.query_rank or width, queries), 1, 1),
        ]
        found += [product("queries' latent", (width, latent.query_rank), 1, 0)] if latent.query_rank else []
    found.append(product("attention's output", (values, width), 1, 1))
    if not sparse or experts is None:
        found += [
            product("gate, up", (width, config.hidden // tp), 2, 1),
            product("down", (config.hidden // tp, width), 1, 0),
        ]
        return tuple(found)
    # Each tensor peer routes its share of the tokens. Evenly spread, an expert sees its share of all that its
    # expert parallel group sends. Neither the router nor experts are float8 ones (trainer.parallel.float8).
    rows, local = experts.top_k / tp * ep / experts.num_experts, experts.num_experts / ep
    found += [
        LayerProduct("router", 1 / tp, width, experts.num_experts, 1, 1, False),
        LayerProduct("an expert's gate, up", rows, width, experts.hidden, 2 * local, local, False),
        LayerProduct("an expert's down", rows, experts.hidden, width, local, 0, False),
    ]
    if experts.num_shared:
        hidden = experts.hidden * experts.num_shared
        found += [
            product("shared experts' gate, up", (width, hidden), 2, 1, 1 / tp),
            product("shared experts' down", (hidden, width), 1, 0, 1 / tp),
        ]
    return tuple(found)


def output_product(layout: PlannedLayout) -> LayerProduct:
    """The output matrix."""
    return LayerProduct(
        "output matrix", 1.0, layout.config.width, layout.config.vocab_size // layout.mesh.tp, 1, 0, False
    )
