"""In what a recipe does a run's steps otherwise than an earlier attempt did them. No torch here.

Where processes run, how they share the work and what they leave is not compared: layouts are told apart by
the certificate, contents by their fingerprints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lineage.recipe import as_plain, differing
from lineage.storage.folder import Folder
from trainer.options import TrainRecipe
from trainer.provenance.setup import absolute_places, read_recipe

_DECIDING: Final = (
    "model", "seq_len", "global_batch", "steps", "validation", "order", "mixture", "skip", "init_from", "optimizer",
    "faults", "experts",
)  # fmt: skip
"""The keys of [train] that decide what a step computes; the others are the seed's and the layout's."""
_WATCHING: Final = ("watchdog_seconds",)
"""Of [train.faults]: what decides nothing."""


def changed_steps(now: TrainRecipe, was: TrainRecipe, done: int) -> list[str]:
    """A line for each key that decides what a step computes and is another now. A mixture may change from the
    step `done` on."""
    return differing({"train": _deciding(now, done)}, {"train": _deciding(was, done)})


def changed_since(output: Folder, earlier: int, later: int) -> list[str] | None:
    """As `changed_steps` from one attempt of a run to a later one; None where an attempt of an earlier
    release recorded no recipe."""
    was, now = read_recipe(output, earlier), read_recipe(output, later)
    return None if was is None or now is None else changed_steps(now, was, now.train.steps)


def _deciding(recipe: TrainRecipe, done: int) -> Mapping[str, Any]:
    recipe = absolute_places(recipe)
    plain = as_plain(recipe.train)
    kept = {name: plain[name] for name in _DECIDING if name in plain}
    kept["seed"] = recipe.seed
    kept["faults"] = _without(kept["faults"], _WATCHING)
    kept["mixture"] = [entry for entry in kept["mixture"] if entry["first_step"] < max(done, 1)]
    return kept


def _without(table: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name not in names}
