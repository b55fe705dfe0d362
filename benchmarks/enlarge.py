"""More pages of the same kind: the records of a crawl again under new ids and URLs, their text altered."""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastwarc.warc import ArchiveIterator, WarcRecordType

from benchmarks.texts import decoded, english, main_text
from pipeline.demo.warcs import response_member

_WORD = re.compile(rb">([^<]{40,})<")


Page = tuple[str, str, str | None, bytes]
"""URL, media type, charset and payload of a response record."""


def enlarge(crawl: Path, target: Path, times: int, wanted: Callable[[bytes], bool] | None = None) -> int:
    """Write each `*.warc.gz` of `crawl` `times` over to `target`, or of its pages the `wanted`; how many those are.

    In every copy but the first the words are mixed within each page, so that no copy is a near-duplicate of another and
    the vocabulary stays what it is."""
    target.mkdir(parents=True, exist_ok=True)
    num = 0
    for path in sorted(crawl.glob("*.warc.gz")):
        with open(path, "rb") as stream:
            pages = [_read(record) for record in ArchiveIterator(stream, record_types=WarcRecordType.response)]
        pages = [page for page in pages if wanted is None or wanted(page[3])]
        for copy in range(times):
            with open(target / f"{path.name.removesuffix('.warc.gz')}-{copy:03d}.warc.gz", "wb") as file:
                for url, kind, charset, html in pages:
                    told = f"{kind}; charset={charset}" if charset else kind
                    address = f"{url}{'&' if '?' in url else '?'}copy={copy}" if copy else url
                    file.write(response_member(address, told, _altered(html, copy), uuid.uuid4()))
                    num += 1
    return num


def is_english(html: bytes) -> bool:
    """Whether fastText's lid.176 takes the page's main text for English with .65 at least."""
    return bool(english([main_text(decoded(html))]))


def _read(record: Any) -> Page:
    kind = record.http_content_type or "text/html"
    return record.headers.get("WARC-Target-URI") or "", kind, record.http_charset, record.reader.read()


def _altered(html: bytes, copy: int) -> bytes:
    """The page with each third word of its stretches of text replaced by another word of the same page."""
    if not copy:
        return html
    rng = random.Random(copy)
    words = [word for stretch in _WORD.findall(html) for word in stretch.split(b" ")]

    def alter(match: re.Match[bytes]) -> bytes:
        parts = match[1].split(b" ")
        for place in range(0, len(parts), 3):
            parts[place] = rng.choice(words)
        return b">" + b" ".join(parts) + b"<"

    return _WORD.sub(alter, html)
