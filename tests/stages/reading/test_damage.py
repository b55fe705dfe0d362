"""The laws of reading WARCs under any damage: nothing raises, nothing is lost in silence, neighbours survive."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from stages.document import Document
from stages.reading import warc
from stages.reading.reader import InputCounts, ReadOptions, Unreadable, read_documents
from tests.support.inputs.make_warc import good, member

RECORDS = [good(name) for name in ("one", "two", "three", "four")]
FILES = {
    "plain.warc": RECORDS,
    "gzip.warc.gz": [member(each) for each in RECORDS],
    "zstd.warc.zst": [zstandard.ZstdCompressor(write_checksum=True).compress(each) for each in RECORDS],
}


def read(data: bytes, name: str, counts: InputCounts | None = None) -> list[Document | Unreadable]:
    return list(read_documents(io.BytesIO(data), ReadOptions(source="s", file=name), counts))


def stretch(item: Document | Unreadable) -> tuple[int, int]:
    place = item.place if isinstance(item, Document) else item
    return place.offset, place.length


def damage(members: list[bytes], data: st.DataObject) -> tuple[bytes, int]:
    """The file with one member replaced, cut or changed somewhere; and which one."""
    index = data.draw(st.integers(0, len(members) - 1))
    victim = members[index]
    at = data.draw(st.integers(0, len(victim) - 1))
    ways = (
        victim[:at],
        victim[:at] + bytes([victim[at] ^ data.draw(st.integers(1, 255))]) + victim[at + 1 :],
        victim[:at] + data.draw(st.binary(max_size=40)) + victim[at:],
        data.draw(st.binary(max_size=300)),
    )
    return b"".join([*members[:index], data.draw(st.sampled_from(ways)), *members[index + 1 :]]), index


@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
def test_damage_never_raises_and_places_tile_the_file(name: str, data: st.DataObject) -> None:
    damaged, _ = damage(FILES[name], data)
    counts = InputCounts()
    end = num_gaps = 0
    for offset, length in [*sorted(set(map(stretch, read(damaged, name, counts)))), (len(damaged), 0)]:
        assert offset >= end
        num_gaps += offset > end
        end = offset + length
    # Damage can make a record one that is no document: it is counted then.
    assert end == len(damaged)
    assert num_gaps <= counts.num_records - counts.num_documents


@pytest.mark.parametrize("name", [name for name in FILES if name != "plain.warc"])
@given(data=st.data())
def test_damage_in_one_member_leaves_the_others_as_they_were(name: str, data: st.DataObject) -> None:
    whole = [item.doc_id for item in read(b"".join(FILES[name]), name) if isinstance(item, Document)]
    assert len(whole) == len(RECORDS)
    damaged, index = damage(FILES[name], data)
    found = [item.doc_id for item in read(damaged, name) if isinstance(item, Document)]
    assert found in (whole, whole[:index] + whole[index + 1 :])


@given(data=st.binary(max_size=400), name=st.sampled_from([*FILES, "x.jsonl", "x.jsonl.gz", "x.parquet", "x"]))
def test_any_bytes_give_documents_or_a_stretch_that_is_named_as_unreadable(data: bytes, name: str) -> None:
    stretches = [stretch(item) for item in read(data, name)]
    only_blank_lines = name in ("x.jsonl", "x.jsonl.gz") and data and not data.strip()
    assert stretches or only_blank_lines
    assert all(offset >= 0 and length >= 0 for offset, length in stretches)
    assert stretches == sorted(stretches)


def test_each_byte_behind_damage_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pattern:
        """The pattern of the next record, which counts the bytes that are searched."""

        num_searched = 0

        def finditer(self, window: bytes, start: int = 0, end: int = 1 << 62) -> Iterator[re.Match[bytes]]:
            self.num_searched += min(end, len(window)) - start
            return warc._NEXT_RECORD.finditer(window, start, end)

    pattern, noise = Pattern(), b"()" * (1 << 20)
    monkeypatch.setattr(warc, "_kind", lambda first: pattern)
    monkeypatch.setattr(warc, "_NEXT_OF_ANY", pattern)
    found = read(b"".join([RECORDS[0], noise, b"\n", RECORDS[1]]), "plain.warc")
    assert isinstance(found[-1], Document) and len(found) == 2
    assert len(noise) <= pattern.num_searched < 1.1 * len(noise)
