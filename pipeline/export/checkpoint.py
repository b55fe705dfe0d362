"""`sluice export RUN_OUTPUT`: a checkpoint of a training run as a Hugging Face folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lineage.index.output_index import INDEX_FILE, TokenizerIdentity, check_outside
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.storage.places import shown_place

_OF_TOKENIZER: Final = ("tokenizer.json", "tokenizer_config.json", "tokenizer.tiktoken")
"""The names of `Tokenizer.files`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedCheckpoint:
    """A checkpoint of `step` steps as it was exported: the `folder` written, and the place `read`.
    `averaged_steps`: the checkpoints of which the mean was exported, that one the last; none: it alone.
    `tokenizer_files`: those of `tokenizer` beside the weights; none if it was not at hand. `split_by`: the
    model_type for which transformers' AutoTokenizer splits texts by its own rule, whatever tokenizer.json says."""

    step: int
    folder: str
    read: str
    tokenizer: str
    tokenizer_files: tuple[str, ...]
    split_by: str | None = None
    averaged_steps: tuple[int, ...] = ()


def export_checkpoint(
    output: Folder,
    to: str,
    *,
    step: int | None = None,
    tokenizer: str | None = None,
    average: int = 1,
    ema: bool = False,
) -> ExportedCheckpoint:
    """Write the checkpoint of `step` steps (the newest) of the run at `output` to the folder `to`, with the
    tokenizer of its data, which lies in the file `tokenizer` where its name leads nowhere. `average`: the mean
    of so many checkpoints, that one the last; `ema`: the moving average of the weights that the run kept.

    RecipeError where there are no such checkpoints, or the tokenizer is another; CheckpointError where a file
    is damaged."""
    from trainer.huggingface.model_card import averaged_checkpoints, read_card
    from trainer.model.config.family_table import FAMILIES

    check_outside("--to", to, is_folder=True)
    if not output.exists("model.json"):
        raise RecipeError(
            f"{output.url} holds neither {INDEX_FILE} (the output of a finished data run; the same `sluice"
            " run` continues one that is not) nor model.json (the output of a training run)"
        )
    card = read_card(output)
    family = card.config.family
    files = tokenizer_files(card.tokenizer, tokenizer)
    averaged = averaged_checkpoints(output, step, average)
    _make_room(Folder(to), card.tokenizer)

    from trainer.huggingface.export import export_run  # with torch, which a wrong path need not wait for

    checkpoint = export_run(output, Path(to), step=step, average=average, ema=ema, tokenizer_files=files)
    return ExportedCheckpoint(
        step=checkpoint.step,
        folder=to,
        read=shown_place(Folder(card.checkpoints).folder(checkpoint.name)),
        tokenizer=card.tokenizer.name,
        tokenizer_files=tuple(files),
        split_by=family if files and FAMILIES[family].own_splitting else None,
        averaged_steps=tuple(each.step for each in averaged) if average > 1 else (),
    )


def _make_room(folder: Folder, tokenizer: TokenizerIdentity) -> None:
    """Remove what an earlier export left of another tokenizer, whose ids are not those of these weights. RecipeError
    where the folder holds a model that is no export: its files would be replaced."""
    from trainer.huggingface.exported import MADE_FROM, made_from

    if folder.exists(MADE_FROM):
        if made_from(folder).tokenizer.hash != tokenizer.hash:
            for name in _OF_TOKENIZER:
                folder.remove(name)
    elif folder.exists("config.json"):  # which an export that was killed has not yet
        raise RecipeError(
            f"--to {folder.url} holds a model that no `sluice export` wrote: name a new folder, or empty this one"
        )


def tokenizer_files(named: TokenizerIdentity, given: str | None) -> dict[str, bytes]:
    """The tokenizer's files as they are exported: the one of that name or, if given, the one at `given`; none
    where the name leads nowhere, or to another tokenizer. RecipeError where `given` is another tokenizer."""
    from stages.tokens.tokenizer import Tokenizer, load_recorded

    tokenizer: Tokenizer | None = None
    try:
        tokenizer = load_recorded(given or named.name, hash_=named.hash, eot_id=named.eot_id)
    except RecipeError:
        if given is not None:
            raise
    if tokenizer is not None:
        return tokenizer.files()
    if given is not None:
        raise RecipeError(
            f"--tokenizer {given}: another tokenizer than {named.name}, with which the data was made"
        )
    return {}
