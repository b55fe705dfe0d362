"""A rank's part of a tensor, and those of its peers."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor


def local_part(tensor: Tensor) -> Tensor:
    """What this rank holds of a DTensor; any other is whole."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gathered(mine: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
    """The tensors of all ranks of `group`, of one shape, in their order."""
    every = [torch.empty_like(mine, memory_format=torch.contiguous_format) for _ in range(group.size())]
    dist.all_gather(every, mine.contiguous(), group=group)
    return every
