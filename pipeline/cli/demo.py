"""All of Sluice in a few minutes on two cores.

Makes a small multilingual crawl with planted duplicates, spam, personal data and a leaked benchmark; runs the
pipeline; trains a tiny model on two workers; traces a document from crawl record to training step; purges it
from the data and from the model; verifies the output and the model's certificate; and writes the report. The
exit code is 0 only if every planted document got the expected decision and all checks pass."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from pipeline.cli.arguments import add_json
from pipeline.cli.errors import FailedError
from pipeline.cli.printing import print_json


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="demo-out", metavar="DIR", help="the working folder (demo-out)")
    parser.add_argument(
        "--pages", type=int, default=3000, help="number of documents in the crawl, at least 450 (3000)"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    import torch  # noqa: F401 - the demo trains, and says at once where it cannot

    from pipeline.demo.tour import tour

    found = tour(Path(options.out), Console(stderr=options.json, highlight=False), options.pages)
    if options.json:
        print_json(found)
    if not found["ok"]:
        raise FailedError("the demo failed: see the failed checks above")
    return 0
