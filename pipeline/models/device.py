"""What the device that a model runs on is called: scores of two kinds of device may differ in their last
digits."""

from __future__ import annotations

import functools
import importlib.util

from lineage.recipe import RecipeError


@functools.cache
def device_of_encoder(on_gpu: bool) -> str:
    """The kind of device of this process: a GPU's name, or "cpu" with the vector instructions that torch
    computes with.

    RecipeError where a GPU is wanted and torch sees none."""
    import torch

    if not on_gpu:
        return f"cpu {torch.backends.cpu.get_cpu_capability()}"
    if not torch.cuda.is_available():
        raise RecipeError(
            "this actor was given a GPU and torch sees none: install the build of torch for CUDA on the nodes"
            " with GPUs, or set num_gpus = 0"
        )
    return str(torch.cuda.get_device_name())


@functools.cache
def device_of_class(on_gpu: bool) -> str:
    """The same for a class of the user's, which may compute with anything: "cpu", or a GPU's name if torch
    knows it."""
    if not on_gpu:
        return "cpu"
    if importlib.util.find_spec("torch") is None:
        return "gpu"
    import torch

    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else "gpu"
