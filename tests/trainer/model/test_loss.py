"""The loss without logits: equal to cross entropy over all of them, in the same bits however it is spread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module

from tests.support.processes.forked import run_forked
from trainer.data.dataset import IGNORED
from trainer.model import loss as loss_module
from trainer.model.loss import Head, Losses, Targets
from trainer.model.pieces import capped
from trainer.parallel.tensor import SplitRows
from trainer.processes.runtime import Process

ROWS, LENGTH, WIDTH, VOCAB = 4, 64, 32, 320
Z_LOSS = 1e-3


class Case(NamedTuple):
    """A stream, an output matrix, labels, and what each row's loss is multiplied with."""

    x_BTD: Tensor
    weight_VD: Tensor
    labels_BT: Tensor
    weights_B1: Tensor
    cap: float | None = None


class Found(NamedTuple):
    """Losses, what the z-loss adds, and the gradients of the objective."""

    losses_BT: Tensor
    z_BT: Tensor
    x_BTD: Tensor
    weight_VD: Tensor


def case(dtype: torch.dtype, cap: float | None = None, vocab: int = VOCAB) -> Case:
    generator = torch.Generator().manual_seed(0)
    labels_BT = torch.randint(vocab, (ROWS, LENGTH), generator=generator)
    labels_BT[:, ::7] = IGNORED
    return Case(
        x_BTD=torch.randn(ROWS, LENGTH, WIDTH, dtype=torch.float64, generator=generator).to(dtype),
        weight_VD=torch.randn(vocab, WIDTH, dtype=torch.float64, generator=generator).mul(0.3).to(dtype),
        labels_BT=labels_BT,
        weights_B1=torch.rand(ROWS, 1, dtype=torch.float64, generator=generator) / (ROWS * LENGTH),
        cap=cap,
    )


def plainly(given: Case) -> Found:
    """All logits at once, in at least float32."""
    wide = torch.promote_types(given.x_BTD.dtype, torch.float32)
    x_BTD, weight_VD = (tensor.to(wide).requires_grad_() for tensor in (given.x_BTD, given.weight_VD))
    logits_BTV = capped(x_BTD @ weight_VD.T, given.cap)
    losses_N = F.cross_entropy(
        logits_BTV.flatten(0, 1), given.labels_BT.flatten(), reduction="none", ignore_index=IGNORED
    )
    losses_BT = losses_N.view_as(given.labels_BT)
    z_BT = Z_LOSS * logits_BTV.logsumexp(-1).square() * (given.labels_BT != IGNORED)
    objective = ((losses_BT + z_BT) * given.weights_B1).sum()
    return Found(losses_BT.detach(), z_BT.detach(), *torch.autograd.grad(objective, (x_BTD, weight_VD)))


def in_pieces(given: Case, piece: int, monkeypatch: pytest.MonkeyPatch) -> Found:
    """As the trainer computes it, with pieces of so many positions."""
    monkeypatch.setattr(loss_module, "PIECE", piece)
    head = head_of(given)
    x_BTD = given.x_BTD.clone().requires_grad_()
    losses: Losses = head(x_BTD, Targets(labels_BT=given.labels_BT, weights_B1=given.weights_B1))
    torch.autograd.backward(losses.objective)
    assert x_BTD.grad is not None
    assert head.weight.grad is not None
    return Found(losses.of_tokens_BT, losses.z_BT, x_BTD.grad, head.weight.grad)


def head_of(given: Case) -> Head:
    head = Head(WIDTH, len(given.weight_VD), cap=given.cap, z_loss=Z_LOSS).to(given.weight_VD.dtype)
    with torch.no_grad():
        head.weight.copy_(given.weight_VD)
    return head


def apart(found: Found, wanted: Found) -> tuple[float, float]:
    """The largest difference of losses, beside a loss above 1 nat; of gradients, beside the largest one."""
    losses, gradients = zip(found[:2], wanted[:2], strict=True), zip(found[2:], wanted[2:], strict=True)
    return (
        max(float(((one - other).abs() / other.clamp_min(1)).max()) for one, other in losses),
        max(float((one - other).abs().max() / other.abs().max()) for one, other in gradients),
    )


@pytest.mark.parametrize("cap", [None, 3.0])
@pytest.mark.parametrize(
    ("dtype", "of_losses", "of_gradients"),
    [
        (torch.float64, 1e-13, 1e-13),
        (torch.float32, 1e-6, 1e-6),
        (torch.bfloat16, 1e-5, 2**-8),  # gradients are given in bfloat16: half a unit of its last place
    ],
)
def test_pieces_give_the_losses_and_gradients_of_whole_logits(
    dtype: torch.dtype,
    of_losses: float,
    of_gradients: float,
    cap: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = case(dtype, cap)
    losses, gradients = apart(in_pieces(given, 24, monkeypatch), plainly(given))
    assert losses < of_losses
    assert gradients < of_gradients


def test_a_label_far_below_the_largest_logit_has_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its exponential is 0 in float32."""
    given = case(torch.float32, cap=200.0)
    given = given._replace(x_BTD=60 * given.x_BTD)
    found, wanted = in_pieces(given, 24, monkeypatch), plainly(given)
    assert found.losses_BT.max() > 200
    losses, gradients = apart(found, wanted)
    assert losses < 1e-5
    assert gradients < 1e-5


def test_autocast_says_what_is_multiplied_and_narrows_no_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under DistributedDataParallel, where weights stay in float32."""
    narrow = case(torch.bfloat16)
    wide = narrow._replace(x_BTD=narrow.x_BTD.float(), weight_VD=narrow.weight_VD.float())
    expected = in_pieces(narrow, 24, monkeypatch)
    with torch.autocast("cpu", torch.bfloat16):
        found = in_pieces(wide, 24, monkeypatch)
    assert torch.equal(found.losses_BT, expected.losses_BT)
    assert torch.equal(found.weight_VD.bfloat16(), expected.weight_VD)
    assert found.weight_VD.dtype == torch.float32
    losses, gradients = apart(found, plainly(narrow))
    assert losses < 1e-5
    assert gradients < 1e-5


def test_gradients_from_bfloat16_are_summed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    given = case(torch.bfloat16)
    found, wanted = in_pieces(given, 8, monkeypatch), plainly(given)
    # What was rounded once, from the exact sum: no further off than the nearest number.
    assert (
        torch.equal(found.weight_VD, wanted.weight_VD.bfloat16())
        or ((found.weight_VD - wanted.weight_VD.bfloat16()).abs() > 0).float().mean() < 1e-3
    )


def test_losses_of_any_number_of_rows_are_the_same_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    given = case(torch.float32)
    whole = in_pieces(given, 24, monkeypatch)
    for num in (1, 2):
        parts = [
            in_pieces(
                given._replace(
                    x_BTD=given.x_BTD[rows],
                    labels_BT=given.labels_BT[rows],
                    weights_B1=given.weights_B1[rows],
                ),
                24,
                monkeypatch,
            )
            for rows in (slice(first, first + num) for first in range(0, ROWS, num))
        ]
        for name in ("losses_BT", "z_BT", "x_BTD"):
            assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name)), name


def _spread(given: Case, plant: Callable[[], None], process: Process) -> Found:
    torch.set_num_threads(1)
    plant()
    loss_module.PIECE = 24  # type: ignore[misc]
    mesh = init_device_mesh("cpu", (process.world_size,))
    head = head_of(given)
    parallelize_module(head, mesh, SplitRows())
    x_BTD = distribute_tensor(given.x_BTD, mesh, [Shard(1)]).requires_grad_()
    losses: Losses = head(x_BTD, Targets(labels_BT=given.labels_BT, weights_B1=given.weights_B1))
    torch.autograd.backward(losses.objective)
    gradients = [
        gradient.full_tensor() for gradient in (x_BTD.grad, head.weight.grad) if isinstance(gradient, DTensor)
    ]
    return Found(losses.of_tokens_BT, losses.z_BT, *gradients)


def nothing() -> None:
    """No fault."""


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_split_vocabulary_gives_the_same_bits(
    dtype: torch.dtype, num_ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    given = case(dtype, cap=5.0)
    alone = in_pieces(given, 24, monkeypatch)
    for found in run_forked(tmp_path, num_ranks, partial(_spread, given, nothing)):
        for name, one, other in zip(Found._fields, found, alone, strict=True):
            assert torch.equal(one, other), name


def test_a_vocabulary_that_does_not_split_in_eight_is_the_same_but_for_rounding(tmp_path: Path) -> None:
    whole = case(torch.float64, vocab=3 * 110)
    given = whole._replace(x_BTD=whole.x_BTD[:, :48], labels_BT=whole.labels_BT[:, :48])
    wanted = plainly(given)
    for found in run_forked(tmp_path, 3, partial(_spread, given, nothing)):
        losses, gradients = apart(found, wanted)
        assert losses < 1e-13
        assert gradients < 1e-13


def _keep_own_part() -> None:
    def alone(pieces: loss_module._Pieces, x_BTD: Tensor) -> Tensor:
        return x_BTD.chunk(pieces._num_ranks, 1)[pieces._rank]

    loss_module._Pieces._scattered = alone  # type: ignore[method-assign]


def test_a_rank_that_takes_the_gradient_of_its_vocabulary_alone_is_found(tmp_path: Path) -> None:
    given = case(torch.float64)
    found, *_ = run_forked(tmp_path, 2, partial(_spread, given, _keep_own_part))
    losses, gradients = apart(found, plainly(given))
    assert losses < 1e-13
    assert gradients > 0.1


def test_nothing_is_kept_where_nothing_is_differentiated() -> None:
    given = case(torch.float32)
    head = head_of(given)
    with torch.no_grad():
        wanted = Targets(labels_BT=given.labels_BT, weights_B1=given.weights_B1)
        assert not head(given.x_BTD, wanted).objective.requires_grad
    losses: Losses = head(given.x_BTD.clone().requires_grad_(), Targets(labels_BT=given.labels_BT))
    assert not losses.objective.requires_grad
    assert torch.equal(losses.of_tokens_BT, head(given.x_BTD, wanted).of_tokens_BT)
