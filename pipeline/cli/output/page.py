"""The lineage page of one or several outputs, on loopback: read a document, see its way, purge with open
eyes.

  sluice page OUT                                    prints an address; Ctrl-C ends it
  sluice page OUT OUT2 OUT3                          several outputs, and what they share; also of runs at work
  sluice page OUT --port 8400 --token-file page.token       the same address and token at every start
  sluice page OUT --address http://127.0.0.1:8265    and the jobs of a cluster, with their progress; OUT may be
                                                     what a job has not begun to write
  sluice page OUT --read-only                        nothing is purged from here
  sluice page OUT --public-url https://data.example.org/lineage/ --port 8400 --token-file FILE     behind a proxy

It is opened with the token of the printed address, once; then a link to any place of it opens, also one out
of a ticket. Whoever opens such a link without it is asked for the token. --token-file names a file with the
token that only its owner may read; it is made where there is none, and the path of the page then hangs on it
alone.

Behind a proxy: the page itself stays on loopback. --public-url says where the proxy serves it, path included,
and the proxy hands that path on as it is. It keeps the Host header, or sends it as X-Forwarded-Host; where it
sends X-Forwarded-Proto, that is the scheme of the URL. Any other host is refused. What the page keeps
(basket, saved queries, who looked at personal data) lies in $XDG_STATE_HOME/sluice/page, else in
~/.local/state/sluice/page, and never in an output."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lineage.index.output_index import INDEX_FILE, check_finished
from lineage.storage.folder import Folder
from pipeline.cli.arguments import add_json, check_address

if TYPE_CHECKING:
    from pipeline.page.serve import PageOptions


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("outs", metavar="OUT", nargs="+", help="runs' outputs: folders or s3:// URLs")
    add_serving(parser)
    parser.add_argument(
        "--address",
        metavar="URL",
        help="of a cluster's dashboard, as http://127.0.0.1:8265: its jobs are shown too",
    )
    add_json(parser)


def add_serving(parser: argparse.ArgumentParser) -> None:
    """How the page is served."""
    parser.add_argument("--port", type=_port, default=0, metavar="N", help="of loopback (any free one)")
    parser.add_argument(
        "--base", metavar="PATH", help="the path that all pages lie below (one that cannot be guessed)"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="holds the token that opens the page, made where there is none: token and path stay from start"
        " to start",
    )
    parser.add_argument("--public-url", metavar="URL", help="where a proxy serves the page, path included")
    parser.add_argument("--read-only", action="store_true", help="nothing is purged from here")


def _port(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a port, 0 to 65535")
    return int(text)


def page_options(options: argparse.Namespace, version: int | None = None) -> PageOptions:
    """What a call says of how the page is served."""
    from pipeline.page.serve import PageOptions

    return PageOptions(
        port=options.port,
        base=options.base,
        token_file=options.token_file,
        public_url=options.public_url,
        read_only=options.read_only,
        version=version,
    )


def _outputs_of_jobs(address: str) -> frozenset[str]:
    """Where the jobs of a cluster write to: a run that was submitted begins its output after a while."""
    from pipeline.cluster.job_client import JobClient, find_token

    client = JobClient(address, find_token(os.environ, Path.home()))
    return frozenset(Folder(job.output).url for job in client.jobs() if job.output)


def run(options: argparse.Namespace) -> int:
    from pipeline.page.serve import serve
    from pipeline.page.views.unfinished import is_begun

    outs = [Folder(out) for out in options.outs]
    if options.address is not None:
        check_address("--address", options.address)
    empty = [out for out in outs if not is_begun(out) and not out.exists(INDEX_FILE)]
    to_come = _outputs_of_jobs(options.address) if empty and options.address else frozenset()
    for out in empty:
        if out.url not in to_come:
            check_finished(out)
    return serve(outs, replace(page_options(options), cluster=options.address), as_json=options.json)
