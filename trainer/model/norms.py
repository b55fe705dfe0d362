"""RMSNorm (Zhang and Sennrich, 1910.07467) in its kinds."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.model.description import NormKind


def norm(kind: NormKind, size: int, eps: float) -> nn.Module:
    """A norm over the last `size` numbers."""
    return nn.RMSNorm(size, eps=eps) if kind == "cast first" else WideNorm(kind, size, eps)


class WideNorm(nn.Module):
    """The product with the weight too is in float32 or wider; or, of the kind "one plus", that with 1 + weight."""

    def __init__(self, kind: NormKind, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.adds_one, self.eps = kind == "one plus", eps

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        weight = self.weight.to(wide)
        return F.rms_norm(x.to(wide), weight.shape, weight + 1 if self.adds_one else weight, self.eps).to(
            x.dtype
        )


class WholeNorm(nn.Module):
    """Of all heads of a token together, `kind` as above. Written out: where heads are split over peers, the mean
    of squares alone is summed over them."""

    def __init__(self, kind: NormKind, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.kind, self.eps = kind, eps

    def forward(self, x_BTK: Tensor) -> Tensor:
        wide = torch.promote_types(x_BTK.dtype, torch.float32)
        x, weight = x_BTK.to(wide), self.weight.to(wide)
        scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        if self.kind == "cast first":
            return self.weight * scaled.to(x_BTK.dtype)
        return (scaled * (weight + 1 if self.kind == "one plus" else weight)).to(x_BTK.dtype)
