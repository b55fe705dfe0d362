"""The data pipeline of a recipe: crawl files in, token shards and their lineage out.

Resumable: after a crash, a kill or Ctrl-C the same call continues and repeats no finished unit. A changed recipe or
changed inputs are refused (exit 2) naming what differs; [ray] may differ.

  sluice run recipes/crawl.toml
  sluice run recipes/crawl.toml --set run.output=s3://bucket/out --set 'source.0.limit=2'
"""

from __future__ import annotations

import argparse

from pipeline.cli.common import add_json, add_recipe, console, print_json
from pipeline.phases.progress import Reporter


def configure(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser, "sources, steps and the output")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from pipeline import process, recipe
    from pipeline.cli.summary import show_summary

    summary = process.run(recipe.load(options.recipe, options.overrides), Reporter())
    if options.json:
        print_json(summary)
    else:
        show_summary(console(), summary)
    return 0
