"""WACZ files: what crawlers write, and zips that lie about themselves."""

from __future__ import annotations

import io
import struct
import zipfile
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from stages.document import Document
from stages.reading.reader import InputCounts, ReadOptions, Unreadable, read_documents, read_one
from tests.support.inputs.make_warc import arc_begin, arc_record, good, http, member, page, record, wacz

ARCHIVE = member(good("a")) + member(record(b"x", "info", warc_type="warcinfo")) + member(good("b"))
METHODS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]


def read(
    data: bytes, name: str = "x.wacz", **more: Any
) -> tuple[list[Document], list[Unreadable], InputCounts]:
    counts = InputCounts()
    options = ReadOptions(source="s", file=name, size=len(data), max_document_bytes=1 << 20, **more)
    items = list(read_documents(io.BytesIO(data), options, counts))
    places = [item.place.offset if isinstance(item, Document) else item.offset for item in items]
    assert places == sorted(places)
    documents = [item for item in items if isinstance(item, Document)]
    for document in documents:
        assert read_one(io.BytesIO(data), document.place.offset, options, document.doc_id) == document
    return documents, [item for item in items if isinstance(item, Unreadable)], counts


def names(documents: list[Document]) -> list[str]:
    return [str(document.url).rpartition("/")[2] for document in documents]


@pytest.mark.parametrize("name", ["x.wacz", "x.zip", "x", "x.warc.gz"])
@pytest.mark.parametrize("method", METHODS)
def test_the_warc_files_of_a_wacz_are_read(method: int, name: str) -> None:
    data = wacz({"archive/data.warc.gz": ARCHIVE}, method)
    documents, unreadable, counts = read(data, name)
    assert ([document.payload for document in documents], unreadable) == ([page("a"), page("b")], [])
    assert counts.by_type == {"response": 2, "warcinfo": 1}
    assert counts.notes == {"other_members": 3}


def test_the_offset_of_a_stored_record_is_that_in_the_zip() -> None:
    data = wacz({"archive/data.warc.gz": ARCHIVE})
    documents, _, counts = read(data)
    for document in documents:
        place = document.place
        assert data[place.offset : place.offset + place.length] == member(good(names([document])[0]))
    assert counts.end == len(data)


def test_the_offset_of_a_deflated_record_is_counted_behind_the_zip() -> None:
    archives = {"archive/1.warc.gz": ARCHIVE, "archive/2.warc.gz": member(good("c"))}
    data = wacz(archives, zipfile.ZIP_DEFLATED)
    documents, _, counts = read(data)
    unpacked = b"".join(archives.values())
    for document in documents:
        begin = document.place.offset - len(data)
        assert unpacked[begin : begin + document.place.length] == member(good(names([document])[0]))
    assert counts.end == len(data) + len(unpacked)


PLACES = {
    "archive/data.warc.gz": True,
    "archive/rec-0f3a-20240501.warc": True,
    "archive/crawl/2024/data.warc.gz": True,
    "my-crawl/archive/data.warc.gz": True,
    "my-crawl\\archive\\data.warc.gz": True,
    "ARCHIVE/DATA.WARC.GZ": True,
    "archive/data.arc.gz": True,
    "archive/data.warc.zst": True,
    "archive/": False,
    "archive/notes.txt": False,
    "data.warc.gz": False,
    "raw/data.warc.gz": False,
    "my-archive/data.warc.gz": False,
}


@pytest.mark.parametrize("name", PLACES)
def test_members_are_chosen_by_their_name(name: str) -> None:
    documents, unreadable, counts = read(wacz({name: ARCHIVE if not name.endswith("/") else b""}))
    assert names(documents) == (["a", "b"] if PLACES[name] else [])
    assert counts.notes == {"other_members": 3 + (not PLACES[name] and not name.endswith("/"))}
    if not PLACES[name]:
        assert ["no WACZ: unpack it" in each.error for each in unreadable] == [True]


@pytest.mark.parametrize("method", METHODS)
def test_a_crawl_of_several_files_of_several_kinds(method: int) -> None:
    frames = b"".join(zstandard.ZstdCompressor().compress(good(name)) for name in "cd")
    old = b"".join(map(member, [arc_begin(), arc_record(http(page("g")), "https://example.org/g")]))
    archives = {
        "archive/1.warc.gz": ARCHIVE,
        "archive/2.warc.zst": frames,
        "archive/3.warc": good("e") + good("f"),
        "archive/4.arc.gz": old,
    }
    documents, unreadable, _ = read(wacz(archives, method))
    assert (names(documents), unreadable) == (list("abcdefg"), [])


def test_stored_and_deflated_files_stand_beside_each_other() -> None:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as packed:
        packed.writestr("archive/1.warc.gz", member(good("packed")), zipfile.ZIP_DEFLATED)
        packed.writestr("archive/2.warc.gz", member(good("stored")), zipfile.ZIP_STORED)
    assert names(read(sink.getvalue())[0]) == ["stored", "packed"]


@pytest.mark.parametrize("method", METHODS)
def test_a_zip64_is_read(method: int) -> None:
    class Unseekable(io.BytesIO):  # a stream: sizes stand behind the data
        def seekable(self) -> bool:
            return False

        def seek(self, *_: int) -> int:
            raise io.UnsupportedOperation

        def tell(self) -> int:
            raise io.UnsupportedOperation

    for sink in (io.BytesIO(), Unseekable()):
        with (
            zipfile.ZipFile(sink, "w", method) as packed,
            packed.open("archive/data.warc.gz", "w", force_zip64=True) as archive,
        ):
            archive.write(ARCHIVE)
        assert names(read(sink.getvalue())[0]) == ["a", "b"]


def changed(data: bytes, field: int, value: bytes, *, name: bytes = b"archive/data.warc.gz") -> bytes:
    """The zip with other bytes in the entry that its directory has of a member."""
    at = data.rindex(name) - 46 + field
    return data[:at] + value + data[at + len(value) :]


FLAGS, METHOD, CRC, PACKED_BYTES, NUM_BYTES, HEADER = 8, 10, 16, 20, 24, 42
"""Where these stand in an entry of the directory (APPNOTE.TXT, section 4.3.12)."""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        (FLAGS, b"\x01\0", "encrypted"),
        (METHOD, b"\x0c\0", "method 12 (bzip2)"),
        (METHOD, b"\x5d\0", "method 93"),
        (METHOD, b"\xff\x7f", "method 32767"),
        (PACKED_BYTES, struct.pack("<I", 1 << 31), "beyond it"),
        (HEADER, struct.pack("<I", 1 << 31), "beyond it"),
        (HEADER, struct.pack("<I", 5), "no member of the zip begins where"),
    ],
)
def test_a_member_that_cannot_be_read_is_named(method: int, field: int, value: bytes, says: str) -> None:
    data = wacz({"archive/data.warc.gz": ARCHIVE, "archive/more.warc.gz": member(good("c"))}, method)
    documents, unreadable, counts = read(changed(data, field, value))
    assert names(documents) == ["c"]
    assert [says in each.error for each in unreadable] == [True]
    assert counts.end is not None
    assert all(0 <= each.offset <= each.offset + each.length <= counts.end for each in unreadable)


@pytest.mark.parametrize("method", METHODS)
def test_a_member_that_its_checksum_refutes_is_told_behind_what_was_read_of_it(method: int) -> None:
    documents, unreadable, _ = read(
        changed(wacz({"archive/data.warc.gz": ARCHIVE}, method), CRC, b"\1\2\3\4")
    )
    assert names(documents) == ["a", "b"]
    assert [("checksum" in each.error, each.length) for each in unreadable] == [(True, 0)]


@pytest.mark.parametrize("more", [-40, -1, 1, 1000])
def test_a_deflated_member_of_another_length_than_is_said(more: int) -> None:
    data = wacz({"archive/data.warc.gz": ARCHIVE}, zipfile.ZIP_DEFLATED)
    lying = changed(data, NUM_BYTES, struct.pack("<I", len(ARCHIVE) + more))
    documents, unreadable, counts = read(lying)
    assert names(documents) == (["a", "b"] if more > 0 else ["a"])
    assert ("more bytes" if more < 0 else "fewer bytes") in unreadable[-1].error
    assert unreadable[-1].offset + unreadable[-1].length == counts.end == len(data) + len(ARCHIVE) + more


def test_a_stored_member_of_two_lengths_is_named() -> None:
    data = wacz({"archive/data.warc.gz": ARCHIVE})
    documents, unreadable, _ = read(changed(data, NUM_BYTES, struct.pack("<I", len(ARCHIVE) + 1)))
    assert (documents, ["unpacked" in each.error for each in unreadable]) == ([], [True])


@pytest.mark.parametrize("method", METHODS)
def test_members_that_lie_over_each_other_are_read_once(method: int) -> None:
    names_of = [f"archive/{number}.warc.gz" for number in range(5)]
    data = wacz(dict.fromkeys(names_of, ARCHIVE), method)
    header = data.index(b"PK\x03\x04", 4)
    for name in names_of[1:]:
        data = changed(data, HEADER, struct.pack("<I", header), name=name.encode())
    documents, unreadable, _ = read(data)
    assert names(documents) == ["a", "b"]
    assert ["over another" in each.error for each in unreadable] == [True] * 4


@pytest.mark.parametrize("method", METHODS)
def test_a_local_header_that_leads_into_the_next_member_is_named(method: int) -> None:
    data = bytearray(wacz({"archive/data.warc.gz": ARCHIVE, "archive/x.warc.gz": member(good("x"))}, method))
    at = data.index(b"archive/data.warc.gz") - 30
    data[at + 28 : at + 30] = struct.pack("<H", len(ARCHIVE) + 60)
    documents, unreadable, _ = read(bytes(data))
    assert (names(documents), ["over what follows" in each.error for each in unreadable]) == (["x"], [True])


def test_a_damaged_deflated_member_costs_what_lies_behind_the_damage() -> None:
    archive = b"".join(good(name) for name in "abcdef")
    data = bytearray(wacz({"archive/data.warc": archive, "archive/x.warc": good("x")}, zipfile.ZIP_DEFLATED))
    at = data.index(b"archive/data.warc") + 200
    data[at : at + 40] = b"\xff" * 40
    documents, unreadable, counts = read(bytes(data))
    assert names(documents)[-1] == "x"
    assert unreadable
    assert counts.end == len(data) + len(archive) + len(good("x"))


def test_a_bomb_in_a_bomb_is_given_up_at_a_hundred_times_its_bytes() -> None:
    bomb = member(record(http(bytes(8 << 20)), "bomb"))
    archive = member(good("a")) + bomb * 60
    data = wacz(
        {"archive/data.warc.gz": archive, "archive/x.warc.gz": member(good("x"))}, zipfile.ZIP_DEFLATED
    )
    assert len(data) < len(archive) / 100
    documents, unreadable, _ = read(data, max_compression_ratio=10**9)
    assert (names(documents)[0], names(documents)[-1]) == ("a", "x")
    assert any("100 times" in each.error for each in unreadable)


def test_pages_that_are_much_alike_are_no_bomb() -> None:
    archive = good("a") * 500
    data = wacz({"archive/data.warc": archive}, zipfile.ZIP_DEFLATED)
    assert len(data) < len(archive) / 100
    documents, unreadable, _ = read(data)
    assert (len(documents), unreadable) == (500, [])


def test_a_wacz_that_is_cut_gives_what_lies_before_the_cut() -> None:
    data = wacz({"archive/data.warc.gz": ARCHIVE, "archive/x.warc.gz": member(good("x"))})
    documents, unreadable, _ = read(data[: data.rindex(member(good("x"))) + 20])
    assert names(documents) == ["a", "b"]
    assert "the zip's directory cannot be read" in unreadable[0].error
    end = 0
    for offset, length in sorted(
        [(each.offset, each.length) for each in unreadable]
        + [(d.place.offset, d.place.length) for d in documents]
    ):
        assert offset >= end
        end = offset + length


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (12, b"\xff\xff\xff\x7f"),
        (16, b"\xff\xff\xff\x7f"),
        (12, b"\0\0\0\0"),
        (16, b"\0\0\0\0"),
        (10, b"\xff\xff"),
    ],
)
def test_a_directory_that_lies_about_itself(field: int, value: bytes) -> None:
    data = wacz({"archive/data.warc.gz": ARCHIVE})
    at = data.rindex(b"PK\x05\x06") + field
    documents, unreadable, _ = read(data[:at] + value + data[at + len(value) :])
    assert names(documents) in (["a", "b"], [])
    assert documents or unreadable


def test_a_member_without_a_name_is_passed_over() -> None:
    documents, unreadable, counts = read(wacz({"archive/data.warc.gz": ARCHIVE, "": b"x"}))
    assert (names(documents), unreadable, counts.notes) == (["a", "b"], [], {"other_members": 4})


def test_a_directory_that_is_too_long_is_not_held() -> None:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as packed:
        packed.writestr("archive/data.warc.gz", ARCHIVE)
        for number in range(60_000):
            packed.writestr(zipfile.ZipInfo(f"pages/{number:040d}"), b"")
    documents, unreadable, _ = read(sink.getvalue())
    assert names(documents) == ["a", "b"]
    assert "expected at most" in unreadable[0].error


def test_a_deflated_member_without_its_header_is_told_in_the_order_of_the_records() -> None:
    second = good("c") + good("d")
    whole = wacz({"archive/1.warc.gz": ARCHIVE, "archive/2.warc": second}, zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(io.BytesIO(whole)) as packed:
        at = packed.getinfo("archive/2.warc").header_offset
    documents, unreadable, counts = read(whole[:at] + bytes(4) + whole[at + 4 :])
    assert names(documents) == ["a", "b"]
    assert [(item.offset + item.length, item.length) for item in unreadable] == [(counts.end, len(second))]


@given(data=st.data())
def test_any_damage_raises_nothing_and_no_byte_is_read_twice(data: st.DataObject) -> None:
    whole = wacz(
        {"archive/1.warc.gz": ARCHIVE, "archive/2.warc": good("c") + good("d")},
        data.draw(st.sampled_from(METHODS)),
    )
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:at] + data.draw(st.binary(max_size=8)) + whole[at + data.draw(st.integers(0, 8)) :]
    documents, unreadable, counts = read(damaged, data.draw(st.sampled_from(["x.wacz", "x.warc"])))
    assert documents or unreadable
    assert all(item.fault is None for item in unreadable)
    end = 0
    spans = {(item.place.offset, item.place.length) for item in documents}
    for offset, length in sorted([*spans, *((item.offset, item.length) for item in unreadable)]):
        assert offset >= end
        end = offset + length
    assert counts.end is not None and end <= counts.end
