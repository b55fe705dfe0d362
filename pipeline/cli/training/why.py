"""Replay a training step bit for bit and explain its loss.

  sluice train why RUN_OUTPUT --step 1200
  sluice train why RUN_OUTPUT --step 1200 --to why.html        a self-contained page

The replay starts at the checkpoint before the step and uses the layout of the run: on Ray if the run was on
Ray, otherwise with a process on this machine for each of its workers. It does not change the run. It prints the
loss of each row and document of the step, documents ranked by their loss above the usual loss of their source,
gradient norms by layer, and a verdict:
  data      the replay gives the recorded numbers, to the bit
  hardware  it gives other numbers although nothing else has changed: transient if a second replay agrees with
            the first, persistent if not; with train.record_losses = true, the ranks with differing rows are named
Exit code 1 if the verdict is hardware."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from lineage.json_record import finite_values
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, split
from pipeline.cli.arguments import add_json, add_run_output, count
from pipeline.cli.printing import print_json
from pipeline.terminal import visible

if TYPE_CHECKING:
    from trainer.evidence.observed import ReplayResult
    from trainer.evidence.replayed_step import ReplayedStep
    from trainer.evidence.why import WhyStep
    from trainer.provenance.setup import Hardware

_SHOWN: Final = 10


def configure(parser: argparse.ArgumentParser) -> None:
    add_run_output(parser)
    parser.add_argument("--step", type=count, required=True, metavar="T", help="the step, counted from 0")
    parser.add_argument("--to", metavar="WHY.html", help="write the page to this file")
    parser.add_argument(
        "--page",
        metavar="URL",
        help="the address printed by `sluice page OUT`, for links to documents",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from pipeline.cluster.session import what_starts
    from pipeline.phases.progress import ProgressReporter
    from trainer.evidence.replayed_step import step_to_replay

    if options.to is not None and not options.to.endswith(".html"):
        raise RecipeError(f"--to {options.to!r}: expected a name that ends in .html")
    asked = step_to_replay(Folder(options.run_output), options.step)
    reporter = ProgressReporter()
    since = "the first weights" if asked.checkpoint is None else f"checkpoint {asked.checkpoint.name}"
    first = 0 if asked.checkpoint is None else asked.checkpoint.step
    here = asked.recipe.ray.in_process or not asked.setup.on_ray
    num, address = asked.recipe.train.num_workers, asked.recipe.ray.address
    begin = f"in {num:,} process{'es' if num > 1 else ''} of this machine" if here else what_starts(address)
    reporter.say(f"Replay of steps {first} to {options.step} from {since}: {begin} …")

    found = _explained_here(asked) if here else _explained_on_ray(asked, address)
    if options.to is not None:
        from pipeline.report.training.why import render_why

        folder, name = split(options.to)
        folder.publish(name, render_why(found, options.page).encode())
    if options.json:
        print_json(why_json(found) | {"page": options.to})
    else:
        for line in why_lines(found):
            print(visible(line))
        if options.to is not None:
            print(f"Page: {visible(options.to)}")
    return 1 if found.verdict.cause == "hardware" else 0


def _explained_on_ray(asked: ReplayedStep, address: str) -> WhyStep:
    from pipeline.cluster.session import ray_session
    from pipeline.training.workers import check_workers
    from trainer.evidence.why import explain_step
    from trainer.launch import observe_on_ray
    from trainer.processes.placement import local_cpus

    def replay(asked: ReplayedStep) -> tuple[ReplayResult, Hardware]:
        return observe_on_ray(asked.recipe, asked.request, check_workers)

    with ray_session(address, asked.recipe.ray.num_cpus, training_cpus=local_cpus(asked.recipe.train)):
        return explain_step(asked, replay)


def _explained_here(asked: ReplayedStep) -> WhyStep:
    from trainer.evidence.why import explain_step
    from trainer.run.observe_here import observe_here

    def replay(asked: ReplayedStep) -> tuple[ReplayResult, Hardware]:
        return observe_here(asked.recipe, asked.request)

    return explain_step(asked, replay)


def why_json(found: WhyStep) -> dict[str, object]:
    """A step as plain values; what is not finite is null."""
    plain: dict[str, object] = finite_values(asdict(found))
    return plain


def why_lines(found: WhyStep) -> Iterator[str]:
    """The same for the terminal, the first documents and rows of it."""
    verdict = found.verdict
    skipped = "" if found.skipped is None else f", skipped ({found.skipped})"
    yield f"Step {found.step} of run {found.run!r} in {found.output}, attempt {found.attempt}{skipped}"
    yield f"  read {', '.join(found.read)}"
    yield f"  loss {_number(found.loss)}, recorded {_number(found.recorded_loss)}"
    yield from (f"  {damage}; the replay began before it" for damage in found.damaged)
    cause = verdict.cause if verdict.duration is None else f"{verdict.cause}, {verdict.duration}"
    yield f"Verdict: {cause}: {verdict.why}"
    yield f"Documents by what they add beyond their source's usual loss ({len(found.documents):,}):"
    for one in found.documents[:_SHOWN]:
        name = "purged, or of no lineage" if one.doc_id is None else f"{one.doc_id} {one.url or ''}".rstrip()
        yield (
            f"  {one.excess:+10.2f}  loss {one.loss:.4f} (usual {one.usual:.4f}), {one.num_labels:,} labels,"
            f" row {one.row}  {name}"
        )
    first = next((one for one in found.documents if one.doc_id is not None), None)
    if first is not None:
        yield f"  sluice trace {shlex.quote(first.out or '')} --doc {first.doc_id} has the first one's history"
    yield "Gradient norms by layer, before clipping:"
    yield "  " + ", ".join(f"{name} {norm:.4g}" for name, norm in found.layers.items())


def _number(value: float | None) -> str:
    return "not finite" if value is None or value - value != 0 else f"{value:.6f}"
