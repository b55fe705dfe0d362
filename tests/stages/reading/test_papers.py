"""LaTeX sources as files, as archives of one paper, and as archives of many."""

from __future__ import annotations

import gzip
import io

import pytest

from stages.document import Document
from stages.reading.content_types import LATEX, PDF
from stages.reading.options import InputCounts, ReadOptions, Unreadable
from stages.reading.reader import read_documents, read_one
from tests.support.inputs.document_files import paper, pdf, tar

ONE = tar({"fig.pdf": b"%PDF-1.4", "main.tex": paper("One.")})
TWO = paper("Two.")
MANY = tar(
    {
        "2601/2601.00001.gz": gzip.compress(ONE, mtime=0),
        "2601/2601.00002.gz": gzip.compress(TWO, mtime=0),
        "2601/2601.00003.pdf": pdf("Three."),
        "2601/notes.docx": b"PK",
    },
    links={"2601/2601.00004.gz": "/etc/passwd"},
)


def read(data: bytes, **more: object) -> tuple[list[Document | Unreadable], InputCounts]:
    counts = InputCounts()
    options = ReadOptions(source="s", file="a.tar", format="latex", **({"size": len(data)} | more))  # type: ignore[arg-type]
    return list(read_documents(io.BytesIO(data), options, counts)), counts


@pytest.mark.parametrize(
    "data",
    [TWO, gzip.compress(TWO, mtime=0), ONE, gzip.compress(ONE, mtime=0), pdf("A paper.")],
    ids=["file", "packed file", "archive", "packed archive", "pdf"],
)
def test_a_file_or_an_archive_of_one_paper_is_one_document(data: bytes) -> None:
    ((found,), counts) = read(data)
    plain = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    assert isinstance(found, Document)
    assert (found.payload, found.record_id, found.place.offset) == (plain, "a.tar", 0)
    assert found.content_type == (PDF if data.startswith(b"%PDF") else LATEX)
    assert counts.by_type == {"file": 1}


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_each_paper_of_an_archive_of_many_is_a_document_at_its_member(pack) -> None:
    data = pack(MANY)
    found, counts = read(data)
    papers = [item for item in found if isinstance(item, Document)]
    assert [(item.record_id, item.payload, item.content_type) for item in papers] == [
        ("2601/2601.00001.gz", ONE, LATEX),
        ("2601/2601.00002.gz", TWO, LATEX),
        ("2601/2601.00003.pdf", pdf("Three."), PDF),
    ]
    assert (counts.by_type, counts.notes) == ({"member": 3}, {"other_members": 2}), "links are not followed"
    for item in papers:
        options = ReadOptions(source="s", file="a.tar", format="latex", size=len(data))
        assert read_one(io.BytesIO(data), item.place.offset, options, item.doc_id) == item


def test_a_paper_that_is_too_long_is_hashed_and_not_held() -> None:
    (first, second, *_), _ = read(MANY, max_document_bytes=500)
    assert isinstance(first, Document) and isinstance(second, Document)
    assert (first.payload, first.num_bytes) == (b"", len(ONE))
    assert second.payload == TWO


def test_a_damaged_member_costs_itself_alone() -> None:
    data = bytearray(MANY)
    data[512 + 30] ^= 255
    found, _ = read(bytes(data))
    assert [type(item).__name__ for item in found] == ["Unreadable", "Document", "Document"]


@pytest.mark.parametrize(
    ("cut", "error"),
    [
        (lambda data: data[: data.index(b"2601/2601.00003") + 600], "the archive ends within this member"),
        (
            lambda data: data.replace(b"2601/2601.00002.gz", b"2601/2601.0000X.gz", 1),
            "no header of a member is where",
        ),
    ],
)
def test_an_archive_that_is_cut_off_or_damaged_says_so(cut, error: str) -> None:
    found, _ = read(cut(MANY))
    assert isinstance(found[0], Document)
    assert isinstance(found[-1], Unreadable) and error in found[-1].error


def test_a_header_that_claims_to_be_gigabytes_long_is_not_read() -> None:
    block = bytearray(tar({"a.gz": b""})[:512])
    block[156:157] = b"x"  # an extended header
    block[124:136] = b"77777777777\0"
    block[148:156] = b"        "
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    first = read(MANY[: MANY.index(b"2601/2601.00002")] + bytes(block) + bytes(1024))[0]
    assert isinstance(first[0], Document)
    assert isinstance(first[-1], Unreadable) and "damaged: a header of" in first[-1].error
