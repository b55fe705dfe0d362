"""Options that several commands take, and the values of options."""

from __future__ import annotations

import argparse
import re
import shlex
from typing import TYPE_CHECKING

from lineage.ids import parse_id
from lineage.recipe import RecipeError, whole_number

if TYPE_CHECKING:
    Actions = argparse._SubParsersAction[argparse.ArgumentParser]


def add_json(parser: argparse._ActionsContainer) -> None:
    """`--json`: one JSON document on stdout, everything else on stderr."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document on stdout; logs go to stderr"
    )


def add_run_output(parser: argparse.ArgumentParser) -> None:
    """The output of a training run."""
    parser.add_argument(
        "run_output", metavar="RUN_OUTPUT", help="the output of a training run (train.output)"
    )


def add_outs_read(parser: argparse.ArgumentParser) -> None:
    """Where the outputs lie that a training run read, if it is not where they lay then."""
    parser.add_argument(
        "outs",
        nargs="*",
        metavar="OUT",
        help="present locations of the outputs that the run read (the recorded ones)",
    )


def check_address(name: str, address: str) -> None:
    """RecipeError where an address, given as `name`, is no dashboard's."""
    if not address.startswith(("http://", "https://")):
        raise RecipeError(f"{name} {address}: expected the URL of the dashboard, as http://127.0.0.1:8265")


def add_recipe(parser: argparse.ArgumentParser, what: str, *, is_optional: bool = False) -> None:
    """The recipe's path and `--set key=value`."""
    number = "?" if is_optional else None
    parser.add_argument("recipe", metavar="RECIPE", nargs=number, help=f"a .toml file: {what}")
    add_set(parser)


def add_set(
    parser: argparse.ArgumentParser, what: str = "one key, as in --set run.seed=7 or --set source.0.limit=2"
) -> None:
    """`--set key=value`, into `overrides`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help=f"override {what}; repeatable",
    )


def add_action(actions: Actions, name: str, what: str, page: str | None) -> argparse.ArgumentParser:
    """A command's action, whose help has its examples of the command's own `page`, with the lines that continue
    their comments."""
    example = rf"^ *(sluice \w+ {name}\b.*(?:\n {{10,}}\S.*)*)"
    examples = re.findall(example, page or "", re.MULTILINE)
    description = "\n  ".join([f"{what[0].upper()}{what[1:]}.\n", *examples])
    return actions.add_parser(
        name, help=what, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def quoted_recipe(options: argparse.Namespace) -> str:
    """The recipe of a call and what it overrides, as the next call takes them."""
    return shlex.join([options.recipe, *(word for given in options.overrides for word in ("--set", given))])


def count(text: str) -> int:
    """An option's whole number from 0."""
    number = whole_number(text)
    if number is None:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a whole number, 0 or more, of at most 18 digits"
        )
    return number


def share(text: str) -> float:
    """An option's share, from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a share from 0 to 1")
    return value


def doc_id(text: str) -> bytes:
    """The document id that --doc gives; RecipeError for what is none."""
    try:
        return parse_id(text)
    except ValueError as error:
        raise RecipeError(
            f"--doc: {error} (a record's own id, as a JSONL row gives it, is the column record_id: sluice"
            " lineage OUT \"SELECT doc_id FROM documents WHERE record_id = '…'\")"
        ) from None


def words(text: str) -> str:
    """An option's text, which must say something."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty: expected a text, which is kept with the purge")
    return text
