"""Which token ends documents: the one that the recipe names, else the one token of a known name.

A guess would show only in training: a model that never learns to stop, or an id beyond its embedding. So a
doubt is the recipe's to settle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lineage.recipe import RecipeError

END_OF_TEXT: Final = "<|endoftext|>"
KNOWN_ENDS: Final = (
    END_OF_TEXT,
    "<|end_of_text|>",
    "<|end▁of▁text|>",
    "<｜end▁of▁sentence｜>",
    "<|end▁of▁sentence|>",
    "<|end_of_sentence|>",
    "<end_of_text>",
    "<|endofdocument|>",
    "<|end_of_document|>",
    "</s>",
    "<eos>",
    "<EOS>",
    "<|eos|>",
    "<|EOS|>",
    "[EOS]",
    "<eod>",
    "<|eod|>",
    "<|endofdoc|>",
)
"""What published tokenizers call the token that ends a document of their training data. Ends of a turn of
chat (`<|im_end|>`, `<|eot_id|>`, `<|return|>`) are none."""

MAX_IDS: Final = 1 << 32
"""A token is a uint32."""
_SHOWN: Final = 12
"""Special tokens that a message lists: some files have a thousand that are reserved."""


class OtherEndError(RecipeError):
    """A tokenizer has no token with the id that an index recorded as the end: it is another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfText:
    """The token that ends documents, its id, and why it is that one."""

    token: str
    id: int
    why: str


def choose_end(name: str, tokens: Mapping[str, int], given: str | int | None, next_id: int) -> EndOfText:
    """The end of the tokenizer `name`. `tokens`: those that may be it, by name; `next_id`: the first id
    beyond its own.

    `given` is the token that the recipe names, the id that an earlier run recorded, or None. Where there is
    no such token at all, the end is `next_id`: then no token of the tokenizer is lost to it. RecipeError
    where the token that is given is none of these, or where none is given and several or none have a known
    name."""
    if isinstance(given, str):
        if given not in tokens:
            raise RecipeError(
                f"tokenize.end_of_text = {given!r}: {name} has no such special token; {_shown(tokens)}"
            )
        return EndOfText(token=given, id=tokens[given], why="the token that tokenize.end_of_text names")
    if isinstance(given, int):
        recorded = next((token for token, id_ in tokens.items() if id_ == given), None)
        if recorded is None and given != next_id:
            raise OtherEndError(f"{name} has no special token with id {given}, by which documents were ended")
        return EndOfText(token=recorded or END_OF_TEXT, id=given, why="as recorded")
    if not tokens and next_id >= MAX_IDS:
        raise RecipeError(
            f"{name} has no special token to end documents, and no id is free: ids lie below 2^32, and its last is"
            f" {next_id - 1:,}"
        )
    known = [token for token in KNOWN_ENDS if token in tokens]
    if len(known) == 1:
        why = "its special token for that"
        return EndOfText(token=known[0], id=tokens[known[0]], why=why)
    if not tokens:
        return EndOfText(
            token=END_OF_TEXT, id=next_id, why="the next free id, since it has no special tokens"
        )
    doubt = (
        f"{' and '.join(map(repr, known))} may each be it" if known else "no name of them is known for an end"
    )
    raise RecipeError(
        f"tokenize.end_of_text: which token of {name} ends a document? {doubt}; name it: {_shown(tokens)}"
    )


def _shown(tokens: Mapping[str, int]) -> str:
    in_order = sorted(tokens.items(), key=lambda item: (item[0] not in KNOWN_ENDS, item[1]))
    listed = ", ".join(f"{token!r} ({id_})" for token, id_ in in_order[:_SHOWN])
    more = f" and {len(tokens) - _SHOWN:,} more" if len(tokens) > _SHOWN else ""
    return f"its special tokens are {listed}{more}" if tokens else "it has none: leave the key out"
