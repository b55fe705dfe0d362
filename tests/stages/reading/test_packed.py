"""bzip2 and xz files, and windows of zstd and xz: read, damaged, cut off, too wide."""

from __future__ import annotations

import bz2
import io
import lzma
import random
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from stages.document import Document
from stages.reading.content import Cursor, DamagedError
from stages.reading.members import read_through
from stages.reading.reader import (
    InputCounts,
    ReadOptions,
    Unreadable,
    detect_format,
    read_documents,
    read_one,
)
from stages.reading.unpacked import UnpackedStream
from tests.support.inputs.make_warc import good

pytestmark = pytest.mark.hostile("stages/reading")

PACKERS: dict[str, Callable[[bytes], bytes]] = {"bz2": bz2.compress, "xz": lzma.compress}
BOTH = pytest.mark.parametrize("ending", PACKERS)
ROWS = b"".join(b'{"text": "row %d"}\n' % number for number in range(50))


def lines(num: int) -> bytes:
    """Rows that hardly compress, so that blocks of bzip2 hold few of them."""
    made = random.Random(5)
    return b"".join(b'{"text": "%d %s"}\n' % (n, made.randbytes(300).hex().encode()) for n in range(num))


def read(
    data: bytes, name: str, counts: InputCounts | None = None, **options: int
) -> list[Document | Unreadable]:
    return list(
        read_documents(
            io.BytesIO(data), ReadOptions(source="s", file=name, size=len(data), **options), counts
        )
    )


def texts(items: list[Document | Unreadable]) -> list[str]:
    return [item.text for item in items if isinstance(item, Document)]


@BOTH
@pytest.mark.parametrize("name", ["f.jsonl.{}", "f"])
def test_rows_are_read_and_streams_may_follow_each_other(ending: str, name: str) -> None:
    pack, file = PACKERS[ending], name.format(ending)
    assert texts(read(pack(ROWS), file)) == [f"row {number}" for number in range(50)]
    streams = pack(ROWS[:333]) + pack(ROWS[333:400]) + pack(b"") + pack(ROWS[400:])
    assert read(streams, file) == read(ROWS, file)


@BOTH
@given(pieces=st.lists(st.binary(max_size=3000), min_size=1, max_size=4), rest=st.binary(max_size=20))
def test_content_is_what_was_packed_however_it_is_cut(ending: str, pieces: list[bytes], rest: bytes) -> None:
    packed = b"".join(map(PACKERS[ending], pieces))
    assert b"".join(read_through(Cursor(io.BytesIO(packed)))) == b"".join(pieces)
    if rest.strip(b"\0") and not rest.lstrip(b"\0").startswith((b"BZh", b"\xfd7zXZ")):
        with pytest.raises(DamagedError):
            list(read_through(Cursor(io.BytesIO(packed + rest))))


@BOTH
def test_records_of_a_warc_have_their_places_in_the_content_also_across_streams(ending: str) -> None:
    records = [good(name) for name in ("one", "two", "three")]
    plain, pack = b"".join(records), PACKERS[ending]
    for packed in (pack(plain), pack(plain[:100]) + pack(plain[100:700]) + pack(plain[700:])):
        for name in (f"a.warc.{ending}", "a"):
            assert detect_format(io.BytesIO(packed), ReadOptions(source="s", file=name)) == "warc"
            found = read(packed, name)
            wanted = read(plain, name)
            assert found == wanted and len(found) == 3
            options = ReadOptions(source="s", file=name)
            for each in wanted:
                assert isinstance(each, Document)
                assert read_one(io.BytesIO(packed), each.place.offset, options) == each


@BOTH
def test_a_damaged_record_among_others_costs_only_itself(ending: str) -> None:
    plain = good("one") + b"WARC/1.0\r\nContent-Length: x\r\n\r\n" + good("two")
    found = read(PACKERS[ending](plain), f"a.warc.{ending}")
    assert [isinstance(item, Document) for item in found] == [True, False, True]
    assert found == read(plain, f"a.warc.{ending}")


@BOTH
def test_a_file_that_is_cut_off_gives_what_stands_before(ending: str) -> None:
    rows, counts = lines(6000), InputCounts()
    packed = PACKERS[ending](rows)
    *found, last = read(packed[: len(packed) // 2], f"f.jsonl.{ending}", counts)
    assert isinstance(last, Unreadable)
    assert last.error.startswith("the file ends inside")
    assert 1000 < len(found) < 4000
    assert found == read(rows, f"f.jsonl.{ending}")[: len(found)]


def test_damage_in_bzip2_costs_the_block_it_lies_in_and_gives_out_nothing_of_that() -> None:
    rows = lines(6000)
    packed = bz2.compress(rows)
    for place in (len(packed) // 2, len(packed) // 2 + 1000):
        damaged = packed[:place] + bytes([packed[place] ^ 4]) + packed[place + 1 :]
        *found, last = read(damaged, "f.jsonl.bz2")
        assert isinstance(last, Unreadable)
        assert last.error.startswith("damaged bzip2 stream")
        assert len(found) > 0 and found == read(rows, "f.jsonl.bz2")[: len(found)]
        assert (last.num_records or 0) > 1000


def test_a_wrong_checksum_of_a_block_of_bzip2_refutes_all_of_it() -> None:
    first, second = lines(1000), ROWS
    packed = bz2.compress(second)
    damaged = bz2.compress(first) + packed[:10] + bytes([packed[10] ^ 1]) + packed[11:]
    *found, last = read(damaged, "f.jsonl.bz2")
    assert isinstance(last, Unreadable)
    assert texts(found) == texts(read(first, "f.jsonl"))


@pytest.mark.parametrize("check", [lzma.CHECK_CRC32, lzma.CHECK_CRC64, lzma.CHECK_SHA256])
def test_what_an_xz_stream_gave_before_its_damage_is_told_as_refuted(check: int) -> None:
    rows = lines(2000)
    packed = lzma.compress(rows, check=check)
    place = len(packed) - 40
    for data in (packed[:place] + bytes([packed[place] ^ 4]) + packed[place + 1 :],):
        *_, last = read(data, "f.jsonl.xz")
        assert isinstance(last, Unreadable)
        assert "damaged xz stream" in last.error
        assert (last.offset, (last.num_records or 0) > 1500) == (0, True)


@BOTH
@given(data=st.data())
def test_any_damage_is_told_and_nothing_is_raised(ending: str, data: st.DataObject) -> None:
    packed = bytearray(PACKERS[ending](good("one") + good("two")))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    whole = texts(read(good("one") + good("two"), "a.warc"))
    found = read(bytes(packed), f"a.warc.{ending}")
    assert texts(found) == whole or any(isinstance(item, Unreadable) for item in found)


def test_a_bomb_of_bzip2_comes_in_pieces() -> None:
    packed = bz2.compress(b"\n" * (200 << 20)) + bz2.compress(ROWS)
    assert len(packed) < 2000
    pieces = [len(piece) for piece in read_through(Cursor(io.BytesIO(packed)))]
    assert sum(pieces) == (200 << 20) + len(ROWS)
    assert max(pieces) <= 1 << 20


def zstd_frame(window_log: int, content: bytes) -> bytes:
    """A frame of one raw block whose head names this window (RFC 8878, 3.1.1)."""
    block = (len(content) << 3 | 1).to_bytes(3, "little") + content
    return b"\x28\xb5\x2f\xfd\x00" + bytes([(window_log - 10) << 3]) + block


@pytest.mark.parametrize("window_log", [28, 30, 31])
@pytest.mark.parametrize("name", ["f.jsonl.zst", "f.jsonl"])
def test_a_window_above_the_bound_is_named_with_the_key_that_raises_it(window_log: int, name: str) -> None:
    data = zstd_frame(window_log, ROWS)
    (item,) = read(data, name)
    assert isinstance(item, Unreadable)
    assert f"refers back over {1 << window_log} bytes" in item.error
    assert f"set limits.max_window_bytes = {1 << window_log}" in item.error
    assert "damaged" not in item.error
    assert len(read(data, name, max_window_bytes=1 << window_log)) == 50
    assert len(read(zstd_frame(27, ROWS), name)) == 50


@pytest.mark.parametrize("num_bytes", [2000, 70_000, 200_000])
def test_a_frame_of_one_segment_has_its_content_as_window(num_bytes: int) -> None:
    row = b'{"text": "%s"}' % (b"x" * num_bytes)
    packed = zstandard.ZstdCompressor().compress(row)
    (item,) = read(packed, "f.jsonl.zst", max_window_bytes=len(row) - 1)
    assert isinstance(item, Unreadable) and f"refers back over {len(row)} bytes" in item.error
    assert texts(read(packed, "f.jsonl.zst", max_window_bytes=len(row))) == ["x" * num_bytes]


def test_a_wide_frame_behind_others_is_named_too() -> None:
    data = zstandard.ZstdCompressor().compress(ROWS) + zstd_frame(31, ROWS)
    *rows, last = read(data, "f.jsonl.zst")
    assert len(rows) == 50
    assert isinstance(last, Unreadable)
    assert "limits.max_window_bytes" in last.error


def test_a_window_that_the_library_has_not_is_not_offered() -> None:
    (item,) = read(zstd_frame(36, ROWS), "f.jsonl.zst", max_window_bytes=2 << 30)
    assert isinstance(item, Unreadable)
    assert "at most 2147483648 can be held" in item.error


def test_an_xz_dictionary_above_the_bound_is_named_with_the_key() -> None:
    wide = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 160 << 20}]
    data = lzma.compress(ROWS, filters=wide)
    (item,) = read(data, "f.jsonl.xz")
    assert isinstance(item, Unreadable)
    assert "an xz stream refers back over more than limits.max_window_bytes = 134217728" in item.error
    assert len(read(data, "f.jsonl.xz", max_window_bytes=256 << 20)) == 50


@given(moves=st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 400)), max_size=12))
def test_an_unpacked_stream_is_its_content_wherever_it_is_read(moves: list[tuple[int, int]]) -> None:
    content = random.Random(3).randbytes(2500)
    stream = UnpackedStream(io.BytesIO(bz2.compress(content[:1000]) + bz2.compress(content[1000:])), 1 << 20)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("stages.reading.unpacked._KEPT_BYTES", 50)
        for place, size in moves:
            stream.seek(place)
            found = stream.read(size)
            assert content[place : place + len(found)] == found and (found or place >= len(content))
            assert stream.tell() == place + len(found)
