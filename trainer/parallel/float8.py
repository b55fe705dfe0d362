"""Products in float8 (torchao): which matrices of a model are converted, and which are not and why.

Row-wise scales are one a row of a product's operands, so they do not depend on how rows are spread over
ranks. The one scale of a tensor hangs on the largest value of what a rank holds of it, and differs between
layouts."""

from __future__ import annotations

import dataclasses
from typing import Final

import torch
from torch import nn

from lineage.recipe import RecipeError
from trainer.model.config.description import ModelConfig
from trainer.model.transformer import CausalLM
from trainer.parallel.checks import FLOAT8_MULTIPLE, takes_float8
from trainer.parallel.tensor import OF_LATENTS
from trainer.recipe_tables.parallelism import Float8Table

_FIRST_CAPABILITY: Final = (8, 9)
"""Of NVIDIA GPUs with float8 products: Ada; then Hopper and Blackwell."""


def check_float8(table: Float8Table, device: torch.device) -> None:
    """RecipeError where torchao is not installed, or this device lacks float8 products and they are not
    emulated."""
    try:
        import torchao.float8  # noqa: F401
    except ImportError as error:
        raise RecipeError(
            f'train.dtype = "float8": {error}; expected the extra "float8" (torchao) to be installed'
        ) from error
    has_products = device.type == "cuda" and torch.cuda.get_device_capability(device) >= _FIRST_CAPABILITY
    if not has_products and not table.emulate:
        raise RecipeError(
            f'train.dtype = "float8": {device} has no float8 products, which need an NVIDIA GPU of compute'
            f" capability "
            "8.9 or more; expected such a device, or train.float8.emulate = true (slow, the same numbers)"
        )


def convert_to_float8(model: CausalLM, table: Float8Table, tp: int) -> None:
    """Make the layers' products float8 ones where their sizes allow it; the weights keep their dtype and
    names."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    # The recipe first: a config that is made with `emulate` alone forgets it.
    config = dataclasses.replace(Float8LinearConfig.from_recipe_name(table.recipe), emulate=table.emulate)

    def converts(module: nn.Module, name: str) -> bool:
        return isinstance(module, nn.Linear) and name.startswith("model.layers.") and _fits(module, name, tp)

    convert_to_float8_training(model, config=config, module_filter_fn=converts)


def float8_products(config: ModelConfig, table: Float8Table, tp: int) -> list[str]:
    """What is converted and what is not, a line each, for the user."""
    with torch.device("meta"):
        model = CausalLM(dataclasses.replace(config, num_layers=1))
    lines = {True: [], False: []}  # type: dict[bool, list[str]]
    for name, module in model.model.layers["0"].named_modules():
        if isinstance(module, nn.Linear):
            lines[_fits(module, name, tp)].append(name)
    told = [
        f"float8 ({table.recipe}{', emulated' if table.emulate else ''}): {', '.join(lines[True])} of every layer"
    ]
    if lines[False]:
        names = ", ".join(lines[False])
        told.append(f"not float8: {names}, whose sides on a rank are not multiples of {FLOAT8_MULTIPLE}")
    told.append("not float8: the embedding and the output matrix, whose rounding reaches every loss directly")
    if config.experts is not None:
        told.append("not float8: router (rounding decides between experts) and experts (grouped products)")
    return told


def _fits(module: nn.Linear, name: str, tp: int) -> bool:
    inputs, outputs = module.in_features, module.out_features
    if name.rsplit(".", 1)[-1] in OF_LATENTS or "shared_expert" in name:  # whole on every tensor peer
        return takes_float8(inputs, outputs)
    if name.endswith(("o_proj", "down_proj")):
        return takes_float8(inputs // tp, outputs)
    return takes_float8(inputs, outputs // tp)
