"""The training recipe: what is filled in, and what is refused with the key's name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage.recipe import RecipeError, as_toml
from trainer.options import TrainRecipe, load_train_recipe
from trainer.recipe_tables.parallelism import PipelineTable

RECIPE = """
[run]
name = "r"
[train]
data = "out"
output = "run"
model = "debug"
seq_len = 128
global_batch = 8
steps = 10
"""


def load(tmp_path: Path, *overrides: str, more: str = "") -> TrainRecipe:
    path = tmp_path / "train.toml"
    path.write_text(RECIPE + more)
    return load_train_recipe(path, overrides)


@pytest.mark.parametrize(
    ("overrides", "sizes"),
    [
        ((), (1, 1, 1)),
        (("train.workers=4",), (1, 4, 1)),
        (("train.workers=4", "train.zero=0"), (4, 1, 1)),
        (("train.workers=4", "train.parallel.tp=2"), (1, 2, 2)),
        (("train.workers=4", "train.parallel.dp_replicate=2"), (2, 2, 1)),
        (("train.parallel.dp_shard=3", "train.parallel.tp=2"), (1, 3, 2)),
    ],
)
def test_sizes_of_the_mesh_that_are_not_given_are_filled_in(
    tmp_path: Path, overrides: tuple[str, ...], sizes: tuple[int, int, int]
) -> None:
    mesh = load(tmp_path, *overrides).train.mesh
    assert (mesh.dp_replicate, mesh.dp_shard, mesh.tp) == sizes


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("train.workers=3", "train.parallel.tp=2"), r"train\.workers = 3: expected the product"),
        (("train.zero=4",), r"train\.zero = 4"),
        (("train.dtype=mxfp8",), r"train\.dtype = \"mxfp8\": it needs a B200"),
        (("train.dtype=nvfp4",), r"train\.dtype = \"nvfp4\": it needs a Blackwell GPU"),
        (
            ("train.parallel.ep=3", "train.parallel.tp=4"),
            r"train\.parallel\.ep = 3: expected a divisor of .* = 4",
        ),
        (
            ("train.pipeline.schedule=zbv", "train.pipeline.virtual_stages=4"),
            "virtual_stages = 4: expected 2",
        ),
        (
            ("train.pipeline.schedule=interleaved", "train.pipeline.virtual_stages=1"),
            "1: expected at least 2",
        ),
        (("train.pipeline.virtual_stages=2",), "virtual_stages = 2: expected 1 with schedule = '1f1b'"),
        (("train.data=[]",), r"train\.data = \[\]"),
        (("train.skip=[[5, 4]]",), r"train\.skip = \[5, 4\]"),
        (("train.profile=[9, 3]",), r"train\.profile = \[9, 3\]"),
        (("train.seq_len=4194304",), r"train\.seq_len = 4194304: expected at most 2097152"),
        (("train.optimizer.betas=[0.9, 1.0]",), r"train\.optimizer\.betas\[1\] = 1\.0"),
        (("train.faults.watchdog_seconds=1e300",), r"train\.faults\.watchdog_seconds = 1e\+300"),
        (("train.recovery.on_straggler=replace",), r'on_straggler = "replace": expected train.recovery.mode'),
        (("train.recorder.operations=-1",), r"train\.recorder\.operations = -1"),
        (("train.stragglers.factor=1.0",), r"train\.stragglers\.factor = 1\.0"),
        (("train.nonsense=1",), "train.nonsense"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load(tmp_path, *overrides)


def test_mixture_segments_start_at_step_0_and_rise(tmp_path: Path) -> None:
    more = "[[train.mixture]]\nfirst_step = 5\nweights = {a = 1}\n"
    with pytest.raises(RecipeError, match=r"first_step = \[5\]"):
        load(tmp_path, more=more)


def test_the_seed_of_the_run_holds_unless_training_has_its_own(tmp_path: Path) -> None:
    assert load(tmp_path, "run.seed=7").seed == 7
    assert load(tmp_path, "run.seed=7", "train.seed=8").seed == 8


def test_a_single_output_is_a_list_of_one(tmp_path: Path) -> None:
    assert [entry.out for entry in load(tmp_path).train.outs] == ["out"]
    several = load(tmp_path, 'train.data=[{out = "x", prefix = "x/"}, {out = "y"}]').train.outs
    assert [(entry.out, entry.prefix) for entry in several] == [("x", "x/"), ("y", "")]


def test_a_planted_nan_may_be_one_step_or_several(tmp_path: Path) -> None:
    assert load(tmp_path, "train.faults.nan_at_step=3").train.faults.nan_steps == {3}
    assert load(tmp_path, "train.faults.nan_at_step=[3, 5]").train.faults.nan_steps == {3, 5}


def test_a_recipe_survives_toml(tmp_path: Path) -> None:
    recipe = load(tmp_path, "train.workers=2")
    path = tmp_path / "again.toml"
    path.write_text(as_toml(recipe))
    assert load_train_recipe(path) == recipe


def test_experts_are_spread_over_ranks_that_are_there_already(tmp_path: Path) -> None:
    train = load(tmp_path, "train.workers=8", "train.parallel.tp=2", "train.parallel.ep=8").train
    assert (train.num_workers, train.mesh.dp_shard, train.mesh.ep) == (8, 4, 8)


@given(st.integers(1, 130), st.integers(1, 8), st.sampled_from([2, 4]), st.integers(0, 2), st.integers(0, 2))
def test_stages_have_all_layers_and_differ_by_one_before_the_ends_are_made_lighter(
    num_layers: int, pp: int, num_virtual: int, first: int, last: int
) -> None:
    table = PipelineTable(
        schedule="interleaved",
        virtual_stages=num_virtual,
        first_stage_less_layers=first,
        last_stage_less_layers=last,
    )
    try:
        layers = list(table.stage_layers(num_layers, pp))
    except RecipeError as error:
        assert f"train.parallel.pp = {pp}" in str(error)
        assert num_layers < pp * num_virtual or (num_layers + first + last) // (pp * num_virtual) < max(
            first, last
        )
        return
    assert sum(layers) == num_layers
    layers[0] += first
    layers[-1] += last
    assert max(layers) - min(layers) <= 1
    assert layers == sorted(layers, reverse=True)


def test_the_first_stage_of_llama_3_405b_has_only_the_embedding_and_the_last_only_the_output() -> None:
    # 2407.21783, section 3.3.2, of 126 layers on 16 stages.
    table = PipelineTable(
        schedule="interleaved", virtual_stages=8, first_stage_less_layers=1, last_stage_less_layers=1
    )
    assert table.stage_layers(126, 16) == (0, *[1] * 126, 0)
    with pytest.raises(RecipeError, match="one would have none"):
        table.stage_layers(125, 16)
