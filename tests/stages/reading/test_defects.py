"""Every defective file is read without an exception, and nothing in it is lost in silence."""

from __future__ import annotations

import io
import tracemalloc

import pytest

from stages.document import Document
from stages.reading.reader import InputCounts, ReadOptions, Unreadable, read_documents, read_one
from tests.support.inputs.defects import DEFECTS, MIB, Defect

pytestmark = pytest.mark.hostile("stages/reading")

OPTIONS = {"source": "defects", "max_document_bytes": 20 * MIB}


def read(defect: Defect) -> tuple[InputCounts, list[Document], list[Unreadable]]:
    counts = InputCounts()
    stream = io.BytesIO(defect.data)
    items = list(read_documents(stream, ReadOptions(file=defect.name, **OPTIONS), counts))
    documents = [item for item in items if isinstance(item, Document)]
    return counts, documents, [item for item in items if isinstance(item, Unreadable)]


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_costs_only_what_it_touches(defect: Defect) -> None:
    counts, documents, unreadable = read(defect)
    found = counts.num_records, len(documents), len(unreadable)
    assert found == (defect.records, defect.documents, defect.unreadable), [item.error for item in unreadable]
    assert (counts.num_documents, counts.num_unreadable) == found[1:]
    assert all(defect.says in item.error for item in unreadable)


WARCS_OF_RECORDS = [
    d for d in DEFECTS if "warc" in d.name and "dictionary" not in d.name and "zstd-frame" not in d.name
]


@pytest.mark.parametrize("defect", WARCS_OF_RECORDS, ids=lambda defect: defect.name)
def test_records_and_unreadable_stretches_tile_the_file(defect: Defect) -> None:
    # Only where every record is a document does the outside see all places.
    counts, documents, unreadable = read(defect)
    if counts.num_records > len(documents):
        return
    stretches = {(d.place.offset, d.place.length) for d in documents} | {
        (u.offset, u.length) for u in unreadable
    }
    end = 0
    for offset, length in sorted(stretches):
        assert offset == end
        end = offset + length
    assert end == len(defect.data)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_record_read_alone_is_the_same_document(defect: Defect) -> None:
    first_at: dict[int, Document] = {}
    for document in read(defect)[1][:5]:
        first_at.setdefault(document.place.offset, document)
    for offset, document in first_at.items():
        assert read_one(io.BytesIO(defect.data), offset, ReadOptions(file=defect.name, **OPTIONS)) == document


def test_everything_a_document_says_can_be_stored() -> None:
    for defect in DEFECTS:
        for document in read(defect)[1]:
            for value in (
                document.url,
                document.record_id,
                document.metadata,
                document.charset,
                document.captured_at,
            ):
                if value is not None:
                    value.encode("utf-8")


@pytest.mark.parametrize(
    "name", ["gzip-bomb-in-member", "gzip-bomb-in-text-body", "page-of-50-mb", "zstd-bomb"]
)
def test_memory_stays_bounded_whatever_a_record_inflates_to(name: str) -> None:
    defect = next(d for d in DEFECTS if d.name.startswith(name))
    data = io.BytesIO(defect.data)
    tracemalloc.start()
    try:
        num_items = sum(1 for _ in read_documents(data, ReadOptions(file=defect.name, **OPTIONS)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_items == defect.documents + defect.unreadable
    assert peak < 100 * MIB


def test_there_are_at_least_forty_defects_each_with_its_own_name() -> None:
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS) >= 40
