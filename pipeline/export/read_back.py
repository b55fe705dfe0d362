"""`sluice export --check DIR`: an exported folder beside the run that it was made from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lineage.index.output_index import TokenizerIdentity
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder

if TYPE_CHECKING:
    from trainer.huggingface.read_back import CheckedPart

_TOKENIZER = "tokenizer.json"


def check_export(folder: Folder, output: str | None = None) -> Iterator[CheckedPart]:
    """The parts of an exported folder, each with why it does not hold: as of `trainer.huggingface.read_back`, and
    its tokenizer. `output`: where the run lies now; None: where it lay. Errors as of `read_back`."""
    from trainer.huggingface.exported import made_from
    from trainer.huggingface.read_back import CheckedPart, read_back

    made = made_from(folder)
    yield from read_back(folder, Folder(output or made.output))
    yield CheckedPart(_TOKENIZER, _tokenizer_apart(folder, made.tokenizer))


def _tokenizer_apart(folder: Folder, named: TokenizerIdentity) -> str:
    from stages.tokens.tokenizer import load_recorded

    if not folder.exists(_TOKENIZER):
        return f"is not there: transformers, lm-eval and vLLM cannot encode; export again with --tokenizer {named.name}"
    try:
        tokenizer = load_recorded(folder.at(_TOKENIZER), hash_=named.hash, eot_id=named.eot_id)
    except RecipeError as error:
        return str(error)
    return "" if tokenizer is not None else f"gives other ids than {named.name}, with which the data was made"
