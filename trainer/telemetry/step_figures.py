"""The figures of one step: packed into one tensor on the device, and read by name once they are on the
host."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainer.telemetry.step_report import ExpertLoad
from trainer.telemetry.timing import Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """A step's figures on the host. `verdict`: an index of recovery.faults.STEP_VERDICTS; `stop`: a rank was
    asked to stop; `loss` in nats a counted label; `losses` and `counts`: of each source the sum of losses and
    the number of counted labels; `context_imbalance`: attention's work on the fullest context parallel rank
    over the mean; `z_loss`: what `train.z_loss` adds to the
    loss; `rows_2G`: of each row of the global batch the sum of its losses and the number of its
    counted labels, float64; None where they were not asked for."""

    verdict: int
    stop: bool
    loss: float
    gradient_norm: float
    context_imbalance: float
    z_loss: float
    losses: tuple[float, ...]
    counts: tuple[float, ...]
    experts: ExpertLoad | None
    rows_2G: np.ndarray | None


class PackedFigures:
    """A step's figures on their way to the host. Those of sources have the shape (S,), the others none;
    `experts` holds the numbers of an ExpertLoad in its order, None without experts; `rows_2G` the losses of
    rows and their counts."""

    def __init__(
        self,
        *,
        verdict: Tensor,
        stop: Tensor,
        loss: Tensor,
        gradient_norm: Tensor,
        context_imbalance: Tensor,
        z_loss: Tensor,
        losses_S: Tensor,
        counts_S: Tensor,
        experts: Tensor | None,
        rows_2G: Tensor | None = None,
    ) -> None:
        scalars = (verdict, stop, loss, gradient_norm, context_imbalance, z_loss)
        parts = [torch.stack([scalar.to(torch.float64) for scalar in scalars]), losses_S, counts_S]
        self._num_sources = len(losses_S)
        self._num_rows = 0 if rows_2G is None else rows_2G.shape[1]
        parts += [part for part in (rows_2G, experts) if part is not None]
        self._numbers = Figures(torch.cat([part.flatten() for part in parts]))

    def read(self) -> StepFigures:
        """The figures; waits for the device where they have not arrived."""
        verdict, stop, loss, norm, imbalance, z_loss, *rest = self._numbers.read()
        num = self._num_sources
        losses, counts, rest = rest[:num], rest[num : 2 * num], rest[2 * num :]
        num = self._num_rows
        of_rows, load = rest[: 2 * num], rest[2 * num :]
        names = (field.name for field in dataclasses.fields(ExpertLoad))
        return StepFigures(
            verdict=int(verdict),
            stop=stop > 0,
            loss=loss,
            gradient_norm=norm,
            context_imbalance=imbalance,
            z_loss=z_loss,
            losses=tuple(losses),
            counts=tuple(counts),
            experts=ExpertLoad(**dict(zip(names, load, strict=True))) if load else None,
            rows_2G=np.array(of_rows).reshape(2, num) if num else None,
        )
