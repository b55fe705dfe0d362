"""More pages of the same kind: the records of a crawl again under new ids and URLs, their text altered."""

from __future__ import annotations

import itertools
import random
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastwarc.warc import ArchiveIterator, WarcRecordType

from benchmarks.support.texts import decoded, english, main_text
from pipeline.demo.warcs import response_member

_STRETCH = re.compile(rb">[^<]{40,}<")
_WORD = re.compile(rb"(?<![^\s>])[a-z]{4,}(?![^\s<,.])")


Page = tuple[str, str, str | None, bytes]
"""URL, media type, charset and payload of a response record."""


def enlarge(
    crawl: Path,
    target: Path,
    times: int,
    wanted: Callable[[bytes], bool] | None = None,
    most: int | None = None,
) -> int:
    """Write to `target` each `*.warc.gz` of `crawl` with its pages, or the first `most` of those that are
    `wanted`, `times` over; gives their number. There are as many files at every size: what a file costs is no
    part of what one more page does.

    In every copy but the first the plain words are mixed within each page: no copy is a near-duplicate of
    another, and what rules look at (lines, punctuation, stop words, vocabulary) stays as it is."""
    target.mkdir(parents=True, exist_ok=True)
    num = 0
    for path in sorted(crawl.glob("*.warc.gz")):
        with open(path, "rb") as stream:
            pages = [
                _read(record) for record in ArchiveIterator(stream, record_types=WarcRecordType.response)
            ]
        pages = [page for page in pages if wanted is None or wanted(page[3])][:most]
        with open(target / path.name, "wb") as file:
            for copy, (url, kind, charset, html) in itertools.product(range(times), pages):
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
    """The page with each third plain word of its stretches of text replaced by another one of the same
    page."""
    if not copy:
        return html
    rng = random.Random(copy)
    words = [word for stretch in _STRETCH.findall(html) for word in _WORD.findall(stretch)]
    places = itertools.count()

    def alter(match: re.Match[bytes]) -> bytes:
        return rng.choice(words) if next(places) % 3 == 0 else match[0]

    return _STRETCH.sub(lambda stretch: _WORD.sub(alter, stretch[0]), html)
