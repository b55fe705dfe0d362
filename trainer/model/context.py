"""Attention over sequences whose positions are shared among the ranks of a group (context parallel).

Each rank has the queries, keys and values of its own positions. Two ways, equal results, both exact with
documents:

    gather    every rank gets all keys and values, and attends with its own queries (Llama 3, 2407.21783, section 3.3.2)
    ring      keys and values go round; each rank merges the partial softmaxes (Liu et al., 2310.01889) and computes
              nothing for a part that no query of its own may see. One part of them is held at a time
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.model.attention import DocumentMask, attend_here
from trainer.model.cache import CachedMask
from trainer.model.peers import gathered
from trainer.model.pieces import RingMask, Scoring, attend_in_pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredMask:
    """This rank's queries against the keys of all ranks of `group`, which lie in the order of the ranks.
    `order_BT`: which of them come first in `mask`, if in another order."""

    group: dist.ProcessGroup
    mask: DocumentMask
    order_BT: Tensor | None = None


Mask = DocumentMask | GatheredMask | RingMask | CachedMask
Masks = Mapping[int | None, Mask]
"""Who sees whom in the layers of each window."""


def attend(query_BTHK: Tensor, key_BTGK: Tensor, value_BTGK: Tensor, mask: Mask, scoring: Scoring) -> Tensor:
    """Attention output of shape (B, T, H, K); H query heads share G key-value heads in equal groups. Values may
    have another width than queries and keys."""
    if isinstance(mask, RingMask):
        return cast(Tensor, attend_in_pieces(query_BTHK, key_BTGK, value_BTGK, mask, scoring))
    if isinstance(mask, GatheredMask):
        both = cast(Tensor, _Gather.apply(torch.cat((key_BTGK, value_BTGK), dim=-1), mask.group))  # type: ignore[no-untyped-call]
        if (order_BT := mask.order_BT) is not None:
            both = both.gather(1, order_BT[..., None, None].expand_as(both))
        size = key_BTGK.shape[-1]
        return attend_here(query_BTHK, both[..., :size], both[..., size:], mask.mask, scoring)
    if isinstance(mask, CachedMask):
        key_BTGK, value_BTGK = mask.cache.extended(next(mask.layers), key_BTGK, value_BTGK)
        return attend_here(query_BTHK, key_BTGK, value_BTGK, mask.visible, scoring)
    return attend_here(query_BTHK, key_BTGK, value_BTGK, mask, scoring)


class _Gather(torch.autograd.Function):
    """All ranks' tensors (B, T, G, K), joined along the positions; backward sums over the ranks."""

    @staticmethod
    def forward(context: Any, mine: Tensor, group: dist.ProcessGroup) -> Tensor:
        context.group = group
        return torch.cat(gathered(mine, group), dim=1)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        group: dist.ProcessGroup = context.group
        by_rank = torch.stack(gradients[0].chunk(group.size(), dim=1)).contiguous()
        mine = torch.empty_like(by_rank[0])
        dist.reduce_scatter_tensor(mine, by_rank.flatten(0, 1), group=group)
        return mine, None
