"""Attention over sequences whose positions are shared among the ranks of a group (context parallel).

Each rank has the queries, keys and values of its own positions. Two ways, equal results, both exact with
documents:

    gather    every rank gets all keys and values, and attends with its own queries (Llama 3, 2407.21783, section 3.3.2)
    ring      keys and values go round; each rank merges the partial softmaxes (Liu et al., 2310.01889) and computes
              nothing for a part that no query of its own may see. One part of them is held at a time
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.model.attention import DocumentMask, attend_here

_QUERIES_AT_ONCE: Final = 1024  # the ring's scores are materialised for so many queries and one rank's keys


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredMask:
    """This rank's queries against the keys of all ranks of `group`, in the order of the ranks."""

    group: dist.ProcessGroup
    mask: DocumentMask


@dataclass(frozen=True, slots=True, kw_only=True)
class RingMask:
    """This rank's queries against each rank's keys: bool (B, 1, T, T), None where nothing is visible."""

    group: dist.ProcessGroup
    parts: tuple[Tensor | None, ...]


Mask = DocumentMask | GatheredMask | RingMask


def attend(query_BTHK: Tensor, key_BTGK: Tensor, value_BTGK: Tensor, mask: Mask) -> Tensor:
    """Attention output of shape (B, T, H, K); H query heads share G key-value heads in equal groups."""
    if isinstance(mask, RingMask):
        return cast(Tensor, _Ring.apply(query_BTHK, key_BTGK, value_BTGK, mask))  # type: ignore[no-untyped-call]
    if isinstance(mask, GatheredMask):
        both = cast(Tensor, _Gather.apply(torch.stack((key_BTGK, value_BTGK)), mask.group))  # type: ignore[no-untyped-call]
        return attend_here(query_BTHK, both[0], both[1], mask.mask)
    return attend_here(query_BTHK, key_BTGK, value_BTGK, mask)


class _Gather(torch.autograd.Function):
    """All ranks' tensors (2, B, T, G, K), joined along the positions; backward sums over the ranks."""

    @staticmethod
    def forward(context: Any, mine: Tensor, group: dist.ProcessGroup) -> Tensor:
        context.group = group
        every = [torch.empty_like(mine, memory_format=torch.contiguous_format) for _ in range(group.size())]
        dist.all_gather(every, mine.contiguous(), group=group)
        return torch.cat(every, dim=2)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        group: dist.ProcessGroup = context.group
        by_rank = torch.stack(gradients[0].chunk(group.size(), dim=2)).contiguous()
        mine = torch.empty_like(by_rank[0])
        dist.reduce_scatter_tensor(mine, by_rank.flatten(0, 1), group=group)
        return mine, None


class _Ring(torch.autograd.Function):
    """The parts of keys and values pass every rank once in forward, and once more with their gradients in
    backward.

    Backward needs no scores of forward: with L the logarithm of a query's whole sum, P = exp(S - L) are its
    probabilities (Dao et al., 2205.14135, section 3.1)."""

    @staticmethod
    def forward(context: Any, query: Tensor, key: Tensor, value: Tensor, mask: RingMask) -> Tensor:
        wide = torch.promote_types(query.dtype, torch.float32)
        queries = query.transpose(1, 2)
        output = torch.zeros(queries.shape, dtype=wide, device=query.device)
        total = torch.full(
            queries.shape[:3], -math.inf, dtype=wide, device=query.device
        )  # log of the sum so far
        part = torch.stack((key, value))
        owners = _owners(mask.group)
        for owner in owners:
            coming = _pass_on((part,), mask.group) if owner != owners[-1] else None
            if (visible := mask.parts[owner]) is not None:
                keys, values = _heads(part[0], queries), _heads(part[1], queries)
                for at in _slices(queries):
                    scores = _scores(queries[:, :, at], keys, visible[:, :, at], wide)
                    part_total = scores.logsumexp(-1)
                    joined = torch.logaddexp(total[:, :, at], part_total)
                    # The first part is this rank's own, where every query sees itself: so no sum is ever
                    # empty.
                    seen = (scores - joined[..., None]).exp() @ values.to(wide)
                    output[:, :, at] = output[:, :, at] * (total[:, :, at] - joined).exp()[..., None] + seen
                    total[:, :, at] = joined
            if coming is not None:
                (part,) = coming.wait()
        context.mask = mask
        context.save_for_backward(query, key, value, output, total)
        return output.to(query.dtype).transpose(1, 2)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        mask: RingMask = context.mask
        query, key, value, output, total = context.saved_tensors
        wide = output.dtype
        queries, upward = query.transpose(1, 2), gradients[0].transpose(1, 2).to(wide)
        weighted = (upward * output).sum(-1)
        query_gradient = torch.zeros_like(output)
        part = torch.stack((key, value))
        part_gradient = torch.zeros(part.shape, dtype=wide, device=part.device)
        for owner in _owners(mask.group):
            if (visible := mask.parts[owner]) is not None:
                keys, values = _heads(part[0], queries).to(wide), _heads(part[1], queries).to(wide)
                for at in _slices(queries):
                    scores = _scores(queries[:, :, at], keys, visible[:, :, at], wide)
                    shares = (scores - total[:, :, at, None]).exp()
                    of_scores = shares * (upward[:, :, at] @ values.mT - weighted[:, :, at, None])
                    of_scores *= queries.shape[-1] ** -0.5
                    query_gradient[:, :, at] += of_scores @ keys
                    for row, found in enumerate(
                        (of_scores.mT @ queries[:, :, at].to(wide), shares.mT @ upward[:, :, at])
                    ):
                        part_gradient[row] += _group_heads(found, part.shape[3])
            # After the last owner one more pass brings each part's gradient home.
            part, part_gradient = _pass_on((part, part_gradient), mask.group).wait()
        kept = part_gradient.to(key.dtype)
        return query_gradient.to(query.dtype).transpose(1, 2), kept[0], kept[1], None


class _RingTensors:
    """Tensors on their way round the ring."""

    def __init__(
        self, works: Sequence[dist.Work], came: tuple[Tensor, ...], sent: tuple[Tensor, ...]
    ) -> None:
        self._works, self._came, self._sent = works, came, sent  # what is sent must live until it has gone

    def wait(self) -> tuple[Tensor, ...]:
        """What came from the rank before."""
        for work in self._works:
            work.wait()
        return self._came


def _pass_on(tensors: tuple[Tensor, ...], group: dist.ProcessGroup) -> _RingTensors:
    """Send to the next rank, receive from the one before."""
    rank, size = group.rank(), group.size()
    sent = tuple(tensor.contiguous() for tensor in tensors)
    came = tuple(torch.empty_like(tensor) for tensor in sent)
    after, before = ((rank + step) % size for step in (1, -1))
    operations = [
        operation
        for mine, theirs in zip(sent, came, strict=True)
        for operation in (
            dist.P2POp(dist.isend, mine, group=group, group_peer=after),
            dist.P2POp(dist.irecv, theirs, group=group, group_peer=before),
        )
    ]
    return _RingTensors(dist.batch_isend_irecv(operations), came, sent)


def _owners(group: dist.ProcessGroup) -> list[int]:
    """Whose part this rank holds, turn by turn: its own first, then that of the rank before it, and so on."""
    return [(group.rank() - turn) % group.size() for turn in range(group.size())]


def _slices(queries_BHTK: Tensor) -> list[slice]:
    return [slice(low, low + _QUERIES_AT_ONCE) for low in range(0, queries_BHTK.shape[2], _QUERIES_AT_ONCE)]


def _heads(part_BTGK: Tensor, queries_BHTK: Tensor) -> Tensor:
    """Keys or values (B, H, T, K): each key-value head once for each of its query heads."""
    part = part_BTGK.transpose(1, 2)
    return part.repeat_interleave(queries_BHTK.shape[1] // part.shape[1], dim=1)


def _group_heads(gradient_BHTK: Tensor, num_kv_heads: int) -> Tensor:
    """The gradient of keys or values (B, T, G, K): summed over the query heads of each key-value head."""
    rows, _, positions, size = gradient_BHTK.shape
    return gradient_BHTK.view(rows, num_kv_heads, -1, positions, size).sum(2).transpose(1, 2)


def _scores(queries: Tensor, keys: Tensor, visible: Tensor, wide: torch.dtype) -> Tensor:
    scaled: Tensor = queries.to(wide) @ keys.to(wide).mT * queries.shape[-1] ** -0.5
    return scaled.masked_fill(~visible, -math.inf)
