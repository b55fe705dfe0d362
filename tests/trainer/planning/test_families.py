"""Plans of models that are no Llama: windows, norms, sinks and caps are counted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.training.plans import plan_of
from trainer.model.config.description import PIECE, ModelConfig
from trainer.model.config.sizes import model_config, model_names
from trainer.planning.counts import attention_flops, flops_per_token, num_parameters
from trainer.planning.layout import PlannedLayout
from trainer.planning.memory import layer_activations, loss_bytes
from trainer.planning.roofline import products
from trainer.planning.throughput import mean_layer


@given(st.integers(2, 300), st.integers(1, 400))
def test_a_windows_operations_are_twice_those_of_the_pairs_that_it_shows(seq_len: int, window: int) -> None:
    """As those of a whole row are twice those that a causal mask leaves; half a diagonal more or less."""
    config = model_config("8B", 128_256)
    pairs = sum(min(query + 1, window) for query in range(seq_len))
    a_pair = attention_flops(config, seq_len) / seq_len
    assert attention_flops(config, seq_len, window) * seq_len == pytest.approx(
        2 * pairs * a_pair, abs=seq_len * a_pair
    )


def test_operations_of_a_model_with_windows_are_those_of_its_layers() -> None:
    config = model_config("olmo3-7B", 1)
    near, whole = attention_flops(config, 32_768, 4096), attention_flops(config, 32_768)
    without = dataclasses.replace(config, windows=(None,))
    assert flops_per_token(config, 32_768) == pytest.approx(
        flops_per_token(without, 32_768) - 24 * (whole - near), rel=1e-12
    )
    # A window as long as the row is none.
    assert flops_per_token(config, 4096) == flops_per_token(without, 4096)


@pytest.mark.parametrize("name", model_names())
def test_every_named_model_is_planned(name: str, tmp_path: Path) -> None:
    spread = "train.parallel.dp_shard=64"
    plan = plan_of(tmp_path, f"train.model={name}", spread, "plan.gpu=B300")
    assert plan.memory.total > 0
    assert 0 < plan.throughput.mfu < 1
    assert num_parameters(plan.layout.config) == num_parameters(
        model_config(name, 128_256 if plan.vocabulary.size == 128_256 else 1)
    )


def test_a_stage_takes_the_time_of_its_own_windows(tmp_path: Path) -> None:
    """Of six layers the last has none: of two stages the second is slower."""
    plan = plan_of(
        tmp_path,
        "train.model=gemma3-debug",
        "train.seq_len=131072",
        "train.parallel.dp_shard=1",
        "train.parallel.pp=2",
    )
    first, second = plan.layout.ranks
    assert (first.num_windowed, second.num_windowed) == (3, 2)
    one, other = (
        mean_layer(plan.layout, part, plan.machine, sparse=False).attention for part in (first, second)
    )
    assert one < other / 100


def test_the_roofline_shows_both_kinds_of_attention(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "train.model=gemma2-2B", "train.parallel.dp_shard=8")
    shown = {product.name: product for product in products(plan.layout, plan.machine.gpu)}
    assert shown["attention"].columns == 8192
    assert shown["attention within 4,096"].columns == pytest.approx(8192 * 3 / 4)


def kept(config: ModelConfig, layout: PlannedLayout) -> float:
    return layer_activations(dataclasses.replace(layout, config=config)) / layout.tokens


def test_what_norms_sinks_and_caps_keep_for_backward(tmp_path: Path) -> None:
    layout = plan_of(tmp_path).layout  # bfloat16 in a layer
    plain = layout.config
    heads, pairs = plain.num_heads * plain.head_dim, plain.num_kv_heads * plain.head_dim
    before = kept(plain, layout)
    added = {
        "norms of heads": (dataclasses.replace(plain, query_key_norm="head"), 2 * (heads + pairs)),
        "norms of all heads": (dataclasses.replace(plain, query_key_norm="all heads"), 8 * (heads + pairs)),
        "norms behind too": (dataclasses.replace(plain, norms="both"), 2 * 2 * plain.width + 2 * 4),
        "norms in float32": (dataclasses.replace(plain, norm_kind="one plus"), 2 * 2 * plain.width),
        "sinks": (dataclasses.replace(plain, sinks=True), 2 * heads),
    }
    for name, (config, num_bytes) in added.items():
        assert kept(config, layout) - before == num_bytes, name
    wide = dataclasses.replace(layout, compute_bytes=4)
    capped = dataclasses.replace(wide, config=dataclasses.replace(plain, logit_cap=30.0))
    # The tangents of a piece's logits, of a part of the vocabulary.
    assert loss_bytes(capped) - loss_bytes(wide) == 4 * PIECE * plain.vocab_size / 8
