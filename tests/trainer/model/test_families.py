"""Every family beside transformers' own class: the loss and every gradient, in float64; and that the comparison finds
what is wrong."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from tests.support.checkout import ROOT
from tests.support.training.family_models import (
    by_our_names,
    computed,
    config_of,
    device_rows,
    expected_of,
    furthest,
)
from tests.support.training.transformers_models import (
    FAMILIES,
    VARIANTS,
    WINDOW,
    reference_model,
    reference_rows,
)
from trainer.model import attention, experts, feed_forward, norms, pieces, self_attention
from trainer.model.attention import Positions
from trainer.model.config.description import ModelConfig, NormKind, Rotary, RouterConfig
from trainer.model.norms import norm
from trainer.model.pieces import Pieces, Scoring, capped


def difference(name: str, change: Callable[[ModelConfig], ModelConfig] = lambda config: config) -> float:
    """How far we are from transformers where our description is changed."""
    reference = reference_model(name)
    found = computed(
        change(config_of(reference)), by_our_names(reference.tensors), device_rows(reference_rows())
    )
    return furthest(found, expected_of(name))[0]


@pytest.mark.parametrize(("kind", "theirs"), [("plain", Olmo2RMSNorm), ("one plus", Gemma2RMSNorm)])
def test_norms_round_bfloat16_as_transformers_does(kind: NormKind, theirs: Any) -> None:
    torch.manual_seed(0)
    ours, reference = norm(kind, 256, 1e-5).bfloat16(), theirs(256, 1e-5).bfloat16()
    weight = torch.randn(256)
    ours.load_state_dict({"weight": weight})
    reference.load_state_dict({"weight": weight})
    x = torch.randn(64, 256).bfloat16()
    assert torch.equal(ours(x), reference(x))


@pytest.mark.parametrize("name", [*FAMILIES, *VARIANTS])
def test_loss_and_every_gradient_are_those_of_transformers(name: str) -> None:
    assert difference(name) < 1e-10


def changed(**fields: Any) -> Callable[[ModelConfig], ModelConfig]:
    return lambda config: dataclasses.replace(config, **fields)


def with_router(**fields: Any) -> Callable[[ModelConfig], ModelConfig]:
    def change(config: ModelConfig) -> ModelConfig:
        assert config.experts is not None
        router: RouterConfig = dataclasses.replace(config.experts.router, **fields)
        return dataclasses.replace(config, experts=dataclasses.replace(config.experts, router=router))

    return change


def ungrouped(config: ModelConfig) -> ModelConfig:
    assert config.experts is not None
    return dataclasses.replace(
        config, experts=dataclasses.replace(config.experts, num_groups=1, top_groups=1)
    )


def rules(
    change: Callable[[tuple[Rotary | None, ...]], tuple[Rotary | None, ...]],
) -> Callable[..., ModelConfig]:
    return lambda config: dataclasses.replace(config, rotary=change(config.rotary))


def paired_by_halves(every: tuple[Rotary | None, ...]) -> tuple[Rotary | None, ...]:
    return tuple(None if rule is None else dataclasses.replace(rule, interleaved=False) for rule in every)


def bounds_in_whole_numbers(config: ModelConfig) -> ModelConfig:
    (rule,) = config.rotary
    assert rule is not None
    scaling = dataclasses.replace(cast(Any, rule.scaling), truncate=True)
    return dataclasses.replace(config, rotary=(dataclasses.replace(rule, scaling=scaling),))


WRONG_DESCRIPTIONS: dict[str, tuple[str, Callable[[ModelConfig], ModelConfig]]] = {
    "another kind of norm": ("llama", changed(norm_kind="one plus")),
    "a norm without its one": ("gemma2", changed(norm_kind="plain")),
    "an epsilon": ("qwen3", changed(norm_eps=1e-6)),
    "a window too wide by one": ("mistral", changed(windows=(WINDOW + 1,))),
    "a window too narrow by one": ("mistral", changed(windows=(WINDOW - 1,))),
    "windows in the other layers": ("gemma2", changed(windows=(None, WINDOW))),
    "no windows": ("gpt_oss", changed(windows=(None,))),
    "positions where there are none": ("smollm3", rules(lambda every: (every[0],))),
    "positions in the other layers": ("smollm3", rules(lambda every: (None, None, None, every[0]))),
    "YaRN in windowed layers": ("olmo3", rules(lambda every: (every[-1],))),
    "no YaRN": ("olmo3", rules(lambda every: (every[0],))),
    "positions of full layers in windowed ones": ("gemma3_text", rules(lambda every: (every[-1],))),
    "YaRN between whole numbers": ("gpt_oss", bounds_in_whole_numbers),
    "pairs of halves": ("deepseek_v3", rules(paired_by_halves)),
    "pairs of neighbours": (
        "llama",
        rules(
            lambda every: tuple(dataclasses.replace(cast(Rotary, rule), interleaved=True) for rule in every)
        ),
    ),
    "softmax before the choice": ("gpt_oss", with_router(score="softmax", normalised=False)),
    "softmax after the choice": ("qwen3_moe with dense layers", with_router(score="softmax of chosen")),
    "shares that do not add up": ("mixtral", with_router(normalised=False)),
    "shares of the sigmoid that do not add up": ("deepseek_v3", with_router(normalised=False)),
    "shares not scaled": ("deepseek_v3", with_router(scale=1.0)),
    "experts of any group": ("deepseek_v3", ungrouped),
    "the scale of scores": ("gemma2", changed(score_divisor=None)),
    "no cap of scores": ("gemma2", changed(score_cap=None)),
    "no cap of logits": ("gemma2", changed(logit_cap=None)),
    "an embedding that is not scaled": ("gemma3_text", changed(embedding_scale=1.0)),
}


@pytest.mark.parametrize(("name", "change"), WRONG_DESCRIPTIONS.values(), ids=WRONG_DESCRIPTIONS)
def test_a_description_that_is_wrong_in_one_place_is_found(
    name: str, change: Callable[[ModelConfig], ModelConfig]
) -> None:
    assert difference(name, change) > 1e-7


def each_head_alone(norm: norms.WholeNorm, x_BTK: Tensor) -> Tensor:
    heads = x_BTK.view(*x_BTK.shape[:-1], -1, 8)
    return (heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + norm.eps)).flatten(-2) * norm.weight


def over_the_documents_end(queries: Positions, keys: Positions, window: int | None) -> Pieces:
    documents_BT = torch.zeros_like(queries.documents_BT)
    every = dataclasses.replace(queries, documents_BT=documents_BT)
    return PIECES(every, every, window)


def capped_behind_the_mask(
    queries: Tensor, keys: Tensor, visible: Tensor, scoring: Scoring
) -> tuple[Tensor, Tensor]:
    assert scoring.cap is not None
    scores = capped((queries @ keys.mT * scoring.scale).masked_fill(~visible, -1e9), scoring.cap)
    return scores, scoring.scale * (1 - (scores / scoring.cap).square())


def weighted_with_the_bias(layer: experts.ExpertLayer, logits_BTE: Tensor) -> tuple[Tensor, Tensor]:
    scores_BTE, shares_BTE = SCORES(layer, logits_BTE)
    return scores_BTE + layer.bias, shares_BTE


def gate_and_up_exchanged(
    layer: feed_forward.FeedForward, x_BTD: Tensor, again: Callable[[], Tensor] | None = None
) -> Tensor:
    inner = F.silu(layer.up_proj(x_BTD)) * layer.gate_proj(x_BTD)
    return cast(Tensor, layer.down_proj(inner))


def experts_gate_and_up_exchanged(
    stacked: experts.StackedExperts, x_ND: Tensor, product: Callable[[Tensor, str], Tensor]
) -> Tensor:
    return THROUGH(
        stacked, x_ND, lambda rows, number: product(rows, {"1": "3", "3": "1"}.get(number, number))
    )


PIECES, SCORES = attention.pieces_between, experts.ExpertLayer._scores
THROUGH = experts.StackedExperts._through
WRONG_CODE: dict[str, tuple[str, Any, str, Any]] = {
    "a norm of each head for one of all": ("olmo2", norms.WholeNorm, "forward", each_head_alone),
    "a window over a document's end": ("mistral", attention, "pieces_between", over_the_documents_end),
    "a cap behind the mask": ("gemma2", pieces, "_scores", capped_behind_the_mask),
    "the router's bias in the weights": (
        "deepseek_v3", experts.ExpertLayer, "_scores", weighted_with_the_bias,
    ),
    "gate and up exchanged": ("qwen3", feed_forward.FeedForward, "forward", gate_and_up_exchanged),
    "an expert's gate and up exchanged": (
        "gpt_oss", experts.StackedExperts, "_through", experts_gate_and_up_exchanged,
    ),
    "sinks that take nothing": ("gpt_oss", self_attention, "local_part", lambda sinks_H: 0 * sinks_H - 1e9),
}  # fmt: skip


@pytest.mark.parametrize(("name", "place", "attribute", "wrong"), WRONG_CODE.values(), ids=WRONG_CODE)
def test_code_that_computes_another_thing_is_found(
    name: str, place: Any, attribute: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, attribute, wrong)
    assert difference(name) > 1e-7


COMPUTING = (
    "attention",
    "context",
    "experts",
    "feed_forward",
    "norms",
    "pieces",
    "rotary",
    "self_attention",
    "transformer",
)


@pytest.mark.parametrize("module", COMPUTING)
def test_what_computes_names_no_family(module: str) -> None:
    """Neither as a word of the code nor as a value; the rule of rotary positions has its published name, and a seed is
    torch's word."""
    tree = ast.parse((ROOT / "trainer" / "model" / f"{module}.py").read_text())
    words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - {"Llama3Scaling"}
    words |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    words |= {node.name for node in ast.walk(tree) if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    words -= {"seed", "manual_seed"}
    values = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    makers = {family.rstrip("_0123456789").split("_")[0].rstrip("0123456789") for family in FAMILIES}
    assert makers >= {"llama", "qwen", "gemma", "gpt"}
    assert [word for word in words if any(maker in word.lower() for maker in makers)] == []
    assert values.isdisjoint(FAMILIES)
