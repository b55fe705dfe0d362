"""A model opened in one process: what it computes is what transformers computes of the same weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.training_runs import Run
from tests.support.training.transformers_models import reference_model, reference_rows
from trainer.huggingface.export import export_run
from trainer.huggingface.opened import OpenedModel, open_model
from trainer.model.rows import DeviceRows

FAMILIES = ("llama", "gemma2", "qwen3_moe", "deepseek_v3", "gpt_oss")
TRAINED = {"optimizer": {"lr": 3e-2, "warmup_steps": 1}, "steps": 2, "checkpoint": {"every": 1, "keep": 9}}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_corpus(str(tmp_path_factory.mktemp("out")), {"web": [1700, 530]}).url


@pytest.fixture(scope="module")
def run(data: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two steps of a model with experts, whose routers have a bias, on two processes."""
    changes = TRAINED | {"model": "moe-debug", "experts": {"bias_rate": 0.1}, "workers": 2}
    made = Run(data=data, output=tmp_path_factory.mktemp("opened") / "run", changes=changes)
    made.start()
    return made


def logits(opened: OpenedModel, document: torch.Tensor) -> torch.Tensor:
    return opened.logits(DeviceRows.of_one_document(document[None]))[0]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_is_computed_as_by_transformers(name: str, tmp_path: Path) -> None:
    reference = reference_model(name)
    folder = reference.save(tmp_path / name, torch.float64)
    opened = open_model(str(folder), device=torch.device("cpu"))
    document = reference_rows()[0][0]
    with torch.no_grad():
        expected = reference.logits(document)
    # transformers stores the routers of deepseek_v3 in float32 whatever the rest is stored in.
    assert (logits(opened, document) - expected).abs().max() < (1e-6 if name == "deepseek_v3" else 1e-10)
    assert opened.tokenizer is None
    assert opened.seq_len == 128
    assert not dist.is_initialized()


def test_a_checkpoint_is_computed_as_its_export(data: str, tmp_path: Path) -> None:
    run = Run(data=data, output=tmp_path / "run", changes=TRAINED)
    run.start()
    export_run(Folder(str(run.output)), tmp_path / "hf", step=1)
    document = torch.arange(32)
    opened = open_model(str(run.output), step=1)
    assert (opened.checkpoint and opened.checkpoint.step, opened.seq_len) == (1, 32)
    assert opened.tokenizer is not None
    assert opened.tokenizer.hash == "00" * 16
    exported = open_model(str(tmp_path / "hf"))
    assert exported.tokenizer == opened.tokenizer
    assert torch.equal(logits(exported, document), logits(opened, document))
    newest = logits(open_model(str(run.output)), document)
    assert not torch.equal(newest, logits(opened, document))


def test_biases_of_routers_are_read_with_a_checkpoint(run: Run) -> None:
    opened = open_model(str(run.output))
    biases = dict(opened.model.named_buffers())
    assert len(biases) == 2
    assert any(bias.any() for bias in biases.values())


def test_a_row_does_not_depend_on_its_neighbours_experts(run: Run) -> None:
    """Training drops tokens beyond an expert's capacity; equal tokens all want the same experts."""
    opened = open_model(str(run.output))
    tokens = torch.zeros(32, dtype=torch.int64)
    assert torch.allclose(logits(opened, tokens)[:4], logits(opened, tokens[:4]), atol=1e-12)


def test_weights_are_rounded_to_the_dtype_and_routers_are_not(run: Run) -> None:
    opened = open_model(str(run.output), dtype="bfloat16")
    dtypes = {name: tensor.dtype for name, tensor in opened.model.named_parameters()}
    assert dtypes.pop("model.layers.0.block_sparse_moe.gate.weight") == torch.float32
    assert dtypes.pop("model.layers.1.block_sparse_moe.gate.weight") == torch.float32
    assert set(dtypes.values()) == {torch.bfloat16}
    assert logits(opened, torch.arange(8)).dtype == torch.bfloat16


def test_what_is_no_model_is_refused_in_a_sentence(run: Run, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"holds neither model\.json .* nor config\.json"):
        open_model(str(tmp_path))
    with pytest.raises(RecipeError, match=r"--step 7: .* has checkpoints of steps 1, 2"):
        open_model(str(run.output), step=7)
    folder = reference_model("llama").save(tmp_path / "llama")
    with pytest.raises(RecipeError, match=r"--step 1: .*/llama is a folder of safetensors"):
        open_model(str(folder), step=1)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    with pytest.raises(RecipeError, match=r"config\.json: model_type = 'mamba'"):
        open_model(str(folder))
