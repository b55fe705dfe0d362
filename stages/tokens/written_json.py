"""A vocabulary of ranks as the files that transformers, lm-eval and vLLM open."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from stages.tokens.vocabulary import Vocabulary, byte_level_alphabet

_COUNTED: Final = re.compile(
    r"((?:\\[pP]\{\w+\}|\\.|\[(?:\\.|[^\]\\])*\]|[^\\\[\](){}|?*+])\{\d+(?:,\d*)?\})\+"
)
"""A possessive count, as in `\\p{N}{1,3}+`: Oniguruma reads it as one or more of the count."""
_ATOMIC: Final = re.compile(
    r"\(\?>((?:\\[pP]\{\w+\}|\\.|\[(?:\\.|[^\]\\])*\]|[^\\\[\](){}|?*+])\{\d+(?:,\d*)?\})\)"
)


def oniguruma_pattern(pattern: str) -> str:
    """A pattern of tiktoken's as Oniguruma, the engine inside `tokenizers`, reads it the same way."""
    return _COUNTED.sub(r"(?>\1)", pattern)


def tiktoken_pattern(pattern: str) -> str:
    """The inverse of `oniguruma_pattern`; a pattern that it does not write is left as it is."""
    found = _ATOMIC.sub(r"\1+", pattern)
    return found if oniguruma_pattern(found) == pattern else pattern


def write_tokenizer_json(vocabulary: Vocabulary) -> bytes:
    """A tokenizer.json that merges as the ranks do: of each token, every pair of tokens that makes it is a merge,
    in the order of the ranks of what they make, and then of both parts (transformers' TikTokenConverter).

    Special tokens are also in the model's vocabulary, as there may be free ids before theirs."""
    ranks = vocabulary.ranks
    shown = {byte: character for character, byte in byte_level_alphabet().items()}
    in_order = sorted(ranks, key=ranks.__getitem__)
    text = {token: "".join(map(shown.__getitem__, token)) for token in in_order}
    merges: list[list[str]] = []
    for token in in_order:
        halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        pairs = [(left, right) for left, right in halves if left in ranks and right in ranks]
        pairs.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [[text[left], text[right]] for left, right in pairs]
    special = {**vocabulary.special, vocabulary.end.token: vocabulary.end.id}
    by_id = sorted(special, key=special.__getitem__)
    return _json({
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(token, special[token]) for token in by_id],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": oniguruma_pattern(vocabulary.pattern)},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": {text[token]: ranks[token] for token in in_order} | {token: special[token] for token in by_id},
            "merges": merges,
        },
    })  # fmt: skip


def tokenizer_config(end: str) -> bytes:
    """A tokenizer_config.json: the class that reads tokenizer.json as it is (that of the model's family would put
    its own split in place of the file's), and the token that ends documents, which also stands before each."""
    return _json({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end,
        "eos_token": end,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
    })  # fmt: skip


def _added_token(token: str, id_: int) -> Mapping[str, Any]:
    switches = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": id_, "content": token, **switches}


def _json(table: Mapping[str, Any]) -> bytes:
    return json.dumps(table, ensure_ascii=False, indent=2).encode() + b"\n"
