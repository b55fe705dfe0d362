"""The layer's products between its inner width and its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from trainer.model.made_again import made_again


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x)) (Shazeer, 2002.05202)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x_BTD: Tensor, again: Callable[[], Tensor] | None = None) -> Tensor:
        """`again`: makes the input once more, so that backward need not keep it; from gate and up it then
        makes down's input too."""
        if again is None:
            return cast(Tensor, self.down_proj(F.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD)))
        with made_again(x_BTD, again):
            gate_BTF, up_BTF = self.gate_proj(x_BTD), self.up_proj(x_BTD)
        gate, up = gate_BTF.detach(), up_BTF.detach()
        opened_BTF = F.silu(gate_BTF)
        with made_again(opened_BTF, lambda: F.silu(gate)):
            inner_BTF = opened_BTF * up_BTF
        with made_again(inner_BTF, lambda: F.silu(gate) * up):
            return cast(Tensor, self.down_proj(inner_BTF))
