"""Causal attention that never looks into another document of the same row.

Two kernels, equal results: SDPA with a dense mask (any device, memory of the mask seq_len² bits-as-bytes a row), and
flex_attention, which skips the blocks of the mask that are empty (GPU only: it has no backward on CPU).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

Mask = Tensor | BlockMask
Kernel = Literal["dense", "flex"]


def kernel_for(device: torch.device) -> Kernel:
    """The kernel that is fast on `device`."""
    return "flex" if device.type == "cuda" else "dense"


def document_mask(documents_BT: Tensor, kernel: Kernel) -> Mask:
    """Who sees whom: position q sees k if k ≤ q and both carry the same document number.

    `documents_BT` numbers the documents of each row; only equality counts. Dense: bool of shape (B, 1, T, T)."""
    num_rows, num_positions = documents_BT.shape
    if kernel == "dense":
        same_BTT = documents_BT[:, :, None] == documents_BT[:, None, :]
        return same_BTT.tril_().unsqueeze(1)

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (documents_BT[row, query] == documents_BT[row, key])

    return create_block_mask(visible, num_rows, None, num_positions, num_positions, device=documents_BT.device.type)


def attend(query_BTHK: Tensor, key_BTGK: Tensor, value_BTGK: Tensor, mask: Mask) -> Tensor:
    """Attention output of shape (B, T, H, K); H query heads share G key-value heads in equal groups."""
    query, key, value = (tensor.transpose(1, 2) for tensor in (query_BTHK, key_BTGK, value_BTGK))
    if isinstance(mask, BlockMask):
        output = _flex(query.is_cuda)(query, key, value, block_mask=mask, enable_gqa=True)
    else:
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    return cast(Tensor, output).transpose(1, 2)


@functools.cache
def _flex(compiled: bool) -> Callable[..., Any]:
    # Uncompiled flex_attention materialises every score; it is for checking results only.
    return cast(Callable[..., Any], torch.compile(flex_attention) if compiled else flex_attention)
