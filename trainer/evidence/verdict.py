"""Whether its data made a step what it is, or what computed it: a replay gives the recorded numbers again, or it
does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow.parquet as pq

from lineage.json_record import finite
from lineage.storage.folder import Folder
from trainer.evidence.observed import ObservedStep, ReplayResult
from trainer.evidence.replayed_step import ReplayedStep
from trainer.telemetry.step_report import StepReport

Cause = Literal["data", "hardware", "unknown"]
Duration = Literal["transient", "persistent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`cause`, and why. Of hardware: the first step that differs, the ranks that computed its differing rows
    (none where they cannot be told), and whether a second replay agrees with the first."""

    cause: Cause
    why: str
    first_step: int | None = None
    ranks: tuple[int, ...] = ()
    duration: Duration | None = None


def judge(
    asked: ReplayedStep,
    first: ReplayResult,
    second: ReplayResult | None,
    differing: int | None,
    changed: Sequence[str],
) -> Verdict:
    if differing is None:
        return Verdict(
            cause="data",
            why=f"the replay gives the recorded numbers of {len(first.steps):,} steps again, to the bit",
        )
    assert second is not None
    what = f"step {differing} gives other numbers than were recorded"
    again = _numbers(first) == _numbers(second)
    if changed and again:
        return Verdict(cause="unknown", why=f"{what}, and {'; '.join(changed)}", first_step=differing)
    ranks, how = _ranks(asked, first, differing)
    duration: Duration = "transient" if again else "persistent"
    said = {
        "transient": "a second replay agrees with the first: it computed wrongly then, and does so no more",
        "persistent": "a second replay disagrees with the first: it computes wrongly now",
    }[duration]
    return Verdict(
        cause="hardware", why=f"{what}; {said}; {how}", first_step=differing, ranks=ranks, duration=duration
    )


def first_differing(asked: ReplayedStep, seen: ReplayResult) -> int | None:
    """The first step whose numbers are not those that were recorded; None where all are."""
    for step in seen.steps:
        report = asked.recorded.get(step.step)
        if report is not None and step.skipped != "listed" and not _same(report, step):
            return step.step
    return None


def _same(report: StepReport, step: ObservedStep) -> bool:
    pairs = [(report.loss, step.loss), (report.gradient_norm, step.gradient_norm)]
    names = report.loss_by_source.keys() | step.losses_by_source.keys()
    pairs += [(report.loss_by_source.get(name), step.losses_by_source.get(name)) for name in names]
    # A report has null for what is not finite.
    return all(finite(was) == finite(now) for was, now in pairs)


def _numbers(seen: ReplayResult) -> list[tuple[object, ...]]:
    return [(step.step, repr(step.loss), repr(step.gradient_norm), repr(step.rows)) for step in seen.steps]


def _ranks(asked: ReplayedStep, seen: ReplayResult, step: int) -> tuple[tuple[int, ...], str]:
    """The ranks whose rows differ in a step, and how that is known."""
    recorded = dict(_recorded_rows(asked.output, asked.recorded[step].attempt, step))
    now = next(one for one in seen.steps if one.step == step).rows
    if not recorded:
        return (), "which rank did is not known: train.record_losses = true would tell"
    differing = {
        slice_
        for row, (slice_, loss) in recorded.items()
        if repr(loss) != repr((now[row].loss, now[row].num_labels))
    }
    mesh = asked.recipe.train.mesh
    slices = {slice_ for slice_, _ in recorded.values()}
    if not differing:
        return (
            (),
            "the losses of all rows are those recorded: it was in backward or in the exchange of gradients",
        )
    if differing == slices and len(slices) > 1:
        return (
            (),
            "the rows of all ranks differ, as where what is wrong is in weights that all use: no rank is"
            " named",
        )
    ranks = tuple(rank for rank in range(mesh.num_workers) if mesh.dp_rank(rank) in differing)
    return ranks, f"only the rows of rank {', '.join(map(str, ranks))} differ"


def _recorded_rows(
    output: Folder, attempt: int, step: int
) -> Iterator[tuple[int, tuple[int, tuple[float, int]]]]:
    """(row, (data parallel rank, loss)) of a step as `record_losses` kept them."""
    for name in output.names("batches"):
        file = name.rsplit("/", 1)[-1]
        if not file.startswith(f"batches-{attempt:05d}-"):
            continue
        _, _, rank, first, end = file.removesuffix(".parquet").split("-")
        if int(first) <= step < int(end):
            with output.open(name) as stream:
                table = pq.read_table(stream, filters=[("step", "==", step)])
            if "loss" in table.column_names:
                for row in table.select(["row", "loss", "num_labels"]).to_pylist():
                    if row["loss"] is not None:
                        yield row["row"], (int(rank), (row["loss"], row["num_labels"]))
