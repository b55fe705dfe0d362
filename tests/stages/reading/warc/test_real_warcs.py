"""Real crawl files, read beside warcio and fastwarc."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator
from warcio.archiveiterator import ArchiveIterator as WarcioIterator

from lineage import ids
from stages.document import Document
from stages.reading.reader import InputCounts, ReadOptions, Unreadable, read_documents, read_one

pytestmark = pytest.mark.differential("stages/reading")

WHOLE = ("whirlwind.warc.gz", "whirlwind.warc.wet.gz", "dolma-sample-0000.warc.gz",
         "resiliparse-ccmain-2020-34-head.warc.gz")  # fmt: skip


def read(
    path: Path, max_document_bytes: int = 20_000_000
) -> tuple[InputCounts, list[Document], list[Unreadable]]:
    counts = InputCounts()
    options = ReadOptions(source="real", file=path.name, max_document_bytes=max_document_bytes)
    with path.open("rb") as stream:
        items = list(read_documents(stream, options, counts))
    return (
        counts,
        [d for d in items if isinstance(d, Document)],
        [u for u in items if isinstance(u, Unreadable)],
    )


def test_each_page_has_the_payload_size_of_the_manifest(real_data: Path) -> None:
    with (real_data / "crawl" / "manifest.tsv").open(newline="") as file:
        manifest = {row["record_id"]: row for row in csv.DictReader(file, delimiter="\t")}
    found = {}
    for path in sorted((real_data / "crawl").glob("*.warc.gz")):
        _, documents, unreadable = read(path)
        assert not unreadable
        found |= {str(document.record_id): document for document in documents}
    assert {name: str(document.num_bytes) for name, document in found.items()} == {
        name: row["payload_bytes"] for name, row in manifest.items()
    }
    assert all(len(document.payload) == document.num_bytes for document in found.values())


def test_records_agree_with_fastwarc(real_data: Path) -> None:
    for path in [
        *sorted((real_data / "crawl").glob("*.warc.gz")),
        *(real_data / "native" / n for n in WHOLE),
    ]:
        counts, documents, unreadable = read(path)
        with path.open("rb") as stream:
            theirs = []
            num_records = 0
            for record in ArchiveIterator(stream, parse_http=True):
                num_records += 1
                theirs.append((record.record_id, record.stream_pos, record.reader.read()))
        ours = {(d.record_id, d.place.offset, d.payload) for d in documents}
        assert counts.num_records == num_records
        assert not unreadable
        assert ours <= set(theirs)
        assert ours


def test_records_agree_with_warcio(real_data: Path) -> None:
    for path in [
        *sorted((real_data / "crawl").glob("*.warc.gz")),
        *(real_data / "native" / n for n in WHOLE),
    ]:
        counts, documents, _ = read(path)
        by_id = {d.record_id: d for d in documents}
        by_type: dict[str, int] = {}
        with path.open("rb") as stream:
            for record in WarcioIterator(stream):
                by_type[record.rec_type] = by_type.get(record.rec_type, 0) + 1
                document = by_id.get(record.rec_headers["WARC-Record-ID"])
                if document:
                    assert document.url == record.rec_headers["WARC-Target-URI"]
                    assert document.captured_at == record.rec_headers["WARC-Date"]
                    block = (
                        record.raw_stream.read()
                    )  # it takes off the HTTP heads of URLs with a scheme alone
                    is_headless = record.http_headers is None and block.startswith(b"HTTP/")
                    assert document.payload == (block.partition(b"\r\n\r\n")[2] if is_headless else block)
        assert by_type == counts.by_type


def test_a_clipped_file_yields_its_whole_records_and_one_unreadable(real_data: Path) -> None:
    path = real_data / "native" / "resiliparse-clipped.warc.gz"
    counts, documents, unreadable = read(path)
    assert (counts.num_records, documents) == (0, [])
    assert [(u.offset, u.length) for u in unreadable] == [(0, path.stat().st_size)]


def test_members_tile_the_file_and_each_reads_alone_by_its_byte_range(real_data: Path) -> None:
    path = real_data / "crawl" / "REAL-PAGES-00000.warc.gz"
    _, documents, _ = read(path)
    data = path.read_bytes()
    options = ReadOptions(source="real", file=path.name)
    end = documents[0].place.offset
    for document in documents:
        assert document.place.offset == end
        end += document.place.length
        (alone,) = read_documents(io.BytesIO(data[document.place.offset : end]), options)
        assert isinstance(alone, Document)
        assert (alone.doc_id, alone.payload, alone.place.length) == (
            document.doc_id,
            document.payload,
            document.place.length,
        )
    assert end == len(data)
    with path.open("rb") as stream:
        assert read_one(stream, documents[7].place.offset, options) == documents[7]


def test_ids_and_hashes_are_those_of_the_payload_also_where_it_is_not_held(real_data: Path) -> None:
    path = real_data / "native" / "whirlwind.warc.gz"
    (document,), (not_held,) = read(path)[1], read(path, max_document_bytes=100)[1]
    assert document.doc_id == ids.warc_doc_id(document.record_id or "", document.url or "", document.payload)
    assert document.raw_hash == ids.content_hash(document.payload)
    assert not_held.payload == b""
    assert (not_held.doc_id, not_held.raw_hash, not_held.num_bytes) == (
        document.doc_id,
        document.raw_hash,
        len(document.payload),
    )


def test_a_record_that_is_no_document_says_so_when_asked_for(real_data: Path) -> None:
    with (real_data / "native" / "whirlwind.warc.gz").open("rb") as stream:
        options = ReadOptions(source="real", file="whirlwind.warc.gz")
        with pytest.raises(ValueError, match="a record of type warcinfo, which is no document"):
            read_one(stream, 0, options)
        with pytest.raises(ValueError, match="at offset 5 cannot be read"):
            read_one(stream, 5, options)


def test_wet_text_is_read_as_it_stands(real_data: Path) -> None:
    (document,) = read(real_data / "native" / "whirlwind.warc.wet.gz")[1]
    assert document.text == document.payload.decode()
    assert (document.is_html, document.charset) == (False, "utf-8")
