"""What a config.json says, read into a description and written back: a row of `FAMILIES` for each model_type. No
torch here.

A key that is not known may change what the weights mean (a multiplier, another window): a model that leaves it
out trains on, and is another one. So each key is read, may have one value only, or is known to change nothing;
every other key is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from lineage.recipe import RecipeError
from trainer.model.description import (
    Experts,
    Gate,
    LatentAttention,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    Rotary,
    Router,
    YarnScaling,
)

_T = TypeVar("_T")


class Key(NamedTuple):
    """A key whose value is a field of the description. `fields`: their paths; `kind`: what it must be."""

    fields: tuple[str, ...]
    kind: str


_SIZE, _COUNT, _NUMBER, _TRUTH = (
    "a whole number from 1",
    "a whole number from 0",
    "a number above 0",
    "true or false",
)
KEYS: Final[Mapping[str, Key]] = {
    "hidden_size": Key(("width",), _SIZE),
    "intermediate_size": Key(("hidden",), _SIZE),
    "num_hidden_layers": Key(("num_layers",), _SIZE),
    "num_attention_heads": Key(("num_heads",), _SIZE),
    "num_key_value_heads": Key(("num_kv_heads",), _SIZE),
    "head_dim": Key(("head_dim",), _SIZE),
    "vocab_size": Key(("vocab_size",), _SIZE),
    "tie_word_embeddings": Key(("tied",), _TRUTH),
    "rms_norm_eps": Key(("norm_eps",), _NUMBER),
    "initializer_range": Key(("initial_deviation",), _NUMBER),
    "attention_bias": Key(("input_biases", "output_bias"), _TRUTH),
    "query_pre_attn_scalar": Key(("score_divisor",), _NUMBER),
    "attn_logit_softcapping": Key(("score_cap",), _NUMBER),
    "final_logit_softcapping": Key(("logit_cap",), _NUMBER),
    "swiglu_alpha": Key(("gate.gain",), _NUMBER),
    "swiglu_limit": Key(("gate.limit",), _NUMBER),
    "num_local_experts": Key(("experts.num_experts",), _SIZE),
    "num_experts": Key(("experts.num_experts",), _SIZE),
    "n_routed_experts": Key(("experts.num_experts",), _SIZE),
    "num_experts_per_tok": Key(("experts.top_k",), _SIZE),
    "moe_intermediate_size": Key(("experts.hidden",), _SIZE),
    "n_shared_experts": Key(("experts.num_shared",), _COUNT),
    "n_group": Key(("experts.num_groups",), _SIZE),
    "topk_group": Key(("experts.top_groups",), _SIZE),
    "norm_topk_prob": Key(("experts.router.normalised",), _TRUTH),
    "routed_scaling_factor": Key(("experts.router.scale",), _NUMBER),
    "q_lora_rank": Key(("latent.query_rank",), _SIZE),
    "kv_lora_rank": Key(("latent.kv_rank",), _SIZE),
    "qk_nope_head_dim": Key(("latent.nope_dim",), _SIZE),
    "qk_rope_head_dim": Key(("latent.rope_dim",), _SIZE),
    "v_head_dim": Key(("latent.value_dim",), _SIZE),
}
_NEEDED: Final = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
)  # fmt: skip
_EVERYWHERE: Final[Mapping[str, Any]] = {
    "num_key_value_heads": None, "tie_word_embeddings": False, "initializer_range": 0.02, "rms_norm_eps": 1e-6,
    "rope_scaling": None, "rope_parameters": None, "max_position_embeddings": None,
}  # fmt: skip
_ONLY: Final[Mapping[str, Any]] = {
    "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "sliding_window": None,
    "use_sliding_window": False, "attention_dropout": 0, "hidden_dropout": 0, "embedding_dropout": 0,
    "residual_dropout": 0, "partial_rotary_factor": 1, "rope_interleaved": False, "is_llama_config": True,
    "router_jitter_noise": 0, "embedding_multiplier": 1, "residual_multiplier": 1, "logits_scaling": 1,
    "logit_scale": 1, "is_encoder_decoder": False, "add_cross_attention": False, "tie_encoder_decoder": False,
    "pruned_heads": {}, "use_mrope": False, "use_bidirectional_attention": False,
}  # fmt: skip
"""Keys that may stand there with the one value that changes nothing, where a family does not read them."""
_HARMLESS: Final = frozenset({
    "model_type",
    "_name_or_path", "_attn_implementation", "_attn_implementation_autoset", "attn_implementation", "architectures",
    "torch_dtype", "dtype", "transformers_version", "transformers.js_config", "unsloth_version", "unsloth_fixed",
    "use_cache", "pretraining_tp", "chunk_size_feed_forward", "cache_implementation",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model_type: the class of transformers that has its tensors' names, and how its config.json is read.

    `left_out`: keys that it reads beside the usual ones and may leave out, and what they are then, which are
    the defaults of its class; `needed`: those that must be there; `aliases`: other names of keys. `only`, `harmless`:
    as `_ONLY` and `_HARMLESS`, for this family. `fixed`: by their paths, the fields of the description that every
    model of it has so. `slides`: whether a layer has the window where `layer_types` does not say so (None: none
    has); `rotates`: whether it has rotary positions (None: every one). `local_theta`: layers with a window have a
    rotary base of their own, this one if none is given, and only the others have scaled positions; None: all layers
    have the same. `scales_embedding`: by the root of its width. `planned_only`: it is not trained, and unknown keys
    are passed over."""

    architecture: str
    left_out: Mapping[str, Any] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    only: Mapping[str, Any] = field(default_factory=dict)
    harmless: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    slides: Callable[[Mapping[str, Any], int], bool] | None = None
    rotates: Callable[[Mapping[str, Any], int], bool] | None = None
    local_theta: float | None = None
    scales_embedding: bool = False
    planned_only: bool = False

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Every key that may be left out, and what it is then."""
        return {**_EVERYWHERE, "rope_theta": 1e4, **self.left_out}

    @property
    def only_values(self) -> Mapping[str, Any]:
        """Keys that may have one value alone."""
        every = {**_ONLY, **self.only}
        return {name: value for name, value in every.items() if name not in self.left_out}


def _in_three_of_four(raw: Mapping[str, Any], layer: int) -> bool:
    return (layer + 1) % 4 != 0


def _in_every_other(raw: Mapping[str, Any], layer: int) -> bool:
    return layer % 2 == 0


def _in_all_but_each_nth(raw: Mapping[str, Any], layer: int) -> bool:
    return bool((layer + 1) % raw["sliding_window_pattern"])


def _from_a_layer_on(raw: Mapping[str, Any], layer: int) -> bool:
    return bool(layer >= raw["max_window_layers"])


def _where_said(raw: Mapping[str, Any], layer: int) -> bool:
    if raw["no_rope_layers"] is not None:
        return bool(raw["no_rope_layers"][layer])
    return bool((layer + 1) % raw["no_rope_layer_interval"])


_QWEN: Final = {
    "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28, "layer_types": None,
}  # fmt: skip
_GEMMA_LEFT_OUT: Final = {
    "num_key_value_heads": 4, "head_dim": 256, "tie_word_embeddings": True, "attention_bias": False,
    "query_pre_attn_scalar": 256, "sliding_window": 4096, "layer_types": None,
}  # fmt: skip
_GEMMA: Final = {"norm_kind": "one plus", "norms": "both", "gate.function": "gelu_tanh"}
_GEMMA_ONLY: Final = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
_OLMO: Final = {"norm_kind": "cast last", "norms": "behind", "query_key_norm": "all heads"}
_LATENT: Final = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_DEEPSEEK_LEFT_OUT: Final = {
    "first_k_dense_replace": 0, "n_shared_experts": 0, "n_group": 1, "topk_group": 1, "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
}  # fmt: skip

FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family(architecture="LlamaForCausalLM", left_out={"head_dim": None}),
    "mistral": Family(
        architecture="MistralForCausalLM",
        left_out={"num_key_value_heads": 8, "head_dim": None, "sliding_window": 4096},
        slides=lambda raw, layer: True,
    ),
    "qwen2": Family(
        architecture="Qwen2ForCausalLM",
        left_out={"num_key_value_heads": 32, **_QWEN},
        fixed={"input_biases": True},
        slides=_from_a_layer_on,
    ),
    "qwen3": Family(
        architecture="Qwen3ForCausalLM",
        left_out={"num_key_value_heads": 32, "head_dim": 128, "attention_bias": False, **_QWEN},
        fixed={"query_key_norm": "head"},
        slides=_from_a_layer_on,
    ),
    "qwen3_moe": Family(
        architecture="Qwen3MoeForCausalLM",
        left_out={
            "num_key_value_heads": 4, "head_dim": None, "attention_bias": False, "num_experts": 128,
            "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": False,
            "decoder_sparse_step": 1, "mlp_only_layers": None,
        },
        harmless=("sliding_window", "max_window_layers"),
        aliases={"num_local_experts": "num_experts"},
        fixed={"query_key_norm": "head"},
    ),
    "olmo2": Family(
        architecture="Olmo2ForCausalLM", left_out={"rms_norm_eps": 1e-5, "attention_bias": False}, fixed=_OLMO,
    ),
    "olmo3": Family(
        architecture="Olmo3ForCausalLM",
        left_out={
            "rms_norm_eps": 1e-5, "attention_bias": False, "rope_theta": 5e5, "sliding_window": 4096,
            "layer_types": None,
        },
        fixed=_OLMO,
        slides=_in_three_of_four,
        local_theta=5e5,
    ),
    "gemma2": Family(
        architecture="Gemma2ForCausalLM",
        left_out={**_GEMMA_LEFT_OUT, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        only=_GEMMA_ONLY,
        fixed=_GEMMA,
        slides=_in_every_other,
        scales_embedding=True,
    ),
    "gemma3_text": Family(
        architecture="Gemma3ForCausalLM",
        left_out={
            **_GEMMA_LEFT_OUT, "attn_logit_softcapping": None, "final_logit_softcapping": None, "rope_theta": 1e6,
            "rope_local_base_freq": 1e4, "sliding_window_pattern": 6,
        },
        only=_GEMMA_ONLY,
        aliases={"_sliding_window_pattern": "sliding_window_pattern"},
        fixed={**_GEMMA, "query_key_norm": "head"},
        slides=_in_all_but_each_nth,
        local_theta=1e4,
        scales_embedding=True,
    ),
    "smollm3": Family(
        architecture="SmolLM3ForCausalLM",
        left_out={
            "num_key_value_heads": 4, "tie_word_embeddings": True, "attention_bias": False, "rope_theta": 2e6,
            "use_sliding_window": False, "sliding_window": None, "layer_types": None, "no_rope_layers": None,
            "no_rope_layer_interval": 4,
        },
        harmless=("max_window_layers",),
        slides=lambda raw, layer: not _where_said(raw, layer),
        rotates=_where_said,
    ),
    "mixtral": Family(
        architecture="MixtralForCausalLM",
        left_out={
            "num_key_value_heads": 8, "head_dim": None, "rope_theta": 1e6, "rms_norm_eps": 1e-5,
            # Ours, after DeepSeek's name; transformers' Mixtral has none, so such a one is not exported.
            "n_shared_experts": 0,
        },
        needed=("num_local_experts", "num_experts_per_tok"),
        aliases={"num_experts": "num_local_experts"},
    ),
    "deepseek_v3": Family(
        architecture="DeepseekV3ForCausalLM",
        left_out={
            "first_k_dense_replace": 3, "n_shared_experts": 1, "n_group": 8, "topk_group": 4, "norm_topk_prob": True,
            "routed_scaling_factor": 2.5, "q_lora_rank": 1536, "num_experts_per_tok": 8, "rope_interleave": True,
            "max_position_embeddings": 4096,
        },
        needed=(*_LATENT, "n_routed_experts", "moe_intermediate_size"),
        only={"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1},
        # Its last module predicts one token more (section 2.2), and is left out.
        harmless=(
            "head_dim", "qk_head_dim", "num_nextn_predict_layers", "num_mtp_layers", "ep_size", "auto_map",
            "aux_loss_alpha", "seq_aux",
        ),
        aliases={"num_local_experts": "n_routed_experts", "num_experts": "n_routed_experts"},
        fixed={"experts.router.score": "sigmoid", "experts.router.corrected": True},
    ),
    "gpt_oss": Family(
        architecture="GptOssForCausalLM",
        left_out={
            "num_key_value_heads": 8, "head_dim": 64, "rms_norm_eps": 1e-5, "attention_bias": True,
            "sliding_window": 128, "layer_types": None, "rope_theta": 1.5e5, "num_local_experts": 128,
            "num_experts_per_tok": 4, "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
            "rope_parameters": {
                "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                "original_max_position_embeddings": 4096,
            },
        },
        harmless=("initial_context_length",),
        aliases={"num_experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"},
        fixed={
            "norm_kind": "cast last", "sinks": True, "gate.function": "clamped", "experts.biases": True,
            "experts.router.score": "softmax of chosen", "experts.router.bias": True,
        },
        slides=_in_every_other,
    ),
    "deepseek": Family(
        architecture="DeepseekForCausalLM",
        left_out=_DEEPSEEK_LEFT_OUT,
        needed=("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"),
        planned_only=True,
    ),
    "deepseek_v2": Family(
        architecture="DeepseekV2ForCausalLM",
        left_out={**_DEEPSEEK_LEFT_OUT, "q_lora_rank": None},
        needed=(*_LATENT, "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"),
        planned_only=True,
    ),
}  # fmt: skip
"""Of the two that are only planned the routers do not make their shares of a choice add up to 1."""
TRAINED_KINDS: Final = ("llama", "mixtral")
"""What a config.json may name as its model_type."""
PLANNED_KINDS: Final = tuple(FAMILIES)
"""What can be planned."""
_NULLS: Final = frozenset({
    "num_key_value_heads", "sliding_window", "q_lora_rank", "attn_logit_softcapping", "final_logit_softcapping",
})  # fmt: skip
"""Keys for which null is another value than what their class has by default."""
_NESTED: Final = {"gate": Gate, "experts": Experts, "router": Router, "latent": LatentAttention}
_SCALINGS: Final = {"linear": LinearScaling, "llama3": Llama3Scaling, "yarn": YarnScaling}
_FULL, _SLIDING = "full_attention", "sliding_attention"


def from_hugging_face(
    raw: Mapping[str, Any], *, where: str, kinds: tuple[str, ...] = TRAINED_KINDS
) -> ModelConfig:
    """The model that a config.json describes; RecipeError names key and value of what we cannot build.
    A null is a key that is left out, but where it is a value of its own."""
    if not isinstance(raw, Mapping):
        raise RecipeError(f"{where}: expected a table of keys, as a config.json of a model has")
    kind = raw.get("model_type", "llama")
    if kind not in kinds:
        expected_kinds = f"{', '.join(map(repr, kinds[:-1]))} or {kinds[-1]!r}"
        raise RecipeError(f"{where}: model_type = {kind!r}: expected {expected_kinds}")
    family = FAMILIES[kind]
    _check_keys(raw, family, where, reads_weights=kinds is TRAINED_KINDS)
    _check_numbers(raw, family, where)
    given = {name: value for name, value in raw.items() if value is not None or name in _NULLS}
    for alias, name in family.aliases.items():
        if given.setdefault(name, given.get(alias)) != given.get(alias, given[name]):
            raise RecipeError(
                f"{where}: {alias} = {given[alias]!r}, and {name} = {given[name]!r}: expected one value"
            )
    given = {name: value for name, value in given.items() if value is not None or name in _NULLS}
    known = {**family.defaults, **given}
    needed = (*_NEEDED, *family.needed)
    if missing := next((name for name in needed if name not in known), None):
        raise RecipeError(f"{where}: {missing} is missing: expected a {kind} config.json")
    values: dict[str, Any] = {"family": kind, **family.fixed}
    for name in (*needed, *family.defaults):
        if name in KEYS:
            values |= dict.fromkeys(KEYS[name].fields, known[name])
    width, heads = known["hidden_size"], known["num_attention_heads"]
    values["num_kv_heads"] = values["num_kv_heads"] or heads
    values["head_dim"] = values.get("head_dim") or width // heads
    if "latent.kv_rank" in values:
        values["head_dim"] = values["latent.nope_dim"] + values["latent.rope_dim"]
    if family.scales_embedding:
        values["embedding_scale"] = width**0.5
    if "experts.num_experts" in values:
        values.setdefault("experts.hidden", known["intermediate_size"])
        values["experts.dense_layers"] = _dense_layers(known)
    slides = _sliding_layers(known, family, where)
    values["windows"] = _pattern(known["sliding_window"] if slide else None for slide in slides)
    values["rotary"] = _rotary(known, given, family, slides, where)
    config: ModelConfig = _build(ModelConfig, values)
    return config


def _build(kind: Any, values: Mapping[str, Any]) -> Any:
    """A description from its fields by their paths."""
    direct = {path: value for path, value in values.items() if "." not in path}
    for name in {path.split(".")[0] for path in values if "." in path}:
        inner = {
            path.removeprefix(f"{name}."): value
            for path, value in values.items()
            if path.startswith(f"{name}.")
        }
        direct[name] = _build(_NESTED[name], inner)
    return kind(**direct)


def _check_keys(raw: Mapping[str, Any], family: Family, where: str, *, reads_weights: bool) -> None:
    """RecipeError with key and value where a config.json asks for what is not computed here. A key that is
    null counts as not given."""
    if reads_weights and raw.get("quantization_config") is not None:
        raise RecipeError(
            f"{where}: quantization_config = {raw['quantization_config']!r}: the folder's weights are quantized:"
            " expected float16, bfloat16, float32 or float64 (transformers' model.dequantize() makes them)"
        )
    only = family.only_values
    for name, value in only.items():
        given = raw.get(name)
        if given is not None and given != value and name not in family.harmless:
            raise RecipeError(
                f"{where}: {name} = {given!r}: expected {value!r} (model_type {raw.get('model_type', 'llama')!r})"
            )
    if family.planned_only:
        return
    for name in raw.get("architectures") or ():
        # Early folders write LLaMAForCausalLM.
        if str(name).lower() != family.architecture.lower():
            expected = family.architecture
            raise RecipeError(f"{where}: architectures = {raw['architectures']!r}: expected [{expected!r}]")
    known = {*_NEEDED, *family.needed, *family.defaults, *family.aliases, *family.harmless, *only, *_HARMLESS}
    known |= {"layer_types"} if reads_weights else {"layer_types", "quantization_config"}
    for name, value in raw.items():
        if name not in known and value is not None:
            raise RecipeError(
                f"{where}: {name} = {value!r}: the trainer computes no such thing, so it would train another"
                " model; take the key out if the weights do not need it"
            )


def _check_numbers(raw: Mapping[str, Any], family: Family, where: str) -> None:
    """RecipeError where the value of a key that is read is of another kind than the model needs."""
    for name in (*_NEEDED, *family.needed, *family.defaults):
        if (value := raw.get(name)) is not None and name in KEYS and not _is(KEYS[name].kind, value):
            raise RecipeError(f"{where}: {name} = {value!r}: expected {KEYS[name].kind}")


def _is(kind: str, value: Any) -> bool:
    if kind == _TRUTH:
        return type(value) is bool
    if kind == _NUMBER:
        return type(value) in (int, float) and 0 < value < float("inf")
    return type(value) is int and value >= (kind == _SIZE)


def _dense_layers(known: Mapping[str, Any]) -> tuple[int, ...]:
    """The layers without experts: the first few, or all but each so many-th and those that are named."""
    layers = range(known["num_hidden_layers"])
    first, step, named = (
        known.get("first_k_dense_replace", 0),
        known.get("decoder_sparse_step", 1),
        known.get("mlp_only_layers"),
    )
    return tuple(layer for layer in layers if layer < first or (layer + 1) % step or layer in (named or ()))


def _sliding_layers(known: Mapping[str, Any], family: Family, where: str) -> list[bool]:
    """Which layers have a window."""
    layers, types = range(known["num_hidden_layers"]), known.get("layer_types")
    if types is not None:
        expected = {_FULL, _SLIDING} if "layer_types" in family.defaults else {_FULL}
        if not isinstance(types, list) or not set(types) <= expected or len(types) != len(layers):
            some = (
                f"{_FULL!r} in every layer"
                if expected == {_FULL}
                else f"{_FULL!r} or {_SLIDING!r} for each layer"
            )
            raise RecipeError(f"{where}: layer_types = {types!r}: expected {some}")
    if family.slides is None or not known.get("use_sliding_window", True):
        return [False for _ in layers]
    if types is not None and "layer_types" in family.defaults:
        return [kind == _SLIDING for kind in types]
    return [family.slides(known, layer) for layer in layers]


def _pattern(values: Iterable[_T]) -> tuple[_T, ...]:
    """The shortest stretch that the layers repeat."""
    every = tuple(values)
    for length in range(1, len(every)):
        if every[length:] == every[:-length]:
            return every[:length]
    return every


def _rotary(
    known: Mapping[str, Any], given: Mapping[str, Any], family: Family, slides: list[bool], where: str
) -> tuple[Rotary | None, ...]:
    """The rules of rotary positions, in either spelling (`rope_theta` and `rope_scaling`, or
    `rope_parameters`). RecipeError where the two disagree, or say what the trainer does not compute."""
    if family.planned_only:  # nothing of a plan hangs on how rotation is scaled
        return (Rotary(theta=float(known["rope_theta"])),)
    spelt = {name: given.get(name) or {} for name in ("rope_scaling", "rope_parameters")}
    for name, table in spelt.items():
        if not isinstance(table, Mapping):
            raise RecipeError(f"{where}: {name} = {table!r}: expected a table of rotary positions")
    local: Mapping[str, Any] = {}
    if family.local_theta is not None:
        nested = dict(spelt["rope_parameters"])
        spelt["rope_parameters"], local = nested.pop(_FULL, None) or {}, nested.pop(_SLIDING, None) or {}
        if nested:
            name, value = next(iter(nested.items()))
            raise RecipeError(
                f"{where}: rope_parameters: {name} = {value!r}: expected a table for {_FULL!r} and one for {_SLIDING!r}"
            )
    elif not any(spelt.values()):
        spelt["rope_parameters"] = family.left_out.get("rope_parameters") or {}
    full = _rule(spelt.values(), (given.get("rope_theta"), known["rope_theta"]), known, where)
    rules = [full] * len(slides)
    if family.local_theta is not None:
        theta = known.get("rope_local_base_freq", family.local_theta)
        other = _rule([local], (given.get("rope_local_base_freq"), theta), known, where)
        rules = [other if slide else full for slide in slides]
    if (rotates := family.rotates) is not None:
        numbers = known.get("no_rope_layers")
        if numbers is not None and (not isinstance(numbers, list) or len(numbers) < len(slides)):
            raise RecipeError(f"{where}: no_rope_layers = {numbers!r}: expected a number for each layer")
        return _pattern(rule if rotates(known, layer) else None for layer, rule in enumerate(rules))
    return _pattern(rules)


def _rule(
    tables: Iterable[Mapping[str, Any]], theta: tuple[Any, float], known: Mapping[str, Any], where: str
) -> Rotary:
    """One rule from the tables that describe it. `theta`: as given beside them, and as it is where nothing says
    it."""
    given_theta, default_theta = theta
    found: dict[str, Any] = {}
    for table in tables:
        for spelling, value in table.items():
            key = "rope_type" if spelling == "type" else spelling
            if value is not None and found.setdefault(key, value) != value:
                raise RecipeError(
                    f"{where}: {key} is {found[key]!r} and {value!r} in rope_scaling and rope_parameters: expected"
                    " one value"
                )
    if given_theta is not None and found.setdefault("rope_theta", given_theta) != given_theta:
        raise RecipeError(
            f"{where}: rope_theta is {given_theta!r}, and {found['rope_theta']!r} in rope_parameters: expected one"
            " value"
        )
    found.setdefault("rope_theta", default_theta)
    kind = found.pop("rope_type", "default")
    if kind != "default" and kind not in _SCALINGS:
        raise RecipeError(
            f"{where}: rope scaling {kind!r}: expected 'default', {', '.join(map(repr, _SCALINGS))}"
        )
    scaling = _SCALINGS.get(kind)
    fields = {one.name: one for one in dataclasses.fields(scaling)} if scaling else {}
    if found.get("partial_rotary_factor") == 1:
        del found["partial_rotary_factor"]
    longest, original = known["max_position_embeddings"], "original_max_position_embeddings"
    if original in fields and longest is not None:
        found.setdefault(original, longest)
        if scaling is YarnScaling and original in found:
            found.setdefault("factor", longest / found[original])
    for name, value in found.items():
        if name not in fields and name != "rope_theta":
            raise RecipeError(
                f"{where}: {name} = {value!r} of rotary positions with rope_type {kind!r}: the trainer computes"
                " no such thing"
            )
        if not _is(_TRUTH if name == "truncate" else _NUMBER, value):
            raise RecipeError(
                f"{where}: {name} = {value!r}: expected {_TRUTH if name == 'truncate' else _NUMBER}"
            )
    if missing := [
        name for name, one in fields.items() if name not in found and one.default is dataclasses.MISSING
    ]:
        raise RecipeError(f"{where}: {missing[0]} is missing: expected it with rope_type {kind!r}")
    base, interleaved = float(found.pop("rope_theta")), bool(known.get("rope_interleave", False))
    return Rotary(theta=base, scaling=scaling(**found) if scaling else None, interleaved=interleaved)


def to_hugging_face(config: ModelConfig, *, seq_len: int, end_of_text: int, dtype: str) -> dict[str, Any]:
    """`config` as the config.json that transformers, vLLM and others read. RecipeError where it is no model of
    its family."""
    family, layers = FAMILIES[config.family], range(config.num_layers)
    described: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": config.family,
        "hidden_act": "silu",
        "max_position_embeddings": seq_len,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "torch_dtype": dtype,
        **family.only,
    }
    names = (*_NEEDED, *family.needed, *family.defaults)
    described |= {name: _value(config, KEYS[name].fields[0]) for name in names if name in KEYS}
    windows = [config.window_of(layer) for layer in layers]
    width = next((window for window in windows if window is not None), None)
    dense = config.experts.dense_layers if config.experts else ()
    special = {
        "layer_types": [_FULL if window is None else _SLIDING for window in windows],
        "sliding_window": width,
        "use_sliding_window": width is not None,
        "max_window_layers": next(
            (layer for layer in layers if windows[layer] is not None), config.num_layers
        ),
        "no_rope_layers": [int(config.rotary_of(layer) is not None) for layer in layers],
        "first_k_dense_replace": len(dense),
        "mlp_only_layers": list(dense),
        "decoder_sparse_step": 1,
        "rope_interleave": any(rule.interleaved for rule in config.rotary if rule is not None),
    }
    described |= {name: value for name, value in special.items() if name in family.defaults}
    described |= _rope_keys(config, family)
    if from_hugging_face(described, where="config.json", kinds=PLANNED_KINDS) != config:
        raise RecipeError(
            f"model: {config} is no model that a config.json with model_type {config.family!r} describes"
        )
    return described


def _rope_keys(config: ModelConfig, family: Family) -> dict[str, Any]:
    """Both spellings of the rotary rules."""
    layers = range(config.num_layers)
    rules = {
        config.window_of(layer) is not None: rule
        for layer in layers
        if (rule := config.rotary_of(layer)) is not None
    }
    full = rules.get(False) or rules[True]
    tables = {sliding: _rope_table(rule) for sliding, rule in rules.items()}
    scaling = {name: value for name, value in _rope_table(full).items() if name != "rope_theta"}
    keys: dict[str, Any] = {"rope_theta": full.theta, "rope_scaling": scaling if full.scaling else None}
    if family.local_theta is None:
        return {**keys, "rope_parameters": _rope_table(full)}
    if "rope_local_base_freq" in family.defaults and True in rules:
        keys["rope_local_base_freq"] = rules[True].theta
    names = {False: _FULL, True: _SLIDING}
    return {**keys, "rope_parameters": {names[sliding]: table for sliding, table in tables.items()}}


def _rope_table(rule: Rotary) -> dict[str, Any]:
    if rule.scaling is None:
        return {"rope_type": "default", "rope_theta": rule.theta}
    kind = next(name for name, one in _SCALINGS.items() if one is type(rule.scaling))
    fields = dataclasses.asdict(rule.scaling)
    return {
        "rope_type": kind,
        "rope_theta": rule.theta,
        **{name: value for name, value in fields.items() if value is not None},
    }


def _value(config: ModelConfig, path: str) -> Any:
    found: Any = config
    for name in path.split("."):
        found = getattr(found, name)
    return found
