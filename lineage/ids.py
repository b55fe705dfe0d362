"""Identities: what a document, a text and a set of documents are called.

Input is hostile and proofs rest on these names, so content is named by BLAKE3 cut to 128 bits; xxh3 (see
`lineage.index.blocks`) only guards against corruption. Everything is shown as 32 lower-case hex digits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt
from blake3 import blake3

ID_BYTES: Final = 16
_MODULUS: Final = 1 << 128
SET_CONTEXT: Final = "sluice 2026-11-28 ids of the documents of a purge"
"""BLAKE3's context string for `set_digest`: part of the construction, so it never changes."""


def content_hash(data: bytes | memoryview) -> bytes:
    """BLAKE3-128 of `data`: 16 bytes."""
    return blake3(data).digest(length=ID_BYTES)


def text_hash(text: str) -> bytes:
    """BLAKE3-128 of a text's UTF-8; a lone surrogate (which UTF-8 cannot hold) counts as its escape."""
    return content_hash(text.encode("utf-8", "surrogatepass"))


def tokens_hash(tokens: npt.NDArray[np.uint32]) -> bytes:
    """BLAKE3-128 of tokens as uint32 little-endian, shape (num_tokens,)."""
    return content_hash(np.ascontiguousarray(tokens, dtype="<u4").data.cast("B"))


def length_prefixed(*parts: bytes) -> bytes:
    """The parts, each after its length as 8 bytes little-endian: two lists of parts never read alike."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def warc_doc_id(record_id: str, target_uri: str, payload: bytes) -> bytes:
    """The id of a WARC record: BLAKE3-128 of the length-prefixed (WARC-Record-ID, target URI, payload)."""
    hasher = blake3()
    for part in (
        record_id.encode("utf-8", "surrogateescape"),
        target_uri.encode("utf-8", "surrogateescape"),
        payload,
    ):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest(length=ID_BYTES)


def row_doc_id(source: str, file: str, row: str, text: str | memoryview) -> bytes:
    """The id of a JSONL or Parquet row: BLAKE3-128 of length-prefixed (source, file, given id or row number,
    text). A text may be given as its UTF-8."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    hasher = blake3(length_prefixed(*(part.encode("utf-8", "surrogatepass") for part in (source, file, row))))
    hasher.update(len(data).to_bytes(8, "little"))
    hasher.update(data)
    return hasher.digest(length=ID_BYTES)


def id_digest(doc_ids: Iterable[bytes]) -> int:
    """The digest of a multiset of ids: their sum (big-endian integers) mod 2^128, independent of order."""
    return sum(int.from_bytes(doc_id, "big") for doc_id in doc_ids) % _MODULUS


def set_digest(doc_ids: Iterable[bytes]) -> str:
    """The digest of a set of ids, 64 hex digits: BLAKE3 over the sorted ids, under a key derived from
    `SET_CONTEXT`.

    For proofs: unlike `id_digest`, which adds up over parts, no other set can be made to meet it, and that of
    one document is not its id."""
    hasher = blake3(derive_key_context=SET_CONTEXT)
    for doc_id in sorted(set(doc_ids)):
        hasher.update(doc_id)
    return hasher.hexdigest()


def add_digests(digests: Iterable[int]) -> int:
    """The digest of a union of disjoint multisets."""
    return sum(digests) % _MODULUS


def show_digest(digest: int) -> str:
    """A digest as 32 hex digits."""
    return f"{digest % _MODULUS:032x}"


def parse_id(text: str) -> bytes:
    """The 16 bytes of an id written as 32 hex digits; ValueError says what is wrong with another text."""
    cleaned = text.strip().lower()
    if len(cleaned) != 2 * ID_BYTES or any(character not in "0123456789abcdef" for character in cleaned):
        raise ValueError(f"{text!r} is not an id: expected {2 * ID_BYTES} hexadecimal digits")
    return bytes.fromhex(cleaned)


def sort_key(doc_id: bytes) -> int:
    """`k` of the lineage tables: the first 8 bytes of a doc_id, big-endian, shifted right by one (fits
    int64).

    Delta has no fixed-size binary, so this is the column whose minimum and maximum prune files."""
    return int.from_bytes(doc_id[:8], "big") >> 1


def sort_keys(doc_ids: list[bytes]) -> npt.NDArray[np.int64]:
    """`sort_key` of many ids, shape (len(doc_ids),)."""
    raw = np.frombuffer(b"".join(doc_ids), dtype=">u8").reshape(-1, 2)[:, 0]
    return (raw >> np.uint64(1)).astype(np.int64)
