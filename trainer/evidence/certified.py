"""What a certificate is of: a checkpoint of a run, and purges of the outputs that it read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.storage.places import shown_place
from lineage.trace.exposure import TrainingRun
from trainer.attempts import Attempt, attempts
from trainer.checkpoint.store import Checkpoint
from trainer.huggingface.model_card import checkpoints_of, read_card
from trainer.provenance.facts import outs_to_read, require_run
from trainer.recovery.readings import PurgedOutput, as_of, find_purges


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedCheckpoint:
    """A checkpoint of a run, and what it is certified of; `outs`: where the outputs lie that the run read."""

    output: Folder
    run: str
    checkpoints: Folder
    checkpoint: Checkpoint
    purged: tuple[PurgedOutput, ...]
    outs: tuple[str, ...]

    @property
    def folder(self) -> Folder:
        """The checkpoint's folder."""
        return self.checkpoints.folder(self.checkpoint.name)

    @property
    def read(self) -> str:
        """What is read of it, for people: folders, and where links lead."""
        outs = " and ".join(shown_place(each.out) for each in self.purged)
        return f"{shown_place(self.folder)}, and the purges of {outs}"

    @property
    def begun(self) -> tuple[Attempt, ...]:
        """The attempts of the run."""
        return attempts(self.output)

    def runs(self, purged: PurgedOutput) -> list[TrainingRun]:
        """The runs that read an output, this one by its own facts too."""
        return purged.runs([self.output.url])

    def as_certified(self, run: TrainingRun) -> TrainingRun:
        """This run as the checkpoint has it."""
        return as_of(run, self.begun, self.checkpoint.attempt, self.checkpoint.step)


def open_certified(
    output: Folder, wanted: Sequence[str], outs: Sequence[str] = (), checkpoint: str | None = None
) -> CertifiedCheckpoint:
    """The newest checkpoint of a run, or the one of that name, and these purges (or `all`) of the outputs
    that it read, or of `outs`. RecipeError where it is no run's output, has no checkpoint, or no such purge
    is recorded."""
    run = require_run(output)
    folder = Folder(read_card(output).checkpoints)
    found = checkpoints_of(output)
    chosen = [entry for entry in found if checkpoint in (None, entry.name)]
    if not chosen:
        named = "checkpoint" if checkpoint is None else f"checkpoint {checkpoint}"
        raise RecipeError(f"{output.url} has no {named} in {folder.url} that is part of the run")
    read = outs_to_read(output, outs)
    purged = tuple(find_purges(read, wanted))
    if not purged:
        raise RecipeError(f"no purge is recorded in {', '.join(read)}: there is nothing to certify")
    return CertifiedCheckpoint(
        output=output, run=run, checkpoints=folder, checkpoint=chosen[-1], purged=purged, outs=tuple(read)
    )
