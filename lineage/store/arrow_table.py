"""A table of the store as an Arrow dataset that checks what a scan will read before it begins (see
`checked`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from lineage.store.checked import DataFiles

_READ_AHEAD: Final = {"batch_readahead": pa.cpu_count(), "fragment_readahead": 1}
"""A batch for each processor that decodes one. Arrow's own 16 batches of 4 files are a million rows: most of what a
process that asks needs memory for."""


class CheckedDataset(ds.FileSystemDataset):  # type: ignore[misc]
    """Every way to its rows goes through `scanner`, for Arrow and for DuckDB. Only the columns and files that
    the scan names are checked: a count over one column of a wide table stays cheap."""

    _files: DataFiles
    _num_rows: Mapping[str, int]

    def checked_by(self, files: DataFiles, num_rows: Mapping[str, int]) -> CheckedDataset:
        """This dataset, of these files with so many rows each."""
        self._files, self._num_rows = files, num_rows
        return self

    def scanner(self, columns: Any = None, filter: Any = None, **more: Any) -> ds.Scanner:
        """As Arrow's, with fewer rows read ahead; DamagedFileError if a byte that the scan would read is not as it was
        written."""
        names = self._named(columns, filter)
        for fragment in self.get_fragments(filter):
            self._files.check(fragment.path, self._num_rows[fragment.path], names)
        return super().scanner(columns=columns, filter=filter, **(_READ_AHEAD | more))

    def tables(self, columns: list[str]) -> Iterator[pa.Table]:
        """Some columns of each file, file by file."""
        for fragment in self.get_fragments():
            self._files.check(fragment.path, self._num_rows[fragment.path], columns)
            yield fragment.to_table(columns=columns)

    def _named(self, columns: Any, filter: Any) -> set[str] | None:
        """The columns that a scan reads, None for all."""
        if not isinstance(columns, list):
            return None
        # Arrow does not say which fields an expression reads; its text holds their names, and perhaps more.
        words = set(re.findall(r"\w+", str(filter))) if filter is not None else set()
        return set(columns) | (words & set(self.schema.names))
