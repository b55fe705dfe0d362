"""The values in which two recipes differ once their defaults are filled in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from lineage.recipe import RecipeError, as_plain, parse_table, read_toml
from lineage.storage.folder import Folder, local_path
from pipeline.recipe.checks import checked
from pipeline.recipe.tables import PipelineRecipe
from pipeline.recipe_help.check import kind_of
from pipeline.recipe_help.keys import SHAPES, Kind, recipe_tables
from pipeline.recipe_help.named import published, template
from stages.quality.options import limits

_THRESHOLD_TYPES: Final = {
    key.own_name: int if key.type == "whole number" else float
    for table in recipe_tables("data")
    if table.name == "quality"
    for key in table.keys
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeDifference:
    """A key and its two values; None where a recipe has none, as of a source that it lacks. `is_order`: the
    key is a list of named tables, and the values are their names, those that both have in another order."""

    key: str
    a: Any
    b: Any
    is_order: bool = False


def open_recipe(place: str) -> tuple[Kind, Any]:
    """The recipe of a .toml file, or the one that a finished output keeps; RecipeError where it is wrong."""
    folder = Folder(place)
    path = (
        local_path(folder.at("recipe.toml"))
        if not folder.is_remote and folder.exists("recipe.toml")
        else place
    )
    raw = read_toml(path)
    try:
        kind = kind_of(raw)
    except RecipeError as error:
        raise RecipeError(f"{place} is no recipe: {error}") from error
    recipe: Any = parse_table(SHAPES[kind], raw)
    return kind, checked(recipe) if isinstance(recipe, PipelineRecipe) else recipe


def differences(a: Any, b: Any) -> list[RecipeDifference]:
    """What differs, by key. Sources, classifiers and steps are matched by name, thresholds of [quality] by
    their variants' defaults: source.web.limit, quality.min_words. A source that only one has is one
    difference, and so is another order of those that both have, which makes another run."""
    found: list[RecipeDifference] = []
    _compare(_effective(a), _effective(b), "", found)
    return found


_OF_LANGUAGE: Final = re.compile(r"quality\.language\.[^.]+\.?(.*)")
_OF_ITS_OWN: Final = ("run", "source", "ray", "tokenize", "limits", "purges")
"""Tables in which every run of a published recipe is its own."""


def changes_of(name: str, recipe: PipelineRecipe) -> list[RecipeDifference]:
    """What a recipe changes of the published one that a template follows: its values are the second ones. Of
    sources only their steps count."""
    original = checked(parse_table(PipelineRecipe, template(name).tables))
    found = [each for each in differences(original, recipe) if each.key.split(".")[0] not in _OF_ITS_OWN]
    (steps,) = (source.steps for source in original.source)
    others = (source for source in recipe.source if source.steps != steps)
    return found + [
        RecipeDifference(key=f"source.{source.name}.steps", a=list(steps), b=list(source.steps))
        for source in others
    ]


def steps_of(name: str, difference: RecipeDifference) -> list[str]:
    """The steps of the published recipe that a changed key belongs to."""
    return published(name).steps_of(_changed(difference))


def _changed(difference: RecipeDifference) -> list[str]:
    """The keys of [quality] for those of one language; the rule sets, or the steps of a source, that only one
    recipe has, or all where their order alone differs."""
    key, a, b = difference.key, difference.a, difference.b
    if (found := _OF_LANGUAGE.match(key)) is not None:
        table = {found[1]: True} if found[1] else a or b
        return [f"quality.{name}" for name, value in table.items() if value is not None]
    if key == "quality.rules":
        return [f"{key}.{name}" for name in set(a) ^ set(b) or set(a)]
    if key.startswith("source."):
        return [f"{name}.steps" for name in set(a) ^ set(b) or set(a)]
    return [key]


def _effective(recipe: Any) -> dict[str, object]:
    plain = dict(as_plain(recipe))
    if isinstance(recipe, PipelineRecipe):
        # A rule set counts with numbers of either type; people see a threshold as its key is declared.
        plain["quality"] |= {
            name: _THRESHOLD_TYPES[name](value) for name, value in limits(recipe.quality).items()
        }
    return plain


def _compare(a: Any, b: Any, where: str, found: list[RecipeDifference]) -> None:
    names_a, names_b = _names(a), _names(b)
    if names_a is not None and names_b is not None:
        if [name for name in names_a if name in names_b] != [name for name in names_b if name in names_a]:
            found.append(RecipeDifference(key=where, a=names_a, b=names_b, is_order=True))
        a, b = dict(zip(names_a, a, strict=True)), dict(zip(names_b, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        for name in sorted(a.keys() | b.keys()):
            _compare(a.get(name), b.get(name), f"{where}.{name}" if where else name, found)
    elif a != b:
        found.append(RecipeDifference(key=where, a=a, b=b))


def _names(value: Any) -> list[str] | None:
    """The names of a list of tables, an empty one too; None for another value, and where a name does not say
    which."""
    if not isinstance(value, list) or not all(isinstance(entry, dict) and "name" in entry for entry in value):
        return None
    names = [entry["name"] for entry in value]
    return names if len(set(names)) == len(names) else None
