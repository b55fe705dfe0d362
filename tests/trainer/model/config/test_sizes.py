"""Shapes of models read from a config.json: what it leaves out, and what it asks for that is not built."""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from lineage.recipe import RecipeError
from tests.support.training.transformers_models import FAMILIES, VARIANTS, reference_model
from trainer.model.config.description import (
    Experts,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    Rotary,
    RouterConfig,
    YarnScaling,
)
from trainer.model.config.families import PLANNED_KINDS, TRAINED_KINDS, from_hugging_face, to_hugging_face
from trainer.model.config.family_table import FAMILIES as FAMILY_TABLE

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
    assert config.rotary == (Rotary(theta=theirs.rope_parameters["rope_theta"]),)
    assert (config.norm_eps, config.num_kv_heads) == (theirs.rms_norm_eps, theirs.num_key_value_heads)


@pytest.mark.parametrize(("kind", "expected"), [("llama", (1e4, 1e-6, 16)), ("mixtral", (1e6, 1e-5, 8))])
def test_the_defaults_of_each_kind(kind: str, expected: tuple[float, float, int]) -> None:
    config = from_hugging_face(shape_of(kind), where="config.json")
    (rule,) = config.rotary
    assert rule is not None
    assert (rule.theta, config.norm_eps, config.num_kv_heads) == expected


WIDE = SHAPE | {"hidden_size": 1024, "num_hidden_layers": 36, "num_attention_heads": 128}
"""Its heads fit every class's own number of key-value heads, its layers reach every pattern's end."""
ALSO_NEEDED = EXPERTS | {
    "n_routed_experts": 16, "moe_intermediate_size": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8, "v_head_dim": 8,
}  # fmt: skip


@pytest.mark.parametrize("kind", TRAINED_KINDS)
def test_what_a_family_leaves_out_is_what_its_class_writes(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    given = WIDE | {name: ALSO_NEEDED[name] for name in FAMILY_TABLE[kind].needed}
    theirs = transformers.AutoConfig.for_model(kind, **given).to_dict()
    ours = from_hugging_face(given | {"model_type": kind}, where="config.json")
    assert ours == from_hugging_face(theirs, where="config.json")


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
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
    "positions that stretch with the row": (
        {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
        "rope scaling 'dynamic'",
    ),
    "positions by layer": (
        {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}},
        "full_attention = .* of rotary positions",
    ),
    "two bases": (
        {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        "rope_theta is 10000.0 and 500000.0 for the same rotary positions: expected one value",
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
    assert found.rotary == (Rotary(theta=1e4, scaling=Llama3Scaling(**LLAMA3)),)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_what_transformers_writes_of_these_kinds_is_read(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    classes = {"llama": transformers.LlamaConfig, "mixtral": transformers.MixtralConfig}
    written = classes[kind](**shape_of(kind)).to_dict()
    assert from_hugging_face(written, where="config.json").num_layers == 2


def test_a_model_that_is_only_planned_may_have_keys_that_are_not_known() -> None:
    raw = {
        **SHAPE, "model_type": "deepseek_v2", "quantization_config": {}, "scoring_func": "sigmoid",
        "rope_scaling": {"type": "yarn", "factor": 40}, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
    }  # fmt: skip
    assert from_hugging_face(raw, where="config.json", kinds=PLANNED_KINDS).latent is not None


@pytest.mark.parametrize("name", [*FAMILIES, *VARIANTS])
def test_a_config_is_the_same_description_whoever_wrote_it(name: str) -> None:
    """Read from transformers' own, written by us, read by transformers and written by it again."""
    transformers = pytest.importorskip("transformers")
    theirs = reference_model(name).config
    config = from_hugging_face(theirs, where="config.json", kinds=PLANNED_KINDS)
    ours = to_hugging_face(config, seq_len=128, end_of_text=255, dtype="float32")
    assert from_hugging_face(ours, where="config.json", kinds=PLANNED_KINDS) == config
    again = json.loads(transformers.AutoConfig.for_model(**ours).to_json_string())
    assert from_hugging_face(again, where="config.json", kinds=PLANNED_KINDS) == config
    assert ModelConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mistral v0.1": (
        {"model_type": "mistral", "sliding_window": 4096, "rope_theta": 10000.0},
        {"windows": (4096,)},
    ),
    "mistral v0.2": ({"model_type": "mistral", "sliding_window": None}, {"windows": (None,)}),
    "mistral that does not say": ({"model_type": "mistral"}, {"windows": (4096,), "num_kv_heads": 8}),
    "Qwen2.5": (
        {"model_type": "qwen2", "num_key_value_heads": 2, "use_sliding_window": False, "sliding_window": 32768},
        {"windows": (None,), "input_biases": True, "output_bias": False},
    ),
    "OLMo 3 of a long context": (
        {
            "model_type": "olmo3", "num_hidden_layers": 8, "rope_theta": 5e5,
            "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2,
            "rope_scaling": {
                "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192,
                "beta_fast": 32, "beta_slow": 1, "attention_factor": 1.2079441541679836,
            },
        },
        {
            "windows": (4096, 4096, 4096, None),
            "rotary": (*[Rotary(theta=5e5)] * 3, Rotary(theta=5e5, scaling=YarnScaling(
                factor=8.0, original_max_position_embeddings=8192, attention_factor=1.2079441541679836,
            ))),
            "norms": "behind",
        },
    ),
    "Gemma 3 4B": (
        {
            "model_type": "gemma3_text", "num_hidden_layers": 12, "sliding_window": 1024, "rope_theta": 1e6,
            "rope_local_base_freq": 1e4, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window_pattern": 6, "hidden_activation": "gelu_pytorch_tanh",
        },
        {
            "windows": (*[1024] * 5, None),
            "rotary": (*[Rotary(theta=1e4)] * 5, Rotary(theta=1e6, scaling=LinearScaling(factor=8.0))),
            "embedding_scale": 8.0,
        },
    ),
    "Gemma 3 with a key that its class does not read": (
        {"model_type": "gemma3_text", "num_hidden_layers": 6, "use_sliding_window": False},
        {"windows": (*[4096] * 5, None)},
    ),
    "Gemma 3 whose layers were made from a pattern": (
        {"model_type": "gemma3_text", "num_hidden_layers": 12, "_sliding_window_pattern": 2},
        {"windows": (*[4096] * 5, None)},
    ),
    "gpt-oss under a name that the class does not read": (
        {"model_type": "gpt_oss", "experts_per_token": 2},
        {"experts": Experts(
            num_experts=128, top_k=4, hidden=96, biases=True,
            router=RouterConfig(score="softmax of chosen", bias=True),
        )},
    ),
    "gpt-oss with plain positions": (
        {"model_type": "gpt_oss", "rope_parameters": {}},
        {"rotary": (Rotary(theta=1.5e5),)},
    ),
    "SmolLM3": (
        {"model_type": "smollm3", "num_hidden_layers": 8, "rope_theta": 5e6, "no_rope_layers": [1, 1, 1, 0] * 2},
        {"rotary": (*[Rotary(theta=5e6)] * 3, None), "windows": (None,)},
    ),
    "YaRN that does not say its factor": (
        {
            "model_type": "llama", "max_position_embeddings": 4096,
            "rope_scaling": {"type": "yarn", "factor": None, "original_max_position_embeddings": 1024},
        },
        {"rotary": (Rotary(theta=1e4, scaling=YarnScaling(factor=4.0, original_max_position_embeddings=1024)),)},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), PUBLISHED.values(), ids=PUBLISHED)
def test_keys_as_folders_on_the_hub_have_them(given: dict[str, Any], expected: dict[str, Any]) -> None:
    config = from_hugging_face(SHAPE | given, where="config.json", kinds=PLANNED_KINDS)
    assert {name: getattr(config, name) for name in expected} == expected


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "windows of no layer": (
        {"model_type": "gemma2", "layer_types": ["full_attention"]},
        "expected 'full_attention' or 'sliding_attention' for each layer",
    ),
    "windows where mistral has one for all": (
        {"model_type": "mistral", "layer_types": ["full_attention", "full_attention"]},
        "expected no such key: transformers makes another model_type of it",
    ),
    "windows that are switched off": (
        {
            "model_type": "smollm3", "layer_types": ["sliding_attention", "full_attention"],
            "use_sliding_window": False, "sliding_window": 8,
        },
        "expected 'full_attention' in every layer with use_sliding_window = False",
    ),
    "positions that only one of two tables has": (
        {
            "model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 4.0},
            "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5},
        },
        "rope_scaling = .*: expected the same rotary positions in rope_parameters",
    ),
    "a kind of positions under its old name": (
        {"model_type": "gemma3_text", "rope_scaling": {"type": "linear", "factor": 8.0}},
        "rope_scaling: type = 'linear': expected rope_type, as it counts for nothing",
    ),
    "YaRN between fractions in some layers": (
        {"model_type": "olmo3", "rope_scaling": YARN | {"truncate": False}},
        "truncate = False: expected true",
    ),
    "YaRN between nulls": (
        {"model_type": "llama", "rope_scaling": YARN | {"truncate": None}},
        "truncate = None: expected true or false",
    ),
    "long waves shorter than short ones": (
        {"model_type": "llama", "rope_scaling": LLAMA3 | {"rope_type": "llama3", "low_freq_factor": 4.0}},
        "low_freq_factor = 4.0: expected less than high_freq_factor = 4.0",
    ),
    "neither true nor false": (
        {"model_type": "qwen3_moe", "norm_topk_prob": None},
        "norm_topk_prob = None: expected true or false",
    ),
    "experts under a name that the class does not read": (
        {
            "model_type": "deepseek_v3", "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
            "v_head_dim": 8, "moe_intermediate_size": 16, "n_routed_experts": 8, "num_experts": 8,
            "n_group": 1, "topk_group": 1,
        },
        "num_experts = 8: the trainer computes no such thing",
    ),
    "positions of a layer that is none": (
        {"model_type": "olmo3", "rope_parameters": {"rope_theta": 1e4}},
        "rope_parameters: rope_theta = 10000.0: expected a table",
    ),
    "attention both ways": (
        {"model_type": "gemma3_text", "use_bidirectional_attention": True},
        "use_bidirectional_attention = True: expected False",
    ),
    "a softmax router": (
        {"model_type": "deepseek_v3", "scoring_func": "softmax"},
        "scoring_func = 'softmax': expected 'sigmoid'",
    ),
    "two numbers of experts": (
        {"model_type": "qwen3_moe", "num_experts": 8, "num_local_experts": 4},
        "num_local_experts = 4, and num_experts = 8: expected one value",
    ),
    "no latent": ({"model_type": "deepseek_v3"}, "kv_lora_rank is missing: expected a deepseek_v3"),
    "layers without positions by halves": (
        {"model_type": "smollm3", "no_rope_layers": [1]},
        r"no_rope_layers = \[1\]: expected a number for each layer",
    ),
    "YaRN without its length": (
        {"model_type": "llama", "rope_scaling": {"type": "yarn", "factor": 4.0}},
        "original_max_position_embeddings is missing: expected it with rope_type 'yarn'",
    ),
    "a key of another family": (
        {"model_type": "qwen3", "attn_logit_softcapping": 50.0},
        "attn_logit_softcapping = 50.0: the trainer computes no such thing",
    ),
    "a cap that the class keeps and never applies": (
        {"model_type": "gemma3_text", "attn_logit_softcapping": 2.0},
        "attn_logit_softcapping = 2.0: the trainer computes no such thing",
    ),
    "shared experts without rows": (
        {
            "model_type": "deepseek_v3", "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
            "v_head_dim": 8, "n_routed_experts": 8, "moe_intermediate_size": 16, "n_shared_experts": 0,
        },
        "n_shared_experts = 0: expected a whole number from 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED)
def test_what_a_family_cannot_have_is_refused_by_key_and_value(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        from_hugging_face(SHAPE | given, where="config.json", kinds=PLANNED_KINDS)


def test_a_model_without_positions_in_any_layer_is_written_and_read_back() -> None:
    config = from_hugging_face(
        SHAPE | {"model_type": "smollm3", "no_rope_layer_interval": 1}, where="config.json"
    )
    assert config.rotary == (None,)
    described = to_hugging_face(config, seq_len=64, end_of_text=1, dtype="float32")
    assert from_hugging_face(described, where="config.json") == config


@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text", "gpt_oss", "olmo3"])
def test_a_model_without_windows_is_written_with_one_that_no_layer_has(kind: str) -> None:
    """Its class in transformers makes the mask of windows whatever its layers are, which fails for a null."""
    full = {"model_type": kind, "layer_types": ["full_attention"] * 2, "num_key_value_heads": 4}
    config = from_hugging_face(SHAPE | full, where="config.json")
    described = to_hugging_face(config, seq_len=64, end_of_text=1, dtype="float32")
    assert described["sliding_window"] is not None
    assert from_hugging_face(described, where="config.json") == config


WRONG_VALUES: tuple[Any, ...] = ("x", 0, -1, 2.5, True, [], ["x"], [{}], {}, {"x": 1}, float("nan"))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_wrong_value_of_any_key_is_read_or_refused_in_a_sentence(name: str) -> None:
    config = dict(reference_model(name).config)
    family = FAMILY_TABLE[name]
    keys = {*config, *family.defaults, *family.needed, *family.aliases, *family.only_values}
    tables = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32, "rope_theta": 1e4}
    for key, value in itertools.product(sorted(keys), WRONG_VALUES):
        with contextlib.suppress(RecipeError):
            from_hugging_face(config | {key: value}, where="config.json")
    for key, value in itertools.product(tables, WRONG_VALUES):
        for rope in (
            tables | {key: value},
            {"full_attention": tables | {key: value}},
            {"full_attention": value},
        ):
            with contextlib.suppress(RecipeError):
                from_hugging_face(config | {"rope_parameters": rope}, where="config.json")


def test_what_a_family_cannot_say_is_not_written() -> None:
    windowed = replace(from_hugging_face(SHAPE, where="config.json"), windows=(8, None))
    with pytest.raises(RecipeError, match=r"no model that a config\.json with model_type 'llama' describes"):
        to_hugging_face(windowed, seq_len=32, end_of_text=0, dtype="float32")
