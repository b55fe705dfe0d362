"""What became of the documents of a unit, packed into one file beside its parsed texts, for a run that starts
there.

It holds no text: the unit's rows of `documents`, `findings` and `edits` as its steps left them, what rules
measured, and its ReadResult."""

from __future__ import annotations

import io
import json
import zipfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NotRequired, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from lineage.ids import content_hash
from lineage.index.checksums import DamagedFileError
from lineage.index.parsed_texts import facts_name
from lineage.storage.folder import Folder
from pipeline.plan import Unit
from pipeline.results.faults import as_kept
from pipeline.results.unit_results import ReadResult, UnitFile
from pipeline.units.files import MEASURED_FILE, ROW
from pipeline.units.parsed_texts import EditOfText

_TABLES: Final = ("documents.parquet", "findings.parquet", "edits.parquet", MEASURED_FILE)
_RESULT: Final = "unit.json"
_NO_TIME: Final = (1980, 1, 1, 0, 0, 0)


class DocumentFacts(TypedDict):
    """A row of `documents` of a unit, as far as it is looked at; the columns that a recipe adds are there too."""

    doc_id: bytes
    source: str
    url: str | None
    truncated: NotRequired[str | None]
    warc_file: str
    warc_offset: int
    warc_length: int
    record_id: str | None
    captured_at: str | None
    charset: str | None
    raw_hash: bytes
    text_hash: bytes | None
    language: str | None
    language_score: float | None
    stage: str | None
    rule: str | None
    row: int


class FindingFacts(TypedDict):
    """A row of `findings` of a unit; `row` is that of its document."""

    row: int
    stage: str
    rule: str
    value: float | None
    threshold: float | None
    verdict: str
    matched: NotRequired[str | None]


class EditFacts(EditOfText):
    """A row of `edits` of a unit; `row` is that of its document."""

    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFacts:
    """`documents` are in reading order, with the number of each as ROW; `findings` and `edits` follow them.
    `measured` is what rules of the step quality measured of a document, as tables.MEASURED has it: empty where
    the whole ledger is kept."""

    result: ReadResult
    documents: pa.Table
    findings: pa.Table
    edits: pa.Table
    measured: Mapping[bytes, str]


def publish_facts(out: Folder, unit: Unit, result: ReadResult) -> UnitFile:
    """Publish the facts of a unit whose own files are published."""
    kept = replace(result, seconds={}, faults=as_kept(result.faults))
    packed = {name: out.read(f"{unit.folder}/{name}") for name in _TABLES}
    packed[_RESULT] = json.dumps(kept.to_json(), sort_keys=True).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in packed.items():
            archive.writestr(zipfile.ZipInfo(name, _NO_TIME), data)
    name, data = facts_name(unit.source, unit.file_index), buffer.getvalue()
    out.write(name, data)
    return UnitFile(file=name, num_rows=result.num_documents, hash=content_hash(data).hex(), bytes=len(data))


def read_facts(out: Folder, name: str, digest: str) -> UnitFacts:
    """The facts of a unit; DamagedFileError unless the file has this BLAKE3-128 (hex)."""
    data = out.read(name)
    if content_hash(data).hex() != digest:
        raise DamagedFileError(
            f"{out.at(name)} is damaged: run sluice verify, and restore the file from a copy"
        )
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        there = set(archive.namelist())
        found = [pq.ParquetFile(io.BytesIO(archive.read(name))).read() for name in _TABLES if name in there]
        result = ReadResult.from_json(json.loads(archive.read(_RESULT)))
    documents, findings, edits, *more = found
    documents = documents.append_column(ROW, pa.array(range(len(documents)), pa.int64()))
    findings, edits = (_with_row(rows, documents) for rows in (findings, edits))
    measured = {
        doc_id: values
        for table in more
        for doc_id, values in zip(table["doc_id"].to_pylist(), table["measured"].to_pylist(), strict=True)
    }
    return UnitFacts(result=result, documents=documents, findings=findings, edits=edits, measured=measured)


def _with_row(rows: pa.Table, documents: pa.Table) -> pa.Table:
    """Findings or edits with ROW. Those that an earlier build wrote have none: of an id that came several times they
    are shared out evenly, in order."""
    if ROW in rows.column_names:
        return rows
    numbers: dict[bytes, list[int]] = defaultdict(list)
    for number, doc_id in enumerate(documents["doc_id"].to_pylist()):
        numbers[doc_id].append(number)
    ids = rows["doc_id"].to_pylist()
    nums, met = Counter(ids), Counter[bytes]()
    found = []
    for doc_id in ids:
        found.append(numbers[doc_id][met[doc_id] * len(numbers[doc_id]) // nums[doc_id]])
        met[doc_id] += 1
    return rows.append_column(ROW, pa.array(found, pa.int64()))
