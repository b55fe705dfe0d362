"""A rank's pieces of weights and moments as bytes, and their way to another rank."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.processes.agreement import keeps_copy_of


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """The size of what `as_bytes` gives."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def as_bytes(tensors: Iterable[Tensor]) -> Tensor:
    """A copy of the tensors' bytes, one tensor's behind another's."""
    return torch.cat([tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in tensors])


def from_bytes(whole: Tensor, tensors: Iterable[Tensor]) -> None:
    """Write into the tensors what `as_bytes` gave of such ones."""
    at = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        # A copy: a number of eight bytes may not begin at any place.
        tensor.copy_(whole[at : at + size].clone().view(tensor.dtype).reshape(tensor.shape))
        at += size


def receive(source: int, tensors: Iterable[Tensor], group: dist.ProcessGroup) -> None:
    """Fill the tensors with what rank `source` sends."""
    tensors = list(tensors)
    received = torch.empty(num_bytes(tensors), dtype=torch.uint8)
    dist.recv(received, source, group=group)
    from_bytes(received, tensors)


def pass_on(own: Tensor, num_received: int, group: dist.ProcessGroup) -> Tensor:
    """Send a rank's bytes to the next one, and give those of the one before. Collective."""
    rank, num = dist.get_rank(group), dist.get_world_size(group)
    received = torch.empty(num_received, dtype=torch.uint8)
    # Both at once: in a ring of blocking sends each would wait for the next to receive.
    exchange = [
        dist.P2POp(dist.isend, own, (rank + 1) % num, group),
        dist.P2POp(dist.irecv, received, keeps_copy_of(rank, num), group),
    ]
    for request in dist.batch_isend_irecv(exchange):
        request.wait()
    return received
