"""Files that end with a checksum of their own bytes, and checksums.json, which covers what index.json does
not.

A sealed file is JSON, one key a line and one list item a line. Its last key is `checksum`: the BLAKE3-128 of
every byte before the comma in front of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from blake3 import blake3

from lineage.ids import ID_BYTES, content_hash
from lineage.json_record import JsonRecord
from lineage.storage.folder import Folder, StorageError

CHECKSUMS_FILE: Final = "checksums.json"
_FORMAT: Final = 1
_READ_BYTES: Final = 8 << 20


class DamagedFileError(StorageError):
    """A file under OUT does not hold what was written; the message names it."""


def refusal(where: str, reason: str) -> DamagedFileError:
    """The error for a file that does not hold what was written."""
    return DamagedFileError(
        f"{where} is damaged: {reason}. Run sluice verify, and restore the file from a copy"
    )


def seal(fields: Mapping[str, Any]) -> bytes:
    """`fields` as a sealed file; equal fields in equal order give equal bytes."""
    lines = (f" {_compact(name)}: {_pretty(value)}" for name, value in fields.items())
    body = ("{\n" + ",\n".join(lines)).encode()
    return body + _tail(body)


def unseal(data: bytes, where: str) -> dict[str, object]:
    """The fields of a sealed file without its checksum; DamagedFileError if a byte of it is not as
    written."""
    fields: dict[str, object] = json.loads(sealed_body(data, where) + b"}")
    return fields


def sealed_body(data: bytes, where: str) -> bytes:
    """The bytes of a sealed file that its checksum covers, which lack the closing brace; DamagedFileError if one
    is not as written."""
    at = data.rfind(b',\n "checksum": ')
    if at < 0:
        raise refusal(where, "it does not end with its checksum")
    body = data[:at]
    if data[at:] != _tail(body):
        expected = content_hash(body).hex()
        raise refusal(where, f"its checksum should be {expected}, it ends with {data[at:][-40:]!r}")
    return body


def unseal_format(data: bytes, where: str, version: int, *, key: str = "format") -> dict[str, object]:
    """The same, less `key`, of a file whose `key` says in which format it is; StorageError for another than
    `version`."""
    fields = unseal(data, where)
    found = fields.pop(key)
    if found != version:
        raise StorageError(
            f"{where} has format {found}, this version reads {version}: make it again from its inputs, or"
            " use the version that wrote it"
        )
    return fields


def _tail(body: bytes) -> bytes:
    return b',\n "checksum": "%s"\n}\n' % content_hash(body).hex().encode()


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _pretty(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"  {_compact(item)}" for item in value) + "\n ]"
    return _compact(value)


def hash_file(folder: Folder, name: str) -> str:
    """BLAKE3-128 of a file, hex, read in pieces; FileNotFoundError if it is not there."""
    hasher = blake3()
    with folder.open(name) as file:
        while data := file.read(_READ_BYTES):
            hasher.update(data)
    return hasher.digest(length=ID_BYTES).hex()


def check_file(folder: Folder, name: str, digest: str) -> None:
    """DamagedFileError unless a file has this BLAKE3-128 (hex); FileNotFoundError if it is not there."""
    found = hash_file(folder, name)
    if found != digest:
        raise refusal(folder.at(name), f"its hash is {found}, expected {digest}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSum:
    """One covered file: its name under OUT, BLAKE3-128 in hex, and its length in bytes."""

    file: str
    hash: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSum:
    """A lineage table as it was when the checksums were written: its version and number of rows."""

    table: str
    version: int
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checksums(JsonRecord):
    """checksums.json: every file under OUT that index.json does not name, and each table's version and row
    count.

    A table that facts are appended to may be newer than `tables` says (see lineage.store.checksum_update)."""

    tables: tuple[TableSum, ...]
    files: tuple[FileSum, ...]


def sum_file(folder: Folder, name: str) -> FileSum:
    """The sum of one file as it is now."""
    return FileSum(file=name, hash=hash_file(folder, name), bytes=folder.size(name))


def encode_checksums(sums: Checksums) -> bytes:
    """The bytes of checksums.json."""
    return seal({"format": _FORMAT, **sums.to_json()})


def read_checksums(folder: Folder) -> Checksums:
    """checksums.json of an OUT; DamagedFileError if it is damaged, StorageError if there is none."""
    try:
        data = folder.read(CHECKSUMS_FILE)
    except FileNotFoundError as error:
        raise StorageError(
            f"no {CHECKSUMS_FILE} in {folder.url}: the run is not finished; run it again"
        ) from error
    return Checksums.from_json(unseal_format(data, folder.at(CHECKSUMS_FILE), _FORMAT))
