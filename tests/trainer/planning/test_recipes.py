"""The recipes for real sizes fit the GPUs that they name, in the layouts that docs/plan.md lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.options import load_train_recipe
from trainer.planning.plan import plan_training

ROOT = Path(__file__).parents[3]
RECIPES = ROOT / "recipes" / "sizes"


@pytest.mark.parametrize(
    ("name", "num_gpus", "changes"),
    [
        ("1B", 8, ("train.parallel.dp_replicate=1",)),
        ("1B", 64, ()),
        ("1B", 512, ("train.parallel.dp_replicate=64", "train.micro_batch=1")),
        ("8B", 8, ("train.parallel.dp_replicate=1",)),
        ("8B", 64, ()),
        ("8B", 512, ("train.parallel.dp_replicate=64",)),
        ("70B", 8, ("train.parallel.dp_shard=4", "plan.gpu=MI355X")),
        ("70B", 64, ()),
        ("70B", 512, ("train.parallel.dp_replicate=8",)),
        ("mixtral-8x7B", 8, ("train.parallel.dp_shard=8", "plan.gpu=B200")),
        ("mixtral-8x7B", 64, ()),
        ("mixtral-8x7B", 512, ("train.parallel.dp_replicate=8",)),
    ],
)
def test_a_recipe_fits_as_the_documentation_says(
    name: str, num_gpus: int, changes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # a recipe names its config.json as seen from here
    plan = plan_training(load_train_recipe(RECIPES / f"{name}.toml", changes))
    assert plan.layout.mesh.num_workers == num_gpus
    assert plan.fits
    assert plan.throughput.mfu > 0.35
    model = {"mixtral-8x7B": "Mixtral 8x7B"}.get(name, name)
    row = next(
        line
        for line in (ROOT / "docs" / "plan.md").read_text().splitlines()
        if line.startswith(f"| {model}, {num_gpus} {plan.machine.gpu.name} ")
    )
    assert (
        f"| {plan.memory.total / 1e9:.1f} | {plan.throughput.step_seconds:.4g} | {plan.throughput.mfu:.1%} |"
        in row
    )
