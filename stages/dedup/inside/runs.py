"""Which text around repeated anchors stands earlier in the corpus too: by hash, then byte by byte.

A window is `min_bytes` bytes. Of equal windows the first one in the order of the corpus stays; every later one is
repeated. Runs of repeated windows that lie alike in an earlier place are one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stages.dedup.candidates import begins_of
from stages.dedup.inside.anchors import I64, U64, Bytes, character_begins, gram_hashes

_WINDOWS_AT_ONCE: Final = 1 << 20
_BYTES_AT_ONCE: Final = 8 << 20
_FIRST_OF_TWO, _FIRST_OF_THREE, _FIRST_OF_FOUR = 0xC0, 0xE0, 0xF0


class Runs(NamedTuple):
    """Repeated runs, parallel arrays (R,): `num_windows` windows of text `row`, the first one from its byte `begin` on,
    are those of text `earlier`. As whole characters, counted from the first one that begins in each text: [start,
    start + length) are those from `earlier_start` on."""

    row: I64
    begin: I64
    num_windows: I64
    start: I64
    length: I64
    earlier: I64
    earlier_start: I64


def repeated_runs(anchor: U64, contents: Sequence[bytes], min_bytes: int, bits: int = 64) -> Runs:
    """The repeated runs of texts around anchors, which are given in the order of the corpus.

    Texts with equal windows have equal anchors. `bits` of a window's hash are looked at; whatever that finds is
    compared byte by byte, so the result does not depend on it."""
    found = [
        _of_texts(rows, [contents[row] for row in rows.tolist()], min_bytes, bits)
        for rows in _together(anchor, np.array([len(text) for text in contents], np.int64) - min_bytes + 1)
    ]
    none = np.empty(0, np.int64)
    return (
        Runs(*(np.concatenate([none, *arrays]) for arrays in zip(*found, strict=True))) if found else _NOTHING
    )


_NOTHING: Final = Runs(*(np.empty(0, np.int64) for _ in range(7)))


def _together(anchor: U64, num_windows: I64) -> Iterator[I64]:
    """Rows whose anchor others have too, all of some anchors at a time, each time in their own order."""
    order = np.argsort(anchor, kind="stable")
    ordered = anchor[order]
    begins = np.flatnonzero(begins_of(ordered))
    ends = np.append(begins[1:], len(order))
    shared = ends - begins > 1
    begins, ends = begins[shared], ends[shared]
    sums = np.append(0, np.cumsum(num_windows[order]))
    windows = sums[ends] - sums[begins]
    at = 0
    while at < len(begins):
        reached = np.cumsum(windows[at:])
        num = max(1, int(np.searchsorted(reached, _WINDOWS_AT_ONCE, side="right")))
        chosen = np.concatenate(
            [
                order[b:e]
                for b, e in zip(begins[at : at + num].tolist(), ends[at : at + num].tolist(), strict=True)
            ]
        )
        yield np.sort(chosen)
        at += num


def _of_texts(rows: I64, contents: list[bytes], min_bytes: int, bits: int) -> Runs:
    data = np.frombuffer(b"".join(contents), np.uint8)
    sizes = np.array([len(text) for text in contents], np.int64)
    offsets = np.append(0, np.cumsum(sizes))
    num = sizes - min_bytes + 1
    owner = np.repeat(np.arange(len(sizes)), num)
    place = offsets[owner] + np.arange(len(owner)) - np.repeat(np.cumsum(num) - num, num)
    first = _first_equal(gram_hashes(data, min_bytes, bits)[place])
    runs = _runs_of(owner, place, first)
    if not _are_equal(data, runs.begin, runs.other, runs.num_windows + min_bytes - 1):
        # Two windows with one hash: about once in 10^7 of these calls where nobody looks for it.
        plain = data.tobytes()
        known: dict[bytes, int] = {}
        exact = [
            known.setdefault(plain[begin : begin + min_bytes], number)
            for number, begin in enumerate(place.tolist())
        ]
        runs = _runs_of(owner, place, np.array(exact, np.int64))
    return _in_characters(rows, data, offsets, runs, min_bytes)


def _first_equal(values: U64) -> I64:
    """The first place that holds the same value as each one."""
    order = np.argsort(values)
    ordered = values[order]
    begins = np.flatnonzero(begins_of(ordered))
    firsts = np.minimum.reduceat(order, begins) if len(order) else order
    found = np.empty(len(values), np.int64)
    found[order] = np.repeat(firsts, np.diff(np.append(begins, len(order))))
    return found


class _WindowRuns(NamedTuple):
    """Windows that follow one another in text `owner`, from place `begin` on, and so do their first equals in text
    `other_owner` from place `other` on."""

    owner: I64
    begin: I64
    num_windows: I64
    other_owner: I64
    other: I64


def _runs_of(owner: I64, place: I64, first: I64) -> _WindowRuns:
    repeated = np.flatnonzero(first != np.arange(len(first)))
    to = first[repeated]
    new = np.ones(len(repeated), np.bool_)
    new[1:] = (
        (repeated[1:] != repeated[:-1] + 1)
        | (to[1:] != to[:-1] + 1)
        | (owner[repeated[1:]] != owner[repeated[:-1]])
        | (owner[to[1:]] != owner[to[:-1]])
    )
    begins = np.flatnonzero(new)
    num = np.diff(np.append(begins, len(repeated)))
    here, there = repeated[begins], to[begins]
    return _WindowRuns(owner[here], place[here], num, owner[there], place[there])


def _are_equal(data: Bytes, a: I64, b: I64, length: I64) -> bool:
    """Whether the bytes from each of `a` on are those from `b` on."""
    at = 0
    while at < len(a):
        num = max(1, int(np.searchsorted(np.cumsum(length[at:]), _BYTES_AT_ONCE, side="right")))
        some = slice(at, at + num)
        sizes = length[some]
        within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        if np.any(data[np.repeat(a[some], sizes) + within] != data[np.repeat(b[some], sizes) + within]):
            return False
        at += num
    return True


def _in_characters(rows: I64, data: Bytes, offsets: I64, runs: _WindowRuns, min_bytes: int) -> Runs:
    """Runs as whole characters. Both ends hold the same bytes, so what is shortened on one side is on the other."""
    begins = character_begins(data)
    num_before = np.append(0, np.cumsum(begins))
    end = runs.begin + runs.num_windows + min_bytes - 1
    start = num_before[runs.begin]
    last = num_whole_characters(data, begins, num_before, end)
    length = last - start
    return Runs(
        row=rows[runs.owner],
        begin=runs.begin - offsets[runs.owner],
        num_windows=runs.num_windows,
        start=start - num_before[offsets[runs.owner]],
        length=np.maximum(length, 0),
        earlier=rows[runs.other_owner],
        earlier_start=num_before[runs.other] - num_before[offsets[runs.other_owner]],
    )


def num_whole_characters(data: Bytes, begins: npt.NDArray[np.bool_], num_before: I64, ends: I64) -> I64:
    """How many characters have ended before each of `ends`, of those that begin in the data. `num_before`: how many
    begin before each place."""
    last_begin = np.maximum.accumulate(np.where(begins, np.arange(len(data)), -1))[ends - 1]
    lead = data[np.maximum(last_begin, 0)]
    size = 1 + (lead >= _FIRST_OF_TWO) + (lead >= _FIRST_OF_THREE).astype(np.int64) + (lead >= _FIRST_OF_FOUR)
    is_cut = (last_begin >= 0) & (last_begin + size > ends)
    found: I64 = num_before[ends] - is_cut
    return found


def other_windows(content: bytes, runs: Sequence[tuple[int, int]], min_bytes: int) -> list[tuple[int, int]]:
    """The windows of a text that are in none of `runs`, which are (begin, num_windows), as whole characters: (start,
    length)."""
    found, at = [], 0
    for begin, num_windows in [*sorted(runs), (len(content) - min_bytes + 1, 0)]:
        if begin > at:
            start = _num_begun(content[:at])
            end = begin - 1 + min_bytes
            length = _num_begun(content[:end]) - _ends_within(content[:end]) - start
            if length > 0:
                found.append((start, length))
        at = begin + num_windows
    return found


_CONTINUATIONS: Final = bytes(range(0x80, 0xC0))


def _num_begun(data: bytes) -> int:
    """How many characters begin in some bytes."""
    return len(data.translate(None, _CONTINUATIONS))


def _ends_within(data: bytes) -> bool:
    """Whether bytes end before the last character that begins in them does."""
    tail = data[-3:]
    for at in range(len(tail) - 1, -1, -1):
        if tail[at] & 0xC0 != 0x80:
            lead = tail[at]
            size = 1 + (lead >= _FIRST_OF_TWO) + (lead >= _FIRST_OF_THREE) + (lead >= _FIRST_OF_FOUR)
            return len(tail) - at < size
    return False
