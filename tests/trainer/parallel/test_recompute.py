"""Recomputation: which products of a layer are kept, and that the gradients are the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainer.model.attention import document_mask
from trainer.model.config.description import Experts, ModelConfig, Rotary
from trainer.model.experts import Routing
from trainer.model.rotary import rotary_turns
from trainer.model.transformer import Layer
from trainer.parallel import recompute as recompute_module
from trainer.parallel.recompute import recomputed
from trainer.recipe_tables.parallelism import ExpertsTable

pytestmark = pytest.mark.differential("trainer")

NUM_ROWS, SEQ_LEN, WIDTH = 2, 16, 64
QUERIES, KEYS, HIDDEN, NUM_EXPERTS, SHARED = 96, 32, 112, 4, 224
"""Columns of products, no two alike."""


def config_of(num_shared: int | None) -> ModelConfig:
    """A layer without experts, or with so many shared ones."""
    experts = None
    if num_shared is not None:
        experts = Experts(num_experts=NUM_EXPERTS, top_k=2, hidden=HIDDEN, num_shared=num_shared)
    return ModelConfig(
        num_layers=1,
        width=WIDTH,
        num_heads=6,
        num_kv_heads=2,
        head_dim=16,
        hidden=HIDDEN,
        vocab_size=128,
        experts=experts,
    )


def layer_of(config: ModelConfig, dtype: torch.dtype) -> Layer:
    layer = Layer(config, 0, ExpertsTable()).to(dtype)
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, 0, 0.1, generator=generator)
    return layer


def passed_through(layer: nn.Module, config: ModelConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """Gradients of the layer's parameters for the same input."""
    x_BTD = torch.randn(NUM_ROWS, SEQ_LEN, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)
    positions_BT = torch.arange(SEQ_LEN).repeat(NUM_ROWS, 1)
    routing = Routing(
        places_BT=positions_BT, counted_B=torch.ones(NUM_ROWS), scale=torch.tensor(1.0), sequence=None
    )
    wide = torch.promote_types(dtype, torch.float32)
    mask = document_mask(torch.zeros_like(positions_BT), "dense")
    output = layer(
        x_BTD.requires_grad_(), rotary_turns(positions_BT, Rotary(), config.rotary_dim, wide), mask, routing
    )
    output.square().sum().backward()
    return {
        name.removeprefix(recompute_module.RECOMPUTED_PREFIX): parameter.grad
        for name, parameter in layer.named_parameters()
        if parameter.grad is not None
    }


GATE, UP, DOWN, LAST = (HIDDEN, True), (HIDDEN, False), (WIDTH, True), (WIDTH, False)
ATTENTION = [(QUERIES, True), (KEYS, False), (KEYS, True), (WIDTH, False)]
ROUTER = (NUM_EXPERTS, False)
OF_SHARED = [(SHARED, True), (SHARED, False), DOWN]


@pytest.mark.parametrize(
    ("num_shared", "dtype", "expected"),
    [
        (None, torch.float32, [*ATTENTION, GATE, UP, LAST]),
        (0, torch.bfloat16, [*ATTENTION, ROUTER, GATE, UP, DOWN]),
        (0, torch.float32, [*ATTENTION, ROUTER, GATE, UP, DOWN]),
        (2, torch.bfloat16, [*ATTENTION, ROUTER, GATE, UP, DOWN, *OF_SHARED]),
        # Products of float64 are done expert by expert.
        (2, torch.float64, [*ATTENTION, ROUTER, *NUM_EXPERTS * [GATE, UP, DOWN], *OF_SHARED]),
    ],
)
def test_of_attention_queries_and_values_are_kept_of_a_swiglu_gate_and_of_experts_down(
    num_shared: int | None,
    dtype: torch.dtype,
    expected: list[tuple[int, bool]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decided: dict[bool, list[tuple[int, bool]]] = {False: [], True: []}
    make = recompute_module.create_selective_checkpoint_contexts

    def listened(policy: Any) -> Any:
        def listening(context: Any, operation: Any, *arguments: Any, **named: Any) -> Any:
            found = policy(context, operation, *arguments, **named)
            if operation in (torch.ops.aten.mm.default, torch.ops.aten._grouped_mm.default):
                kept = found == recompute_module.CheckpointPolicy.MUST_SAVE
                decided[context.is_recompute].append((arguments[1].shape[-1], kept))
            return found

        return make(listening)

    monkeypatch.setattr(recompute_module, "create_selective_checkpoint_contexts", listened)
    config = config_of(num_shared)
    plain = passed_through(layer_of(config, dtype), config, dtype)
    again = passed_through(recomputed(layer_of(config, dtype), "selective"), config, dtype)
    assert decided[False] == expected
    # It ends once the last tensor that is needed is there: no product that is not kept is done for nothing.
    assert decided[True] == expected[: len(decided[True])]
    assert LAST not in decided[True]
    assert plain.keys() == again.keys()
    assert all(torch.equal(gradient, again[name]) for name, gradient in plain.items())
