"""GPUs: a device is known by the name that it gives itself, its form factor included."""

from __future__ import annotations

import pytest

from trainer.options import PlanTable
from trainer.planning.communication import link_of
from trainer.planning.gpus import GPUS, LINKS, gpu_named, machine_of, peak_of_device


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


@pytest.mark.parametrize(
    ("name", "node", "domain", "intra", "inter"),
    [
        ("H100", 8, 8, 3600, 400),
        ("H800", 8, 8, 1600, 400),
        ("GB200", 4, 72, 7200, 400),
        ("A100", 8, 8, 2400, 200),
        ("L40S", 8, 8, 256, 50),
    ],
)
def test_a_gpu_brings_its_machine(name: str, node: int, domain: int, intra: float, inter: float) -> None:
    machine = machine_of(PlanTable(gpu=name))
    assert (machine.gpus_per_node, machine.gpu_domain) == (node, domain)
    assert machine.intra_gbps == pytest.approx(LINKS[0] * intra)
    assert machine.inter_gbps == pytest.approx(LINKS[1] * inter)
    assert link_of(1, domain, machine, 4 * domain)[0] == "intra"
    assert link_of(1, 2 * domain, machine, 4 * domain)[0] == "inter"
    # Keys of the recipe go before: a node that is given is the fast link's reach.
    assert machine_of(PlanTable(gpu=name, gpus_per_node=2, intra_gbps=100.0)).gpu_domain == 2
    assert machine_of(PlanTable(gpu=name, intra_gbps=100.0)).intra_gbps == 100


def test_headroom_is_left_of_the_memory() -> None:
    assert machine_of(PlanTable()).usable_bytes == pytest.approx(0.88 * 80e9)
    assert machine_of(PlanTable(headroom=0.0)).usable_bytes == 80e9
