"""The laws of reading WARCs under any damage: nothing raises, nothing is lost in silence, neighbours
survive."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from stages.document import Document
from stages.reading.content import Content
from stages.reading.reader import InputCounts, ReadOptions, Unreadable, read_documents
from stages.reading.warc import documents as warc
from stages.reading.warc.head import NEXT_WARC
from stages.reading.warc.headers import END_OF_HEADERS
from tests.support.inputs.make_warc import arc_record, good, http, member, page

pytestmark = pytest.mark.hostile("stages/reading")

RECORDS = [good(name) for name in ("one", "two", "three", "four")]
ARC_RECORDS = [
    arc_record(http(page(name)), f"https://example.org/{name}") for name in ("one", "two", "three", "four")
]
FILES = {
    "plain.arc": ARC_RECORDS,
    "gzip.arc.gz": [member(each) for each in ARC_RECORDS],
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


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith("plain")])
@given(data=st.data())
def test_damage_in_one_member_leaves_the_others_as_they_were(name: str, data: st.DataObject) -> None:
    whole = [item.doc_id for item in read(b"".join(FILES[name]), name) if isinstance(item, Document)]
    assert len(whole) == len(RECORDS)
    damaged, index = damage(FILES[name], data)
    found = [item.doc_id for item in read(damaged, name) if isinstance(item, Document)]
    assert found in (whole, whole[:index] + whole[index + 1 :])


@given(
    data=st.binary(max_size=400), name=st.sampled_from([*FILES, "x.jsonl", "x.jsonl.gz", "x.parquet", "x"])
)
def test_any_bytes_give_documents_or_a_stretch_that_is_named_as_unreadable(data: bytes, name: str) -> None:
    stretches = [stretch(item) for item in read(data, name)]
    only_blank_lines = name in ("x.jsonl", "x.jsonl.gz") and data and not data.strip()
    assert stretches or only_blank_lines or not data
    assert all(offset >= 0 and length >= 0 for offset, length in stretches)
    assert stretches == sorted(stretches)


@st.composite
def pieces_of_a_file(draw: st.DrawFn) -> list[tuple[bytes, str | None]]:
    """Well-made members with the name of their page, and between them what is none."""
    names = iter("abcdefghijkl")
    whole = st.builds(lambda name: (member(good(name)), name), st.just(names).map(next))
    junk = st.one_of(
        st.binary(min_size=1, max_size=60),
        st.sampled_from(
            [
                b"\r\n",
                bytes(30),
                b"WARC/1.0\r\nWARC-Type: response\r\n",
                member(b"no record"),
                b"\x1f\x8b\x08",
            ]
        ),
        st.integers(1, 200).map(lambda num_bytes: member(good("cut"))[:num_bytes]),
    ).map(lambda data: (data, None))
    return draw(st.lists(st.one_of(whole, whole, junk), max_size=10))


@given(pieces=pieces_of_a_file())
def test_each_byte_of_a_file_is_in_one_record_or_one_unreadable_stretch(
    pieces: list[tuple[bytes, str | None]],
) -> None:
    data = b"".join(piece for piece, _ in pieces)
    items = read(data, "x.warc.gz")
    end = 0
    for offset, length in map(stretch, items):
        assert offset == end
        end += length
    assert end == len(data)
    found = [str(item.url).rpartition("/")[2] for item in items if isinstance(item, Document)]
    assert found == [name for _, name in pieces if name is not None]


@given(names=st.lists(st.sampled_from("abcd"), min_size=1, max_size=6), data=st.data())
def test_each_byte_of_a_plain_file_is_in_one_record_or_one_unreadable_stretch(
    names: list[str], data: st.DataObject
) -> None:
    """Whatever stands before them, and wherever one of them breaks off."""
    junk = data.draw(st.binary(max_size=60))
    records = [good(name) for name in names]
    broken = data.draw(st.integers(0, len(records) - 1))
    # Behind fewer bytes than begin a record, the one before could be longer than it says.
    records[broken] = records[broken][: data.draw(st.integers(5, len(records[broken]) - 5))]
    items = read(junk + b"".join(records), "x.warc")
    end = 0
    for offset, length in map(stretch, items):
        assert offset == end
        end += length
    assert end == len(junk) + sum(map(len, records))
    found = [str(item.url).rpartition("/")[2] for item in items if isinstance(item, Document)]
    assert found == [name for number, name in enumerate(names) if number != broken]


def test_each_byte_behind_damage_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pattern:
        """The pattern of the next record, which counts the bytes that are searched."""

        num_searched = 0

        def finditer(self, window: bytes, start: int = 0, end: int = 1 << 62) -> Iterator[re.Match[bytes]]:
            self.num_searched += min(end, len(window)) - start
            return NEXT_WARC.finditer(window, start, end)

    pattern, noise = Pattern(), b"()" * (1 << 20)
    monkeypatch.setattr(warc, "_kind", lambda first: pattern)
    monkeypatch.setattr(warc, "_NEXT_OF_ANY", pattern)
    monkeypatch.setitem(warc._KINDS, "any", pattern)  # type: ignore[arg-type]
    found = read(b"".join([RECORDS[0], noise, b"\n", RECORDS[1]]), "plain.warc")
    assert isinstance(found[-1], Document) and len(found) == 2
    assert len(noise) <= pattern.num_searched < 1.2 * len(noise)


@pytest.mark.parametrize("line", [b"a: b\r\n", b"a", b" \t", b"a\n" + b" " * 999 + b"a"], ids=repr)
def test_each_byte_of_a_head_without_an_end_is_searched_twice_at_most(line: bytes) -> None:
    class Pattern:
        """The end of a head, which counts the bytes that are searched for it."""

        num_searched = 0

        def search(self, data: bytes, start: int, end: int) -> re.Match[bytes] | None:
            self.num_searched += min(end, len(data)) - start
            return END_OF_HEADERS.search(data, start, end)

    pattern, head = Pattern(), b"HTTP/1.1 200 OK\n" + line * (200_000 // len(line))
    pieces = iter([head[at : at + 100] for at in range(0, len(head), 100)] + [b"\n\nthe body"])
    content = Content(lambda: next(pieces, b""))
    assert content.take_through(pattern, len(head) - 1) is None  # type: ignore[arg-type]
    assert pattern.num_searched <= 2 * len(head)
    assert content.position == 0 and content.peek(4) == b"HTTP"
    taken = content.take_through(END_OF_HEADERS, 1 << 20)
    assert taken is not None and (taken + content.peek(20)).startswith(head + b"\n") and taken.endswith(b"\n")


@given(st.text("a\r\n \t", max_size=60), st.lists(st.integers(1, 9), min_size=1), st.integers(1, 60))
def test_a_head_ends_where_it_would_in_one_piece(text: str, sizes: list[int], limit: int) -> None:
    data, pieces = text.encode(), []
    for size in itertools.cycle(sizes):
        if not data:
            break
        pieces.append(data[:size])
        data = data[size:]
    data, more = text.encode(), iter(pieces)
    content = Content(lambda: next(more, b""))
    whole = END_OF_HEADERS.search(data, 0, limit)
    assert content.take_through(END_OF_HEADERS, limit) == (data[: whole.end()] if whole else None)
    assert content.peek(100) == (data[whole.end() :] if whole else data)
