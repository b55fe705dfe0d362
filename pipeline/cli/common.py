"""What commands share: the --json flag, how a result is printed, and whether a cluster can hold a training run."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console

from pipeline.terminal import harmless_json, speaks_unicode

if TYPE_CHECKING:
    from trainer.processes.placement import Workers


def add_json(parser: argparse._ActionsContainer) -> None:
    """`--json`: one JSON document on stdout, everything else on stderr."""
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout; logs go to stderr")


def add_recipe(parser: argparse.ArgumentParser, what: str) -> None:
    """The recipe's path and `--set key=value`."""
    parser.add_argument("recipe", metavar="RECIPE", help=f"a .toml file that describes {what}")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override one key, as in --set run.seed=7 or --set source.0.limit=2; may be given again",
    )


def count(text: str) -> int:
    """An option's whole number from 0."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, 0 or more")
    return int(text)


def share(text: str) -> float:
    """An option's share, from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a share from 0 to 1")
    return value


def words(text: str) -> str:
    """An option's text, which must say something."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty: expected a text, which is kept with the purge")
    return text


def check_workers(workers: Workers) -> None:
    """ResourceError at once where the nodes that are there can never hold the workers of a training run."""
    from pipeline.cluster.capacity import Wanted
    from pipeline.cluster.session import check_cluster

    check_cluster(
        Wanted(
            what="training worker",
            keys="train.workers or [train.resources]",
            each=workers.each,
            num=workers.num,
            together=workers.together,
            per_node=workers.per_node,
        )
    )


def print_json(value: Any) -> None:
    """One JSON document on stdout, exact also where stdout takes ASCII alone."""
    in_ascii = not speaks_unicode(sys.stdout.encoding)
    sys.stdout.write(harmless_json(json.dumps(value, ensure_ascii=in_ascii, allow_nan=False)) + "\n")


def console() -> Console:
    """Where people read results."""
    return Console(highlight=False)
