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

from lineage.index.output_index import check_finished
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, is_remote, local_path
from pipeline.cli.arguments import add_json, add_recipe, count, doc_id
from pipeline.cli.printing import console, print_json
from stages.document import Document

if TYPE_CHECKING:
    from pipeline.inspect.explain import Explanation
    from pipeline.inspect.given_document import Named
    from pipeline.recipe import PipelineRecipe, SourceTable


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
        help="an HTML page on disk; or with --offset JSON lines, with --row a Parquet file",
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
        help="the list element, from 0, of a row whose list elements are documents (0)",
    )
    parser.add_argument("--doc", metavar="ID", help="a document of OUT: 32 hex digits")
    parser.add_argument("--url", help="the URL of a document of OUT, or the URL to assume for a page or text")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from pipeline.inspect.explain import as_json, render
    from pipeline.inspect.given_document import document_of

    if is_output(options.recipe):
        return _explain_recorded(options)
    named = _named(options)
    from pipeline.recipe import load

    recipe = load(options.recipe, options.overrides)
    source = _source(recipe, options.source)
    explanation = _explain(document_of(named, source, recipe.limits), recipe, source)
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


def _named(options: argparse.Namespace) -> Named:
    """The file and the place in it that the options name; RecipeError where they do not go together."""
    from pipeline.inspect.given_document import Named

    given = {"--file": options.file, "--text": options.text, "--warc": options.warc}
    option = next((name for name, path in given.items() if path is not None), None)
    if options.doc is not None or (options.url is not None and option is None):
        name, value = ("--doc", "ID") if options.doc is not None else ("--url", "URL")
        raise RecipeError(
            f"{name} goes with an output, and {options.recipe} is no folder:"
            f" sluice explain OUT {name} {shlex.quote(value)}"
        )
    if option is None:
        raise RecipeError(
            "expected --file HTML, --text FILE, --file JSONL --offset N, --file PARQUET --row N or --warc"
            " FILE --offset N; or OUT with --doc ID or --url URL"
        )
    has_place = options.offset is not None or options.row is not None
    if options.offset is not None and options.row is not None:
        raise RecipeError("--offset names a byte and --row a row of a Parquet file: expected one of them")
    if options.url is not None and (option == "--warc" or has_place):
        raise RecipeError(
            "--url goes with a --file of HTML and with --text: a record or row has a URL of its own"
        )
    if has_place and option == "--text":
        raise RecipeError("--offset and --row go with --warc and --file: a --text is read as a whole")
    if options.element is not None and not has_place:
        raise RecipeError(
            "--element goes with --offset or --row: it is the number of a document among those of one row"
        )
    if option == "--warc" and not has_place:
        raise RecipeError("--warc needs --offset N: the byte at which the record's member begins")
    return Named(
        path=given[option],
        option=option,
        offset=options.offset,
        row=options.row,
        element=options.element,
        url=options.url,
    )


def _explain_recorded(options: argparse.Namespace) -> int:
    """A document of an output: its record read again, by the output's own recipe with what --set changes."""
    from pipeline.inspect.explain import as_json, recorded_json, render, render_recorded
    from pipeline.inspect.refetch import find_one, refetch
    from pipeline.inspect.tracing import make_tracer
    from pipeline.recipe import recipe_of

    if (options.doc is None) == (options.url is None):
        raise RecipeError("with OUT, expected --doc ID or --url URL, and one of them")
    places = (options.file, options.text, options.offset, options.row, options.element)
    if any(place is not None for place in places):
        raise RecipeError(
            "--file, --text, --offset, --row and --element go with a RECIPE: with OUT the document's place is known"
        )
    out = Folder(options.recipe)
    check_finished(out)
    wanted = None if options.doc is None else doc_id(options.doc)
    history = find_one(make_tracer(options.recipe), doc_id=wanted, url=options.url)
    recipe = recipe_of(out, options.overrides)
    found = refetch(out, recipe, history, options.warc)
    source = found.source if options.source is None else _source(recipe, options.source)
    explanation = _explain(found.document, recipe, source)
    if options.json:
        print_json(as_json(explanation) | {"recorded": recorded_json(explanation, history.row)})
    else:
        screen = console()
        render(explanation, screen)
        render_recorded(explanation, history, options.recipe, screen)
    return 0


def _source(recipe: PipelineRecipe, name: str | None) -> SourceTable:
    sources = {source.name: source for source in recipe.source}
    name = name or recipe.source[0].name
    if name not in sources:
        raise RecipeError(f"--source {name!r}: the recipe has {', '.join(map(repr, sources))}")
    return sources[name]


def _explain(document: Document, recipe: PipelineRecipe, source: SourceTable) -> Explanation:
    from pipeline.inspect.explain import explain, with_whole_ledger
    from pipeline.phases.steps import step_tables
    from stages.chain import build_chain

    return explain(document, build_chain(source.steps, with_whole_ledger(step_tables(recipe))))
