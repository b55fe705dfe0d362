"""A file to write whose content is hashed on the way, so that a published file is not read again for it."""

from __future__ import annotations

from typing import IO

from blake3 import blake3

from lineage.ids import ID_BYTES


class HashingFile:
    """Passes what is written on to `file`. Closing it leaves `file` open: the folder's context closes that
    one, once it knows that all went well. For `pyarrow.PythonFile`."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._hasher = file, blake3()

    def write(self, data: bytes) -> int:
        self._hasher.update(bytes(data))  # Arrow gives buffers, which blake3 does not take as they are
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        pass

    def hexdigest(self) -> str:
        """The BLAKE3-128 of what was written so far, in hex."""
        return self._hasher.digest(length=ID_BYTES).hex()
