"""Replicas of weights and moments compared bit for bit: the odd one is named, and mended from the others.

Ranks that hold the same pieces of all tensors are replicas of each other (HSDP's dp_replicate, DDP's ranks).
What is compared are two sums a tensor, made on the device in whole numbers: a flipped bit changes the first
by a power of two, so no single fault is missed, and an exchange of elements changes the second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from lineage.ids import content_hash
from trainer.model.peers import local_part
from trainer.processes.heard import of_every_rank

_AT_ONCE: Final = 1 << 22
"""Words that are summed at once: eight bytes each while that lasts."""
_PRIME: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OddReplica:
    """Tensors in which a rank differs from what most of its replicas hold; `mended`: it holds what they do
    now. False where there is no majority: then nobody knows who is right, and `rank` is the least of those
    that differ."""

    rank: int
    replicas: tuple[int, ...]
    tensors: tuple[str, ...]
    mended: bool


class Replicas:
    """The ranks that hold what this one holds, and the comparison. Collective throughout, over all ranks."""

    def __init__(self, state: Mapping[str, Tensor], control: dist.ProcessGroup) -> None:
        self._control = control
        signatures = of_every_rank(_signature(state), control)
        classes: dict[str, list[int]] = {}
        for rank, signature in enumerate(signatures):
            classes.setdefault(signature, []).append(rank)
        self.ranks: tuple[int, ...] = ()
        self._group: dist.ProcessGroup | None = None
        self.most = max(map(len, classes.values()))
        for ranks in classes.values():
            group = dist.new_group(ranks) if len(ranks) > 1 else None
            if dist.get_rank() in ranks:
                self.ranks, self._group = tuple(ranks), group

    def compare(self, state: Mapping[str, Tensor]) -> list[OddReplica]:
        """The odd replicas of all ranks; those that have a majority against them are mended in place."""
        mine = self._compare(state) if self._group is not None else []
        every = of_every_rank(mine, self._control)
        # All replicas of a class say the same of it.
        return sorted({odd for found in every for odd in found}, key=lambda odd: odd.rank)

    @torch.no_grad()
    def _compare(self, state: Mapping[str, Tensor]) -> list[OddReplica]:
        names = sorted(state)
        sums = torch.stack([checksum(local_part(state[name])) for name in names])
        gathered = [torch.empty_like(sums) for _ in self.ranks]
        dist.all_gather(gathered, sums, group=self._group)
        held = [tuple(map(tuple, each.tolist())) for each in gathered]
        odd: dict[int, list[str]] = {}
        undecided: dict[int, list[str]] = {}
        for place, name in enumerate(names):
            values = [each[place] for each in held]
            (most, votes), *_ = Counter(values).most_common()
            differ = [rank for rank, value in zip(self.ranks, values, strict=True) if value != most]
            if not differ:
                continue
            if 2 * votes <= len(values):
                undecided.setdefault(self.ranks[0], []).append(name)
                continue
            for rank in differ:
                odd.setdefault(rank, []).append(name)
            source = next(rank for rank, value in zip(self.ranks, values, strict=True) if value == most)
            self._send(local_part(state[name]), source)
        return [
            OddReplica(rank=rank, replicas=self.ranks, tensors=tuple(tensors), mended=mended)
            for found, mended in ((odd, True), (undecided, False))
            for rank, tensors in found.items()
        ]

    def _send(self, local: Tensor, source: int) -> None:
        whole = local.contiguous()
        dist.broadcast(whole, src=source, group=self._group)
        if dist.get_rank() != source:
            local.copy_(whole)


def checksum(tensor: Tensor) -> Tensor:
    """Two sums over a tensor's words, int64, shape (2,): of the words, and of each times its place. Both
    wrap, so they are the same in any order of adding."""
    words = tensor.contiguous().reshape(-1).view(torch.uint8)
    words = torch.nn.functional.pad(words, (0, -words.numel() % 4)).view(torch.int32)
    total = torch.zeros(2, dtype=torch.int64, device=tensor.device)
    for first in range(0, words.numel(), _AT_ONCE):
        part = words[first : first + _AT_ONCE].to(torch.int64)
        places = torch.arange(first + 1, first + 1 + part.numel(), device=tensor.device) % _PRIME
        total[0] += part.sum()
        total[1] += (part * places).sum()
    return total


def _signature(state: Mapping[str, Tensor]) -> str:
    """Which pieces of which tensors a rank holds."""
    held = []
    for name, tensor in sorted(state.items()):
        if isinstance(tensor, DTensor):
            piece = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
        else:
            piece = (tuple(tensor.shape), ())
        held.append(f"{name} {tuple(piece[0])} {tuple(piece[1])}")
    return content_hash("\n".join(held).encode()).hex()
