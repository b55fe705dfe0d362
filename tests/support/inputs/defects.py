"""Files with one defect each, named by it, and what a reader must make of them.

`write_defects(folder)` writes them all. Most hold a good record before the defect and one behind it: neither
may be lost."""

from __future__ import annotations

import functools
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tests.support.inputs.make_warc import good, http, member, page, record

A, C = member(good("before")), member(good("behind"))
MIB = 1 << 20
RESPONSE = http(page("odd"))
ZSTD_DICTIONARY = b"\x5d\x2a\x4d\x18"


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A file and what is in it: whole records, documents among them, unreadable stretches."""

    name: str
    make: Callable[[], bytes]
    records: int
    documents: int
    unreadable: int = 0
    says: str = ""

    @property
    def data(self) -> bytes:
        """The file's bytes."""
        return _data(self.make)


@functools.cache
def _data(make: Callable[[], bytes]) -> bytes:
    return make()


def write_defects(folder: Path) -> list[Path]:
    """Every defective file, written below `folder`; about 2 MB in all."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for defect in DEFECTS:
        path = folder / defect.name
        path.write_bytes(defect.data)
        paths.append(path)
    return paths


def _between(*middle: bytes) -> Callable[[], bytes]:
    return lambda: b"".join([A, *(member(each) for each in middle), C])


def _flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def _gzip_with_zeros(start: bytes, num_zeros: int) -> bytes:
    """`start` and zeros as a gzip member, without ever holding them."""
    deflater = zlib.compressobj(1, zlib.DEFLATED, 31)
    pieces = [deflater.compress(start)]
    pieces += [deflater.compress(bytes(MIB)) for _ in range(num_zeros // MIB)]
    return b"".join([*pieces, deflater.flush()])


def _big_record(num_zeros: int) -> bytes:
    """A member with a page that ends in zeros."""
    head = http(b"<html><body>")
    block = record(head, "big", content_length=str(len(head) + num_zeros))
    return _gzip_with_zeros(block.removesuffix(b"\r\n\r\n"), num_zeros)


def _zstd_bomb(num_zeros: int) -> bytes:
    head = http(b"<html><body>")
    packer = zstandard.ZstdCompressor().compressobj()
    start = record(head, "big", content_length=str(len(head) + num_zeros)).removesuffix(b"\r\n\r\n")
    pieces = [
        packer.compress(start),
        *(packer.compress(bytes(MIB)) for _ in range(num_zeros // MIB)),
        packer.flush(),
    ]
    return b"".join(pieces)


def _zstd_with_dictionary(*records: bytes) -> bytes:
    dictionary = zstandard.ZstdCompressionDict(
        b"".join(good(name) for name in "xyz"), zstandard.DICT_TYPE_RAWCONTENT
    )
    packer = zstandard.ZstdCompressor(dict_data=dictionary, write_checksum=True)
    held = zstandard.ZstdCompressor().compress(dictionary.as_bytes())
    frames = [packer.compress(each) for each in records]
    return b"".join([ZSTD_DICTIONARY, len(held).to_bytes(4, "little"), held, *frames])


def _defect(
    name: str, make: Callable[[], bytes], records: int, documents: int, bad: int = 0, *, says: str = ""
) -> Defect:
    return Defect(
        name=f"{name}.warc.gz", make=make, records=records, documents=documents, unreadable=bad, says=says
    )


def _odd(name: str, block: bytes, is_document: bool = True, **fields: str | None) -> Defect:
    """A whole record with something odd in it, between two good ones."""
    return _defect(name, _between(record(block, "odd", **fields)), 3, 3 if is_document else 2)


def _broken(name: str, data: bytes, says: str) -> Defect:
    """Something that is no whole record, between two good ones."""
    return _defect(name, lambda: A + data + C, 2, 2, 1, says=says)


def _gzip_members() -> Iterator[Defect]:
    packed = member(good("middle"))
    ends = "the file ends inside a gzip member"
    yield _defect("truncated-in-data", lambda: A + packed[: len(packed) // 2], 1, 1, 1, says=ends)
    yield _defect("truncated-in-checksum", lambda: A + packed[:-3], 1, 1, 1, says=ends)
    yield _defect("truncated-in-gzip-header", lambda: A + packed[:6], 1, 1, 1, says=ends)
    yield _broken("truncated-in-the-middle", packed[: len(packed) // 2], "damaged gzip member")
    yield _broken("bad-crc-in-the-middle", _flip(packed, len(packed) - 6), "damaged gzip member")
    yield _broken("flipped-byte-in-the-middle", _flip(packed, len(packed) // 2), "")
    yield _broken("garbage-between-members", b"\x00garbage" * 40_000, "there is no WARC record")
    yield _broken("false-gzip-magic-between-members", b"\x1f\x8b\x08\x00" * 3_000, "")
    yield _broken("empty-member", member(b""), "there is no WARC record")
    yield _broken("member-of-something-else", member(b"just text\n" * 100), "there is no WARC record")
    yield _defect(
        "zero-padding-at-the-end", lambda: A + C + bytes(1024), 2, 2, 1, says="there is no WARC record"
    )
    yield _defect("blank-first-line", lambda: b"\r\n" + A + C, 2, 2, 1, says="there is no WARC record")
    yield _defect("empty-file", lambda: b"", 0, 0)
    yield _defect("not-a-warc", lambda: bytes(range(256)) * 64, 0, 0, 1, says="there is no WARC record")
    yield _defect("gzip-of-no-warc", lambda: member(page("x")), 0, 0, 1, says="there is no WARC record")


def _record_lengths() -> Iterator[Defect]:
    length = len(RESPONSE)
    for name, given in {
        "too-long": str(length + 9),
        "too-short": str(length - 9),
        "missing": None,
        "negative": "-5",
        "not-a-number": "many",
        "of-10-to-the-17": "1" + "0" * 17,
        "of-a-thousand-digits": "9" * 1000,
    }.items():
        wrong = record(RESPONSE, "odd", content_length=given)
        yield _odd(f"content-length-{name}", RESPONSE, content_length=given)
        yield _defect(f"content-length-{name}-in-shared-member", _between(good("1") + wrong), 3, 3, 1)
    yield _broken(
        "unknown-warc-version", member(record(RESPONSE, version="WARC/2.0")), "the version is WARC/2.0"
    )
    yield _broken(
        "warc-header-line-of-2-mb", member(record(RESPONSE, warc_x="x" * 2 * MIB)), "without an end"
    )
    yield _broken("warc-header-without-end", member(b"WARC/1.0\r\nWARC-Type: response\r\n"), "without an end")


def _record_headers() -> Iterator[Defect]:
    yield _odd("no-url", RESPONSE, warc_target_uri=None)
    yield _odd("no-record-id", RESPONSE, warc_record_id=None)
    yield _odd("no-date", RESPONSE, warc_date=None)
    yield _odd("date-that-is-none", RESPONSE, warc_date="yesterday")
    yield _odd("url-in-brackets", RESPONSE, warc_target_uri="<https://example.org/x>")
    yield _odd("url-not-utf8", RESPONSE, warc_target_uri="https://example.org/\udcff\udcfe")
    yield _odd("url-with-nul", RESPONSE, warc_target_uri="https://example.org/\0x")
    yield _odd("url-of-100-kb", RESPONSE, warc_target_uri="https://example.org/" + "x" * 100_000)
    yield _odd("old-warc-version", RESPONSE, version="WARC/0.18")
    yield _odd("no-warc-type", RESPONSE, is_document=False, warc_type=None)
    yield _odd("no-warc-content-type", RESPONSE, content_type=None)


def _http_headers() -> Iterator[Defect]:
    yield _odd("http-header-missing", page("odd"), is_document=False)
    yield _odd("http-header-without-body", b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n")
    yield _odd("http-header-with-bare-line-feeds", RESPONSE.replace(b"\r\n", b"\n"))
    yield _odd(
        "http-header-line-of-1-mb", http(page("odd"), "text/html", "200 OK", "X-Long: " + "x" * 1_000_000)
    )
    yield _odd(
        "http-header-line-of-2-mb", http(page("odd"), "text/html", "200 OK", "X: " + "x" * 2 * MIB), False
    )
    yield _odd("http-status-line-broken", http(page("odd"), status="20O OK"), False)
    yield _odd("http-status-404", http(page("odd"), status="404 Not Found"), False)
    yield _odd("http-without-content-type", http(page("odd"), None))
    yield _odd("http-without-content-type-and-no-html", http(b"just text " * 50, None), False)
    yield _odd("http-content-type-of-1-kb", http(page("odd"), "text/html; x=" + "x" * 1000))
    yield _odd("image", http(b"\x89PNG\r\n" * 50, "image/png"), False)


def _bodies() -> Iterator[Defect]:
    yield _odd("empty-page", http(b""))
    yield _odd("nul-bytes-in-page", http(page("odd").replace(b" ", b"\0")))
    yield _odd("page-of-nul-bytes", http(bytes(10_000)))
    yield _odd("tags-nested-100000-deep", http(b"<div>" * 100_000 + b"deep" + b"</div>" * 100_000))
    yield _odd("mixed-charsets", http("é – ж ".encode() * 200 + "é".encode("cp1252") * 200, "text/html"))
    yield _odd(
        "charset-that-lies", http("Zażółć gęślą jaźń ".encode("cp1250") * 50, "text/html; charset=utf-8")
    )
    yield _odd("charset-unknown", http("Zażółć ".encode() * 50, "text/html; charset=klingon"))
    yield _odd("charset-that-is-a-python-codec", http(b"abc-" * 9000, "text/html; charset=punycode"))
    yield _odd("charset-utf16-that-lies", http(page("odd"), "text/html; charset=utf-16"))
    yield _odd("cut-in-a-character", http("<p>żółw".encode()[:-1], "text/html; charset=utf-8"))
    yield _odd(
        "chunked-body",
        http(b"5\r\n<p>ab\r\n3\r\ncde\r\n0\r\n\r\n", "text/html", "200 OK", "Transfer-Encoding: chunked"),
    )
    yield _odd(
        "chunked-body-cut",
        http(b"5\r\n<p>ab\r\nfff\r\ncde", "text/html", "200 OK", "Transfer-Encoding: chunked"),
    )
    yield _odd(
        "chunked-body-that-lies", http(page("odd"), "text/html", "200 OK", "Transfer-Encoding: chunked")
    )
    yield _odd("gzip-body-that-lies", http(page("odd"), "text/html", "200 OK", "Content-Encoding: gzip"))
    gzipped = member(page("odd") * 50)
    yield _odd("gzip-body-cut", http(gzipped[:-40], "text/html", "200 OK", "Content-Encoding: gzip"))
    yield _odd(
        "gzip-bomb-in-body",
        http(_gzip_with_zeros(b"<html>", 48 * MIB), "text/html", "200 OK", "Content-Encoding: gzip"),
    )
    yield _odd(
        "gzip-bomb-in-text-body",
        http(_gzip_with_zeros(b"<html>", 48 * MIB), "text/plain", "200 OK", "Content-Encoding: gzip"),
    )


def _members_of_records() -> Iterator[Defect]:
    middle = good("middle")
    yield _defect("gzip-bomb-in-member", lambda: A + _big_record(96 * MIB) + C, 3, 3)
    yield _defect("page-of-50-mb", lambda: A + _big_record(50 * MIB) + C, 3, 3)
    yield _defect("record-twice", lambda: A + A + C, 3, 3)
    yield _defect(
        "no-line-ends-behind-record", lambda: A + member(middle.removesuffix(b"\r\n\r\n")) + C, 3, 3
    )
    yield _defect("whole-file-in-one-member", lambda: member(good("1") + good("2") + good("3")), 3, 3)
    bad_second = good("1") + record(RESPONSE, content_length=str(len(RESPONSE) - 9)) + good("3")
    yield _defect("bad-record-within-one-member", lambda: member(bad_second), 2, 2, 1, says="goes on behind")
    cut = member(good("1") + good("2") + good("3"))
    yield _defect(
        "one-member-with-bad-crc", lambda: _flip(cut, len(cut) - 6), 0, 0, 1, says="damaged gzip member"
    )


def _plain_and_zstd() -> Iterator[Defect]:
    a, b, c = good("before"), good("middle"), good("behind")
    block = http(page("odd"))
    longer = record(block, content_length=str(len(block) + 99))
    shorter = record(block, content_length=str(len(block) - 99))
    za, zb, zc = (zstandard.ZstdCompressor(write_checksum=True).compress(each) for each in (a, b, c))

    def defect(
        name: str, data: bytes, records: int, documents: int, bad: int = 0, *, says: str = ""
    ) -> Defect:
        return Defect(
            name=name, make=lambda: data, records=records, documents=documents, unreadable=bad, says=says
        )

    yield defect("plain-concatenated.warc", a + b + c, 3, 3)
    yield defect("plain-without-name.dat", a + b + c, 3, 3)
    yield defect("plain-cut.warc", a + b[:-200], 1, 1, 1, says="bytes before its Content-Length")
    yield defect("plain-content-length-too-long.warc", a + longer + c, 2, 2, 1, says="goes on behind")
    yield defect("plain-content-length-too-short.warc", a + shorter + c, 2, 2, 1, says="goes on behind")
    yield defect("plain-garbage.warc", a + b"garbage\r\n" * 20_000 + c, 1, 1, 1, says="goes on behind")
    yield defect("plain-then-gzip.warc", a + b + member(c), 1, 1, 1, says="goes on behind")
    yield defect("zstd.warc.zst", za + zb + zc, 3, 3)
    yield defect("zstd-frame-without-content.warc.zst", za + b"\x50\x2a\x4d\x18\x03\0\0\0abc" + zc, 2, 2)
    yield defect(
        "zstd-frame-without-content-cut.warc.zst", za + b"\x50\x2a\x4d\x18\xff\0\0\0abc", 1, 1, 1, says="ends"
    )
    yield defect("zstd-with-dictionary.warc.zst", _zstd_with_dictionary(a, b, c), 3, 3)
    damaged = _zstd_with_dictionary(a, b, c).replace(ZSTD_DICTIONARY, b"\x51\x2a\x4d\x18")
    yield defect("zstd-without-its-dictionary.warc.zst", damaged, 0, 0, 1, says="damaged zstd frame")
    yield defect("zstd-bomb.warc.zst", za + _zstd_bomb(96 * MIB) + zc, 3, 3)
    yield defect("zstd-cut.warc.zst", za + zb[:-20], 1, 1, 1, says="the file ends inside a zstd frame")
    yield defect(
        "zstd-damaged.warc.zst", za + _flip(zb, len(zb) - 2) + zc, 2, 2, 1, says="damaged zstd frame"
    )


def _jsonl() -> Iterator[Defect]:
    ok = (
        json.dumps({"text": "Good text.", "id": "1", "url": "https://example.org/", "lang": "en"}).encode()
        + b"\n"
    )

    def defect(name: str, data: bytes, documents: int, bad: int = 0, *, says: str = "") -> Defect:
        return Defect(
            name=name, make=lambda: data, records=documents, documents=documents, unreadable=bad, says=says
        )

    def between(name: str, line: bytes, says: str) -> Defect:
        return defect(f"jsonl-{name}.jsonl", ok + line + b"\n" + ok, 2, 1, says=says)

    yield between("broken-line", b'{"text": "cut', "the line is not JSON")
    yield between("text-missing", b'{"id": "2"}', "there is no field 'text'")
    yield between("text-is-number", b'{"text": 5}', "the field 'text' is a int")
    yield defect("jsonl-text-is-null.jsonl", ok + b'{"text": null}\n' + ok, 3)
    yield between("line-is-list", b'["text"]', "a JSON list")
    yield between("line-not-utf8", b'{"text": "\xff\xfe"}', "cannot be read as JSON in UTF-8")
    yield between(
        "line-nested-deep",
        b'{"text": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "nested more than 200",
    )
    yield between(
        "number-of-10000-digits", b'{"text": "a", "x": ' + b"9" * 10_000 + b"}", "cannot be read as JSON"
    )
    odd = b'{"text": "a\\ud800b\\u0000", "id": "\\udfff", "url": "\\ud800", "x": "\\ud800", "y": NaN, "z": 1e999}\n'
    yield defect("jsonl-lone-surrogates-and-nan.jsonl", ok + odd, 2)
    yield defect("jsonl-blank-lines-and-no-last-line-end.jsonl", b"\n\n" + ok + b"  \r\n" + ok.strip(), 2)
    yield defect("jsonl-byte-order-mark.jsonl", b"\xef\xbb\xbf" + ok, 1)
    yield defect("jsonl-same-id-twice.jsonl", ok + ok, 2)
    yield defect("jsonl-empty.jsonl", b"", 0)
    packed = gzip.compress(ok * 1000, mtime=0)
    yield defect(
        "jsonl-truncated.jsonl.gz",
        packed[: len(packed) - 20],
        964,
        1,
        says="the file ends inside a gzip member",
    )
    yield defect(
        "jsonl-bad-crc.jsonl.gz",
        member(ok) + _flip(member(ok), len(member(ok)) - 6),
        1,
        1,
        says="damaged gzip",
    )
    yield defect("jsonl-zstd.jsonl.zst", zstandard.ZstdCompressor().compress(ok * 3), 3)


def _parquet() -> Iterator[Defect]:
    def packed(table: pa.Table) -> bytes:
        sink = io.BytesIO()
        pq.write_table(table, sink)
        return sink.getvalue()

    def defect(name: str, data: bytes, documents: int, bad: int = 0, *, says: str = "") -> Defect:
        return Defect(
            name=f"parquet-{name}.parquet",
            make=lambda: data,
            records=documents,
            documents=documents,
            unreadable=bad,
            says=says,
        )

    whole = packed(pa.table({"text": ["one", "two"], "score": [1.0, float("nan")], "raw": [b"\xff", None]}))
    not_utf8 = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xff\xfe"]).buffers())
    yield defect("whole", whole, 2)
    yield defect(
        "without-text-column", packed(pa.table({"body": ["one"]})), 0, 1, says="there is no column 'text'"
    )
    yield defect("text-column-of-numbers", packed(pa.table({"text": [1, 2]})), 0, 1, says="of type int64")
    yield defect("null-text", packed(pa.table({"text": ["one", None, "three"]})), 3)
    yield defect(
        "text-not-utf8", packed(pa.table({"text": not_utf8})), 1, 1, says="'text' is not UTF-8, from byte 0"
    )
    yield defect("truncated", whole[:-30], 0, 1, says="not a whole Parquet file")
    yield defect("damaged-page", _flip(_flip(whole, 8), 9), 0, 1, says="")
    yield defect("no-rows", packed(pa.table({"text": pa.array([], pa.string())})), 0)
    yield defect("not-parquet", b"not parquet at all", 0, 1, says="not a whole Parquet file")


DEFECTS: tuple[Defect, ...] = (
    *_gzip_members(),
    *_record_lengths(),
    *_record_headers(),
    *_http_headers(),
    *_bodies(),
    *_members_of_records(),
    *_plain_and_zstd(),
    *_jsonl(),
    *_parquet(),
)
