"""Why a step came out as it did: its data, or what computed it.

A replay from the checkpoint before gives the step's loss by row and by document, and norms by layer. If it
gives the recorded numbers of every step again, to the bit, the data made them. If it does not, something
computed wrongly, then or now: a second replay that agrees with the first says that it was then (transient);
one that does not, that it still does (persistent). With `train.record_losses` the rows of the first step that
differs name the ranks that had them. No torch here: the replay comes as a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trainer.checkpoint.store import CheckpointError
from trainer.data.corpus import open_corpus
from trainer.evidence.documents import DocumentInStep, RowInStep, rows_and_documents, usual_losses
from trainer.evidence.observed import ReplayResult
from trainer.evidence.replayed_step import ReplayedStep, step_to_replay
from trainer.evidence.verdict import Verdict, first_differing, judge
from trainer.provenance.setup import Hardware

Replay = Callable[[ReplayedStep], tuple[ReplayResult, Hardware]]
"""Does the steps again on the run's layout: what was seen, and what computed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyStep:
    """All that is known of a step. `read`: the folders that the replay read; `recorded_loss`: None where it
    was not finite, or no attempt has recorded it; `damaged`: what is wrong with each checkpoint that it could
    not begin with. Documents come by what they add, the most first; rows by their loss."""

    run: str
    output: str
    read: tuple[str, ...]
    step: int
    attempt: int
    replayed_from: str | None
    num_replayed: int
    skipped: str | None
    recorded_loss: float | None
    loss: float | None
    gradient_norm: float | None
    lr: float | None
    verdict: Verdict
    layers: Mapping[str, float]
    usual: Mapping[str, float]
    rows: tuple[RowInStep, ...]
    documents: tuple[DocumentInStep, ...] = field(default=())
    damaged: tuple[str, ...] = ()


def explain_step(asked: ReplayedStep, replay: Replay) -> WhyStep:
    """Do the steps again, and again where they differ; what came of it. From a checkpoint before, where one is
    damaged. Errors as of the replay."""
    damaged: list[str] = []
    while True:
        try:
            first, hardware = replay(asked)
            break
        except CheckpointError as error:
            if asked.checkpoint is None:
                raise
            damaged.append(str(error))
            most = asked.checkpoint.step - 1
            asked = step_to_replay(asked.output, asked.step, most=most)
    changed, was = [*asked.changed], asked.setup.hardware
    if was.name != hardware.name:
        changed.append(f"this replay ran on {hardware.name}, the run on {was.name}")
    differing = first_differing(asked, first)
    second = None if differing is None else replay(asked)[0]
    verdict = judge(asked, first, second, differing, changed)
    corpus = open_corpus(asked.recipe.train.outs)
    usual = usual_losses(asked, first.last)
    rows, documents = rows_and_documents(asked, corpus, first, usual)
    last = first.last
    return WhyStep(
        run=asked.recipe.run.name,
        output=asked.output.url,
        read=asked.read,
        step=asked.step,
        attempt=asked.attempt,
        replayed_from=None if asked.checkpoint is None else asked.checkpoint.name,
        damaged=tuple(damaged),
        num_replayed=len(first.steps),
        skipped=asked.recorded[asked.step].skipped,
        recorded_loss=asked.recorded[asked.step].loss,
        loss=last.loss,
        gradient_norm=last.gradient_norm,
        lr=last.lr,
        verdict=verdict,
        layers=first.layers,
        usual=usual,
        rows=rows,
        documents=documents,
    )
