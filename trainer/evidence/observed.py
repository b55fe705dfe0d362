"""What a replay has seen of the steps that it did: the numbers that `why` reads. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from trainer.data.row_loss import RowLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveRequest:
    """Which steps are done again: from the checkpoint folder of that name (None: the first weights) up to
    `step`, that one included, with so many threads of each process on a processor (0: as they are)."""

    checkpoint: str | None
    step: int
    num_threads: int = 0


class DocumentLoss(NamedTuple):
    """The sum of the losses of a document as far as it lies in a row, from the row's position `first_token`
    on."""

    row: int
    first_token: int
    num_labels: int
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedStep:
    """A step, with the reason for which it was skipped; a listed one has no figures. `rows`: by row of the
    batch."""

    step: int
    loss: float | None = None
    gradient_norm: float | None = None
    lr: float | None = None
    skipped: str | None = None
    losses_by_source: Mapping[str, float] = field(default_factory=dict)
    rows: tuple[RowLoss, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The steps of a replay, and of the last one the documents' losses and the gradients' norms by layer,
    before clipping."""

    steps: tuple[ObservedStep, ...]
    documents: tuple[DocumentLoss, ...]
    layers: Mapping[str, float]

    @property
    def last(self) -> ObservedStep:
        """The step that was looked at."""
        return self.steps[-1]
