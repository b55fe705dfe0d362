"""A model together with the tokenizer of its data, opened in this process: what evaluates texts, or makes them,
begins here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenizers import Tokenizer as HfTokenizer

from lineage.index.output_index import TokenizerIdentity
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.inspect.trace.tracing import UNREADABLE
from pipeline.recipe.load import recipe_of
from stages.tokens.tokenizer import Tokenizer, load_recorded, load_tokenizer
from trainer.huggingface.exported import GENERATION
from trainer.huggingface.model_card import chosen_checkpoint, is_run, read_card
from trainer.huggingface.same_tokenizer import TOKENIZER_JSON, recorded_tokenizer
from trainer.provenance.facts import outs_read

if TYPE_CHECKING:
    import torch

    from trainer.huggingface.opened import Dtype, OpenedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTokenizer:
    """The tokenizer of a model's data. `prefix_id` stands before a text that nothing else stands before: the
    token that begins texts, else the one that ends them, as for lm-eval. `begins`: ids that the tokenizer of a
    folder puts before each text; none of ours does. `more_ends`: further ids with which its model ends texts."""

    tokenizer: Tokenizer
    prefix_id: int
    begins: tuple[int, ...] = ()
    more_ends: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class TextModel:
    """A model and the tokenizer of its data."""

    opened: OpenedModel
    text: ModelTokenizer


def open_text_model(
    place: str,
    *,
    step: int | None = None,
    tokenizer: str | None = None,
    device: torch.device | None = None,
    dtype: Dtype | None = None,
) -> TextModel:
    """A model as of `trainer.huggingface.opened.open_model`, and its tokenizer: the one in the file `tokenizer`,
    or the one that the run, its data or the folder names. RecipeError also where the tokenizer is not at hand, or is
    another than the recorded one."""
    folder = Folder(place)
    # All that is wrong with the call is told before torch is imported.
    if is_run(folder):
        chosen_checkpoint(folder, step)
        named: TokenizerIdentity | None = read_card(folder).tokenizer
    else:
        named = recorded_tokenizer(folder)
    text = _tokenizer_of(folder, named, tokenizer)
    from trainer.huggingface.opened import open_model

    return TextModel(opened=open_model(place, step=step, device=device, dtype=dtype), text=text)


def _tokenizer_of(folder: Folder, named: TokenizerIdentity | None, given: str | None) -> ModelTokenizer:
    file = None if is_run(folder) or not folder.exists(TOKENIZER_JSON) else folder.at(TOKENIZER_JSON)
    if named is None:
        return _of_folder(folder, given or file)
    tokenizer = None
    for encoding in [given] if given else [*([] if file is None else [file]), named.name, *_of_data(folder)]:
        try:
            tokenizer = tokenizer or load_recorded(encoding, hash_=named.hash, eot_id=named.eot_id)
        except RecipeError:
            if given is not None:
                raise
    if tokenizer is None:
        raise RecipeError(
            f"--tokenizer {given}: another tokenizer than {named.name}, with which the data was made"
            if given
            else f"{folder.url}: its tokenizer {named.name} is not here: --tokenizer says where its file lies"
        )
    return ModelTokenizer(tokenizer=tokenizer, prefix_id=tokenizer.eot_id)


def _of_data(folder: Folder) -> Iterator[str]:
    """What the recipes of the outputs that a run read name as their tokenizer, where these can be read."""
    for out in outs_read(folder) if is_run(folder) else ():
        with suppress(*UNREADABLE):
            yield recipe_of(Folder(out)).tokenize.encoding


def _of_folder(folder: Folder, file: str | None) -> ModelTokenizer:
    """The tokenizer of a folder that no run of ours made."""
    if file is None:
        raise RecipeError(f"{folder.url} has no {TOKENIZER_JSON}: --tokenizer says where its tokenizer lies")
    config: dict[str, object] = json.loads(folder.read("config.json"))
    # As transformers' generate, which stops at each of them.
    given = json.loads(folder.read(GENERATION)) if folder.exists(GENERATION) else {}
    ends = [*_ids(config.get("eos_token_id")), *_ids(given.get("eos_token_id"))]
    tokenizer = load_tokenizer(file, ends[0] if ends else None)
    begin = config.get("bos_token_id")
    return ModelTokenizer(
        tokenizer=tokenizer,
        prefix_id=begin if isinstance(begin, int) else tokenizer.eot_id,
        begins=tuple(HfTokenizer.from_file(file).encode("").ids) if file.endswith(".json") else (),
        more_ends=frozenset(ends) - {tokenizer.eot_id},
    )


def _ids(value: object) -> list[int]:
    """The ids that a key of a folder's file names: one, a list, or none."""
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, int)]
