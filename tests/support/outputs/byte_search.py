"""Every byte that lies under an output, whatever it is packed in."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from lineage.storage.folder import Folder


def everything(contents: Iterator[bytes]) -> Iterator[bytes]:
    """Each content as it is, and compressed Parquet opened: every value of every column as bytes."""
    for data in contents:
        yield data
        if data[:4] == b"PAR1":
            table = pq.read_table(io.BytesIO(data))
            for column in table.columns:
                yield b"\0".join(v if isinstance(v, bytes) else str(v).encode() for v in column.to_pylist())


def of_folder(out: Folder) -> Iterator[bytes]:
    """Every byte under OUT: of temporary and hidden files too."""
    if out.is_remote:
        yield from (out.read(name) for name in out.names())
    else:
        yield from (
            Path(folder, file).read_bytes() for folder, _, files in os.walk(out.url) for file in files
        )
