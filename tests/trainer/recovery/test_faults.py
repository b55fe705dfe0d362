"""Judging steps: what is a spike, what is not finite, and that neither moves the window."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.attempts import TrainingStoppedError
from trainer.recovery.faults import STEP_VERDICTS, SpikeWindow
from trainer.recovery.repeats import OnRepeat, SkipCounter

STEADY = [2.0 + 0.01 * ((step * 7) % 5) for step in range(16)]


def judge(window: SpikeWindow, loss: float, norm: float = 1.0) -> str | None:
    return STEP_VERDICTS[int(window.judge(torch.tensor(loss), torch.tensor(norm)))]


def window_of(losses: Sequence[float], size: int = 16, sigma: float = 6.0) -> SpikeWindow:
    window = SpikeWindow(size, sigma, torch.device("cpu"))
    for loss in losses:
        window.judge(torch.tensor(loss, dtype=torch.float64), torch.tensor(1.0))
    return window


def test_a_loss_far_above_its_window_is_a_spike() -> None:
    assert judge(window_of(STEADY), 2.2) == "spike"


def test_a_loss_within_six_deviations_is_none() -> None:
    deviation = torch.tensor(STEADY, dtype=torch.float64).std().item()
    mean = sum(STEADY) / len(STEADY)
    assert judge(window_of(STEADY), mean + 5.99 * deviation) is None
    assert judge(window_of(STEADY), mean + 6.01 * deviation) == "spike"


def test_nothing_is_a_spike_before_the_window_is_full() -> None:
    assert judge(window_of(STEADY[:15]), 100.0) is None


def test_a_fall_is_no_spike() -> None:
    assert judge(window_of(STEADY), 0.1) is None


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_not_accepted(loss: float) -> None:
    assert judge(window_of(STEADY), loss) == "non_finite_loss"


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_not_accepted(norm: float) -> None:
    assert judge(window_of(STEADY), 2.0, norm) == "non_finite_gradient"


@given(st.lists(st.sampled_from([math.nan, math.inf, -math.inf, 50.0]), max_size=20))
def test_what_is_not_accepted_leaves_the_window_as_it_was(bad: list[float]) -> None:
    window = window_of(STEADY)
    before = {name: tensor.clone() for name, tensor in window.state().items()}
    for loss in bad:
        assert judge(window, loss) is not None
    assert all(torch.equal(tensor, before[name]) for name, tensor in window.state().items())


def test_the_window_forgets_the_oldest_loss() -> None:
    window = window_of([*STEADY, 2.05])
    expected = [2.05, *STEADY[1:]]
    assert window.losses.tolist() == expected


@given(
    losses=st.lists(st.floats(1, 2), max_size=40),
    size=st.integers(2, 12),
    now=st.integers(2, 12),
    more=st.integers(0, 3),
)
def test_a_window_of_another_size_takes_over_the_newest_losses(
    losses: list[float], size: int, now: int, more: int
) -> None:
    """And then judges like one that never saw others."""
    before, after = window_of(losses, size, math.inf), window_of([], now, math.inf)
    after.num_seen.copy_(before.num_seen)
    after.take_over(before.losses)
    expected = window_of(losses[-min(size, now) :], now, math.inf)
    for loss in (3.0 + number for number in range(more)):
        judge(after, loss)
        judge(expected, loss)
    assert after.losses.tolist() == expected.losses.tolist() or size == now
    assert sorted(after.losses.tolist()) == sorted(expected.losses.tolist())


def test_skips_that_do_not_follow_each_other_do_not_stop_a_run() -> None:
    counter = SkipCounter(OnRepeat(max_skips=2))
    for step, reason in enumerate(["spike", None, "spike", None]):
        counter.note(step, reason)
    counter.note(4, "spike")
    with pytest.raises(TrainingStoppedError, match="2 batches in a row"):
        counter.note(5, "non_finite_loss")


def test_listed_batches_neither_count_nor_break_a_row() -> None:
    counter = SkipCounter(OnRepeat(max_skips=2))
    counter.note(0, "spike")
    counter.note(1, "listed")
    with pytest.raises(TrainingStoppedError):
        counter.note(2, "spike")


def test_no_step_is_judged_by_asking_the_device_for_a_number() -> None:
    meta = torch.device("meta")  # has no numbers to give
    verdict = SpikeWindow(16, 6.0, meta).judge(torch.zeros((), device=meta), torch.zeros((), device=meta))
    assert verdict.device == meta
