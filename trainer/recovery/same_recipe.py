"""In what a recipe does a run's steps otherwise than an earlier attempt did them. No torch here.

Where processes run, how they share the work and what they leave is not compared: layouts are told apart by
the certificate, contents by their fingerprints."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lineage.recipe import RecipeError, as_plain, differing, shown_value
from lineage.storage.folder import Folder
from trainer.attempts import attempts
from trainer.checkpoint.store import Position, complete_checkpoints, newest_with_files, read_position, up_to
from trainer.optim.learning_rate import learning_rate
from trainer.options import TrainRecipe
from trainer.provenance.setup import absolute_places, read_recipe
from trainer.recovery.repeats import OnRepeat, SkipCounter
from trainer.recovery.rollbacks import pending_rollback

_DECIDING: Final = (
    "model", "seq_len", "global_batch", "steps", "validation", "order", "mixture", "skip", "init_from", "optimizer",
    "z_loss", "faults", "experts",
)  # fmt: skip
"""The keys of [train] that decide what a step computes; the others are the seed's and the layout's."""
_WATCHING: Final = ("watchdog_seconds",)
"""Of [train.faults]: what decides nothing."""
_MEASURED_WITH: Final = ("data", "dtype", "float8", "eval_every", "validation_tokens", "eval")
"""Further keys of [train] that a run which goes on tells of: others may hold that its losses are comparable."""
_OF_THE_RATE: Final = ("lr", "warmup_steps", "schedule", "decay", "decay_share", "min_lr_ratio")
_VISIBLE: Final = 0.01
"""A share by which a rate is another that is told."""
_LONGEST_VALUE: Final = 80


def changes_on_the_way(recipe: TrainRecipe) -> list[str]:
    """What a recipe changes of the run that it goes on with, for people: a line for each key that is another
    than in the attempt whose checkpoint it begins from. The keys that make the learning rate stand in one
    line, with the rate before and after at the first step where it is another.

    Empty where the run has not begun or has no step left, or the attempt recorded no recipe."""
    output, position = Folder(recipe.train.output), _continued(recipe)
    if position is None or position.step >= recipe.train.steps:
        return []
    try:
        was = read_recipe(output, position.attempt)
    except RecipeError as error:
        return [f"warning: what this recipe changes of the run is not known: {error}"]
    if was is None:
        return []
    (now_rate, now_rest), (was_rate, was_rest) = _parted(recipe), _parted(was)
    lines = []
    if of_rate := _differing(now_rate, was_rate):
        lines.append(f"{'; '.join(of_rate)}: {_rates(recipe, was, position)}")
    for line in _differing(now_rest, was_rest):
        unread = line.startswith("train.init_from ")
        lines.append(
            line + (", and is not read: the run has begun" if unread else f", from step {position.step} on")
        )
    return lines


def _continued(recipe: TrainRecipe) -> Position | None:
    """What the checkpoint records that the next attempt begins from; None for first weights."""
    output = Folder(recipe.train.output)
    folder = Folder(recipe.train.checkpoint.path or output.at("checkpoints"))
    begun = attempts(output)
    complete = complete_checkpoints(folder, begun)
    if (back := pending_rollback(output, begun)) is not None:
        complete = up_to(complete, back.checkpoint)
    newest = newest_with_files(folder, complete)
    return None if newest is None else read_position(folder.folder(newest.name))


def _parted(recipe: TrainRecipe) -> tuple[dict[str, object], dict[str, object]]:
    """The keys of [train] that make the learning rate, and the others that are told."""
    rest = dict(_deciding(recipe, sys.maxsize))
    plain = as_plain(absolute_places(recipe).train)
    rest |= {name: plain[name] for name in _MEASURED_WITH if name in plain}
    optimizer = rest["optimizer"]
    rest["optimizer"] = _without(optimizer, _OF_THE_RATE)
    return {"steps": rest.pop("steps"), "optimizer": {name: optimizer[name] for name in _OF_THE_RATE}}, rest


def _differing(now: dict[str, object], was: dict[str, object]) -> list[str]:
    def shown(where: str, value: Any) -> str:
        text = shown_value(where, value)
        return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"

    return differing({"train": now}, {"train": was}, shown)


def _rates(now: TrainRecipe, was: TrainRecipe, position: Position) -> str:
    """How the learning rate of the steps that are left is another."""
    lowered = SkipCounter(OnRepeat(max_skips=1), (), position.lowered).rate_factor
    for step in range(position.step, now.train.steps):
        new, old = (
            learning_rate(step, each.train.steps, each.train.optimizer) * lowered(step) for each in (now, was)
        )
        if not math.isclose(new, old, rel_tol=_VISIBLE):
            return f"the rate goes from {old:.2g} to {new:.2g} at step {step}"
    return f"the rate of no step from {position.step} on changes by {_VISIBLE:.0%}"


def changed_steps(now: TrainRecipe, was: TrainRecipe, done: int) -> list[str]:
    """A line for each key that decides what a step computes and is another now. A mixture may change from the
    step `done` on."""
    return differing({"train": _deciding(now, done)}, {"train": _deciding(was, done)})


def changed_since(output: Folder, earlier: int, later: int) -> list[str] | None:
    """As `changed_steps` from one attempt of a run to a later one; None where one recorded no recipe."""
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


def _without(table: Mapping[str, Any], names: Sequence[str]) -> dict[str, object]:
    return {name: value for name, value in table.items() if name not in names}
