"""Names of tensors: those of the model, and those that transformers stores."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.training.family_models import by_our_names, config_of
from tests.support.training.transformers_models import FAMILIES, VARIANTS, reference_model
from trainer.huggingface.names import model_shapes, stored_parts, stored_shapes
from trainer.huggingface.weights import _as_stored
from trainer.model.config.description import Experts, ModelConfig
from trainer.model.config.families import PLANNED_KINDS
from trainer.model.config.sizes import model_config, model_names
from trainer.model.transformer import CausalLM
from trainer.planning.counts import num_parameters


def built(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters and of the routers' biases of a model as it is built."""
    with torch.device("meta"):
        model = CausalLM(config)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name != tied(config)}


def tied(config: ModelConfig) -> str | None:
    return "lm_head.weight" if config.tied else None


@pytest.mark.parametrize("name", model_names())
def test_the_shapes_of_a_named_model_are_those_that_are_built_and_the_plan_counts_them(name: str) -> None:
    config = model_config(name, 1000, PLANNED_KINDS)
    shapes = built(config)
    assert model_shapes(config) == shapes
    with torch.device("meta"):
        assert num_parameters(config) == sum(parameter.numel() for parameter in CausalLM(config).parameters())


@pytest.mark.parametrize("name", [*FAMILIES, *VARIANTS])
def test_the_shapes_of_each_family_are_those_that_transformers_stores(name: str) -> None:
    reference = reference_model(name)
    config = config_of(reference)
    assert model_shapes(config) == built(config)
    assert stored_shapes(config) == {name: tuple(tensor.shape) for name, tensor in reference.tensors.items()}


@pytest.mark.parametrize("name", [*FAMILIES, *VARIANTS])
def test_what_a_model_computes_with_is_stored_where_transformers_reads_it(name: str) -> None:
    """The tensors with which our loss is transformers' own (tests/trainer/model/test_families.py)."""
    reference = reference_model(name)
    ours, parts = by_our_names(reference.tensors), stored_parts(config_of(reference))
    stored = _as_stored(ours, parts, torch.float64)
    assert stored.keys() == reference.tensors.keys()
    assert [name for name, tensor in stored.items() if not torch.equal(tensor, reference.tensors[name])] == []


def test_shared_experts_and_a_head_of_its_own_are_expected_too() -> None:
    experts = Experts(num_experts=2, top_k=1, hidden=64, num_shared=2)
    config = replace(model_config("moe-debug", 250), experts=experts, tied=False)
    assert model_shapes(config) == built(config)
