"""Weights out to Hugging Face's layout and back, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, StorageError
from tests.support.outputs.tiny_corpus import VOCAB, make_corpus
from tests.support.processes.forked import ChildFailedError
from tests.support.training.rope import LLAMA3_SCALING
from tests.support.training.training_runs import Run
from trainer.checkpoint.state import held_tensors, load
from trainer.checkpoint.store import CheckpointError
from trainer.huggingface.export import export_run
from trainer.huggingface.exported import ExportRecord, exported_checkpoints, record_exported
from trainer.huggingface.model_card import read_card
from trainer.huggingface.weights import Export, export_weights
from trainer.model.config.description import Experts, Llama3Scaling, ModelConfig, Rotary
from trainer.model.config.families import PLANNED_KINDS, from_hugging_face, to_hugging_face
from trainer.model.config.sizes import model_config, model_names
from trainer.model.transformer import CausalLM


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of four steps on two processes."""
    folder = tmp_path_factory.mktemp("export")
    data = make_corpus(str(folder / "out"), {"web": [1700, 530]}).url
    made = Run(data=data, output=folder / "run", changes={"steps": 4})
    made.start(workers=2)
    return made


def test_an_exported_folder_holds_the_weights_under_the_names_of_transformers(
    run: Run, tmp_path: Path
) -> None:
    checkpoint = export_run(Folder(str(run.output)), tmp_path, tokenizer_files={"tokenizer.model": b"ranks"})
    assert checkpoint.step == 4
    made = json.loads((tmp_path / "sluice.json").read_text())
    assert (made["step"], made["tokenizer"]["hash"]) == (4, "00" * 16)
    tensors = load_file(tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert "lm_head.weight" not in tensors  # tied: transformers makes it from the embedding
    assert tensors["model.layers.1.self_attn.k_proj.weight"].shape == (32, 64)
    assert set(tensors) == {name for name, _ in CausalLM(model_config("debug", VOCAB)).named_parameters()}
    assert (tmp_path / "tokenizer.model").read_bytes() == b"ranks"
    assert len({path.stat().st_mode for path in tmp_path.iterdir() if path.is_file()}) == 1


def test_the_weights_of_an_export_are_on_the_disk_with_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors puts a file of its own in the place of ours."""
    synced, sync = set(), os.fsync

    def note(file: int) -> None:
        synced.add(os.fstat(file).st_ino)
        sync(file)

    monkeypatch.setattr(os, "fsync", note)
    export_run(Folder(str(run.output)), tmp_path / "hf")
    assert {path.name for path in (tmp_path / "hf").iterdir() if path.stat().st_ino not in synced} == set()


def test_weights_that_the_disk_does_not_take_are_told_with_the_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: Input/output error (os error 5)")

    monkeypatch.setattr("trainer.huggingface.weights.save_file", fail)
    with pytest.raises(StorageError, match=r"hf/model.safetensors cannot be written: .*Input/output error"):
        export_run(Folder(str(run.output)), tmp_path / "hf")


def test_a_run_begun_from_an_export_has_its_weights_on_any_layout(run: Run, tmp_path: Path) -> None:
    export_run(Folder(str(run.output)), tmp_path / "hf")
    frozen = {"init_from": str(tmp_path / "hf"), "optimizer": {"lr": 1e-30, "weight_decay": 0.0}, "steps": 1}
    begun = Run(data=run.data, output=tmp_path / "begun", changes=frozen)
    begun.start(workers=2, parallel={"tp": 2})
    export_run(Folder(str(begun.output)), tmp_path / "again")
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("hf", "again"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_experts_are_exported_one_by_one_and_come_back_on_any_layout(run: Run, tmp_path: Path) -> None:
    """Under the names of transformers' MixtralForCausalLM."""
    experts = Run(data=run.data, output=tmp_path / "experts", changes={"model": "moe-debug", "steps": 2})
    experts.start(parallel={"dp_shard": 2, "ep": 2})
    export_run(Folder(str(experts.output)), tmp_path / "hf")
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["architectures"], config["num_local_experts"], config["num_experts_per_tok"]) == (
        ["MixtralForCausalLM"],
        8,
        2,
    )
    assert tensors["model.layers.1.block_sparse_moe.gate.weight"].shape == (8, 64)
    for matrix in ("w1", "w2", "w3"):
        assert tensors[f"model.layers.1.block_sparse_moe.experts.7.{matrix}.weight"].shape == (64, 64)
    frozen = {"init_from": str(tmp_path / "hf"), "optimizer": {"lr": 1e-30, "weight_decay": 0.0}, "steps": 1}
    begun = Run(data=run.data, output=tmp_path / "begun", changes=frozen | {"model": "moe-debug"})
    begun.start(parallel={"dp_shard": 4, "ep": 2})
    export_run(Folder(str(begun.output)), tmp_path / "again")
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert set(again) == set(tensors)
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)


def test_shared_experts_are_not_exported(run: Run, tmp_path: Path) -> None:
    card = read_card(Folder(str(run.output)))
    experts = Experts(num_experts=8, top_k=2, hidden=64, num_shared=1)
    shared = dataclasses.replace(card.config, experts=experts, family="mixtral")
    export = Export(config=shared, seq_len=32, end_of_text=249, dtype=torch.float32, more_files={})
    checkpoint = Folder(str(run.output)).folder(f"checkpoints/{run.checkpoints()[-1]}")
    with pytest.raises(RecipeError, match="1 shared experts, and transformers' MixtralForCausalLM has none"):
        export_weights(checkpoint, tmp_path, export)


def test_a_model_whose_routers_have_moved_biases_is_not_exported(run: Run, tmp_path: Path) -> None:
    changes = {"model": "moe-debug", "steps": 1, "experts": {"bias_rate": 0.01}}
    biased = Run(data=run.data, output=tmp_path / "biased", changes=changes)
    biased.start()
    with pytest.raises(RecipeError, match=r"has a bias for each expert \(train\.experts\.bias_rate\)"):
        export_run(Folder(str(biased.output)), tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_a_run_begun_from_a_checkpoint_has_its_weights(run: Run, tmp_path: Path) -> None:
    checkpoint = run.output / "checkpoints" / run.checkpoints()[-1]
    frozen = {"init_from": str(checkpoint), "optimizer": {"lr": 1e-30, "weight_decay": 0.0}, "steps": 1}
    begun = Run(data=run.data, output=tmp_path / "begun", changes=frozen)
    begun.start()
    folders = [
        Folder(str(checkpoint)),
        Folder(str(begun.output)).folder(f"checkpoints/{begun.checkpoints()[0]}"),
    ]
    assert np.array_equal(*(weight_of(folder) for folder in folders))


def weight_of(folder: Folder) -> np.ndarray:
    name = "weights.model.layers.0.mlp.up_proj.weight"
    entry = held_tensors(folder)[name]
    state = {name: torch.zeros(entry.size, dtype=torch.float64)}
    load(folder, state, None)
    return state[name].numpy()


def test_a_large_export_is_split_and_indexed(run: Run, tmp_path: Path) -> None:
    card = read_card(Folder(str(run.output)))
    export = Export(config=card.config, seq_len=32, end_of_text=249, dtype=torch.float32, more_files={})
    checkpoint = Folder(str(run.output)).folder(f"checkpoints/{run.checkpoints()[-1]}")
    export_weights(checkpoint, tmp_path, export, file_bytes=100_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / file, framework="pt") as held:
            assert name in held.keys()  # noqa: SIM118 (not a dict)
    assert all(file.stat().st_size < 110_000 for file in tmp_path.glob("*.safetensors"))


def test_an_export_over_a_larger_one_leaves_nothing_of_it(run: Run, tmp_path: Path) -> None:
    """An index of the other's files would be read before the new weights."""
    card = read_card(Folder(str(run.output)))
    export = Export(config=card.config, seq_len=32, end_of_text=249, dtype=torch.float32, more_files={})
    checkpoint = Folder(str(run.output)).folder(f"checkpoints/{run.checkpoints()[-1]}")
    export_weights(checkpoint, tmp_path / "again", export, file_bytes=100_000)
    (tmp_path / "again" / "notes.txt").write_text("somebody's own")
    for name in ("again", "fresh"):
        export_weights(checkpoint, tmp_path / name, export)
    assert {path.name for path in (tmp_path / "again").iterdir()} == {
        *(path.name for path in (tmp_path / "fresh").iterdir()),
        "notes.txt",
    }
    export_weights(checkpoint, tmp_path / "again", export, file_bytes=100_000)
    assert not (tmp_path / "again" / "model.safetensors").exists()


def test_a_run_is_not_begun_from_a_damaged_checkpoint(run: Run, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(run.output / "checkpoints" / run.checkpoints()[-1], checkpoint)
    piece = min(checkpoint.glob("*.distcp"))
    data = bytearray(piece.read_bytes())
    data[len(data) // 2] ^= 1
    piece.write_bytes(data)
    begun = Run(
        data=run.data, output=tmp_path / "begun", changes={"init_from": str(checkpoint), "workers": 2}
    )
    with pytest.raises(ChildFailedError, match="has other bytes"):
        begun.start()


def test_weights_of_another_shape_are_refused_by_name(run: Run, tmp_path: Path) -> None:
    export_run(Folder(str(run.output)), tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text()) | {"intermediate_size": 256}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    begun = Run(
        data=run.data, output=tmp_path / "begun", changes={"init_from": str(tmp_path / "hf"), "steps": 1}
    )
    with pytest.raises(ChildFailedError, match=r"its hidden is 256, train.model has 192"):
        begun.start()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_theta": 10_000.0}, r"its rotary is .*theta=10000.0.*, train.model has .*theta=500000.0"),
        (
            {"rope_scaling": LLAMA3_SCALING},
            r"its rotary is .*Llama3Scaling.*, train.model has .*scaling=None",
        ),
        ({"rms_norm_eps": 1e-6}, r"its norm_eps is 1e-06, train.model has 1e-05"),
    ],
)
def test_weights_that_learnt_other_positions_or_norms_are_refused_by_name(
    change: dict[str, object], message: str, run: Run, tmp_path: Path
) -> None:
    export_run(Folder(str(run.output)), tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text()) | {"rope_parameters": None} | change
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    begun = Run(
        data=run.data, output=tmp_path / "begun", changes={"init_from": str(tmp_path / "hf"), "steps": 1}
    )
    with pytest.raises(ChildFailedError, match=message):
        begun.start()


def test_a_missing_step_is_refused_with_those_there_are(run: Run, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"has checkpoints of steps 4"):
        export_run(Folder(str(run.output)), tmp_path, step=3)


@pytest.mark.parametrize("name", model_names())
def test_a_config_comes_back_from_hugging_face_as_it_went(name: str) -> None:
    config = model_config(name, 1000, PLANNED_KINDS)
    described = json.loads(
        json.dumps(to_hugging_face(config, seq_len=8192, end_of_text=999, dtype="bfloat16"))
    )
    assert from_hugging_face(described, where="config.json", kinds=PLANNED_KINDS) == config


def test_the_scaled_rotary_rule_of_llama_3_1_is_kept() -> None:
    scaling = Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    )
    config = ModelConfig(
        num_layers=1,
        width=64,
        num_heads=8,
        num_kv_heads=8,
        head_dim=8,
        hidden=64,
        vocab_size=128,
        rotary=(Rotary(scaling=scaling),),
    )
    described = to_hugging_face(config, seq_len=32, end_of_text=0, dtype="float32")
    assert described["rope_scaling"]["rope_type"] == described["rope_parameters"]["rope_type"] == "llama3"
    assert from_hugging_face(described, where="config.json") == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "model_type = 'mamba'"),
        ({"attention_bias": True}, "attention_bias = True"),
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 4}, "rope_parameters": None},
            "scaling 'dynamic'",
        ),
        ({"hidden_size": None}, "hidden_size is missing"),
    ],
)
def test_what_is_no_plain_llama_is_refused(change: dict[str, object], message: str) -> None:
    described = (
        to_hugging_face(model_config("debug", 250), seq_len=32, end_of_text=0, dtype="float32") | change
    )
    raw = {name: value for name, value in described.items() if value is not None}
    with pytest.raises(RecipeError, match=message):
        from_hugging_face(raw, where="config.json")


def test_a_config_with_too_small_a_vocabulary_is_refused(tmp_path: Path) -> None:
    described = to_hugging_face(model_config("debug", 250), seq_len=32, end_of_text=0, dtype="float32")
    (tmp_path / "config.json").write_text(json.dumps(described))
    assert model_config(str(tmp_path / "config.json"), 256).vocab_size == 256
    with pytest.raises(RecipeError, match="256 is smaller than the shards' 257 ids"):
        model_config(str(tmp_path / "config.json"), 257)


def test_a_damaged_checkpoint_is_not_exported(run: Run, tmp_path: Path) -> None:
    checkpoint = run.output / "checkpoints" / run.checkpoints()[-1]
    piece = next(iter(sorted(checkpoint.glob("*.distcp"))))
    data = piece.read_bytes()
    try:
        piece.write_bytes(data[:-1])
        with pytest.raises(CheckpointError, match="is missing or has another size"):
            export_run(Folder(str(run.output)), tmp_path)
    finally:
        piece.write_bytes(data)


def test_an_export_that_is_tried_again_is_recorded_once(tmp_path: Path) -> None:
    output = Folder(str(tmp_path))
    for place, step in (("/a", 4), ("/a", 4), ("/b", 4), ("/a", 8), ("/a", 4)):
        record_exported(output, ExportRecord(place=place, step=step, attempt=1))
    assert [(row.place, row.step) for row in exported_checkpoints(output)] == [
        ("/a", 4),
        ("/b", 4),
        ("/a", 8),
    ]
