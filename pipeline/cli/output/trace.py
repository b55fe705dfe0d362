"""Trace a document from crawl record to training step, or back.

sluice trace OUT --doc 0123…              every decision, edit, cluster, token range and training step of a document
sluice trace OUT --url https://…          by URL, in any spelling that normalises to the same URL
sluice trace OUT --host example.org       all documents of a host
sluice trace OUT --hash HEX               by raw, text, clean or tokens hash
sluice trace OUT --warc FILE --offset N   the document read from a crawl file (named as in the column warc_file)
sluice trace OUT --shard web/0 --offset TOKEN     the document that a token belongs to
sluice trace OUT --run NAME --step T [--row K]    the documents that a training step read
sluice trace OUT --runs RUN_OUTPUT        all attempts and checkpoints of a training run, including those set aside
"""

from __future__ import annotations

import argparse
from typing import Final

from lineage.ids import parse_id
from lineage.index.output_index import check_finished, read_index
from lineage.recipe import RecipeError, whole_number
from lineage.storage.folder import Folder
from lineage.trace.document_history import DocumentHistory, documents_json
from lineage.trace.tracer import Tracer, UnknownError
from pipeline.cli.arguments import add_json, count, doc_id
from pipeline.cli.printing import console, print_json
from pipeline.inspect.trace.tracing import make_tracer
from pipeline.terminal import visible


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", help="a finished run's output: a folder or an s3:// URL")
    parser.add_argument(
        "--runs",
        nargs="+",
        default=[],
        metavar="DIR",
        help="training outputs that the store has not recorded yet; without another option: list their attempts"
        " and checkpoints",
    )
    parser.add_argument(
        "--version", type=int, help="the version of the corpus (1 after the run; each purge adds 1)"
    )
    parser.add_argument(
        "--limit",
        type=count,
        help="maximum entries per list; the total is added (with --json also the first and the last entry)",
    )
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--doc", metavar="ID", help="a document id: 32 hex digits")
    way.add_argument("--url", metavar="URL", help="all documents of this URL, in any spelling")
    way.add_argument("--host", metavar="HOST", help="all documents of this host")
    way.add_argument("--hash", metavar="HEX", help="a raw, text, clean or tokens hash: 32 hex digits")
    way.add_argument("--warc", metavar="FILE", help="a crawl file; with --offset")
    way.add_argument("--shard", metavar="SOURCE/N", help="a token shard; with --offset")
    way.add_argument("--run", metavar="NAME", help="a training run; with --step")
    parser.add_argument(
        "--offset", type=count, metavar="N", help="byte offset in the crawl file, or token in the shard"
    )
    parser.add_argument("--step", type=count, metavar="T", help="a training step, from 0; with --run")
    parser.add_argument(
        "--row", type=count, metavar="K", help="a row of the step's batch, from 0 (all); with --step"
    )
    add_json(parser)


_WAYS: Final = ("doc", "url", "host", "hash", "warc", "shard", "run")


def run(options: argparse.Namespace) -> int:
    _check(options)
    check_finished(Folder(options.out))
    if all(getattr(options, way) is None for way in _WAYS):
        return _list_runs(options)
    tracer = make_tracer(options.out, options.version, options.runs)
    if options.doc is not None:
        from pipeline.inspect.trace.document_history import print_history

        history = tracer.by_id(doc_id(options.doc))
        if options.json:
            print_json(history.as_json(options.limit))
        else:
            print_history(console(), options.out, history, options.limit)
        return 0
    histories, num = _find(tracer, options)
    if options.json:
        is_cut = options.host is not None and num is not None and num > len(histories)
        last = tracer.last_of_host(options.host) if is_cut else None
        print_json(documents_json(histories, options.limit, num, last))
    else:
        from pipeline.inspect.trace.document_history import print_list

        print_list(console(), options.out, histories, options.limit, num)
    return 0


def _list_runs(options: argparse.Namespace) -> int:
    from pipeline.inspect.trace.training_runs import run_histories

    if not options.runs:
        raise RecipeError(f"expected one of {', '.join(f'--{way}' for way in _WAYS)}, or --runs DIR alone")
    found = run_histories(options.out, options.runs)
    if options.json:
        print_json({"runs": [each.as_json() for each in found]})
    else:
        print("\n".join(visible(line) for each in found for line in each.lines()))
    return 0


def _check(options: argparse.Namespace) -> None:
    for way, needs in (("warc", "offset"), ("shard", "offset"), ("run", "step")):
        if getattr(options, way) is not None and getattr(options, needs) is None:
            raise RecipeError(f"--{way} needs --{needs} N")
    for more, ways in (("offset", ("warc", "shard")), ("step", ("run",)), ("row", ("run",))):
        if getattr(options, more) is not None and all(getattr(options, way) is None for way in ways):
            raise RecipeError(f"--{more} goes with {' or '.join(f'--{way}' for way in ways)} alone")


def _find(tracer: Tracer, options: argparse.Namespace) -> tuple[list[DocumentHistory], int | None]:
    if options.url is not None:
        return tracer.by_url(options.url), None
    if options.host is not None:
        # Of a list cut to nothing the first is told too.
        return tracer.by_host(options.host, None if options.limit is None else max(options.limit, 1))
    if options.hash is not None:
        return tracer.by_hash(_hash(options.hash)), None
    if options.warc is not None:
        return tracer.by_place(options.warc, options.offset), None
    if options.shard is not None:
        source, shard = parse_shard(options.shard)
        _check_shard(Folder(options.out), source, shard, options.offset)
        return tracer.by_token(source, shard, options.offset), None
    return tracer.by_step(options.run, options.step, options.row), None


def parse_shard(text: str) -> tuple[str, int]:
    """`SOURCE/N` as (source, N)."""
    source, _, number = text.rpartition("/")
    shard = whole_number(number)
    if not source or shard is None:
        raise RecipeError(f"--shard {text!r}: expected SOURCE/N, for example web/0")
    return source, shard


def _check_shard(out: Folder, source: str, shard: int, offset: int) -> None:
    """UnknownError, with what there is, for a token that no shard has."""
    shards = read_index(out).shards
    last = {found.source: found.shard for found in shards}
    num_tokens = {(found.source, found.shard): found.num_tokens for found in shards}
    if (source, shard) not in num_tokens:
        there = "; ".join(f"{name!r} has 0 to {number}" for name, number in last.items()) or "it has none"
        raise UnknownError(f"no shard {source}/{shard} in {out.url}: {there}")
    if offset >= num_tokens[source, shard]:
        raise UnknownError(
            f"no token {offset} in shard {source}/{shard} of {out.url}: it has {num_tokens[source, shard]},"
            f" from 0 on"
        )


def _hash(text: str) -> bytes:
    try:
        return parse_id(text)
    except ValueError as error:
        raise RecipeError(f"--hash: {error}") from error
