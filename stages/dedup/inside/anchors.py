"""Anchors: the few places of a text by which every repeated run of min_bytes is found, and the text around them.

The anchor of a window of `min_bytes` bytes is the n-gram of `gram_bytes` bytes in it whose hash is least, the first of
equal ones (winnowing: Schleimer, Wilkerson and Aiken 2003, "Winnowing", section 3). It depends on the bytes of the
window alone, so equal windows have equal anchors at equal offsets, wherever they stand: windows whose anchor stands
once in a corpus stand once. Neighbouring windows mostly share an anchor, so there are about 2 / (min_bytes -
gram_bytes + 2) of them a byte. What is found by hash is compared byte by byte afterwards (`runs`)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_BASE: Final = 0x9E3779B97F4A7C15
"""2^64 / golden ratio; odd, so that it has an inverse modulo 2^64."""
_INVERSE: Final = pow(_BASE, -1, 1 << 64)
_PLACE_BITS: Final = 32
_PLACES: Final = np.uint64((1 << _PLACE_BITS) - 1)
_WORKED_ON: Final = 4 << 20
"""Bytes of text that are hashed at a time: some 200 MB of arrays."""


class Texts(NamedTuple):
    """Documents as the bytes of their UTF-8, one after the other; that of number n is data[starts[n]:starts[n + 1]]."""

    data: Bytes
    starts: I64


class Anchors(NamedTuple):
    """The anchors of some documents, in order of document and place; parallel arrays (A,).

    `document` is its number; `anchor` the hash of its n-gram; the windows of which it is the anchor begin at the bytes
    [`first`, `last`] of the document. `contents` is the text from the first window's begin to the last one's end, and
    `character` the number of the first character that begins in it."""

    document: I64
    anchor: U64
    first: I64
    last: I64
    character: I64
    contents: list[bytes]


def gram_bytes(min_bytes: int) -> int:
    """The length of the n-grams among which a window's anchor is chosen.

    A longer one gives more anchors, a shorter one more of them that are repeated where no window is
    (benchmarks/inside.py measures both)."""
    return min_bytes // 2


def gram_hashes(data: Bytes, length: int, bits: int = 64) -> U64:
    """The hash of each run of `length` bytes, shape (N - length + 1,), or its lowest `bits`: a function of its bytes
    alone."""
    if len(data) < length:
        return np.empty(0, np.uint64)
    powers, inverses = _powers(-(-(len(data) + 1) // _WORKED_ON) * _WORKED_ON)
    sums = np.zeros(len(data) + 1, np.uint64)
    # The polynomial of bytes up to each place. A difference of two, divided by the power of the first, depends on the
    # bytes between alone. All of it modulo 2^64.
    np.multiply(data, powers[: len(data)], out=sums[1:])
    np.cumsum(sums, out=sums)
    hashes = sums[length:] - sums[: len(sums) - length]
    hashes *= inverses[: len(hashes)]
    _finalise(hashes)
    return hashes & np.uint64((1 << bits) - 1) if bits < 64 else hashes


@functools.lru_cache(maxsize=2)
def _powers(num: int) -> tuple[U64, U64]:
    powers = np.full((2, num), np.array([[_BASE], [_INVERSE]], np.uint64))
    powers[:, 0] = 1
    np.multiply.accumulate(powers, axis=1, out=powers)
    return powers[0], powers[1]


def _finalise(hashes: U64) -> None:
    """Spread the bits of polynomials, whose low ones depend on few bits of the text (MurmurHash3's fmix64), in
    place."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        hashes ^= hashes >> np.uint64(33)
        hashes *= np.uint64(factor)
    hashes ^= hashes >> np.uint64(33)


def character_begins(data: Bytes) -> npt.NDArray[np.bool_]:
    """Whether a character begins at each byte of UTF-8."""
    found: npt.NDArray[np.bool_] = (data & 0xC0) != 0x80
    return found


def in_batches(texts: Texts) -> Iterator[tuple[int, Texts]]:
    """The documents, a few megabytes at a time, each with the number of its first one."""
    first, num = 0, len(texts.starts) - 1
    while first < num:
        limit = texts.starts[first] + _WORKED_ON
        last = max(first + 1, int(np.searchsorted(texts.starts, limit, side="right")) - 1)
        begin, end = texts.starts[first], texts.starts[last]
        yield first, Texts(texts.data[begin:end], texts.starts[first : last + 1] - begin)
        first = last


class _Windows(NamedTuple):
    """Windows with one anchor: `first` and `last` are places in the data, `anchor` the hash."""

    first: I64
    last: I64
    anchor: U64


def _windows(texts: Texts, min_bytes: int) -> _Windows:
    length = gram_bytes(min_bytes)
    hashes = gram_hashes(texts.data, length)
    num_grams = min_bytes - length + 1
    begins = _window_begins(texts, min_bytes)
    if not len(begins):
        none = np.empty(0, np.int64)
        return _Windows(none, none, np.empty(0, np.uint64))
    # The high half of the hash above the place: the least of these is the first of the least hashes.
    assert len(hashes) <= int(_PLACES)
    ordered = (hashes & ~_PLACES) | np.arange(len(hashes), dtype=np.uint64)
    least = _least_of_windows(ordered, num_grams)
    place = (least[begins] & _PLACES).astype(np.int64)
    is_first = np.ones(len(begins), np.bool_)
    is_first[1:] = (place[1:] != place[:-1]) | (begins[1:] != begins[:-1] + 1)
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(begins)) - 1
    return _Windows(begins[firsts], begins[lasts], hashes[place[firsts]])


def _window_begins(texts: Texts, min_bytes: int) -> I64:
    """Where windows begin that lie in one document."""
    num = np.maximum(np.diff(texts.starts) - min_bytes + 1, 0)
    owners = np.repeat(np.arange(len(num)), num)
    within = np.arange(int(num.sum())) - np.repeat(np.cumsum(num) - num, num)
    begins: I64 = texts.starts[owners] + within
    return begins


def _least_of_windows(values: U64, size: int) -> U64:
    """The least of `size` values from each place on, shape (N - size + 1,): three passes whatever the size (van Herk
    1992, Gil and Werman 1993)."""
    num_blocks = -(-len(values) // size)
    blocks = np.full((num_blocks, size), np.iinfo(np.uint64).max, np.uint64)
    blocks.ravel()[: len(values)] = values
    up_to = np.minimum.accumulate(blocks, axis=1).ravel()
    from_on = np.minimum.accumulate(blocks[:, ::-1], axis=1)[:, ::-1].ravel()
    num = len(values) - size + 1
    found: U64 = np.minimum(from_on[:num], up_to[size - 1 : size - 1 + num])
    return found


def anchor_counts(texts: Texts, min_bytes: int) -> tuple[U64, I64]:
    """The distinct anchors of documents, sorted, and how often each stands there."""
    found = [_windows(batch, min_bytes).anchor for _, batch in in_batches(texts)]
    return np.unique(np.concatenate([np.empty(0, np.uint64), *found]), return_counts=True)


def repeated_anchors(texts: Texts, min_bytes: int, repeated: U64) -> Anchors:
    """The anchors of documents that are among `repeated`, sorted distinct hashes."""
    documents, firsts, lasts, anchors, characters, contents = [], [], [], [], [], list[bytes]()
    for number, batch in in_batches(texts):
        windows = _windows(batch, min_bytes)
        at = np.searchsorted(repeated, windows.anchor)
        chosen = np.zeros(len(at), np.bool_)
        inside = at < len(repeated)
        chosen[inside] = repeated[at[inside]] == windows.anchor[inside]
        first, last = windows.first[chosen], windows.last[chosen]
        owner = np.searchsorted(batch.starts, first, side="right") - 1
        plain = batch.data.tobytes()
        contents += [
            plain[begin : end + min_bytes] for begin, end in zip(first.tolist(), last.tolist(), strict=True)
        ]
        documents.append(owner + number)
        anchors.append(windows.anchor[chosen])
        firsts.append(first - batch.starts[owner])
        lasts.append(last - batch.starts[owner])
        num_before = np.append(0, np.cumsum(character_begins(batch.data)))
        characters.append(num_before[first] - num_before[batch.starts[owner]])
    return Anchors(
        document=_joined(documents),
        anchor=np.concatenate([np.empty(0, np.uint64), *anchors]),
        first=_joined(firsts),
        last=_joined(lasts),
        character=_joined(characters),
        contents=contents,
    )


def _joined(arrays: list[I64]) -> I64:
    return np.concatenate([np.empty(0, np.int64), *arrays])
