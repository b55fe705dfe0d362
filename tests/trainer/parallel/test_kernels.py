"""The compiler's choice of kernels."""

from __future__ import annotations

import pytest
import torch
from torch._inductor import config

from trainer.parallel.mesh import keep_kernels_same


def test_kernels_of_a_gpu_are_not_chosen_by_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "deterministic", False)
    keep_kernels_same(torch.device("cpu"))
    assert not config.deterministic
    keep_kernels_same(torch.device("cuda"))
    assert config.deterministic
