"""What became of the documents of a unit, packed into one file beside its parsed texts, for a run that starts there.

It holds no text: the unit's rows of `documents`, `findings` and `edits` as its steps left them, and its ReadResult."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from lineage.ids import content_hash
from lineage.index.checksums import DamagedFileError
from lineage.index.parsed_texts import facts_name
from lineage.storage.folder import Folder
from pipeline.plan import Unit
from pipeline.results.faults import as_kept
from pipeline.results.unit_results import ReadResult, UnitFile

_TABLES: Final = ("documents", "findings", "edits")
_RESULT: Final = "unit.json"
_NO_TIME: Final = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFacts:
    """`documents` are in reading order; `findings` and `edits` follow them."""

    result: ReadResult
    documents: pa.Table
    findings: pa.Table
    edits: pa.Table


def publish_facts(out: Folder, unit: Unit, result: ReadResult) -> UnitFile:
    """Publish the facts of a unit whose own files are published."""
    kept = replace(result, seconds={}, faults=as_kept(result.faults))
    packed = {f"{name}.parquet": out.read(f"{unit.folder}/{name}.parquet") for name in _TABLES}
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
        raise DamagedFileError(f"{out.at(name)} is damaged: run sluice verify, and restore the file from a copy")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        documents, findings, edits = (pq.read_table(io.BytesIO(archive.read(f"{one}.parquet"))) for one in _TABLES)
        result = ReadResult.from_json(json.loads(archive.read(_RESULT)))
    return UnitFacts(result=result, documents=documents, findings=findings, edits=edits)
