"""RMSNorm (Zhang and Sennrich, 1910.07467) in its kinds."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.model.config.description import NormKind


def norm(kind: NormKind, size: int, eps: float) -> nn.Module:
    """A norm over the last `size` numbers."""
    return nn.RMSNorm(size, eps=eps) if kind == "plain" else OnePlusNorm(size, eps)


class OnePlusNorm(nn.Module):
    """Multiplies by 1 + weight, in float32 or wider."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        return F.rms_norm(x.to(wide), self.weight.shape, self.weight.to(wide) + 1, self.eps).to(x.dtype)


class WholeNorm(nn.Module):
    """Of all heads of a token together. Written out: where heads are split over peers, the mean of squares alone
    is summed over them."""

    def __init__(self, kind: NormKind, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.adds_one, self.eps = kind == "one plus", eps

    def forward(self, x_BTK: Tensor) -> Tensor:
        wide = torch.promote_types(x_BTK.dtype, torch.float32)
        x, weight = x_BTK.to(wide), self.weight.to(wide)
        scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return (scaled * (weight + 1 if self.adds_one else weight)).to(x_BTK.dtype)
