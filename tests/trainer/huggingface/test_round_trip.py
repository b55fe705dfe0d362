"""A folder of transformers, a run that begins with it, and its export: the same tensors, under the same names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from lineage.storage.folder import Folder
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.training_runs import Run
from tests.support.training.transformers_models import FAMILIES, VARIANTS, reference_model, reference_rows
from trainer.huggingface.export import export_run

FROZEN = {
    "optimizer": {"lr": 1e-30, "weight_decay": 0.0}, "steps": 1, "dtype": "float32", "experts": {"bias_rate": 0.0},
}  # fmt: skip
FAST = ("llama", "gemma2", "deepseek_v3", "gpt_oss")
"""One of plain names, one with a soft-capped and tied head, one with latents and biases of routers, one of fused
experts; the others are slow."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_corpus(str(tmp_path_factory.mktemp("out")), {"web": [1700, 530]}).url


def logits(folder: Path) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(reference_rows()[0][0][None], use_cache=False).logits


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in [*FAMILIES, *VARIANTS]],
)
def test_what_comes_from_transformers_goes_back_as_it_was(name: str, data: str, tmp_path: Path) -> None:
    came = reference_model(name).save(tmp_path / "came")
    changes = FROZEN | {"model": str(came), "init_from": str(came)}
    run = Run(data=data, output=tmp_path / "run", changes=changes)
    run.start()
    export_run(Folder(str(run.output)), tmp_path / "went")
    before, after = (load_file(folder / "model.safetensors") for folder in (came, tmp_path / "went"))
    assert after.keys() == before.keys()
    for tensor, stored in before.items():
        assert after[tensor].dtype == stored.dtype
        assert torch.equal(after[tensor], stored), tensor
    assert torch.equal(logits(tmp_path / "went"), logits(came))
    described = json.loads((tmp_path / "went" / "config.json").read_text())
    assert {"rope_theta", "rope_scaling", "rope_parameters"} <= described.keys()
    generation = transformers.GenerationConfig.from_pretrained(tmp_path / "went")
    assert generation.eos_token_id == described["eos_token_id"]
