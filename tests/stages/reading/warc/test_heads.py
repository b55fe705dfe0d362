"""The heads of a record as they stand in its file, for people."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from stages.reading.options import ReadOptions
from stages.reading.reader import heads_at
from tests.support.inputs.make_warc import arc_begin, arc_record, good, http, member, page, record

OPTIONS = ReadOptions(source="web", file="a.warc.gz")


@pytest.mark.parametrize("packed", [True, False])
def test_the_heads_of_a_record_are_those_that_stand_at_its_place(packed: bool) -> None:
    pack = member if packed else bytes
    first, second = pack(good("a")), pack(record(http(page("b"), None, "200 OK", "X-Odd: \x1b"), "b"))
    head, own = heads_at(io.BytesIO(first + second), len(first), OPTIONS)
    assert b"WARC-Target-URI: https://example.org/b" in head and b"example.org/a" not in head
    assert own == b"HTTP/1.1 200 OK\r\nX-Odd: \x1b\r\n\r\n"


def test_a_record_without_an_http_head_has_none() -> None:
    text = record(b"just a text", "t", content_type="text/plain", warc_type="conversion")
    head, own = heads_at(io.BytesIO(text), 0, replace(OPTIONS, file="a.wet"))
    assert b"conversion" in head and own == b""


def test_rows_have_no_heads_and_what_is_no_record_is_an_error() -> None:
    rows = b'{"text": "a"}\n{"text": "b"}\n'
    assert heads_at(io.BytesIO(rows), 14, replace(OPTIONS, file="a.jsonl")) == (b"", b"")
    with pytest.raises(ValueError, match=r"a\.warc\.gz at offset 10 cannot be read"):
        heads_at(io.BytesIO(member(good("a"))), 10, OPTIONS)


def test_an_arc_record_gives_its_line_and_what_follows_it() -> None:
    begin = arc_begin()
    head, _ = heads_at(
        io.BytesIO(begin + arc_record(http(page("a")))), len(begin), replace(OPTIONS, file="a.arc")
    )
    assert head.startswith(b"http://example.org/a 192.0.2.1")
