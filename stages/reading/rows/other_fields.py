"""The fields of a row besides those of its document, as JSON, and a row with and without some of its fields."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from lineage.json_record import finite_values
from stages.reading.options import (
    UnreadableError,
)
from stages.surrogates import without_surrogates


class BadRowError(UnreadableError):
    """A row that holds no document."""


Keys = tuple[str, ...]
"""The way to a value of a row: the names of the fields that it lies in, and its own."""


def metadata_of(row: Mapping[str, Any], taken: Collection[Keys]) -> str | None:
    """All fields but those that are taken, as JSON. An id that is an object, as databases export it, and a
    list of URLs are in no column."""
    rest: Mapping[str, Any] = {**row}
    for keys in taken:
        if len(keys) > 1:
            rest = without_field(rest, keys)
        elif keys:
            del rest[keys[0]]  # type: ignore[attr-defined]  # a dict of our own
    return storable(as_json_text(rest)) if rest else None


def as_json_text(fields: Mapping[str, Any]) -> str:
    try:
        return _to_json(fields)
    except (TypeError, RecursionError, ValueError) as error:
        raise BadRowError(f"its other fields cannot be kept as JSON: {type(error).__name__}") from error


def without_field(row: Mapping[str, Any], path: Keys) -> Mapping[str, Any]:
    """`row` less one field, wherever that lies."""
    first, *further = path
    if first not in row:
        return row
    if not further:
        return {field: value for field, value in row.items() if field != first}
    inner = row[first]
    return {**row, first: without_field(inner, tuple(further))} if isinstance(inner, Mapping) else row


def with_field(row: Mapping[str, Any], keys: Keys, value: Any) -> Mapping[str, Any]:
    """`row` with a value at these keys."""
    first, *further = keys
    return {**row, first: with_field(row[first], tuple(further), value) if further else value}


def only_fields(row: Mapping[str, Any], kept: Iterable[Keys]) -> Mapping[str, Any]:
    """What of `row` lies at these keys."""
    found: dict[str, object] = {}
    for keys in kept:
        value: Any = row
        inside: Any = found
        for key in keys[:-1]:
            value, inside = value[key], inside.setdefault(key, {})
        inside[keys[-1]] = value[keys[-1]]
    return found


def metadata_with(metadata: str | None, **fields: str | int) -> str:
    """The JSON of a document's other fields with these besides."""
    return without_surrogates(_to_json(json.loads(metadata or "{}") | fields))


def _to_json(fields: Mapping[str, Any]) -> str:
    """The fields as JSON, sorted; null for the numbers that JSON does not have. These are rare, and a copy of
    every row without them would cost more than the encoding: so they are looked for when the encoder has met
    one."""
    try:
        return _ENCODER.encode(fields)
    except ValueError:
        return _ENCODER.encode(finite_values(fields))


def _as_json(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, allow_nan=False, default=_as_json)


def storable(text: str | None) -> str | None:
    """`text` as every table takes it; None for an empty one."""
    if not text or text.isascii():
        return text or None
    return without_surrogates(text)
