"""GPUs: a device is known by the name that it gives itself, its form factor included."""

from __future__ import annotations

import pytest

from trainer.planning.gpus import GPUS, gpu_named, peak_of_device


@pytest.mark.parametrize(
    ("name", "known", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", "H100", 989),
        ("NVIDIA H100 PCIe", "H100 PCIe", 756),
        ("NVIDIA H100 NVL", "H100 NVL", 835),
        ("NVIDIA H200", "H200", 989),
        ("NVIDIA H200 NVL", "H200 NVL", 835),
    ],
)
def test_boards_with_less_power_have_their_own_peaks(name: str, known: str, teraflops: float) -> None:
    assert peak_of_device(name) == GPUS[known].peak_flops == teraflops * 1e12
    assert gpu_named(known.lower()) is GPUS[known]
