"""Names and shapes of tensors: the model's own, and those of a folder as `save_pretrained` writes it. No torch
here.

Most are the same. What differs are experts, whose matrices the model stacks: `NAMES` has a row for each family that
has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from trainer.model.config.description import NORM_PLACES, Experts, ModelConfig

EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"
OURS: Final = "block_sparse_moe"
"""What the model has in place of a feed-forward part with experts."""
_MATRICES: Final = ("w1", "w2", "w3")
"""Of stacked experts: gate, down, up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """How a family names what stands in place of a layer's feed-forward part. `matrices`: of one expert, gate,
    down and up; `shared`: the experts that every token passes; `correction`: the bias that corrects the router's
    choice (None: its class has none). `has_shared`: whether its class has shared experts. `fused`: the experts are
    stacked, inputs first, gate and up alternate along the last axis. `predicts_more`: its published folders have
    the module that predicts one token more, as a layer behind the last, which is left out."""

    part: str = "mlp"
    router: str = "gate"
    matrices: tuple[str, str, str] = ("gate_proj", "down_proj", "up_proj")
    shared: str = "shared_experts"
    has_shared: bool = False
    correction: str | None = None
    fused: bool = False
    predicts_more: bool = False


NAMES: Final[Mapping[str, Names]] = {
    "mixtral": Names(part=OURS, matrices=_MATRICES, shared="shared_expert"),
    "qwen3_moe": Names(),
    "deepseek_v3": Names(has_shared=True, correction="gate.e_score_correction_bias", predicts_more=True),
    "gpt_oss": Names(router="router", fused=True),
}


class StoredPart(NamedTuple):
    """What of a stored tensor a tensor of the model holds. `name`, `shape`: of the stored one. `expert`: it is
    that one of those that the model stacks (None: it is the whole). `turned`: its last two axes are exchanged;
    `lane`: it is every other column of the last axis, from this one on (None: all)."""

    name: str
    shape: tuple[int, ...]
    expert: int | None = None
    turned: bool = False
    lane: int | None = None


def model_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of each parameter of a model, and of the biases that correct its routers."""
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (config.vocab_size, config.width),
        "model.norm.weight": (config.width,),
    }
    if not config.tied:
        shapes[HEAD] = (config.vocab_size, config.width)
    for number in range(config.num_layers):
        for name, shape in layer_shapes(config, sparse=config.has_experts(number)):
            shapes[f"model.layers.{number}.{name}"] = shape
    return shapes


def layer_shapes(config: ModelConfig, *, sparse: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of each parameter of a layer with experts (`sparse`) or without, and of the bias that corrects
    its router."""
    for norm in filter(None, NORM_PLACES[config.norms]):
        yield f"{norm}.weight", (config.width,)
    yield from _of_attention(config)
    if config.experts is None or not sparse:
        yield from _gated("mlp", config.width, config.hidden)
        return
    sizes, width = config.experts, config.width
    num, hidden = sizes.num_experts, sizes.hidden
    yield f"{OURS}.gate.weight", (num, width)
    if sizes.router.bias:
        yield f"{OURS}.gate.bias", (num,)
    if sizes.router.corrected:
        yield f"{OURS}.bias", (num,)
    outputs = (hidden, width, hidden)
    for matrix, output, inner in zip(_MATRICES, outputs, (width, hidden, width), strict=True):
        yield f"{OURS}.experts.{matrix}", (num, output, inner)
    for bias, output in zip(("b1", "b2", "b3"), outputs, strict=True):
        if sizes.biases:
            yield f"{OURS}.experts.{bias}", (num, output)
    if sizes.num_shared:
        yield from _gated(f"{OURS}.shared_expert", width, hidden * sizes.num_shared)


def parameter_axes(config: ModelConfig) -> dict[str, int]:
    """The axes of each parameter of a model, by its name."""
    shapes = model_shapes(config).items()
    return {name: len(shape) for name, shape in shapes if not name.endswith(f"{OURS}.bias")}


def stored_parts(config: ModelConfig) -> dict[str, list[StoredPart]]:
    """For each tensor of a model the stored ones that hold it."""
    return {name: list(_parts(name, shape, config)) for name, shape in model_shapes(config).items()}


def stored_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of each tensor of a folder."""
    return {part.name: part.shape for parts in stored_parts(config).values() for part in parts}


def _of_attention(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, latent = config.width, config.latent
    queries, pairs = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    if latent is not None:
        yield "self_attn.kv_a_proj_with_mqa.weight", (latent.kv_rank + latent.rope_dim, width)
        yield "self_attn.kv_a_layernorm.weight", (latent.kv_rank,)
        made = config.num_heads * (latent.nope_dim + latent.value_dim)
        yield "self_attn.kv_b_proj.weight", (made, latent.kv_rank)
        if latent.query_rank is None:
            yield "self_attn.q_proj.weight", (queries, width)
        else:
            yield "self_attn.q_a_proj.weight", (latent.query_rank, width)
            yield "self_attn.q_a_layernorm.weight", (latent.query_rank,)
            yield "self_attn.q_b_proj.weight", (queries, latent.query_rank)
        yield "self_attn.o_proj.weight", (width, config.num_heads * latent.value_dim)
        return
    for name, outputs in (("q", queries), ("k", pairs), ("v", pairs)):
        yield f"self_attn.{name}_proj.weight", (outputs, width)
        if config.input_biases:
            yield f"self_attn.{name}_proj.bias", (outputs,)
    yield "self_attn.o_proj.weight", (width, queries)
    if config.output_bias:
        yield "self_attn.o_proj.bias", (width,)
    if config.query_key_norm != "none":
        of_head = config.query_key_norm == "head"
        yield "self_attn.q_norm.weight", (config.head_dim if of_head else queries,)
        yield "self_attn.k_norm.weight", (config.head_dim if of_head else pairs,)
    if config.sinks:
        yield "self_attn.sinks", (config.num_heads,)


def _gated(name: str, width: int, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.gate_proj.weight", (hidden, width)
    yield f"{name}.up_proj.weight", (hidden, width)
    yield f"{name}.down_proj.weight", (width, hidden)


def _parts(name: str, shape: tuple[int, ...], config: ModelConfig) -> Iterator[StoredPart]:
    layer, found, role = name.partition(f".{OURS}.")
    if not found:
        yield StoredPart(name, shape)
        return
    names, before = NAMES[config.family], f"{layer}.{NAMES[config.family].part}"
    if role == "bias":
        if names.correction is not None:
            yield StoredPart(f"{before}.{names.correction}", shape)
    elif role.startswith("gate."):
        yield StoredPart(f"{before}.{names.router}.{role.removeprefix('gate.')}", shape)
    elif role.startswith("shared_expert."):
        yield StoredPart(f"{before}.{names.shared}.{role.removeprefix('shared_expert.')}", shape)
    elif names.fused:
        assert config.experts is not None
        yield _fused(f"{before}.experts", role.removeprefix("experts."), config.width, config.experts)
    else:
        matrix = names.matrices[_MATRICES.index(role.removeprefix("experts."))]
        for expert in range(shape[0]):
            yield StoredPart(f"{before}.experts.{expert}.{matrix}.weight", shape[1:], expert)


def _fused(before: str, matrix: str, width: int, sizes: Experts) -> StoredPart:
    num, hidden, is_bias = sizes.num_experts, sizes.hidden, matrix.startswith("b")
    ending = "_bias" if is_bias else ""
    if matrix in ("w2", "b2"):
        shape = (num, width) if is_bias else (num, hidden, width)
        return StoredPart(f"{before}.down_proj{ending}", shape, turned=not is_bias)
    shape = (num, 2 * hidden) if is_bias else (num, width, 2 * hidden)
    return StoredPart(
        f"{before}.gate_up_proj{ending}", shape, turned=not is_bias, lane=int(matrix.endswith("3"))
    )
