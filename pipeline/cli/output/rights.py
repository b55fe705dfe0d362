"""Find kept documents whose publishers deny training now, and did not when the pages were fetched.

  sluice rights OUT --robots robotstxt/                          later robots.txt files, as WARC files in a folder
  sluice rights OUT OUT2 --robots robotstxt/ --to plan.json      write the plan for a purge of each
  sluice rights OUT --robots robotstxt/ --forget                 with the price of removing them from the models
  sluice purge OUT --from plan.json --reason "robots.txt" --by you --apply

The WARC files hold responses for /robots.txt or /.well-known/tdmrep.json, such as the robotstxt files of a Common
Crawl month. Of several responses of a host the newest counts. Signals of a page's own response, which the run
recorded, still hold: a tdm-reservation header of 0 supersedes a later tdmrep.json.

A host that the files do not have is left as it is. The plan lists documents, hosts, signals and tokens. If it is
empty, the purge says that there is nothing to purge, and its exit code is 0 (docs/rights.md)."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING, Final

from lineage.index.output_index import check_outside
from pipeline.cli.arguments import add_json
from pipeline.cli.printing import print_json
from pipeline.terminal import counted, visible
from stages.rights.options import DENIABLE

if TYPE_CHECKING:
    from pipeline.inspect.rights import RightsChange

_MOST_HOSTS: Final = 20
"""Hosts that the terminal lists; --json has all."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("outs", nargs="+", metavar="OUT", help="outputs of the data pipeline")
    parser.add_argument(
        "--robots",
        nargs="+",
        required=True,
        metavar="WARC",
        help="WARC files of responses for robots.txt or tdmrep.json, or folders of them",
    )
    parser.add_argument(
        "--agents", nargs="+", default=[], metavar="TOKEN", help="product tokens (rights.agents of each OUT)"
    )
    parser.add_argument(
        "--signals",
        nargs="+",
        default=[],
        choices=DENIABLE,
        help="signals that count (rights.record of each OUT)",
    )
    parser.add_argument("--to", metavar="PLAN.json", help="write the documents for sluice purge --from")
    parser.add_argument(
        "--forget", action="store_true", help="tell what a replay of each run that read them would cost"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from pipeline.inspect.rights import check_plan_name, publish_plan, rights_changes

    if options.to is not None:
        check_outside("--to", options.to)
        check_plan_name(options.to)
    changes = rights_changes(
        options.outs, options.robots, agents=options.agents, signals=options.signals, done=_show_progress
    )
    if options.to is not None:
        publish_plan(changes, options.to)
    if options.json:
        print_json(changes.as_json(forget=options.forget) | {"plan": options.to})
        return 0
    print(
        f"{counted(changes.num_files, 'file')}: {counted(changes.num_responses, 'response')} of"
        f" {counted(changes.num_sites, 'site')}"
    )
    if changes.num_unreadable:
        print(f"{counted(changes.num_unreadable, 'stretch', 'stretches')} of the files could not be read")
    for change in changes.outs:
        _print(change, forget=options.forget)
    if options.to is not None:
        print(visible(f"plan: {options.to}"))
        for change in changes.outs if changes.documents else ():
            if change.documents:
                call = shlex.join(["sluice", "purge", change.out, "--from", options.to])
                print(visible(f'  {call} --reason "denied by robots.txt" --by you'))
    return 0


def _show_progress(num: int, of: int) -> None:
    if of > 1:
        end = "\n" if num == of or not sys.stderr.isatty() else "\r"
        print(f"read {num:,} of {of:,} files", end=end, file=sys.stderr, flush=True)


def _print(change: RightsChange, *, forget: bool) -> None:
    from pipeline.cli.output.purge import training_lines

    num_tokens = sum(each.num_tokens for each in change.documents)
    print(
        visible(
            f"{change.out}: {counted(change.num_kept, 'kept document')},"
            f" {change.num_compared:,} of sites in the files, {change.num_denied_before:,} of these denied before"
        )
    )
    print(f"denied now: {counted(len(change.documents), 'document')}, {counted(num_tokens, 'token')}")
    hosts = change.hosts
    for each in hosts[:_MOST_HOSTS]:
        print(
            visible(
                f"  {each.host}  {each.signal}  {counted(each.num_documents, 'document')},"
                f" {counted(each.num_tokens, 'token')}  ({each.value})"
            )
        )
    if len(hosts) > _MOST_HOSTS:
        print(f"  and {len(hosts) - _MOST_HOSTS:,} more; --json has all")
    if change.purge is None:
        return
    plan = change.purge.plan
    print(
        f"a purge takes {counted(plan.num_documents, 'document')} with their copies, and"
        f" {counted(plan.num_tokens, 'token')} in {counted(len(plan.shards), 'shard')}"
    )
    for line in training_lines(change.purge.training, prices=forget):
        print(visible(line))
