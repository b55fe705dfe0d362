"""Serve the lineage page of one or several outputs on loopback: documents, their history, runs and purges.

  sluice page OUT                                    prints an address; Ctrl-C ends it
  sluice page OUT OUT2 OUT3                          several outputs and their common documents; active runs too
  sluice page OUT --port 8400 --token-file page.token       the same address and token at every start
  sluice page OUT --address http://127.0.0.1:8265    show the jobs of a cluster, with progress; OUT may be the
                                                     output of a job that has not started writing
  sluice page OUT --read-only                        without purges
  sluice page OUT --public-url https://data.example.org/lineage/ --port 8400 --token-file FILE     behind a proxy

The printed address holds a token. Open it once; after that every link to the page works in this browser. A
browser without the token is asked for it. --token-file names a file that holds the token and that only its
owner can read; it is created if absent, and the path of the page depends on it alone.

Behind a proxy, the page stays on loopback. --public-url is the URL at the proxy, path included. The proxy must
forward that path unchanged and keep the Host header or send it as X-Forwarded-Host; X-Forwarded-Proto, if
sent, must be the scheme of the URL. Any other host is refused. The page keeps its state (basket, saved queries,
log of access to personal data) in $XDG_STATE_HOME/sluice/page or ~/.local/state/sluice/page, never in an
output."""

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
    parser.add_argument("outs", metavar="OUT", nargs="+", help="outputs of runs: folders or s3:// URLs")
    add_serving(parser)
    parser.add_argument(
        "--address",
        metavar="URL",
        help="the URL of a cluster's dashboard, for example http://127.0.0.1:8265, to show its jobs",
    )
    add_json(parser)


def add_serving(parser: argparse.ArgumentParser) -> None:
    """How the page is served."""
    parser.add_argument(
        "--port", type=_port, default=0, metavar="N", help="the port on loopback (any free port)"
    )
    parser.add_argument("--base", metavar="PATH", help="the URL path of all pages (a random path)")
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="the file with the token of the page, created if absent; token and path stay the same at every"
        " start",
    )
    parser.add_argument("--public-url", metavar="URL", help="the URL of the page at a proxy, path included")
    parser.add_argument("--read-only", action="store_true", help="disable purges")


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
