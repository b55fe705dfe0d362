"""Attention over sequences whose positions are shared among the ranks of a group (context parallel).

Each rank has the queries, keys and values of its own positions. Two ways, equal results, both exact with
documents:

    gather    every rank gets all keys and values, and attends with its own queries (Llama 3, 2407.21783, section 3.3.2)
    ring      keys and values go round; each rank merges the partial softmaxes (Liu et al., 2310.01889) and computes
              nothing for a part that no query of its own may see. One part of them is held at a time
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.model.attention import DocumentMask, Scoring, attend_here, capped
from trainer.model.cache import CachedMask

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


Mask = DocumentMask | GatheredMask | RingMask | CachedMask
Masks = Mapping[int | None, Mask]
"""Who sees whom in the layers of each window."""


def attend(query_BTHK: Tensor, key_BTGK: Tensor, value_BTGK: Tensor, mask: Mask, scoring: Scoring) -> Tensor:
    """Attention output of shape (B, T, H, K); H query heads share G key-value heads in equal groups. Values may
    have another width than queries and keys."""
    if isinstance(mask, RingMask):
        tensors = (query_BTHK, key_BTGK, value_BTGK, scoring.sinks_H)
        return cast(Tensor, _Ring.apply(mask, scoring, *tensors))  # type: ignore[no-untyped-call]
    if isinstance(mask, GatheredMask):
        both = cast(Tensor, _Gather.apply(torch.cat((key_BTGK, value_BTGK), dim=-1), mask.group))  # type: ignore[no-untyped-call]
        return attend_here(query_BTHK, *_halves(both, key_BTGK.shape[-1]), mask.mask, scoring)
    if isinstance(mask, CachedMask):
        key_BTGK, value_BTGK = mask.cache.extended(next(mask.layers), key_BTGK, value_BTGK)
        return attend_here(query_BTHK, key_BTGK, value_BTGK, mask.visible, scoring)
    return attend_here(query_BTHK, key_BTGK, value_BTGK, mask, scoring)


class _Gather(torch.autograd.Function):
    """All ranks' tensors (B, T, G, K), joined along the positions; backward sums over the ranks."""

    @staticmethod
    def forward(context: Any, mine: Tensor, group: dist.ProcessGroup) -> Tensor:
        context.group = group
        every = [torch.empty_like(mine, memory_format=torch.contiguous_format) for _ in range(group.size())]
        dist.all_gather(every, mine.contiguous(), group=group)
        return torch.cat(every, dim=1)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        group: dist.ProcessGroup = context.group
        by_rank = torch.stack(gradients[0].chunk(group.size(), dim=1)).contiguous()
        mine = torch.empty_like(by_rank[0])
        dist.reduce_scatter_tensor(mine, by_rank.flatten(0, 1), group=group)
        return mine, None


class _Ring(torch.autograd.Function):
    """The parts of keys and values pass every rank once in forward, and once more with their gradients in
    backward.

    Backward needs no scores of forward: with L the logarithm of a query's whole sum, P = exp(S - L) are its
    probabilities (Dao et al., 2205.14135, section 3.1)."""

    @staticmethod
    def forward(context: Any, mask: RingMask, scoring: Scoring, *tensors: Any) -> Tensor:
        query, key, value, sinks_H = tensors
        wide = torch.promote_types(query.dtype, torch.float32)
        queries, sizes = query.transpose(1, 2), (key.shape[-1], value.shape[-1])
        output = torch.zeros((*queries.shape[:3], sizes[1]), dtype=wide, device=query.device)
        # The logarithm of the sum so far, which begins with a sink.
        first = query.new_full((queries.shape[1],), -math.inf) if sinks_H is None else sinks_H
        total = first.to(wide)[:, None].expand(queries.shape[:3]).clone()
        part = torch.cat((key, value), dim=-1)
        owners = _owners(mask.group)
        for owner in owners:
            coming = _pass_on((part,), mask.group) if owner != owners[-1] else None
            if (visible := mask.parts[owner]) is not None:
                keys, values = (_heads(one, queries) for one in _halves(part, sizes[0]))
                for at in _slices(queries):
                    scores, _ = _scores(queries[:, :, at], keys, visible[:, :, at], scoring)
                    part_total = scores.logsumexp(-1)
                    joined = torch.logaddexp(total[:, :, at], part_total)
                    # The first part is this rank's own, where every query sees itself: so no sum is ever
                    # empty.
                    seen = (scores - joined[..., None]).exp() @ values.to(wide)
                    output[:, :, at] = output[:, :, at] * (total[:, :, at] - joined).exp()[..., None] + seen
                    total[:, :, at] = joined
            if coming is not None:
                (part,) = coming.wait()
        context.mask, context.scoring = mask, scoring
        context.save_for_backward(query, key, value, sinks_H, output, total)
        return output.to(query.dtype).transpose(1, 2)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        mask, scoring = cast(RingMask, context.mask), cast(Scoring, context.scoring)
        query, key, value, sinks_H, output, total = context.saved_tensors
        sizes = (key.shape[-1], value.shape[-1])
        wide = output.dtype
        queries, upward = query.transpose(1, 2), gradients[0].transpose(1, 2).to(wide)
        weighted = (upward * output).sum(-1)
        query_gradient = torch.zeros(queries.shape, dtype=wide, device=query.device)
        part = torch.cat((key, value), dim=-1)
        part_gradient = torch.zeros(part.shape, dtype=wide, device=part.device)
        for owner in _owners(mask.group):
            if (visible := mask.parts[owner]) is not None:
                keys, values = (_heads(one, queries).to(wide) for one in _halves(part, sizes[0]))
                gradient_of = _halves(part_gradient, sizes[0])
                for at in _slices(queries):
                    scores, slope = _scores(queries[:, :, at], keys, visible[:, :, at], scoring)
                    shares = (scores - total[:, :, at, None]).exp()
                    of_scores = shares * (upward[:, :, at] @ values.mT - weighted[:, :, at, None])
                    of_scores *= slope
                    query_gradient[:, :, at] += of_scores @ keys
                    gradient_of[0].add_(
                        _group_heads(of_scores.mT @ queries[:, :, at].to(wide), part.shape[2])
                    )
                    gradient_of[1].add_(_group_heads(shares.mT @ upward[:, :, at], part.shape[2]))
            # After the last owner one more pass brings each part's gradient home.
            part, part_gradient = _pass_on((part, part_gradient), mask.group).wait()
        of_key, of_value = _halves(part_gradient.to(key.dtype), sizes[0])
        of_sinks = None
        if sinks_H is not None:
            lost = (sinks_H.to(wide)[:, None] - total).exp()
            of_sinks = -(lost * weighted).sum((0, 2)).to(sinks_H.dtype)
        return None, None, query_gradient.to(query.dtype).transpose(1, 2), of_key, of_value, of_sinks


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


def _halves(both: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Keys of `size` numbers, and values, which travel together."""
    return both[..., :size], both[..., size:]


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


def _scores(
    queries: Tensor, keys: Tensor, visible: Tensor, scoring: Scoring
) -> tuple[Tensor, Tensor | float]:
    """Scores of what is visible, and their derivatives by the products of queries and keys."""
    wide, cap = torch.promote_types(queries.dtype, torch.float32), scoring.cap
    scores = capped(queries.to(wide) @ keys.to(wide).mT * scoring.scale, cap)
    slope = scoring.scale if cap is None else scoring.scale * (1 - (scores / cap).square())
    return scores.masked_fill(~visible, -math.inf), slope
