"""Which positions of a row each context parallel rank works on, and who sees whom then.

Labels were shifted when the rows were read, so any share of positions is exact. Work is what attention costs:
position q of a document sees q + 1 keys.

    zigzag      two chunks of 2·cp, the r-th from either end: equal work where a row is one document
    documents   short blocks dealt by their work, row by row, the dearest first
    none        one chunk each, in order
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.model.attention import Kernel, Positions, mask_between, masks_of, pieces_between
from trainer.model.context import GatheredMask, Mask
from trainer.model.pieces import RingMask
from trainer.model.rows import DeviceRows

Balance = Literal["zigzag", "documents", "none"]
_LARGEST_BLOCK: Final = 128
"""Positions of a block that is dealt whole: flex_attention skips empty blocks of this size."""
_BLOCKS_OF_A_RANK: Final = 8
"""A row is cut finely enough that each rank gets as many blocks, where that is possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOptions:
    """How rows are shared, over the ranks of `group`, by layers with these windows."""

    group: dist.ProcessGroup
    method: Literal["gather", "ring"]
    balance: Balance
    windows: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextShare:
    """What falls to this rank: its positions of the rows, the masks of each window, their places in the row
    (B, T), and of the whole group the work of the fullest rank and of the mean one."""

    rows: DeviceRows
    masks: Mapping[int | None, Mask]
    places_BT: Tensor
    most_work: Tensor
    mean_work: Tensor


def share_rows(rows: DeviceRows, options: ContextOptions, kernel: Kernel) -> ContextShare:
    """This rank's share of whole rows; every rank of the group is given the same ones."""
    group = options.group
    places_BRT = deal_positions(rows.positions_BT, group.size(), options.balance)
    mine_BT = places_BRT[:, group.rank()]
    work_BT = rows.positions_BT.to(torch.int64) + 1
    by_rank = torch.stack([work_BT.gather(1, places_BT).sum() for places_BT in places_BRT.unbind(1)]).double()
    build = partial(_mask, rows.documents_BT, places_BRT, options, kernel)
    return ContextShare(
        rows=DeviceRows(
            inputs_BT=rows.inputs_BT.gather(1, mine_BT),
            labels_BT=rows.labels_BT.gather(1, mine_BT),
            positions_BT=rows.positions_BT.gather(1, mine_BT),
            documents_BT=rows.documents_BT.gather(1, mine_BT),
            sources_B=rows.sources_B,
            rows_B=rows.rows_B,
        ),
        masks=masks_of(options.windows, rows.documents_BT.shape[1], build),
        places_BT=mine_BT,
        most_work=by_rank.max(),
        mean_work=by_rank.mean(),
    )


def _mask(
    documents_BT: Tensor, places_BRT: Tensor, options: ContextOptions, kernel: Kernel, window: int | None
) -> Mask:
    def positions(places_BT: Tensor) -> Positions:
        return Positions(documents_BT=documents_BT.gather(1, places_BT), places_BT=places_BT)

    group = options.group
    queries, every = positions(places_BRT[:, group.rank()]), places_BRT.flatten(1)
    if options.method == "ring":
        # What each rank sees decides what the host starts, so it must be read from the device.
        parts = (pieces_between(queries, positions(places_BT), window) for places_BT in places_BRT.unbind(1))
        return RingMask(group=group, parts=tuple(parts))
    if kernel == "flex" or window is None:
        return GatheredMask(group=group, mask=mask_between(queries, positions(every), kernel, window))
    in_order = every.sort(dim=1)
    mask = pieces_between(queries, positions(in_order.values), window)
    return GatheredMask(group=group, mask=mask, order_BT=in_order.indices)


def deal_positions(positions_BT: Tensor, num_ranks: int, balance: Balance) -> Tensor:
    """The places in the row that each rank works on, int64 (B, ranks, T/ranks), rising within a rank.

    `positions_BT`: each position's place in its document. `zigzag` needs a T that 2·ranks divides, the others
    ranks."""
    num_rows, length = positions_BT.shape
    places_T = torch.arange(length, device=positions_BT.device)
    if balance == "none":
        return places_T.view(num_ranks, -1).expand(num_rows, -1, -1)
    if balance == "zigzag":
        chunks = places_T.view(2 * num_ranks, -1)
        return torch.cat((chunks[:num_ranks], chunks.flip(0)[:num_ranks]), dim=1).expand(num_rows, -1, -1)
    size = _block_size(length // num_ranks)
    work_BN = (positions_BT.to(torch.int64) + 1).view(num_rows, -1, size).sum(-1)
    dearest_BN = work_BN.argsort(dim=1, descending=True, stable=True)
    # Dealt in turns, there and back: who comes last in one turn comes first in the next.
    turns = dearest_BN.view(num_rows, -1, num_ranks).clone()
    turns[:, 1::2] = turns[:, 1::2].flip(-1)
    blocks_BRN = turns.transpose(1, 2).sort(dim=-1).values
    return (blocks_BRN[..., None] * size + places_T[:size]).flatten(2)


def _block_size(share: int) -> int:
    """The largest power of two that divides a rank's share and cuts it into enough blocks."""
    size = 1
    while size < _LARGEST_BLOCK and share % (2 * size) == 0 and share // (2 * size) >= _BLOCKS_OF_A_RANK:
        size *= 2
    return size
