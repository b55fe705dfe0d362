"""Causal attention that never looks into another document of the same row, nor further back than a window.

Three kernels, equal results: SDPA with a dense mask (any device, memory of the mask seq_len² bits-as-bytes a row);
piece by piece, where a window leaves few keys, or scores are capped or have sinks; and flex_attention, which skips the
blocks of the mask that are empty (GPU only: it has no backward on CPU)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from trainer.model.pieces import Piece, Pieces, Scoring, attend_in_pieces, capped

Kernel = Literal["dense", "flex"]

_LEAST_FLEX_WIDTH: Final = 16
"""Numbers of a head that flex_attention's kernels take at least."""
_BLOCK: Final = 128
"""Positions of a block that flex_attention computes or skips as a whole."""
_QUERIES_AT_ONCE: Final = 1024
"""Queries of a piece at most: their scores are there all at once."""


def kernel_for(device: torch.device, head_dim: int) -> Kernel:
    """The kernel that is fast on `device`, of those that take heads of this width."""
    return "flex" if device.type == "cuda" and head_dim >= _LEAST_FLEX_WIDTH else "dense"


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """Positions of rows as a mask sees them: the number of each one's document, and its place in the row; (B,
    T). `whole`: all of a row's, in their order."""

    documents_BT: Tensor
    places_BT: Tensor
    whole: bool = False

    def part(self, rows: slice, at: slice) -> Positions:
        """Those of some rows."""
        return Positions(documents_BT=self.documents_BT[rows, at], places_BT=self.places_BT[rows, at])


DocumentMask = Tensor | BlockMask | Pieces
_Mask = TypeVar("_Mask")


def masks_of(
    windows: Iterable[int | None], length: int, build: Callable[[int | None], _Mask]
) -> dict[int | None, _Mask]:
    """The mask of each window, made once: of rows of `length` positions those that reach as far are as none."""
    acting = {window: window if window is not None and window < length else None for window in windows}
    made = {window: build(window) for window in dict.fromkeys(acting.values())}
    return {window: made[acts] for window, acts in acting.items()}


def document_masks(
    documents_BT: Tensor, windows: Iterable[int | None], kernel: Kernel
) -> Mapping[int | None, DocumentMask]:
    """`document_mask` for the layers of each window."""
    build = functools.partial(document_mask, documents_BT, kernel)
    return masks_of(windows, documents_BT.shape[1], build)


def document_mask(documents_BT: Tensor, kernel: Kernel, window: int | None = None) -> DocumentMask:
    """Who sees whom: position q sees k if k ≤ q, q - k < window and both carry the same document number.

    `documents_BT` numbers the documents of each row; only equality counts. Dense: bool of shape (B, 1, T,
    T), pieces with a window."""
    places_T = torch.arange(documents_BT.shape[1], device=documents_BT.device)
    every = Positions(documents_BT=documents_BT, places_BT=places_T.expand_as(documents_BT), whole=True)
    if kernel == "dense" and window is not None:
        return pieces_between(every, every, window)
    return mask_between(every, every, kernel, window)


def mask_between(
    queries: Positions, keys: Positions, kernel: Kernel, window: int | None = None
) -> Tensor | BlockMask:
    """`document_mask` where queries and keys are other positions of the same rows, in any order: a query sees
    a key whose place is not after its own, and not `window` before it, and whose document is its own. Dense:
    bool of shape (B, 1, T of queries, T of keys)."""
    if kernel == "dense":
        return _visible_between(queries, keys, window)

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        query_place = query if queries.whole else queries.places_BT[row, query]
        key_place = key if keys.whole else keys.places_BT[row, key]
        same = queries.documents_BT[row, query] == keys.documents_BT[row, key]
        seen = (query_place >= key_place) & same
        return seen if window is None else seen & (query_place - key_place < window)

    return _block_mask(queries, keys, window, visible)


def _visible_between(queries: Positions, keys: Positions, window: int | None) -> Tensor:
    visible_BTT = queries.documents_BT[:, :, None] == keys.documents_BT[:, None, :]
    visible_BTT.logical_and_(queries.places_BT[:, :, None] >= keys.places_BT[:, None, :])
    if window is not None:
        visible_BTT.logical_and_(queries.places_BT[:, :, None] - keys.places_BT[:, None, :] < window)
    return visible_BTT.unsqueeze(1)


def pieces_between(queries: Positions, keys: Positions, window: int | None) -> Pieces:
    """`mask_between` in pieces, without those where nothing is visible. Keys are in the order of their places in
    the row. With a window a piece has queries whose places follow each other, and the keys that their windows
    reach."""
    if window is None:
        whole = _pieces_of(_visible_between(queries, keys, window))
        return tuple(piece for piece in whole if bool(piece.visible.any()))
    (num_rows, num_queries), found = queries.places_BT.shape, list[Piece]()
    alike = all(bool((one.places_BT == one.places_BT[0]).all()) for one in (queries, keys))
    for rows in [slice(0, num_rows)] if alike else [slice(row, row + 1) for row in range(num_rows)]:
        places_Q, places_K = queries.places_BT[rows.start], keys.places_BT[rows.start].contiguous()
        number_Q = torch.arange(num_queries, device=places_Q.device)
        follows_Q = F.pad(places_Q.diff() == 1, (1, 0))
        run_Q = number_Q.masked_fill(follows_Q, 0).cummax(0).values  # where the run of places began
        low = ((number_Q - run_Q) % min(window, _QUERIES_AT_ONCE) == 0).nonzero().flatten()
        high = F.pad(low[1:], (0, 1), value=num_queries)
        first = torch.searchsorted(places_K, places_Q[low] - window, right=True)
        end = torch.searchsorted(places_K, places_Q[high - 1], right=True)
        for bounds in torch.stack((low, high, first, end), dim=1).tolist():
            at, there = slice(*bounds[:2]), slice(*bounds[2:])
            near = _visible_between(queries.part(rows, at), keys.part(rows, there), window)
            if near.numel() and bool(near.any()):
                found.append(Piece(rows=rows, queries=at, keys=there, visible=near))
    return tuple(found)


def _pieces_of(visible_BTT: Tensor) -> Pieces:
    """A dense mask in pieces of all rows and keys."""
    rows, keys = slice(0, len(visible_BTT)), slice(0, visible_BTT.shape[-1])
    cuts = (slice(low, low + _QUERIES_AT_ONCE) for low in range(0, visible_BTT.shape[2], _QUERIES_AT_ONCE))
    return tuple(Piece(rows=rows, queries=at, keys=keys, visible=visible_BTT[:, :, at]) for at in cuts)


def _block_mask(
    queries: Positions, keys: Positions, window: int | None, visible: Callable[..., Tensor]
) -> BlockMask:
    """From the bounds of each block's places and documents, so that no matrix of all positions is ever made. A
    block where bounds do not exclude a `visible` pair is computed, pair by pair unless all of it is visible."""
    (first_document, first), (last_document, last) = _bounds(queries, -1)
    (first_of_key, key_first), (last_of_key, key_last) = _bounds(keys, -2)
    some = (last >= key_first) & (last_document >= first_of_key) & (first_document <= last_of_key)
    every = (first >= key_last) & (first_document == last_document)
    every &= (first_of_key == last_of_key) & (first_document == last_of_key)
    if window is not None:
        some &= first - key_last < window
        every &= last - key_first < window
    for axis, positions in ((1, queries), (2, keys)):
        if positions.places_BT.shape[1] % _BLOCK:  # the last block is not whole
            every.select(axis, -1).fill_(False)
    lengths = queries.places_BT.shape[1], keys.places_BT.shape[1]
    blocks = *_ordered(some & ~every), *_ordered(every)
    return BlockMask.from_kv_blocks(*blocks, BLOCK_SIZE=_BLOCK, mask_mod=visible, seq_lengths=lengths)


def _bounds(positions: Positions, axis: int) -> tuple[Tensor, Tensor]:
    """The least and the greatest document and place of each block, (2, B, blocks) with another `axis`."""
    both = torch.stack((positions.documents_BT, positions.places_BT))
    filled = torch.cat((both, both[..., -1:].expand(-1, -1, -both.shape[-1] % _BLOCK)), dim=-1)
    low, high = filled.reshape(*filled.shape[:2], -1, _BLOCK).aminmax(dim=-1)
    return low.unsqueeze(axis), high.unsqueeze(axis)


def _ordered(chosen_BQK: Tensor) -> tuple[Tensor, Tensor]:
    """Of each block of queries the number of key blocks that are chosen, and all key blocks, these first; with
    an axis of heads."""
    order = chosen_BQK.int().argsort(dim=-1, descending=True, stable=True)
    return chosen_BQK.sum(-1, dtype=torch.int32).unsqueeze(1), order.to(torch.int32).unsqueeze(1)


def attend_here(
    query_BTHK: Tensor, key_BTGK: Tensor, value_BTGK: Tensor, mask: DocumentMask, scoring: Scoring
) -> Tensor:
    """Attention output of shape (B, T, H, K) on this rank alone; H query heads share G key-value heads in
    equal groups."""
    plain = scoring.cap is None and scoring.sinks_H is None
    if isinstance(mask, tuple) or not (plain or isinstance(mask, BlockMask)):
        pieces = mask if isinstance(mask, tuple) else _pieces_of(mask)
        attend: Callable[..., Tensor] = _attend_to_each if plain else attend_in_pieces
        return attend(query_BTHK, key_BTGK, value_BTGK, pieces, scoring)
    query, key, value = (tensor.transpose(1, 2) for tensor in (query_BTHK, key_BTGK, value_BTGK))
    if isinstance(mask, BlockMask):
        output = _attend_in_blocks(query, key, value, mask, scoring)
    else:
        # What SDPA would choose on a GPU adds gradients up in an order that changes from run to run.
        with sdpa_kernel(SDPBackend.MATH) if query.is_cuda else nullcontext():
            output = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, scale=scoring.scale, enable_gqa=True
            )
    return output.transpose(1, 2)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _attend_to_each(
    query_BTHK: Tensor, key_BTGK: Tensor, value_BTGK: Tensor, pieces: Pieces, scoring: Scoring
) -> Tensor:
    """Each piece by itself, since all that its queries see is in it."""
    whole = []
    for _, of_rows in itertools.groupby(pieces, lambda piece: piece.rows.start):
        outputs = [
            attend_here(query_BTHK[rows, at], key_BTGK[rows, keys], value_BTGK[rows, keys], visible, scoring)
            for rows, at, keys, visible in of_rows
        ]
        whole.append(torch.cat(outputs, dim=1))
    return torch.cat(whole)


def _attend_in_blocks(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scoring: Scoring) -> Tensor:
    attend = functools.partial(_flex(query.is_cuda), block_mask=mask, scale=scoring.scale, enable_gqa=True)
    kernel = functools.partial(attend, query, key, value, score_mod=_cap_mod(scoring.cap))
    if scoring.sinks_H is None:
        return cast(Tensor, kernel())
    output, found = kernel(return_aux=AuxRequest(lse=True))
    # A further score s in the softmax takes 1 / (1 + exp(L - s)) of it, for the logarithm L of the rest's sum.
    left = torch.sigmoid(found.lse - scoring.sinks_H.to(found.lse.dtype)[:, None])
    return cast(Tensor, output * left[..., None].to(output.dtype))


@functools.cache
def _cap_mod(cap: float | None) -> Callable[..., Tensor] | None:
    """One function for each cap, since a compiled kernel belongs to one."""
    if cap is None:
        return None

    def mod(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return capped(score, cap)

    return mod


@functools.cache
def _flex(compiled: bool) -> Callable[..., Any]:
    # Uncompiled flex_attention materialises every score; it is for checking results only.
    return cast(Callable[..., Any], torch.compile(flex_attention) if compiled else flex_attention)
