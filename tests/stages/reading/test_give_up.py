"""Files that are not read to their end: what is left of them is one stretch, as long as it can be told."""

from __future__ import annotations

import gzip
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.reading import give_up, jsonl
from stages.reading.reader import ReadOptions, Unreadable, read_documents
from tests.support.inputs.make_warc import member

BAD, GOOD = b"nonsense\n", b'{"text":"good"}\n'
LINES = BAD * 30 + GOOD * 15


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(give_up, "_MANY", 10)


def last_of(data: bytes, name: str) -> Unreadable:
    """The last item of a file, which says that it was given up."""
    options = ReadOptions(source="s", file=name, size=len(data))
    *before, last = read_documents(io.BytesIO(data), options)
    assert len(before) == 10
    assert isinstance(last, Unreadable)
    assert last.error.startswith("not read from here on: 10 stretches were unreadable beside 0 documents")
    return last


def test_the_rest_of_a_jsonl_file_reaches_to_its_last_byte() -> None:
    last = last_of(LINES, "a.jsonl")
    assert (last.offset, last.offset + last.length) == (10 * len(BAD), len(LINES))


def test_the_rest_of_a_warc_reaches_to_its_last_byte() -> None:
    data = b"".join(member(b"WARC/1.0\r\nbroken\r\n\r\n") for _ in range(40))
    last = last_of(data, "a.warc.gz")
    assert last.length > 0
    assert last.offset + last.length == len(data)


def test_the_rest_of_a_parquet_file_reaches_to_its_last_row() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": [b"\xff"] * 30 + [b"good"] * 15}), sink)
    last = last_of(sink.getvalue(), "a.parquet")
    assert (last.offset, last.length) == (10, 35)


def test_the_rest_of_a_compressed_file_has_no_length_that_is_known() -> None:
    last = last_of(gzip.compress(LINES, 0), "a.jsonl.gz")
    assert (last.offset, last.length) == (10 * len(BAD), 0)


def test_a_reader_that_fails_altogether_leaves_the_rest_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(jsonl, "Place", fail)
    (found,) = read_documents(io.BytesIO(LINES), ReadOptions(source="s", file="a.jsonl", size=len(LINES)))
    assert isinstance(found, Unreadable)
    assert found.error.startswith("nothing more of the file is read: reading it raised ZeroDivisionError")
    assert (found.offset, found.length) == (0, len(LINES))
