"""The device of a process."""

from __future__ import annotations

import pytest
import torch

from lineage.recipe import RecipeError
from trainer.processes.runtime import local_device


def test_a_rank_without_a_gpu_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(RecipeError, match="local rank 1 has no GPU: this machine shows 1"):
        local_device()
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert local_device() == torch.device("cuda", 0)
