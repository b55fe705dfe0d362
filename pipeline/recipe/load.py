"""Data recipes as files: loaded, kept by an output, made into a trial, and compared."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lineage.recipe import (
    differing,
    load_recipe,
    parse_table,
    shown_value,
    with_overrides,
)
from lineage.storage.folder import Folder
from pipeline.recipe.checks import checked
from pipeline.recipe.tables import TRIAL, PipelineRecipe
from stages.quality.rule_sets.catalogue import threshold_defaults


def load(path: str | Path, overrides: Sequence[str] = ()) -> PipelineRecipe:
    """The data recipe at `path`, checked; RecipeError if it is wrong."""
    return checked(load_recipe(path, PipelineRecipe, overrides))


def trial_of(recipe: PipelineRecipe, num_documents: int) -> PipelineRecipe:
    """The recipe over the first documents of each file, so many at most, and so many records of an index, into an
    output beside the recipe's own: the whole run still finds its own empty."""
    sources = tuple(
        replace(source, limit=min(source.limit or num_documents, num_documents))
        if source.indexes
        else replace(source, limit_documents=min(source.limit_documents or num_documents, num_documents))
        for source in recipe.source
    )
    output = recipe.run.output.rstrip("/") + TRIAL
    return replace(recipe, run=replace(recipe.run, output=output), source=sources)


def recipe_of(out: Folder, overrides: Sequence[str] = ()) -> PipelineRecipe:
    """The resolved recipe that a finished output keeps, after `--set key=value` overrides."""
    raw = tomllib.loads(out.read("recipe.toml").decode())
    return checked(parse_table(PipelineRecipe, with_overrides(raw, overrides)))


def differing_keys(
    ours: dict[str, object], theirs: dict[str, object], ignore: frozenset[str] = frozenset({"ray"})
) -> list[str]:
    """The dotted keys in which two plain recipes differ, with both values; top-level tables in `ignore`
    aside."""
    mine, other = ({k: v for k, v in recipe.items() if k not in ignore} for recipe in (ours, theirs))
    return differing(mine, other, shown=_shown)


def _shown(where: str, value: Any) -> str:
    """A value of a plain recipe; a key that is not given has its default there."""
    table, _, name = where.rpartition(".")
    if value is None and table == "quality" and (defaults := threshold_defaults(name)):
        shown = {v: "by language" if default is None else f"{default:g}" for v, default in defaults.items()}
        return "not given (" + ", ".join(f"{variant}: {default}" for variant, default in shown.items()) + ")"
    return shown_value(where, value)
