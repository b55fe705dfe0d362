"""The price of a data recipe: what `sluice plan` does for one."""

from __future__ import annotations

import argparse
import math
from typing import Final

from lineage.recipe import RecipeError
from pipeline.cli.arguments import count
from pipeline.cli.printing import console, print_json, titled_table
from pipeline.phases.progress import ProgressReporter
from pipeline.results.estimates import shown_name, shown_value

_PRICES: Final = {
    "core_hour": ("0.04", "of a core for an hour"),
    "put": ("0.005", "of a thousand requests that write"),
    "get": ("0.0004", "of a thousand requests that read"),
    "read_gb": ("0", "of a gigabyte read from remote inputs"),
    "month_gb": ("0.023", "of a gigabyte of output for a month"),
}
"""Options --price-…: about the list prices of a large cloud in US dollars."""


def configure(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--cores", type=count, metavar="N", help="cores that work (ray.num_cpus, or this machine's)"
    )
    for name, (default, what) in _PRICES.items():
        option = f"--price-{name.replace('_', '-')}"
        parser.add_argument(option, type=_amount, metavar="X", help=f"price {what} ({default})")
    parser.add_argument(
        "--sample-bytes", type=count, metavar="N", help="bytes of input to read (16 MiB at most)"
    )
    parser.add_argument("--seed", type=count, metavar="N", help="which sample is drawn (run.seed)")
    parser.add_argument("--keep", action="store_true", help="keep the prediction in OUT/work, for the run")


def given(options: argparse.Namespace) -> str | None:
    """The first of these options that a call has."""
    named = ("cores", *(f"price_{name}" for name in _PRICES), "sample_bytes", "seed")
    found = next(
        (name for name in named if getattr(options, name) is not None), "keep" if options.keep else None
    )
    return None if found is None else f"--{found.replace('_', '-')}"


def _amount(text: str) -> float:
    """An option's price."""
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    if not 0 <= amount < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a price, 0 or more")
    return amount


def run(options: argparse.Namespace) -> int:
    from pipeline.phases.predicted import keep
    from pipeline.pricing.price import Prices, price, usual_cores
    from pipeline.recipe.load import load

    if options.cores == 0:
        raise RecipeError("--cores 0: expected at least 1")
    if options.sample_bytes == 0:
        raise RecipeError("--sample-bytes 0: expected at least 1")
    recipe = load(options.recipe, options.overrides)
    given_prices = {name: getattr(options, f"price_{name}") for name in _PRICES}
    prices = Prices(
        cores=options.cores or usual_cores(recipe),
        **{name: amount for name, amount in given_prices.items() if amount is not None},
    )
    reporter = ProgressReporter()
    with reporter.waiting("reading a sample of the inputs"):
        prediction = price(recipe, prices, most_bytes=options.sample_bytes, seed=options.seed)
    for note in prediction.notes:
        reporter.say(note)
    if options.json:
        print_json({name: found.to_json() for name, found in prediction.estimates.items()})
    else:
        table = titled_table(
            f"{recipe.run.name} on {prices.cores:,} cores", "", "estimate", "from", "to (90%)"
        )
        for name, found in prediction.estimates.items():
            bounds = (shown_value(name, each) for each in (found.value, found.low, found.high))
            table.add_row(shown_name(name), *bounds)
        console().print(table)
    if options.keep and not keep(recipe, prediction):
        raise RecipeError(
            f"--keep: {recipe.run.output} holds a run already; expected an output that no run has begun"
        )
    if options.keep:
        reporter.say(f"kept in {recipe.run.output}: the run's report shows it beside what came")
    return 0
