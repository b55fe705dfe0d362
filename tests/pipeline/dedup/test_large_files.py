"""A file of keys whose signatures are more than the 2 GiB that one Arrow array with 32-bit offsets holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lineage.storage.folder import Folder
from pipeline.dedup import near, verdicts
from pipeline.dedup.inputs import ID, DedupUnit, KeysFile, unit_file
from pipeline.dedup.rows import Context, FileSlice, ints
from stages.dedup.options import DedupTable

VALUES = 4096
ROWS_OF_CHUNK = 4096
ROWS = 33 * ROWS_OF_CHUNK
FAR = [5, ROWS_OF_CHUNK + 6, ROWS - 1]


def keys() -> pa.Table:
    """Rows whose chunks of signatures share one buffer of 64 MiB: together 2.06 GiB. The first value of each
    is its place in its chunk."""
    values = np.zeros((ROWS_OF_CHUNK, VALUES), "<u4")
    values[:, 0] = np.arange(ROWS_OF_CHUNK)
    offsets = np.arange(ROWS_OF_CHUNK + 1, dtype=np.int32) * 4 * VALUES
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    chunk = pa.Array.from_buffers(pa.binary(), ROWS_OF_CHUNK, buffers)
    ids = pa.Array.from_buffers(ID, ROWS, [None, pa.py_buffer(np.arange(2 * ROWS, dtype="<u8"))])
    return pa.table(
        {
            "node": np.arange(ROWS),
            "signature": pa.chunked_array([chunk] * (ROWS // ROWS_OF_CHUNK)),
            "doc_id": ids,
            "url_key": pa.nulls(ROWS, ID),
            "clean_hash": ids,
            "num_chars": np.arange(ROWS),
            "captured_at": pa.nulls(ROWS, pa.string()),
        }
    )


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """That of a job of one such file."""
    table = keys()
    file = unit_file(
        DedupUnit(source_index=0, file_index=0, keys="k", part="p"), Folder("work"), Folder("out")
    )

    def read_keys(_file: KeysFile, columns: Sequence[str]) -> pa.Table:
        return table.select(["node", *columns])

    for module in (near, verdicts):
        monkeypatch.setattr(module, "read_keys", read_keys)
        monkeypatch.setattr(module, "open_slice", lambda _folder, _number: [file])
    monkeypatch.setattr(
        near, "first_documents", lambda _c, _f, columns: iter([(file, read_keys(file, columns))])
    )
    options = DedupTable(num_perm=VALUES, bands=1, rows=1)
    return Context(
        table=options, folder=Folder(str(tmp_path)), num_partitions=1, slice_starts=(0,), group_starts=(0,)
    )


def test_signatures_are_fetched(context: Context) -> None:
    found = pa.concat_tables(
        near.signatures_of(context, 0, pa.table({"node": FAR, "meeting": [0, 0, 0]})).rows
    )
    assert found["node"].to_pylist() == FAR
    firsts = [int.from_bytes(value[:4], "little") for value in found["value"].to_pylist()]
    assert firsts == [node % ROWS_OF_CHUNK for node in FAR]


def test_members_of_components_are_found(context: Context) -> None:
    rows = pa.table({"node": FAR, "label": [FAR[0]] * 3, "b": [-1] * 3, "similarity": [0.0] * 3})
    found = verdicts.members(context, 0, rows).rows
    assert found["num_chars"].to_pylist() == FAR and found["has_words"].to_pylist() == [True] * 3


@pytest.mark.slow
def test_rows_of_shared_bands_are_found(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow: the signatures that are there are copied."""
    monkeypatch.setattr(near, "_keys_of", lambda _context, signed: ints(signed, "node").reshape(-1, 1))
    with context.folder.writing("buckets") as file:
        pq.write_table(pa.table({"key": FAR}), file)
    found = near.band_rows(context, near.SharedSlice(FileSlice(0, None), "buckets"))
    assert sorted(found["node"].to_pylist()) == FAR
