"""Jobs on a Ray cluster: list them, read a log, stop one.

  sluice jobs --address http://127.0.0.1:8265
  sluice jobs --address http://127.0.0.1:8265 --logs sluice-run-0123456789ab
  sluice jobs --address http://127.0.0.1:8265 --stop sluice-run-0123456789ab

The default address is RAY_ADDRESS. A stopped run loses nothing: the same submission continues it."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import timedelta

from rich.table import Table
from rich.text import Text

from pipeline.cli.arguments import add_json
from pipeline.cli.printing import console, print_json
from pipeline.cli.submit import add_address, connect
from pipeline.terminal import visible


def configure(parser: argparse.ArgumentParser) -> None:
    add_address(parser)
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--logs", metavar="ID", help="print the log of this job so far")
    way.add_argument("--stop", metavar="ID", help="stop this job and wait until it has ended")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from pipeline.jobs.cluster_jobs import stop

    client = connect(options.address)
    if options.logs:
        logs = client.logs(options.logs)
        if options.json:
            print_json({"id": options.logs, "logs": logs})
        else:
            print(logs, end="")
        return 0
    if options.stop:
        job = stop(client, options.stop)
        if options.json:
            print_json(asdict(job))
        else:
            print(f"job {job.id}: {job.status}")
        return 0
    jobs = client.jobs()
    if options.json:
        print_json([asdict(job) for job in jobs])
        return 0
    table = Table("job", "status", "started (UTC)", "took", "output", "command", box=None)
    for job in jobs:
        took = "" if job.seconds is None else str(timedelta(seconds=round(job.seconds)))
        words = (job.status, job.started_at or "", took, job.output or "", job.command)
        table.add_row(job.id, *(Text(visible(word)) for word in words))
    console().print(table)
    return 0
