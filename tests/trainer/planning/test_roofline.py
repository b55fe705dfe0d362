"""The roofline: intensities, where experts' messages overtake tensor parallel's, the scaling law, and
reading."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.main import main
from tests.support.training.plans import mixtral, recipe_of, write_recipe
from trainer.planning.counts import attention_flops, layer_flops
from trainer.planning.gpus import GPUS
from trainer.planning.roofline import Roofline, expected_loss, optimal_tokens, read_amplification, roofline


def roofline_of(tmp_path: Path, *changes: str) -> Roofline:
    return roofline(recipe_of(tmp_path, *changes))


def test_the_ridge_is_peak_over_bandwidth() -> None:
    assert GPUS["H100"].ridge() == pytest.approx(989e12 / 3.35e12)
    assert all(gpu.ridge() > 100 for gpu in GPUS.values())


def test_a_product_of_three_large_sides_is_bound_by_arithmetic_and_a_flat_one_by_memory(
    tmp_path: Path,
) -> None:
    found = roofline_of(tmp_path)
    products = {product.name: product for product in found.products}
    up = products["gate, up"]
    assert up.flops == 2 * 8192 * 4096 * 14336
    # 1/intensity of a product in two-byte numbers is the sum of the reciprocal sides.
    assert 1 / up.intensity == pytest.approx(1 / 8192 + 1 / 4096 + 1 / 14336)
    assert up.intensity > up.ridge == GPUS["H100"].ridge()
    short = {product.name: product for product in roofline_of(tmp_path, "train.seq_len=128").products}
    assert short["gate, up"].intensity < 128 < short["gate, up"].ridge
    assert (up.bound, short["gate, up"].bound) == ("arithmetic", "memory")


def test_the_operations_of_a_layer_are_those_of_its_plan(tmp_path: Path) -> None:
    found = roofline_of(tmp_path)
    layout = found.layout
    config = layout.config
    whole = sum(
        product.flops * product.times for product in found.products if product.name != "output matrix"
    )
    # Norms have no product.
    norms = 6 * 2 * config.width
    expected = (layer_flops(config, sparse=False) - norms + attention_flops(config, 8192)) / 3 * layout.tokens
    assert whole == pytest.approx(expected)


def test_only_products_that_training_converts_read_factors_of_one_byte_and_have_the_ridge_of_float8(
    tmp_path: Path,
) -> None:
    changes = (mixtral(tmp_path, n_shared_experts=1), "train.dtype=float8")
    products = {product.name: product for product in roofline_of(tmp_path, *changes).products}
    float8 = {
        "queries",
        "keys, values",
        "attention's output",
        "shared experts' gate, up",
        "shared experts' down",
    }
    others = {"attention", "router", "an expert's gate, up", "an expert's down", "output matrix"}
    assert set(products) == float8 | others
    for name, product in products.items():
        assert product.ridge == pytest.approx((1979e12 if name in float8 else 989e12) / 3.35e12), name
        if name != "attention":
            bytes_of_factors = product.num_bytes - 2 * product.rows * product.columns
            factors = product.rows * product.inner + product.inner * product.columns
            assert bytes_of_factors / factors == pytest.approx(1 if name in float8 else 2), name


def test_an_all_to_all_overtakes_tensor_parallel_once_it_leaves_the_node(tmp_path: Path) -> None:
    found = roofline_of(tmp_path)
    assert found.overtaken is not None
    assert found.overtaken.num_experts > 8
    for exchange in found.exchanges:
        longer = exchange.all_to_all_seconds > exchange.tensor_seconds
        assert longer == (exchange.num_experts >= found.overtaken.num_experts)
    even = roofline_of(tmp_path, "plan.inter_gbps=3600", "plan.far_gbps=3600", "plan.latency_us=[0,0,0]")
    assert even.overtaken is None


@given(st.floats(1e7, 1e12), st.floats(0.2, 5))
def test_no_other_split_of_the_same_operations_is_expected_to_do_better(
    num_parameters: float, factor: float
) -> None:
    tokens = optimal_tokens(num_parameters)
    best = expected_loss(num_parameters, tokens)
    assert best <= expected_loss(num_parameters * factor, tokens / factor) + 1e-9


def test_the_law_gives_the_twenty_tokens_a_parameter_of_its_paper() -> None:
    # 2404.10102, section 4: about 20 at the size of Chinchilla, which saw 1.4 trillion tokens.
    assert optimal_tokens(70e9) / 70e9 == pytest.approx(20, rel=0.15)
    assert expected_loss(70e9, 1.4e12) == pytest.approx(1.97, abs=0.01)


def test_more_readers_fetch_the_same_blocks_more_often() -> None:
    found = [read_amplification(num, 4096, 4096, 64) for num in (1, 2, 8, 32, 128)]
    assert found[0] == 1
    assert found == sorted(found)
    # The figures of docs/benchmarks.md, simulated there with the order itself.
    published = {2: 1.09, 8: 1.53, 32: 3.2, 128: 10, 1024: 28.5}
    for num, amplification in published.items():
        assert read_amplification(num, max(1024, 8 * num), 2048, 64) == pytest.approx(amplification, rel=0.1)
    # One batch over as many readers as it has rows: each block is fetched as often as it has sequences at
    # most.
    assert read_amplification(4096, 4096, 4096, 64) <= 2_097_152 / 4096
    assert found[-1] < 128


def test_a_pipeline_reads_on_its_first_and_last_nodes(tmp_path: Path) -> None:
    plain, piped = (
        roofline_of(tmp_path, "train.parallel.dp_shard=8", f"train.parallel.pp={pp}").reading for pp in (1, 4)
    )
    assert (plain.readers, plain.nodes, plain.amplification) == (8, 1, 1.0)
    assert (piped.readers, piped.nodes) == (8, 2)
    assert plain.bytes_per_second > 0


@pytest.mark.parametrize(("workers", "nodes"), [(8, 1), (12, 2), (15, 2), (16, 2), (17, 3)])
def test_a_node_that_is_only_partly_filled_reads_too(tmp_path: Path, workers: int, nodes: int) -> None:
    found = roofline_of(tmp_path, f"train.parallel.dp_shard={workers}").reading
    assert (found.readers, found.nodes) == (workers, nodes)
    assert (found.amplification > 1) == (nodes > 1)


def test_the_command_marks_its_forecast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_recipe(tmp_path)
    assert main(["plan", str(path), "--roofline", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["forecast"]["is_forecast"] is True
    assert {product["bound"] for product in found["products"]} <= {"arithmetic", "memory"}
    assert main(["plan", str(path), "--roofline"]) == 0
    page = capsys.readouterr().out
    for words in ("ridge", "gate, up", "all-to-all", "a forecast", "MB/s in all"):
        assert words in page
