"""Load recipes, and carry a data recipe out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.phases.progress import ProgressReporter
from pipeline.recipe.checks import check_steps_of
from pipeline.recipe.load import load
from pipeline.recipe.tables import PipelineRecipe
from sluice.messages import in_python
from trainer import options
from trainer.options import TrainRecipe

if TYPE_CHECKING:
    from pipeline.results.run_summary import RunSummary


@in_python
def load_recipe(recipe: str | Path | PipelineRecipe, overrides: Sequence[str] = ()) -> PipelineRecipe:
    """The data recipe of a .toml file with `overrides` ("run.seed=7") applied; RecipeError says what is wrong
    with it.

    A recipe that is loaded already is given back as it is; then there are no overrides."""
    if isinstance(recipe, PipelineRecipe):
        _refuse_overrides(overrides)
        return recipe
    _check_path(recipe, "sluice.load_recipe")
    loaded = load(recipe, overrides)
    check_steps_of(loaded)
    return loaded


@in_python
def load_train_recipe(recipe: str | Path | TrainRecipe, overrides: Sequence[str] = ()) -> TrainRecipe:
    """The training recipe of a .toml file, as `load_recipe` gives a data recipe."""
    if isinstance(recipe, TrainRecipe):
        _refuse_overrides(overrides)
        return recipe
    _check_path(recipe, "sluice.load_train_recipe")
    return options.load_train_recipe(recipe, overrides)


def _check_path(recipe: object, loader: str) -> None:
    if not isinstance(recipe, (str, Path)):
        raise TypeError(
            f"recipe: a {type(recipe).__name__}; expected the path of a .toml file, or what {loader} gives"
        )


def _refuse_overrides(overrides: Sequence[str]) -> None:
    if overrides:
        raise ValueError(
            "overrides are for the path of a recipe: change a loaded one with dataclasses.replace"
        )


@in_python
def run(
    recipe: str | Path | PipelineRecipe,
    overrides: Sequence[str] = (),
    *,
    strict: bool = False,
    from_output: str | None = None,
    show_progress: bool = False,
) -> RunSummary:
    """Carry a data recipe out, or continue it, as `sluice run` does; the content of OUT/run.json.

    With `strict` the run stops at the first record on which a reader or step raises. With `from_output` the
    input is the texts that this finished output keeps (run.keep_text), as with `sluice run --from`. Progress
    goes to stderr. A Ray that this process is connected to is used; else one is started, or joined, at
    `ray.address` and left at the end.

    RecipeError if the recipe is wrong or its output holds another run; other errors as of
    `pipeline.process.run`."""
    loaded = load_recipe(recipe, overrides)
    from pipeline import process  # with Ray, which a wrong recipe need not wait for

    return process.run(
        loaded, ProgressReporter(quiet=not show_progress), strict=strict, from_output=from_output
    )
