"""The layouts that `sluice plan --search` found, as one JSON object and as a page."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

from pipeline.cli.printing import console
from trainer.planning.throughput import EVEN

if TYPE_CHECKING:
    from trainer.planning.search import Candidate, RefusedLayout, SearchResult
    from trainer.recipe_tables.parallelism import PipelineTable

_AXES = ("tp", "cp", "ep", "pp")
_EXPLAINED = 10
"""How many of the first layouts the page compares with the next."""


def as_json(found: SearchResult) -> dict[str, object]:
    """The search as one object: every layout that was refused too."""
    return {
        "candidates": found.num_candidates,
        "fitting": found.num_fitting,
        "seconds": found.seconds,
        "layouts": [_candidate_json(candidate) for candidate in found.ranked],
        "own": _candidate_json(found.own) if found.own else None,
        "own_refused": found.own_refused,
        "by_axis": {
            axis: {str(value): _candidate_json(candidate) for value, candidate in by_value.items()}
            for axis, by_value in found.by_axis.items()
        },
        "refused": [_refused_json(refused) for refused in found.refused],
    }


def _candidate_json(candidate: Candidate) -> dict[str, object]:
    layout = candidate.layout
    return {
        **dataclasses.asdict(layout.mesh),
        "zero": layout.zero,
        "micro_batch": layout.micro_batch,
        "micro_batches": layout.num_micro_batches,
        "activation_checkpointing": layout.recompute,
        "gather_again": layout.makes_again,
        "pipeline": dataclasses.asdict(layout.pipeline) if layout.mesh.pp > 1 else None,
        "memory": candidate.memory.total,
        **dataclasses.asdict(candidate.throughput),
        "overrides": overrides(candidate),
    }


def _refused_json(refused: RefusedLayout) -> dict[str, object]:
    choice = refused.choice
    made: dict[str, object] = {"pp": choice.pp, "cp": choice.cp, "tp": choice.tp, "dp": choice.dp}
    later = {
        "ep": choice.ep,
        "micro_batch": choice.micro_batch,
        "schedule": choice.pipeline.schedule if choice.pipeline and choice.pp > 1 else None,
        "virtual_stages": choice.pipeline.num_virtual if choice.pipeline and choice.pp > 1 else None,
        "activation_checkpointing": choice.recompute,
        "gather_again": choice.gather_again,
        "zero": refused.zero,
        "dp_shard": refused.dp_shard,
    }
    made |= {name: value for name, value in later.items() if value is not None}
    return {**made, "reason": refused.reason, "text": refused.text, "excess_bytes": refused.excess_bytes}


def overrides(candidate: Candidate) -> list[str]:
    """The layout as `--set` takes it."""
    layout, mesh = candidate.layout, candidate.layout.mesh
    given = [f"train.parallel.{name}={size}" for name, size in dataclasses.asdict(mesh).items()]
    given += [
        f"train.zero={layout.zero}",
        f"train.micro_batch={layout.micro_batch}",
        f"train.activation_checkpointing={layout.recompute}",
        f"train.gather_again={str(layout.gather_again).lower()}",
        f"train.overlap.async_tp={str(layout.async_tp).lower()}",
    ]
    if mesh.pp > 1:
        table: PipelineTable = layout.pipeline
        given += [
            f"train.pipeline.{name}={value}"
            for name, value in dataclasses.asdict(table).items()
            if value is not None
        ]
    return given


def why(one: Candidate, other: Candidate) -> str:
    """What a layout saves beside the next: the part of a step that differs most, or what decides between
    equals."""
    parts = [
        {
            "less to compute": candidate.throughput.compute_seconds,
            "less communication that shows": candidate.throughput.exposed_seconds,
            "a shorter update": candidate.throughput.update_seconds,
            "a smaller bubble": candidate.throughput.bubble_seconds,
        }
        for candidate in (one, other)
    ]
    slower = other.throughput.step_seconds / one.throughput.step_seconds - 1
    name, saved = max(
        ((name, parts[1][name] - parts[0][name]) for name in parts[0]), key=lambda part: part[1]
    )
    if slower < EVEN or saved <= 0:
        return f"as fast to {EVEN:.1%}; fewer axes, plainer schedule or less memory"
    return f"{slower:.1%} faster: {name} ({saved:,.3g} s)"


def show(found: SearchResult) -> None:
    """The page: the fastest, what each axis costs, and why the others were refused."""
    out = console()
    out.print(
        f"{found.num_candidates:,} layouts looked at in {found.seconds:,.1f} s, {found.num_fitting:,} fit.\n",
        markup=False,
    )
    if not found.ranked:
        out.print("No layout fits.\n")
    else:
        out.print(_ranking(found))
        for number, (one, other) in enumerate(itertools.pairwise(found.ranked[: _EXPLAINED + 1]), start=1):
            out.print(f"{number} before {number + 1}: {why(one, other)}", markup=False)
        out.print()
        out.print("The first as a recipe takes it:", markup=False)
        given = " ".join(f"--set {given}" for given in overrides(found.ranked[0]))
        out.print(f"  {given}\n", markup=False, soft_wrap=True)  # a command that is wrapped cannot be copied
        out.print(_axes(found))
    if found.own is None:
        out.print(f"The recipe's own layout cannot be planned: {found.own_refused}\n", markup=False)
    out.print(_reasons(found))


def _columns(title: str, *columns: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < 2 else "right", no_wrap=index > 1)
    return table


def _cells(candidate: Candidate) -> tuple[str, ...]:
    layout, mesh = candidate.layout, candidate.layout.mesh
    sizes = " × ".join(f"{name} {size}" for name, size in dataclasses.asdict(mesh).items() if size > 1)
    how = f"zero {layout.zero}, {layout.recompute}{', gather again' if layout.makes_again else ''}"
    if mesh.pp > 1:
        how += f", {layout.pipeline.schedule}"
        how += f" × {layout.pipeline.num_virtual}" if layout.pipeline.num_virtual > 1 else ""
    return (
        sizes or "one process",
        how,
        f"{layout.num_micro_batches}×{layout.micro_batch}",
        f"{candidate.memory.total / 1e9:,.1f}",
        f"{candidate.throughput.bubble:.1%}",
        f"{candidate.throughput.step_seconds:,.4g}",
        f"{candidate.throughput.mfu:.1%}",
    )


def _ranking(found: SearchResult) -> Any:
    table = _columns("Fastest layouts", "mesh", "how", "micro", "GB", "bubble", "seconds", "MFU")
    for candidate in found.ranked:
        table.add_row(*_cells(candidate))
    if found.own is not None:
        table.add_section()
        mesh, *others = _cells(found.own)
        table.add_row(f"recipe: {mesh}", *others)
    return table


def _axes(found: SearchResult) -> Any:
    best = found.ranked[0].throughput.step_seconds
    table = _columns(
        "The fastest with each size of one axis", "axis", "mesh", "GB", "seconds", "to the fastest"
    )
    for axis in _AXES:
        if len(found.by_axis[axis]) < 2:
            continue
        for value, candidate in found.by_axis[axis].items():
            seconds = candidate.throughput.step_seconds
            mesh, *_ = _cells(candidate)
            table.add_row(
                f"{axis} {value}",
                mesh,
                f"{candidate.memory.total / 1e9:,.1f}",
                f"{seconds:,.4g}",
                f"{seconds / best:.2f}",
            )
        table.add_section()
    return table


def _reasons(found: SearchResult) -> Any:
    table = _columns("Refused", "reason", "the nearest to fit, or the first", "layouts")
    counts = Counter(refused.reason for refused in found.refused)
    for reason, number in counts.most_common():
        nearest = min(
            (refused for refused in found.refused if refused.reason == reason),
            key=lambda refused: refused.excess_bytes,
        )
        choice = nearest.choice
        sizes = f"pp {choice.pp} × cp {choice.cp} × tp {choice.tp} × dp {choice.dp}"
        table.add_row(reason, f"{sizes}: {nearest.text}", f"{number:,}")
    return table
