"""Files that no reader is for, by their first bytes or their name, and those that must not be taken for
one."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import sqlite3
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
import zstandard

from stages.reading.magic import HEAD_BYTES
from stages.reading.options import DEFAULT_WINDOW_BYTES
from stages.reading.reader import ReadOptions, Unreadable, read_documents, why_no_reader
from tests.support.inputs.make_warc import good, member

TABLE = pa.table({"text": ["one"]})


def tar() -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.jsonl"))
    return sink.getvalue()


def zipped() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("a.jsonl", "{}")
    return sink.getvalue()


def written(write: object, table: pa.Table = TABLE) -> bytes:
    sink = pa.BufferOutputStream()
    write(table, sink)  # type: ignore[operator]
    return sink.getvalue().to_pybytes()


def stream_of_arrow() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return sink.getvalue().to_pybytes()


def database(folder: Path) -> bytes:
    connection = sqlite3.connect(folder / "a.db")
    connection.execute("CREATE TABLE t (x)")
    connection.commit()
    connection.close()
    return (folder / "a.db").read_bytes()


KINDS: dict[str, tuple[str, bytes, str]] = {
    "lz4": ("a.jsonl.lz4", pa.Codec("lz4").compress(b"{}" * 99).to_pybytes(), "compressed with LZ4.*lz4 -d"),
    "legacy lz4": ("a", b"\x02\x21\x4c\x18" + bytes(20), "LZ4"),
    "snappy": ("a.sz", b"\xff\x06\x00\x00sNaPpY" + bytes(20), "Snappy"),
    "brotli": ("a.jsonl.br", pa.Codec("brotli").compress(b"{}" * 99).to_pybytes(), "by its name it is compressed"),
    "lzma": ("a.jsonl.lzma", lzma.compress(b"{}", format=lzma.FORMAT_ALONE), "LZMA"),
    "zip": ("a.zip", zipped(), "ZIP archive.*unpack it first"),
    "zip by another name": ("a.jsonl", zipped(), "ZIP archive"),
    "7z": ("a.7z", b"7z\xbc\xaf\x27\x1c" + bytes(20), "7-Zip"),
    "rar": ("a.rar", b"Rar!\x1a\x07\x01" + bytes(20), "RAR"),
    "tar": ("a.tar", tar(), "tar archive"),
    "tar.gz": ("a.tar.gz", gzip.compress(tar()), "unpacked it is a tar archive"),
    "tar.zst": ("a.tar.zst", zstandard.ZstdCompressor().compress(tar()), "unpacked it is a tar archive"),
    "tar.bz2": ("a.tar.bz2", bz2.compress(tar()), "unpacked it is a tar archive"),
    "orc": ("a.orc", written(pyarrow.orc.write_table), "ORC"),
    "avro": ("a.avro", b"Obj\x01" + bytes(20), "Avro"),
    "feather": ("a.feather", written(pyarrow.feather.write_feather), "Arrow IPC"),
    "arrow stream": ("a.arrow", stream_of_arrow(), "Arrow IPC"),
    "parquet in gzip": ("a.parquet.gz", gzip.compress(written(pq.write_table)), "a compressed Parquet file: .*unp"),
    "html": ("a.jsonl", b"\n<!DOCTYPE HTML>\n<title>404</title>", "an HTML page.*fetch the file again"),
    "html in gzip": ("a.warc.gz", gzip.compress(b"<html><body>404"), "unpacked it is an HTML page"),
    "xml": ("a.xml", b'<?xml version="1.0"?><Error/>', "XML"),
    "pdf": ("a.warc", b"%PDF-1.7\n", "PDF.*name it .pdf"),
    "lfs": ("a.parquet", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
    "utf-16": ("a.jsonl", '{"text": "a"}'.encode("utf-16"), "UTF-16.*iconv"),
    "csv": ("a.csv", b"text,url\na,b\n", "by its name it is a table of comma"),
}  # fmt: skip


@pytest.mark.parametrize("kind", [*KINDS, "sqlite"])
def test_a_file_that_is_not_read_is_named_with_what_to_do(kind: str, tmp_path: Path) -> None:
    name, data, says = KINDS[kind] if kind in KINDS else ("a.db", database(tmp_path), "SQLite")
    why = why_no_reader(data[:HEAD_BYTES], name, DEFAULT_WINDOW_BYTES)
    assert why is not None
    assert re.search(says, why), why
    first, *_ = read_documents(io.BytesIO(data), ReadOptions(source="s", file=name))
    assert isinstance(first, Unreadable)
    assert why in first.error


ROW = b'{"text": "<html> PK\x03\x04 Obj ustar"}\n'
READ = {
    "a.jsonl": ROW, "a": b"\xef\xbb\xbf" + ROW, "b": b"\n\n  " + ROW, "a.csv": ROW, "a.jsonl.gz": gzip.compress(ROW),
    "a.bz2": bz2.compress(ROW), "a.xz": lzma.compress(ROW), "a.zst": zstandard.ZstdCompressor().compress(ROW),
    "a.warc": good("one"), "a.warc.gz": member(good("one")), "a.parquet": written(pq.write_table), "empty.br": b"",
    "damaged.warc": bytes(300), "cut.gz": gzip.compress(ROW)[:12], "long": b" " * 9000 + ROW,
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_no_file_that_is_read_is_taken_for_another(name: str) -> None:
    assert why_no_reader(READ[name][:HEAD_BYTES], name, DEFAULT_WINDOW_BYTES) is None


def test_records_behind_a_page_that_is_none_of_them_are_read_still() -> None:
    first, last = read_documents(
        io.BytesIO(b"<html>no record</html>\n" + good("one")), ReadOptions(source="s", file="a.warc")
    )
    assert isinstance(first, Unreadable)
    assert "it is an HTML page" in first.error
    assert not isinstance(last, Unreadable)
