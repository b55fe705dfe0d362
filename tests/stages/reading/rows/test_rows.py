"""Rows of JSONL and Parquet files as documents."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Callable
from datetime import datetime
from functools import partial
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from lineage import ids
from stages.document import Document
from stages.reading import jsonl as rows_of_jsonl
from stages.reading.options import InputCounts, RowFields
from stages.reading.parquet import page_meter
from stages.reading.reader import ReadOptions, Unreadable, detect_format, read_documents, read_one

ROW = {
    "text": "Żółw.",
    "id": "x1",
    "url": "https://example.org/",
    "date": "2026-01-02T03:04:05+01:00",
    "score": 2.5,
}


def jsonl(data: bytes, **options: object) -> list[Document]:
    items = list(read_documents(io.BytesIO(data), ReadOptions(source="s", file="f.jsonl", **options)))  # type: ignore[arg-type]
    return [item for item in items if isinstance(item, Document)]


def test_a_row_keeps_its_text_id_url_date_and_other_fields() -> None:
    (document,) = jsonl(json.dumps(ROW).encode())
    assert (document.text, document.record_id, document.url) == ("Żółw.", "x1", "https://example.org/")
    assert document.captured_at == "2026-01-02T02:04:05Z"
    assert json.loads(document.metadata or "") == {"date": ROW["date"], "score": 2.5}
    assert document.doc_id == ids.row_doc_id("s", "f.jsonl", "x1", "Żółw.")
    assert document.raw_hash == ids.content_hash("Żółw.".encode())


def test_a_row_without_an_id_is_named_by_its_number() -> None:
    first, second = jsonl(b'{"text": "a"}\n\n{"text": "b"}')
    assert first.doc_id == ids.row_doc_id("s", "f.jsonl", "0", "a")
    assert second.doc_id == ids.row_doc_id("s", "f.jsonl", "2", "b")
    assert (second.place.offset, second.place.length) == (15, 13)


LINE = st.sampled_from(
    [b"", b"", b" ", b"\t \r", b"\x0b", b'{"text": "a"}', b' {"text": "b"}', b"bad", b"   " * 9]
)


@given(st.lists(LINE, max_size=12), st.booleans(), st.integers(1, 20))
def test_blank_lines_count_in_number_and_offset_wherever_the_stream_is_cut(
    lines: list[bytes], has_end: bool, size: int
) -> None:
    data = b"\n".join(lines) + b"\n" * has_end
    wanted, offset = [], 0
    for number, line in enumerate(data.split(b"\n")):
        if line.strip():
            wanted.append((number, offset, len(line) + (offset + len(line) < len(data))))
        offset += len(line) + 1
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rows_of_jsonl, "_SPLIT_BYTES", size)
        found = list(read_documents(io.BytesIO(data), ReadOptions(source="s", file="f.jsonl")))
    places = [item.place if isinstance(item, Document) else item for item in found]
    assert [(place.offset, place.length) for place in places] == [place[1:] for place in wanted]
    for item, (number, _, _) in zip(found, wanted, strict=True):
        if isinstance(item, Document):
            assert item.doc_id == ids.row_doc_id("s", "f.jsonl", str(number), item.text)


def test_the_same_rows_in_jsonl_and_parquet_give_the_same_documents() -> None:
    rows = [{"text": f"text {n}", "url": f"https://example.org/{n}", "n": n} for n in range(200)]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=30)
    options = ReadOptions(source="s", file="f")
    lines = "\n".join(json.dumps(row) for row in rows).encode()
    ours = [list(read_documents(io.BytesIO(data), options)) for data in (lines, sink.getvalue())]
    for line, row in zip(*ours, strict=True):
        assert isinstance(line, Document)
        assert isinstance(row, Document)
        assert (line.doc_id, line.text, line.url, line.metadata) == (
            row.doc_id,
            row.text,
            row.url,
            row.metadata,
        )
    last = ours[1][-1]
    assert isinstance(last, Document)
    assert (last.place.offset, last.place.length) == (199, 1)
    assert read_one(io.BytesIO(sink.getvalue()), 199, options) == last


def test_dates_bytes_and_missing_numbers_of_parquet_are_kept_as_json() -> None:
    sink = io.BytesIO()
    table = {
        "text": ["a"],
        "date": [datetime(2026, 1, 2)],
        "raw": [b"\xff"],
        "nan": [float("nan")],
        "list": [[1.5]],
    }
    pq.write_table(pa.table(table), sink)
    (document,) = read_documents(io.BytesIO(sink.getvalue()), ReadOptions(source="s", file="f.parquet"))
    assert isinstance(document, Document)
    assert document.captured_at == "2026-01-02T00:00:00Z"
    assert json.loads(document.metadata or "") == {
        "date": "2026-01-02 00:00:00",
        "raw": "ff",
        "nan": None,
        "list": [1.5],
    }


@pytest.mark.parametrize(
    ("column", "metadata"),
    [
        (pa.array([253402300800000], pa.timestamp("ms")), "10000-01-01 00:00:00.000"),
        (pa.array([253402300799000], pa.timestamp("ms", "Asia/Tokyo")), "9999-12-31 23:59:59.000"),
        (pa.array([1769860800000], pa.timestamp("ms", "Mars/Phobos")), "2026-01-31 12:00:00.000"),
        (pa.array([2932897], pa.date32()), "10000-01-01"),
        (pa.array([2**63 - 1], pa.timestamp("us")), f"<value out of range: {2**63 - 1}>"),
    ],
)
def test_a_row_is_not_lost_for_a_date_that_python_has_not(column: pa.Array, metadata: str) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": ["a"], "valid_until": column}), sink)
    (document,) = read_documents(io.BytesIO(sink.getvalue()), ReadOptions(source="s", file="f.parquet"))
    assert isinstance(document, Document)
    assert json.loads(document.metadata or "") == {"valid_until": metadata}


def test_a_text_that_is_too_long_is_hashed_but_not_held() -> None:
    (document,) = jsonl(json.dumps({"text": "x" * 101}).encode(), max_document_bytes=100)
    assert (document.text, document.num_bytes) == ("", 101)
    assert document.raw_hash == ids.content_hash(b"x" * 101)


def test_a_line_that_is_too_long_to_hold_costs_only_itself() -> None:
    data = b'{"text": "a"}\n{"text": "' + b"x" * (17 << 20) + b'"}\n{"text": "b"}'
    assert [document.text for document in jsonl(data, max_document_bytes=10)] == ["a", "", "b"]


def test_a_line_that_is_too_long_to_hold_is_a_document_named_by_its_bytes() -> None:
    line = b'{"text": "' + b"x" * (17 << 20) + b'"}\n'
    (document,) = jsonl(line, max_document_bytes=10)
    assert (document.num_bytes, document.raw_hash) == (len(line), ids.content_hash(line))
    (other,) = jsonl(line.replace(b"xx", b"yy"), max_document_bytes=10)
    assert document.doc_id != other.doc_id


def test_a_text_that_is_short_but_for_its_escapes_is_read() -> None:
    (document,) = jsonl(b'{"text": "' + b"\\u0078" * (3 << 20) + b'"}', max_document_bytes=3 << 20)
    assert document.text == "x" * (3 << 20)


def test_a_line_of_more_values_than_memory_should_hold_is_not_parsed() -> None:
    lists = b'{"text": "a", "x": [' + b"[]," * 2_500_000 + b"[]]}"
    items = list(read_documents(io.BytesIO(lists), ReadOptions(source="s", file="f.jsonl")))
    assert [item.error for item in items if isinstance(item, Unreadable)] == [
        "the line holds more than 2000000 values"
    ]
    quoted = json.dumps({"text": "[]," * 2_500_000 + '\\"'}).encode()
    assert len(jsonl(quoted)) == 1


def test_a_file_of_nothing_but_bad_lines_is_given_up() -> None:
    data = b"x\n" * 30_000
    items = list(read_documents(io.BytesIO(data), ReadOptions(source="s", file="f.jsonl", size=len(data))))
    assert len(items) == 10_001
    last = items[-1]
    assert isinstance(last, Unreadable)
    assert (last.offset, last.length) == (20_000, 40_000)
    assert "10000 stretches were unreadable beside 0 documents; the last: the line is not JSON" in last.error


def test_bad_lines_among_as_many_good_ones_cost_only_themselves() -> None:
    assert len(jsonl(b'x\n{"text": "a"}\n' * 12_000)) == 12_000


NESTED = {
    "id": "usual",
    "meta": {"key": 7, "body": "Text.", "at": "2026-01-02", "page": {"url": "https://a.org/"}, "n": 1},
}
FIELDS = RowFields(text="meta.body", id="meta.key", url="meta.page.url", date="meta.at")


def as_parquet(*rows: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), sink)
    return sink.getvalue()


@pytest.mark.parametrize("data", [json.dumps(NESTED).encode(), as_parquet(NESTED)], ids=["jsonl", "parquet"])
def test_fields_may_be_named_and_lie_in_other_fields(data: bytes) -> None:
    (document,) = read_documents(io.BytesIO(data), ReadOptions(source="s", file="f", fields=FIELDS))
    assert isinstance(document, Document)
    assert (document.text, document.record_id, document.url) == ("Text.", "7", "https://a.org/")
    assert document.captured_at == "2026-01-02T00:00:00Z"
    assert document.doc_id == ids.row_doc_id("s", "f", "7", "Text.")
    assert json.loads(document.metadata or "") == {
        "id": "usual",
        "meta": {"at": "2026-01-02", "page": {}, "n": 1},
    }


def test_an_id_and_a_url_of_another_kind_are_metadata_like_all_other_fields() -> None:
    row = {"text": "Text.", "id": {"oid": "5f1b"}, "url": ["https://a.org/", "https://b.org/"]}
    for data in (json.dumps(row).encode(), as_parquet(row)):
        (document,) = read_documents(io.BytesIO(data), ReadOptions(source="s", file="f"))
        assert isinstance(document, Document)
        assert (document.record_id, document.url) == (None, None)
        assert json.loads(document.metadata or "{}") == {"id": row["id"], "url": row["url"]}
    used = {"text": "Text.", "id": 7, "url": None}
    (document,) = read_documents(io.BytesIO(json.dumps(used).encode()), ReadOptions(source="s", file="f"))
    assert isinstance(document, Document) and document.metadata is None


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        ("2026-01-31t12:00:00z", "2026-01-31T12:00:00Z"),
        ("2026-01-31 12:00:00.5+02:00", "2026-01-31T10:00:00.500000Z"),
        ("2026-01-31", "2026-01-31T00:00:00Z"),
        ("20260131T120000Z", "2026-01-31T12:00:00Z"),
        ("2026-W05-6", "2026-01-31T00:00:00Z"),
        ("20260131123", None),
    ],
)
def test_dates_of_rfc_3339_are_read_in_either_case(given: str, recorded: str | None) -> None:
    (document,) = jsonl(json.dumps({"text": "a", "date": given}).encode())
    assert document.captured_at == recorded


CUT = "A smile \ud83d and a half \udc00 end"


def test_a_lone_surrogate_is_the_replacement_character_in_text_id_and_url_and_is_counted() -> None:
    rows = [
        {"text": CUT},
        {"text": "a", "id": "s\ud83d"},
        {"text": "b", "url": "https://e.example.org/s\ud83d"},
        {"text": "whole \U0001f600", "id": "é"},
    ]
    counts = InputCounts()
    data = "\n".join(map(json.dumps, rows)).encode()
    one, two, three, four = read_documents(io.BytesIO(data), ReadOptions(source="s", file="f"), counts)
    assert isinstance(one, Document) and one.text == "A smile \ufffd and a half \ufffd end"
    assert isinstance(two, Document) and two.record_id == "s\ufffd"
    assert isinstance(three, Document) and three.url == "https://e.example.org/s\ufffd"
    assert isinstance(four, Document) and (four.text, four.record_id) == ("whole \U0001f600", "é")
    assert counts.notes == {"surrogates": 3}


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (7, "7"),
        (7.0, "7"),
        (1.5, "1.5"),
        (2.0**60, str(2**60)),
        ("007", "007"),
        (float("nan"), None),
        (None, None),
    ],
)
def test_a_number_is_an_id_and_a_whole_one_has_no_fraction(value: object, name: str | None) -> None:
    for fields in (RowFields(), RowFields(id="id")):
        for data in (json.dumps({"text": "a", "id": value}).encode(), as_parquet({"text": "a", "id": value})):
            (found,) = read_documents(io.BytesIO(data), ReadOptions(source="s", file="f", fields=fields))
            assert isinstance(found, Document) and found.record_id == name
            assert found.metadata is None


def test_ids_that_pandas_made_floats_are_those_that_they_were() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": ["a", "b", "c"], "id": pa.array([1.0, None, 3.0])}), sink)
    found = read_documents(io.BytesIO(sink.getvalue()), ReadOptions(source="s", file="f"))
    assert [item.record_id for item in found if isinstance(item, Document)] == ["1", None, "3"]


@pytest.mark.parametrize("name", ["id", "meta.id"])
def test_an_id_that_parquet_holds_as_a_uuid_is_the_one_that_json_holds(name: str) -> None:
    value = UUID("15fb19b5-9ae6-4889-ba08-cf894d1f7b04")
    ids_of_rows = pa.array([value.bytes], pa.uuid())
    inner = pa.StructArray.from_arrays([ids_of_rows, pa.array([1])], names=["id", "n"])
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": ["a"], "id": ids_of_rows, "meta": inner}), sink)
    row = {"text": "a", "id": str(value), "meta": {"id": str(value), "n": 1}}
    options = ReadOptions(source="s", file="f", fields=RowFields(id=None if name == "id" else name))
    (of_parquet,) = read_documents(io.BytesIO(sink.getvalue()), options)
    (of_json,) = read_documents(io.BytesIO(json.dumps(row).encode()), options)
    assert isinstance(of_parquet, Document) and isinstance(of_json, Document)
    assert of_parquet.record_id == str(value)
    assert (of_parquet.doc_id, of_parquet.metadata) == (of_json.doc_id, of_json.metadata)


@pytest.mark.parametrize(
    ("fields", "record_id", "url"),
    [
        (RowFields(text="id"), None, None),
        (RowFields(text="id", id="id"), "https://e.org/a", None),
        (RowFields(text="id", url="id"), None, "https://e.org/a"),
        (RowFields(text="url"), "i", None),
        (RowFields(text="url", id="url", url="url"), "https://e.org/a", "https://e.org/a"),
        (RowFields(text="meta.body", id="meta.body"), "https://e.org/a", None),
    ],
)
def test_a_field_may_be_the_text_and_an_id_or_url_where_keys_name_it_so(
    fields: RowFields, record_id: str | None, url: str | None
) -> None:
    value = "https://e.org/a"
    held: dict[str, object] = {"meta": {"body": value}} if "." in fields.text else {fields.text: value}
    row: dict[str, object] = {"n": 1, "id": "i"} | held
    for data in (json.dumps(row).encode(), as_parquet(row)):
        (found,) = read_documents(io.BytesIO(data), ReadOptions(source="s", file="f", fields=fields))
        assert isinstance(found, Document), found
        assert (found.text, found.record_id, found.url) == (value, record_id, url)
        assert value not in (found.metadata or "")


def test_maps_are_metadata_wherever_they_lie() -> None:
    tags = pa.map_(pa.string(), pa.string())
    plain = [
        {"text": "one", "tags": [("k", "v")], "more": [[("a", "b")], []]},
        {"text": "two", "tags": None, "more": []},
    ]
    schema = pa.schema([("text", pa.string()), ("tags", tags), ("more", pa.list_(tags))])
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(plain, schema=schema), sink)
    found = list(read_documents(io.BytesIO(sink.getvalue()), ReadOptions(source="s", file="f.parquet")))
    assert [json.loads(each.metadata or "") for each in found if isinstance(each, Document)] == [
        {"tags": [["k", "v"]], "more": [[["a", "b"]], []]},
        {"tags": None, "more": []},
    ]


def test_numbers_that_json_lacks_are_null_wherever_they_lie_in_a_row() -> None:
    by_name = pa.map_(pa.string(), pa.float64())
    schema = pa.schema([("text", pa.string()), ("m", by_name), ("more", pa.list_(by_name))])
    values = [("k", float("nan")), ("l", 1.5)]
    sink = io.BytesIO()
    pq.write_table(
        pa.Table.from_pylist([{"text": "one", "m": values, "more": [values]}], schema=schema), sink
    )
    (found,) = read_documents(io.BytesIO(sink.getvalue()), ReadOptions(source="s", file="f.parquet"))
    assert isinstance(found, Document)
    pairs = [["k", None], ["l", 1.5]]
    assert json.loads(found.metadata or "") == {"m": pairs, "more": [pairs]}


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_rows_behind_a_byte_order_mark_are_known_by_their_first_bytes(pack: Callable[[bytes], bytes]) -> None:
    data = pack(b'\xef\xbb\xbf{"text": "one"}\n{"text": "two"}\n')
    found = list(read_documents(io.BytesIO(data), ReadOptions(source="s", file="posts.txt")))
    assert [document.text for document in found if isinstance(document, Document)] == ["one", "two"]


def test_a_field_whose_whole_name_has_a_dot_goes_before_a_nested_one() -> None:
    row = {"a.b": "whole", "a": {"b": "nested"}}
    for data in (json.dumps(row).encode(), as_parquet(row)):
        (document,) = read_documents(
            io.BytesIO(data), ReadOptions(source="s", file="f", fields=RowFields(text="a.b"))
        )
        assert isinstance(document, Document)
        assert (document.text, document.metadata) == ("whole", '{"a": {"b": "nested"}}')


@pytest.mark.parametrize(
    ("row", "fields", "says"),
    [
        (
            {"body": "a", "k": 1},
            RowFields(),
            "no (column|field) 'text', only body, k: name the right one as source.text_",
        ),
        (
            {"text": "a", "meta": {"x": 1}},
            RowFields(text="meta.y"),
            "there is no (column|field) 'meta.y', only text, meta",
        ),
        (
            {"text": "a", "k": [1]},
            RowFields(id="k"),
            r"the field 'k' \(source.id_field\) is a list: expected a text or a",
        ),
        (
            {"text": "a", "k": 1.5},
            RowFields(url="k"),
            r"the field 'k' \(source.url_field\) is a float: expected a text",
        ),
        (
            {"text": "a", "k": "no"},
            RowFields(date="k"),
            r"'k' \(source.date_field\) is a text that is no date",
        ),
    ],
)
def test_a_named_field_that_is_not_there_or_holds_something_else_is_told_with_its_key(
    row: dict[str, object], fields: RowFields, says: str
) -> None:
    for data in (json.dumps(row).encode(), as_parquet(row)):
        (item,) = read_documents(io.BytesIO(data), ReadOptions(source="s", file="f", fields=fields))
        assert isinstance(item, Unreadable)
        assert re.search(says, item.error), item.error


def test_names_that_may_be_text_of_a_page_are_not_shown() -> None:
    (item,) = read_documents(
        io.BytesIO(b'{"My secret diary": 1, "ok": 2}'), ReadOptions(source="s", file="f")
    )
    assert isinstance(item, Unreadable)
    assert "diary" not in item.error
    assert "only ok:" in item.error


@pytest.mark.parametrize("name", ["text", "note"])
def test_two_columns_of_one_name_make_a_file_unreadable_once(name: str) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table([["a", "c"], ["b", "d"], ["e", "f"]], names=["text", name, name]), sink)
    (item,) = read_documents(io.BytesIO(sink.getvalue()), ReadOptions(source="s", file="twice.parquet"))
    assert isinstance(item, Unreadable)
    assert (item.file, item.offset, item.length) == ("twice.parquet", 0, 2)
    assert f"columns '{name}': which of them is meant is not defined" in item.error


class Failing(io.BytesIO):
    """A store that gives out in the middle of a file."""

    def read(self, size: int | None = -1) -> bytes:
        if 100_000 < self.tell() < 200_000:
            raise OSError("the store is gone")
        return super().read(size)


def test_a_stream_that_fails_is_not_taken_for_damage() -> None:
    sink = io.BytesIO()
    texts = [str(number) * 200 for number in range(20_000)]
    pq.write_table(pa.table({"text": texts, "more": texts}), sink, compression="none", row_group_size=100)
    with pytest.raises(OSError, match="the store is gone"):
        list(read_documents(Failing(sink.getvalue()), ReadOptions(source="s", file="f.parquet")))


def test_asking_for_a_place_where_no_row_is_says_so() -> None:
    with pytest.raises(ValueError, match="no line with a document begins at byte 3"):
        read_one(io.BytesIO(b'{"text": "a"}\n'), 3, ReadOptions(source="s", file="f.jsonl"))


@pytest.mark.parametrize(
    ("name", "data", "wanted"),
    [
        ("a.warc.gz", b"", "warc"),
        ("a.warc.wet.gz", b"", "warc"),
        ("a.WARC", b"", "warc"),
        ("a.jsonl.zst", b"", "jsonl"),
        ("a.json.gz", b"", "jsonl"),
        ("a.parquet", b"", "parquet"),
        ("a", b"PAR1...", "parquet"),
        ("a", b' {"text"', "jsonl"),
        ("a", b"WARC/1.0", "warc"),
        ("a", b"\x1f\x8b\x08broken", "warc"),
        ("a", b"", "warc"),
    ],
)
def test_the_format_is_told_by_the_name_or_else_by_the_first_bytes(
    name: str, data: bytes, wanted: str
) -> None:
    assert detect_format(io.BytesIO(data), ReadOptions(source="s", file=name)) == wanted


def test_a_format_that_is_named_goes_before_the_name() -> None:
    assert detect_format(io.BytesIO(), ReadOptions(source="s", file="a.jsonl", format="wet")) == "warc"


ROWS = b"".join(b'{"text": "row %d"}\n' % number for number in range(50))


def skippable(content: bytes) -> bytes:
    """A zstd frame without content (RFC 8878, 3.1.2), as pzstd and the seekable format write them."""
    return b"\x5e\x2a\x4d\x18" + len(content).to_bytes(4, "little") + content


@pytest.mark.parametrize("name", ["f.jsonl.zst", "f"])
def test_zstd_frames_without_content_are_passed_over(name: str) -> None:
    frames = [zstandard.ZstdCompressor().compress(half) for half in (ROWS[:400], ROWS[400:])]
    pzstd = b"".join(skippable(len(frame).to_bytes(4, "little")) + frame for frame in frames)
    for data in (pzstd, b"".join(frames) + skippable(bytes(9))):
        found = list(read_documents(io.BytesIO(data), ReadOptions(source="s", file=name)))
        assert [item.text for item in found if isinstance(item, Document)] == [
            f"row {number}" for number in range(50)
        ]
        assert len(found) == 50


def test_a_frame_without_content_that_is_cut_off_is_unreadable() -> None:
    data = zstandard.ZstdCompressor().compress(ROWS) + skippable(bytes(9))[:-1]
    *rows, last = read_documents(io.BytesIO(data), ReadOptions(source="s", file="f.jsonl.zst"))
    assert len(rows) == 50
    assert isinstance(last, Unreadable)
    assert last.error == "the file ends inside a zstd frame"


@pytest.mark.parametrize("num_zeros", [1, 512, 200_000])
def test_zeros_behind_a_gzip_member_are_padding_as_they_are_to_gzip(num_zeros: int) -> None:
    padded = gzip.compress(ROWS.rstrip(b"\n")) + bytes(num_zeros)
    assert len(jsonl(padded)) == 50
    items = list(read_documents(io.BytesIO(padded), ReadOptions(source="s", file="f.jsonl")))
    assert len(items) == 50
    more = padded + gzip.compress(b"\n" + ROWS)
    assert len(jsonl(more)) == len(gzip.decompress(more).splitlines()) == 100
    *_, last = read_documents(io.BytesIO(padded + b"no member"), ReadOptions(source="s", file="f.jsonl"))
    assert isinstance(last, Unreadable)
    assert last.error == f"no compressed member begins at byte {len(padded)} of the file"


@pytest.mark.parametrize(
    ("compress", "said"),
    [
        (partial(gzip.compress, compresslevel=0), "damaged gzip member: Error -6 Incorrect checksum found"),
        (
            zstandard.ZstdCompressor(level=-100_000, write_checksum=True).compress,
            "data doesn't match checksum",
        ),
    ],
    ids=["gzip", "zstd"],
)
def test_rows_of_a_member_that_its_checksum_refutes_lie_in_an_unreadable_stretch(
    compress: Callable[[bytes], bytes], said: str
) -> None:
    rows = b"".join(b'{"text": "row %07d"}\n' % number for number in range(100_000))
    packed = compress(rows).replace(b"row 0000007", b"row 0000009")  # stored as it is
    data = compress(ROWS) + packed + compress(ROWS)
    options = ReadOptions(source="s", file="f.jsonl.gz", size=len(data))
    *found, last = read_documents(io.BytesIO(data), options)
    assert isinstance(last, Unreadable)
    given = [item for item in found if isinstance(item, Document)]
    assert len(given) == len(found) > 90_000
    assert said in last.error
    assert last.error.endswith("the rows that were read of it are not what was compressed")
    assert last.offset == len(ROWS)
    end = given[-1].place
    assert end.offset + end.length <= last.offset + last.length <= len(ROWS + rows)
    assert last.num_records == pytest.approx(len(given) - 50, rel=0.1)


BYTES = [b"one", "żółw".encode(), None]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(BYTES, pa.binary()),
        pa.array(BYTES, pa.large_binary()),
        pa.array(BYTES, pa.binary()).dictionary_encode(),
        pa.array(["one", "żółw", None], pa.string_view()),
        pa.array(["one", "żółw", None], pa.large_string()),
        pa.array(["one", "żółw", None]).dictionary_encode(),
        pa.ExtensionArray.from_storage(pa.json_(), pa.array(["one", "żółw", None])),
    ],
    ids=lambda column: str(column.type),
)
def test_texts_of_any_kind_of_column_are_read_and_null_is_an_empty_one(column: pa.Array) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": column}), sink)
    found = list(read_documents(io.BytesIO(sink.getvalue()), ReadOptions(source="s", file="f.parquet")))
    assert [item.text for item in found if isinstance(item, Document)] == ["one", "żółw", ""]
    assert len(found) == 3


def test_bytes_of_a_fixed_length_are_read_and_one_that_is_not_utf8_is_bad_alone() -> None:
    sink = io.BytesIO()
    columns = {"text": pa.array([b"one", b"t\xffo", b"two"], pa.binary(3)), "url": [b"https://a.org/"] * 3}
    pq.write_table(pa.table(columns | {"id": [b"x", b"y", b"\xff"], "date": [b"2026-01-02"] * 3}), sink)
    first, bad, last = read_documents(io.BytesIO(sink.getvalue()), ReadOptions(source="s", file="f.parquet"))
    assert isinstance(first, Document) and isinstance(last, Document)
    assert (first.text, first.url, first.record_id) == ("one", "https://a.org/", "x")
    assert first.captured_at == "2026-01-02T00:00:00Z"
    assert (last.text, last.record_id) == ("two", None)
    assert isinstance(bad, Unreadable)
    assert (bad.offset, bad.length) == (1, 1)
    assert bad.error == "the field 'text' is not UTF-8, from byte 1 of it on"


@pytest.mark.parametrize("rows", [[{"text": None}, {"text": ""}], [{"m": None}, {"m": {"text": None}}]])
def test_a_null_text_is_an_empty_one_wherever_it_lies(rows: list[object]) -> None:
    fields = RowFields(text="text" if "text" in str(list(rows[0])) else "m.text")  # type: ignore[call-overload]
    schema = pa.schema([("text", pa.string())]) if fields.text == "text" else None
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), sink)
    lines = "\n".join(map(json.dumps, rows)).encode()
    for data in (lines, sink.getvalue()):
        found = list(read_documents(io.BytesIO(data), ReadOptions(source="s", file="f", fields=fields)))
        assert [item.text for item in found if isinstance(item, Document)] == ["", ""]


def test_what_is_counted_of_columns_does_not_grow_with_their_square(monkeypatch: pytest.MonkeyPatch) -> None:
    num_calls = 0

    def counted(
        column: object, num_rows: int, of_batch: Callable[..., int] = page_meter._Column.of_batch
    ) -> int:
        nonlocal num_calls
        num_calls += 1
        return of_batch(column, num_rows)

    monkeypatch.setattr(page_meter._Column, "of_batch", counted)
    found = []
    for num in (100, 400):
        sink, num_calls = io.BytesIO(), 0
        pq.write_table(pa.table({"text": ["a"]} | {f"c{number}": [1] for number in range(num)}), sink)
        assert (
            len(list(read_documents(io.BytesIO(sink.getvalue()), ReadOptions(source="s", file="f.parquet"))))
            == 1
        )
        found.append(num_calls)
    assert found[1] < 5 * found[0]
