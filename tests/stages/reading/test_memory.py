"""Peak memory of reading inputs that are small and unfold, each in a process of its own."""

from __future__ import annotations

import gzip
import io
import json
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import brotli
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from stages.reading.reader import ReadOptions, read_documents
from tests.support.inputs.make_warc import good, http, member, record

MIB = 1 << 20
HUGE = "x" * (60 * MIB)
READ = """
import resource, sys
import pyarrow.parquet
from stages.document import Document
from stages.html.page import Bounds, read_page
from stages.reading.reader import ReadOptions, read_documents

def peak():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))

before, documents, too_long, unreadable = peak(), 0, 0, 0
options = ReadOptions(source="s", file=sys.argv[1], max_document_bytes=20_000_000)
with open(sys.argv[1], "rb") as stream:
    for item in read_documents(stream, options):
        if isinstance(item, Document):
            documents += 1
            too_long += item.num_bytes > 20_000_000
            if item.is_html:
                read_page(item, Bounds(num_bytes=20_000_000, num_tags=100_000, depth=1_000, num_options=2_000))
        else:
            unreadable += 1
print(documents, too_long, unreadable, peak() - before)
"""


def parquet(columns: dict[str, object], **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, compression="zstd", **options)
    return sink.getvalue()


def packed(packer: object, *pieces: bytes, times: int = 1, end: bytes = b"") -> bytes:
    """The first piece, the second so often, and an end, compressed without ever being held."""
    parts = [packer.compress(pieces[0])]
    parts += [packer.compress(pieces[1]) for _ in range(times)]
    return b"".join([*parts, packer.compress(end), packer.flush()])


def gzipped(first: bytes, again: bytes = b"", times: int = 1, end: bytes = b"") -> bytes:
    """As `packed`. What follows a full flush refers to nothing before it: the piece is compressed once."""

    def deflated(data: bytes, mode: int) -> bytes:
        packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        return packer.compress(data) + packer.flush(mode)

    checksum = zlib.crc32(first)
    for _ in range(times):
        checksum = zlib.crc32(again, checksum)
    size = len(first) + times * len(again) + len(end)
    return (
        gzip.compress(b"")[:10]
        + deflated(first, zlib.Z_FULL_FLUSH)
        + deflated(again, zlib.Z_FULL_FLUSH) * times
        + deflated(end, zlib.Z_FINISH)
        + struct.pack("<II", zlib.crc32(end, checksum), size % 2**32)
    )


def zstd(*pieces: bytes, times: int = 1, end: bytes = b"") -> bytes:
    return packed(zstandard.ZstdCompressor().compressobj(), *pieces, times=times, end=end)


def body(encoding: str, data: bytes) -> bytes:
    return member(record(http(data, "text/html", "200 OK", encoding), "bomb")) + member(good("behind"))


def long_record(num_mib: int) -> bytes:
    head = http(b"<html><body>")
    return record(head, "big", content_length=str(len(head) + num_mib * MIB)).removesuffix(b"\r\n\r\n")


LINE = b'{"text": "a"}\n'
BOMBS: dict[str, tuple[Callable[[], bytes], tuple[int, int, int]]] = {
    "dictionary.parquet": (
        lambda: parquet({"text": pa.DictionaryArray.from_arrays([0] * 20, [HUGE])}, store_schema=False),
        (20, 20, 0),
    ),
    "delta.parquet": (
        lambda: parquet(
            {"text": [HUGE] * 20}, use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"}
        ),
        (20, 20, 0),
    ),
    "plain.parquet": (lambda: parquet({"text": [HUGE] * 20}, use_dictionary=False), (0, 0, 1)),
    "other-column.parquet": (lambda: parquet({"text": ["a"] * 20, "more": [HUGE] * 20}), (0, 0, 20)),
    "list.parquet": (lambda: parquet({"text": ["a", "b"], "more": [[HUGE] * 20, ["c"]]}), (1, 0, 1)),
    "list-of-nulls.parquet": (
        lambda: parquet({"text": ["a", "b"], "more": pa.array([[None] * (40 * MIB), []], pa.list_(pa.null()))}),
        (0, 0, 1),
    ),
    "many-columns.parquet": (
        lambda: parquet({"text": ["a"]} | {f"c{number}": ["y" * 4 * MIB] for number in range(100)}),
        (0, 0, 1),
    ),
    "line-of-2-gib.jsonl.gz": (
        lambda: gzipped(LINE + b'{"text": "', b"x" * MIB, times=2048, end=b'"}\n' + LINE), (3, 1, 0),
    ),
    "astral-line.jsonl.gz": (
        lambda: gzipped(b'{"text": "\xf0\x9f\x98\x80', b"y" * MIB, times=125, end=b'"}\n' + LINE), (2, 1, 0),
    ),
    "brackets.jsonl.gz": (
        lambda: gzipped(b'{"text": "a", "more": [', b"[]," * MIB, times=11, end=b"[]]}\n" + LINE), (1, 0, 1),
    ),
    "bad-lines.jsonl.gz": (lambda: gzipped(LINE, b"x\n" * MIB, times=100), (1, 0, 10_001)),
    "blank-lines.jsonl.zst": (lambda: zstd(LINE, b"\n" * MIB, times=500), (1, 0, 0)),
    "record-of-2-gib.warc.gz": (
        lambda: gzipped(long_record(2048), bytes(MIB), times=2048, end=b"\r\n\r\n") + member(good("behind")),
        (2, 1, 0),
    ),
    "record-of-2-gib.warc.zst": (
        lambda: zstd(long_record(2048), bytes(MIB), times=2048, end=b"\r\n\r\n"), (1, 1, 0),
    ),
    "gzip-body.warc.gz": (
        lambda: body("Content-Encoding: gzip", gzipped(b"<p>", bytes(MIB), times=1024)), (2, 0, 0),
    ),
    "brotli-body.warc.gz": (
        lambda: body("Content-Encoding: br", brotli.compress(bytes(512 * MIB), quality=5)), (2, 0, 0),
    ),
    "zstd-body.warc.gz": (
        lambda: body("Content-Encoding: zstd", zstd(b"<p>", bytes(MIB), times=1024)), (2, 0, 0),
    ),
    "gzip-in-gzip-body.warc.gz": (
        lambda: body("Content-Encoding: gzip, gzip", gzip.compress(gzipped(b"<p>", bytes(MIB), times=1024))),
        (2, 0, 0),
    ),
    "chunks-of-a-byte.warc.gz": (
        lambda: body("Transfer-Encoding: chunked", b"1\r\na\r\n" * 3_000_000 + b"0\r\n\r\n"), (2, 0, 0),
    ),
}  # fmt: skip
CEILING = 640 * MIB
"""What reading may take beside the libraries: half a gigabyte for the pages of a row, a text of 20 MB a few
times."""


QUICK = ("dictionary.parquet", "brackets.jsonl.gz", "gzip-body.warc.gz", "chunks-of-a-byte.warc.gz")


@pytest.mark.parametrize(
    "name", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in BOMBS]
)
def test_a_small_file_that_unfolds_takes_bounded_memory(name: str, tmp_path: Path) -> None:
    make, wanted = BOMBS[name]
    path = tmp_path / name
    path.write_bytes(make())
    assert path.stat().st_size < 3 * MIB
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    *found, peak = map(int, done.stdout.split())
    assert tuple(found) == wanted
    assert peak < CEILING, f"{peak / MIB:.0f} MiB"


def test_the_page_meter_lets_every_honest_file_pass(tmp_path: Path) -> None:
    rows = [
        {
            "text": f"text {n} " * (n % 700 if n % 9 == 0 else n % 70),
            "n": n,
            "tags": ["a", f"b{n % 9}"],
            "more": {"x": n / 3},
        }
        for n in range(1500)
    ]
    wanted = None
    for version in ("1.0", "2.0"):
        for compression in ("none", "snappy", "gzip", "zstd", "brotli", "lz4"):
            for use_dictionary in (True, False):
                path = tmp_path / "honest.parquet"
                pq.write_table(
                    pa.Table.from_pylist(rows),
                    path,
                    compression=compression,
                    data_page_version=version,
                    use_dictionary=use_dictionary,
                    data_page_size=20_000,
                    row_group_size=600,
                )
                with open(path, "rb") as stream:
                    options = ReadOptions(source="s", file="honest.parquet")
                    found = [(item.text, item.metadata) for item in read_documents(stream, options)]
                wanted = wanted or found
                assert found == wanted
                assert [json.loads(more)["n"] for _, more in found] == list(range(1500))
