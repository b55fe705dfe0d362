"""Muon (Keller Jordan, kellerjordan.github.io/posts/muon; Liu et al., 2502.16982): the momentum of a matrix, made
orthogonal, is its update.

A matrix that several ranks have pieces of travels whole to one of them, its owner, and its update back in pieces
(`owners.py`): so the bits of an update do not depend on the layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.model.peers import local_part
from trainer.optim.owners import Matrix, MatrixExchange, Region, pieces_of, shared, within
from trainer.recipe_tables.optimizer import MuonTable

Triples = tuple[tuple[float, float, float], ...]

QUINTIC: Final[Triples] = ((3.4445, -4.7750, 2.0315),)
POLAR_EXPRESS: Final[Triples] = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
"""Amsel et al., 2505.16932, algorithm 1, with the safety factor 1.02 for bfloat16; later rounds repeat the
last triple."""
_SAFETY: Final = 1.02


def orthogonalised(update: Tensor, table: MuonTable) -> Tensor:
    """The matrix (A, B) with its singular values brought near 1, in its dtype."""
    x = update.T if update.shape[0] > update.shape[1] else update
    if table.coefficients == "quintic":
        triples, x = QUINTIC, x / x.norm().clamp(min=1e-7)
    else:
        triples, x = POLAR_EXPRESS, x / (x.norm() * _SAFETY + 1e-6)
    for number in range(table.iterations):
        a, b, c = triples[min(number, len(triples) - 1)]
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if update.shape[0] > update.shape[1] else x


def factor_by_shape(rows: int, columns: int, table: MuonTable) -> float:
    """What the rate of a matrix is multiplied with."""
    if table.rate_by_shape == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What Muon updates: a matrix, matrices of so many `rows` one behind another, or a stack of either.
    `peak`: of its learning rate."""

    parameter: nn.Parameter
    rows: tuple[int, ...]
    peak: float
    weight_decay: float

    def blocks(self) -> Iterator[Region]:
        """Its matrices."""
        *stacked, _, columns = self.parameter.shape
        ends = [*accumulate(self.rows)]
        for place in np.ndindex(*stacked):
            for end, rows in zip(ends, self.rows, strict=True):
                yield (*((number, number + 1) for number in place), (end - rows, end), (0, columns))


class Muon:
    """Updates matrices inside layers. Every rank of `group`, which share those of a pipeline stage, makes it
    with the same ones in the same order; None: this rank has them alone."""

    def __init__(self, members: Sequence[Member], table: MuonTable, group: dist.ProcessGroup | None) -> None:
        self._table, self.members = table, members
        rank = 0 if group is None else group.rank()
        self.momenta = {member.parameter: torch.zeros_like(member.parameter).detach() for member in members}
        self._updates: list[Tensor] = []
        self._factors: list[list[tuple[Any, float]]] = []
        matrices: list[Matrix] = []
        for number, member in enumerate(members):
            pieces = pieces_of(member.parameter, group)
            mine = [Matrix(parameter=number, block=block, pieces=pieces) for block in member.blocks()]
            matrices += mine
            self._factors.append(_factors(mine, rank, table))
        self._exchange = MatrixExchange(matrices, group)

    @torch.no_grad()
    def prepare(self) -> None:
        """Make the update of the gradients as they are. Nothing that a step begins with is changed.
        Collective."""
        pieces = []
        for member in self.members:
            gradient = _gradient(member.parameter)
            momentum = self._moved(member.parameter)
            wanted = gradient.lerp(momentum, self._table.momentum) if self._table.nesterov else momentum
            # bfloat16 as published; a run in float64, whose digits are to be compared, stays there.
            pieces.append(wanted if wanted.dtype == torch.float64 else wanted.bfloat16())
        self._updates = self._exchange.run(pieces, lambda whole: orthogonalised(whole, self._table))

    @torch.no_grad()
    def apply(self, rate: Callable[[float], float], counts: Tensor) -> None:
        """Bring what was prepared into weights and momenta where `counts`, a bool on the device, is true.
        `rate`: of a peak, the learning rate now."""
        for member, update, factors in zip(self.members, self._updates, self._factors, strict=True):
            weight, momentum = (
                local_part(member.parameter.detach()),
                local_part(self.momenta[member.parameter]),
            )
            lr = rate(member.peak)
            changed = weight * (1 - lr * member.weight_decay)
            for part, factor in factors:
                changed[part].add_(update[part], alpha=-(lr * factor))
            weight.copy_(torch.where(counts, changed, weight))
            momentum.copy_(torch.where(counts, self._moved(member.parameter), momentum))
        self._updates = []

    def _moved(self, parameter: nn.Parameter) -> Tensor:
        return local_part(self.momenta[parameter]).lerp(_gradient(parameter), 1 - self._table.momentum)


def _factors(matrices: Sequence[Matrix], rank: int, table: MuonTable) -> list[tuple[Any, float]]:
    """The places in a rank's piece of a parameter with what multiplies the rate there; one place where it is
    the same for all."""
    factors = [factor_by_shape(*matrix.shape, table) for matrix in matrices]
    if len(set(factors)) == 1:
        return [(..., factors[0])]
    found = []
    for matrix, factor in zip(matrices, factors, strict=True):
        piece = matrix.pieces[rank]
        if (part := shared(matrix.block, piece)) is not None:
            found.append((within(part, piece), factor))
    return found


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None, "each matrix has a gradient"
    return local_part(parameter.grad)
