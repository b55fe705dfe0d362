"""Shapes of models read from a config.json: what it leaves out, and what it asks for that is not built."""

from __future__ import annotations

from typing import Any

import pytest

from lineage.recipe import RecipeError
from trainer.model.sizes import PLANNED_KINDS, RopeScaling, from_hugging_face

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "vocab_size": 256,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


def shape_of(kind: str) -> dict[str, Any]:
    return SHAPE | {"model_type": kind} | (EXPERTS if kind == "mixtral" else {})


@pytest.mark.parametrize("given", [{}, {"rope_theta": 5e5, "rms_norm_eps": 1e-4}])
@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_what_a_config_leaves_out_is_as_transformers_has_it(kind: str, given: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    config = from_hugging_face(shape_of(kind) | given, where="config.json")
    classes = {"llama": transformers.LlamaConfig, "mixtral": transformers.MixtralConfig}
    theirs = classes[kind](**{**shape_of(kind), **given})
    assert config.rope_theta == theirs.rope_parameters["rope_theta"]
    assert (config.norm_eps, config.num_kv_heads) == (theirs.rms_norm_eps, theirs.num_key_value_heads)


@pytest.mark.parametrize(("kind", "expected"), [("llama", (1e4, 1e-6, 16)), ("mixtral", (1e6, 1e-5, 8))])
def test_the_defaults_of_each_kind(kind: str, expected: tuple[float, float, int]) -> None:
    config = from_hugging_face(shape_of(kind), where="config.json")
    assert (config.rope_theta, config.norm_eps, config.num_kv_heads) == expected


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
NOT_COMPUTED: dict[str, tuple[dict[str, Any], str]] = {
    "quantized": (
        {"quantization_config": {"quant_method": "fp8"}},
        "quantization_config = .*: the folder's weights are quantized",
    ),
    "soft-cap of logits": ({"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0: the trainer"),
    "multiplier": ({"embedding_multiplier": 12.0}, "embedding_multiplier = 12.0: expected 1"),
    "scale of attention": ({"query_pre_attn_scalar": 256}, "query_pre_attn_scalar = 256: the trainer"),
    "biases": ({"attention_bias": True}, "attention_bias = True: expected False"),
    "biases under another name": ({"qkv_bias": True}, "qkv_bias = True: the trainer"),
    "window": ({"sliding_window": 4096}, "sliding_window = 4096: expected None"),
    "windows of some layers": (
        {"layer_types": ["full_attention", "sliding_attention"]},
        "expected 'full_attention' in every layer",
    ),
    "layers without positions": ({"no_rope_layers": [1, 0]}, r"no_rope_layers = \[1, 0\]: the trainer"),
    "positions in part of a head": (
        {"partial_rotary_factor": 0.5},
        "partial_rotary_factor = 0.5: expected 1",
    ),
    "the same, in a table": (
        {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        "partial_rotary_factor = 0.5 of rotary positions with rope_type 'default'",
    ),
    "linear positions": ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope scaling 'linear'"),
    "positions by layer": (
        {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}},
        "full_attention = .* of rotary positions",
    ),
    "two bases": (
        {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        "rope_theta is 10000.0, and 500000.0 in rope_parameters",
    ),
    "two kinds of positions": (
        {"rope_scaling": LLAMA3 | {"type": "llama3"}, "rope_parameters": {"rope_type": "default"}},
        "rope_type is 'llama3' and 'default'",
    ),
    "another head": ({"architectures": ["LlamaForSequenceClassification"]}, "expected .'LlamaForCausalLM'"),
    "own code": ({"auto_map": {"AutoModelForCausalLM": "m.M"}}, "auto_map = .*: the trainer"),
    "dropout": ({"attention_dropout": 0.1}, "attention_dropout = 0.1: expected 0"),
    "a size that is no number": ({"hidden_size": "64"}, "hidden_size = '64': expected a whole number from 1"),
    "a size in halves": ({"num_hidden_layers": 2.5}, "num_hidden_layers = 2.5: expected a whole number"),
    "a norm without end": ({"rms_norm_eps": float("nan")}, "rms_norm_eps = nan: expected a number above 0"),
}


@pytest.mark.parametrize(("change", "message"), NOT_COMPUTED.values(), ids=NOT_COMPUTED)
def test_what_the_trainer_does_not_compute_is_refused_by_key_and_value(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        from_hugging_face(shape_of("llama") | change, where="config.json")


def test_a_config_that_is_no_table_is_refused() -> None:
    with pytest.raises(RecipeError, match="expected a table of keys"):
        from_hugging_face([], where="config.json")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"dtype": "q4"}},
        {"pretraining_tp": 2, "use_cache": False, "bos_token_id": 0, "eos_token_id": [0, 1]},
        {"sliding_window": None, "quantization_config": None, "some_key_of_tomorrow": None},
        {"layer_types": ["full_attention", "full_attention"], "attention_dropout": 0.0},
        {"architectures": ["LLaMAForCausalLM"]},
        {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}},
    ],
    ids=["SmolLM2", "tokens", "null", "plain", "early Llama", "both spellings"],
)
def test_keys_that_change_nothing_are_passed_over(change: dict[str, Any]) -> None:
    plain = from_hugging_face(shape_of("llama"), where="config.json")
    assert from_hugging_face(shape_of("llama") | change, where="config.json") == plain


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_scaling": LLAMA3 | {"type": "llama3", "rope_type": "llama3"}},
        {"rope_parameters": LLAMA3 | {"rope_type": "llama3", "rope_theta": 1e4}},
    ],
)
def test_scaled_positions_are_read_in_either_spelling(spelling: dict[str, Any]) -> None:
    found = from_hugging_face(shape_of("llama") | spelling, where="config.json")
    assert (found.rope_theta, found.rope_scaling) == (1e4, RopeScaling(**LLAMA3))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_what_transformers_writes_of_these_kinds_is_read(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    classes = {"llama": transformers.LlamaConfig, "mixtral": transformers.MixtralConfig}
    written = classes[kind](**shape_of(kind)).to_dict()
    assert from_hugging_face(written, where="config.json").num_layers == 2


def test_a_model_that_is_only_planned_may_have_keys_that_are_not_known() -> None:
    raw = {
        **SHAPE, "model_type": "deepseek_v3", "quantization_config": {}, "scoring_func": "sigmoid",
        "rope_scaling": {"type": "yarn", "factor": 40}, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
    }  # fmt: skip
    assert from_hugging_face(raw, where="config.json", kinds=PLANNED_KINDS).latent is not None
