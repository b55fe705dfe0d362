"""The rows of one forward pass as tensors on the device, whole and as one rank works on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from trainer.model.context import Mask
from trainer.model.experts import Routing


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

    def map(self, change: Callable[[Tensor], Tensor]) -> DeviceRows:
        """`change` of every tensor."""
        return DeviceRows(
            inputs_BT=change(self.inputs_BT),
            labels_BT=change(self.labels_BT),
            positions_BT=change(self.positions_BT),
            documents_BT=change(self.documents_BT),
            sources_B=change(self.sources_B),
            rows_B=change(self.rows_B),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """This rank's share of some rows, as the model takes them. `work`: of context parallel peers the work of
    the fullest and of the mean one; None without such peers. `routing`: for a model with experts."""

    rows: DeviceRows
    mask: Mask
    work: Tensor | None = None
    routing: Routing | None = None
