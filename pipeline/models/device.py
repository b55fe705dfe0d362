"""What the device that a model runs on is called: scores of two kinds of device may differ in their last digits."""

from __future__ import annotations

import functools

from lineage.recipe import RecipeError


@functools.cache
def device_kind(on_gpu: bool) -> str:
    """The kind of device of this process: a GPU's name, or "cpu" with the vector instructions that torch computes with.

    RecipeError where a GPU is wanted and torch sees none."""
    import torch

    if not on_gpu:
        return f"cpu {torch.backends.cpu.get_cpu_capability()}"
    if not torch.cuda.is_available():
        raise RecipeError(
            "this actor was given a GPU and torch sees none: install the build of torch for CUDA on the nodes with"
            " GPUs, or set num_gpus = 0"
        )
    return str(torch.cuda.get_device_name())
