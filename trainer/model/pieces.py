"""Attention piece by piece: some queries with the keys that they may see. Partial softmaxes are merged, and no
scores are kept: with L the logarithm of a query's whole sum, backward makes P = exp(S - L) again (Dao et al.,
2205.14135, section 3.1).

The keys of several ranks go round a ring: each rank holds one part of them at a time, and computes nothing for a part
that no query of its own may see (Liu et al., 2310.01889)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """From products of queries and keys to what the softmax takes: they are multiplied by `scale`, then bounded to
    cap·tanh(x / cap). `sinks_H`: a score of each head for nothing, whose share of the softmax is lost."""

    scale: float
    cap: float | None = None
    sinks_H: Tensor | None = None


class Piece(NamedTuple):
    """Queries of some rows, and the keys of which each sees one or more; `visible`: bool (rows, 1, queries,
    keys)."""

    rows: slice
    queries: slice
    keys: slice
    visible: Tensor


Pieces = tuple[Piece, ...]
"""In an order in which each query's first piece has a key that it sees: no sum is ever empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingMask:
    """This rank's queries against each rank's keys."""

    group: dist.ProcessGroup
    parts: tuple[Pieces, ...]


def capped(x: Tensor, cap: float | None) -> Tensor:
    """Numbers bounded smoothly to ± `cap` (Gemma 2, 2408.00118, section 2)."""
    return x if cap is None else cap * torch.tanh(x / cap)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def attend_in_pieces(
    query_BTHK: Tensor, key_BTGK: Tensor, value_BTGK: Tensor, mask: Pieces | RingMask, scoring: Scoring
) -> Tensor:
    """Attention output (B, T, H, K), against keys that are here or go round."""
    parts, group = (mask.parts, mask.group) if isinstance(mask, RingMask) else ((mask,), None)
    tensors = (query_BTHK, key_BTGK, value_BTGK, scoring.sinks_H)
    return cast(Tensor, _InPieces.apply(parts, group, scoring, *tensors))  # type: ignore[no-untyped-call]


class _InPieces(torch.autograd.Function):
    """The parts of keys and values pass every rank once in forward, and once more with their gradients in
    backward."""

    @staticmethod
    def forward(
        context: Any,
        parts: Sequence[Pieces],
        group: dist.ProcessGroup | None,
        scoring: Scoring,
        *tensors: Any,
    ) -> Tensor:
        query, key, value, sinks_H = tensors
        num_rows, length, num_heads, size = query.shape
        wide = torch.promote_types(query.dtype, torch.float32)
        # Laid out as it is handed on, so that it is not there twice.
        output = query.new_zeros(num_rows, length, num_heads, value.shape[-1], dtype=wide).transpose(1, 2)
        # The logarithm of the sum so far, which begins with a sink.
        first = query.new_full((num_heads,), -math.inf) if sinks_H is None else sinks_H
        total = first.to(wide)[:, None].expand(num_rows, num_heads, length).clone()
        part = torch.cat((key, value), dim=-1)
        owners = _owners(group)
        for owner in owners:
            coming = None if group is None or owner == owners[-1] else _pass_on((part,), group)
            for at, piece, queries, keys, values in _cut(parts[owner], query, part, size):
                scores, _ = _scores(queries, keys, piece.visible, scoring)
                joined = torch.logaddexp(total[at], scores.logsumexp(-1))
                seen = scores.sub_(joined[..., None]).exp_() @ values.to(wide)
                output[at] = output[at] * (total[at] - joined).exp()[..., None] + seen
                total[at] = joined
            if coming is not None:
                (part,) = coming()
        context.parts, context.group, context.scoring = parts, group, scoring
        context.save_for_backward(query, key, value, sinks_H, output, total)
        return cast(Tensor, output.to(query.dtype).transpose(1, 2))

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scoring = cast(Scoring, context.scoring)
        query, key, value, sinks_H, output, total = context.saved_tensors
        wide, (num_kv_heads, size) = output.dtype, key.shape[2:]
        upward = gradients[0].transpose(1, 2).to(wide)
        weighted = (upward * output).sum(-1)
        query_gradient = torch.zeros_like(query, dtype=wide).transpose(1, 2)
        part = torch.cat((key, value), dim=-1)
        part_gradient = torch.zeros_like(part, dtype=wide)
        for owner in _owners(context.group):
            of_key, of_value = part_gradient[..., :size], part_gradient[..., size:]
            for at, piece, queries, keys, values in _cut(context.parts[owner], query, part, size):
                scores, slope = _scores(queries, keys, piece.visible, scoring)
                shares = scores.sub_(total[at][..., None]).exp_()
                of_scores = (upward[at] @ values.to(wide).mT).sub_(weighted[at][..., None])
                of_scores.mul_(shares).mul_(slope)
                query_gradient[at] += of_scores @ keys.to(wide)
                there = piece.rows, piece.keys
                of_key[there] += _group_heads(of_scores.mT @ queries.to(wide), num_kv_heads)
                of_value[there] += _group_heads(shares.mT @ upward[at], num_kv_heads)
            if context.group is not None:
                # After the last owner one more pass brings each part's gradient home.
                part, part_gradient = _pass_on((part, part_gradient), context.group)()
        part_gradient, of_sinks = part_gradient.to(key.dtype), None
        if sinks_H is not None:
            lost = (sinks_H.to(wide)[:, None] - total).exp()
            of_sinks = -(lost * weighted).sum((0, 2)).to(sinks_H.dtype)
        of_query = query_gradient.to(query.dtype).transpose(1, 2)
        return None, None, None, of_query, part_gradient[..., :size], part_gradient[..., size:], of_sinks


def _pass_on(tensors: tuple[Tensor, ...], group: dist.ProcessGroup) -> Callable[[], tuple[Tensor, ...]]:
    """Send to the next rank; what is given back waits for what the one before sent."""
    rank, size = group.rank(), group.size()
    sent = tuple(tensor.contiguous() for tensor in tensors)
    came = tuple(torch.empty_like(tensor) for tensor in sent)
    after, before = ((rank + step) % size for step in (1, -1))
    operations = [
        dist.P2POp(send_or_receive, tensor, group=group, group_peer=peer)
        for pair in zip(sent, came, strict=True)
        for send_or_receive, tensor, peer in zip((dist.isend, dist.irecv), pair, (after, before), strict=True)
    ]
    works = dist.batch_isend_irecv(operations)

    def wait() -> tuple[Tensor, ...]:
        assert sent  # it must live until it has gone
        for work in works:
            work.wait()
        return came

    return wait


def _owners(group: dist.ProcessGroup | None) -> list[int]:
    """Whose part this rank holds, turn by turn: its own first, then that of the rank before it, and so on."""
    if group is None:
        return [0]
    return [(group.rank() - turn) % group.size() for turn in range(group.size())]


def _cut(
    pieces: Pieces, query_BTHK: Tensor, part_BTGK: Tensor, size: int
) -> Iterator[tuple[tuple[slice, ...], Piece, Tensor, Tensor, Tensor]]:
    """Of each piece its place in what has queries along its third axis, and its queries, keys of `size` numbers and
    values, (B, H, T, K): each key-value head once for each of its query heads."""
    groups = query_BTHK.shape[2] // part_BTGK.shape[2]
    for piece in pieces:
        both = part_BTGK[piece.rows, piece.keys].transpose(1, 2).repeat_interleave(groups, dim=1)
        queries = query_BTHK[piece.rows, piece.queries].transpose(1, 2)
        yield (piece.rows, slice(None), piece.queries), piece, queries, both[..., :size], both[..., size:]


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
    return scores.masked_fill_(~visible, -math.inf), slope
