"""Matrices that lie in pieces on several ranks, each brought whole to one of them, its owner, and back.

Owners are chosen so that all ranks have about as much to compute. Of replicas each one sends what the owners
among its own ranks need, and all are given the results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

Region = tuple[tuple[int, int], ...]
"""Begin and end along each axis of a parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The block `block` of parameter number `parameter`; its rows and columns are the last two axes, and any
    other is of length 1. `pieces`: what each rank holds of the whole parameter."""

    parameter: int
    block: Region
    pieces: tuple[Region, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        (top, bottom), (left, right) = self.block[-2:]
        return bottom - top, right - left


class _Transfer(NamedTuple):
    """A part of matrix number `matrix`, from rank `source` to rank `target`."""

    source: int
    target: int
    matrix: int
    part: Region


class MatrixExchange:
    """The way of matrices to their owners and back. Every rank of `group`, which share the matrices, makes it
    with equal ones; None: this rank has all of them alone."""

    def __init__(self, matrices: Sequence[Matrix], group: dist.ProcessGroup | None) -> None:
        self._rank, size = (0, 1) if group is None else (group.rank(), group.size())
        self._matrices = matrices
        gathered, returned = [], []
        owners = owners_of(matrices, size)
        for number, (matrix, owner) in enumerate(zip(matrices, owners, strict=True)):
            holders = _holders(matrix.block, matrix.pieces)
            # A rank and those that hold the other pieces of its replica are at the same place among the holders
            # of each.
            replica = next((ranks.index(owner) for ranks in holders.values() if owner in ranks), 0)
            for part, ranks in holders.items():
                gathered.append(_Transfer(ranks[min(replica, len(ranks) - 1)], owner, number, part))
                returned += [_Transfer(owner, rank, number, part) for rank in ranks]
        self._owned = [number for number, owner in enumerate(owners) if owner == self._rank]
        self._to_owners, self._back = _Way(gathered, group), _Way(returned, group)

    def run(self, pieces: Sequence[Tensor], compute: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """Apply `compute`, which keeps shape and dtype, to each matrix as a whole. `pieces` and what comes
        back are this rank's pieces of the parameters, all of one dtype. Collective."""

        def of_piece(tensors: Sequence[Tensor], transfer: _Transfer) -> Tensor:
            matrix = self._matrices[transfer.matrix]
            return tensors[matrix.parameter][within(transfer.part, matrix.pieces[self._rank])]

        def of_whole(transfer: _Transfer) -> Tensor:
            block = self._matrices[transfer.matrix].block
            return wholes[transfer.matrix][within(transfer.part, block)]

        wholes = {
            number: pieces[0].new_empty([end - begin for begin, end in self._matrices[number].block])
            for number in self._owned
        }
        for transfer, part in self._to_owners.run(lambda transfer: of_piece(pieces, transfer), pieces[0]):
            of_whole(transfer).copy_(part)
        for number, whole in wholes.items():
            wholes[number] = compute(whole.view(self._matrices[number].shape)).view(whole.shape)
        results = [torch.empty_like(piece) for piece in pieces]
        for transfer, part in self._back.run(of_whole, pieces[0]):
            of_piece(results, transfer).copy_(part)
        return results


class _Way:
    """Transfers that all ranks make at once; of each this rank's own are kept."""

    def __init__(self, transfers: Sequence[_Transfer], group: dist.ProcessGroup | None) -> None:
        rank, size = (0, 1) if group is None else (group.rank(), group.size())
        self._group = group
        self._leaving = sorted((t for t in transfers if t.source == rank), key=lambda t: t.target)
        self._coming = sorted((t for t in transfers if t.target == rank), key=lambda t: t.source)
        self._num_leaving, self._num_coming = [0] * size, [0] * size
        for transfer in self._leaving:
            self._num_leaving[transfer.target] += _num_elements(transfer.part)
        for transfer in self._coming:
            self._num_coming[transfer.source] += _num_elements(transfer.part)

    def run(self, read: Callable[[_Transfer], Tensor], like: Tensor) -> Iterator[tuple[_Transfer, Tensor]]:
        """What comes to this rank, where each sends what `read` gives; `like`: of that dtype. Collective."""
        if self._group is None:
            yield from ((transfer, read(transfer)) for transfer in self._coming)
            return
        sent = torch.cat([like.new_empty(0), *(read(transfer).reshape(-1) for transfer in self._leaving)])
        came = like.new_empty(sum(self._num_coming))
        dist.all_to_all_single(came, sent, self._num_coming, self._num_leaving, group=self._group)
        del sent
        parts = torch.split(came, [_num_elements(transfer.part) for transfer in self._coming])
        for transfer, part in zip(self._coming, parts, strict=True):
            yield transfer, part.view([end - begin for begin, end in transfer.part])


def owners_of(matrices: Sequence[Matrix], num_ranks: int) -> list[int]:
    """The owner of each matrix: the largest first, each to the rank that has least to compute so far; one
    that is nowhere in pieces to a rank that has it."""
    owners, loads = [0] * len(matrices), [0.0] * num_ranks
    costs = [_cost(*sorted(matrix.shape)) for matrix in matrices]
    for number in sorted(range(len(matrices)), key=lambda number: -costs[number]):
        holders = _holders(matrices[number].block, matrices[number].pieces)
        able = next(iter(holders.values())) if len(holders) == 1 else range(num_ranks)
        owner = min(able, key=loads.__getitem__)
        owners[number] = owner
        loads[owner] += costs[number]
    return owners


def _cost(short: int, long: int) -> float:
    """Of a round of the iteration: products of the short side with itself and with the long one."""
    return short * short * (short + 2.0 * long)


def pieces_of(parameter: Tensor, group: dist.ProcessGroup | None) -> tuple[Region, ...]:
    """What each rank of `group` holds of a parameter."""
    if group is None or not isinstance(parameter, DTensor):
        return (tuple((0, size) for size in parameter.shape),) * (1 if group is None else group.size())
    mesh = parameter.device_mesh
    ranks = tuple(dist.get_process_group_ranks(group))
    on_mesh = tuple(mesh.mesh.flatten().tolist())
    assert set(ranks) == set(on_mesh), "a stage's ranks share each of its parameters"
    return _pieces(tuple(parameter.shape), tuple(mesh.shape), tuple(parameter.placements), ranks, on_mesh)


@functools.cache
def _pieces(
    shape: tuple[int, ...],
    mesh: tuple[int, ...],
    placements: tuple[Any, ...],
    ranks: tuple[int, ...],
    on_mesh: tuple[int, ...],
) -> tuple[Region, ...]:
    places = {rank: [*map(int, np.unravel_index(place, mesh))] for place, rank in enumerate(on_mesh)}
    pieces = []
    for rank in ranks:
        sizes, begins = _compute_local_shape_and_global_offset(shape, mesh, places[rank], placements)
        pieces.append(tuple((begin, begin + size) for begin, size in zip(begins, sizes, strict=True)))
    return tuple(pieces)


@functools.cache
def _holders(block: Region, pieces: tuple[Region, ...]) -> dict[Region, list[int]]:
    """The parts of a block that ranks hold, each with those that do, replicas of each other."""
    found: dict[Region, list[int]] = {}
    for rank, piece in enumerate(pieces):
        if (part := shared(block, piece)) is not None:
            found.setdefault(part, []).append(rank)
    return found


def shared(one: Region, other: Region) -> Region | None:
    """What lies in two regions of a parameter; None: nothing."""
    pairs = zip(one, other, strict=True)
    both = tuple((max(begin, low), min(end, high)) for (begin, end), (low, high) in pairs)
    return both if all(begin < end for begin, end in both) else None


def within(part: Region, whole: Region) -> tuple[slice, ...]:
    """Where a part lies in a tensor that holds the region `whole`."""
    pairs = zip(part, whole, strict=True)
    return tuple(slice(begin - start, end - start) for (begin, end), (start, _) in pairs)


def _num_elements(part: Region) -> int:
    return int(np.prod([end - begin for begin, end in part]))
