"""What a call of a training run with `--from-step` or `--forget` asks for, before any process trains. No torch here."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from trainer.options import TrainRecipe
from trainer.replay.back import go_back_to


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """`lines`: what the user should read; `trains`: whether there are steps to do, as far as the call knows."""

    lines: tuple[str, ...] = ()
    trains: bool = True


def prepare_replay(recipe: TrainRecipe, options: argparse.Namespace) -> Replay:
    """Write down what the call asks for; nothing without such an option. Errors as of `go_back_to`."""
    if options.from_step is not None:
        return Replay(lines=tuple(go_back_to(recipe, options.from_step)))
    return Replay()
