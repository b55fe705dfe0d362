"""The files of one unit: each appears whole or not at all, and is hashed as it is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, cast

from lineage.exports.manifest import ExportedFile
from lineage.storage.folder import Folder
from lineage.storage.hashing_file import HashingFile


class FileUnderWay(HashingFile):
    """A file that is being written; whoever writes it counts what it holds."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.num_bytes = self.num_documents = self.num_tokens = 0

    def write(self, data: bytes) -> int:
        self.num_bytes += len(data)
        return super().write(data)


class ExportSink:
    """Where a unit's files go; `files` lists those that are whole."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._files: dict[str, ExportedFile] = {}

    @contextmanager
    def writing(self, name: str, split: str) -> Iterator[FileUnderWay]:
        """A file to write, which becomes `name` when the block ends."""
        with self.folder.writing(name) as raw:
            file = FileUnderWay(raw)
            yield file
        self.add(
            ExportedFile(
                file=name,
                hash=file.hexdigest(),
                bytes=file.num_bytes,
                split=split,
                num_documents=file.num_documents,
                num_tokens=file.num_tokens,
            )
        )

    def put(self, name: str, data: bytes, split: str, num_documents: int = 0, num_tokens: int = 0) -> None:
        """A whole small file."""
        with self.writing(name, split) as file:
            file.write(data)
            file.num_documents, file.num_tokens = num_documents, num_tokens

    def add(self, file: ExportedFile) -> None:
        """A file that stands already."""
        self._files[file.file] = file

    @property
    def files(self) -> tuple[ExportedFile, ...]:
        """What is whole, in order of name."""
        return tuple(self._files[name] for name in sorted(self._files))


def as_stream(file: FileUnderWay) -> IO[bytes]:
    """The file for a library that writes to binary files."""
    return cast(IO[bytes], file)
