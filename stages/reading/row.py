"""One row of a JSONL or Parquet file, a mapping from field to value, to a Document."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from lineage import ids
from stages.document import Document, Place
from stages.reading.head import iso_date
from stages.reading.options import ReadOptions, UnreadableError

MAX_OTHER_BYTES: Final = 16 << 20
"""What a row may hold besides its text, in bytes."""

_ID, _URL, _DATES = "id", "url", ("captured_at", "date")
_SHOWN_FIELDS: Final = 20
_PLAIN_NAME = re.compile(r"[A-Za-z_][\w.:-]{0,40}", re.ASCII)


class BadRowError(UnreadableError):
    """A row that holds no document."""


@dataclass(frozen=True, slots=True)
class LongText:
    """In the place of a text above `max_document_bytes`: its UTF-8, which no one makes a text of."""

    data: memoryview


def document_from_row(row: Mapping[str, Any], number: int, place: Place, options: ReadOptions) -> Document:
    """The document that a row describes; BadRowError if it has no text.

    Without a given id (a text or a whole number) the row is named by its `number`, from 0. Every other field goes into
    `metadata` as JSON, an `id` or `url` that is of another kind too. A text above `max_document_bytes` is hashed but
    not held."""
    fields = options.fields
    text = _text(row, fields.text)
    data = text.data if isinstance(text, LongText) else memoryview(text.encode("utf-8", "surrogatepass"))
    given = _field(row, fields.id, _ID, (str, int), key="source.id_field", expected="a text or a whole number")
    url = _field(row, fields.url, _URL, (str,), key="source.url_field", expected="a text")
    name = None if given is None or given == "" else str(given)
    used = {fields.text: text, fields.id or _ID: given, fields.url or _URL: url}
    return Document(
        doc_id=ids.row_doc_id(options.source, options.file, str(number) if name is None else name, data),
        source=options.source,
        place=place,
        raw_hash=ids.content_hash(data),
        num_bytes=len(data),
        content_type="text/plain",
        record_id=_storable(name),
        url=_storable(url),
        captured_at=_captured_at(row, fields.date),
        metadata=_metadata(row, _taken(row, used)),
        charset="utf-8",
        text=text if isinstance(text, str) and len(data) <= options.max_document_bytes else "",
    )


def document_of_long_row(number: int, raw_hash: bytes, place: Place, options: ReadOptions) -> Document:
    """The document of a row that is too long to be read: what is known of it is the hash and length of its bytes."""
    return Document(
        doc_id=ids.row_doc_id(options.source, options.file, str(number), memoryview(raw_hash)),
        source=options.source,
        place=place,
        raw_hash=raw_hash,
        num_bytes=place.length,
        content_type="text/plain",
    )


def no_such_field(what: str, name: str, key: str, names: Iterable[str]) -> str:
    """What is wrong with a file or row that lacks the field of its text. Odd names are not shown: in a row they may be
    text of a page."""
    plain = [each for each in names if _PLAIN_NAME.fullmatch(each)][: _SHOWN_FIELDS + 1]
    shown = ", ".join(plain[:_SHOWN_FIELDS]) + (", …" if len(plain) > _SHOWN_FIELDS else "")
    return f"there is no {what} {name!r}, only {shown or 'none'}: name the right one as {key}"


_ABSENT: Final = object()


def path_of(name: str, names: Iterable[str]) -> tuple[str, ...]:
    """The way to a field: one step where there is a field of that whole name, else a step for each part of it."""
    return (name,) if name in names else tuple(name.split("."))


def _value(row: Mapping[str, Any], name: str) -> Any:
    """The field's value, or _ABSENT. Called for every field of every row: the whole name is looked up first, and a path
    is made only where there is none."""
    if name in row:
        return row[name]
    if "." not in name:
        return _ABSENT
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _ABSENT
        value = value[part]
    return value


def _text(row: Mapping[str, Any], name: str) -> str | LongText:
    text = _value(row, name)
    if text is _ABSENT:
        raise BadRowError(no_such_field("field", name, "source.text_field", row))
    if not isinstance(text, (str, LongText)):
        raise BadRowError(f"the field {name!r} is {_kind(text)}: expected a text")
    return text


def _field(
    row: Mapping[str, Any], named: str | None, usual: str, kinds: tuple[type, ...], *, key: str, expected: str
) -> Any:
    """The value of the field that is `named` in the recipe, or of the usual one; None where there is none."""
    value = _value(row, named or usual)
    if value is _ABSENT or value is None:
        return None
    if isinstance(value, kinds) and not isinstance(value, bool):
        return value
    if named is not None:
        raise BadRowError(f"the field {named!r} ({key}) is {_kind(value)}: expected {expected}")
    return None


def _captured_at(row: Mapping[str, Any], named: str | None) -> str | None:
    if named is None:
        return next(filter(None, (_iso(row[name]) for name in _DATES if name in row)), None)
    value = _value(row, named)
    if value is _ABSENT or value is None or value == "":
        return None
    found = _iso(value)
    if found is None:
        what = "a text that is no date" if isinstance(value, str) else _kind(value)
        raise BadRowError(
            f"the field {named!r} (source.date_field) is {what}: expected a date, as 2026-01-31T12:00:00Z"
        )
    return found


def _kind(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"


def _iso(value: Any) -> str | None:
    return iso_date(value.isoformat() if isinstance(value, date) else value if isinstance(value, str) else None)


def _taken(row: Mapping[str, Any], used: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields that are no metadata: those `used` in a column of their own, and what is null. An id that is an
    object, as databases export it, and a list of URLs are in no column."""
    return tuple(name for name, value in used.items() if value is not None or row.get(name) is None)


def _metadata(row: Mapping[str, Any], taken: tuple[str, ...]) -> str | None:
    rest: Mapping[str, Any] = {field: value for field, value in row.items() if field not in taken}
    for name in taken:
        if "." in name and name not in row:
            rest = _without(rest, path_of(name, row))
    if not rest:
        return None
    try:
        return _storable(_to_json(rest))
    except (TypeError, RecursionError, ValueError) as error:
        raise BadRowError(f"its other fields cannot be kept as JSON: {type(error).__name__}") from error


def _without(row: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    """`row` less one field, wherever that lies."""
    first, *further = path
    if first not in row:
        return row
    if not further:
        return {field: value for field, value in row.items() if field != first}
    inner = row[first]
    return {**row, first: _without(inner, tuple(further))} if isinstance(inner, Mapping) else row


def _to_json(fields: Mapping[str, Any]) -> str:
    """The fields as JSON, sorted; null for the numbers that JSON does not have. These are rare, and a copy of every
    row without them would cost more than the encoding: so they are looked for when the encoder has met one."""
    try:
        return _ENCODER.encode(fields)
    except ValueError:
        return _ENCODER.encode(_finite(fields))


def _finite(value: Any) -> Any:
    """`value` with null for the numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {field: _finite(item) for field, item in value.items()}
    # An entry of an Arrow map is a tuple.
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _as_json(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, allow_nan=False, default=_as_json)


def _storable(text: str | None) -> str | None:
    """`text` with `?` for lone surrogates, which UTF-8 and so every table lacks; None for an empty one."""
    if not text or text.isascii():
        return text or None
    return text.encode("utf-8", "replace").decode("utf-8")
