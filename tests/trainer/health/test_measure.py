"""`sluice plan --measure`: a file of this device's times, and plans that read it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lineage.recipe import RecipeError
from pipeline.cli.main import main
from tests.support.training.plans import plan_of, recipe_of, write_recipe
from trainer.health import measure as measure_module

TINY = ("train.model=debug", "train.seq_len=32", "train.global_batch=2", "train.parallel.dp_shard=1")


def measured(path: Path, **changes: object) -> str:
    """A file as `--measure` writes it, with round times; as an override of a recipe."""
    found = {
        "device": "CPU, 1 threads",
        "memory_bytes": 10**10,
        "peak_flops": 2e9,
        "copy_bytes_per_second": 1e9,
        "products": [{"name": "queries", "shape": [32, 64, 64], "seconds": 2 * 32 * 64 * 64 / 2e9}],
        "link": {"gbps": 1.0, "hop_us": 100.0},
        "layer": [0.010, 0.015],
        "ends": [0.004, 0.006],
        "update": [0.001, 0.002],
    }
    path.write_text(json.dumps(found | changes))
    return f"plan.measured={path}"


def test_a_plan_adds_up_what_was_measured(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, *TINY, measured(tmp_path / "device.json"))
    # Two layers, two micro-batches; that each adds gradients up is in what was measured.
    assert plan.throughput.compute_seconds == pytest.approx(2 * (2 * 0.025 + 0.010))
    assert plan.throughput.update_seconds == pytest.approx(2 * 0.001 + 0.002)
    assert plan.machine.gpu.name == "CPU, 1 threads"
    assert plan.machine.usable_bytes == pytest.approx(0.88e10)
    assert plan.machine.origin == "measured on CPU, 1 threads: MFU is a result"
    assert "guessed" in plan_of(tmp_path, *TINY, "plan.gpu=L40S").machine.origin
    assert "published" in plan_of(tmp_path, *TINY).machine.origin
    assert "an input" in plan_of(tmp_path, *TINY, "plan.efficiency=0.4").machine.origin


def test_a_known_gpu_keeps_its_peak_and_links_and_has_the_measured_speed(tmp_path: Path) -> None:
    seconds = 2 * 32 * 64 * 64 / 600e12
    file = measured(
        tmp_path / "device.json",
        device="NVIDIA H100 80GB HBM3",
        products=[{"name": "queries", "shape": [32, 64, 64], "seconds": seconds}],
        link=None,
    )
    plan = plan_of(tmp_path, "train.parallel.dp_shard=8", file)
    gpu = plan.machine.gpu
    assert (gpu.peak_flops, gpu.gpu_domain, gpu.intra_gbps) == (989e12, 8, 3600)
    assert plan.throughput.mfu < 600 / 989


@pytest.mark.parametrize("text", ["", "[]", '{"device": "CPU"}', '{"device": 3}'])
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "device.json"
    path.write_text(text)
    with pytest.raises(RecipeError, match=r"expected a file of `sluice plan --measure`"):
        plan_of(tmp_path, f"plan.measured={path}")
    with pytest.raises(RecipeError, match=r"plan\.measured = 'nowhere'"):
        plan_of(tmp_path, "plan.measured=nowhere")


def test_what_is_measured_can_be_planned_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure_module, "SECONDS", 0.0)
    monkeypatch.setattr(measure_module, "_link", lambda: {"gbps": 1.0, "hop_us": 100.0})
    path, file = str(write_recipe(tmp_path)), tmp_path / "device.json"
    changes = [word for change in TINY for word in ("--set", change)]
    assert main(["plan", path, "--measure", *changes]) == 2
    assert main(["plan", path, "--to", str(file), *changes]) == 2
    capsys.readouterr()
    assert main(["plan", path, "--measure", "--to", str(file), *changes]) == 0
    assert {product["name"] for product in json.loads(file.read_text())["products"]} >= {
        "queries",
        "output matrix",
    }
    plan = plan_of(tmp_path, *TINY, f"plan.measured={file}")
    assert plan.throughput.step_seconds > 0
    assert plan.throughput.mfu <= 1


def test_a_layer_is_what_a_deeper_model_takes_more_and_the_rest_is_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {1: (0.010, 0.020, 0.005), 3: (0.016, 0.034, 0.005)}
    monkeypatch.setattr(measure_module, "_step_parts", lambda layout, recipe, device, depth: seconds[depth])
    plan = plan_of(tmp_path, *TINY)
    found = measure_module._whole_layers(plan.layout, recipe_of(tmp_path, *TINY), torch.device("cpu"))
    assert found["layer"] == pytest.approx([0.003, 0.007])
    assert found["ends"] == pytest.approx([0.007, 0.013])
    assert found["update"] == pytest.approx([0.0, 0.005])


@pytest.mark.parametrize(("device", "expected"), [("cuda", 0.0103), ("cpu", 0.013)])
def test_what_a_host_takes_to_ask_a_gpu_is_hidden_behind_the_calls_before(
    monkeypatch: pytest.MonkeyPatch, device: str, expected: float
) -> None:
    clock = SimpleNamespace(host=0.0, gpu=0.0)

    def run() -> None:
        clock.host += 0.003
        clock.gpu = max(clock.gpu, clock.host) + 0.010
        if device == "cpu":
            wait()

    def wait() -> None:
        clock.host = max(clock.host, clock.gpu)

    monkeypatch.setattr(measure_module, "time", SimpleNamespace(perf_counter=lambda: clock.host))
    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    assert measure_module._seconds(run, torch.device(device)) == pytest.approx(expected)
