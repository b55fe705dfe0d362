"""The plan of a training recipe: what `sluice plan` does for one."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.cli.arguments import count
from pipeline.cli.printing import console, print_json, titled_table
from pipeline.cli.training import bounds as bounds_page
from pipeline.cli.training import fleet as fleet_page
from pipeline.cli.training import layouts
from pipeline.phases.progress import ProgressReporter
from pipeline.terminal import visible
from trainer.planning.counts import (
    flops_per_token,
    num_active_parameters,
    num_embedding_parameters,
    num_parameters,
)

if TYPE_CHECKING:
    from rich.table import Table

    from trainer.planning.layout import PlannedLayout
    from trainer.planning.plan import TrainingPlan


_MEASURED: Final = {
    "data": "no-data", "output": "no-output", "model": "125M", "seq_len": 512, "global_batch": 1, "steps": 1,
}  # fmt: skip
"""What is measured where no recipe says which model a plan is for."""


_LAYOUTS: Final = 20

_LEAST_GPU_HOURS: Final = 0.05
"""Less is shown as 0.0."""


def configure(parser: argparse._ArgumentGroup) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--roofline", action="store_true", help="bounds of products, experts, tokens and reading"
    )
    what.add_argument(
        "--search",
        action="store_true",
        help="rank all layouts for this number of processes, and count the rejected ones by reason",
    )
    what.add_argument(
        "--simulate",
        action="store_true",
        help="simulate failures of the fleet: goodput, worthwhile number of spares, storage",
    )
    what.add_argument(
        "--measure",
        action="store_true",
        help="time the model's kernels, a copy and a collective on this device, for plan.measured",
    )
    parser.add_argument("--to", type=Path, metavar="FILE", help="the file that --measure writes")
    parser.add_argument(
        "--limit",
        type=count,
        default=_LAYOUTS,
        metavar="N",
        help="number of layouts that --search ranks (20)",
    )


def given(options: argparse.Namespace) -> str | None:
    """The first of these options that a call has."""
    named = ("roofline", "search", "simulate", "measure", "to")
    found = next((f"--{name}" for name in named if getattr(options, name)), None)
    return found or ("--limit" if options.limit != _LAYOUTS else None)


def run(options: argparse.Namespace) -> int:
    from lineage.recipe import RecipeError, parse_table
    from trainer.options import TrainRecipe, load_train_recipe
    from trainer.planning.plan import plan_training

    if options.limit < 1:
        raise RecipeError(f"--limit {options.limit}: expected at least 1")
    if options.recipe is None and not options.measure:
        raise RecipeError("a training recipe is missing, as in sluice plan recipes/train.toml")
    recipe = (
        parse_table(TrainRecipe, {"run": {"name": "measured"}, "train": _MEASURED})
        if options.recipe is None
        else load_train_recipe(options.recipe, options.overrides)
    )
    if options.search:
        from trainer.planning.search import search

        found = search(recipe, options.limit)
        if options.json:
            print_json(layouts.as_json(found))
        else:
            layouts.show(found)
        return 0 if found.ranked else 1
    if options.measure != (options.to is not None):
        raise RecipeError("--measure and --to FILE: expected both, or neither")
    if options.measure:
        if not options.to.parent.is_dir():
            raise RecipeError(
                f"--to {options.to}: there is no folder {options.to.parent}; expected one to write into"
            )
        from trainer.run.measure import measure

        with ProgressReporter().waiting("timing this device's products, layers and links"):
            measured = measure(recipe)
        options.to.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
        console().print(
            f"Measured: {options.to}; plans read it with --set plan.measured={options.to}", markup=False
        )
        return 0
    if options.roofline:
        from trainer.planning.roofline import roofline

        bounds = roofline(recipe)
        if options.json:
            print_json(bounds_page.as_json(bounds))
        else:
            bounds_page.show(bounds)
        return 0
    if options.simulate:
        from trainer.planning.fleet.simulation import simulate_fleet

        fleet = simulate_fleet(recipe)
        if options.json:
            print_json(fleet_page.as_json(fleet))
        else:
            fleet_page.show(fleet)
        return 0
    plan = plan_training(recipe)
    if options.json:
        print_json(as_json(plan))
    else:
        _print(plan)
    return 0


def as_json(plan: TrainingPlan) -> dict[str, object]:
    """The plan as one object; bytes, seconds, and shares of 1."""
    layout, config = plan.layout, plan.layout.config
    return {
        "run": plan.run,
        "model": {
            "name": plan.model,
            "parameters": num_parameters(layout.config),
            "active_parameters": num_active_parameters(layout.config),
            "experts": dataclasses.asdict(layout.config.experts) if layout.config.experts else None,
            "embedding_parameters": num_embedding_parameters(config),
            "vocabulary": dataclasses.asdict(plan.vocabulary),
            "flops_per_token": flops_per_token(layout.config, layout.seq_len),
        },
        "layout": {
            **dataclasses.asdict(layout.mesh),
            "workers": layout.mesh.num_workers,
            "zero": layout.zero,
            "schedule": layout.pipeline.schedule if layout.mesh.pp > 1 else None,
            "virtual_stages": layout.pipeline.num_virtual if layout.mesh.pp > 1 else None,
            "stage_layers": [part.num_layers for part in layout.split.stages],
            "context": dataclasses.asdict(layout.context) if layout.mesh.cp > 1 else None,
            "float8": layout.float8,
            "activation_checkpointing": layout.recompute,
            "gather_again": layout.makes_again,
            "compute_bytes": layout.compute_bytes,
            "seq_len": layout.seq_len,
            "global_batch": layout.global_batch,
            "micro_batch": layout.micro_batch,
            "micro_batches": layout.num_micro_batches,
        },
        "gpu": dataclasses.asdict(plan.machine.gpu),
        "memory": {
            **dataclasses.asdict(plan.memory),
            "total": plan.memory.total,
            "usable": plan.machine.usable_bytes,
            "fits": plan.fits,
        },
        "communication": [dataclasses.asdict(kind) for kind in plan.traffic],
        "throughput": {**dataclasses.asdict(plan.throughput), "kernels": plan.machine.origin},
        "checkpoint": dataclasses.asdict(plan.checkpoints),
        "budget": dataclasses.asdict(plan.budget),
        "notes": list(plan.notes),
    }


def _print(plan: TrainingPlan) -> None:
    from rich.markup import escape

    out = console()
    layout, config = plan.layout, plan.layout.config
    sizes = " × ".join(f"{name} {size}" for name, size in dataclasses.asdict(layout.mesh).items() if size > 1)
    out.print(
        f"[bold]{escape(visible(plan.run))}[/]: {escape(plan.model)}, {_parameters(layout)}, vocabulary"
        f" {config.vocab_size:,} ({escape(plan.vocabulary.origin)})"
    )
    out.print(
        f"{layout.mesh.num_workers:,} × {plan.machine.gpu.name} ({sizes or 'one process'}), zero {layout.zero},"
        f" {layout.global_batch:,} × {layout.seq_len:,} tokens a step, {layout.num_micro_batches}"
        f" micro-batch{'es' * (layout.num_micro_batches > 1)} of {layout.micro_batch} a rank\n"
    )
    if layout.mesh.pp > 1:
        out.print(
            f"schedule {layout.pipeline.schedule}, {layout.pipeline.num_virtual} stages a rank, layers of"
            f" each stage {_counted([part.num_layers for part in layout.split.stages])}\n",
            markup=False,
        )
    for table in (
        _memory_table(plan),
        *([_traffic_table(plan)] if plan.traffic else ()),
        _step_table(plan),
        _checkpoint_table(plan),
        _budget_table(plan),
    ):
        out.print(table)
    for note in plan.notes:
        out.print(f"Note: {note}", markup=False)


def _parameters(layout: PlannedLayout) -> str:
    config = layout.config
    text = f"{num_parameters(config) / 1e9:,.3f} B parameters"
    return (
        f"{text} ({num_active_parameters(config) / 1e9:,.3f} B of them a token)" if config.experts else text
    )


def _counted(numbers: Sequence[int]) -> str:
    """A list of numbers with equal neighbours counted, as `7, 14 × 8, 7`."""
    runs = [(number, len(list(run))) for number, run in itertools.groupby(numbers)]
    return ", ".join(f"{times} × {number}" if times > 1 else str(number) for number, times in runs)


def _memory_table(plan: TrainingPlan) -> Table:
    memory, room = plan.memory, plan.machine.gpu.memory_bytes
    table = titled_table("Memory of the fullest GPU", "bucket", "GB", "share")
    for name in ("parameters", "gradients", "optimizer_states", "activations"):
        size = getattr(memory, name)
        table.add_row(name.replace("_", " "), f"{size / 1e9:,.2f}", f"{size / room:.1%}")
    verdict = "fits" if plan.fits else "[bold red]does not fit[/]"
    table.add_row(
        f"[bold]total[/] of {plan.machine.usable_bytes / 1e9:,.1f} GB beside the headroom: {verdict}",
        f"{memory.total / 1e9:,.2f}",
        f"{memory.total / room:.1%}",
    )
    return table


def _traffic_table(plan: TrainingPlan) -> Table:
    table = titled_table(
        "Communication of a GPU in a step",
        "axis",
        "what",
        "GPUs",
        "link",
        "Gb/s of it",
        "GB a step",
        "seconds a step",
    )
    for kind in plan.traffic:
        table.add_row(
            kind.axis,
            kind.what,
            f"{kind.num_gpus:,}",
            kind.link,
            f"{kind.gbps:,.0f}",
            f"{kind.num_bytes / 1e9:,.3f}",
            f"{kind.seconds:,.4f}",
        )
    return table


def _step_table(plan: TrainingPlan) -> Table:
    speed = plan.throughput
    table = titled_table("A step")
    table.add_row("time", f"{speed.step_seconds:,.4f} s")
    table.add_row("computing", f"{speed.compute_seconds:,.4f} s")
    if plan.traffic:
        table.add_row("communication not hidden", f"{speed.exposed_seconds:,.4f} s")
    table.add_row("the optimizer's update", f"{speed.update_seconds:,.4f} s")
    if speed.bubble:
        table.add_row("pipeline bubble", f"{speed.bubble:.1%}")
    if speed.imbalance > 0.01:
        keys = "train.pipeline.first_stage_less_layers, last_stage_less_layers"
        table.add_row("stages of unequal work", f"{speed.imbalance:.1%} ({keys})")
    table.add_row("speed of kernels", plan.machine.origin)
    table.add_row("MFU, HFU", f"{speed.mfu:.1%}, {speed.hfu:.1%}")
    table.add_row(
        "tokens a second, and of a GPU",
        f"{speed.tokens_per_second:,.0f}, {speed.tokens_per_second_per_gpu:,.0f}",
    )
    return table


def _checkpoint_table(plan: TrainingPlan) -> Table:
    saved = plan.checkpoints
    table = titled_table("Checkpoints")
    table.add_row("size, time to save", f"{saved.num_bytes / 1e9:,.2f} GB, {saved.save_seconds:,.1f} s")
    for name, seconds, steps in (
        ("Young", saved.young_seconds, saved.young_steps),
        ("availability", saved.availability_seconds, saved.availability_steps),
        ("this recipe", saved.every_seconds, saved.every_steps),
    ):
        beyond = " (the run is shorter)" if steps > plan.budget.steps else ""
        table.add_row(f"every ({name})", f"{_span(seconds)} = {steps:,} steps{beyond}")
    if saved.overhead > 1:
        table.add_row("saving", f"takes {saved.overhead:,.0f} times as long as the steps: save less often")
    else:
        share = f"{saved.overhead:.2%}, {saved.restart_overhead:.2%}"
        table.add_row("saving and lost steps, restarts", share)
    return table


def _span(seconds: float) -> str:
    """A stretch of time in the unit that people would use."""
    for size, unit, most in ((1e-3, "ms", 1000), (1, "s", 90), (60, "min", 90), (3600, "h", 48)):
        if seconds < size * most:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds / 86_400:,.1f} days"


def _budget_table(plan: TrainingPlan) -> Table:
    from rich.markup import escape

    budget = plan.budget
    table = titled_table("The run")
    table.add_row("steps, tokens", f"{budget.steps:,}, {budget.num_tokens:,}")
    for source, epochs in (budget.epochs or {}).items():
        table.add_row(f"epochs of {escape(source)}", f"{epochs:,.2f}")
    table.add_row("operations", f"{budget.num_flops:.3g}")
    days = (budget.days, budget.ideal_days)
    table.add_row("time, without interruptions", ", ".join(_span(one * 86_400) for one in days))
    if budget.gpu_hours >= _LEAST_GPU_HOURS:
        table.add_row("GPU hours, cost", f"{budget.gpu_hours:,.1f}, {budget.cost:,.2f}")
    return table
