"""Every step and rule on one page: what each measured, its threshold and verdict, and the text before and after.

  sluice explain recipes/crawl.toml --file page.html
  sluice explain recipes/crawl.toml --warc crawl.warc.gz --offset 43210

Steps run on past a rejection, so that a threshold can be tuned without a run.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from lineage.ids import content_hash, warc_doc_id
from lineage.recipe import RecipeError
from lineage.storage.folder import filesystem, is_remote, local_path
from pipeline.cli.common import add_json, add_recipe, console, print_json
from stages.document import Document, Place

if TYPE_CHECKING:
    from pipeline.recipe import SourceTable


def configure(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser, "the steps; its first source's are used, or those of --source")
    parser.add_argument("--source", metavar="NAME", help="whose steps (the first source's)")
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--file", metavar="HTML", help="a page on disk")
    way.add_argument("--warc", metavar="FILE", help="a crawl file, on disk or s3://; with --offset")
    parser.add_argument("--offset", type=int, metavar="N", help="byte offset of the record's member")
    parser.add_argument("--url", help="the URL to judge a --file by")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from pipeline.inspect.explain import as_json, explain, render, with_whole_ledger
    from pipeline.phases.steps import step_tables
    from pipeline.recipe import load
    from stages.chain import build_chain

    recipe = load(options.recipe, options.overrides)
    sources = {source.name: source for source in recipe.source}
    name = options.source or recipe.source[0].name
    if name not in sources:
        raise RecipeError(f"--source {name!r}: the recipe has {', '.join(map(repr, sources))}")
    tables = with_whole_ledger(step_tables(recipe))
    document = _document(options, sources[name], recipe.limits.max_document_bytes)
    explanation = explain(document, build_chain(sources[name].steps, tables))
    if options.json:
        print_json(as_json(explanation))
    else:
        render(explanation, console())
    return 0


def _document(options: argparse.Namespace, source: SourceTable, max_bytes: int) -> Document:
    from stages.reading.options import ReadOptions
    from stages.reading.reader import read_one

    path = options.file or options.warc
    if options.warc is not None and options.offset is None:
        raise RecipeError("--warc needs --offset N: the byte at which the record's member begins")
    try:
        with filesystem(path).open(path if is_remote(path) else local_path(path), "rb") as stream:
            if options.warc is not None:
                reading = ReadOptions(
                    source=source.name,
                    file=os.path.basename(path),
                    fields=source.row_fields,
                    max_document_bytes=max_bytes,
                )
                found: Document = read_one(stream, options.offset, reading)
                return found
            payload = stream.read(max_bytes + 1)
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
    )
