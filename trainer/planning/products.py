"""The products of a layer with its weights, as one GPU does them: their sides, and which of them run in float8."""

from __future__ import annotations

import functools
from typing import NamedTuple

from trainer.model.sizes import ModelConfig
from trainer.parallel.checks import takes_float8
from trainer.planning.layout import PlannedLayout


class LayerProduct(NamedTuple):
    """A kind of product, of `rows` rows for each token of a micro-batch, `times` of them in a layer; `inputs` and
    `outputs` are the sides of the matrix on one GPU. `again`: how many of them selective recomputation does again."""

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


def layer_products(layout: PlannedLayout, *, sparse: bool) -> tuple[LayerProduct, ...]:
    """Those of a layer with experts (`sparse`) or without."""
    return _layer_products(layout.config, layout.mesh.tp, layout.mesh.ep, layout.float8, sparse)


@functools.lru_cache(maxsize=256)
def _layer_products(config: ModelConfig, tp: int, ep: int, float8: bool, sparse: bool) -> tuple[LayerProduct, ...]:
    width, experts = config.width, config.experts
    heads, pairs = config.num_heads * config.head_dim // tp, config.num_kv_heads * config.head_dim // tp

    def product(name: str, sides: tuple[int, int], times: float, again: float, rows: float = 1.0) -> LayerProduct:
        return LayerProduct(name, rows, *sides, times, again, float8 and takes_float8(*sides))

    found = [
        product("queries", (width, heads), 1, 0),
        product("keys, values", (width, pairs), 2, 1),
        product("attention's output", (heads, width), 1, 1),
    ]
    if not sparse or experts is None:
        found += [
            product("gate, up", (width, config.hidden // tp), 2, 1),
            product("down", (config.hidden // tp, width), 1, 0),
        ]
        return tuple(found)
    # Each tensor peer routes its share of the tokens. Evenly spread, an expert sees its share of all that its expert
    # parallel group sends. Neither the router nor experts are float8 ones (trainer.parallel.float8).
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
