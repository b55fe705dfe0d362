"""Every step and rule on one page: what each measured, its threshold and verdict, and the text before and after.

  sluice explain recipes/crawl.toml --file page.html
  sluice explain recipes/crawl.toml --warc crawl.warc.gz --offset 43210
  sluice explain recipes/repos.toml --warc repos.parquet --offset 7 --element 2    row 7, the third of its files
  sluice explain OUT --doc 0123…              a document of a finished output, read again from its crawl file
  sluice explain OUT --url https://…          by URL, in any spelling that is normalised to the same
  sluice explain OUT --doc 0123… --set quality.min_words=30     as it would be with another threshold

Steps run on past a rejection, so that a threshold can be tuned without a run. With OUT the recipe that the output keeps
is used, and what its lineage has of the document, duplicates too, stands below.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from typing import TYPE_CHECKING

from lineage.ids import content_hash, warc_doc_id
from lineage.index.output_index import check_finished
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, filesystem, is_remote, local_path
from pipeline.cli.arguments import add_json, add_recipe, count, doc_id
from pipeline.cli.printing import console, print_json
from stages.document import Document, Place

if TYPE_CHECKING:
    from pipeline.inspect.explain import Explanation
    from pipeline.recipe import LimitsTable, PipelineRecipe, SourceTable


def configure(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser, "the steps; its first source's are used, or those of --source. Or OUT, a finished run's output")
    parser.add_argument("--source", metavar="NAME", help="whose steps (the first source's; with OUT the document's)")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--file", metavar="HTML", help="a page on disk")
    way.add_argument(
        "--warc", metavar="FILE", help="a crawl file, on disk or s3://; with --offset. With OUT: where it lies now"
    )
    parser.add_argument(
        "--offset",
        type=count,
        metavar="N",
        help="byte offset of the record's member; of a Parquet file: the row's number",
    )
    parser.add_argument(
        "--element",
        type=count,
        metavar="K",
        help="of a row whose list elements are documents: which of them, from 0 (0)",
    )
    parser.add_argument("--doc", metavar="ID", help="a document of OUT: 32 hex digits")
    parser.add_argument("--url", help="of a document of OUT; or the URL to judge a --file by")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from pipeline.inspect.explain import as_json, render

    if is_output(options.recipe):
        return _explain_recorded(options)
    _check(options)
    from pipeline.recipe import load

    recipe = load(options.recipe, options.overrides)
    source = _source(recipe, options.source)
    explanation = _explain(_document(options, source, recipe.limits), recipe, source)
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


def _check(options: argparse.Namespace) -> None:
    has_page = options.file is not None or options.warc is not None
    if options.doc is not None or (options.url is not None and not has_page):
        name, value = ("--doc", "ID") if options.doc is not None else ("--url", "URL")
        raise RecipeError(
            f"{name} goes with an output, and {options.recipe} is no folder: sluice explain OUT {name} {value}"
        )
    if options.url is not None and options.warc is not None:
        raise RecipeError("--url goes with --file: a record of --warc has a URL of its own")
    if options.offset is not None and options.file is not None:
        raise RecipeError("--offset goes with --warc: a --file is read as a whole")
    if options.element is not None and options.warc is None:
        raise RecipeError("--element goes with --warc: it is the number of a document among those of one row")
    if not has_page:
        raise RecipeError("expected --file HTML or --warc FILE --offset N; or OUT with --doc ID or --url URL")


def _explain_recorded(options: argparse.Namespace) -> int:
    """A document of an output: its record read again, by the output's own recipe with what --set changes."""
    from pipeline.inspect.explain import as_json, recorded_json, render, render_recorded
    from pipeline.inspect.refetch import find_one, refetch
    from pipeline.inspect.tracing import make_tracer
    from pipeline.recipe import recipe_of

    if (options.doc is None) == (options.url is None):
        raise RecipeError("with OUT, expected --doc ID or --url URL, and one of them")
    if options.file is not None or options.offset is not None or options.element is not None:
        raise RecipeError("--file, --offset and --element go with a RECIPE: with OUT the document's place is known")
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


def _input_name(path: str, source: SourceTable) -> str:
    """What a run of the source calls this file, on which the ids of rows depend; its base name where it reads no such
    file."""
    from pipeline.inputs.files import list_inputs

    if not is_remote(path):
        wanted = os.path.realpath(local_path(path))
        with contextlib.suppress(RecipeError, OSError):  # the inputs of a recipe need not be there to explain a page
            for found in list_inputs(source):
                if not is_remote(found.url) and os.path.realpath(local_path(found.url)) == wanted:
                    return found.name
    return os.path.basename(path)


def _document(options: argparse.Namespace, source: SourceTable, limits: LimitsTable) -> Document:
    from stages.reading.options import ReadOptions
    from stages.reading.reader import read_numbered

    path = options.file or options.warc
    if options.warc is not None and options.offset is None:
        raise RecipeError("--warc needs --offset N: the byte at which the record's member begins")
    try:
        with filesystem(path).open(path if is_remote(path) else local_path(path), "rb") as stream:
            if options.warc is not None:
                reading = ReadOptions(
                    source=source.name,
                    file=_input_name(path, source),
                    format=source.format,
                    fields=source.row_fields,
                    language=source.language,
                    mime=source.mime,
                    max_document_bytes=limits.max_document_bytes,
                    max_window_bytes=limits.max_window_bytes,
                )
                found: Document = read_numbered(stream, options.offset, options.element or 0, reading)
                return found
            payload = stream.read(limits.max_document_bytes + 1)
    except FileNotFoundError as error:
        raise RecipeError(f"there is no file {path}") from error
    url = options.url
    return Document(
        doc_id=warc_doc_id("", url or "", payload),
        source=source.name,
        raw_hash=content_hash(payload),
        payload=payload,
        place=Place(file=os.path.basename(path), offset=0, length=len(payload)),
        num_bytes=len(payload),
        is_html=True,
        content_type="text/html",
        url=url,
        language=source.language,
    )
