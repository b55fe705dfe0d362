"""docs/families.md: the features of each model family, and the layouts that it refuses.

`python -m pipeline.recipe_help.families docs/families.md` writes the table into the page, between its marks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from lineage.recipe import RecipeError, parse_table
from pipeline.recipe_help.marked import rewrite, with_lines
from trainer.model.config.description import ModelConfig
from trainer.model.config.family_table import FAMILIES
from trainer.model.config.sizes import model_config, model_names
from trainer.options import TrainRecipe
from trainer.parallel.checks import check_layout
from trainer.planning.counts import num_parameters

_MARKS: Final = (
    "<!-- The families, written by `make docs`. -->\n",
    "<!-- End of the families. -->\n",
)
_VOCABULARY: Final = 4096
_LAYOUTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "zero 0": {"zero": 0, "parallel": {"dp_replicate": 2}},
    "zero 1 to 3": {"parallel": {"dp_shard": 2}},
    "tensor parallel": {"parallel": {"tp": 2}},
    "pipelines": {"parallel": {"pp": 2}},
    "context parallel, gathered": {"parallel": {"cp": 2}},
    "context parallel, ring": {"parallel": {"cp": 2}, "context": {"method": "ring"}},
    "expert parallel": {"parallel": {"dp_shard": 2, "ep": 2}},
    "compile": {"compile": True},
    "recomputation": {"activation_checkpointing": "selective"},
    "float8": {"dtype": "float8"},
}
"""What is asked of each family, as tables of a recipe."""


def with_table(page: str) -> str:
    """The page with its table made anew."""
    return with_lines(page, _MARKS, _table())


def _table() -> Iterator[str]:
    yield "| `model_type` | attention | norms | feed-forward | embedding and logits | named models | refused |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    every = {name: model_config(name, _VOCABULARY) for name in model_names()}
    for family, row in FAMILIES.items():
        if row.planned_only:
            continue
        if not (named := [name for name, config in every.items() if config.family == family]):
            raise SystemExit(
                f"no model of {family!r} in recipes/models: add one, of which the table's row is made"
            )
        smallest = min((every[name] for name in named), key=num_parameters)
        cells = (
            f"`{family}`",
            "; ".join(_attention(smallest)),
            _norms(smallest),
            _feed_forward(smallest),
            ", ".join(_around(smallest)) or "untied",
            ", ".join(named),
            ", ".join(_refused(smallest)) or "nothing",
        )
        yield f"| {' | '.join(cells)} |"


def _attention(config: ModelConfig) -> Iterator[str]:
    yield "MLA" if config.latent else "GQA"
    if config.input_biases:
        yield "q, k, v" + (" and o" if config.output_bias else "") + " biases"
    if config.query_key_norm != "none":
        yield "QK norm " + ("per head" if config.query_key_norm == "head" else "over all heads")
    if config.window is not None:
        near = sum(config.window_of(layer) is not None for layer in range(config.num_layers))
        yield "sliding window" + (
            f" in {near} of {config.num_layers} layers" if near < config.num_layers else ""
        )
    if None in config.rotary:
        yield "no RoPE in some layers"
    if config.score_divisor is not None:
        yield "custom scale"
    if config.score_cap is not None:
        yield "soft cap on scores"
    if config.sinks:
        yield "attention sinks"


def _norms(config: ModelConfig) -> str:
    place = {"before": "pre-norm", "behind": "post-norm", "both": "pre- and post-norm"}[config.norms]
    return place + (", 1 + weight" if config.norm_kind == "one plus" else "")


def _feed_forward(config: ModelConfig) -> str:
    gate = {"silu": "SiLU", "gelu_tanh": "GELU", "clamped": "clamped"}[config.gate.function]
    experts = config.experts
    if experts is None:
        return gate
    shared = f" and {experts.num_shared} shared" if experts.num_shared else ""
    groups = ", in groups" if experts.num_groups > 1 else ""
    return f"{gate}; {experts.top_k} of {experts.num_experts} experts{shared}{groups}, {experts.router.score}"


def _around(config: ModelConfig) -> Iterator[str]:
    if config.tied:
        yield "tied"
    if (scale := config.embedding_scale) != 1:
        yield "embedding × √width" if scale == config.width**0.5 else f"embedding × {scale:g}"
    if config.logit_cap is not None:
        yield "soft cap on logits"


def _refused(config: ModelConfig) -> Iterator[str]:
    for name, changes in _LAYOUTS.items():
        if name == "expert parallel" and config.experts is None:
            continue
        train = {
            "data": "data", "output": "output", "model": "model", "seq_len": 4096, "global_batch": 8, "steps": 1,
        }  # fmt: skip
        recipe = parse_table(TrainRecipe, {"run": {"name": "any"}, "train": {**train, **changes}})
        try:
            check_layout(recipe.train, config)
        except RecipeError:
            yield name


if __name__ == "__main__":
    rewrite(with_table)
