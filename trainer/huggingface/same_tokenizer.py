"""Whether the weights that `train.init_from` names know the ids of the data as the tokens that they are there.
No torch here.

The trainer reads no tokenizer. What a run or an export recorded is compared by its hash; a file of a folder by
whoever can read it (`CompareFile`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from lineage.index.output_index import TokenizerIdentity
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, split
from trainer.checkpoint.same_model import MODEL_CARD
from trainer.checkpoint.store import OWNER, is_checkpoint
from trainer.data.corpus import Corpus
from trainer.huggingface.exported import MADE_FROM
from trainer.options import TrainTable

TOKENIZER_JSON: Final = "tokenizer.json"

CompareFile = Callable[[TrainTable, str, Corpus], list[str]]
"""Compares the tokenizer in this file of the folder with the data's: lines for the user, RecipeError where it is
another."""


def check_first_tokenizer(train: TrainTable, corpus: Corpus, compare: CompareFile | None) -> list[str]:
    """Lines on what could not be compared. RecipeError where the weights were trained with another tokenizer
    than the data's, unless `train.change_tokenizer` says that they may have been."""
    if train.init_from is None or train.change_tokenizer:
        return []
    folder = Folder(train.init_from)
    recorded, file = recorded_tokenizer(folder), _file(folder)
    if recorded is not None:
        _check_recorded(folder, recorded, corpus.tokenizer)
        return []
    if file is None:
        return [f"train.init_from: {folder.url} names no tokenizer: its ids are taken as those of the data"]
    if compare is None:
        return [
            f"train.init_from: {folder.at(file)} is not compared with the tokenizer of the data here: `sluice"
            " train` compares it before a run begins"
        ]
    return compare(train, file, corpus)


def another_tokenizer(folder: Folder, difference: str) -> RecipeError:
    """The refusal of a folder whose tokenizer differs so from the data's."""
    return RecipeError(
        f"train.init_from = {folder.url!r}: its tokenizer is another than that of the data: {difference}. Tokenize"
        " the data with the folder's tokenizer; train.change_tokenizer = true trains on, and what the weights know"
        " of the ids is learnt anew",
        "train.init_from",
    )


def recorded_tokenizer(folder: Folder) -> TokenizerIdentity | None:
    """The tokenizer of the data that the weights were trained on, as the run that made them recorded it; None
    where nothing says it."""
    if not is_checkpoint(folder):
        if not folder.exists(MADE_FROM):
            return None
        try:
            named = json.loads(folder.read(MADE_FROM)).get("tokenizer")  # earlier builds do not name it
            return None if named is None else TokenizerIdentity(**named)
        except (ValueError, TypeError, AttributeError) as error:
            raise RecipeError(
                f"train.init_from: {folder.at(MADE_FROM)} is not as `sluice export` writes it ({error}): export the"
                " checkpoint again",
                "train.init_from",
            ) from error
    above, _ = split(folder.url)
    output = Folder(json.loads(above.read(OWNER))["output"]) if above.exists(OWNER) else split(above.url)[0]
    if not output.exists(MODEL_CARD):
        return None
    return TokenizerIdentity.from_json(json.loads(output.read(MODEL_CARD))["tokenizer"])


def _check_recorded(folder: Folder, recorded: TokenizerIdentity, data: TokenizerIdentity) -> None:
    if recorded.hash != data.hash:
        raise another_tokenizer(
            folder, f"its run recorded {_described(recorded)}, the index of the data {_described(data)}"
        )


def _described(tokenizer: TokenizerIdentity) -> str:
    return (
        f"{tokenizer.name} ({tokenizer.vocab_size:,} ids, {tokenizer.eot_id} ends a document, hash"
        f" {tokenizer.hash})"
    )


def _file(folder: Folder) -> str | None:
    """The file of the folder that holds a tokenizer which is read here."""
    if folder.exists(TOKENIZER_JSON):
        return TOKENIZER_JSON
    return next((name for name in sorted(folder.names()) if name.endswith(".tiktoken")), None)
