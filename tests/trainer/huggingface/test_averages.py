"""The mean of checkpoints and the moving average of the weights, as they are exported and told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.cli.main import main
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.training_runs import Run
from trainer.checkpoint.state import held_tensors, load
from trainer.huggingface.export import export_run
from trainer.huggingface.exported import exported_checkpoints

WITH_AVERAGES = {"optimizer": {"lr": 3e-2, "warmup_steps": 2, "ema": 0.5}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = make_corpus(str(tmp_path_factory.mktemp("out")), {"web": [1700, 530]}).url
    few = {"dtype": "float32", "steps": 9, "checkpoint": {"every": 2, "keep": 9}}
    run = Run(data=out, output=tmp_path_factory.mktemp("run") / "run", changes=few | WITH_AVERAGES)
    assert run.start().finished
    return run


def held(run: Run, step: int, kind: str) -> dict[str, Tensor]:
    """Tensors of a checkpoint whose names begin with `kind`, by the rest of their names."""
    folder = Folder(str(run.output / "checkpoints" / f"step-{step:08d}.attempt-1"))
    state = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in held_tensors(folder).items()
        if name.startswith(kind)
    }
    load(folder, state, None)
    return {name.removeprefix(kind): tensor for name, tensor in state.items()}


def test_the_mean_of_the_last_checkpoints_is_exported_and_told(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["export", str(run.output), "--step", "8", "--average", "3", "--to", str(tmp_path / "hf")]
    assert main(call) == 0
    assert "mean of the checkpoints of steps 4, 6, 8" in capsys.readouterr().out
    exported = load_file(tmp_path / "hf" / "model.safetensors")
    each = [held(run, step, "weights.") for step in (4, 6, 8)]
    for name, tensor in exported.items():
        mean = torch.stack([weights[name].double() for weights in each]).mean(0)
        torch.testing.assert_close(tensor.double(), mean, rtol=1e-6, atol=1e-9)
        assert not torch.equal(tensor, each[-1][name])
    made = json.loads((tmp_path / "hf" / "sluice.json").read_text())
    assert (made["averaged_steps"], made["step"], made["ema"]) == ([4, 6, 8], 8, False)
    recorded = exported_checkpoints(Folder(str(run.output)))[-1]
    assert recorded.described == "mean of the checkpoints of steps 4, 6, 8"


def test_the_moving_average_is_exported_and_told(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run.output), "--ema", "--json", "--to", str(tmp_path / "hf")]) == 0
    assert json.loads(capsys.readouterr().out)["ema"] is True
    exported, average = load_file(tmp_path / "hf" / "model.safetensors"), held(run, 9, "optimizer.ema.")
    assert exported.keys() == average.keys()
    assert all(torch.equal(tensor, average[name]) for name, tensor in exported.items())
    assert not all(torch.equal(average[name], one) for name, one in held(run, 9, "weights.").items())
    assert json.loads((tmp_path / "hf" / "sluice.json").read_text())["ema"] is True
    recorded = exported_checkpoints(Folder(str(run.output)))[-1]
    assert recorded.described == "moving average of the weights in the checkpoint of step 9"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--average", "6"], "has 5 checkpoints up to step 9: expected at most that many"),
        (["--average", "2", "--step", "2"], "has 1 checkpoint up to step 2"),
        (["--average", "0"], "expected at least 1"),
    ],
)
def test_more_checkpoints_than_there_are_are_refused(
    options: list[str], said: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run.output), *options, "--to", str(tmp_path / "hf")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "hf").exists()


def test_a_run_without_a_moving_average_has_none_to_export(run: Run, tmp_path: Path) -> None:
    plain = Run(data=run.data, output=tmp_path / "plain", changes={"steps": 2, "dtype": "float32"})
    assert plain.start().finished
    with pytest.raises(RecipeError, match=r"--ema: the checkpoint of step 2 holds no moving average"):
        export_run(Folder(str(plain.output)), tmp_path / "hf", ema=True)
