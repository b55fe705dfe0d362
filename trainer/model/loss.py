"""The cross entropy of a model's output without its logits: they are there for a piece of a row at a time, its
losses and gradients are computed at once, and the next piece takes their place.

Bits do not depend on the layout nor on the micro-batch: a piece is always the same positions of a row, and the
vocabulary is summed up in parts, which tensor parallel ranks share without cutting one. Everything is summed in
at least float32. Axes as in `transformer.py`; N the positions of a piece, P parts, S rows of the output matrix
in a part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.data.dataset import IGNORED
from trainer.model.config.description import PIECE, vocabulary_parts
from trainer.model.peers import gathered
from trainer.model.pieces import capped


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What is wanted of the output. `weights_B1`: what a counted loss is multiplied with in the objective, by row
    (B, 1) or one for all; None: nothing is differentiated."""

    labels_BT: Tensor
    weights_B1: Tensor | None = None


class Losses(NamedTuple):
    """Of a micro-batch, on every tensor parallel rank the same. `of_tokens_BT`: cross entropy in nats, at least
    float32, 0 where the label does not count; `z_BT`: what `z_loss` adds to it. `objective`: the sum of both,
    weighted, a scalar to go backward from once."""

    objective: Tensor
    of_tokens_BT: Tensor
    z_BT: Tensor


class Head(nn.Linear):
    """The output matrix: from the last norm's output to losses, or to logits.

    `cap`: of logits; `z_loss`: what the square of the logarithm of the sum of all exponentials is multiplied
    with, to be added to the cross entropy (PaLM, 2204.02311, section 5)."""

    def __init__(self, width: int, vocab_size: int, *, cap: float | None, z_loss: float) -> None:
        super().__init__(width, vocab_size, bias=False)
        self.cap, self.z_loss = cap, z_loss

    def forward(self, x_BTD: Tensor, targets: Targets | None = None) -> Any:
        """`Losses`; without `targets` logits (B, T, V). Under tensor parallel `x_BTD` is split by position, its
        labels are whole."""
        if targets is None:
            return capped(super().forward(x_BTD), self.cap)
        weight_VD: Tensor = self.weight
        group: dist.ProcessGroup | None = None
        if isinstance(weight_VD, DTensor):
            group = weight_VD.device_mesh.get_group()
            weight_VD, x_BTD = weight_VD.to_local(), cast(DTensor, x_BTD).to_local()
        weights = targets.weights_B1
        differentiates = weights is not None and torch.is_grad_enabled()
        # Autocast says what is multiplied; it would also narrow the sums.
        with torch.no_grad():
            pieces = _Pieces(self, weight_VD, x_BTD, group, differentiates=differentiates)
        with torch.no_grad(), torch.autocast(x_BTD.device.type, enabled=False):
            losses_BT, z_BT = pieces.compute(x_BTD, targets)
            total = losses_BT + z_BT
            value = (total if weights is None else total * weights.to(total.dtype)).sum()
            gradients = pieces.gradients()
        for tensor, gradient in zip((x_BTD, weight_VD), gradients, strict=False):
            value = value + cast(Tensor, _Known.apply(tensor, gradient))  # type: ignore[no-untyped-call]
        return Losses(value, losses_BT, z_BT)


class _Known(torch.autograd.Function):
    """Nothing, with a gradient that is known already. One for each tensor, since a pipeline that splits backward
    asks for the weight's after that of the stream."""

    @staticmethod
    def forward(ctx: Any, of: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return gradient.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None]:
        # Let go here: autograd then makes it the parameter's own, and copies nothing.
        gradient, ctx.gradient = ctx.gradient, None
        return gradient.mul_(outer[0]), None


class _Pieces:
    """The pieces of a micro-batch, one after the other."""

    def __init__(
        self,
        head: Head,
        weight_VD: Tensor,
        x_BTD: Tensor,
        group: dist.ProcessGroup | None,
        *,
        differentiates: bool,
    ) -> None:
        device, self._cap, self._z_loss = weight_VD.device, head.cap, head.z_loss
        self._group = group
        self._rank, self._num_ranks = (0, 1) if group is None else (group.rank(), group.size())
        self._dtype = weight_VD.dtype
        if torch.is_autocast_enabled(device.type):
            self._dtype = torch.get_autocast_dtype(device.type)
        self._wide = torch.promote_types(self._dtype, torch.float32)
        self._of_weight, self._of_stream = weight_VD.dtype, x_BTD.dtype
        num_parts = vocabulary_parts(len(weight_VD) * self._num_ranks, self._num_ranks)
        self._parts_PSD = weight_VD.to(self._dtype).view(num_parts, -1, weight_VD.shape[1])
        self._differentiates = differentiates
        self._x_BTD: Tensor | None = None
        self._weight_PSD: Tensor | None = None
        if differentiates:
            self._weight_PSD = torch.zeros(self._parts_PSD.shape, dtype=self._wide, device=device)

    def compute(self, x_BTD: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        """The losses of all positions, and what `z_loss` adds to them."""
        x_BTD = self._gathered(x_BTD.to(self._dtype))
        if self._differentiates:
            self._x_BTD = x_BTD.new_empty(x_BTD.shape, dtype=self._wide)
        found_2BT = x_BTD.new_empty((2, *x_BTD.shape[:2]), dtype=self._wide)
        weights_BT = None
        if targets.weights_B1 is not None:
            weights_BT = targets.weights_B1.to(self._wide) * (targets.labels_BT != IGNORED)
        for row, x_TD in enumerate(x_BTD):
            for first in range(0, len(x_TD), PIECE):
                place = row, slice(first, first + PIECE)
                weights_N = None if weights_BT is None else weights_BT[place]
                found_2BT[:, *place] = self._piece(place, x_TD[place[1]], targets.labels_BT[place], weights_N)
        return found_2BT[0], found_2BT[1]

    def gradients(self) -> tuple[Tensor, ...]:
        """Those of the objective by this rank's stream and weight, in their dtypes; none where nothing is
        differentiated."""
        if self._x_BTD is None or self._weight_PSD is None:
            return ()
        return self._scattered(self._x_BTD).to(self._of_stream), self._weight_PSD.flatten(0, 1).to(
            self._of_weight
        )

    def _piece(
        self, place: tuple[int, slice], x_ND: Tensor, labels_N: Tensor, weights_N: Tensor | None
    ) -> Tensor:
        """Losses and what `z_loss` adds, (2, N); the gradients are kept."""
        parts = [self._product(x_ND, part_SD.T) for part_SD in self._parts_PSD]
        if self._cap is not None:
            for part_NS in parts:
                part_NS.div_(self._cap).tanh_().mul_(self._cap)
        counted_N = labels_N != IGNORED
        size = self._parts_PSD.shape[1]
        first = self._rank * len(parts)
        owner_N, target_N1 = labels_N // size - first, (labels_N % size)[:, None]
        of_label_N = x_ND.new_zeros(len(x_ND), dtype=self._wide)
        most, sums = [], []
        for number, part_NS in enumerate(parts):
            of_label_N += part_NS.gather(1, target_N1)[:, 0].where(owner_N == number, 0.0)
            most.append(part_NS.amax(1, keepdim=True))
            sums.append(part_NS.sub_(most[-1]).exp_().sum(1, keepdim=True))
        of_label_N, most_NP, sums_NP = self._over_ranks(of_label_N, torch.cat(most, 1), torch.cat(sums, 1))
        # By parts, in their order: whoever computed them.
        shares_NP = (most_NP - most_NP.amax(1, keepdim=True)).exp_()
        total_N = torch.zeros_like(of_label_N)
        for number in range(shares_NP.shape[1]):
            total_N += sums_NP[:, number] * shares_NP[:, number]
        lse_N = total_N.log() + most_NP.amax(1)
        if self._differentiates:
            assert weights_N is not None
            slope_N = weights_N * (1 + 2 * self._z_loss * lse_N) / total_N
            slopes_NP = (slope_N[:, None] * shares_NP)[:, first : first + len(parts)]
            for number, part_NS in enumerate(parts):
                tangent_NS = None if self._cap is None else self._tangent(part_NS, most[number])
                part_NS.mul_(slopes_NP[:, number : number + 1])
                own_N = weights_N.where(owner_N == number, 0.0)
                part_NS.scatter_add_(1, target_N1, -own_N[:, None])
                if tangent_NS is not None:
                    # A label's logit is known, also where its exponential came to 0.
                    of_label_N1 = _slope_at(of_label_N / cast(float, self._cap))[:, None]
                    here_N1 = (owner_N == number)[:, None]
                    known_N1 = of_label_N1.where(here_N1, tangent_NS.gather(1, target_N1))
                    part_NS.mul_(tangent_NS.scatter_(1, target_N1, known_N1))
            self._keep(place, x_ND, parts)
        found_2N = torch.stack([lse_N - of_label_N, self._z_loss * lse_N.square()])
        return found_2N.where(counted_N, 0.0)

    def _tangent(self, exponentials_NS: Tensor, most_N1: Tensor) -> Tensor:
        """The cap's, made from what is left of capped logits: one that is too small for its exponential has no
        gradient, if it is no label."""
        cap = cast(float, self._cap)
        return _slope_at(exponentials_NS.log().add_(most_N1).clamp_(-cap, cap).div_(cap))

    def _keep(self, place: tuple[int, slice], x_ND: Tensor, parts: list[Tensor]) -> None:
        """Add the gradients of a piece, of which `parts` are those of its logits."""
        assert self._x_BTD is not None
        assert self._weight_PSD is not None
        self._x_BTD[place] = _tree(
            lambda number: self._product(parts[number], self._parts_PSD[number]), 0, len(parts)
        )
        for number, part_NS in enumerate(parts):
            if self._dtype == self._wide:
                self._weight_PSD[number].addmm_(part_NS.T, x_ND)
            else:
                self._weight_PSD[number] += self._product(part_NS.T, x_ND)

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        """The product in at least float32. Of narrower numbers a GPU sums up there what it multiplies, and a
        processor has no such product."""
        if self._dtype != self._wide and left.is_cuda:
            return torch.mm(left.to(self._dtype), right.to(self._dtype), out_dtype=self._wide)
        return left.to(self._wide) @ right.to(self._wide)

    def _gathered(self, x_BTD: Tensor) -> Tensor:
        """The stream of all positions, from the ranks' shares."""
        return x_BTD if self._group is None else torch.cat(gathered(x_BTD, self._group), 1)

    def _scattered(self, x_BTD: Tensor) -> Tensor:
        """This rank's positions, summed over ranks in the order in which one rank sums its parts."""
        if self._group is None:
            return x_BTD
        sent = torch.stack(x_BTD.chunk(self._num_ranks, 1))
        came = torch.empty_like(sent)
        dist.all_to_all_single(came, sent, group=self._group)
        return _tree(lambda rank: came[rank], 0, self._num_ranks)

    def _over_ranks(
        self, of_label_N: Tensor, most_NP: Tensor, sums_NP: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same of the whole vocabulary. A label's logit lies on one rank, and is 0 on the others."""
        if self._group is None:
            return of_label_N, most_NP, sums_NP
        mine_NQ = torch.cat([of_label_N[:, None], most_NP, sums_NP], 1)
        every_RNQ, num = torch.stack(gathered(mine_NQ, self._group)), most_NP.shape[1]
        labels, most, sums = every_RNQ[..., 0], every_RNQ[..., 1 : 1 + num], every_RNQ[..., 1 + num :]
        return labels.sum(0), torch.cat([*most], 1), torch.cat([*sums], 1)


def _tree(of: Callable[[int], Tensor], first: int, end: int) -> Tensor:
    """The sum of [first, end) by halves, in place of the first."""
    if end - first == 1:
        return of(first)
    middle = (first + end + 1) // 2
    return _tree(of, first, middle).add_(_tree(of, middle, end))


def _slope_at(shares: Tensor) -> Tensor:
    """The cap's derivative where it gave these shares of itself; it takes their place."""
    return shares.square_().neg_().add_(1)
