"""Shapes of models read from a config.json: what it leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.model.sizes import from_hugging_face

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "vocab_size": 256,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}


@pytest.mark.parametrize("given", [{}, {"rope_theta": 5e5, "rms_norm_eps": 1e-4}])
@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_what_a_config_leaves_out_is_as_transformers_has_it(kind: str, given: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    config = from_hugging_face(SHAPE | {"model_type": kind} | given, where="config.json")
    classes = {"llama": transformers.LlamaConfig, "mixtral": transformers.MixtralConfig}
    theirs = classes[kind](**SHAPE | given)
    assert config.rope_theta == theirs.rope_parameters["rope_theta"]
    assert (config.norm_eps, config.num_kv_heads) == (theirs.rms_norm_eps, theirs.num_key_value_heads)


@pytest.mark.parametrize(("kind", "expected"), [("llama", (1e4, 1e-6, 16)), ("mixtral", (1e6, 1e-5, 8))])
def test_the_defaults_of_each_kind(kind: str, expected: tuple[float, float, int]) -> None:
    config = from_hugging_face(SHAPE | {"model_type": kind}, where="config.json")
    assert (config.rope_theta, config.norm_eps, config.num_kv_heads) == expected
