"""What a call of a training run asks for, before any process trains: with `--from-step` or `--forget` to go
back, and in its recipe what is another than before. No torch here."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from trainer.options import TrainRecipe
from trainer.provenance.setup import refuse_record_of_another
from trainer.recovery.back import go_back_to
from trainer.recovery.forget import forget
from trainer.recovery.options import ReplayOptions
from trainer.recovery.same_recipe import changes_on_the_way


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """`lines`: what the user should read; `trains`: whether there are steps to do, as far as the call knows;
    `purges`: what is to be forgotten; `is_done`: whether that has been done before, and its certificate is
    due."""

    lines: tuple[str, ...] = ()
    trains: bool = True
    purges: tuple[str, ...] = ()
    is_done: bool = False


def prepare_replay(recipe: TrainRecipe, options: ReplayOptions, file: str | None = None) -> Replay:
    """Write down what the call asks for; nothing without such an option. Where it trains, the lines say what
    the recipe changes of the run. `file`: where the recipe was read, None where it was made in memory. Errors as
    of `go_back_to`, `forget` and `refuse_record_of_another`."""
    if file is not None:
        refuse_record_of_another(recipe, file)
    replay = _asked(recipe, options)
    if not replay.trains:
        return replay
    return dataclasses.replace(replay, lines=(*replay.lines, *changes_on_the_way(recipe)))


def _asked(recipe: TrainRecipe, options: ReplayOptions) -> Replay:
    if options.from_step is not None:
        return Replay(lines=tuple(go_back_to(recipe, options.from_step)))
    if options.forget is not None:
        asked = forget(recipe, options.forget, restart=options.restart)
        return Replay(lines=asked.lines, trains=asked.trains, purges=asked.purges, is_done=asked.is_done)
    return Replay()
