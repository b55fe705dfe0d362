"""Where records begin and end, whatever their heads say: heads that break off, lengths that are too short,
versions."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
import zstandard

from stages.document import Document
from stages.reading.reader import InputCounts, ReadOptions, Unreadable, read_documents, read_one
from tests.support.inputs.make_warc import good, http, member, page, record

pytestmark = pytest.mark.hostile("stages/reading")

Read = tuple[list[Document], list[Unreadable], InputCounts]


def read(data: bytes, name: str = "x.warc.gz", max_document_bytes: int = 1 << 20) -> Read:
    counts = InputCounts()
    options = ReadOptions(source="s", file=name, size=len(data), max_document_bytes=max_document_bytes)
    items = list(read_documents(io.BytesIO(data), options, counts))
    documents = [item for item in items if isinstance(item, Document)]
    for document in documents:
        assert read_one(io.BytesIO(data), document.place.offset, options, document.doc_id) == document
    return documents, [item for item in items if isinstance(item, Unreadable)], counts


def names(documents: list[Document]) -> list[str]:
    return [str(document.url).rpartition("/")[2] for document in documents]


def frame(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


REQUEST = b"WARC/1.0\r\nWARC-Type: request\r\nWARC-Target-URI: http://a.example/\r\n"
BROKEN_HEADS = {
    "in a name": REQUEST + b"Content-Le\r\n",
    "behind a line": REQUEST,
    "behind the version": b"WARC/1.0\r\n",
    "within a line": REQUEST + b"Content-Le",
    "within a value": REQUEST + b"WARC-Date: 2026-01",
    "with a length": REQUEST + b"Content-Length: 99\r\n",
    "of another version": REQUEST.replace(b"1.0", b"1.1"),
    "with bare line feeds": REQUEST.replace(b"\r\n", b"\n"),
    "in small letters": REQUEST.replace(b"WARC/1.0", b"warc/1.0"),
}


@pytest.mark.parametrize("head", BROKEN_HEADS)
def test_a_head_that_runs_into_the_next_record_costs_no_page_of_a_plain_file(head: str) -> None:
    broken = BROKEN_HEADS[head]
    documents, unreadable, _ = read(good("before") + broken + good("behind") + good("last"), "x.warc")
    assert names(documents) == ["before", "behind", "last"]
    assert [(u.offset, u.length) for u in unreadable] == [(len(good("before")), len(broken))]
    assert "breaks off" in unreadable[0].error


@pytest.mark.parametrize("pack", [member, frame])
@pytest.mark.parametrize("head", BROKEN_HEADS)
def test_a_head_that_runs_into_the_next_record_costs_no_page_of_a_member(
    head: str, pack: Callable[[bytes], bytes]
) -> None:
    data = pack(good("before") + BROKEN_HEADS[head] + good("behind") + good("last"))
    documents, unreadable, _ = read(data)
    assert names(documents) == ["before", "behind", "last"]
    assert len(unreadable) == 1


@pytest.mark.parametrize("version", ["WARC/1.0", "warc/1.0"])
def test_the_next_record_may_be_written_in_small_letters(version: str) -> None:
    behind = record(http(page("behind")), "behind", version=version)
    documents, unreadable, _ = read(good("before") + REQUEST + behind, "x.warc")
    assert (names(documents), len(unreadable)) == (["before", "behind"], 1)


@pytest.mark.parametrize("pack", [member, bytes])
def test_a_value_that_ends_as_a_version_does_breaks_nothing_off(pack: Callable[[bytes], bytes]) -> None:
    urls = ["https://example.org/specification/WARC/1.0", "https://example.org/warc/1.1"]
    data = b"".join(pack(record(http(page(url)), url, warc_target_uri=url)) for url in urls)
    documents, unreadable, _ = read(data, "x")
    assert ([document.url for document in documents], unreadable) == (urls, [])


VERSIONS = [
    "WARC/1.0",
    "WARC/1.1",
    "WARC/0.17",
    "WARC/0.18",
    "warc/1.0",
    "Warc/1.1",
    "WARC/1.0 ",
    "WARC/1.0\t",
]


@pytest.mark.parametrize("pack", [member, frame, bytes])
@pytest.mark.parametrize("version", VERSIONS)
def test_versions_of_real_writers_are_read(version: str, pack: Callable[[bytes], bytes]) -> None:
    records = [record(http(page(name)), name, version=version) for name in "abc"]
    documents, unreadable, _ = read(b"".join(map(pack, records)), "x")
    assert (names(documents), unreadable) == (["a", "b", "c"], [])


def lines(data: bytes) -> bytes:
    return data.replace(b"\r\n", b"\n")


ODD_HEADS: dict[str, Callable[[bytes], bytes]] = {
    "bare line feeds": lambda data: lines(data.split(b"HTTP/")[0]) + b"HTTP/" + data.split(b"HTTP/", 1)[1],
    "spaces before colons": lambda data: data.replace(b"Content-Length:", b"Content-Length :"),
    "spaces around a length": lambda data: data.replace(b"Content-Length: ", b"Content-Length:  \t "),
    "a folded value": lambda data: data.replace(b"WARC-Type: ", b"X-Long: one\r\n two\r\nWARC-Type: "),
    "names in small letters": lambda data: data.replace(b"Content-Length", b"content-length"),
    "a field twice": lambda data: data.replace(b"WARC-Type: ", b"WARC-Type: response\r\nWARC-Type: "),
    "no line ends behind": lambda data: data.removesuffix(b"\r\n\r\n"),
    "one line end behind": lambda data: data.removesuffix(b"\r\n"),
    "many line ends behind": lambda data: data + b"\r\n\n\r\n" * 9,
}


@pytest.mark.parametrize("pack", [member, bytes])
@pytest.mark.parametrize("odd", ODD_HEADS)
def test_heads_of_real_writers_are_read(odd: str, pack: Callable[[bytes], bytes]) -> None:
    data = b"".join(pack(ODD_HEADS[odd](good(name))) for name in "abc")
    documents, unreadable, _ = read(data, "x")
    assert [(document.url, document.payload) for document in documents] == [
        (f"https://example.org/{name}", page(name)) for name in "abc"
    ]
    assert unreadable == []


def short(name: str, body: str, *, by: int | None = None) -> bytes:
    """A record whose Content-Length counts characters, or is too short `by` so many bytes."""
    block = http(body.encode())
    length = len(block) - by if by is not None else len(block.decode())
    return record(block, name, content_length=str(length))


TEXT = "<html><body><p>" + "Zażółć gęślą jaźń, 日本語のページ. " * 40 + "</p></body></html>"
SHORT = {
    "counts characters": lambda: short("odd", TEXT),
    "counts UTF-16 units": lambda: record(
        http((TEXT + "😀" * 9).encode()), "odd", content_length=str(len(http(TEXT.encode()).decode()) + 18)
    ),
    "one byte too short": lambda: short("odd", TEXT, by=1),
    "ends in the HTTP head": lambda: record(http(TEXT.encode()), "odd", content_length="30"),
    "none": lambda: record(http(TEXT.encode()), "odd", content_length="0"),
    "counts the body": lambda: record(http(TEXT.encode()), "odd", content_length=str(len(TEXT.encode()))),
    "page ends with line ends": lambda: short("odd", TEXT + "\r\n\r\n\n", by=9),
}


@pytest.mark.parametrize("pack", [member, frame])
@pytest.mark.parametrize("kind", SHORT)
def test_a_record_in_a_member_of_its_own_is_read_to_the_end_of_that(
    kind: str, pack: Callable[[bytes], bytes]
) -> None:
    odd = SHORT[kind]()
    data = b"".join(map(pack, [good("before"), odd, good("behind")]))
    documents, unreadable, counts = read(data)
    assert names(documents) == ["before", "odd", "behind"]
    assert documents[1].payload == odd.split(b"\r\n\r\n", 2)[2].removesuffix(b"\r\n\r\n")
    assert (unreadable, counts.notes, counts.num_records) == ([], {"mended": 1}, 3)
    # It is the document that it would be with the right length.
    right = record(http(documents[1].payload), "odd")
    (same,), _, _ = read(pack(right))
    assert replace(same, place=documents[1].place) == documents[1]


LONG = {
    "counts chunks that were joined": lambda body: str(len(http(body)) + 300),
    "one byte behind the line ends": lambda body: str(len(http(body)) + 5),
    "beyond any page": lambda body: "9" * 18,
    "none": lambda body: None,
    "negative": lambda body: "-7",
    "no number": lambda body: "0x7f",
}


@pytest.mark.parametrize("pack", [member, frame])
@pytest.mark.parametrize("kind", LONG)
def test_a_length_beyond_a_member_or_none_is_bounded_by_it_and_told(
    kind: str, pack: Callable[[bytes], bytes]
) -> None:
    body = TEXT.encode()
    odd = record(http(body), "odd", content_length=LONG[kind](body))
    documents, unreadable, counts = read(b"".join(map(pack, [good("before"), odd, good("behind")])))
    assert [(document.payload, document.truncated) for document in documents] == [
        (page("before"), None),
        (body, "unspecified" if (LONG[kind](body) or "none").isdigit() else None),
        (page("behind"), None),
    ]
    assert (unreadable, counts.notes) == ([], {"mended": 1})


@pytest.mark.parametrize("kind", LONG)
def test_a_wrong_length_leads_over_no_other_record_of_its_member(kind: str) -> None:
    odd = record(http(TEXT.encode()), "odd", content_length=LONG[kind](TEXT.encode()))
    pages = [good(name) for name in "abcd"]
    for at in range(5):
        documents, unreadable, counts = read(member(b"".join([*pages[:at], odd, *pages[at:]])))
        assert (names(documents), len(unreadable), counts.notes) == (list("abcd"), 1, {})


def test_lengths_that_all_are_wrong_are_looked_behind_a_few_times() -> None:
    odd = record(http(TEXT.encode()), "odd", content_length="9" * 18)
    documents, unreadable, _ = read(member(good("a") + odd * 50) + member(good("b")))
    assert (names(documents), len(unreadable)) == (["a", "b"], 5)


def test_a_mended_record_may_be_longer_than_is_held() -> None:
    documents, _, counts = read(member(short("odd", TEXT * 9)), max_document_bytes=100)
    assert [(d.num_bytes, d.payload) for d in documents] == [(len((TEXT * 9).encode()), b"")]
    assert counts.notes == {"mended": 1}


def test_a_record_that_is_no_document_is_mended_too() -> None:
    odd = record(b"software: x\r\nhostname: y\r\n", "odd", warc_type="warcinfo", content_length="5")
    documents, unreadable, counts = read(member(odd) + member(good("a")))
    assert (names(documents), unreadable, counts.notes) == (["a"], [], {"mended": 1})
    assert counts.by_type == {"warcinfo": 1, "response": 1}


@pytest.mark.parametrize(
    "head", [record(b"", "odd", content_length="5"), b"http://a.org/ - 20080430204825 text/html 5\n"]
)
def test_a_head_without_a_block_is_a_record_of_nothing(head: bytes) -> None:
    for data in (head, head.removesuffix(b"\r\n\r\n")):
        documents, unreadable, counts = read(member(data) + member(head.replace(b" 5", b" 0")))
        assert all(document.payload == b"" for document in documents)
        assert (unreadable, counts.num_records, counts.notes) == ([], 2, {"mended": 1})


def test_records_of_one_member_are_never_joined() -> None:
    for records in (
        [short("odd", TEXT), good("b")],
        [good("a"), short("odd", TEXT)],
        [short("odd", TEXT)] * 2,
    ):
        documents, unreadable, counts = read(member(b"".join(records)) + member(good("c")))
        assert "odd" not in names(documents)
        assert names(documents)[-1] == "c"
        assert (counts.notes, len(unreadable)) == ({}, sum(b"/odd" in each for each in records))


def test_a_plain_record_that_is_too_short_is_unreadable_up_to_the_next() -> None:
    odd = short("odd", TEXT)
    documents, unreadable, counts = read(good("a") + odd + good("b"), "x.warc")
    assert (names(documents), counts.notes) == (["a", "b"], {})
    assert [(u.offset, u.length) for u in unreadable] == [(len(good("a")), len(odd))]


def test_a_plain_record_that_is_cut_costs_only_itself() -> None:
    cut = good("cut")[:-400]
    documents, unreadable, _ = read(good("a") + cut + good("b") + good("c"), "x.warc")
    assert names(documents) == ["a", "b", "c"]
    assert [(u.offset, u.length) for u in unreadable] == [(len(good("a")), len(cut))]


def test_a_member_that_its_checksum_refutes_is_not_mended() -> None:
    packed = bytearray(member(short("odd", TEXT)))
    packed[-6] ^= 1
    documents, unreadable, counts = read(bytes(packed) + member(good("a")))
    assert (names(documents), len(unreadable), counts.notes) == (["a"], 1, {})
