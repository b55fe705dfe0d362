"""What commands share: the --json flag, and how a result is printed."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rich.console import Console


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`: one JSON document on stdout, everything else on stderr."""
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout; logs go to stderr")


def add_recipe(parser: argparse.ArgumentParser, what: str) -> None:
    """The recipe's path and `--set key=value`."""
    parser.add_argument("recipe", metavar="RECIPE", help=f"a .toml file that describes {what}")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
        help="override one key, as in --set run.seed=7 or --set source.0.limit=2; may be given again",
    )  # fmt: skip


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    json.dump(value, sys.stdout, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")


def console() -> Console:
    """Where people read results."""
    return Console(highlight=False)
