"""Pages and posts as crawl files: WARC with one gzip member a record, and gzipped JSON lines. Deterministic bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import random
import uuid
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPage:
    """A page of the crawl before it is written."""

    url: str
    html: bytes


def write_source(folder: Path, source: str, pages: list[DemoPage], num_files: int, rng: random.Random) -> None:
    """`pages`, shuffled, as `num_files` WARC files called after `source`."""
    order = rng.sample(range(len(pages)), len(pages))
    for file in range(num_files):
        members = [_warcinfo(f"{source}-{file:05d}")]
        members += [_response(pages[place], source) for place in order[file::num_files]]
        (folder / f"{source}-{file:05d}.warc.gz").write_bytes(b"".join(members))


def _member(head: str, block: bytes) -> bytes:
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, compresslevel=6) as file:
        file.write(head.encode() + block + b"\r\n\r\n")
    return buffer.getvalue()


def _warcinfo(name: str) -> bytes:
    block = f"software: sluice demo\r\nformat: WARC File Format 1.0\r\ndescription: {name}\r\n".encode()
    head = (
        f"WARC/1.0\r\nWARC-Type: warcinfo\r\nWARC-Record-ID: <urn:uuid:{_uuid(name.encode())}>\r\n"
        f"WARC-Date: 2026-01-01T00:00:00Z\r\nContent-Type: application/warc-fields\r\n"
        f"Content-Length: {len(block)}\r\n\r\n"
    )
    return _member(head, block)


def _response(page: DemoPage, source: str) -> bytes:
    record_id = _uuid(source.encode() + page.url.encode())
    return response_member(page.url, "text/html; charset=utf-8", page.html, record_id)


def response_member(url: str, content_type: str, html: bytes, record_id: uuid.UUID) -> bytes:
    """A WARC response record with HTTP status 200, as one gzip member."""
    http = (f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {len(html)}\r\n\r\n").encode()
    block = http + html
    seconds = int.from_bytes(hashlib.sha256(url.encode()).digest()[:3], "big") % 86_400
    moment = f"2026-01-{1 + seconds % 28:02d}T{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}Z"
    head = (
        f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:{record_id}>\r\n"
        f"WARC-Target-URI: {url}\r\nWARC-Date: {moment}\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(block)}\r\n\r\n"
    )
    return _member(head, block)


def _uuid(name: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=hashlib.sha256(name).digest()[:16], version=4)


def break_records(file: Path, pages: tuple[DemoPage, DemoPage, DemoPage]) -> int:
    """Add a record with flipped bits, a whole one, and one that the file's end clips: two stretches cannot be read
    (the number is returned), and nothing else is lost."""
    flipped, whole, clipped = (bytearray(_response(page, "broken")) for page in pages)
    for place in range(len(flipped) // 2, len(flipped) // 2 + 40):
        flipped[place] ^= 0xFF
    with open(file, "ab") as stream:
        stream.write(flipped + whole + clipped[: len(clipped) // 2])
    return 2


def write_gzip(path: Path, text: str) -> None:
    """A text, gzipped."""
    with open(path, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file:
        file.write(text.encode())
