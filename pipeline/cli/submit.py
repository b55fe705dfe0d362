"""Run a command as a job on a Ray cluster and follow its log.

  sluice submit run recipes/crawl.toml --set run.output=s3://bucket/out --address http://127.0.0.1:8265
  sluice submit train recipes/train.toml --address http://127.0.0.1:8265 --detach
  sluice submit mix run recipes/train.toml --address http://127.0.0.1:8265
  sluice submit verify s3://bucket/out --address http://127.0.0.1:8265

It accepts run, train, mix, scan, purge, report, verify and export; trace, lineage, explain, tune and
tokenizer read s3:// from this machine. Inputs and outputs must be URLs, or absolute paths that every node can
read. The job gets Sluice's code, the recipe and the files that the recipe names (block lists, models,
tokenizers). It also gets the AWS_*, AZURE_STORAGE_* and SLUICE_SECRET_* variables of this shell; its
description does not show them. The cluster's token comes from RAY_AUTH_TOKEN, the file RAY_AUTH_TOKEN_PATH,
or ~/.ray/auth_token.

The same submission attaches to the same job. After a failure or a stop it starts a new job that continues.
After success, run, train and mix only show the old job; scan, purge, report, verify and export run again.
Before it submits a data run it reads a sample of the inputs here and prints what the run will cost
(sluice plan; --no-price leaves it out).

Ctrl-C detaches and leaves the job running. The exit code is that of the command.

Options of submit may come anywhere before `--`; arguments after `--` belong to the command:
  sluice submit --address http://127.0.0.1:8265 -- verify s3://bucket/out --json
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from lineage.recipe import RecipeError
from lineage.secrets import redacted
from pipeline.cli.arguments import check_address
from pipeline.cli.printing import print_json
from pipeline.results.estimates import shown_line

if TYPE_CHECKING:
    from pipeline.cluster.job_client import ClusterJob, JobClient


def configure(parser: argparse.ArgumentParser) -> None:
    _add_options(parser)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND…", help="a command of sluice with its arguments"
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_address(parser)
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--follow", action="store_true", help="print the job's log until it ends (the default)")
    way.add_argument("--detach", action="store_true", help="start the job and return")
    parser.add_argument("--again", action="store_true", help="start the job again even if it has succeeded")
    parser.add_argument(
        "--project",
        choices=["ship", "image"],
        default="ship",
        help="the code to run: this checkout, shipped (ship, the default), or that of the image",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document on stdout; the log goes to stderr"
    )
    parser.add_argument(
        "--no-price",
        action="store_true",
        help="of a data run: do not read a sample and print the price first",
    )


def add_address(parser: argparse.ArgumentParser) -> None:
    """`--address`, for the commands that talk to a cluster."""
    parser.add_argument(
        "--address",
        metavar="URL",
        help="the URL of the cluster's dashboard, for example http://127.0.0.1:8265 (RAY_ADDRESS)",
    )


def connect(address: str | None) -> JobClient:
    """A client of the cluster at `address`, else at RAY_ADDRESS, with the token that this shell holds."""
    name, address = ("--address", address) if address else ("RAY_ADDRESS", os.environ.get("RAY_ADDRESS"))
    if not address:
        raise RecipeError(
            "--address is missing, and RAY_ADDRESS is not set: expected the URL of the dashboard, as"
            " http://127.0.0.1:8265"
        )
    check_address(name, address)
    from pipeline.cluster.job_client import JobClient, find_token

    return JobClient(address, find_token(os.environ, Path.home()))


def split_command(options: argparse.Namespace) -> list[str]:
    """Take the options of submit that stand behind COMMAND into `options`; the command that is left."""
    words = options.command
    cut = words.index("--") if "--" in words else len(words)
    behind = argparse.ArgumentParser(prog="sluice submit", add_help=False, allow_abbrev=False)
    _add_options(behind)
    _, command = behind.parse_known_args(words[:cut], options)
    return [*command, *words[cut + 1 :]]


def run(options: argparse.Namespace) -> int:
    from lineage.storage.folder import object_store_settings
    from pipeline.cli.commands import parse_command
    from pipeline.jobs.cluster_jobs import start
    from pipeline.jobs.submission import make_submission

    command = split_command(options)
    submission = make_submission(command, parse_command, ship_project=options.project == "ship")
    client = connect(options.address)
    job, was_there = start(
        client,
        submission,
        object_store_settings(),
        again=options.again,
        before=lambda: _print_price(options, command),
    )
    _say(_greeting(job, was_there))
    if options.detach and not job.ended:
        _say(f"Attach by the same call without --detach; or look:\n{next_calls(options.address, job.id)}")
    if not options.detach:
        try:
            job = _follow(client, job.id, sys.stderr if options.json else sys.stdout)
        except KeyboardInterrupt:
            calls = next_calls(options.address, job.id)
            _say(f"\ndetached: job {job.id} goes on. Attach by the same call again; or look:\n{calls}")
            return 130
        _say(f"job {job.id}: {job.status}. {job.message if job.status != 'SUCCEEDED' else ''}".rstrip())
    if options.json:
        print_json({**asdict(job), "attached": was_there})
    return 0 if options.detach and not job.ended else job.code


def _print_price(options: argparse.Namespace, command: Sequence[str]) -> None:
    """Say what a data run will cost, by a sample of its inputs, and keep that for its report. Where that fails, the
    job is submitted all the same."""
    from pipeline.cli.commands import parse_command
    from pipeline.phases.predicted import keep
    from pipeline.pricing.price import Prices, price, usual_cores
    from pipeline.recipe.load import load

    if options.no_price or command[0] != "run":
        return
    run_options = parse_command("run", command[1:])
    if run_options.from_output is not None or run_options.num_documents is not None:
        return
    _say("reading a sample of the inputs for the price (--no-price leaves it out)")
    try:
        recipe = load(run_options.recipe, run_options.overrides)
        prediction = price(recipe, Prices(cores=usual_cores(recipe)))
        keep(recipe, prediction)
    except (RecipeError, OSError) as error:
        _say(f"no price: {redacted(str(error))}")
        return
    for name in ("documents", "tokens", "processor_hours", "wall_hours", "output", "money"):
        _say(shown_line(name, prediction.estimates[name]))
    for note in prediction.notes:
        _say(note)


def next_calls(address: str | None, job_id: str) -> str:
    """The calls that show and stop a job, a line each; the address is left out where RAY_ADDRESS gives it."""
    begin = "  sluice jobs" if not address else f"  sluice jobs --address {shlex.quote(address)}"
    return f"{begin} --logs {shlex.quote(job_id)}\n{begin} --stop {shlex.quote(job_id)}"


def _greeting(job: ClusterJob, was_there: bool) -> str:
    if not was_there:
        return f"job {job.id}: submitted"
    again = "; --again runs it anew" if job.status == "SUCCEEDED" else ""
    return f"job {job.id}: there already, {job.status}{again}"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _follow(client: JobClient, job_id: str, stream: TextIO) -> ClusterJob:
    """Pass the job's log on to the stream; a terminal shows progress as a live line."""
    from pipeline.jobs.cluster_jobs import follow

    if not stream.isatty():
        return follow(client, job_id, partial(print, end="", file=stream, flush=True))
    from rich.console import Console

    from pipeline.jobs.live_log import LiveLog

    with LiveLog(Console(file=stream)) as log:
        return follow(client, job_id, log.write)
