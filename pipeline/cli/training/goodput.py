"""Measure the share of a training run's wall time spent on useful steps, and the causes of the rest.

  sluice train goodput RUN_OUTPUT
  sluice train goodput RUN_OUTPUT --to goodput.html       a self-contained page
  sluice train goodput RUN_OUTPUT --json

The command reads attempts/ and metrics.jsonl, so it also works while the run is active. All attempts count,
killed ones too. The time between an orderly end (done, or asked to stop) and the next start is reported
separately, because the run held no machines then. Exit code 1 if the output holds no attempt of a run."""

from __future__ import annotations

import argparse
import time

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, split
from pipeline.cli.arguments import add_json, add_run_output
from pipeline.cli.errors import FailedError
from pipeline.cli.printing import print_json
from pipeline.terminal import visible


def configure(parser: argparse.ArgumentParser) -> None:
    add_run_output(parser)
    parser.add_argument("--to", metavar="PAGE.html", help="write the page to this file")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from trainer.telemetry.goodput import describe_goodput, goodput_json, read_account

    if options.to is not None and not options.to.endswith(".html"):
        raise RecipeError(f"--to {options.to!r}: expected a name that ends in .html")
    account = read_account(Folder(options.run_output))
    found = account.at()
    if not found.num_attempts:
        raise FailedError(
            f"{options.run_output} holds no attempt whose beginning is known: expected the train.output of a run"
            " that was started with this release"
        )
    if options.to is not None:
        from pipeline.report.training.goodput import render_goodput

        folder, name = split(options.to)
        folder.publish(name, render_goodput(options.run_output, account, time.time()).encode())
    if options.json:
        print_json(goodput_json(account) | {"page": options.to})
        return 0
    for line in describe_goodput(found):
        print(line)
    if options.to is not None:
        print(f"Page: {visible(options.to)}")
    return 0
