"""The layer's products between its inner width and its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.model.config.description import Gate
from trainer.model.made_again import made_again


class FeedForward(nn.Module):
    """down(gate(x), opened, · up(x)) (Shazeer, 2002.05202)."""

    def __init__(self, width: int, hidden: int, gate: Gate) -> None:
        super().__init__()
        self.gate = gate
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x_BTD: Tensor, again: Callable[[], Tensor] | None = None) -> Tensor:
        """`again`: makes the input once more, so that backward need not keep it; from gate and up it then
        makes down's input too."""
        form = self.gate
        if again is None:
            inner_BTF = opened(form, self.gate_proj(x_BTD)) * raised(form, self.up_proj(x_BTD))
            return cast(Tensor, self.down_proj(inner_BTF))
        with made_again(x_BTD, again):
            gate_BTF, up_BTF = self.gate_proj(x_BTD), self.up_proj(x_BTD)
        gate, up = gate_BTF.detach(), up_BTF.detach()
        opened_BTF = opened(form, gate_BTF)
        with made_again(opened_BTF, lambda: opened(form, gate)):
            inner_BTF = opened_BTF * raised(form, up_BTF)
        with made_again(inner_BTF, lambda: opened(form, gate) * raised(form, up)):
            return cast(Tensor, self.down_proj(inner_BTF))


def opened(form: Gate, gate: Tensor) -> Tensor:
    """The function of the gate."""
    if form.function == "silu":
        return F.silu(gate)
    if form.function == "gelu_tanh":
        return F.gelu(gate, approximate="tanh")
    held = gate.clamp(max=form.limit)
    return held * torch.sigmoid(form.gain * held)


def raised(form: Gate, up: Tensor) -> Tensor:
    """What the opened gate is multiplied by."""
    if form.function != "clamped" or form.limit is None:
        return up
    return up.clamp(-form.limit, form.limit) + 1
