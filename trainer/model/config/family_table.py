"""How the config.json of each model_type is read: a row of `FAMILIES`. Data alone, no torch.

A key that is not known may change what the weights mean (a multiplier, another window): a model that leaves it
out trains on, and is another one. So each key is read, may have one value only, or is known to change nothing;
every other key is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple


class Key(NamedTuple):
    """A key whose value is a field of the description, or says something of it. `fields`: their paths; `kind`: what
    it must be."""

    fields: tuple[str, ...]
    kind: str


SIZE, COUNT = "a whole number from 1", "a whole number from 0"
NUMBER, TRUTH = "a number above 0", "true or false"
_OF_KIND: Final[Mapping[str, Mapping[str, str]]] = {
    SIZE: {
        "hidden_size": "width", "intermediate_size": "hidden", "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads", "num_key_value_heads": "num_kv_heads", "head_dim": "head_dim",
        "vocab_size": "vocab_size", "num_local_experts": "experts.num_experts", "num_experts": "experts.num_experts",
        "n_routed_experts": "experts.num_experts", "num_experts_per_tok": "experts.top_k",
        "moe_intermediate_size": "experts.hidden", "n_group": "experts.num_groups", "topk_group": "experts.top_groups",
        "q_lora_rank": "latent.query_rank", "kv_lora_rank": "latent.kv_rank", "qk_nope_head_dim": "latent.nope_dim",
        "qk_rope_head_dim": "latent.rope_dim", "v_head_dim": "latent.value_dim", "sliding_window": "",
        "sliding_window_pattern": "", "no_rope_layer_interval": "", "decoder_sparse_step": "",
        "max_position_embeddings": "",
    },
    COUNT: {"n_shared_experts": "experts.num_shared", "max_window_layers": "", "first_k_dense_replace": ""},
    NUMBER: {
        "rms_norm_eps": "norm_eps", "initializer_range": "initial_deviation", "query_pre_attn_scalar": "score_divisor",
        "attn_logit_softcapping": "score_cap", "final_logit_softcapping": "logit_cap", "swiglu_alpha": "gate.gain",
        "swiglu_limit": "gate.limit", "routed_scaling_factor": "experts.router.scale", "rope_theta": "",
        "rope_local_base_freq": "",
    },
    TRUTH: {
        "tie_word_embeddings": "tied", "attention_bias": "input_biases output_bias",
        "norm_topk_prob": "experts.router.normalised", "use_sliding_window": "", "rope_interleave": "",
    },
}  # fmt: skip
KEYS: Final[Mapping[str, Key]] = {
    name: Key(tuple(fields.split()), kind) for kind, keys in _OF_KIND.items() for name, fields in keys.items()
}
NEEDED: Final = (
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
HARMLESS: Final = frozenset({
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
    as `_ONLY` and `HARMLESS`, for this family. `fixed`: by their paths, the fields of the description that every
    model of it has so. `slides`: whether a layer has the window where `layer_types` does not say so (None: none
    has); `rotates`: whether it has rotary positions (None: every one). `local_theta`: layers with a window have a
    rotary base of their own, this one if none is given, and only the others have scaled positions; None: all layers
    have the same. `scales_embedding`: by the root of its width. `planned_only`: it is not trained, and unknown keys
    are passed over. `own_splitting`: transformers' AutoTokenizer splits its texts by a rule of its class, whatever
    tokenizer.json says. `not_zero`: counts that may be 0 elsewhere."""

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
    own_splitting: bool = False
    not_zero: tuple[str, ...] = ()

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Every key that may be left out, and what it is then."""
        return {**_EVERYWHERE, "rope_theta": 1e4, **self.left_out}

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key that it reads."""
        return (*NEEDED, *self.needed, *self.defaults)

    @property
    def only_values(self) -> Mapping[str, Any]:
        """Keys that may have one value alone."""
        every = {**_ONLY, **self.only}
        return {name: value for name, value in every.items() if name not in self.left_out}


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
_OLMO: Final = {"norms": "behind", "query_key_norm": "all heads"}
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
        slides=lambda raw, layer: layer >= raw["max_window_layers"],
        own_splitting=True,
    ),
    "qwen3": Family(
        architecture="Qwen3ForCausalLM",
        left_out={"num_key_value_heads": 32, "head_dim": 128, "attention_bias": False, **_QWEN},
        fixed={"query_key_norm": "head"},
        slides=lambda raw, layer: layer >= raw["max_window_layers"],
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
        slides=lambda raw, layer: (layer + 1) % 4 != 0,
        local_theta=5e5,
    ),
    "gemma2": Family(
        architecture="Gemma2ForCausalLM",
        left_out={**_GEMMA_LEFT_OUT, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        only=_GEMMA_ONLY,
        fixed=_GEMMA,
        slides=lambda raw, layer: layer % 2 == 0,
        scales_embedding=True,
    ),
    "gemma3_text": Family(
        architecture="Gemma3ForCausalLM",
        left_out={
            **_GEMMA_LEFT_OUT, "final_logit_softcapping": None, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
            "sliding_window_pattern": 6,
        },
        only=_GEMMA_ONLY,
        harmless=("_sliding_window_pattern",),  # what layer_types were made from; its class does not read it
        fixed={**_GEMMA, "query_key_norm": "head"},
        slides=lambda raw, layer: (layer + 1) % raw["sliding_window_pattern"] != 0,
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
        not_zero=("n_shared_experts",),  # its class then has tensors without rows
        only={"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1},
        # Its last module predicts one token more (section 2.2), and is left out.
        harmless=(
            "head_dim", "qk_head_dim", "num_nextn_predict_layers", "num_mtp_layers", "ep_size", "auto_map",
            "aux_loss_alpha", "seq_aux",
        ),
        aliases={"num_local_experts": "n_routed_experts"},
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
        # Published files have the second beside num_experts_per_tok; the class reads that one alone.
        harmless=("initial_context_length", "experts_per_token"),
        aliases={"num_experts": "num_local_experts"},
        fixed={
            "sinks": True, "gate.function": "clamped", "experts.biases": True,
            "experts.router.score": "softmax of chosen", "experts.router.bias": True,
        },
        slides=lambda raw, layer: layer % 2 == 0,
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
