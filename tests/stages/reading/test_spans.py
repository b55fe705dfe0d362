"""A file that is read in spans gives what one reader gives, wherever the borders lie."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stages.document import Document
from stages.reading.jsonl import lines_of_span, spans_of_lines
from stages.reading.options import Border, FileSpan, InputCounts, ReadOptions, Unreadable
from stages.reading.reader import read_documents
from tests.support.inputs.make_warc import arc_begin, arc_record, good, http, member, page, record

Item = Document | Unreadable


def options_of(data: bytes, name: str, span: FileSpan | None = None) -> ReadOptions:
    return ReadOptions(source="own", file=name, size=len(data), max_document_bytes=1 << 20, span=span)


def one_reader(data: bytes, name: str) -> tuple[list[Item], InputCounts]:
    counts = InputCounts()
    return list(read_documents(io.BytesIO(data), options_of(data, name), counts)), counts


def in_spans(data: bytes, name: str, borders: Sequence[int]) -> tuple[list[Item], InputCounts, int]:
    """The items and counts of the spans between these borders, each begun where the one before it ended, and how
    many of them took another place."""
    spans = [
        FileSpan(begin=begin, end=end)
        for begin, end in pairwise(sorted({0, *borders, len(data)}))
        if end > begin
    ]
    num_wrong = 0

    def tiled(read: Callable[[FileSpan], Any]) -> list[tuple[FileSpan, Any]]:
        nonlocal num_wrong
        found: list[tuple[FileSpan, Any]] = []
        at: Border | None = None
        for nominal in spans:
            if at is not None and at.position >= nominal.end:
                continue
            span, result = nominal, read(nominal)
            if at is not None and result.began != at:
                num_wrong += 1
                span = replace(nominal, start=at)
                result = read(span)
            found.append((span, result))
            at = result.ended
            assert at is not None
        return found

    if ".jsonl" in name:
        counted = tiled(lambda span: lines_of_span(io.BytesIO(data), span, 1 << 27))
        spans = spans_of_lines([span for span, _ in counted], [lines for _, lines in counted])
    items: dict[FileSpan, list[Item]] = {}

    def read(span: FileSpan) -> InputCounts:
        counts = InputCounts()
        items[span] = list(read_documents(io.BytesIO(data), options_of(data, name, span), counts))
        return counts

    together, whole = InputCounts(), list[Item]()
    for span, counts in tiled(read):
        together.add(counts)
        whole += items[span]
    return whole, together, num_wrong


def check_same(data: bytes, name: str, borders: Sequence[int]) -> int:
    expected, counts = one_reader(data, name)
    found, together, num_wrong = in_spans(data, name, borders)
    assert found == expected
    for field in (
        "num_records",
        "num_documents",
        "num_unreadable",
        "by_type",
        "by_mime",
        "by_status",
        "notes",
    ):
        assert getattr(together, field) == getattr(counts, field)
    return num_wrong


def pages(num: int, seed: int) -> list[bytes]:
    chosen = random.Random(seed)
    return [
        record(http(page(str(n)) + chosen.randbytes(chosen.choice((0, 0, 50, 3_000)))), str(n))
        for n in range(num)
    ]


def rows(num: int, seed: int) -> list[bytes]:
    chosen = random.Random(seed)
    lines = []
    for n in range(num):
        line = json.dumps({"text": f"row {n} " * chosen.choice((1, 3, 200))}).encode() + b"\n"
        lines.append(chosen.choice((line, line, line, b"\n", b"{broken\n", b"  \n" + line)))
    return lines


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def seekable(data: bytes) -> bytes:
    """A frame behind one that holds no content, as pzstd writes it."""
    frame = zstd(data)
    return b"\x50\x2a\x4d\x18\x04\x00\x00\x00" + len(frame).to_bytes(4, "little") + frame


def cut(data: bytes, seed: int) -> list[bytes]:
    """The data in pieces of any length, some empty."""
    chosen = random.Random(seed)
    borders = sorted(chosen.randint(0, len(data)) for _ in range(12))
    return [data[begin:end] for begin, end in pairwise([0, *borders, len(data)])]


def table(num: int, seed: int) -> bytes:
    chosen, sink = random.Random(seed), io.BytesIO()
    with pq.ParquetWriter(sink, pa.schema([("text", pa.string())])) as writer:
        for first in range(0, num, 5):
            texts = [f"row {first + n} " * chosen.randint(1, 50) for n in range(chosen.randint(0, 5))]
            writer.write_table(pa.table({"text": pa.array(texts, pa.string())}))
    return sink.getvalue()


MAKERS: dict[str, Callable[[int, int], bytes]] = {
    "a.warc": lambda num, seed: b"".join(pages(num, seed)),
    "a.warc.gz": lambda num, seed: b"".join(map(member, pages(num, seed))),
    "a.warc.zst": lambda num, seed: b"".join(map(zstd, pages(num, seed))),
    "pzstd.warc.zst": lambda num, seed: b"".join(map(seekable, pages(num, seed))),
    "one.warc.gz": lambda num, seed: member(b"".join(pages(num, seed))),
    "a.arc": lambda num, seed: (
        arc_begin() + b"".join(arc_record(http(page(str(n))), f"http://example.org/{n}") for n in range(num))
    ),
    "a.jsonl": lambda num, seed: b"".join(rows(num, seed)),
    "a.jsonl.gz": lambda num, seed: b"".join(gzip.compress(p) for p in cut(b"".join(rows(num, seed)), seed)),
    "a.jsonl.zst": lambda num, seed: b"".join(map(zstd, cut(b"".join(rows(num, seed)), seed))),
    "pzstd.jsonl.zst": lambda num, seed: b"".join(map(seekable, cut(b"".join(rows(num, seed)), seed))),
    "a.jsonl.bz2": lambda num, seed: b"".join(map(bz2.compress, cut(b"".join(rows(num, seed)), seed))),
    "a.parquet": table,
}


@pytest.mark.parametrize(
    ("name", "pack"), [("a.warc", bytes), ("a.warc.gz", member), ("a.warc.zst", zstd), ("a.arc", bytes)]
)
def test_a_part_that_begins_with_a_record_begins_there(name: str, pack: Callable[[bytes], bytes]) -> None:
    arc = [arc_begin(), *(arc_record(http(page(str(n))), f"http://example.org/{n}") for n in range(6))]
    records = arc if name == "a.arc" else [pack(good(str(n))) for n in range(6)]
    starts = list(accumulate(map(len, records)))[1:-1:2]
    assert check_same(b"".join(records), name, starts) == 0, "no part is read twice"
    before = [start - 1 for start in starts]
    assert check_same(b"".join(records), name, before) == 0


def test_members_that_hold_nothing_neither_begin_nor_end_a_line() -> None:
    pieces = (b'{"te', b"", b"", b'xt": "a"}\n', b"", b'{"text": "b"}\n')
    members = [zstd(piece) for piece in pieces]
    assert check_same(b"".join(members), "a.jsonl.zst", list(accumulate(map(len, members)))) == 0


def trap(seed: int) -> tuple[bytes, list[int]]:
    """Two pages around one whose body, stored as it is, holds whole records in members of their own, as a reader that
    begins within it would take them; and where they begin."""
    chosen = random.Random(seed)
    kind = chosen.choice(("gzip", "zstd", "plain"))
    pack = {"gzip": member, "zstd": zstd, "plain": bytes}[kind]
    inner = [record(http(page(f"false {seed} {n}")), f"false {n}") for n in range(chosen.randint(1, 4))]
    false = chosen.randbytes(chosen.randint(0, 2_000)) + b"".join(map(pack, inner))
    false += chosen.randbytes(chosen.randint(0, 2_000))
    outer = record(http(false, "application/gzip"), "outer")
    stored = gzip.compress(outer, 0, mtime=0) if kind == "gzip" else pack(outer)
    before, after = pack(good("before")), b"".join(pack(good(f"after {n}")) for n in range(3))
    data = before + stored + after
    magic = {"gzip": b"\x1f\x8b\x08", "zstd": b"\x28\xb5\x2f\xfd", "plain": b"WARC/1.0"}[kind]
    within = range(len(before) + 1, len(before) + len(stored))
    return data, [at for at in within if data.startswith(magic, at)]


def test_records_in_the_body_of_a_record_are_neither_read_nor_do_they_hide_others() -> None:
    num_misled = 0
    for seed in range(200):
        data, false = trap(seed)
        chosen = random.Random(seed)
        borders = [max(at - chosen.choice((0, 1, 7, 100)), 1) for at in false]
        num_misled += check_same(data, "a.warc", borders) > 0
        items, _, _ = in_spans(data, "a.warc", borders)
        assert [item.url for item in items if isinstance(item, Document)] == [
            f"https://example.org/{name}" for name in ("before", "after 0", "after 1", "after 2")
        ]
    assert num_misled > 150


@pytest.mark.parametrize("name", MAKERS)
@given(
    num=st.integers(1, 40),
    seed=st.integers(0, 1_000),
    shares=st.lists(st.floats(0, 1), max_size=12),
)
@settings(max_examples=15, deadline=None)
def test_spans_between_any_borders_give_what_one_reader_gives(
    name: str, num: int, seed: int, shares: list[float]
) -> None:
    data = MAKERS[name](num, seed)
    assume(data)
    check_same(data, name, [int(share * len(data)) for share in shares])


def test_row_groups_with_large_pages_are_read_once() -> None:
    sink, texts = io.BytesIO(), [f"{n} " + "word " * 1_200 for n in range(1_000)]
    with pq.ParquetWriter(sink, pa.schema([("text", pa.string())])) as writer:
        for _ in range(3):
            writer.write_table(pa.table({"text": texts}))
    data = sink.getvalue()
    assert check_same(data, "a.parquet", [len(data) // 3, 2 * len(data) // 3]) == 0
