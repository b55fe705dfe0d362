"""What makes a step not count: a loss or gradient that is not finite, and a loss that jumps out of its
window."""

from __future__ import annotations

from typing import Final, Literal

import torch
from torch import Tensor

Reason = Literal["non_finite_loss", "non_finite_gradient", "spike", "listed"]
STEP_VERDICTS: Final[tuple[Reason | None, ...]] = (None, "non_finite_loss", "non_finite_gradient", "spike")
"""What the numbers that `SpikeWindow.judge` gives mean."""


class SpikeWindow:
    """The losses of the last accepted steps, kept on the device so that judging a step does not wait for it.

    Only accepted losses enter: neither a NaN nor a spike moves the mean it is measured against. Until the
    window is full nothing is a spike."""

    def __init__(self, size: int, sigma: float, device: torch.device) -> None:
        self.sigma = sigma
        self.losses = torch.zeros(size, dtype=torch.float64, device=device)
        self.num_seen = torch.zeros((), dtype=torch.int64, device=device)

    def judge(self, loss: Tensor, gradient_norm: Tensor) -> Tensor:
        """The index in VERDICTS of this step, a float32 scalar on the device; an accepted loss enters the
        window."""
        loss = loss.detach().to(torch.float64)
        size = self.losses.numel()
        deviation = self.losses.std().clamp_min(1e-9 * self.losses.mean().abs())
        is_spike = (self.num_seen >= size) & (loss > self.losses.mean() + self.sigma * deviation)
        verdict = torch.where(is_spike, 3.0, 0.0)
        verdict = torch.where(torch.isfinite(gradient_norm), verdict, 2.0)
        verdict = torch.where(torch.isfinite(loss), verdict, 1.0)
        accepted = verdict == 0
        # An index that lies on a GPU would be asked for by the host, which then waits for the whole step.
        enters = (torch.arange(size, device=loss.device) == self.num_seen % size) & accepted
        self.losses.copy_(torch.where(enters, loss, self.losses))
        self.num_seen += accepted
        return verdict.to(torch.float32)

    def take_over(self, losses_N: Tensor) -> None:
        """Go on from a window that held `num_seen` losses in `losses_N`, be it of another size: the newest
        stay."""
        if losses_N.numel() == self.losses.numel():
            self.losses.copy_(losses_N)
            return
        num_seen, size = int(self.num_seen), self.losses.numel()
        oldest_first = (
            losses_N[:num_seen] if num_seen < len(losses_N) else losses_N.roll(-(num_seen % len(losses_N)))
        )
        kept = oldest_first[-size:]
        self.losses[: len(kept)] = kept
        self.num_seen.fill_(len(kept))

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps: loading writes into these tensors."""
        return {"losses": self.losses, "num_seen": self.num_seen}
