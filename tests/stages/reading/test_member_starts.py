"""An index gives offsets of its file or is refused with a reason, whatever it holds."""

from __future__ import annotations

import contextlib
import io
import json
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stages.reading import member_starts
from stages.reading.member_starts import FalseIndexError, starts_in_cdx, starts_in_seek_table

SIZE = 1_000


def starts(data: bytes) -> list[int]:
    return list(starts_in_cdx(io.BytesIO(data), "a.warc.gz", SIZE))


def row(offset: object, name: object = "a.warc.gz") -> bytes:
    return (
        b"org,example)/ 20240101000000 " + json.dumps({"offset": offset, "filename": name}).encode() + b"\n"
    )


def test_offsets_are_numbers_or_words() -> None:
    assert starts(row(12) + b"\n" + row("7") + row(999)) == [12, 7, 999]


@pytest.mark.parametrize("offset", [-1, "", None, [], float("inf"), float("nan"), "0x1", 1_000, "9" * 5_000])
def test_what_is_no_offset_of_the_file_is_refused(offset: object) -> None:
    with pytest.raises(FalseIndexError, match="its line 2 names"):
        starts(row(1) + row(offset))


def test_a_line_without_end_and_an_index_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FalseIndexError, match="its line 1 names no file"):
        starts(b"a" * 100_000)
    monkeypatch.setattr(member_starts, "_ALWAYS_READ_BYTES", 0)
    with pytest.raises(FalseIndexError, match="and the file 1,000"):
        starts(row(1) * 100)


@given(st.binary(max_size=300))
@example(b" CDX V g\n5 a.warc.gz")
@example(b'{"filename": "a.warc.gz", "offset": 1e999}')
@example(b"[" * 60_000 + b"{" * 5_000)
def test_any_bytes_give_offsets_of_the_file_or_a_reason(data: bytes) -> None:
    with contextlib.suppress(FalseIndexError):
        assert all(0 <= start < SIZE for start in starts(data))


ENTRY = struct.pack("<II", 100, 300)


def table(entries: bytes, num_frames: int, flags: int = 0, length: int | None = None) -> bytes:
    rest = entries + struct.pack("<IBI", num_frames, flags, 0x8F92EAB1)
    return struct.pack("<II", 0x184D2A5E, len(rest) if length is None else length) + rest


def of_table(data: bytes) -> list[int]:
    return starts_in_seek_table(io.BytesIO(data), len(data))


def test_frames_that_hold_nothing_are_no_starts() -> None:
    empty = struct.pack("<II", 10, 0)
    assert of_table(b"x" * 210 + table(ENTRY + empty + ENTRY, 3)) == [0, 110]
    assert of_table(b"x" * 500) == of_table(b"") == of_table(table(b"", 0)) == []


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"x" * 101 + table(ENTRY, 1), "of frames of 100 bytes, and they have 101"),
        (b"x" * 100 + table(ENTRY, 1 << 31), "says that it has 2,147,483,648 frames"),
        (b"x" * 300 + table(ENTRY * 3, 2), "does not begin as one"),
        (b"x" * 100 + table(ENTRY, 1, length=3), "does not begin as one"),
        (b"x" * 100 + table(ENTRY, 1, flags=128), "does not begin as one"),
    ],
)
def test_a_table_that_does_not_fit_its_file_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(FalseIndexError, match=said):
        of_table(data)
