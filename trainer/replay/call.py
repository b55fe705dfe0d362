"""What a call of a training run with `--from-step` or `--forget` asks for, before any process trains. No
torch here."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from trainer.options import TrainRecipe
from trainer.replay.back import go_back_to
from trainer.replay.forget import forget


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """`lines`: what the user should read; `trains`: whether there are steps to do, as far as the call knows;
    `purges`: what is to be forgotten; `is_done`: whether that has been done before, and its certificate is
    due."""

    lines: tuple[str, ...] = ()
    trains: bool = True
    purges: tuple[str, ...] = ()
    is_done: bool = False


def prepare_replay(recipe: TrainRecipe, options: argparse.Namespace) -> Replay:
    """Write down what the call asks for; nothing without such an option. Errors as of `go_back_to` and
    `forget`."""
    if options.from_step is not None:
        return Replay(lines=tuple(go_back_to(recipe, options.from_step)))
    if options.forget is not None:
        asked = forget(recipe, options.forget, restart=options.restart)
        return Replay(lines=asked.lines, trains=asked.trains, purges=asked.purges, is_done=asked.is_done)
    return Replay()
