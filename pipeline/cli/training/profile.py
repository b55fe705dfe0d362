"""Analyse the traces of a training run: communication hidden behind computing, slow kernels, idle time.

  sluice train RECIPE --set train.profile=[10,12]         record steps 10 to 12 on every rank
  sluice train profile RUN_OUTPUT                          read these traces
  sluice train profile RUN_OUTPUT --to profile.html        a self-contained page
  sluice train profile RUN_OUTPUT --nsight A.sqlite --nsight B.sqlite

The traces are those of torch.profiler in RUN_OUTPUT/profile, one for each rank, of the newest attempt that has
any. They also open in Perfetto. Without one, exports of Nsight Systems in that folder are read; --nsight names
others (nsys profile --trace=cuda,nvtx …, then nsys export --type sqlite REPORT).

The device's time is divided: computing, exposed communication (no kernel computes beside it), copying, idle.
- Communication: for each collective the share that is hidden behind computing. Exposed seconds before the last
  rank arrives are waiting. The report names that rank: the rank is slow, not the network.
- Kernels: the ten with the most time. Roofline is the minimum time for their operations and bytes at the
  device's peaks, divided by the measured time (above 100%: data stayed in caches). It needs the operators' shapes,
  so exports of Nsight have none. Peaks come from the table of `sluice plan`, or from plan.measured on another
  device (sluice plan --measure).
- Idle time: the phase, and the host's activity. "the host launched the next kernel too late": compile,
  or larger micro-batches; "waited for the device": a .item() or a print in the step.
- Expected: the plan of the run's recipe on this device, if its peaks are known.

On a CPU the operators are the kernels and gloo's threads the network. A profiled step is slower than others,
on a CPU above all. Exit code 1 if there is no trace."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, split
from pipeline.cli.arguments import add_json, add_run_output, count
from pipeline.cli.errors import FailedError
from pipeline.cli.printing import console, print_json, titled_table
from pipeline.terminal import visible

if TYPE_CHECKING:
    from trainer.evidence.profiles.profile import Profile

_RANKS = 16
_GAPS = 10


def configure(parser: argparse.ArgumentParser) -> None:
    add_run_output(parser)
    parser.add_argument("--attempt", type=count, metavar="N", help="the attempt (the newest with a trace)")
    parser.add_argument(
        "--nsight", action="append", default=[], metavar="FILE.sqlite",
        help="an export of Nsight Systems; may be given more than once, one for each node",
    )  # fmt: skip
    parser.add_argument("--to", metavar="PAGE.html", help="write the page to this file")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from pipeline.training.profiled import read_profile
    from trainer.evidence.profiles.rank_trace import TraceError

    if options.to is not None and not options.to.endswith(".html"):
        raise RecipeError(f"--to {options.to!r}: expected a name that ends in .html")
    try:
        found = read_profile(Folder(options.run_output), options.attempt, options.nsight)
    except TraceError as error:
        raise FailedError(str(error)) from error
    if options.to is not None:
        from pipeline.report.training.profile import render_profile

        folder, name = split(options.to)
        folder.publish(name, render_profile(found).encode())
    if options.json:
        print_json(profile_json(found) | {"page": options.to})
        return 0
    _show(found)
    if options.to is not None:
        print(f"Page: {visible(options.to)}")
    return 0


def profile_json(found: Profile) -> dict[str, object]:
    """A profile as plain values: seconds are of all traced steps, those under `expected` of one."""
    plain = asdict(found)
    for row, one in zip(plain["collectives"], found.collectives, strict=True):
        row["hidden_share"] = one.hidden_share
    for rank in plain["ranks"]:
        rank["waited_for"] = {str(other): seconds for other, seconds in rank["waited_for"].items()}
    return plain | {"hidden_share": found.hidden_share}


def _show(found: Profile) -> None:
    from pipeline.report.training.profile import heading

    out = console()
    out.print(visible(heading(found)))
    for table in _tables(found):
        out.print(table)
    for note in found.notes:
        out.print(visible(note), markup=False)


def _tables(found: Profile) -> Iterator[Any]:
    from pipeline.report.training import profile as words

    table = titled_table(
        words.span(found), "seconds, the mean of ranks", "measured", words.expected_head(found)
    )
    for row in words.time_rows(found):
        table.add_row(*row)
    yield table
    table = titled_table("Communication by collective", *words.COLLECTIVE_HEAD)
    for row in words.collective_rows(found):
        table.add_row(*row)
    yield table
    if found.expected is not None and found.expected.traffic:
        table = titled_table("Communication expected of a GPU in a step", *words.TRAFFIC_HEAD)
        for row in words.traffic_rows(found):
            table.add_row(*row)
        yield table
    table = titled_table("The kernels that took longest", *words.KERNEL_HEAD)
    for row in words.kernel_rows(found):
        table.add_row(visible(row[0]), *row[1:])
    yield table
    table = titled_table("Idle time, all ranks together", *words.GAP_HEAD)
    for row in words.gap_rows(found, _GAPS):
        table.add_row(*map(visible, row))
    yield table
    table = titled_table("Ranks", *words.RANK_HEAD)
    for row in words.rank_rows(found, _RANKS):
        table.add_row(*row)
    yield table
