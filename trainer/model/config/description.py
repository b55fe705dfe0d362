"""What a decoder is: a description from which the trainer computes and the planner counts. No torch here.

Every layer has attention and a feed-forward part, each with norms and added to the residual stream. What differs
from layer to layer is written as a pattern that the layers repeat (`windows`, `rotary`), or as the layers without
experts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Literal

from lineage.json_record import JsonRecord
from lineage.recipe import RecipeError

PIECE: Final = 1024
"""Positions of a row whose logits are there at a time. With 128,256 ids that is half a gigabyte in float32."""


def vocabulary_parts(vocab_size: int, num_ranks: int) -> int:
    """Parts of the vocabulary on each of so many tensor parallel ranks that share it. They are the same ones on up
    to 8 ranks, where 8 divides the vocabulary."""
    num_parts = math.gcd(8, vocab_size)
    return num_parts // num_ranks if num_parts % num_ranks == 0 else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """All rotary frequencies are divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """The "llama3" rule that stretches low rotary frequencies (Llama 3.1's config.json, `rope_scaling`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        if not self.low_freq_factor < self.high_freq_factor:
            raise RecipeError(
                f"model: low_freq_factor = {self.low_freq_factor}: expected less than high_freq_factor ="
                f" {self.high_freq_factor}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN (Peng et al., 2309.00071): frequencies that turn less than `beta_slow` times within the original
    length are divided by `factor`, those that turn more than `beta_fast` times are left, those between blended.
    `truncate`: the bounds between them are whole numbers. Cosines and sines are multiplied by
    `attention_factor`, or by what the two `mscale` say."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    @property
    def amplitude(self) -> float:
        """What cosines and sines are multiplied by."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self.magnitude(self.mscale) / self.magnitude(self.mscale_all_dim)
        return self.magnitude(1.0)

    def magnitude(self, mscale: float) -> float:
        """0.1·mscale·ln(factor) + 1 (section 3.4)."""
        return 1.0 if self.factor <= 1 else 0.1 * mscale * math.log(self.factor) + 1.0


Scaling = LinearScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """Rotary positions (Su et al., 2104.09864). `interleaved`: coordinate 2i turns with 2i + 1, and not i with
    the one half a head further; queries and keys then have their first coordinates in front."""

    theta: float = 500_000.0
    scaling: Scaling | None = None
    interleaved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What opens a feed-forward part's inner width: function(gate) · up. `clamped` is min(gate, limit) ·
    sigmoid(gain · min(gate, limit)) · (1 + up), up within ± limit."""

    function: Literal["silu", "gelu_tanh", "clamped"] = "silu"
    gain: float = 1.0
    limit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """How a token's experts are found and weighted. `score`: the softmax of all logits, their sigmoid, or the
    softmax of the chosen ones alone. `normalised`: the weights of the chosen are divided by their sum;
    `scale`: and multiplied by it. `bias`: the logits have a learned one. `corrected`: a bias which no gradient
    moves is added to scores for the choice, and not for the weights (Wang et al., 2408.15664)."""

    score: Literal["softmax", "sigmoid", "softmax of chosen"] = "softmax"
    normalised: bool = True
    scale: float = 1.0
    bias: bool = False
    corrected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """In each layer a router picks `top_k` of `num_experts` gated feed-forward parts for a token (Mixtral,
    2401.04088). `hidden`: the inner width of one; `num_shared` more, of as many times that width, see every
    token; the layers with the numbers in `dense_layers` have a single one (DeepSeekMoE,
    2401.06066). Experts lie in `num_groups` groups, of which a token's are in `top_groups` at most
    (node-limited routing: DeepSeek-V3, 2412.19437, section 2.1.2). `biases`: of each expert's products."""

    num_experts: int
    top_k: int
    hidden: int
    num_shared: int = 0
    dense_layers: tuple[int, ...] = ()
    num_groups: int = 1
    top_groups: int = 1
    router: RouterConfig = field(default_factory=RouterConfig)
    biases: bool = False

    def __post_init__(self) -> None:
        groups, open_groups = self.num_groups, self.top_groups
        if not 1 <= self.top_k <= self.num_experts:
            wrong = f"{self.top_k} experts a token: expected 1 to the {self.num_experts} there are"
        elif self.num_experts % groups or not 1 <= open_groups <= groups:
            wrong = f"experts in {groups} groups, of which {open_groups} are chosen: expected groups that divide the"
            wrong += f" {self.num_experts} experts, and at least one chosen"
        elif self.num_experts < 2 * groups > 2:
            wrong = f"{self.num_experts} experts in {groups} groups: expected two or more in each"
        elif self.top_k > (most := open_groups * self.num_experts // groups):
            wrong = f"{self.top_k} experts a token: expected at most the {most} of {open_groups} groups"
        else:
            return
        raise RecipeError(f"model: {wrong}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Keys and values made from a latent of `kv_rank` numbers, queries from one of `query_rank`, or from the
    stream; `rope_dim` of a key, the same for all heads, and of each query are rotated, `nope_dim` are not; a
    value has `value_dim` numbers (multi-head latent attention: DeepSeek-V2, 2405.04434, section 2.1).
    `norm_eps`: of the latents' norms."""

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    norm_eps: float = 1e-6


NormKind = Literal["plain", "one plus"]
"""RMSNorm: weight · x̂, or (1 + weight) · x̂ with weights that begin at 0. The product is in float32 or wider, and then
rounded to the stream's dtype, as in OLMo 2. (transformers' Llama, Mistral, Qwen, SmolLM3 and DeepSeek round x̂ before
it: that is another rounding of bfloat16, and the same in float32.)"""

NORM_PLACES: Final = {
    "before": ("input_layernorm", None, "post_attention_layernorm", None),
    "behind": (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    "both": (
        "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
    ),
}  # fmt: skip
"""Where norms stand, the names of those before and behind attention, before and behind the feed-forward part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(JsonRecord):
    """A decoder: how many layers, what each has, and what surrounds them.

    Attention: `head_dim` is a query's and a key's width, with `latent` attention too; `window`: a position sees
    so many positions back, itself among them (None: all); a `rotary` rule (None: no positions); biases;
    `query_key_norm`: queries and keys are normed before they are rotated, each head for itself with one weight,
    or all heads together; `score_divisor`: scores are divided by its square root (None: `head_dim`);
    `score_cap` c: scores become c·tanh(score / c); `sinks`: a learned number a head joins its scores, and its
    share goes nowhere.

    Feed-forward: `hidden` is its inner width; in layers with `experts` these take its place.

    `norms`: before attention and feed-forward, behind them, or both. `embedding_scale`: embeddings are
    multiplied by it, rounded to their dtype; `logit_cap`: as `score_cap`. `initial_deviation`: of matrices.
    `family`: the model_type that its config.json has."""

    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden: int
    vocab_size: int
    tied: bool = False
    windows: tuple[int | None, ...] = (None,)
    rotary: tuple[Rotary | None, ...] = (Rotary(),)
    input_biases: bool = False
    output_bias: bool = False
    query_key_norm: Literal["none", "head", "all heads"] = "none"
    score_divisor: float | None = None
    score_cap: float | None = None
    sinks: bool = False
    gate: Gate = field(default_factory=Gate)
    norm_kind: NormKind = "plain"
    norms: Literal["before", "behind", "both"] = "before"
    norm_eps: float = 1e-5
    embedding_scale: float = 1.0
    logit_cap: float | None = None
    initial_deviation: float = 0.02
    experts: Experts | None = None
    latent: LatentAttention | None = None
    family: str = "llama"

    def __hash__(self) -> int:
        # Of a few numbers, as searches for layouts look up much by model.
        return hash((self.num_layers, self.width, self.hidden))

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise RecipeError(
                f"model: {self.num_heads} heads over {self.num_kv_heads} key-value heads: expected a whole ratio"
            )
        if self.rotary_dim % 2:
            raise RecipeError(f"model: head_dim = {self.rotary_dim}: rotary positions need an even number")

    def window_of(self, layer: int) -> int | None:
        """How far back attention of this layer sees; None: as far as the document reaches."""
        return self.windows[layer % len(self.windows)]

    def rotary_of(self, layer: int) -> Rotary | None:
        """This layer's rule of rotary positions."""
        return self.rotary[layer % len(self.rotary)]

    @property
    def interleaved(self) -> bool:
        """Whether a rule turns neighbours."""
        return any(rule is not None and rule.interleaved for rule in self.rotary)

    @property
    def window(self) -> int | None:
        """That of the layers which have one."""
        return next((window for window in self.windows if window is not None), None)

    def has_experts(self, layer: int) -> bool:
        """Whether experts take the place of this layer's feed-forward part."""
        return self.experts is not None and layer not in self.experts.dense_layers

    @property
    def rotary_dim(self) -> int:
        """Numbers of a query that are rotated."""
        return self.latent.rope_dim if self.latent else self.head_dim

    @property
    def score_scale(self) -> float:
        """What the products of queries and keys are multiplied by. Under YaRN those of latent attention grow
        with the length (DeepSeek-V3's config.json, `mscale_all_dim`)."""
        scale: float = float(self.score_divisor or self.head_dim) ** -0.5
        scaling = self.rotary[0].scaling if self.rotary[0] else None
        if self.latent is not None and isinstance(scaling, YarnScaling) and scaling.mscale_all_dim:
            scale *= scaling.magnitude(scaling.mscale_all_dim) ** 2
        return scale

    @property
    def value_dim(self) -> int:
        """Numbers of a head's value."""
        return self.latent.value_dim if self.latent else self.head_dim
