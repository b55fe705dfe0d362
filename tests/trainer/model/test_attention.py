"""Which kernel attention takes, and that each computes the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from trainer.model.attention import (
    Kernel,
    Positions,
    attend_here,
    document_mask,
    kernel_for,
    mask_between,
    masks_of,
    pieces_between,
)
from trainer.model.config.sizes import model_config
from trainer.model.pieces import Scoring


@pytest.mark.parametrize(("model", "kernel"), [("debug", "dense"), ("moe-debug", "dense"), ("125M", "flex")])
def test_a_gpu_takes_the_kernel_that_bears_the_width_of_heads(model: str, kernel: str) -> None:
    assert kernel_for(torch.device("cuda"), model_config(model, 512).head_dim) == kernel
    assert kernel_for(torch.device("cpu"), model_config(model, 512).head_dim) == "dense"


NUM_HEADS, NUM_PAIRS, WIDTH, LENGTH = 4, 2, 16, 300
SINKS = torch.randn(NUM_HEADS, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
SCORINGS = {
    "plain": Scoring(scale=0.25),
    "capped": Scoring(scale=0.5, cap=2.0),
    "with sinks": Scoring(scale=0.25, sinks_H=SINKS),
    "capped, with sinks": Scoring(scale=0.5, cap=2.0, sinks_H=SINKS),
}
WINDOWS = (None, 1, 7, 128, 130, 299)


def documents(*rows: list[int]) -> Tensor:
    """The documents of rows, from their lengths."""
    each = (torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in rows)
    return torch.stack(list(each)).int()


def heads(*, requires_grad: bool = False) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(2, LENGTH, number, WIDTH) for number in (NUM_HEADS, NUM_PAIRS, NUM_PAIRS)]
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [one.requires_grad_(requires_grad) for one in drawn]


DOCUMENTS = documents([150, 1, 149], [40, 129, 131])
PLACES = torch.arange(LENGTH).expand(2, -1)


def pair_by_pair(window: int | None) -> Tensor:
    """Who sees whom, as the sentence says it."""
    near = PLACES[:, :, None] - PLACES[:, None, :]
    same = DOCUMENTS[:, :, None] == DOCUMENTS[:, None, :]
    return (same & (near >= 0) & (near < (window or LENGTH)))[:, None]


@pytest.mark.parametrize("scoring", SCORINGS.values(), ids=SCORINGS)
@pytest.mark.parametrize("window", WINDOWS)
def test_windows_in_blocks_are_those_of_a_mask_of_all_pairs(window: int | None, scoring: Scoring) -> None:
    found = []
    for mask in (document_mask(DOCUMENTS, "dense", window), pair_by_pair(window)):
        inputs = heads(requires_grad=True)
        output = attend_here(*inputs, mask, scoring)
        found.append([output, *torch.autograd.grad(output.square().sum(), inputs)])
    assert all((one - other).abs().max() < 1e-12 for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("scoring", SCORINGS.values(), ids=SCORINGS)
@pytest.mark.parametrize("window", WINDOWS)
def test_block_masks_give_what_a_mask_of_all_pairs_gives(window: int | None, scoring: Scoring) -> None:
    query, key, value = heads()
    with torch.no_grad():
        blocks = attend_here(query, key, value, document_mask(DOCUMENTS, "flex", window), scoring)
        dense = attend_here(query, key, value, pair_by_pair(window), scoring)
    assert (blocks - dense).abs().max() < 1e-6


@pytest.mark.parametrize("window", [None, 7, 130, 260])
def test_blocks_are_skipped_as_if_all_pairs_had_been_looked_at(window: int | None) -> None:
    """The same blocks whole, in part and not at all: in rows of long documents the bounds leave none too many."""
    documents_BT = documents([500, 12, 600, 168], [1280])
    mine = document_mask(documents_BT, "flex", window)

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = (query >= key) & (documents_BT[row, query] == documents_BT[row, key])
        return seen if window is None else seen & (query - key < window)

    theirs = create_block_mask(visible, 2, None, 1280, 1280, device="cpu")
    assert isinstance(mine, BlockMask)
    for name in ("kv_num_blocks", "full_kv_num_blocks"):
        assert torch.equal(getattr(mine, name), getattr(theirs, name)), name
    assert torch.equal(mine.to_dense(), theirs.to_dense())


@pytest.mark.parametrize("kernel", ["dense", "flex"])
@pytest.mark.parametrize("window", [None, 7, 130])
def test_positions_in_any_order_see_what_they_see_in_order(kernel: Kernel, window: int | None) -> None:
    query, key, value = heads()
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(2))
    mine, every = order[:100], torch.arange(LENGTH).flip(0)

    def positions(at: Tensor) -> Positions:
        return Positions(documents_BT=DOCUMENTS[:, at], places_BT=PLACES[:, at])

    mask = mask_between(positions(mine), positions(every), kernel, window)
    with torch.no_grad():
        found = attend_here(query[:, mine], key[:, every], value[:, every], mask, Scoring(scale=0.25))
        whole = attend_here(query, key, value, pair_by_pair(window), Scoring(scale=0.25))
    assert (found - whole[:, mine]).abs().max() < 1e-6


def test_pieces_of_a_window_have_the_keys_that_it_reaches_and_no_others() -> None:
    documents_BT = documents([2048], [1000, 1048])
    places_BT = torch.arange(2048).expand(2, -1)
    order = torch.cat((places_BT[:, 1024:1280], places_BT[:, :256]), dim=1).sort().values
    for at in (places_BT, order):
        queries = Positions(documents_BT=documents_BT.gather(1, at), places_BT=at)
        every = Positions(documents_BT=documents_BT, places_BT=places_BT)
        found = pieces_between(queries, every, 64)
        assert len(found) == at.shape[1] // 64
        assert all(piece.visible.shape[2] <= 64 and piece.visible.shape[3] <= 127 for piece in found)


def test_masks_are_made_once_for_the_layers_of_each_window() -> None:
    made = []
    masks = masks_of((8, None, 8, 64, 32), 32, lambda window: made.append(window) or window)
    assert made == [8, None]
    assert masks == {8: 8, None: None, 64: None, 32: None}
