"""Which kernel attention takes."""

from __future__ import annotations

import pytest
import torch

from trainer.model.attention import kernel_for
from trainer.model.sizes import model_config


@pytest.mark.parametrize(("model", "kernel"), [("debug", "dense"), ("moe-debug", "dense"), ("125M", "flex")])
def test_a_gpu_takes_the_kernel_that_bears_the_width_of_heads(model: str, kernel: str) -> None:
    assert kernel_for(torch.device("cuda"), model_config(model, 512).head_dim) == kernel
    assert kernel_for(torch.device("cpu"), model_config(model, 512).head_dim) == "dense"
