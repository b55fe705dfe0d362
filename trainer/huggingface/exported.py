"""The record of exported checkpoints (`<output>/exports/00001.json`): copies of weights that no replay
reaches."""

from __future__ import annotations

import dataclasses
import datetime
import json
from dataclasses import dataclass
from typing import Final

from lineage.index.output_index import TokenizerIdentity
from lineage.json_record import JsonRecord
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder

GENERATION: Final = "generation_config.json"
MADE_FROM: Final = "sluice.json"
"""In an exported folder: which checkpoint of which run it was made from, and the tokenizer of its data, for a run
that begins with it."""
_FOLDER: Final = "exports"


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeFrom(JsonRecord):
    """What MADE_FROM says: the checkpoint of a run, the tokenizer of its data, and the hash of the folder's `weights`;
    `averaged_steps` and `ema` as of ExportRecord."""

    output: str
    run: str | None
    step: int
    attempt: int
    averaged_steps: tuple[int, ...] = ()
    ema: bool = False
    tokenizer: TokenizerIdentity
    weights: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRecord(JsonRecord):
    """A checkpoint that was exported to `place`, or that was begun to be; `averaged_steps`: the checkpoints of
    which the mean was, it the last; `ema`: its moving average of the weights was."""

    place: str
    step: int
    attempt: int
    averaged_steps: tuple[int, ...] = ()
    ema: bool = False
    at: str = ""

    @property
    def described(self) -> str:
        """What was exported, in words."""
        if self.averaged_steps:
            what = f"mean of the checkpoints of steps {', '.join(map(str, self.averaged_steps))}"
        else:
            what = f"checkpoint of step {self.step}"
        return f"moving average of the weights in the {what}" if self.ema else what


def made_from(folder: Folder) -> MadeFrom:
    """Which checkpoint of which run a folder says that it is. RecipeError where it says nothing."""
    if not folder.exists(MADE_FROM):
        raise RecipeError(
            f"{folder.url} has no {MADE_FROM}: expected a folder that `sluice export RUN_OUTPUT` wrote"
        )
    try:
        return MadeFrom.from_json(json.loads(folder.read(MADE_FROM)))
    except (ValueError, TypeError) as error:
        raise RecipeError(
            f"{folder.at(MADE_FROM)}: expected what `sluice export` wrote ({error!r})"
        ) from error


def record_exported(output: Folder, record: ExportRecord) -> None:
    """Write down, before a byte is written, that a checkpoint goes to `record.place`; once, however often it
    is tried."""
    for name in output.names(_FOLDER):
        known = output.read(name)
        if dataclasses.replace(ExportRecord.from_json(json.loads(known)), at="") == record:
            output.publish(name, known)  # the call that wrote it may have failed to bring it to the disk
            return
    at = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    row = dataclasses.replace(record, at=at).to_json()
    number = len(output.names(_FOLDER)) + 1
    while not output.publish_new(f"{_FOLDER}/{number:05d}.json", json.dumps(row).encode()):
        number += 1


def exported_checkpoints(output: Folder) -> tuple[ExportRecord, ...]:
    """Every export that was recorded, in its order."""
    return tuple(ExportRecord.from_json(json.loads(output.read(name))) for name in output.names(_FOLDER))
