"""One row of a JSONL or Parquet file, a mapping from field to value, to a Document."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date
from typing import Any

from lineage import ids
from stages.document import Document, Place
from stages.reading.options import ReadOptions, UnreadableError
from stages.reading.record import iso_date


class BadRowError(UnreadableError):
    """A row that holds no document."""


def document_from_row(row: Mapping[str, Any], number: int, place: Place, options: ReadOptions) -> Document:
    """The document that a row describes; BadRowError if it has no text.

    Without a given id (a text or a whole number) the row is named by its `number`, from 0. Every other field goes into
    `metadata` as JSON. A text above `max_document_bytes` is hashed but not held."""
    text = _text(row, options)
    data = text.encode("utf-8", "surrogatepass")
    given, url = row.get(options.id_field), row.get(options.url_field)
    name = str(given) if isinstance(given, (str, int)) and not isinstance(given, bool) and given != "" else None
    return Document(
        doc_id=ids.row_doc_id(options.source, options.file, str(number) if name is None else name, text),
        source=options.source,
        place=place,
        raw_hash=ids.content_hash(data),
        num_bytes=len(data),
        content_type="text/plain",
        record_id=_storable(name),
        url=_storable(url) if isinstance(url, str) else None,
        captured_at=next(filter(None, (_iso(row.get(field)) for field in options.date_fields)), None),
        metadata=_metadata(row, {options.text_field, options.id_field, options.url_field}),
        charset="utf-8",
        text=text if len(data) <= options.max_document_bytes else "",
    )


def _text(row: Mapping[str, Any], options: ReadOptions) -> str:
    field = options.text_field
    if field not in row:
        raise BadRowError(f"there is no field {field!r}")
    if not isinstance(row[field], str):
        what = "null" if row[field] is None else f"a {type(row[field]).__name__}"
        raise BadRowError(f"the field {field!r} is {what}: expected a text")
    text: str = row[field]
    return text


def _iso(value: Any) -> str | None:
    return iso_date(value.isoformat() if isinstance(value, date) else value if isinstance(value, str) else None)


def _metadata(row: Mapping[str, Any], without: set[str]) -> str | None:
    rest = {field: value for field, value in row.items() if field not in without}
    if not rest:
        return None
    try:
        return _storable(json.dumps(_finite(rest), ensure_ascii=False, sort_keys=True, default=_as_json))
    except (TypeError, RecursionError, ValueError) as error:
        raise BadRowError(f"its other fields cannot be kept as JSON: {type(error).__name__}") from error


def _finite(value: Any) -> Any:
    """`value` with null for the numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {field: _finite(item) for field, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def _as_json(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _storable(text: str | None) -> str | None:
    """`text` with `?` for lone surrogates, which UTF-8 and so every table lacks; None for an empty one."""
    return text.encode("utf-8", "replace").decode("utf-8") if text else None
