"""The crawl that the demo writes is one that other readers read."""

from __future__ import annotations

import random
from pathlib import Path

from fastwarc.warc import ArchiveIterator as FastwarcIterator
from warcio.archiveiterator import ArchiveIterator as WarcioIterator

from pipeline.demo.warcs import DemoPage, write_source

PAGES = [
    DemoPage(url=f"https://a.example/{n}?q=ü", html=f"<p>Seite {n} über \x00 nichts</p>".encode())
    for n in range(5)
]


def write(folder: Path) -> list[Path]:
    folder.mkdir()
    write_source(folder, "web", PAGES, 2, random.Random(0))
    return sorted(folder.glob("*.warc.gz"))


def test_warcio_and_fastwarc_find_every_page_and_their_digests_hold(tmp_path: Path) -> None:
    by_warcio: dict[str, bytes] = {}
    by_fastwarc: dict[str, bytes] = {}
    for path in write(tmp_path / "crawl"):
        with path.open("rb") as stream:
            for record in WarcioIterator(stream, check_digests="raise"):
                content = record.content_stream().read()
                if record.rec_type == "response":
                    assert record.http_headers.get_header("Content-Type") == "text/html; charset=utf-8"
                    by_warcio[record.rec_headers["WARC-Target-URI"]] = content
        with path.open("rb") as stream:
            for record in FastwarcIterator(stream, parse_http=True, verify_digests=True):
                if record.http_headers is not None:
                    by_fastwarc[record.headers["WARC-Target-URI"]] = record.reader.read()
    assert by_warcio == by_fastwarc == {page.url: page.html for page in PAGES}


def test_the_same_pages_make_the_same_bytes(tmp_path: Path) -> None:
    first, second = ([path.read_bytes() for path in write(tmp_path / name)] for name in ("a", "b"))
    assert first == second
