"""The rows of one forward pass as tensors on the device, whole and as one rank works on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from trainer.data.dataset import IGNORED
from trainer.model.context import Masks
from trainer.model.experts import Routing
from trainer.model.loss import Targets


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRows:
    """Rows of one forward pass, on the device. Rows that only fill up carry IGNORED labels throughout.

    inputs, labels int64; positions, documents int32; sources int64, the number of each row's source; rows
    int64, each one's row of the global batch, that batch's size where it only fills up or is of no batch."""

    inputs_BT: Tensor
    labels_BT: Tensor
    positions_BT: Tensor
    documents_BT: Tensor
    sources_B: Tensor
    rows_B: Tensor

    @classmethod
    def of_one_document(cls, tokens_BT: Tensor) -> DeviceRows:
        """Rows of a document each, of source 0, whose labels are their own tokens."""
        num_rows, seq_len = tokens_BT.shape
        positions_T = torch.arange(seq_len, dtype=torch.int32, device=tokens_BT.device)
        return cls(
            inputs_BT=tokens_BT,
            labels_BT=tokens_BT,
            positions_BT=positions_T.repeat(num_rows, 1),
            documents_BT=torch.zeros_like(tokens_BT, dtype=torch.int32),
            sources_B=torch.zeros_like(tokens_BT[:, 0]),
            rows_B=torch.arange(num_rows, device=tokens_BT.device),
        )

    @property
    def num_counted(self) -> Tensor:
        """How many labels of each row count, (B)."""
        return (self.labels_BT != IGNORED).sum(-1)

    def map(self, change: Callable[[Tensor], Tensor]) -> DeviceRows:
        """`change` of every tensor."""
        return DeviceRows(**{each.name: change(getattr(self, each.name)) for each in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """This rank's share of some rows, as the model takes them. `masks`: for the layers of each window.
    `weights_B1`: as in `targets`. `work`: of context parallel peers the work of the fullest and of the mean one;
    None without such peers. `routing`: for a model with experts."""

    rows: DeviceRows
    masks: Masks
    weights_B1: Tensor | None = None
    work: Tensor | None = None
    routing: Routing | None = None

    @property
    def targets(self) -> Targets:
        """What is wanted of the model's output."""
        return Targets(labels_BT=self.rows.labels_BT, weights_B1=self.weights_B1)
