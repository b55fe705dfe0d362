"""Files that hold no record and are no fault: empty parts, and what writers of tables leave beside them."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from stages.reading.options import InputCounts, ReadOptions
from stages.reading.reader import read_documents


def read(name: str, data: bytes, **more: str) -> tuple[list[object], dict[str, int]]:
    counts = InputCounts()
    options = ReadOptions(source="s", file=name, size=len(data), **more)  # type: ignore[arg-type]
    return list(read_documents(io.BytesIO(data), options, counts)), counts.notes


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize(
    "name", ["part-00001.json", "x.jsonl", "x.warc", "x.warc.gz", "x.wacz", "x", "x.txt", "x.py"]
)
def test_a_file_of_nothing_is_a_file_of_no_records(name: str, pack: Callable[[bytes], bytes]) -> None:
    assert read(name, pack(b"")) == ([], {"empty": 1})


def test_an_empty_parquet_part_is_one_too() -> None:
    assert read("part-00001.parquet", b"") == ([], {"empty": 1})
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), sink)
    assert read("part-00001.parquet", sink.getvalue())[0] == []


@pytest.mark.parametrize(
    "name",
    [
        "_SUCCESS",
        "day=1/_SUCCESS",
        "_committed_4711",
        "_started_4711",
        "_metadata",
        "_common_metadata",
        "part-0.json.crc",
        "table/_delta_log/00000000000000000000.json",
        "_temporary/0/task_1/part-00000.json",
        "table/metadata/v1.metadata.json",
        "table/metadata/version-hint.text",
        "table/metadata/snap-1.avro",
    ],
)
def test_a_marker_of_a_writer_holds_no_record_whatever_it_looks_like(name: str) -> None:
    row = json.dumps({"text": "a commit"}).encode()
    assert read(name, row) == ([], {"marker": 1})


@pytest.mark.parametrize(
    "name", ["_part.json", "success.json", "metadata/a.jsonl", "committed_1", "a_metadata"]
)
def test_other_names_are_files_of_rows(name: str) -> None:
    items, notes = read(name, b'{"text": "a row"}\n')
    assert (len(items), notes) == (1, {})


def test_where_each_file_is_a_document_no_name_is_a_marker() -> None:
    items, notes = read("_metadata", b"a text", format="file")
    assert (len(items), notes) == (1, {})


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.warc", "a.txt"])
def test_a_stream_that_ends_before_the_listed_size_is_no_end_of_the_file(name: str) -> None:
    """As an object that is shorter than it was listed: what is read of it ends in whole rows or records."""
    record = b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: 4\r\n\r\ntext\r\n\r\n"
    data = {
        "a.jsonl": b'{"text": "a row"}\n',
        "a.jsonl.gz": gzip.compress(b'{"text": "a row"}\n'),
        "a.warc": record,
    }
    whole = data.get(name, b"a text")
    with pytest.raises(OSError, match=f"the stream ends at byte {len(whole)} of 9,000"):
        list(read_documents(io.BytesIO(whole), ReadOptions(source="s", file=name, size=9_000)))
