"""Why WARC files are read by our own code: what warcio and fastwarc make of damage, and what our reader makes of it."""

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

Pages = dict[str, bytes]

_RNG = random.Random(0)
PAGES: Pages = {
    f"http://x.example/{number}": b"<p>" + "".join(_RNG.choices("abcdefgh ", k=3000)).encode() for number in range(4)
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
    for record in WarcioIterator(io.BytesIO(data)):
        into[record.rec_headers["WARC-Target-URI"]] = record.content_stream().read()


def by_fastwarc(data: bytes, into: Pages) -> None:
    for record in FastwarcIterator(io.BytesIO(data)):
        into[record.headers["WARC-Target-URI"]] = record.reader.read()


def by_us(data: bytes) -> tuple[Pages, int]:
    items = list(read_documents(io.BytesIO(data), ReadOptions(source="s", file="f", max_document_bytes=1 << 20)))
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
