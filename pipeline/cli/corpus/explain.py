"""Show every step and rule for one document: measured value, threshold, verdict, and the text before and
after.

  sluice explain recipes/crawl.toml --file page.html
  sluice explain recipes/crawl.toml --text note.txt
  sluice explain recipes/crawl.toml --warc crawl.warc.gz --offset 43210
  sluice explain recipes/crawl.toml --file texts.jsonl --offset 1180    the line that begins at this byte
  sluice explain recipes/crawl.toml --file texts.parquet --row 7    (and --element 2: the third of its files)
  sluice explain OUT --doc 0123…              a document of a finished output, read from its crawl file
  sluice explain OUT --url https://…          by URL, in any spelling that normalises to the same URL
  sluice explain OUT --doc 0123… --set quality.min_words=30     with another threshold

Steps continue after a rejection, so a threshold can be tuned without a run. With OUT, the recipe is the one
recorded in the output, and the document's lineage, duplicates included, follows the steps."""

from __future__ import annotations

import argparse
import os
import shlex
from typing import TYPE_CHECKING

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, is_remote, local_path
from pipeline.cli.arguments import add_json, add_recipe, count, doc_id
from pipeline.cli.printing import console, print_json

if TYPE_CHECKING:
    from pipeline.inspect.explain.given_document import NamedFile


def configure(parser: argparse.ArgumentParser) -> None:
    add_recipe(
        parser,
        "the steps; its first source's are used, or those of --source. Or OUT, a finished run's output",
    )
    parser.add_argument(
        "--source",
        metavar="NAME",
        help="the source whose steps run (the first source; with OUT the document's source)",
    )
    way = parser.add_mutually_exclusive_group()
    way.add_argument(
        "--file",
        metavar="FILE",
        help="an HTML page on disk, a JSONL file (with --offset) or a Parquet file (with --row)",
    )
    way.add_argument("--text", metavar="FILE", help="a plain text file on disk")
    way.add_argument(
        "--warc",
        metavar="FILE",
        help="a crawl file, on disk or s3://; with --offset. With OUT: its present location",
    )
    parser.add_argument(
        "--offset",
        type=count,
        metavar="N",
        help="byte offset of the record's gzip member, or of a line of JSON lines (in the decompressed file)",
    )
    parser.add_argument("--row", type=count, metavar="N", help="a row of a Parquet file, from 0")
    parser.add_argument(
        "--element",
        type=count,
        metavar="K",
        help="the element of the row, from 0, if each row is a list of documents (0)",
    )
    parser.add_argument("--doc", metavar="ID", help="a document of OUT: 32 hex digits")
    parser.add_argument("--url", help="the URL of a document of OUT, or the URL to assume for a page or text")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    if is_output(options.recipe):
        return _explain_recorded(options)
    named = _named(options)
    from pipeline.inspect.explain.explaining import explain_given
    from pipeline.inspect.explain.explanation import as_json, render
    from pipeline.recipe.load import load

    explanation = explain_given(load(options.recipe, options.overrides), named, options.source)
    if options.json:
        print_json(as_json(explanation))
    else:
        render(explanation, console())
    return 0


def is_output(given: str) -> bool:
    """Whether the first argument names an output and not a recipe."""
    if is_remote(given):
        return not given.endswith(".toml")
    return os.path.isdir(local_path(given))


def _named(options: argparse.Namespace) -> NamedFile:
    """The file and the place in it that the options name; RecipeError where they do not go together."""
    from pipeline.inspect.explain.given_document import named_document

    no_file = options.file is None and options.text is None and options.warc is None
    if options.doc is not None or (options.url is not None and no_file):
        name, value = ("--doc", "ID") if options.doc is not None else ("--url", "URL")
        raise RecipeError(
            f"{name} goes with an output, and {options.recipe} is no folder:"
            f" sluice explain OUT {name} {shlex.quote(value)}"
        )
    return named_document(
        file=options.file,
        text=options.text,
        warc=options.warc,
        offset=options.offset,
        row=options.row,
        element=options.element,
        url=options.url,
    )


def _explain_recorded(options: argparse.Namespace) -> int:
    """A document of an output: its record read again, by the output's own recipe with what --set changes."""
    from pipeline.inspect.explain.explaining import explain_recorded
    from pipeline.inspect.explain.explanation import as_json, recorded_json, render, render_recorded

    places = (options.file, options.text, options.offset, options.row, options.element)
    if any(place is not None for place in places):
        raise RecipeError(
            "--file, --text, --offset, --row and --element go with a RECIPE: with OUT the document's place is known"
        )
    explanation, history = explain_recorded(
        Folder(options.recipe),
        doc_id=None if options.doc is None else doc_id(options.doc),
        url=options.url,
        overrides=options.overrides,
        source=options.source,
        warc=options.warc,
    )
    if options.json:
        print_json(as_json(explanation) | {"recorded": recorded_json(explanation, history)})
    else:
        screen = console()
        render(explanation, screen)
        render_recorded(explanation, history, options.recipe, screen)
    return 0
