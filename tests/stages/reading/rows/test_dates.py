"""The dates of rows: what is one, in JSONL and Parquet alike, and what is counted as none."""

from __future__ import annotations

import io
import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.document import Document
from stages.reading.options import InputCounts, ReadOptions, RowFields, Unreadable
from stages.reading.reader import read_documents
from stages.reading.rows.dates import date_of

NOON = "2026-01-31T12:00:00Z"
SECONDS = 1_769_860_800


@pytest.mark.parametrize(
    "value",
    [
        SECONDS,
        SECONDS * 1_000,
        SECONDS * 10**6,
        SECONDS * 10**9,
        float(SECONDS),
        Decimal(SECONDS),
        str(SECONDS),
        f"{SECONDS}.0",
        f" {SECONDS}000 ",
        "1.7698608e+09",
        20260131120000,
        "20260131120000",
        "Sat, 31 Jan 2026 12:00:00 GMT",
        "31 Jan 2026 13:00 +0100",
        "Sat, 31 Jan 2026 13:00:00 +0100 (CET)",
        "Saturday, 31-Jan-26 12:00:00 GMT",
        "Sat Jan 31 12:00:00 2026",
        "Sat Jan 31 12:00:00 +0000 2026",
        "2026-01-31 12:00:00 UTC",
        datetime(2026, 1, 31, 12),
    ],
)
def test_numbers_digits_and_dates_of_mail_and_http_are_dates(value: Any) -> None:
    assert date_of(value) == NOON


@pytest.mark.parametrize("value", [20260131, "20260131", date(2026, 1, 31), "2026-01-31"])
def test_a_day_is_a_date(value: Any) -> None:
    assert date_of(value) == "2026-01-31T00:00:00Z"


def test_fractions_of_a_second_stay() -> None:
    assert date_of(SECONDS * 1_000 + 250) == date_of(SECONDS + 0.25) == "2026-01-31T12:00:00.250000Z"


@pytest.mark.parametrize(
    "value",
    [
        0, 1, 2026, 315_532_799, 4_102_444_800, 9_999_999_999, -SECONDS, True, float("inf"), 10**40, 20261331,
        20260132120000, "2026", "5551234567", "31/01/2026", "31 Feb 2026 12:00:00 GMT", "Sat, 31 Jan 2026",
        "Sat Jan 31 2026 12:00:00 GMT+0100", "31 Jan 2026 12:00:00 CEST", "yesterday", [SECONDS], "9" * 5_000,
    ],
)  # fmt: skip
def test_what_is_no_plausible_date_is_none(value: Any) -> None:
    assert date_of(value) is None


def parquet(column: pa.Array) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": ["a"] * len(column), "date": column}), sink)
    return sink.getvalue()


USUAL = RowFields()


def read(data: bytes, fields: RowFields = USUAL) -> tuple[list[Document | Unreadable], InputCounts]:
    counts = InputCounts()
    options = ReadOptions(source="s", file="f", fields=fields)
    return list(read_documents(io.BytesIO(data), options, counts)), counts


@pytest.mark.parametrize(
    "column",
    [
        pa.array([SECONDS]),
        pa.array([SECONDS], pa.uint32()),
        pa.array([float(SECONDS), None]),
        pa.array([str(SECONDS)]),
        pa.array([SECONDS], pa.timestamp("s")),
        pa.array([SECONDS * 10**9], pa.timestamp("ns", "UTC")),
        pa.array([Decimal(SECONDS)], pa.decimal128(12, 0)),
        pa.array(["Sat, 31 Jan 2026 12:00:00 GMT"]),
        pa.array([b"20260131120000"]),
    ],
)
def test_columns_of_parquet_are_read_as_values_of_json_are(column: pa.Array) -> None:
    first = read(parquet(column))[0][0]
    assert isinstance(first, Document) and first.captured_at == NOON
    (named, *_), _ = read(parquet(column), RowFields(date="date"))
    assert isinstance(named, Document) and named.captured_at == NOON


def test_days_of_parquet_are_dates() -> None:
    for kind in (pa.date32(), pa.date64()):
        (found,), _ = read(parquet(pa.array([date(2026, 1, 31)], kind)))
        assert isinstance(found, Document) and found.captured_at == "2026-01-31T00:00:00Z"


def test_what_is_no_date_is_counted_with_an_example_and_an_empty_one_is_not() -> None:
    rows = [{"date": "3 days ago"}, {"date": 2026}, {"date": None}, {"date": ""}, {"date": float("nan")}, {}]
    data = "\n".join(json.dumps({"text": "a"} | row) for row in rows).encode()
    found, counts = read(data)
    assert [item.captured_at for item in found if isinstance(item, Document)] == [None] * 6
    assert (counts.notes, counts.odd_date) == ({"odd_dates": 2}, "'3 days ago'")


def test_an_example_shows_no_sentence() -> None:
    _, counts = read(
        json.dumps({"text": "a", "date": "I met Anna Miller on the 3rd, and wept; so it goes"}).encode()
    )
    assert counts.odd_date == "a text"


def test_a_named_field_says_which_number_is_no_date() -> None:
    (found,), _ = read(b'{"text": "a", "date": 12345}', RowFields(date="date"))
    assert isinstance(found, Unreadable) and "'12345', a number that is no date" in found.error
