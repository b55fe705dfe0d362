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
from trainer.parallel.layout import ParallelLayout
from trainer.planning.throughput import measured_layers
from trainer.run import measure as measure_module

SHAPE = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 8,
    "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "rope_theta": 10000, "vocab_size": 256,
}  # fmt: skip
TINY = ("train.model=debug", "train.seq_len=32", "train.global_batch=2", "train.parallel.dp_shard=1")


def measured(path: Path, *overrides: str, **changes: object) -> str:
    """A file as `--measure` writes it for a recipe, with round times; as an override of a recipe. A further kind of
    layer takes half as long again."""
    kernels = plan_of(path.parent, *overrides).layout.kernels
    times = ([scale * part for part in (0.010, 0.015, 0.001)] for scale in (1, 1.5, 2))
    each = zip(kernels.kinds(), times, strict=False)
    found = {
        "device": "CPU, 1 threads",
        "memory_bytes": 10**10,
        "peak_flops": 2e9,
        "copy_bytes_per_second": 1e9,
        "products": [{"name": "queries", "shape": [32, 64, 64], "seconds": 2 * 32 * 64 * 64 / 2e9}],
        "link": {"gbps": 1.0, "hop_us": 100.0},
        "layers": [{"of": kernels.described(kind), "seconds": seconds} for kind, seconds in each],
        "ends": [0.004, 0.006],
        "update": 0.002,
    }
    path.write_text(json.dumps(found | changes))
    return f"plan.measured={path}"


def test_a_plan_adds_up_what_was_measured(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, *TINY, measured(tmp_path / "device.json", *TINY))
    # Two layers, two micro-batches; that each adds gradients up is in what was measured.
    assert plan.throughput.compute_seconds == pytest.approx(2 * (2 * 0.025 + 0.010))
    assert plan.throughput.update_seconds == pytest.approx(2 * 0.001 + 0.002)
    assert plan.machine.gpu.name == "CPU, 1 threads"
    assert plan.machine.usable_bytes == pytest.approx(0.88e10)
    assert plan.machine.origin == "measured on CPU, 1 threads: MFU is a result"
    assert plan.notes == ()
    assert "guessed" in plan_of(tmp_path, *TINY, "plan.gpu=L40S").machine.origin
    assert "published" in plan_of(tmp_path, *TINY).machine.origin
    assert "an input" in plan_of(tmp_path, *TINY, "plan.efficiency=0.4").machine.origin


@pytest.mark.parametrize("change", ["train.seq_len=64", "train.parallel.tp=2", "train.model=125M"])
def test_layers_of_another_model_mesh_or_micro_batch_are_not_taken_for_those_measured(
    tmp_path: Path, change: str
) -> None:
    file = measured(tmp_path / "device.json", *TINY)
    theirs = plan_of(tmp_path, *TINY, change, file)
    without = plan_of(tmp_path, *TINY, change, measured(tmp_path / "products.json", layers=[]))
    assert theirs.throughput == without.throughput
    (note,) = (note for note in theirs.notes if note.startswith("plan.measured"))
    assert "its layers are not those of this model, mesh and micro-batch" in note


def test_a_deeper_model_has_the_layers_that_were_measured(tmp_path: Path) -> None:
    shape = tmp_path / "config.json"
    shape.write_text(json.dumps(SHAPE | {"num_hidden_layers": 5}))
    deeper = (*TINY, f"train.model={shape}")
    file = measured(tmp_path / "device.json", *deeper)
    shape.write_text(json.dumps(SHAPE | {"num_hidden_layers": 7}))
    plan = plan_of(tmp_path, *deeper, file)
    assert plan.throughput.compute_seconds == pytest.approx(2 * (7 * 0.025 + 0.010))


@pytest.mark.parametrize(
    ("model", "seconds"),
    # Three of four layers have a window; one of four has no experts.
    [("olmo3-debug", [(0.010, 3), (0.015, 1)]), ("deepseek-debug", [(0.010, 1), (0.015, 3)])],
)
def test_each_kind_of_layer_takes_what_was_measured_of_it(
    tmp_path: Path, model: str, seconds: list[tuple[float, int]]
) -> None:
    changes = (*TINY, f"train.model={model}", "train.seq_len=256")
    plan = plan_of(tmp_path, *changes, measured(tmp_path / "device.json", *changes))
    whole = sum(2.5 * each * num for each, num in seconds)
    assert plan.throughput.compute_seconds == pytest.approx(2 * (whole + 0.010))
    assert plan.throughput.update_seconds == pytest.approx(
        sum(0.1 * each * num for each, num in seconds) + 0.002
    )
    assert not [note for note in plan.notes if note.startswith("plan.measured")]


def test_what_processes_of_this_machine_exchange_is_waited_for(tmp_path: Path) -> None:
    shared = (*TINY, "train.parallel.dp_shard=2")
    throughput = plan_of(tmp_path, *shared, measured(tmp_path / "device.json", *shared)).throughput
    assert throughput.exposed_seconds == pytest.approx(throughput.communication_seconds) != 0


def test_a_known_gpu_keeps_its_peak_and_links_and_has_the_measured_speed(tmp_path: Path) -> None:
    seconds = 2 * 32 * 64 * 64 / 600e12
    file = measured(
        tmp_path / "device.json",
        *TINY,
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
    assert main(["plan", path, "--measure", "--to", str(tmp_path / "none" / "x.json"), *changes]) == 2
    assert "expected one to write into" in capsys.readouterr().err
    capsys.readouterr()
    assert main(["plan", path, "--measure", "--to", str(file), *changes]) == 0
    assert {product["name"] for product in json.loads(file.read_text())["products"]} >= {
        "queries",
        "output matrix",
    }
    plan = plan_of(tmp_path, *TINY, f"plan.measured={file}")
    assert plan.throughput.step_seconds > 0
    assert plan.throughput.mfu <= 1


@pytest.mark.parametrize(
    "layout",
    [
        ["train.parallel.dp_shard=4", "train.parallel.tp=2"],
        ["train.parallel.dp_replicate=2", "train.zero=0"],
        ["train.parallel.cp=2", "train.context.method=ring"],
        ["train.model=moe-debug", "train.parallel.ep=2", "train.parallel.dp_shard=8"],
        ["train.parallel.pp=2", "train.global_batch=4"],
        ["train.model=olmo3-debug", "train.parallel.tp=2"],
        ["train.model=gpt-oss-debug", "train.seq_len=256"],
        ["train.model=deepseek-debug"],
    ],
    ids=[
        "sharded tensor peers", "replicas", "context peers", "expert peers", "stages", "windows", "windows and experts",
        "latents",
    ],
)  # fmt: skip
def test_a_rank_of_every_layout_is_timed_by_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: list[str]
) -> None:
    monkeypatch.setattr(measure_module, "SECONDS", 0.0)
    monkeypatch.setattr(measure_module, "_link", lambda: {"gbps": 1.0, "hop_us": 100.0})
    file, changes = tmp_path / "device.json", (*TINY, "train.global_batch=8", *layout)
    file.write_text(json.dumps(measure_module.measure(recipe_of(tmp_path, *changes))))
    plan = plan_of(tmp_path, *changes, f"plan.measured={file}")
    assert not [note for note in plan.notes if "plan.measured" in note]
    assert measured_layers(plan.layout, plan.machine) is plan.machine.measured


def test_what_overlaps_sending_is_not_asked_of_a_process_that_sends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[ParallelLayout] = []

    def stop(config: object, layout: ParallelLayout, *_: object) -> None:
        given.append(layout)
        raise InterruptedError

    monkeypatch.setattr(measure_module, "parallelise_model", stop)
    overlapping = (*TINY, "train.parallel.tp=2", "train.compile=true", "train.overlap.async_tp=true")
    recipe = recipe_of(tmp_path, *overlapping)
    with pytest.raises(InterruptedError):
        measure_module._whole_layers(plan_of(tmp_path, *overlapping).layout, recipe, torch.device("cpu"))
    (layout,) = given
    assert recipe.train.overlap.async_tp and not layout.overlap.async_tp
    assert layout.mesh.tp == 2 and layout.compile


def test_a_layer_is_what_a_deeper_model_takes_more_and_the_rest_is_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {1: (0.010, 0.020, 0.005), 3: (0.016, 0.034, 0.005)}
    monkeypatch.setattr(measure_module, "_step_parts", lambda *arguments: seconds[arguments[-1].num_layers])
    shared = (*TINY, "train.parallel.dp_shard=64")
    plan = plan_of(tmp_path, *shared)
    found = measure_module._whole_layers(plan.layout, recipe_of(tmp_path, *shared), torch.device("cpu"))
    (layer,) = found["layers"]
    assert layer["seconds"] == pytest.approx([0.003, 0.007, 0.0])
    assert found["ends"] == pytest.approx([0.007, 0.013])
    # Two shards were timed: whole weights take twice as long.
    assert found["update"] == pytest.approx(0.010)


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
