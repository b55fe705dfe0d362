"""Shapes of Llama-style models: the named sizes, and a Hugging Face config.json in and out. No torch here."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lineage.recipe import RecipeError
from trainer.model.config_keys import check_keys, check_numbers, check_plain, rope_of

VOCAB_MULTIPLE: Final = 128
"""Named sizes round their vocabulary up to this, so that it splits evenly over tensor parallel ranks."""


TRAINED_KINDS: Final = ("llama", "mixtral")
"""What a config.json may name as its model_type."""
_LATENT_KINDS: Final = ("deepseek_v2", "deepseek_v3")
PLANNED_KINDS: Final = (*TRAINED_KINDS, "deepseek", *_LATENT_KINDS)
"""What can be planned: the routers of DeepSeekMoE do not make their shares of a choice add up to 1, as ours
do, and there is no latent attention here. (Of DeepSeek-V3 the module that predicts one more token is left
out.)"""
_LEFT_OUT: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama": {"rope_theta": 1e4, "rms_norm_eps": 1e-6},
    "mixtral": {"rope_theta": 1e6, "rms_norm_eps": 1e-5, "num_key_value_heads": 8},
    **{kind: {"rope_theta": 1e4, "rms_norm_eps": 1e-6} for kind in ("deepseek", *_LATENT_KINDS)},
}
"""By model_type, the keys that a config.json may leave out, and what they are then: the defaults of its
class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """The "llama3" rule that stretches low rotary frequencies (Llama 3.1's config.json, `rope_scaling`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """In each layer a router picks `top_k` of `num_experts` SwiGLUs for a token (Mixtral, 2401.04088).
    `hidden`: the inner width of one; `num_shared` more, of as many times that width, see every token; the
    first `num_dense_layers` layers have one SwiGLU as a Llama has (DeepSeekMoE, 2401.06066). Experts lie in
    `num_groups` groups, of which a token's are in `top_groups` at most (node-limited routing: DeepSeek-V3,
    2412.19437, section 2.1.2)."""

    num_experts: int
    top_k: int
    hidden: int
    num_shared: int = 0
    num_dense_layers: int = 0
    num_groups: int = 1
    top_groups: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.num_experts:
            raise RecipeError(
                f"model: {self.top_k} experts a token: expected 1 to the {self.num_experts} there are"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Keys and values made from a latent of `kv_rank` numbers, queries from one of `query_rank`, or from the
    stream; `rope_dim` of a key, the same for all heads, and of each query are rotated, `nope_dim` are not; a
    value has `value_dim` numbers (multi-head latent attention: DeepSeek-V2, 2405.04434, section 2.1)."""

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a model: RMSNorm, rotary positions, grouped-query attention, SwiGLU. `hidden` is the inner
    width of the SwiGLU; in layers with `experts` these take its place. With `latent` attention `head_dim` is
    a query's."""

    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden: int
    vocab_size: int
    tied: bool = False
    rope_theta: float = 500_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    experts: Experts | None = None
    latent: LatentAttention | None = None

    def __hash__(self) -> int:
        # Of a few numbers, as searches for layouts look up much by model.
        return hash((self.num_layers, self.width, self.hidden))

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise RecipeError(
                f"model: {self.num_heads} heads over {self.num_kv_heads} key-value heads: expected a whole ratio"
            )
        if self.head_dim % 2:
            raise RecipeError(f"model: head_dim = {self.head_dim}: rotary positions need an even number")

    @property
    def num_sparse_layers(self) -> int:
        """Layers with experts."""
        return self.num_layers - self.experts.num_dense_layers if self.experts else 0

    @property
    def num_attention_parameters(self) -> int:
        """Parameters of one layer's attention and both its norms (not those of latents)."""
        return (
            sum(inputs * outputs * times for _, inputs, outputs, times in self.attention_products())
            + 2 * self.width
        )

    @property
    def value_dim(self) -> int:
        """Numbers of a head's value."""
        return self.latent.value_dim if self.latent else self.head_dim

    @property
    def num_latent(self) -> int:
        """Numbers of a token's latents, which every tensor peer has whole; 0 without latent attention."""
        return (
            self.latent.kv_rank + self.latent.rope_dim + (self.latent.query_rank or 0) if self.latent else 0
        )

    def attention_products(self, tp: int = 1) -> list[tuple[str, int, int, int]]:
        """The products with weights of one layer's attention on one of `tp` tensor peers, which share its
        heads: name, both sides of the matrix, how often."""
        width, latent = self.width, self.latent
        queries, values = self.num_heads * self.head_dim // tp, self.num_heads * self.value_dim // tp
        if latent is None:
            pairs = self.num_kv_heads * self.head_dim // tp
            found = [("queries", width, queries, 1), ("keys, values", width, pairs, 2)]
        else:
            pairs = self.num_heads * (latent.nope_dim + latent.value_dim) // tp
            found = [
                ("keys' and values' latent", width, latent.kv_rank + latent.rope_dim, 1),
                ("keys and values", latent.kv_rank, pairs, 1),
                ("queries", latent.query_rank or width, queries, 1),
            ]
            found += [("queries' latent", width, latent.query_rank, 1)] if latent.query_rank else []
        return [*found, ("attention's output", values, width, 1)]

    @property
    def num_layer_parameters(self) -> int:
        """Parameters of one layer without experts: attention, SwiGLU, two norms."""
        return self.num_attention_parameters + 3 * self.width * self.hidden

    @property
    def num_whole_parameters(self) -> int:
        """Parameters of one layer's router and shared experts, which tensor parallel does not split."""
        if self.experts is None:
            return 0
        return self.width * (self.experts.num_experts + 3 * self.experts.hidden * self.experts.num_shared)

    @property
    def num_expert_parameters(self) -> int:
        """Parameters of one routed expert of one layer."""
        return 3 * self.width * self.experts.hidden if self.experts else 0

    @property
    def num_embedding_parameters(self) -> int:
        """Parameters of one vocabulary matrix."""
        return self.vocab_size * self.width

    @property
    def num_parameters(self) -> int:
        """All parameters; a tied vocabulary matrix counts once."""
        return self._with_experts(self.experts.num_experts if self.experts else 0)

    @property
    def num_active_parameters(self) -> int:
        """Parameters of the layers and experts that one token passes, and both vocabulary matrices."""
        return self._with_experts(self.experts.top_k if self.experts else 0)

    def _with_experts(self, num_experts: int) -> int:
        matrices, sparse = 1 if self.tied else 2, self.num_sparse_layers
        layers = (self.num_layers - sparse) * self.num_layer_parameters
        layers += sparse * self._num_sparse_layer_parameters(num_experts)
        return layers + matrices * self.num_embedding_parameters + self.width

    def _num_sparse_layer_parameters(self, num_experts: int) -> int:
        return (
            self.num_attention_parameters
            + self.num_whole_parameters
            + num_experts * self.num_expert_parameters
        )

    @property
    def num_multiplied_parameters(self) -> int:
        """Parameters that a token is multiplied with: looking a row of the input embedding up is no
        product."""
        return self.num_active_parameters - (0 if self.tied else self.num_embedding_parameters)

    def layer_flops(self, *, sparse: bool) -> float:
        """Operations of one layer's products with weights for a token, forward and backward: 6 a parameter.
        (Norms, counted as PaLM does, are less than one in ten thousand.)"""
        if not sparse or self.experts is None:
            return 6.0 * self.num_layer_parameters
        return 6.0 * self._num_sparse_layer_parameters(self.experts.top_k)

    def attention_flops(self, seq_len: int) -> float:
        """Operations of one layer's attention for a token, forward and backward, at full attention: 12·H·Q·T
        for H heads of Q numbers (PaLM, 2204.02311, appendix B); of queries and values half each."""
        return 6.0 * self.num_heads * (self.head_dim + self.value_dim) * seq_len

    @property
    def head_flops(self) -> float:
        """Operations of the output matrix and the last norm for a token, forward and backward."""
        return 6.0 * (self.num_embedding_parameters + self.width)

    def flops_per_token(self, seq_len: int) -> float:
        """Floating point operations of forward and backward for a token at full attention over `seq_len`:
        6·(N − embeddings) + 12·L·H·Q·T (PaLM, 2204.02311, appendix B; experts that a token does not see left
        out), recomputation not counted."""
        return 6.0 * self.num_multiplied_parameters + self.num_layers * self.attention_flops(seq_len)


def _size(layers: int, width: int, heads: tuple[int, int], hidden: int, tied: bool) -> dict[str, Any]:
    num_heads, num_kv_heads = heads
    return {
        "num_layers": layers,
        "width": width,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": width // num_heads,
        "hidden": hidden,
        "tied": tied,
    }


SIZES: Final[Mapping[str, Mapping[str, Any]]] = {
    "debug": _size(2, 64, (8, 4), 192, True),
    "moe-debug": _size(2, 64, (8, 4), 64, True) | {"experts": Experts(num_experts=8, top_k=2, hidden=64)},
    "125M": _size(12, 768, (12, 12), 2048, True),
    "1B": _size(16, 2048, (32, 8), 8192, True),  # Llama 3.2 1B
    "8B": _size(32, 4096, (32, 8), 14336, False),  # Llama 3, 2407.21783, table 3, and so on
    "70B": _size(80, 8192, (64, 8), 28672, False),
    "405B": _size(126, 16384, (128, 8), 53248, False),
}


def model_config(name: str, vocab_size: int, kinds: tuple[str, ...] = TRAINED_KINDS) -> ModelConfig:
    """The model that `train.model` names: one of SIZES with the vocabulary rounded up, or a config.json of
    one of the `kinds` (its model_type).

    `vocab_size` is the number of ids that the shards may hold, end-of-text included; RecipeError where a
    config.json is unreadable, describes another architecture, or has a smaller vocabulary."""
    if name in SIZES:
        rounded = -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
        return ModelConfig(vocab_size=rounded, **SIZES[name])
    config = _read_config(name, kinds)
    if config.vocab_size < vocab_size:
        raise RecipeError(
            f"train.model = {name!r}: vocab_size {config.vocab_size} is smaller than the shards' {vocab_size}"
            " ids; tokenize with the model's own tokenizer, or raise vocab_size"
        )
    return config


def check_model_name(name: str) -> None:
    """RecipeError unless `train.model` names one of SIZES or a config.json of a model that can be built."""
    if name not in SIZES:
        _read_config(name, TRAINED_KINDS)


def _read_config(name: str, kinds: tuple[str, ...]) -> ModelConfig:
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        known, close = ", ".join(SIZES), difflib.get_close_matches(name, SIZES, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        message = f"train.model = {name!r}: expected {known} or a config.json ({error}){hint}"
        raise RecipeError(message, "train.model") from error
    return from_hugging_face(raw, where=str(path), kinds=kinds)


def from_hugging_face(
    raw: Mapping[str, Any], *, where: str, kinds: tuple[str, ...] = TRAINED_KINDS
) -> ModelConfig:
    """The shape that a config.json describes; RecipeError names what we cannot build."""
    if not isinstance(raw, Mapping):
        raise RecipeError(f"{where}: expected a table of keys, as a config.json of a model has")
    check_plain(raw, where)
    kind = raw.get("model_type", "llama")
    if kind not in kinds:
        expected_kinds = f"{', '.join(map(repr, kinds[:-1]))} or {kinds[-1]!r}"
        raise RecipeError(f"{where}: model_type = {kind!r}: expected {expected_kinds}")
    if kind in TRAINED_KINDS:
        check_keys(raw, kind, where)
    check_numbers(raw, kind, where)
    # A null is what is not given; of Mixtral's key-value heads it is as many as heads.
    given = {name: value for name, value in raw.items() if value is not None or name == "num_key_value_heads"}
    raw = {**_LEFT_OUT[kind], **given}
    rotary = given
    if kind in _LATENT_KINDS:  # nothing of a plan hangs on how rotation is scaled
        rotary = {}
        raw["head_dim"] = raw.get("qk_nope_head_dim", 0) + raw.get("qk_rope_head_dim", 0)
    rope = rope_of(rotary, RopeScaling, default_theta=raw["rope_theta"], where=where)
    try:
        width, heads = raw["hidden_size"], raw["num_attention_heads"]
        return ModelConfig(
            num_layers=raw["num_hidden_layers"],
            width=width,
            num_heads=heads,
            num_kv_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or width // heads,
            hidden=raw["intermediate_size"],
            vocab_size=raw["vocab_size"],
            tied=bool(raw.get("tie_word_embeddings", False)),
            rope_theta=float(rope["rope_theta"]),
            rope_scaling=_rope_scaling(rope),
            norm_eps=float(raw["rms_norm_eps"]),
            experts=_experts(kind, raw),
            latent=_latent(raw) if kind in _LATENT_KINDS else None,
        )
    except KeyError as error:
        raise RecipeError(f"{where}: {error.args[0]} is missing: expected a {kind} config.json") from error


def _experts(kind: str, raw: Mapping[str, Any]) -> Experts | None:
    if kind == "llama":
        return None
    of_mixtral = kind == "mixtral"
    return Experts(
        num_experts=raw["num_local_experts" if of_mixtral else "n_routed_experts"],
        top_k=raw["num_experts_per_tok"],
        hidden=raw["intermediate_size" if of_mixtral else "moe_intermediate_size"],
        # In a Mixtral's config.json ours, after DeepSeek's name; transformers' has none, so such a one is not
        # exported.
        num_shared=raw.get("n_shared_experts") or 0,
        num_dense_layers=0 if of_mixtral else raw.get("first_k_dense_replace", 0),
        num_groups=raw.get("n_group") or 1,
        top_groups=raw.get("topk_group") or 1,
    )


def _latent(raw: Mapping[str, Any]) -> LatentAttention:
    return LatentAttention(
        query_rank=raw.get("q_lora_rank"),
        kv_rank=raw["kv_lora_rank"],
        nope_dim=raw["qk_nope_head_dim"],
        rope_dim=raw["qk_rope_head_dim"],
        value_dim=raw["v_head_dim"],
    )


def _rope_scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    if rope["rope_type"] == "default":
        return None
    return RopeScaling(**{field.name: rope[field.name] for field in dataclasses.fields(RopeScaling)})


def to_hugging_face(config: ModelConfig, *, seq_len: int, end_of_text: int, dtype: str) -> dict[str, Any]:
    """`config` as the config.json that transformers, vLLM and others read."""
    scaling = (
        {"rope_type": "llama3", **dataclasses.asdict(config.rope_scaling)} if config.rope_scaling else None
    )
    described: dict[str, Any] = {
        "architectures": ["MixtralForCausalLM" if config.experts else "LlamaForCausalLM"],
        "model_type": "mixtral" if config.experts else "llama",
        "hidden_act": "silu",
        "hidden_size": config.width,
        "intermediate_size": config.hidden,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": seq_len,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": scaling,
        "tie_word_embeddings": config.tied,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "torch_dtype": dtype,
    }
    if config.experts is not None:
        described |= {
            "num_local_experts": config.experts.num_experts,
            "num_experts_per_tok": config.experts.top_k,
            "n_shared_experts": config.experts.num_shared,
            "sliding_window": None,
        }
    return described
