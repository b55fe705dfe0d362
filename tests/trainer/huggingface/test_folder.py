"""Folders of safetensors that are not what they look like: each is refused by name, and a sound one is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lineage.ids import content_hash
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.processes.forked import ChildFailedError
from tests.support.training.training_runs import Run
from tests.support.training.weights_folders import MODEL, in_two_files, random_tensors, write_folder
from trainer.checkpoint.state import held_tensors, load
from trainer.checkpoint.store import COMPLETE, CheckpointError, _digest
from trainer.huggingface.folder import INDEX, open_weights
from trainer.model.config.description import ModelConfig, Rotary
from trainer.model.config.sizes import model_config
from trainer.model.rotary import rotary_angles
from trainer.model.transformer import initial_weight

QUERY = "model.layers.1.self_attn.q_proj.weight"
OUTPUT = "model.layers.1.self_attn.o_proj.weight"
EMBEDDING = "model.embed_tokens.weight"
FREQUENCIES = "model.layers.0.self_attn.rotary_emb.inv_freq"
FROZEN = {"optimizer": {"lr": 1e-30, "weight_decay": 0.0}, "steps": 1}


def opened(folder: Path, model: ModelConfig = MODEL, *, extends: bool = False) -> int:
    return len(open_weights(Folder(str(folder)), model, extends=extends).files)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_sound_folder_is_opened_in_one_file_and_in_two(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in random_tensors().items()}
    one = write_folder(tmp_path / "one", tensors)
    two = write_folder(tmp_path / "two", tensors, files=in_two_files(tensors))
    assert opened(one) == opened(two) == len(tensors)


def float8(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """As a quantized folder has them: scaled matrices, and the scales beside them."""
    out = {}
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight"):
            scale = tensor.abs().max() / 448
            out[name], out[f"{name}_scale"] = (tensor / scale).to(torch.float8_e4m3fn), scale.reshape(1)
        else:
            out[name] = tensor
    return out


def without(name: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {each: tensor for each, tensor in tensors.items() if each != name}


def plus(**more: Tensor) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: tensors | {name.replace("__", "."): tensor for name, tensor in more.items()}


def of_type(dtype: torch.dtype) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: tensors | {QUERY: tensors[QUERY].to(dtype)}


TENSORS: dict[str, tuple[Callable[[dict[str, Tensor]], dict[str, Tensor]], str]] = {
    "float8 and its scales": (
        float8,
        r"holds 14 tensors that the model of its config.json has no place for:"
        r" model.layers.0.mlp.down_proj.weight_scale, model.layers.0.mlp.gate_proj.weight_scale, .* and 11 more",
    ),
    "float8 without scales": (of_type(torch.float8_e4m3fn), rf"{QUERY} \(F8_E4M3\): expected\s+float16"),
    "whole numbers": (of_type(torch.int8), rf"{QUERY} \(I8\)"),
    "biases": (
        plus(model__layers__0__self_attn__q_proj__bias=torch.ones(64)),
        "no place for: model.layers.0.self_attn.q_proj.bias: the trainer would train another model",
    ),
    "norms of queries": (plus(model__layers__0__self_attn__q_norm__weight=torch.ones(8)), "q_norm.weight"),
    "a second head": (plus(score__weight=torch.ones(2, 64)), "no place for: score.weight"),
    "a layer more": (
        plus(model__layers__2__input_layernorm__weight=torch.ones(64)),
        "no place for: model.layers.2.input_layernorm.weight",
    ),
    "a tensor less": (without(QUERY), f"lacks 1 tensor that its config.json describes: {QUERY}"),
    "another shape": (
        lambda tensors: tensors | {QUERY: tensors[QUERY][:32].clone()},
        rf"{QUERY} has shape \[32, 64\], its config.json describes \[64, 64\]",
    ),
    "fewer rows than described": (
        lambda tensors: tensors | {EMBEDDING: tensors[EMBEDDING][:200].clone()},
        rf"{EMBEDDING} has shape \[200, 64\], its config.json describes \[256, 64\]",
    ),
}


@pytest.mark.parametrize(("change", "message"), TENSORS.values(), ids=TENSORS)
def test_tensors_that_are_not_those_of_the_model_are_refused_by_name(
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]], message: str, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path, change(random_tensors()))
    with pytest.raises(CheckpointError, match=message):
        opened(folder)


def test_layers_that_the_config_cuts_off_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, random_tensors(), num_hidden_layers=1)
    with pytest.raises(
        CheckpointError, match=r"no place for: model.layers.1.input_layernorm.weight, .* and 6"
    ):
        opened(folder, replace(MODEL, num_layers=1))


def test_layers_that_the_folder_lacks_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, random_tensors(), num_hidden_layers=3)
    with pytest.raises(CheckpointError, match=r"lacks 9 tensors .*: model.layers.2.input_layernorm.weight, "):
        opened(folder, replace(MODEL, num_layers=3))


def test_a_model_with_a_head_of_its_own_needs_that(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, random_tensors(), tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"lacks 1 tensor .*: lm_head.weight"):
        opened(folder, replace(MODEL, tied=False))


def missing_file(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()


def cut_off(folder: Path) -> None:
    file = folder / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def pointer(folder: Path) -> None:
    (folder / "model-00001-of-00002.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")


def twice(folder: Path) -> None:
    first, second = (folder / f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    both = load_file(first) | load_file(second)
    save_file(both, first)


def index_of_others(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    first, second = sorted(set(index["weight_map"].values()))
    index["weight_map"][OUTPUT] = first if index["weight_map"][OUTPUT] == second else second
    (folder / INDEX).write_text(json.dumps(index))


def index_without(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    del index["weight_map"][OUTPUT]
    (folder / INDEX).write_text(json.dumps(index))


def index_of_nothing(folder: Path) -> None:
    (folder / INDEX).write_text("{}")


def index_elsewhere(folder: Path) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {OUTPUT: "../model.safetensors"}}))


def both_kinds(folder: Path) -> None:
    save_file(random_tensors(), folder / "model.safetensors")


def no_index(folder: Path) -> None:
    (folder / INDEX).unlink()


def pickled(folder: Path) -> None:
    no_index(folder)
    for file in folder.glob("*.safetensors"):
        file.rename(file.with_suffix(".bin"))


FILES: dict[Callable[[Path], None], str] = {
    missing_file: "lacks model-00002-of-00002.safetensors, which model.safetensors.index.json names",
    cut_off: r"00002-of-00002.safetensors is no whole safetensors file \(.*\): was its download or copy cut off",
    pointer: "00001-of-00002.safetensors is no whole safetensors file",
    twice: "is in model-00001-of-00002.safetensors and in model-00002-of-00002.safetensors: which one is meant",
    index_of_others: rf"says that {OUTPUT} is in model-0000\d.*, and it is in model-0000\d",
    index_without: f"does not name {OUTPUT}, which its files hold",
    index_of_nothing: "is no index of safetensors",
    index_elsewhere: "names the file '../model.safetensors': expected one of the same folder",
    both_kinds: "does not name model.safetensors: remove it, or the index",
    no_index: "has neither model.safetensors alone nor model.safetensors.index.json, but model-00001-of-00002",
    pickled: "-00002.bin is not read: transformers' save_pretrained writes safetensors",
}


MODELS = {name: model_config(name, 250) for name in ("debug", "gpt-oss-debug", "deepseek-debug")}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(("damage", "message"), FILES.items(), ids=[damage.__name__ for damage in FILES])
def test_files_that_are_not_whole_or_not_meant_are_refused_by_name(
    damage: Callable[[Path], None], message: str, model: ModelConfig, tmp_path: Path
) -> None:
    tensors = random_tensors(model)
    folder = write_folder(tmp_path, tensors, model, files=in_two_files(tensors))
    assert opened(folder, model) == len(tensors)
    damage(folder)
    with pytest.raises(CheckpointError, match=message):
        opened(folder, model)


EXPERT = "model.layers.2.mlp.experts."
OF_EXPERTS: dict[str, tuple[str, Callable[[dict[str, Tensor]], dict[str, Tensor]], str]] = {
    "an expert's matrix less": (
        "deepseek-debug", without(f"{EXPERT}7.up_proj.weight"), rf"lacks 1 tensor .*: {EXPERT}7.up_proj.weight"
    ),
    "no correction of the choice": (
        "deepseek-debug", without("model.layers.1.mlp.gate.e_score_correction_bias"),
        "lacks 1 tensor .*: model.layers.1.mlp.gate.e_score_correction_bias",
    ),
    "experts that are turned": (
        "gpt-oss-debug",
        lambda tensors: tensors | {f"{EXPERT}gate_up_proj": tensors[f"{EXPERT}gate_up_proj"].mT.contiguous()},
        rf"{EXPERT}gate_up_proj has shape \[8, 128, 64\], its config.json describes \[8, 64, 128\]",
    ),
    "no sinks": (
        "gpt-oss-debug", without("model.layers.0.self_attn.sinks"), "lacks 1 tensor .*: model.layers.0.self_attn.sinks",
    ),
    "quantized experts": (
        "gpt-oss-debug",
        lambda tensors: tensors | {f"{EXPERT}down_proj_blocks": torch.ones(8, 2, dtype=torch.uint8)},
        rf"no place for: {EXPERT}down_proj_blocks",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "change", "message"), OF_EXPERTS.values(), ids=OF_EXPERTS)
def test_tensors_of_experts_and_sinks_that_are_not_those_of_the_model_are_refused_by_name(
    name: str, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], message: str, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path, change(random_tensors(MODELS[name])), MODELS[name])
    with pytest.raises(CheckpointError, match=message):
        opened(folder, MODELS[name])


def test_weights_of_other_names_beside_the_index_are_left_alone(tmp_path: Path) -> None:
    """Mistral's folders hold consolidated.safetensors too."""
    folder = write_folder(tmp_path, random_tensors())
    save_file({"tok_embeddings.weight": torch.ones(2)}, folder / "consolidated.safetensors")
    assert opened(folder) == len(random_tensors())


def test_an_adapter_is_not_left_out(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, random_tensors())
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(RecipeError, match=r"holds an adapter .*merge it"):
        opened(folder)


def test_a_smaller_vocabulary_is_taken_only_where_the_recipe_says_so(tmp_path: Path) -> None:
    small = replace(MODEL, vocab_size=200)
    folder = write_folder(tmp_path, random_tensors(small), small)
    with pytest.raises(
        RecipeError, match=r"200 rows, train.model has 256; 56 rows would be new: train.extend_v"
    ):
        opened(folder)
    assert opened(folder, extends=True) == len(random_tensors())
    with pytest.raises(RecipeError, match=r"200 rows, train.model has 128; name its config.json"):
        opened(folder, replace(MODEL, vocab_size=128), extends=True)


# Below: what is seen only where weights are read.


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_corpus(str(tmp_path_factory.mktemp("folder") / "out"), {"web": [1700, 530]}).url


def begun(data: str, output: Path, folder: Path, **changes: Any) -> Run:
    return Run(data=data, output=output, changes=FROZEN | {"init_from": str(folder)} | changes)


def held(run: Run, name: str) -> Tensor:
    folder = Folder(str(run.output / "checkpoints" / run.checkpoints()[-1]))
    state = {
        f"weights.{name}": torch.empty(held_tensors(folder)[f"weights.{name}"].size, dtype=torch.float64)
    }
    load(folder, state, None)
    return state[f"weights.{name}"]


READ: dict[str, tuple[dict[str, Tensor], str]] = {
    "NaN": ({QUERY: torch.full((64, 64), float("nan"))}, f"{QUERY} hold numbers that are not finite"),
    "too large": ({QUERY: torch.full((64, 64), 1e300, dtype=torch.float64)}, f"{QUERY} hold numbers"),
    "another head": (
        {"lm_head.weight": torch.ones(256, 64)},
        "tie_word_embeddings = true, and lm_head.weight",
    ),
    "other positions": ({FREQUENCIES: torch.ones(4)}, f"{FREQUENCIES} are other rotary positions"),
}


@pytest.mark.parametrize(("change", "message"), READ.values(), ids=READ)
def test_what_only_the_numbers_tell_is_refused_on_all_ranks_by_name(
    change: dict[str, Tensor], message: str, data: str, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "hf", random_tensors() | change)
    with pytest.raises(ChildFailedError, match=message):
        begun(data, tmp_path / "run", folder, dtype="float32", workers=2).start(parallel={"tp": 2})


def test_what_a_folder_holds_twice_and_alike_is_taken(data: str, tmp_path: Path) -> None:
    tensors = random_tensors()
    frequencies = rotary_angles(torch.ones(1, 1), Rotary(), MODEL.rotary_dim, torch.float32).flatten().half()
    twice = tensors | {"lm_head.weight": tensors[EMBEDDING].clone(), FREQUENCIES: frequencies}
    run = begun(data, tmp_path / "run", write_folder(tmp_path / "hf", twice))
    run.start()
    assert torch.equal(held(run, QUERY), tensors[QUERY].double())


@pytest.mark.parametrize("layout", [{}, {"tp": 2}, {"dp_shard": 2}], ids=str)
def test_rows_that_a_smaller_vocabulary_lacks_begin_as_without_it_on_any_layout(
    layout: dict[str, int], data: str, tmp_path: Path
) -> None:
    small = replace(MODEL, vocab_size=200)
    tensors = random_tensors(small)
    folder = write_folder(tmp_path / "hf", tensors, small)
    run = begun(data, tmp_path / "run", folder, extend_vocabulary=True, workers=2)
    run.start(parallel=layout)
    shape = torch.Size((256, 64))
    fresh = initial_weight(EMBEDDING, shape, MODEL, run.recipe().seed, torch.empty(0, dtype=torch.float64))
    assert torch.equal(held(run, EMBEDDING), torch.cat([tensors[EMBEDDING].double(), fresh[200:]]))
    told = "".join(file.read_text() for file in run.scratch.glob("stderr-*"))
    assert told.count("train.init_from: 56 of 256 rows of the vocabulary are new, made from the seed") == 1


def test_a_vocabulary_is_extended_only_of_weights_to_begin_with(data: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"train.extend_vocabulary = true: expected train.init_from"):
        Run(data=data, output=tmp_path, changes={"extend_vocabulary": True}).recipe()


def test_a_checkpoint_whose_weights_are_not_finite_is_refused_by_tensor(data: str, tmp_path: Path) -> None:
    """Its hashes are right: so it was saved."""
    first = Run(data=data, output=tmp_path / "first", changes={"steps": 1})
    first.start()
    checkpoint = tmp_path / "first" / "checkpoints" / first.checkpoints()[-1]
    put_nan(checkpoint, f"weights.{QUERY}")
    with pytest.raises(ChildFailedError, match=rf"{QUERY} hold numbers that are not finite"):
        begun(data, tmp_path / "run", checkpoint).start()


def put_nan(checkpoint: Path, name: str) -> None:
    """Make the first number of a tensor NaN, as a run would have saved it."""
    entry = held_tensors(Folder(str(checkpoint)))[name]
    state = {name: torch.empty(entry.size, dtype=entry.properties.dtype)}
    load(Folder(str(checkpoint)), state, None)
    before, row = state[name].numpy().tobytes(), json.loads((checkpoint / COMPLETE).read_text())
    for file in checkpoint.glob("*.distcp"):
        data = file.read_bytes()
        after = torch.full_like(state[name][:1, :1], float("nan")).numpy().tobytes()
        changed = data.replace(before, after + before[len(after) :])
        row["files"][file.name] = [len(changed), content_hash(changed).hex()]
        file.write_bytes(changed)
    del row["digest"]
    row["digest"] = _digest(row)
    (checkpoint / COMPLETE).write_text(json.dumps(row))
