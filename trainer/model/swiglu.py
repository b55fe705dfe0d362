"""The layer's products between its inner width and its own."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x)) (Shazeer, 2002.05202)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return cast(Tensor, self.down_proj(F.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD)))
