"""Records of WARC and ARC files, well made and ill made, and WACZ files, for tests."""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from collections.abc import Mapping

HTML = "text/html; charset=utf-8"


def page(name: str) -> bytes:
    """A small page of its own."""
    words = (
        f"The keeper of {name} wrote that the harbour was quiet and the boats came home before the rain. " * 8
    )
    return f"<html><head><title>{name}</title></head><body><p>{words}</p></body></html>".encode()


def http(body: bytes, content_type: str | None = HTML, status: str = "200 OK", *more: str) -> bytes:
    """An HTTP response."""
    lines = [f"HTTP/1.1 {status}", *([f"Content-Type: {content_type}"] if content_type else []), *more]
    return "\r\n".join([*lines, "", ""]).encode() + body


def record(block: bytes, name: str = "a", **fields: str | None) -> bytes:
    """A WARC response record. `fields` replace header fields (`content_length`, `warc_date`…); None leaves
    one out."""
    headers: dict[str, str | None] = {
        "WARC-Type": "response",
        "WARC-Record-ID": f"<urn:uuid:00000000-0000-0000-0000-{zlib.crc32(name.encode()):012x}>",
        "WARC-Target-URI": f"https://example.org/{name}",
        "WARC-Date": "2026-02-03T04:05:06Z",
        "Content-Type": "application/http; msgtype=response",
        "Content-Length": str(len(block)),
    }
    by_name = {key.lower().replace("-", "_"): key for key in headers}
    version = fields.pop("version", "WARC/1.0")
    headers |= {by_name.get(field, field.replace("_", "-")): value for field, value in fields.items()}
    lines = [
        str(version),
        *(f"{key}: {value}" for key, value in headers.items() if value is not None),
        "",
        "",
    ]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + block + b"\r\n\r\n"


def good(name: str = "a") -> bytes:
    """A well-made record with a page."""
    return record(http(page(name)), name)


def member(data: bytes) -> bytes:
    """`data` as a gzip member, the same bytes each time."""
    return gzip.compress(data, 6, mtime=0)


def arc_record(
    block: bytes, url: str = "http://example.org/a", mime: str = "text/html", *, version: int = 1
) -> bytes:
    """A record of an ARC file; `version` 2 has more fields."""
    more = (
        "200 fac069150613fe55599cc7fa88aa089d - 12345 IAH-20080430204825-00000-host.arc.gz "
        if version == 2
        else ""
    )
    return f"{url} 192.0.2.1 20080430204825 {mime} {more}{len(block)}\n".encode() + block + b"\n"


def arc_begin(version: int = 1) -> bytes:
    """The record that an ARC file begins with."""
    more = "Result-code Checksum Location Offset Filename " if version == 2 else ""
    fields = f"URL IP-address Archive-date Content-type {more}Archive-length\n"
    block = f"{version} 0 Example\n{fields}\n".encode()
    return f"filedesc://x.arc 0.0.0.0 20080430204825 text/plain {len(block)}\n".encode() + block + b"\n"


def wacz(archives: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """A WACZ file as browsertrix and ArchiveWeb.page write it, with these members among the others."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as packed:
        members = {
            "datapackage.json": b"{}",
            **archives,
            "pages/pages.jsonl": b"{}\n",
            "indexes/index.cdx": b"x 1 {}",
        }
        for name, data in members.items():
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            packed.writestr(info, data, method if name in archives else zipfile.ZIP_DEFLATED)
    return sink.getvalue()
