"""The options of a training call that goes back: the same for `sluice train` and `python -m trainer`."""

from __future__ import annotations

import argparse

from lineage.recipe import RecipeError, whole_number


def add_replay(parser: argparse.ArgumentParser) -> None:
    """`--from-step`, `--forget` and `--restart`."""
    way = parser.add_mutually_exclusive_group()
    way.add_argument(
        "--from-step",
        type=_step,
        metavar="T",
        help="go back to the checkpoint of T steps (0: the first weights) and continue; newer checkpoints"
        " are set aside until their steps are repeated",
    )
    way.add_argument(
        "--forget",
        nargs="+",
        metavar="PURGE_ID",
        help="replay from before the first reading of a document of these purges, or of `all`",
    )
    parser.add_argument(
        "--restart",
        action="store_true",
        help="with --forget: start again if no checkpoint is early enough",
    )


def check_replay(options: argparse.Namespace) -> None:
    """RecipeError where the options do not go together."""
    if options.restart and options.forget is None:
        raise RecipeError("--restart goes with --forget alone; --from-step 0 goes back to the first weights")


def _step(text: str) -> int:
    number = whole_number(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of steps, 0 or more")
    return number
