"""Pages and posts as crawl files: WARC by warcio, a gzip member a record, and gzipped JSON lines; the bytes
repeat."""

from __future__ import annotations

import gzip
import hashlib
import io
import random
import uuid
from dataclasses import dataclass
from pathlib import Path

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPage:
    """A page of the crawl before it is written."""

    url: str
    html: bytes


def write_source(
    folder: Path, source: str, pages: list[DemoPage], num_files: int, rng: random.Random
) -> None:
    """`pages`, shuffled, as `num_files` WARC files called after `source`."""
    order = rng.sample(range(len(pages)), len(pages))
    for file in range(num_files):
        members = [_warcinfo(f"{source}-{file:05d}")]
        members += [_response(pages[place], source) for place in order[file::num_files]]
        (folder / f"{source}-{file:05d}.warc.gz").write_bytes(b"".join(members))


def _warcinfo(name: str) -> bytes:
    fields = f"software: sluice demo\r\nformat: WARC File Format 1.0\r\ndescription: {name}\r\n".encode()
    headers = _headers(_uuid(name.encode()), "2026-01-01T00:00:00Z")
    return _member("warcinfo", fields, headers)


def _response(page: DemoPage, source: str) -> bytes:
    record_id = _uuid(source.encode() + page.url.encode())
    return response_member(page.url, "text/html; charset=utf-8", page.html, record_id)


def response_member(url: str, content_type: str, html: bytes, record_id: uuid.UUID) -> bytes:
    """A WARC response record with HTTP status 200, as one gzip member."""
    seconds = int.from_bytes(hashlib.sha256(url.encode()).digest()[:3], "big") % 86_400
    moment = (
        f"2026-01-{1 + seconds % 28:02d}T{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}Z"
    )
    http = [("Content-Type", content_type), ("Content-Length", str(len(html)))]
    told = StatusAndHeaders("200 OK", http, protocol="HTTP/1.1")
    return _member("response", html, _headers(record_id, moment), url, told)


def _headers(record_id: uuid.UUID, moment: str) -> dict[str, str]:
    return {"WARC-Record-ID": f"<urn:uuid:{record_id}>", "WARC-Date": moment}


def _member(
    kind: str,
    payload: bytes,
    headers: dict[str, str],
    url: str | None = None,
    http_headers: StatusAndHeaders | None = None,
) -> bytes:
    """A record as warcio writes it, with its digests."""
    buffer = io.BytesIO()
    writer = WARCWriter(buffer, gzip=True)
    record = writer.create_warc_record(
        url, kind, io.BytesIO(payload), warc_headers_dict=headers, http_headers=http_headers
    )
    writer.write_record(record)
    return buffer.getvalue()


def _uuid(name: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=hashlib.sha256(name).digest()[:16], version=4)


def break_records(file: Path, pages: tuple[DemoPage, DemoPage, DemoPage, DemoPage]) -> int:
    """Add a record with flipped bits and one that is clipped, each before a whole one: two stretches cannot be
    read (the number is returned), and nothing else is lost."""
    flipped, whole, clipped, last = (bytearray(_response(page, "broken")) for page in pages)
    for place in range(len(flipped) // 2, len(flipped) // 2 + 40):
        flipped[place] ^= 0xFF
    with open(file, "ab") as stream:
        stream.write(flipped + whole + clipped[: len(clipped) // 2] + last)
    return 2


def write_gzip(path: Path, text: str) -> None:
    """A text, gzipped."""
    with open(path, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file:
        file.write(text.encode())
