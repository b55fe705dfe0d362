"""The loss of one row of a batch, as the record of batches has it."""

from __future__ import annotations

from typing import NamedTuple


class RowLoss(NamedTuple):
    """The sum of a row's losses in nats and the number of its counted labels."""

    loss: float
    num_labels: int

    @property
    def mean(self) -> float:
        """Nats a counted label; 0 without any."""
        return self.loss / self.num_labels if self.num_labels else 0.0
