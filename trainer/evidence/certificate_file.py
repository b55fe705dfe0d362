"""The file of a certificate: how its bytes are made of what stands in it, and read again. No torch here: the
lineage page reads certificates where nothing is trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, cast

from lineage.ids import content_hash
from trainer.evidence.rows import PublishedCertificate

_OF_ANY_RELEASE: Final = "sluice certificate "
FORMAT: Final = f"{_OF_ANY_RELEASE}3"
"""3: `commitment`. 2: `documents_digest` is a keyed hash; in 1 it was a sum, which other documents can meet."""


class CertificateError(RuntimeError):
    """A run cannot be certified, or a file is no certificate; the message says why."""


def as_bytes(row: Mapping[str, object]) -> bytes:
    """The file of a certificate: JSON whose last field is the checksum of all bytes before it."""
    body = json.dumps(row, indent=1, ensure_ascii=False).encode(errors="surrogatepass").removesuffix(b"\n}")
    return body + b',\n "checksum": "' + content_hash(body).hex().encode() + b'"\n}\n'


class _OtherReleaseError(Exception):
    """Of the format that a certificate names."""


_TOP: Final = {"run": str, "inexact": list, "checksum": str}
_FIELDS: Final[dict[str, dict[str, type]]] = {
    "checkpoint": {"name": str},
    "purges": {"purge_id": str, "out": str},
    "chain": {"attempt": int},
    "init_from": {},
    "not_covered": {"kind": str, "what": str, "why": str},
    "commitment": {"root": str},
    "weights": {"digest": str, "tensors": dict},
}
"""The parts of a certificate that a check reads field by field: objects, or lists of them, with at least
these."""


def parse_certificate(data: bytes, where: str) -> tuple[PublishedCertificate, bool]:
    """What stands in a certificate, and whether its bytes are those that are written of it, the checksum with
    them: a key that is there twice would say two things. CertificateError for what is none."""
    try:
        row = _parsed(data)
    except _OtherReleaseError as error:
        raise CertificateError(
            f"{where}: another release made it, in the format {str(error)!r:.60}; this one reads {FORMAT!r}: certify"
            " the run again"
        ) from error
    except ValueError as error:
        raise CertificateError(
            f"{where} is no certificate, or a damaged one: {error}; expected a file that sluice certify made"
        ) from error
    del row["checksum"]
    return cast(PublishedCertificate, row), as_bytes(row) == data


def _parsed(data: bytes) -> dict[str, object]:
    """ValueError where a part is missing or of another type."""
    try:
        row = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no whole JSON ({error})") from error
    if not isinstance(row, dict) or row.get("format") != FORMAT:
        named = row.get("format") if isinstance(row, dict) else None
        if isinstance(named, str) and named.startswith(_OF_ANY_RELEASE):
            raise _OtherReleaseError(named)
        raise ValueError(f"it has no format {FORMAT!r}")
    _check_types("", row, _TOP)
    for part, names in _FIELDS.items():
        entries = [row.get(part)] if part in ("checkpoint", "commitment", "weights") else row.get(part)
        if not isinstance(entries, list):
            raise ValueError(f"{part} is no list")
        for entry in entries:
            _check_types(f"{part}: ", entry, names)
    if not row["purges"]:
        raise ValueError("purges is empty, and a certificate is of at least one purge")
    if any(purge["purge_id"] == "all" for purge in row["purges"]):
        raise ValueError("purges: all is no purge's id")
    return row


def _check_types(where: str, row: object, types: Mapping[str, type]) -> None:
    if not isinstance(row, dict):
        raise ValueError(f"{where}{row!r:.40} is no object")
    for name, type_ in types.items():
        if not isinstance(row.get(name), type_):
            raise ValueError(f"{where}{name} is {row.get(name)!r:.40}, and no {type_.__name__}")
