"""Float8 products, emulated: row-wise scales do not depend on the layout."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from lineage.recipe import RecipeError
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.processes.forked import run_forked
from tests.support.training import layouts
from tests.support.training.layouts import CONFIG, Trained, apart, mesh, train_slice
from trainer.model.config.description import Experts, ModelConfig
from trainer.model.config.sizes import model_config
from trainer.parallel.float8 import check_float8, float8_products
from trainer.parallel.layout import ParallelLayout
from trainer.parallel.mesh import ParallelModel
from trainer.parallel.weights import initialise
from trainer.processes.runtime import Process
from trainer.recipe_tables.parallelism import ContextTable, Float8Table

pytestmark = pytest.mark.differential("trainer")

pytest.importorskip("torchao")

ROWWISE = Float8Table(emulate=True)


LEAST_APART = 5e-4
"""Between losses: a last bit moves a value to the next float8 number, and with it a loss of these two layers
by up to 2e-4. Which last bits two layouts differ in depends on the processor. Scales that are not one a row
move it by 1e-3 and more."""


def trained_over(folder: Path, url: str, layout: ParallelLayout) -> list[Trained]:
    return run_forked(folder, layout.mesh.num_workers, partial(train_slice, url, layout, CONFIG))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_corpus(str(tmp_path_factory.mktemp("out")), {"web": [1700, 530], "books": [1111]}).url


@pytest.fixture(scope="module")
def alone(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """One process, float8."""
    return trained_over(
        tmp_path_factory.mktemp("alone"), corpus, ParallelLayout(mesh=mesh(), float8=ROWWISE)
    )[0]


LAYOUTS = {
    "ddp 2": ParallelLayout(mesh=mesh(dp_replicate=2), zero=0, float8=ROWWISE),
    "fsdp 2": ParallelLayout(mesh=mesh(dp_shard=2), float8=ROWWISE),
    "tp 2": ParallelLayout(mesh=mesh(tp=2), float8=ROWWISE),
    "pp 2": ParallelLayout(mesh=mesh(pp=2), float8=ROWWISE),
    "cp 2": ParallelLayout(mesh=mesh(cp=2), float8=ROWWISE),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name != "fsdp 2" else ()) for name in LAYOUTS]
)
def test_rowwise_products_train_as_in_one_process(
    name: str, corpus: str, alone: Trained, tmp_path: Path
) -> None:
    for one in trained_over(tmp_path, corpus, LAYOUTS[name]):
        assert one.furthest(alone)[0] < LEAST_APART


EXACT_SUMS = {
    "ddp 2": ({"zero": 0}, {"dp_replicate": 2}),
    "fsdp 4": ({}, {"dp_shard": 4}),
    "tp 2": ({}, {"tp": 2}),
    "fsdp 2, tp 2": ({}, {"dp_shard": 2, "tp": 2}),
    "cp 2": ({}, {"cp": 2}),
    "cp 2, ring": ({"context": ContextTable(method="ring")}, {"cp": 2}),
    "pp 2": ({}, {"pp": 2}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name != "tp 2" else ()) for name in EXACT_SUMS]
)
def test_with_sums_in_float64_rowwise_losses_are_those_of_one_process(
    name: str, corpus: str, tmp_path: Path
) -> None:
    """The same values go to float8 in every layout, so nothing but the last bits of float32 tells layouts
    apart."""
    options, sizes = EXACT_SUMS[name]
    # A weight's gradient has a scale a micro-batch, and a micro-batch of a pipeline is one row.
    rows = 1 if "pp" in sizes else 2

    def trained(layout: ParallelLayout) -> list[Trained]:
        work = partial(train_with_exact_sums, rows, corpus, layout, CONFIG)
        return run_forked(tmp_path / str(layout.mesh.num_workers), layout.mesh.num_workers, work)

    alone = trained(ParallelLayout(mesh=mesh(), dtype=torch.float64, float8=ROWWISE))[0]
    layout = ParallelLayout(mesh=mesh(**sizes), dtype=torch.float64, float8=ROWWISE, **options)  # type: ignore[arg-type]
    for one in trained(layout):
        assert max(map(apart, one.losses, alone.losses)) < 1e-10
        assert max(map(apart, one.norms, alone.norms)) < 1e-7


def train_with_exact_sums(
    rows: int, url: str, layout: ParallelLayout, config: ModelConfig, process: Process
) -> Trained:
    """Training in micro-batches of so many rows, whose float8 products are summed in float64; torchao
    emulates them in float32."""
    from torchao.float8.float8_ops import FLOAT8_OPS_TABLE

    of_layout = layouts.feed_options
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(FLOAT8_OPS_TABLE, torch.ops.aten.mm.default, product_in_float64)
        patched.setattr(
            layouts, "feed_options", lambda *given: dataclasses.replace(of_layout(*given), micro_batch=rows)
        )
        return train_slice(url, layout, config, process)


def product_in_float64(_: object, operands: tuple[Any, Any], options: object = None) -> torch.Tensor:
    left, right = (one._data.double() / one._scale.double() for one in operands)
    return torch.mm(left, right).to(operands[0]._orig_dtype)


LAST_BITS = {
    "pp 2": ParallelLayout(mesh=mesh(pp=2), float8=ROWWISE),
    "cp 2, ring": ParallelLayout(mesh=mesh(cp=2), context=ContextTable(method="ring"), float8=ROWWISE),
}
"""Layouts whose float32 sums run in another order than those of one process."""


@pytest.mark.slow
def test_what_a_last_bit_changes_is_all_that_tells_deep_layouts_apart(corpus: str, tmp_path: Path) -> None:
    """A value between two float8 numbers goes to the other one for a last bit of it or of its scale."""
    deep = dataclasses.replace(CONFIG, num_layers=4)
    one = ParallelLayout(mesh=mesh(), float8=ROWWISE)

    def trained(layout: ParallelLayout, last_bits: int | None = None) -> Trained:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        work = partial(train_with_last_bits, last_bits, corpus, layout, deep)
        return run_forked(folder, layout.mesh.num_workers, work)[0]

    alone = trained(one)
    by_last_bits = [trained(one, seed).furthest(alone)[0] for seed in range(3)]
    assert 1e-5 < max(by_last_bits) < 1e-3
    exact = ParallelLayout(mesh=mesh())
    assert trained(exact, 0).furthest(trained(exact))[0] < 1e-6, "float32 hardly sees them"
    for layout in LAST_BITS.values():
        assert trained(layout).furthest(alone)[0] < 1e-3


def train_with_last_bits(
    seed: int | None, url: str, layout: ParallelLayout, config: ModelConfig, process: Process
) -> Trained:
    """Training whose first weights are each left, or moved by a last bit up or down."""
    if seed is None:
        return train_slice(url, layout, config, process)

    def initialise_and_move(model: ParallelModel, of_weights: int) -> None:
        initialise(model, of_weights)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters().values():
                local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
                local *= 1 + torch.finfo(local.dtype).eps * torch.randint(
                    -1, 2, local.shape, generator=generator
                )

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(layouts, "initialise", initialise_and_move)
        return train_slice(url, layout, config, process)


def test_they_are_float8_and_train(corpus: str, alone: Trained, tmp_path: Path) -> None:
    exact = trained_over(tmp_path, corpus, ParallelLayout(mesh=mesh()))[0]
    a_scale_a_tensor = dataclasses.replace(ROWWISE, recipe="tensorwise")
    other = trained_over(
        tmp_path / "tensorwise", corpus, ParallelLayout(mesh=mesh(), float8=a_scale_a_tensor)
    )[0]
    assert LEAST_APART < exact.furthest(alone)[0] < 0.05
    assert LEAST_APART < other.furthest(alone)[0] < 0.05
    assert alone.losses[-1] < alone.losses[0]


def test_what_is_converted_is_told_and_why_not_the_rest() -> None:
    told = "\n".join(float8_products(model_config("debug", 250), ROWWISE, tp=4))
    assert "float8 (rowwise, emulated): self_attn.q_proj, self_attn.o_proj, mlp.gate_proj" in told
    assert (
        "not float8: self_attn.k_proj, self_attn.v_proj, whose sides on a rank are not multiples of 16"
        in told
    )
    assert "output matrix" in told
    of_experts = "\n".join(float8_products(model_config("moe-debug", 250), ROWWISE, tp=1))
    assert "not float8: router (" in of_experts and "and experts (" in of_experts
    # Whole on each tensor peer, as the product of tokens with them is: 2 x 24 is no multiple of 16 over two.
    sizes = Experts(num_experts=8, top_k=2, hidden=24, num_shared=2)
    shared = dataclasses.replace(model_config("moe-debug", 250), experts=sizes)
    told = float8_products(shared, ROWWISE, tp=2)
    assert "block_sparse_moe.shared_expert.down_proj of every layer" in told[0]


def test_a_device_without_float8_is_refused_unless_it_is_emulated() -> None:
    check_float8(ROWWISE, torch.device("cpu"))
    with pytest.raises(RecipeError, match="cpu has no float8 products"):
        check_float8(dataclasses.replace(ROWWISE, emulate=False), torch.device("cpu"))
