"""Which keys of a config.json a model is built from, which change nothing, and which ask for a model that is
not built here. No torch.

A key that is not known may change what the weights mean (a multiplier, a cap on logits, another window): a
model that leaves it out trains on, and is another one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

from lineage.recipe import RecipeError

SIZES_GIVEN: Final = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size",
)  # fmt: skip
_READ: Final = frozenset({
    *SIZES_GIVEN, "model_type", "tie_word_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
})  # fmt: skip
EXPERTS_GIVEN: Final = ("num_local_experts", "num_experts_per_tok")
_READ_OF_MIXTRAL: Final = frozenset({*EXPERTS_GIVEN, "n_shared_experts"})
_PLAIN: Final[Mapping[str, Any]] = {
    "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "sliding_window": None,
}  # fmt: skip
"""What every model here has, those that are only planned too."""
_ONLY: Final[Mapping[str, Any]] = {
    **_PLAIN, "use_sliding_window": False, "attention_dropout": 0, "hidden_dropout": 0, "embedding_dropout": 0,
    "residual_dropout": 0, "partial_rotary_factor": 1, "rope_interleaved": False, "is_llama_config": True,
    "router_jitter_noise": 0, "embedding_multiplier": 1, "residual_multiplier": 1, "logits_scaling": 1,
    "logit_scale": 1, "is_encoder_decoder": False, "add_cross_attention": False, "tie_encoder_decoder": False,
    "pruned_heads": {},
}  # fmt: skip
"""Keys that may stand there with the one value that changes nothing."""
_HARMLESS: Final = frozenset({
    "_name_or_path", "_attn_implementation", "_attn_implementation_autoset", "attn_implementation", "architectures",
    "torch_dtype", "dtype", "transformers_version", "transformers.js_config", "unsloth_version", "unsloth_fixed",
    "max_position_embeddings", "initializer_range", "use_cache", "pretraining_tp", "chunk_size_feed_forward",
    "pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "unk_token_id", "decoder_start_token_id",
    "tokenizer_class", "output_attentions", "output_hidden_states", "output_router_logits", "output_scores",
    "return_dict", "return_dict_in_generate", "torchscript", "use_bfloat16", "tf_legacy_loss", "is_decoder",
    "router_aux_loss_coef", "id2label", "label2id", "num_labels", "problem_type", "finetuning_task",
    "task_specific_params", "prefix", "cross_attention_hidden_size", "max_length", "min_length", "do_sample",
    "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p",
    "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
    "num_return_sequences", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
    "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens",
})  # fmt: skip
"""Of a tokenizer, of generating, of a library or of an earlier training: no value of these changes the model's
output for given tokens."""
_ARCHITECTURES: Final = {"llama": "LlamaForCausalLM", "mixtral": "MixtralForCausalLM"}
"""By model_type, whose tensors have the names that are read. (Early folders write LLaMAForCausalLM.)"""


def check_plain(raw: Mapping[str, Any], where: str) -> None:
    """RecipeError where a config.json asks for what no model here has."""
    _check_values(raw, _PLAIN, where)


def check_keys(raw: Mapping[str, Any], kind: str, where: str) -> None:
    """RecipeError with key and value where a config.json of a `kind` that is trained asks for what the trainer
    does not compute. A key that is null counts as not given."""
    if raw.get("quantization_config") is not None:
        raise RecipeError(
            f"{where}: quantization_config = {raw['quantization_config']!r}: the folder's weights are quantized:"
            " expected float16, bfloat16, float32 or float64 (transformers' model.dequantize() makes them)"
        )
    _check_values(raw, _ONLY, where)
    expected = _ARCHITECTURES[kind]
    for name in raw.get("architectures") or ():
        if str(name).lower() != expected.lower():
            raise RecipeError(f"{where}: architectures = {raw['architectures']!r}: expected [{expected!r}]")
    layers = raw.get("layer_types")
    if layers is not None and set(layers) != {"full_attention"}:
        raise RecipeError(f"{where}: layer_types = {layers!r}: expected 'full_attention' in every layer")
    known = (
        _READ
        | _ONLY.keys()
        | _HARMLESS
        | {"layer_types"}
        | (_READ_OF_MIXTRAL if kind == "mixtral" else set())
    )
    for name, value in raw.items():
        if name not in known and value is not None:
            raise RecipeError(
                f"{where}: {name} = {value!r}: the trainer computes no such thing, so it would train another"
                " model; take the key out if the weights do not need it"
            )


def check_numbers(raw: Mapping[str, Any], kind: str, where: str) -> None:
    """RecipeError where a size that is given is no whole number from 1, or a number that is read is none."""
    for name in (*SIZES_GIVEN, *(EXPERTS_GIVEN if kind == "mixtral" else ())):
        value = raw.get(name)
        if value is not None and (type(value) is not int or value < 1):
            raise RecipeError(f"{where}: {name} = {value!r}: expected a whole number from 1")
    for name in ("rms_norm_eps", "rope_theta"):
        value = raw.get(name)
        if value is not None and (type(value) not in (int, float) or not 0 < value < float("inf")):
            raise RecipeError(f"{where}: {name} = {value!r}: expected a number above 0")
    if type(raw.get("tie_word_embeddings", False)) is not bool:
        raise RecipeError(
            f"{where}: tie_word_embeddings = {raw['tie_word_embeddings']!r}: expected true or false"
        )


def rope_of(
    raw: Mapping[str, Any], stretched: type, *, default_theta: float, where: str
) -> Mapping[str, Any]:
    """What a config.json says of rotary positions, in either spelling (`rope_theta` and `rope_scaling`, or
    `rope_parameters`): `rope_theta`, `rope_type` and the fields of `stretched`. RecipeError where the two
    disagree, or say what the trainer does not compute."""
    spelt = {
        "rope_scaling": raw.get("rope_scaling") or {},
        "rope_parameters": raw.get("rope_parameters") or {},
    }
    found: dict[str, Any] = {}
    for name, table in spelt.items():
        if not isinstance(table, Mapping):
            raise RecipeError(f"{where}: {name} = {table!r}: expected a table of rotary positions")
        for spelling, value in table.items():
            key = "rope_type" if spelling == "type" else spelling
            if value is not None and found.setdefault(key, value) != value:
                raise RecipeError(
                    f"{where}: {key} is {found[key]!r} and {value!r} in rope_scaling and rope_parameters: expected"
                    " one value"
                )
    theta = raw.get("rope_theta")
    if theta is not None and found.setdefault("rope_theta", theta) != theta:
        raise RecipeError(
            f"{where}: rope_theta is {theta!r}, and {found['rope_theta']!r} in rope_parameters: expected one value"
        )
    found.setdefault("rope_theta", default_theta)
    kind = found.setdefault("rope_type", "default")
    if kind not in ("default", "llama3"):
        raise RecipeError(f"{where}: rope scaling {kind!r}: expected 'default' or 'llama3'")
    fields = {field.name for field in dataclasses.fields(stretched)} if kind == "llama3" else set()
    _check_rope(found, {"rope_theta", "rope_type", *fields}, where)
    return found


def _check_rope(found: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for name, value in found.items():
        if name == "partial_rotary_factor" and value == 1:
            continue
        if name not in known:
            raise RecipeError(
                f"{where}: {name} = {value!r} of rotary positions with rope_type {found['rope_type']!r}: the"
                " trainer computes no such thing"
            )
        if name != "rope_type" and (type(value) not in (int, float) or not 0 < value < float("inf")):
            raise RecipeError(f"{where}: {name} = {value!r}: expected a number above 0")


def _check_values(raw: Mapping[str, Any], only: Mapping[str, Any], where: str) -> None:
    for name, value in only.items():
        given = raw.get(name)
        if given is not None and given != value:
            raise RecipeError(f"{where}: {name} = {given!r}: expected {value!r} (a Llama-style model)")
