"""A hash of a folder's weights by the bytes of its files, which many processes make together. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from blake3 import blake3

from lineage.ids import ID_BYTES, content_hash, length_prefixed
from lineage.storage.folder import Folder
from trainer.huggingface.folder import WEIGHTS_FILE

_STRETCH_BYTES: Final = 256 << 20
"""Hashed as one: 100 GB are 373 stretches, few enough for every rank to hear of each."""
_READ_BYTES: Final = 16 << 20

StretchHashes = Mapping[tuple[str, int], bytes]
"""The hash of each stretch of `_STRETCH_BYTES`, by file and first byte."""


def stretch_hashes(folder: Folder, *, part: int = 0, num_parts: int = 1) -> StretchHashes:
    """The hashes of every `num_parts`-th stretch of the folder's safetensors files, from `part` on: each byte
    is read by one of the processes that share the work."""
    places = [
        (file, start)
        for file in sorted(filter(WEIGHTS_FILE.fullmatch, folder.names()))
        for start in range(0, folder.size(file), _STRETCH_BYTES)
    ]
    return {place: _hash_of(folder, *place) for place in places[part::num_parts]}


def weights_hash(hashes: StretchHashes) -> str:
    """BLAKE3-128 (hex) over all stretches of a folder: the same whoever hashed which."""
    return content_hash(
        b"".join(
            length_prefixed(file.encode(), str(start).encode(), found)
            for (file, start), found in sorted(hashes.items())
        )
    ).hex()


def _hash_of(folder: Folder, file: str, start: int) -> bytes:
    hasher, left = blake3(), _STRETCH_BYTES
    with folder.open(file) as opened:
        opened.seek(start)
        while left and (data := opened.read(min(left, _READ_BYTES))):
            hasher.update(data)
            left -= len(data)
    return hasher.digest(length=ID_BYTES)
