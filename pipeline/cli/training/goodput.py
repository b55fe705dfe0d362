"""What share of a training run's wall time was useful steps, and where the rest went, over all its attempts.

  sluice train goodput RUN_OUTPUT
  sluice train goodput RUN_OUTPUT --to goodput.html       a page that needs nothing else
  sluice train goodput RUN_OUTPUT --json

It reads what the run has left so far (attempts/ and metrics.jsonl), so it may be asked while the run goes on,
and attempts that were killed count. Time between an end in order (done, or asked to stop) and the next start
is told apart: nothing was held meanwhile. Exit code 1 where the output holds no attempt of a run."""

from __future__ import annotations

import argparse
import time

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, split
from pipeline.cli.arguments import add_json
from pipeline.cli.errors import FailedError
from pipeline.cli.printing import print_json
from pipeline.terminal import visible


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_output", metavar="RUN_OUTPUT", help="the output of a training run (train.output)"
    )
    parser.add_argument("--to", metavar="PAGE.html", help="write a page there")
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
        from pipeline.report.goodput import render_goodput

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
