"""`sluice eval`: a checkpoint of a run, or an exported folder, on texts or on questions with choices, and what of them
its runs had read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lineage.recipe import RecipeError
from lineage.storage.errors import StorageError
from lineage.storage.folder import Folder
from pipeline.phases.progress import ProgressReporter
from pipeline.terminal import counted
from pipeline.training.evaluation.formats import EvaluationItem, read_evaluation
from pipeline.training.evaluation.prepare import EvaluationSet, digest_of_texts, prepare
from pipeline.training.evaluation.read_before import LookedFor, scan_of_run
from pipeline.training.opened import open_text_model
from trainer.attempts import attempts
from trainer.checkpoint.store import Checkpoint
from trainer.evaluation.result import EvaluationResult, Seen, result_of
from trainer.evaluation.scanned import publish_scanned, read_scanned, seen_with
from trainer.evidence.origin import links_from, origin_of
from trainer.huggingface.model_card import checkpoints_of
from trainer.provenance.reached import facts_of
from trainer.recovery.read_items import read_items

if TYPE_CHECKING:
    from trainer.huggingface.opened import OpenedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedModel:
    """An evaluation's result, and the checkpoint or folder that was read."""

    result: EvaluationResult
    read: str


def evaluate(
    place: str,
    evaluation: EvaluationSet,
    reporter: ProgressReporter,
    *,
    step: int | None = None,
    tokenizer: str | None = None,
    scans: bool = True,
) -> EvaluatedModel:
    """The result of an evaluation of the checkpoint of `step` steps (the newest) of the run at `place`, or of the
    folder `place`. With `scans` the outputs that its run read, and those that the runs before it read, are scanned for
    the items; what was found is kept in the run's output, where that can be written.

    RecipeError for files that are no evaluation, a question that is longer than the model's rows, and as of
    `open_text_model`."""
    items = read_evaluation(evaluation.files, evaluation.kind)
    model = open_text_model(place, step=step, tokenizer=tokenizer)
    prepared = prepare(evaluation, items, model.text, model.opened.seq_len)
    from trainer.huggingface.evaluated import evaluated

    with reporter.phase("evaluation", 1.0) as phase:
        before = 0

        def done(num: int, of: int) -> None:
            nonlocal before
            phase.step((num - before) / of, counted(len(items), "item"))
            before = num

        nats = evaluated(model.opened, prepared, done)
    made, unknown = _made_by(model.opened)
    seen: Seen | None = None
    if not scans:
        unknown = ("the training data was not scanned",)
    elif made is not None:
        seen = _seen(items, *made, reporter)
    return EvaluatedModel(
        result=result_of(
            prepared, nats, step=None if made is None else made[1].step, seen=seen, unknown=unknown
        ),
        read=model.opened.place,
    )


def _made_by(opened: OpenedModel) -> tuple[tuple[Folder, Checkpoint] | None, tuple[str, ...]]:
    """The run whose checkpoint the model is, or why that is not known."""
    if opened.output is not None and opened.checkpoint is not None:
        return (opened.output, opened.checkpoint), ()
    link = next(links_from(origin_of(opened.place)))
    if link.made_by is None:
        return None, (f"what {opened.place} had read: {link.why_unknown}",)
    output, _, made = link.made_by
    return (output, made), ()


def _seen(
    items: Sequence[EvaluationItem], output: Folder, checkpoint: Checkpoint, reporter: ProgressReporter
) -> Seen:
    asked = LookedFor(
        texts=tuple(item.about for item in items), digest=digest_of_texts(items), reporter=reporter
    )
    known = read_scanned(output, asked.digest)
    scanned = scan_of_run(asked, output, checkpoint, known)
    if scanned != known:
        with suppress(StorageError, PermissionError):  # of a run that others may only read
            publish_scanned(output, scanned)
    begun = attempts(output)
    read = read_items(scanned, facts_of(output), begun, attempt=checkpoint.attempt, step=checkpoint.step)
    kept = [each.step for each in checkpoints_of(output) if each.step <= checkpoint.step]
    return seen_with(scanned, read, kept)


def evaluation_of(
    files: Sequence[str], *, kind: str | None = None, shots: int = 0, shots_from: str | None = None
) -> EvaluationSet:
    """An evaluation by its files, named after the first. RecipeError for a kind that is none."""
    if kind not in (None, "text", "choices"):
        raise RecipeError(f"--kind {kind}: expected text or choices")
    name = files[0].rstrip("/").rpartition("/")[2].partition(".")[0]
    return EvaluationSet(name=name, files=tuple(files), kind=kind, shots=shots, shots_from=shots_from)  # type: ignore[arg-type]
