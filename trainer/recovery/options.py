"""What a call asks of a training run that has begun, and the options of the commands that ask it: the same for
`sluice train` and `python -m trainer`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from lineage.recipe import RecipeError, whole_number


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """`from_step`: go back to the checkpoint of so many steps (0: the first weights); `forget`: go back before the
    first reading of what these purges took, or of `all`, with `restart` to the first weights where no checkpoint
    is early enough. RecipeError where they do not go together."""

    from_step: int | None = None
    forget: tuple[str, ...] | None = None
    restart: bool = False

    def __post_init__(self) -> None:
        if self.from_step is not None and self.forget is not None:
            raise RecipeError("--from-step does not go with --forget: each says where the run goes back to")
        if self.restart and self.forget is None:
            raise RecipeError(
                "--restart goes with --forget alone; --from-step 0 goes back to the first weights"
            )
        if self.from_step is not None and self.from_step < 0:
            raise RecipeError(f"--from-step {self.from_step}: expected a number of steps, 0 or more")


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


def read_replay(parsed: argparse.Namespace) -> ReplayOptions:
    """What stands in a call that `add_replay` has its options of. Errors as of `ReplayOptions`."""
    return ReplayOptions(
        from_step=parsed.from_step,
        forget=None if parsed.forget is None else tuple(parsed.forget),
        restart=parsed.restart,
    )


def _step(text: str) -> int:
    number = whole_number(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of steps, 0 or more")
    return number
