"""Causal attention that never looks into another document of the same row.

Two kernels, equal results: SDPA with a dense mask (any device, memory of the mask seq_len² bits-as-bytes a
row), and flex_attention, which skips the blocks of the mask that are empty (GPU only: it has no backward on
CPU)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

DocumentMask = Tensor | BlockMask
Kernel = Literal["dense", "flex"]


_LEAST_FLEX_WIDTH: Final = 16
"""Numbers of a head that flex_attention's kernels take at least."""


def kernel_for(device: torch.device, head_dim: int) -> Kernel:
    """The kernel that is fast on `device`, of those that take heads of this width."""
    return "flex" if device.type == "cuda" and head_dim >= _LEAST_FLEX_WIDTH else "dense"


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """Positions of rows as a mask sees them: the number of each one's document, and its place in the row; (B,
    T)."""

    documents_BT: Tensor
    places_BT: Tensor


def document_mask(documents_BT: Tensor, kernel: Kernel) -> DocumentMask:
    """Who sees whom: position q sees k if k ≤ q and both carry the same document number.

    `documents_BT` numbers the documents of each row; only equality counts. Dense: bool of shape (B, 1, T,
    T)."""
    num_rows, num_positions = documents_BT.shape
    if kernel == "dense":
        same_BTT = documents_BT[:, :, None] == documents_BT[:, None, :]
        return same_BTT.tril_().unsqueeze(1)

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (documents_BT[row, query] == documents_BT[row, key])

    return create_block_mask(
        visible, num_rows, None, num_positions, num_positions, device=documents_BT.device.type
    )


def mask_between(queries: Positions, keys: Positions, kernel: Kernel) -> DocumentMask:
    """`document_mask` where queries and keys are other positions of the same rows, in any order: a query sees
    a key whose place is not after its own and whose document is its own. Dense: bool of shape (B, 1, T of
    queries, T of keys)."""
    if kernel == "dense":
        same_BTT = queries.documents_BT[:, :, None] == keys.documents_BT[:, None, :]
        return same_BTT.logical_and_(queries.places_BT[:, :, None] >= keys.places_BT[:, None, :]).unsqueeze(1)

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        not_after = queries.places_BT[row, query] >= keys.places_BT[row, key]
        return not_after & (queries.documents_BT[row, query] == keys.documents_BT[row, key])

    num_rows, num_queries = queries.places_BT.shape
    device = queries.places_BT.device.type
    return create_block_mask(visible, num_rows, None, num_queries, keys.places_BT.shape[1], device=device)


def attend_here(query_BTHK: Tensor, key_BTGK: Tensor, value_BTGK: Tensor, mask: DocumentMask) -> Tensor:
    """Attention output of shape (B, T, H, K) on this rank alone; H query heads share G key-value heads in
    equal groups."""
    query, key, value = (tensor.transpose(1, 2) for tensor in (query_BTHK, key_BTGK, value_BTGK))
    if isinstance(mask, BlockMask):
        output = _flex(query.is_cuda)(query, key, value, block_mask=mask, enable_gqa=True)
    else:
        # What SDPA would choose on a GPU adds gradients up in an order that changes from run to run.
        with sdpa_kernel(SDPBackend.MATH) if query.is_cuda else nullcontext():
            output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    return cast(Tensor, output).transpose(1, 2)


@functools.cache
def _flex(compiled: bool) -> Callable[..., Any]:
    # Uncompiled flex_attention materialises every score; it is for checking results only.
    return cast(Callable[..., Any], torch.compile(flex_attention) if compiled else flex_attention)
