"""Evaluations of a run while it trains, in whatever layout: `[[train.eval]]`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.delta import StoreError
from trainer.attempts import attempts
from trainer.checkpoint.store import complete_checkpoints
from trainer.evaluation.packing import PackedRows, add_losses, pack
from trainer.evaluation.prepared import Prepared, read_prepared
from trainer.evaluation.result import EvaluationResult, Seen, result_of
from trainer.evaluation.scanned import ScannedItems, read_scanned, seen_with
from trainer.evaluation.scores import nats_of
from trainer.model.experts import ExpertLayer
from trainer.options import TrainRecipe
from trainer.parallel.mesh import ParallelModel
from trainer.processes.heard import by_first_rank
from trainer.recipe_tables.evaluation import EvalTable
from trainer.recovery.read_items import read_items
from trainer.run.parts import Run
from trainer.run.step import StepContext


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvaluation:
    """An evaluation of a run. `scanned`: where the run's data holds its items; None where it was not scanned."""

    table: EvalTable
    prepared: Prepared
    packed: PackedRows
    scanned: ScannedItems | None


def open_evaluations(
    recipe: TrainRecipe, tokenizer: str, control: dist.ProcessGroup
) -> tuple[RunEvaluation, ...]:
    """The evaluations that the recipe asks for, as they were prepared for it. `tokenizer`: the hash of the data's.
    Collective; RecipeError where one is not prepared, or for other keys or another tokenizer."""
    if not recipe.train.eval:
        return ()
    found = by_first_rank(partial(_read, recipe, tokenizer), control)
    return tuple(
        RunEvaluation(
            table=table,
            prepared=prepared,
            packed=pack(prepared.requests, recipe.train.seq_len),
            scanned=scanned,
        )
        for table, (prepared, scanned) in zip(recipe.train.eval, found, strict=True)
    )


def _read(recipe: TrainRecipe, tokenizer: str) -> list[tuple[Prepared, ScannedItems | None]]:
    output, found = Folder(recipe.train.output), []
    for table in recipe.train.eval:
        prepared = read_prepared(output, table.name)
        about = prepared.about
        asked = {
            "files": (about.files, table.files),
            "kind": (about.kind, about.kind if table.kind == "auto" else table.kind),
            "shots": (about.shots, table.shots),
            "shots_from": (about.shots_from, table.shots_from),
            "seq_len": (about.seq_len, recipe.train.seq_len),
            "the tokenizer's hash": (about.tokenizer, tokenizer),
        }
        differing = next((name for name, (was, now) in asked.items() if was != now), None)
        if differing is not None:
            was, now = asked[differing]
            raise RecipeError(
                f"train.eval: {table.name!r} was prepared with {differing} = {was!r}, and this run has {now!r}:"
                " `sluice train RECIPE --prepare` prepares it again, which `sluice train` does by itself",
                "train.eval",
            )
        scanned = read_scanned(output, about.texts) if table.scan else None
        found.append((prepared, None if scanned is None else _with_unscanned(scanned, recipe)))
    return found


def _with_unscanned(scanned: ScannedItems, recipe: TrainRecipe) -> ScannedItems:
    """A scan that tells which outputs of the recipe it has not looked at: it may have been made for other data."""
    known = {(one.prefix, Folder(one.out).url) for one in scanned.outputs}
    asked = [(entry.prefix, Folder(entry.out).url) for entry in recipe.train.outs]
    lines = (
        f"{url} was not scanned: `sluice train RECIPE --prepare` does"
        for prefix, url in asked
        if (prefix, url) not in known
    )
    return replace(scanned, unknown=(*scanned.unknown, *lines))


def evaluate_due(run: Run, step: int) -> tuple[EvaluationResult, ...]:
    """The results of the evaluations that are due after `step`; what the model had read of them on rank 0 alone.
    Collective."""
    due = [each for each in run.stepping.evaluations if each.table.is_due(step, run.recipe.train.steps)]
    if not due:
        return ()
    nats = [_nats(run.stepping.context, each, run.stepping.feed.num_rows) for each in due]
    if run.rank != 0:
        return tuple(
            result_of(each.prepared, own, step=step + 1, seen=None)
            for each, own in zip(due, nats, strict=True)
        )
    return tuple(_result(run, each, own, step) for each, own in zip(due, nats, strict=True))


@torch.no_grad()
def _nats(context: StepContext, evaluation: RunEvaluation, rows_at_once: int) -> list[np.ndarray]:
    """The losses of each item's choices, on every rank. Collective."""
    model, packed = context.model, evaluation.packed
    sums = packed.no_losses(model.device)
    model.when_backward_ends(None)
    model.when_loss_begins(lambda: None)
    with _without_capacity(model):
        for rows in packed.batches(rows_at_once, model.dp_rank, model.dp_size):
            context.clock.waiting("forward")
            micro = model.micro_batch(rows.map(lambda tensor: tensor.to(model.device)))
            found = model.evaluate(micro)
            if found is not None:  # of a pipeline's ranks the last one has losses
                add_losses(sums, micro.rows, found.of_tokens_BT)
    model.reshard()  # a checkpoint may be the next thing
    context.clock.waiting("all-reduce of evaluation losses")
    dist.all_reduce(sums, group=model.groups.loss)
    return nats_of(evaluation.prepared, packed.by_request(sums, len(evaluation.prepared.requests)))


@contextmanager
def _without_capacity(model: ParallelModel) -> Iterator[None]:
    """Experts take every token: what one request is scored must not depend on those that share its row."""
    layers = [layer for part in model.parts for layer in part.modules() if isinstance(layer, ExpertLayer)]
    kept = [layer.table for layer in layers]
    for layer in layers:
        layer.table = replace(layer.table, capacity_factor=0.0)
    try:
        yield
    finally:
        for layer, table in zip(layers, kept, strict=True):
            layer.table = table


def _result(run: Run, evaluation: RunEvaluation, nats: Sequence[np.ndarray], step: int) -> EvaluationResult:
    seen: Seen | None = None
    unknown = "the data was not scanned for its items"
    if evaluation.scanned is not None:
        try:
            seen = _seen(run, evaluation.scanned, step)
        except (OSError, StoreError) as error:  # no reason to end a training
            unknown = f"what the run had read: {error}"
    return result_of(evaluation.prepared, nats, step=step + 1, seen=seen, unknown=(unknown,))


def _seen(run: Run, scanned: ScannedItems, step: int) -> Seen:
    progress, reporter = run.progress, run.reporting.reporter
    skipped = [*progress.skipped, *(each.step for each, _ in progress.pending if reporter.reason(each))]
    begun = attempts(run.output)
    read = read_items(
        scanned,
        run.stepping.feed.facts_at(step + 1, skipped),
        begun,
        attempt=run.attempt,
        step=step + 1,
    )
    kept = {
        each.step for each in complete_checkpoints(run.saving.saver.folder, begun) if each.step <= step + 1
    }
    # One of the steps until now may still be in writing.
    return seen_with(scanned, read, sorted(kept | {max(progress.last_saved, 0)} - {0}))
