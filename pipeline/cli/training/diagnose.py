"""Merge the recorders of all ranks of a training run: which rank is missing, different or slow.

  sluice train diagnose OUTPUT
  sluice train diagnose OUTPUT --to diagnosis.html --timeline timeline.json.gz

Each process records its last collectives and messages and the times of its last steps (train.recorder). It
publishes them with the stacks of its threads when its watchdog fires, on SIGUSR2, on failure and at its end.

The command reports ranks that never entered a collective, and their position in the code; ranks that entered
a different collective or with a different size; slow ranks, by phase and by how much; own work and waiting
time of each rank. The page has a heat map of own time, rank × step; the timeline opens in Perfetto. On the
machine that runs the training, unpublished records are read too. Exit code 1 if a rank is missing from a
collective or entered a different one."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, split
from pipeline.cli.arguments import add_json, count
from pipeline.cli.errors import FailedError
from pipeline.cli.printing import print_json
from pipeline.terminal import visible

if TYPE_CHECKING:
    from trainer.recorder.diagnosis.collectives import Absence, Mismatch
    from trainer.recorder.diagnosis.diagnose import Diagnosis
    from trainer.recorder.ring import Operation


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_output", metavar="OUTPUT", help="the output of a training run (train.output)")
    parser.add_argument("--attempt", type=count, metavar="N", help="the attempt (the newest)")
    parser.add_argument(
        "--to", metavar="DIAGNOSIS.html", help="write the page with the heat map to this file"
    )
    parser.add_argument("--timeline", metavar="FILE.json.gz", help="write a Perfetto trace to this file")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from trainer.attempts import attempts
    from trainer.provenance.setup import read_recipe
    from trainer.recorder.diagnosis.diagnose import diagnose
    from trainer.recorder.diagnosis.reading import NoRecorderError
    from trainer.recorder.diagnosis.timeline import timeline

    for name, value, ending in (("--to", options.to, ".html"), ("--timeline", options.timeline, ".json.gz")):
        if value is not None and not value.endswith(ending):
            raise RecipeError(f"{name} {value!r}: expected a name that ends in {ending}")
    output = Folder(options.run_output)
    begun = attempts(output)
    recipe = None if not begun else read_recipe(output, begun[-1].number)
    try:
        found = diagnose(output, recipe, options.attempt)
    except NoRecorderError as error:
        raise FailedError(str(error)) from error
    if options.to is not None:
        from pipeline.report.training.diagnosis import render_diagnosis

        folder, name = split(options.to)
        folder.publish(name, render_diagnosis(found).encode())
    if options.timeline is not None:
        folder, name = split(options.timeline)
        folder.publish(name, timeline(found.recorders.rings))
    if options.json:
        print_json(diagnosis_json(found) | {"page": options.to, "timeline": options.timeline})
    else:
        from trainer.recorder.diagnosis.words import diagnosis_lines

        for line in diagnosis_lines(found):
            print(visible(line))
        for what, path in (("Page", options.to), ("Timeline", options.timeline)):
            if path is not None:
                print(f"{what}: {visible(path)}")
    return 1 if found.is_stopped else 0


def diagnosis_json(found: Diagnosis) -> dict[str, object]:
    """A diagnosis as plain values."""
    from trainer.telemetry.step_report import straggler_row

    return {
        "output": found.output,
        "attempt": found.recorders.attempt,
        "world_size": found.world_size,
        "silent": list(found.silent),
        "unreadable": dict(found.recorders.unreadable),
        "absences": [_absence(each) for each in found.absences],
        "mismatches": [_mismatch(each) for each in found.mismatches],
        "stragglers": [straggler_row(each) for each in found.stragglers],
        "ranks": [
            {"rank": each.rank, "node": each.node, "own": dict(each.own), "waiting": dict(each.waiting)}
            for each in found.times
        ],
        "stacks": {
            rank: {"why": stack.why, "frames": [asdict(frame) for frame in stack.frames]}
            for rank, stack in found.stacks.items()
        },
        "errors": {str(rank): why for rank, why in found.errors.items()},
    }


def _absence(absence: Absence) -> dict[str, object]:
    return {
        "operation": _operation(absence.operation),
        "waiting": list(absence.waiting),
        "absent": list(absence.absent),
        "skipped": {rank: _operation(each) for rank, each in absence.skipped.items()},
        "is_cause": absence.is_cause,
    }


def _mismatch(mismatch: Mismatch) -> dict[str, object]:
    return {
        "usual": _operation(mismatch.usual),
        "ranks": list(mismatch.ranks),
        "others": {rank: _operation(each) for rank, each in mismatch.others.items()},
        "skipped": list(mismatch.skipped),
    }


def _operation(operation: Operation) -> dict[str, object]:
    site = operation.site
    return {
        "name": site.name,
        "group": site.group,
        "number": operation.group_number,
        "step": operation.step,
        "phase": site.phase,
        "bytes": None if operation.size < 0 else operation.size,
        "peer": None if operation.peer < 0 else operation.peer,
        "file": site.file,
        "line": site.line,
        "function": site.function,
    }
