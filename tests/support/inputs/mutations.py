"""Real files of every format, and what damage and malice make of them: the inputs of the fuzz tests.

`Mutator(seed)` gives the same files each time; `made(kind)` one of KINDS, mutated. A kind says at which depth
the damage lies: in the stored file (`warc`, `gzip`, `zstd`, `jsonl`, `parquet`), or below codings that stay
whole (`record`, `http`, `body`, `row`), so that it reaches the code behind them."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache

import brotli
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from pipeline.demo.pages import write_article

KINDS = ("warc", "gzip", "zstd", "arc", "wacz", "record", "http", "body", "jsonl", "row", "parquet")

NUMBERS = (
    b"FFFFFFFFFFFFFFFF", b"7FFFFFFFFFFFFFFF", b"8000000000000000", b"-1", b"0", b"00000000000000000001", b"1e999",
    b"NaN", b"18446744073709551616", b"9223372036854775807", b"4294967295", b"\xff" * 8, b"\0" * 8, b"\x7f\xff\xff\xff",
)  # fmt: skip
WORDS = (
    b"\r\n", b"\r\n\r\n", b"\n", b"WARC/1.0\r\n", b"HTTP/1.1 200 OK\r\n", b"Content-Length: ", b"\x1f\x8b\x08",
    b"\x28\xb5\x2f\xfd", b"Transfer-Encoding: chunked\r\n", b"Content-Encoding: br\r\n", b"charset=utf-7",
    b"<div>" * 50,
    b"<![CDATA[", b"&#x110000;", b"\xed\xa0\x80", b"\\ud800", b'"', b"{", b"[" * 200, b"<svg><style>", b"\xef\xbb\xbf",
    b"https://[::1", b"https://example.org:99999/", b"9999-99-99T99:99:99Z", b"0001-01-01T00:00:00+23:59",
)  # fmt: skip
_A_NUMBER = re.compile(rb"(?<![0-9A-Za-z])[A-Fa-f]*[0-9][0-9A-Fa-f]*(?![0-9A-Za-z])")
"""Decimal or hexadecimal, as lengths of chunks are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A mutated file, and the name that it is read by."""

    name: str
    data: bytes


def mutate(data: bytes, rng: random.Random) -> bytes:
    """`data` with one to four damages."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = rng.choice(_DAMAGES)(data, rng)
    return data


def _flip(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _set_byte(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + bytes([rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))]) + data[at + 1 :]


def _truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _span(data: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice((1, 4, 16, 64, 256)))


def _delete(data: bytes, rng: random.Random) -> bytes:
    start, end = _span(data, rng)
    return data[:start] + data[end:]


def _double(data: bytes, rng: random.Random) -> bytes:
    start, end = _span(data, rng)
    return data[:end] + data[start:end] * rng.choice((1, 1, 8)) + data[end:]


def _move(data: bytes, rng: random.Random) -> bytes:
    start, end = _span(data, rng)
    rest, at = data[:start] + data[end:], rng.randrange(len(data) - (end - start) + 1)
    return rest[:at] + data[start:end] + rest[at:]


def _insert(data: bytes, rng: random.Random) -> bytes:
    at, what = rng.randrange(len(data) + 1), rng.choice((*NUMBERS, *WORDS, rng.randbytes(8)))
    return data[:at] + what + data[at:]


def _other_number(data: bytes, rng: random.Random) -> bytes:
    """One of the numbers in the data becomes another one."""
    found = list(_A_NUMBER.finditer(data, rng.randrange(len(data) + 1)))[:40]
    if not found:
        return _insert(data, rng)
    match = rng.choice(found)
    return data[: match.start()] + rng.choice(NUMBERS) + data[match.end() :]


_DAMAGES = (_flip, _set_byte, _truncate, _delete, _double, _move, _insert, _other_number, _other_number)


class Mutator:
    """Mutated files, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def made(self, kind: str) -> Made:
        """The next file of a kind."""
        return _MAKERS[kind](self._rng)


@cache
def _prose() -> tuple[str, ...]:
    """Paragraphs that the rules of quality let pass, with personal data in them."""
    paragraphs = write_article("en", random.Random(0), 6).paragraphs
    return (
        *paragraphs,
        "Write to jane.doe@example.org or call +44 20 7946 0958 before noon; 192.0.2.7 is down.",
    )


def _page(name: str) -> str:
    told = "".join(f"<p>{paragraph}</p>\n" for paragraph in _prose())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title></head><body>'
        f"<h1>{name} – é</h1>"
        f'<article class="x">{told}</article><ul><li><a'
        f' href="/x?a=1">one</a></li></ul><table><tr><td>2</td></tr>'
        "</table></body></html>"
    )


def _chunked(body: bytes) -> bytes:
    pieces = [body[at : at + 200] for at in range(0, len(body), 200)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def _deflated(body: bytes) -> bytes:
    return zlib.compress(body)


_CODINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "": ("", lambda body: body),
    "chunked": ("Transfer-Encoding: chunked", _chunked),
    "gzip": ("Content-Encoding: gzip", lambda body: gzip.compress(body, mtime=0)),
    "deflate": ("Content-Encoding: deflate", _deflated),
    "br": ("Content-Encoding: br", lambda body: brotli.compress(body, quality=1)),
    "zstd": ("Content-Encoding: zstd", lambda body: zstandard.ZstdCompressor().compress(body)),
    "both": ("Content-Encoding: gzip\r\nTransfer-Encoding: chunked",
             lambda body: _chunked(gzip.compress(body, mtime=0))),
}  # fmt: skip
_TYPES = (
    "text/html; charset=utf-8",
    "text/html",
    "text/plain; charset=windows-1252",
    "application/xhtml+xml",
)


def _head(coding: str, content_type: str) -> bytes:
    fields = [
        "HTTP/1.1 200 OK",
        f"Content-Type: {content_type}",
        _CODINGS[coding][0],
        "Server: x/1.0",
        "Age: 12",
    ]
    return "\r\n".join([field for field in fields if field] + ["", ""]).encode()


@cache
def _block(coding: str, content_type: str) -> bytes:
    return _head(coding, content_type) + _CODINGS[coding][1](_page(f"{coding}{len(content_type)}").encode())


def _a_block(rng: random.Random) -> bytes:
    return _block(rng.choice(tuple(_CODINGS)), rng.choice(_TYPES))


def _record(block: bytes, number: int = 0, kind: str = "response", content_type: str = "") -> bytes:
    head = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Record-ID:"
        f" <urn:uuid:00000000-0000-0000-0000-{number:012d}>\r\n"
        f"WARC-Target-URI: https://example.org:8080/a/{number}?q=1#top\r\nWARC-Date: 2026-02-03T04:05:06Z\r\n"
        f"Content-Type: {content_type or 'application/http; msgtype=response'}\r\nContent-Length:"
        f" {len(block)}\r\n\r\n"
    )
    return head.encode() + block + b"\r\n\r\n"


def _records(rng: random.Random) -> list[bytes]:
    """A page and a record of another type."""
    other = rng.choice(
        (
            _record(_page("plain").encode(), 2, "conversion", "text/plain"),
            _record(b"software: x\r\n", 3, "warcinfo", "application/warc-fields"),
            _record(b"GET / HTTP/1.1\r\n\r\n", 4, "request", "application/http; msgtype=request"),
        )
    )
    return [_record(_a_block(rng), 1), other]


def _warc(rng: random.Random) -> Made:
    return Made(name="x.warc", data=mutate(b"".join(_records(rng)), rng))


def _gzip(rng: random.Random) -> Made:
    members = [gzip.compress(record, 1, mtime=0) for record in _records(rng)]
    return Made(name="x.warc.gz", data=mutate(b"".join(members), rng))


def _zstd(rng: random.Random) -> Made:
    packer = zstandard.ZstdCompressor(level=1, write_checksum=True)
    if rng.random() < 0.3:
        shared = zstandard.ZstdCompressionDict(_page("dictionary").encode(), zstandard.DICT_TYPE_RAWCONTENT)
        packer = zstandard.ZstdCompressor(level=1, dict_data=shared)
        held = shared.as_bytes()
        begin = b"\x5d\x2a\x4d\x18" + len(held).to_bytes(4, "little") + held
    else:
        begin = b"\x50\x2a\x4d\x18\3\0\0\0abc"
    return Made(name="x.warc.zst", data=mutate(begin + b"".join(map(packer.compress, _records(rng))), rng))


def _arc(rng: random.Random) -> Made:
    block = _a_block(rng)
    head = f"http://example.org:8080/a b?q=1 192.0.2.1 20080430204825 text/html {len(block)}\n".encode()
    begin = b"filedesc://x.arc 0.0.0.0 20080430204825 text/plain 14\n1 0 Example\nURL\n"
    records = [begin, head + block + b"\n", b"dns:example.org - 20080430204825 text/dns 3\nx A\n"]
    if rng.random() < 0.5:
        return Made(name="x.arc", data=mutate(b"".join(records), rng))
    return Made(
        name="x.arc.gz", data=b"".join(gzip.compress(mutate(each, rng), 1, mtime=0) for each in records)
    )


def _wacz(rng: random.Random) -> Made:
    sink, method = io.BytesIO(), rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(sink, "w", method) as packed:
        for number, each in enumerate(_records(rng)):
            info = zipfile.ZipInfo(f"archive/{number}.warc.gz", (1980, 1, 1, 0, 0, 0))
            packed.writestr(info, gzip.compress(each, 1, mtime=0), method)
    data = sink.getvalue()
    # Half of the damage lies in the directory, which is short.
    at = data.index(b"PK\x01\x02") if rng.random() < 0.5 else 0
    return Made(name="x.wacz", data=data[:at] + mutate(data[at:], rng))


def _whole_members(*records: bytes) -> Made:
    return Made(name="x.warc.gz", data=b"".join(gzip.compress(record, 1, mtime=0) for record in records))


def _record_in_gzip(rng: random.Random) -> Made:
    first, second = _records(rng)
    return _whole_members(mutate(first, rng), second)


def _http(rng: random.Random) -> Made:
    head, found, body = _a_block(rng).partition(b"\r\n\r\n")
    return _whole_members(_record(mutate(head + found, rng) + body, 1))


def _body(rng: random.Random) -> Made:
    coding, content_type = rng.choice((*_CODINGS, "chunked")), rng.choice(_TYPES)
    if rng.random() < 0.3:  # damage before the coding, so that it decodes
        body = _CODINGS[coding][1](mutate(_page("body").encode(), rng))
    else:
        body = mutate(_CODINGS[coding][1](_page("body").encode()), rng)
    return _whole_members(_record(_head(coding, content_type) + body, 1))


def _rows() -> list[dict[str, object]]:
    text = "\n".join(_prose())
    return [
        {
            "text": text,
            "id": f"row-{number}",
            "url": f"https://example.org/{number}",
            "date": "2026-01-02T03:04:05Z",
            "score": 0.5,
            "n": number,
            "tags": ["a", None, 3],
            "meta": {"a": {"b": True}},
        }
        for number in range(3)
    ]


def _jsonl(rng: random.Random) -> Made:
    lines = "".join(json.dumps(row) + "\n" for row in _rows()).encode()
    match rng.randrange(3):
        case 0:
            return Made(name="x.jsonl.gz", data=mutate(gzip.compress(lines, 1, mtime=0), rng))
        case 1:
            return Made(
                name="x.jsonl.zst", data=mutate(zstandard.ZstdCompressor(level=1).compress(lines), rng)
            )
    return Made(name="x.jsonl", data=mutate(lines, rng))


def _row(rng: random.Random) -> Made:
    """A line that stays JSON more often: one value becomes odd, and one byte of it changes now and then."""
    odd = (
        None,
        True,
        -1,
        2**70,
        1e308,
        float("nan"),
        float("inf"),
        "",
        "\ud800",
        "\0",
        "x" * 3000,
        [],
        {},
        [[[]]],
        "9999-12-31T23:59:59-23:59",
        "https://[",
        "http://\u202e",
        {"text": "a"},
    )
    first, *others = _rows()
    for _ in range(rng.choice((1, 2, 3))):
        first[rng.choice((*first, "", "captured_at", "\ud800"))] = rng.choice(odd)
    line = json.dumps(first).encode()
    line = mutate(line, rng).replace(b"\n", b" ") if rng.random() < 0.3 else line
    return Made(name="x.jsonl", data=b"\n".join([line, *(json.dumps(row).encode() for row in others)]))


@cache
def _parquet_files() -> tuple[bytes, ...]:
    found = []
    at = datetime(2026, 1, 2, tzinfo=UTC)
    for compression, dictionary, version in (
        ("none", True, "1.0"),
        ("snappy", False, "2.0"),
        ("zstd", True, "2.0"),
    ):
        rows = _rows()
        table = pa.table(
            {
                "text": [str(row["text"]) for row in rows],
                "id": [str(row["id"]) for row in rows],
                "n": pa.array([1, None, 3], pa.int64()),
                "at": pa.array([at] * 3, pa.timestamp("ns", "Europe/Berlin")),
                "d": pa.array([Decimal("1.5")] * 3, pa.decimal128(20, 3)),
                "b": pa.array([b"\xff"] * 3, pa.binary()),
                "l": pa.array([[1], [], None], pa.list_(pa.int32())),
                "m": pa.array([{"a": "x"}] * 3),
                "date": pa.array([at.date()] * 3, pa.date32()),
                "k": pa.array(["a", "b", "a"]).dictionary_encode(),
                "t": pa.array([1, 2, 3], pa.time64("us")),
                "w": pa.array([1, 2, 3], pa.duration("s")),
            }
        )
        sink = io.BytesIO()
        pq.write_table(
            table,
            sink,
            compression=compression,
            use_dictionary=dictionary,
            row_group_size=2,
            data_page_version=version,
            store_schema=dictionary,
        )
        found.append(sink.getvalue())
    return tuple(found)


def _parquet(rng: random.Random) -> Made:
    data = rng.choice(_parquet_files())
    if rng.random() < 0.3:
        return Made(name="x.parquet", data=mutate(data, rng))
    # The footer's length stays right: a file whose end is damaged is turned away at the door.
    return Made(name="x.parquet", data=b"PAR1" + _same_length(data[4:-8], rng) + data[-8:])


def _same_length(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 2, 6))):
        data = rng.choice((_flip, _flip, _swap))(data, rng)
    return data


def _swap(data: bytes, rng: random.Random) -> bytes:
    start, end = _span(data, rng)
    return data[:start] + rng.randbytes(end - start) + data[end:]


_MAKERS: dict[str, Callable[[random.Random], Made]] = {
    "warc": _warc, "gzip": _gzip, "zstd": _zstd, "record": _record_in_gzip, "http": _http, "body": _body,
    "jsonl": _jsonl, "row": _row, "parquet": _parquet, "arc": _arc, "wacz": _wacz,
}  # fmt: skip
