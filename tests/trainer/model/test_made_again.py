"""Backward makes tensors again: the gradients are the same bits, and what is made again is not kept."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from tests.support.training.layouts import CONFIG
from trainer.model import transformer
from trainer.model.attention import document_mask, document_masks
from trainer.model.config.description import Rotary
from trainer.model.made_again import made_again
from trainer.model.rotary import rotary_turns
from trainer.model.transformer import CausalLM, Layer
from trainer.recipe_tables.parallelism import ExpertsTable

NUM_ROWS, SEQ_LEN = 2, 16


def layer_of(dtype: torch.dtype, *, makes_again: bool) -> Layer:
    layer = Layer(CONFIG, 0, ExpertsTable()).to(dtype)
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, 0, 0.1, generator=generator)
    layer.makes_again = makes_again
    return layer


def through(layer: Layer, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Input and output."""
    x_BTD = torch.randn(NUM_ROWS, SEQ_LEN, CONFIG.width, generator=torch.Generator().manual_seed(1)).to(dtype)
    places_BT = torch.arange(SEQ_LEN).repeat(NUM_ROWS, 1)
    wide = torch.promote_types(dtype, torch.float32)
    mask = document_mask(torch.zeros_like(places_BT), "dense")
    return x_BTD, layer(
        x_BTD.requires_grad_(), rotary_turns(places_BT, Rotary(), CONFIG.rotary_dim, wide), mask, None
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("passes", ["together", "split"])
def test_a_layer_that_makes_its_inputs_again_has_the_same_gradients(dtype: torch.dtype, passes: str) -> None:
    found = []
    for makes_again in (False, True):
        layer = layer_of(dtype, makes_again=makes_again)
        x_BTD, output = through(layer, dtype)
        loss, wanted = output.square().sum(), [x_BTD, *layer.parameters()]
        if passes == "together":
            gradients = torch.autograd.grad(loss, wanted)
        else:  # as schedules do that split backward
            gradients = torch.autograd.grad(loss, wanted[:1], retain_graph=True)
            gradients += torch.autograd.grad(loss, wanted[1:])
        found.append([output, *gradients])
    assert all(torch.equal(plain, again) for plain, again in zip(*found, strict=True))


def test_what_is_asked_for_several_times_is_made_once_a_pass_and_then_let_go() -> None:
    weights = [torch.randn(4, 4, requires_grad=True) for _ in range(3)]
    source, made = torch.randn(2, 4), []

    def make() -> Tensor:
        made.append(source * 2)
        return made[-1]

    tensor = source * 2
    with made_again(tensor, make):
        outputs = [tensor @ weight for weight in weights]
    total = torch.stack(outputs).sum()
    assert not made
    for num_passes in (1, 2):
        gradients = torch.autograd.grad(total, weights, retain_graph=True)
        assert len(made) == num_passes
    assert all(torch.equal(gradient, (source * 2).T @ torch.ones(2, 4)) for gradient in gradients)


def test_what_is_not_made_again_is_kept_as_it_was() -> None:
    kept = torch.randn(4, 4, requires_grad=True)
    other = torch.randn(4, 4)

    def refuse() -> Tensor:
        raise AssertionError("nothing of this tensor was saved")

    with made_again(other, refuse):
        product = kept.sin() @ kept
    (gradient,) = torch.autograd.grad(product.sum(), [kept])
    (plain,) = torch.autograd.grad((kept.sin() @ kept).sum(), [kept])
    assert torch.equal(gradient, plain)


def test_rotary_turns_are_made_once_more_for_all_layers_and_the_gradients_are_the_same() -> None:
    tokens_BT = torch.randint(0, 100, (NUM_ROWS, SEQ_LEN), generator=torch.Generator().manual_seed(2))
    places_BT = torch.arange(SEQ_LEN).repeat(NUM_ROWS, 1)
    masks, found = document_masks(torch.zeros_like(places_BT), CONFIG.windows, "dense"), []
    torch.manual_seed(0)
    model = CausalLM(CONFIG)
    assert len(model.model.layers) > 1
    for makes_again in (False, True):
        model.model.makes_again = makes_again
        with patch.object(transformer, "rotary_turns", wraps=rotary_turns) as turns:
            logits = model(tokens_BT, places_BT, masks)
            assert turns.call_count == 1
            gradients = torch.autograd.grad(logits.square().sum(), list(model.parameters()))
            assert turns.call_count == 1 + makes_again
        found.append([logits, *gradients])
    assert all(torch.equal(plain, again) for plain, again in zip(*found, strict=True))
