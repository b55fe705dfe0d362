"""What is wrong with a recipe's file, each fault with its line and column."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lineage.recipe import RecipeError, parse_table, parse_toml, whole_number, with_overrides
from pipeline.recipe.checks import check_steps_of, checked
from pipeline.recipe.tables import PipelineRecipe
from pipeline.recipe_help.keys import SHAPES, Kind
from pipeline.recipe_help.positions import TextPosition, dotted, key_positions, position_of
from trainer.huggingface.names import parameter_axes
from trainer.model.config.sizes import model_config
from trainer.optim.roles import check_groups
from trainer.options import TrainRecipe

_AT: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|(end of document))\)")
_EXCESS: Final = re.compile(r"\d(?:_?\d){4300}|(?:\[\s*){50}")
_LEADING_KEY: Final = re.compile(r"(?:unknown key ')?([A-Za-z_][\w-]*(?:\.[\w-]+|\[\d+\])+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeProblem:
    """One fault: `key` is what it is about (dotted), `position` where that stands; None where it stands
    nowhere."""

    message: str
    key: str | None
    position: TextPosition | None


def kind_of(raw: Mapping[str, Any]) -> Kind:
    """Whether plain TOML is a data or a training recipe; RecipeError where it is neither or both."""
    if "train" in raw and "source" in raw:
        raise RecipeError("it has both [train] and [[source]]: write a data recipe and a training recipe")
    if "train" in raw:
        return "train"
    if "source" in raw or "output" in _table(raw, "run"):
        return "data"
    raise RecipeError(
        "it has neither [[source]], as a data recipe has, nor [train], as a training recipe has"
    )


def check_recipe(text: str, overrides: Sequence[str] = ()) -> tuple[Kind | None, list[RecipeProblem]]:
    """The kind of the recipe, None where that cannot be told, and all that is wrong with it, in the order of
    the file. What `overrides` change, as `--set` gives them, stands nowhere in it.

    Keys, types, bounds and what keys must hold together; neither inputs nor the files that it names are
    looked at."""
    try:
        raw = parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        return None, [_of_toml(text, error)]
    except RecipeError as error:
        return None, [RecipeProblem(message=str(error), key=None, position=_position_of_excess(text))]
    places: dict[str, TextPosition | None] = {dotted(path): at for path, at in key_positions(text).items()}
    for override in overrides:
        parts = override.partition("=")[0].strip().split(".")
        places[dotted(tuple(part if whole_number(part) is None else int(part) for part in parts))] = None
    try:
        raw = with_overrides(raw, overrides)
        kind = kind_of(raw)
    except RecipeError as error:
        return None, [RecipeProblem(message=str(error), key=None, position=None)]
    problems = [_placed(error, raw, places) for error in _faults(kind, raw)]
    return kind, sorted(problems, key=lambda found: _order(found.position))


def _order(position: TextPosition | None) -> tuple[int, int]:
    return (position.line, position.column) if position else (1 << 62, 0)


def _of_toml(text: str, error: tomllib.TOMLDecodeError) -> RecipeProblem:
    found = _AT.search(str(error))
    lines = text.split("\n")
    position = TextPosition(line=len(lines), column=len(lines[-1]) + 1)
    if found and found[1]:
        position = TextPosition(line=int(found[1]), column=int(found[2]))
    return RecipeProblem(message=f"not TOML: {_AT.sub('', str(error))}", key=None, position=position)


def _position_of_excess(text: str) -> TextPosition | None:
    """Where a number of thousands of digits, or a list of lists that are nested too deep, begins."""
    found = _EXCESS.search(text)
    return position_of(text, found.start()) if found else None


def _faults(kind: Kind, raw: dict[str, object]) -> list[RecipeError]:
    try:
        recipe: Any = parse_table(SHAPES[kind], raw)
        if isinstance(recipe, PipelineRecipe):
            check_steps_of(checked(recipe))
        elif isinstance(recipe, TrainRecipe):
            config = model_config(recipe.train.model, 1)
            check_groups(recipe.train.optimizer.group, parameter_axes(config))
    except RecipeError as error:
        return [error, *error.others]
    return []


def _parts(key: str) -> list[str | int]:
    """source[0].limit as its parts. (A quoted name with a dot in it is not found: its fault has its table's
    place.)"""
    found = re.findall(r"\[(\d+)\]|([^.\[\]]+)", key)
    return [int(number) if number else name for number, name in found]


def _placed(
    error: RecipeError, raw: Mapping[str, Any], places: Mapping[str, TextPosition | None]
) -> RecipeProblem:
    message = str(error)
    key = error.key
    if key is None and (leading := _LEADING_KEY.match(message)):
        key = leading[1]
    return RecipeProblem(message=message, key=key, position=_position(key, message, raw, places))


def _position(
    key: str | None, message: str, raw: Mapping[str, Any], places: Mapping[str, TextPosition | None]
) -> TextPosition | None:
    """Where the key stands, or else the nearest table that it belongs to. A check of the whole recipe says
    source.name for that of any source: the one whose name it quotes is meant."""
    while key:
        if key in places:
            return places[key]
        same = [place for place in places if re.sub(r"\[\d+\]", "", place) == key]
        if same:
            quoted = [place for place in same if any(repr(name) in message for name in _names(raw, place))]
            return places[(quoted or same)[-1]]
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    return None


def _names(plain: Any, place: str) -> list[str]:
    """The names of the tables on the way to a key."""
    names, raw = [], plain
    for part in _parts(place):
        is_there = isinstance(raw, list) or part in raw
        raw = raw[part] if is_there else {}
        if isinstance(raw, dict) and isinstance(raw.get("name"), str):
            names.append(raw["name"])
    return names


def _table(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = raw.get(name, {})
    return found if isinstance(found, Mapping) else {}
