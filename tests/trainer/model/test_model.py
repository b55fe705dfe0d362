"""The model: documents do not see each other, kernels agree, sizes are those published, the first weights are
fixed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainer.model.attention import document_mask, document_masks
from trainer.model.config.description import Llama3Scaling, ModelConfig, Rotary
from trainer.model.config.sizes import model_config
from trainer.model.context import attend
from trainer.model.pieces import Scoring
from trainer.model.rotary import rotary_angles, rotary_turns, rotate
from trainer.model.transformer import CausalLM, initial_weight
from trainer.planning.counts import attention_flops, flops_per_token, num_parameters

CONFIG = model_config("debug", 250)


def rows_of(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions and documents of one row whose documents have these lengths."""
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    documents = torch.cat([torch.full((length,), number) for number, length in enumerate(lengths)])[None]
    return positions, documents


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 2**31))
def test_a_document_is_computed_as_if_it_were_alone(lengths: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    model = CausalLM(CONFIG).to(torch.float64)
    tokens_BT = torch.randint(0, 250, (1, sum(lengths)))
    positions_BT, documents_BT = rows_of(lengths)
    together = model(tokens_BT, positions_BT, document_masks(documents_BT, CONFIG.windows, "dense"))
    start = 0
    for length in lengths:
        own = slice(start, start + length)
        mask = document_masks(torch.zeros(1, length, dtype=torch.int64), CONFIG.windows, "dense")
        alone = model(tokens_BT[:, own], torch.arange(length)[None], mask)
        assert torch.allclose(together[:, own], alone, atol=1e-12, rtol=0)
        start += length


def test_what_comes_later_changes_nothing_before() -> None:
    model = CausalLM(CONFIG).to(torch.float64)
    positions_BT, documents_BT = rows_of([16])
    mask = document_masks(documents_BT, CONFIG.windows, "dense")
    tokens_BT = torch.randint(0, 250, (1, 16))
    changed_BT = tokens_BT.clone()
    changed_BT[0, 9] = (changed_BT[0, 9] + 1) % 250
    before, after = model(tokens_BT, positions_BT, mask), model(changed_BT, positions_BT, mask)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.equal(before[:, 9:], after[:, 9:])


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_both_kernels_give_equal_results() -> None:
    torch.manual_seed(0)
    query = torch.randn(2, 128, 8, 16)
    key, value = torch.randn(2, 128, 4, 16), torch.randn(2, 128, 4, 16)
    documents_BT = torch.stack([rows_of([50, 1, 77])[1][0], rows_of([128])[1][0]])
    with torch.no_grad():
        dense = attend(query, key, value, document_mask(documents_BT, "dense"), Scoring(scale=0.25))
        flex = attend(query, key, value, document_mask(documents_BT, "flex"), Scoring(scale=0.25))
    assert torch.allclose(dense, flex, atol=1e-5)


def test_turning_by_position_keeps_lengths_and_depends_on_distance_alone() -> None:
    x = torch.randn(1, 1, 1, CONFIG.head_dim, dtype=torch.float64)
    y = torch.randn_like(x)

    def product(at: int, other: int) -> float:
        angles = [
            rotary_turns(torch.tensor([[p]]), Rotary(), CONFIG.rotary_dim, torch.float64) for p in (at, other)
        ]
        return float((rotate(x, angles[0]) * rotate(y, angles[1])).sum())

    assert product(3, 8) == pytest.approx(product(103, 108), abs=1e-12)
    assert product(3, 8) != pytest.approx(product(3, 9), abs=1e-6)


def test_the_scaled_rotary_rule_slows_long_waves_only() -> None:
    scaling = Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    )
    plain = ModelConfig(
        num_layers=1, width=128, num_heads=1, num_kv_heads=1, head_dim=128, hidden=64, vocab_size=128
    )
    scaled = replace(plain, rotary=(Rotary(scaling=scaling),))

    def angles_of(config: ModelConfig) -> Tensor:
        (rule,) = config.rotary
        assert rule is not None
        return rotary_angles(torch.tensor([[1]]), rule, config.rotary_dim, torch.float64)

    ratio = (angles_of(scaled) / angles_of(plain))[0, 0]
    assert ratio[0] == 1.0
    assert ratio[-1] == pytest.approx(1 / 8)
    assert bool((ratio.diff() <= 1e-12).all())


@pytest.mark.parametrize(
    ("name", "billions"), [("1B", 1.236), ("8B", 8.030), ("70B", 70.554), ("405B", 405.853)]
)
def test_sizes_have_the_parameters_that_llama_3_publishes(name: str, billions: float) -> None:
    config = model_config(name, 128_256)
    with torch.device("meta"):
        counted = sum(parameter.numel() for parameter in CausalLM(config).parameters())
    assert counted == num_parameters(config)
    assert counted / 1e9 == pytest.approx(billions, abs=5e-4)


def test_attention_counts_the_width_of_all_heads_where_it_is_not_the_models() -> None:
    # Mistral Nemo's shape: 32 heads of 128 make 4096 of a width of 5120.
    wide = ModelConfig(
        num_layers=40,
        width=5120,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        hidden=14336,
        vocab_size=131072,
    )
    assert attention_flops(wide, 131072) == 12 * 32 * 128 * 131072
    assert flops_per_token(wide, 131072) == pytest.approx(327.2e9, rel=1e-3)
    even = model_config("8B", 128_256)
    assert attention_flops(even, 8192) == 12 * even.width * 8192


def test_the_debug_model_is_as_documented() -> None:
    config = model_config("debug", 100_278)
    shape = (config.num_layers, config.width, config.num_heads, config.num_kv_heads, config.vocab_size)
    assert shape == (2, 64, 8, 4, 100_352)


def test_a_first_weight_depends_on_seed_and_name_alone() -> None:
    like = torch.empty(0)
    first = initial_weight("model.norm_proj.weight", torch.Size([8, 8]), CONFIG, 3, like)
    torch.manual_seed(99)
    assert torch.equal(first, initial_weight("model.norm_proj.weight", torch.Size([8, 8]), CONFIG, 3, like))
    assert not torch.equal(
        first, initial_weight("model.norm_proj.weight", torch.Size([8, 8]), CONFIG, 4, like)
    )
    assert not torch.equal(first, initial_weight("model.other.weight", torch.Size([8, 8]), CONFIG, 3, like))
