"""The values in which two recipes differ once their defaults are filled in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lineage.recipe import RecipeError, as_plain, parse_table, read_toml
from lineage.storage.folder import Folder, local_path
from pipeline.recipe import PipelineRecipe, checked
from pipeline.recipe_help.check import kind_of
from pipeline.recipe_help.keys import SHAPES, Kind
from stages.quality.options import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeDifference:
    """A key and its two values; None where a recipe has none, as of a source that it lacks."""

    key: str
    a: Any
    b: Any


def open_recipe(place: str) -> tuple[Kind, Any]:
    """The recipe of a .toml file, or the one that a finished output keeps; RecipeError where it is wrong."""
    folder = Folder(place)
    path = local_path(folder.at("recipe.toml")) if not folder.is_remote and folder.exists("recipe.toml") else place
    raw = read_toml(path)
    try:
        kind = kind_of(raw)
    except RecipeError as error:
        raise RecipeError(f"{place} is no recipe: {error}") from error
    recipe: Any = parse_table(SHAPES[kind], raw)
    return kind, checked(recipe) if isinstance(recipe, PipelineRecipe) else recipe


def differences(a: Any, b: Any) -> list[RecipeDifference]:
    """What differs, by key. Sources, classifiers and steps are matched by name, thresholds of [quality] by their
    variants' defaults: source.web.limit, quality.min_words. A source that only one has is one difference."""
    found: list[RecipeDifference] = []
    _compare(_effective(a), _effective(b), "", found)
    return found


def _effective(recipe: Any) -> dict[str, Any]:
    plain: dict[str, Any] = as_plain(recipe)
    if isinstance(recipe, PipelineRecipe):
        plain["quality"] |= limits(recipe.quality)
    return plain


def _compare(a: Any, b: Any, where: str, found: list[RecipeDifference]) -> None:
    a, b = _by_name(a), _by_name(b)
    if isinstance(a, dict) and isinstance(b, dict):
        for name in sorted(a.keys() | b.keys()):
            _compare(a.get(name), b.get(name), f"{where}.{name}" if where else name, found)
    elif a != b:
        found.append(RecipeDifference(key=where, a=a, b=b))


def _by_name(value: Any) -> Any:
    """A list of named tables as a table of them."""
    is_named = isinstance(value, list) and bool(value) and all(isinstance(v, dict) and "name" in v for v in value)
    return {entry["name"]: entry for entry in value} if is_named else value
