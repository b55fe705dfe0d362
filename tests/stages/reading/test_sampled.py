"""Parts of a file that are read for themselves: every record is in exactly one of the parts that tile the file."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.reading.options import ReadOptions
from stages.reading.reader import read_documents
from stages.reading.sampled import SampledPart, read_head, read_part

LENGTHS = st.lists(st.integers(0, 300), min_size=1, max_size=30)


def record(number: int, length: int) -> bytes:
    body = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + b"x" * length + b"%d" % number
    head = (
        f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:{number}>\r\nWARC-Target-URI: http://a.example/"
        f"{number}\r\nContent-Type: application/http\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body + b"\r\n\r\n"


def rows(lengths: list[int]) -> list[bytes]:
    return [
        json.dumps({"id": str(number), "text": "y" * length}).encode() + b"\n"
        for number, length in enumerate(lengths)
    ]


def parquet(lengths: list[int]) -> bytes:
    file = io.BytesIO()
    table = pa.table({"text": ["y" * length + str(number) for number, length in enumerate(lengths)]})
    pq.write_table(table, file, row_group_size=4)
    return file.getvalue()


FILES = {
    "a.warc.gz": lambda lengths: b"".join(gzip.compress(record(*each)) for each in enumerate(lengths)),
    "a.warc": lambda lengths: b"".join(record(*each) for each in enumerate(lengths)),
    "a.jsonl": lambda lengths: b"".join(rows(lengths)),
    "a.parquet": parquet,
}


def options(name: str, data: bytes) -> ReadOptions:
    return ReadOptions(source="web", file=name, size=len(data))


def parts(name: str, data: bytes, num: int) -> list[SampledPart | None]:
    borders = [len(data) * number // num for number in range(num + 1)]
    return [
        read_part(io.BytesIO(data), options(name, data), begin, end)
        for begin, end in pairwise(borders)
        if begin < end
    ]


@pytest.mark.parametrize("name", FILES)
@given(lengths=LENGTHS, num=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_each_document_is_in_exactly_one_of_the_parts(name: str, lengths: list[int], num: int) -> None:
    data = FILES[name](lengths)
    found = [part for part in parts(name, data, num) if part is not None]
    if name == "a.warc.gz" and len(lengths) < 3:
        return  # a first member that is most of the file has no place to begin at within it
    ids = Counter(document.doc_id for part in found for document in part.documents)
    whole = [
        each.doc_id
        for each in read_documents(io.BytesIO(data), options(name, data))
        if hasattr(each, "doc_id")
    ]
    assert ids == Counter(whole)


def test_what_is_compressed_as_one_stream_has_only_its_beginning() -> None:
    data = gzip.compress(b"".join(rows([200] * 2000)))
    assert parts("a.jsonl.gz", data, 8)[1:] == [None] * 7
    head = read_head(io.BytesIO(data), options("a.jsonl.gz", data), 10)
    assert [document.record_id for document in head.documents] == [str(number) for number in range(10)]
    packed = gzip.compress(b"".join(record(number, 50) for number in range(500)))
    assert parts("a.warc.gz", packed, 8) == [None] * 8


def test_lines_in_many_members_are_read_from_the_first_one_behind_the_place() -> None:
    members = [gzip.compress(b"".join(rows([150] * 40)[at : at + 10])) for at in range(0, 40, 10)]
    data, second = b"".join(members), len(members[0])
    part = read_part(io.BytesIO(data), options("a.jsonl.gz", data), 5, second + 5)
    assert part is not None
    assert (len(part.documents), part.num_bytes, part.is_whole) == (10, len(members[1]), False)
