"""The manifest of an export: every file that it wrote, and what each was made from. It lies in the export's
folder.

A unit is what is written, retried and cleaned as a whole: the texts of a few parts, or the tokens of a shard.
`inputs` names its input files in their generation, so a unit whose inputs a purge rewrote is known without
reading it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lineage.index.checksums import FileSum, seal, unseal_format
from lineage.json_record import JsonRecord
from lineage.storage.folder import Folder

MANIFEST: Final = ".sluice-export.json"
"""Hidden, because readers of formats take every other file of a folder for data."""
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """A file of an export: its name in the export's folder, its BLAKE3-128 in hex, its bytes, and what it
    holds."""

    file: str
    hash: str
    bytes: int
    split: str
    num_documents: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedUnit(JsonRecord):
    """The files of one unit. `inputs`: BLAKE3-128 (hex) of the names and hashes of what they were made from,
    and of the options."""

    unit: str
    inputs: str
    files: tuple[ExportedFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(JsonRecord):
    """A whole export. `corpus` is what its OUT is known by, which outlives purges; `version` that of the
    corpus which it holds; `index_files` are what the format needs besides the units' files."""

    name: str
    format: str
    options: Mapping[str, Any]
    corpus: str
    version: int
    units: tuple[ExportedUnit, ...]
    index_files: tuple[FileSum, ...]

    def files(self) -> dict[str, str]:
        """The BLAKE3-128 (hex) of every file, by name."""
        of_units = {file.file: file.hash for unit in self.units for file in unit.files}
        return of_units | {file.file: file.hash for file in self.index_files}

    @property
    def num_documents(self) -> int:
        return sum(file.num_documents for unit in self.units for file in unit.files)

    @property
    def num_tokens(self) -> int:
        return sum(file.num_tokens for unit in self.units for file in unit.files)

    @property
    def num_bytes(self) -> int:
        of_units = sum(file.bytes for unit in self.units for file in unit.files)
        return of_units + sum(file.bytes for file in self.index_files)


def is_of_units(name: str, sources: Iterable[str]) -> bool:
    """Whether `name` is one that a unit of these sources may have written, in any format and split."""
    of_source = "|".join(map(re.escape, sorted(sources)))
    return (
        re.search(rf"(^|/|shard-|validation-)({of_source})[/_-]([a-z][a-z0-9_]*[_-])?\d{{5,}}\D", name)
        is not None
    )


def strays(folder: Folder, manifest: Manifest) -> list[str]:
    """Files of units in the export's folder that its manifest does not name, such as the last chunk of a unit
    before a purge made it smaller. They may hold texts."""
    named, sources = manifest.files(), {unit.unit.rpartition("/")[0] for unit in manifest.units}
    found = (name for name in folder.names() if name not in named and not name.startswith("work/"))
    return [name for name in found if is_of_units(name, sources)]


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest; equal manifests give equal bytes."""
    return seal({"manifest": _FORMAT, **manifest.to_json()})


def read_manifest(folder: Folder) -> Manifest | None:
    """The manifest of the export in `folder`; None if no export was finished there. DamagedFileError if a
    byte of it is not as written, StorageError for a manifest of a later version."""
    try:
        data = folder.read(MANIFEST)
    except FileNotFoundError:
        return None
    return Manifest.from_json(unseal_format(data, folder.at(MANIFEST), _FORMAT, key="manifest"))
