"""Requests as rows of a forward pass: several in a row, each a document of its own that sees no other, so that
rows are as long as those that are trained on, whatever the layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainer.data.dataset import IGNORED
from trainer.evaluation.prepared import Request
from trainer.model.rows import DeviceRows


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """Rows of requests. `inputs_NT`, `labels_NT` int64, of which a label is IGNORED where nothing is scored;
    `positions_NT`, `documents_NT` int32: the place in its request, and the number of that in its row; `slots_ND`:
    by row and that number which request it is, -1 for none."""

    inputs_NT: np.ndarray
    labels_NT: np.ndarray
    positions_NT: np.ndarray
    documents_NT: np.ndarray
    slots_ND: np.ndarray

    @property
    def num_rows(self) -> int:
        """N."""
        return len(self.inputs_NT)

    def batches(self, rows_at_once: int, part: int = 0, num_parts: int = 1) -> Iterator[DeviceRows]:
        """The rows in forward passes of `rows_at_once`, every `num_parts`-th from `part` on: as many for each
        part, the last ones filled up. `rows_B` is the number of the row, N for one that only fills up."""
        at_once = rows_at_once * num_parts
        for first in range(0, -(-self.num_rows // at_once) * at_once, at_once):
            begin = first + part * rows_at_once
            yield self._rows(np.arange(begin, begin + rows_at_once))

    def _rows(self, numbers_B: np.ndarray) -> DeviceRows:
        numbers_B = np.minimum(numbers_B, self.num_rows)
        # The last row is one that only fills up: its inputs do not matter, and none of its labels counts.
        taken_B = np.minimum(numbers_B, self.num_rows - 1)
        labels_BT = np.where((numbers_B < self.num_rows)[:, None], self.labels_NT[taken_B], IGNORED)
        return DeviceRows(
            inputs_BT=torch.from_numpy(self.inputs_NT[taken_B]),
            labels_BT=torch.from_numpy(labels_BT),
            positions_BT=torch.from_numpy(self.positions_NT[taken_B]),
            documents_BT=torch.from_numpy(self.documents_NT[taken_B]),
            sources_B=torch.zeros(len(numbers_B), dtype=torch.int64),
            rows_B=torch.from_numpy(numbers_B),
        )

    def no_losses(self, device: torch.device) -> Tensor:
        """Zeros to which `add_losses` adds, float64."""
        num_rows, most = self.slots_ND.shape
        return torch.zeros(num_rows + 1, most, dtype=torch.float64, device=device)

    def by_request(self, sums: Tensor, num_requests: int) -> np.ndarray:
        """The loss of each request, (num_requests,), from the sums over all rows."""
        found = np.zeros(num_requests)
        taken = self.slots_ND >= 0
        found[self.slots_ND[taken]] = sums[:-1].cpu().numpy()[taken]
        return found


def add_losses(sums: Tensor, rows: DeviceRows, losses_BT: Tensor) -> None:
    """Add what a rank has computed of some rows of `PackedRows` to `no_losses`."""
    places = rows.rows_B[:, None] * sums.shape[1] + rows.documents_BT
    sums.view(-1).index_add_(0, places.flatten().long(), losses_BT.flatten().to(torch.float64))


def pack(requests: Sequence[Request], row_len: int) -> PackedRows:
    """Requests in rows of `row_len` positions, which none is longer than: each takes one position less than it
    has tokens. In their order; a row ends where the next request does not fit."""
    rows: list[list[int]] = []
    left = 0
    for number, request in enumerate(requests):
        size = len(request.tokens) - 1
        assert 0 < size <= row_len, f"{size} positions in a row of {row_len}"
        if size > left:
            rows.append([])
            left = row_len
        rows[-1].append(number)
        left -= size
    shape = (len(rows), row_len)
    packed = PackedRows(
        inputs_NT=np.zeros(shape, np.int64),
        labels_NT=np.full(shape, IGNORED, np.int64),
        positions_NT=np.zeros(shape, np.int32),
        documents_NT=np.zeros(shape, np.int32),
        slots_ND=np.full((len(rows), max(map(len, rows), default=1)), -1, np.int64),
    )
    for row, numbers in enumerate(rows):
        packed.slots_ND[row, : len(numbers)] = numbers
        at = 0
        for document, number in enumerate(numbers):
            tokens, scored = np.asarray(requests[number].tokens, np.int64), requests[number].num_scored
            end = at + len(tokens) - 1
            packed.inputs_NT[row, at:end] = tokens[:-1]
            packed.labels_NT[row, end - scored : end] = tokens[-scored:]
            packed.positions_NT[row, at:end] = np.arange(end - at)
            # What is left of the row belongs to its last request, behind which nothing is scored.
            packed.documents_NT[row, at:] = document
            at = end
        packed.positions_NT[row, at:] = np.arange(row_len - at)
    return packed
