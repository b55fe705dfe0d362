"""A checkpoint's weights go into the model that they were saved of, and into no other."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from lineage.storage.folder import Folder
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.processes.forked import ChildFailedError
from tests.support.training.rope import LLAMA3_SCALING
from tests.support.training.training_runs import Run
from trainer.checkpoint.state import held_tensors, load
from trainer.provenance.facts import FACTS_FILE

SHAPE = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
}
FROZEN = {"optimizer": {"lr": 1e-30, "weight_decay": 0.0}, "steps": 1}
OTHER_MODELS = {
    "half the layers": ({"num_hidden_layers": 2}, "num_layers is 2, the checkpoint's run has 4"),
    "heads of equal shapes": (
        {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16},
        "num_heads is 2, the checkpoint's run has 4; num_kv_heads is 1, the checkpoint's run has 2",
    ),
    "tied": ({"tie_word_embeddings": True}, "tied is True, the checkpoint's run has False"),
    "norms": ({"rms_norm_eps": 1e-6}, "norm_eps is 1e-06, the checkpoint's run has 1e-05"),
}
OTHER_POSITIONS = {
    "rotary base": (
        {"rope_theta": 500_000.0},
        r"rotary is .*theta=500000.0.* the checkpoint's run has .*theta=10000.0",
    ),
    "rotary scaling": ({"rope_scaling": LLAMA3_SCALING}, "rotary is .*Llama3Scaling"),
}


def cases(**tables: tuple[dict[str, Any], str]) -> list[Any]:
    return [pytest.param(*table, id=name) for name, table in tables.items()]


def write_model(folder: Path, change: dict[str, Any]) -> str:
    """A config.json of the model with `change`; the path to it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SHAPE | change))
    return str(folder / "config.json")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of two steps; its checkpoint lies where its output's folder does not tell."""
    folder = tmp_path_factory.mktemp("same")
    data = make_corpus(str(folder / "out"), {"web": [1700, 530]}).url
    changes = {
        "model": write_model(folder / "model", {}),
        "steps": 2,
        "checkpoint": {"path": str(folder / "elsewhere" / "one")},
    }
    made = Run(data=data, output=folder / "run", changes=changes)
    made.start()
    return made


def checkpoint_of(run: Run) -> Path:
    [checkpoint] = Path(run.changes["checkpoint"]["path"]).glob("step-00000002.*")
    return checkpoint


def copied(run: Run, folder: Path) -> Run:
    """The run with its checkpoints in its output."""
    copy = Run(data=run.data, output=folder / "run", changes={"model": run.changes["model"], "steps": 3})
    shutil.copytree(run.output, copy.output)
    for told in (
        copy.output / "attempts" / "run",
        copy.output / FACTS_FILE,
    ):  # a run of these tests is named by its output
        told.write_text(told.read_text().replace(f'"{run.output}"', f'"{copy.output}"'))
    shutil.copytree(checkpoint_of(run), copy.output / "checkpoints" / checkpoint_of(run).name)
    return copy


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("change", "message"), cases(**OTHER_MODELS, **OTHER_POSITIONS))
def test_a_run_does_not_go_on_with_another_model_and_leaves_its_output_alone(
    change: dict[str, Any], message: str, run: Run, tmp_path: Path
) -> None:
    again = copied(run, tmp_path)
    before = files_of(again.output)
    with pytest.raises(ChildFailedError, match=f"RecipeError: train.model: {message}"):
        again.start(model=write_model(tmp_path / "other", change))
    assert files_of(again.output) == before


@pytest.mark.parametrize(("change", "message"), cases(**OTHER_MODELS))
def test_a_run_is_not_begun_from_the_weights_of_another_model(
    change: dict[str, Any], message: str, run: Run, tmp_path: Path
) -> None:
    begun = {"init_from": str(checkpoint_of(run)), "model": write_model(tmp_path / "other", change)}
    with pytest.raises(ChildFailedError, match=f"RecipeError: train.init_from = .*{message}"):
        Run(data=run.data, output=tmp_path / "begun", changes=FROZEN | begun).start()


@pytest.mark.parametrize(("change", "message"), cases(**OTHER_POSITIONS))
def test_rotary_positions_may_be_stretched_by_a_run_begun_from_a_checkpoint_and_a_line_says_so(
    change: dict[str, Any], message: str, run: Run, tmp_path: Path
) -> None:
    changes = {
        "init_from": str(checkpoint_of(run)),
        "model": write_model(tmp_path / "other", change),
        "workers": 2,
    }
    begun = Run(data=run.data, output=tmp_path / "begun", changes=FROZEN | changes)
    assert begun.start().finished
    said = "".join(path.read_text() for path in begun.scratch.glob("stderr-*"))
    assert len(re.findall(f"warning: train.init_from: {message}", said)) == 1


EXPERTS = {"model": "moe-debug", "experts": {"bias_rate": 0.01}}


def test_a_run_begun_from_a_checkpoint_has_the_biases_of_its_routers(run: Run, tmp_path: Path) -> None:
    first = Run(data=run.data, output=tmp_path / "first", changes=EXPERTS | {"steps": 1})
    first.start()
    changes = EXPERTS | FROZEN | {"init_from": str(newest(first)), "experts": {"bias_rate": 1e-9}}
    begun = Run(data=run.data, output=tmp_path / "begun", changes=changes)
    begun.start()
    biases = {
        name: bias_of(newest(first), name)
        for name in held_tensors(Folder(str(newest(first))))
        if "bias" in name
    }
    assert len(biases) == 2
    for name, bias_E in biases.items():
        assert bias_E.any()
        assert torch.allclose(bias_of(newest(begun), name), bias_E, atol=1e-8)


def test_a_model_without_biases_does_not_take_the_weights_of_one_with_them(run: Run, tmp_path: Path) -> None:
    first = Run(data=run.data, output=tmp_path / "first", changes=EXPERTS | {"steps": 1})
    first.start()
    changes = FROZEN | {"model": "moe-debug", "init_from": str(newest(first))}
    with pytest.raises(ChildFailedError, match=r"holds 2 tensors that this run lacks, .*bias_rate differ"):
        Run(data=run.data, output=tmp_path / "begun", changes=changes).start()


def newest(run: Run) -> Path:
    return run.output / "checkpoints" / run.checkpoints()[-1]


def bias_of(checkpoint: Path, name: str) -> torch.Tensor:
    state = {name: torch.zeros(8, dtype=torch.float64)}
    load(Folder(str(checkpoint)), state, None)
    return state[name]
