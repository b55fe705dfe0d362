"""Elements of lists in JSONL and Parquet rows as documents of their own."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage import ids
from stages.document import Document
from stages.reading.options import RowFields
from stages.reading.reader import (
    InputCounts,
    ReadOptions,
    Unreadable,
    read_documents,
    read_numbered,
    read_one,
)

FILES = RowFields(text="files[].content", id="repo", url="files[].url")
REPO = {
    "repo": "r1",
    "stars": 7,
    "files": [
        {"content": "one", "url": "https://a.org/1", "path": "1.py"},
        {"content": "two", "url": "https://a.org/2", "path": "2.py"},
    ],
}


def as_jsonl(rows: list[Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def as_parquet(rows: list[Any]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


BOTH = pytest.mark.parametrize("pack", [as_jsonl, as_parquet])


def read(data: bytes, fields: RowFields, counts: InputCounts | None = None) -> list[Document | Unreadable]:
    return list(read_documents(io.BytesIO(data), ReadOptions(source="s", file="f", fields=fields), counts))


def documents(data: bytes, fields: RowFields) -> list[Document]:
    found = read(data, fields)
    assert all(isinstance(item, Document) for item in found), found
    return [item for item in found if isinstance(item, Document)]


@BOTH
def test_each_element_is_a_document_with_an_id_of_its_own(pack: Any) -> None:
    one, two = documents(pack([REPO]), FILES)
    assert (one.text, two.text) == ("one", "two")
    assert (one.url, two.url) == ("https://a.org/1", "https://a.org/2")
    assert (one.record_id, two.record_id) == ("r1[0]", "r1[1]")
    assert two.doc_id == ids.row_doc_id("s", "f", "r1[1]", "two")
    assert json.loads(two.metadata or "") == {"stars": 7, "files": {"path": "2.py"}}
    assert one.place == two.place


@BOTH
def test_a_row_without_an_id_names_its_elements_by_its_number(pack: Any) -> None:
    found = documents(pack([{"parts": ["a", "b"]}, {"parts": ["a"]}]), RowFields(text="parts[]"))
    assert [each.record_id for each in found] == [None] * 3
    names = [
        ids.row_doc_id("s", "f", name, text) for name, text in (("0[0]", "a"), ("0[1]", "b"), ("1[0]", "a"))
    ]
    assert [each.doc_id for each in found] == names


@BOTH
def test_an_id_in_the_element_names_it_and_one_on_the_way_its_inner_elements(pack: Any) -> None:
    row = {
        "a": [
            {"id": "x", "b": [{"id": "p", "t": "1"}, {"id": "q", "t": "2"}]},
            {"id": "y", "b": [{"id": "r", "t": "3"}]},
        ]
    }
    inner = documents(pack([row]), RowFields(text="a[].b[].t", id="a[].b[].id"))
    assert [each.record_id for each in inner] == ["p", "q", "r"]
    outer = documents(pack([row]), RowFields(text="a[].b[].t", id="a[].id"))
    assert [each.record_id for each in outer] == ["x[0]", "x[1]", "y[0]"]
    assert json.loads(outer[1].metadata or "") == {"a": {"b": {"id": "q"}}}
    none = documents(pack([row]), RowFields(text="a[].b[].t"))
    assert none[2].doc_id == ids.row_doc_id("s", "f", "0[1][0]", "3")


@BOTH
def test_lists_in_lists_and_in_structs(pack: Any) -> None:
    found = documents(pack([{"m": [["a", "b"], [], ["c"]]}]), RowFields(text="m[][]"))
    assert [each.text for each in found] == ["a", "b", "c"]
    assert found[2].doc_id == ids.row_doc_id("s", "f", "0[2][0]", "c")
    deep = documents(pack([{"x": {"y": [{"z": {"t": "a", "n": 1}}], "k": 2}}]), RowFields(text="x.y[].z.t"))
    assert [(each.text, json.loads(each.metadata or "")) for each in deep] == [
        ("a", {"x": {"k": 2, "y": {"z": {"n": 1}}}})
    ]


@BOTH
def test_rows_that_hold_no_element_are_counted_and_null_elements_are_empty_texts(pack: Any) -> None:
    rows = [
        {"files": [{"content": "a"}]},
        {"files": []},
        {"files": None},
        {"files": [None, {"content": None}]},
    ]
    counts = InputCounts()
    found = read(pack(rows), RowFields(text="files[].content"), counts)
    assert [item.text for item in found if isinstance(item, Document)] == ["a", "", ""]
    assert counts.by_type == {"element": 3, "row without elements": 2}
    assert (counts.num_records, counts.num_documents, counts.num_unreadable) == (5, 3, 0)


def test_elements_of_other_types_are_bad_alone() -> None:
    line = {"files": [{"content": "a"}, {"content": 5}, "text", {"path": "x"}, [], {"content": "b"}]}
    found = read(as_jsonl([line, {"files": "no list"}, {"other": 1}]), RowFields(text="files[].content"))
    assert [item.text for item in found if isinstance(item, Document)] == ["a", "b"]
    bad = [item for item in found if isinstance(item, Unreadable)]
    assert [item.num_records for item in bad] == [1] * 6 and [item.offset for item in bad[:4]] == [0] * 4
    assert bad[0].error == "element [1]: the field 'files[].content' is a int: expected a text"
    assert bad[2].error.startswith("element [3]: there is no field 'files[].content'")
    assert bad[4].error == "the field 'files' is a str: expected a list (source.text_field)"
    assert bad[5].error.startswith("there is no field 'files[].content', only other")


def test_an_element_of_parquet_that_is_not_utf8_is_bad_alone() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"parts": [[b"a", b"\xff", "ż".encode()]]}), sink)
    first, bad, last = read(sink.getvalue(), RowFields(text="parts[]"))
    assert isinstance(first, Document) and isinstance(last, Document)
    assert (first.text, last.text) == ("a", "ż")
    assert isinstance(bad, Unreadable)
    assert bad.error == "element [1]: the field 'parts[]' is not UTF-8, from byte 0 of it on"


@BOTH
@pytest.mark.parametrize(
    ("row", "name", "text"),
    [
        ({"files[].content": "literal", "files": [{"content": "element"}]}, "files[].content", "literal"),
        ({"a": {"b.c": "literal", "b": {"c": "nested"}}}, "a.b.c", "literal"),
        ({"a.b": {"c": "literal"}, "a": {"b": {"c": "nested"}}}, "a.b.c", "literal"),
        ({"a.b": [{"c": "element"}]}, "a.b[].c", "element"),
        ({"tags[]": "literal", "tags": ["element"]}, "tags[]", "literal"),
    ],
)
def test_a_name_that_is_there_as_a_whole_goes_before_a_path(
    pack: Any, row: Any, name: str, text: str
) -> None:
    (found,) = documents(pack([row]), RowFields(text=name))
    assert found.text == text


@BOTH
def test_the_document_of_a_row_is_found_by_its_id_or_its_number(pack: Any) -> None:
    data, options = pack([REPO, REPO | {"repo": "r2"}]), ReadOptions(source="s", file="f", fields=FILES)
    *_, third, fourth = documents(data, FILES)
    offset = third.place.offset
    assert read_one(io.BytesIO(data), offset, options) == third
    assert read_one(io.BytesIO(data), offset, options, fourth.doc_id) == fourth
    assert read_numbered(io.BytesIO(data), offset, 1, options) == fourth
    with pytest.raises(ValueError, match=f"there are fewer than 3 documents at offset {offset}"):
        read_numbered(io.BytesIO(data), offset, 2, options)


@BOTH
def test_what_elements_would_repeat_without_bound_stands_in_the_first_alone(
    pack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.reading.rows.elements._MAX_REPEATED_BYTES", 1000)
    row = {"url": "https://a.org/", "more": "x" * 400, "parts": ["a", "b", "c", "d"]}
    found = documents(pack([row]), RowFields(text="parts[]"))
    assert [each.url for each in found] == ["https://a.org/"] * 4
    assert [json.loads(each.metadata or "{}") for each in found] == [{"more": "x" * 400}, {}, {}, {}]
    (bad,) = read(pack([row | {"url": "https://a.org/" + "y" * 400}]), RowFields(text="parts[]"))
    assert isinstance(bad, Unreadable)
    assert "its id, URL and date would be repeated 4 times" in bad.error


ELEMENT = st.fixed_dictionaries({"t": st.one_of(st.none(), st.text(max_size=5)), "n": st.integers(0, 9)})
ROWS = st.lists(
    st.fixed_dictionaries({
        "id": st.one_of(st.none(), st.text("ab", max_size=2)),
        "k": st.integers(0, 9),
        "in": st.fixed_dictionaries({"l": st.one_of(st.none(), st.lists(st.one_of(st.none(), ELEMENT), max_size=4))}),
    }),
    min_size=1, max_size=6,
)  # fmt: skip
TYPE = pa.schema([
    ("id", pa.string()), ("k", pa.int64()),
    ("in", pa.struct([("l", pa.list_(pa.struct([("t", pa.string()), ("n", pa.int64())])))])),
])  # fmt: skip


@given(ROWS)
def test_the_same_lists_in_jsonl_and_parquet_give_the_same_documents(rows: list[Any]) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, TYPE), sink)
    fields, counts = RowFields(text="in.l[].t"), (InputCounts(), InputCounts())
    ours, theirs = (
        read(data, fields, each) for data, each in zip((as_jsonl(rows), sink.getvalue()), counts, strict=True)
    )
    keep = [
        (each.doc_id, each.text, each.record_id, each.metadata) for each in ours if isinstance(each, Document)
    ]
    assert keep == [
        (each.doc_id, each.text, each.record_id, each.metadata)
        for each in theirs
        if isinstance(each, Document)
    ]
    elements = [each for row in rows for each in row["in"]["l"] or ()]
    assert [text for _, text, _, _ in keep] == [(each or {}).get("t") or "" for each in elements]
    assert len({doc_id for doc_id, *_ in keep}) == len(keep) or any(row["id"] for row in rows)
    assert counts[0].by_type == counts[1].by_type
