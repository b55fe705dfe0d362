"""Why WARC files are read by our own code: what warcio and fastwarc make of damage, and what our reader makes
of it."""

from __future__ import annotations

import io
import random
import uuid
from collections.abc import Callable

import pytest
from fastwarc.warc import ArchiveIterator as FastwarcIterator
from warcio.archiveiterator import ArchiveIterator as WarcioIterator
from warcio.exceptions import ArchiveLoadFailed

from pipeline.demo.warcs import response_member
from stages.document import Document
from stages.reading.options import ReadOptions, Unreadable
from stages.reading.reader import read_documents
from tests.support.inputs.make_warc import arc_begin, arc_record, good, http, member, page, record, wacz

pytestmark = pytest.mark.differential("stages/reading")

Pages = dict[str, bytes]

_RNG = random.Random(0)
PAGES: Pages = {
    f"http://x.example/{number}": b"<p>" + "".join(_RNG.choices("abcdefgh ", k=3000)).encode()
    for number in range(4)
}
MEMBERS = [response_member(url, "text/html", html, uuid.UUID(int=len(url))) for url, html in PAGES.items()]


def flipped() -> bytes:
    damaged = bytearray(MEMBERS[1])
    middle = len(damaged) // 2
    damaged[middle : middle + 40] = bytes(byte ^ 255 for byte in damaged[middle : middle + 40])
    return b"".join([MEMBERS[0], bytes(damaged), *MEMBERS[2:]])


DAMAGED: dict[str, bytes] = {
    "flipped bits": flipped(),
    "bytes between records": b"".join([MEMBERS[0], b"\x00no member of gzip" * 9, *MEMBERS[2:]]),
    "a record without its end": b"".join([MEMBERS[0], MEMBERS[1][:-200], *MEMBERS[2:]]),
}


def by_warcio(data: bytes, into: Pages) -> None:
    for found in WarcioIterator(io.BytesIO(data)):
        into[found.rec_headers["WARC-Target-URI"]] = found.content_stream().read()


def by_fastwarc(data: bytes, into: Pages) -> None:
    for found in FastwarcIterator(io.BytesIO(data)):
        into[found.headers["WARC-Target-URI"]] = found.reader.read()


def by_us(data: bytes) -> tuple[Pages, int]:
    items = list(
        read_documents(io.BytesIO(data), ReadOptions(source="s", file="f", max_document_bytes=1 << 20))
    )
    found = {item.url: item.payload for item in items if isinstance(item, Document)}
    return found, sum(isinstance(item, Unreadable) for item in items)


@pytest.mark.parametrize("damage", DAMAGED)
def test_the_records_behind_damage_are_found_by_us_alone(damage: str) -> None:
    urls = list(PAGES)
    others: list[tuple[Callable[[bytes, Pages], None], type[Exception]]] = [
        (by_warcio, ArchiveLoadFailed),
        (by_fastwarc, OSError),
    ]
    for read, error in others:
        found: Pages = {}
        with pytest.raises(error):
            read(DAMAGED[damage], found)
        assert list(found) == urls[:1]
    assert by_us(DAMAGED[damage]) == ({url: PAGES[url] for url in (urls[0], *urls[2:])}, 1)


def test_a_clipped_page_is_whole_to_others_and_unreadable_to_us() -> None:
    clipped = b"".join([*MEMBERS[:3], MEMBERS[3][: len(MEMBERS[3]) // 2]])
    *whole, last = PAGES
    for read in (by_warcio, by_fastwarc):
        found: Pages = {}
        read(clipped, found)
        assert list(found) == list(PAGES)
        assert 0 < len(found[last]) < len(PAGES[last]), "part of a page, told as a page"
    assert by_us(clipped) == ({url: PAGES[url] for url in whole}, 1)


def test_a_page_that_is_longer_than_it_says_is_cut_by_others_and_whole_to_us() -> None:
    url, html = "https://example.org/odd", "<p>Zażółć gęślą jaźń.".encode() * 50
    block = http(html)
    data = member(good("before")) + member(record(block, "odd", content_length=str(len(block.decode()))))
    data += member(good("behind"))
    by_others: list[Pages] = [{}, {}]
    by_warcio(data, by_others[0])
    with pytest.raises(OSError):
        by_fastwarc(data, by_others[1])
    for found in by_others:
        assert html.startswith(found[url]) and len(found[url]) < len(html), "part of a page, told as a page"
    assert "https://example.org/behind" not in by_others[1]
    ours, num_unreadable = by_us(data)
    assert (ours[url], len(ours), num_unreadable) == (html, 3, 0)


def test_a_head_that_breaks_off_hides_the_next_page_from_others_alone() -> None:
    data = (
        good("before") + b"WARC/1.0\r\nWARC-Type: request\r\nContent-Le\r\n" + good("hidden") + good("behind")
    )
    types = [found.rec_type for found in WarcioIterator(io.BytesIO(data))]
    assert types == ["response", "request", "response"], "the page, told as a request"
    found: Pages = {}
    with pytest.raises(OSError):
        by_fastwarc(data, found)
    assert list(found) == ["https://example.org/before", "https://example.org/hidden"]
    assert found["https://example.org/hidden"] != page("hidden")
    ours, num_unreadable = by_us(data)
    assert (list(ours), num_unreadable) == (
        [f"https://example.org/{n}" for n in ("before", "hidden", "behind")],
        1,
    )


def test_archives_of_other_formats_are_read_by_us_alone() -> None:
    old = b"".join(map(member, [arc_begin(), arc_record(http(page("a")), "http://example.org/a")]))
    zipped = wacz({"archive/data.warc.gz": member(good("a"))})
    with pytest.raises(OSError):
        by_fastwarc(old, {})
    with pytest.raises(OSError):
        by_fastwarc(zipped, {})
    with pytest.raises(ArchiveLoadFailed):
        by_warcio(zipped, {})
    assert [len(by_us(data)[0]) for data in (old, zipped)] == [1, 1]
