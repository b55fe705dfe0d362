"""One row of a JSONL or Parquet file, a mapping from field to value, to a Document; or to one for each
element of a list in it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import islice
from typing import Any, Final
from uuid import UUID

from lineage import ids
from stages.document import Document, Place
from stages.reading.options import (
    InputCounts,
    ReadOptions,
    RowFields,
    Unreadable,
    UnreadableError,
    unreadable_for_any_error,
)
from stages.reading.rows.dates import date_of
from stages.reading.rows.elements import (
    ABSENT,
    DATES,
    ID,
    LIST,
    URL,
    Element,
    ElementBudget,
    LongText,
    elements_of,
    find_field,
    kind_shown,
)
from stages.reading.rows.other_fields import (
    BadRowError,
    Keys,
    metadata_of,
    storable,
)
from stages.surrogates import without_surrogates

MAX_OTHER_BYTES: Final = 16 << 20
"""What a row may hold besides its text, in bytes."""


_SHOWN_FIELDS: Final = 20
_LOOKED_AT_ELEMENTS: Final = 20
_PLAIN_NAME = re.compile(r"[A-Za-z_][\w.:-]{0,40}", re.ASCII)
_PLAIN_DATE = re.compile(r"(?=.*\d)[\w:.,+/ -]{1,40}|[A-Za-z]{1,12}", re.ASCII)
"""What of a field of dates may be shown though it is none: no sentence of a text."""


def documents_from_row(
    row: Mapping[str, Any], number: int, place: Place, options: ReadOptions, counts: InputCounts
) -> Iterable[Document | UnreadableError]:
    """The documents that a row describes: one; or, where the name of the text leads into lists
    (`files[].content`), one for each element, with an error in place of each that holds none. BadRowError if
    there is no such text.

    A text that is null, or lies in a field or an element that is null, is an empty one. Without a given id (a
    text or a number; 1.0 is the id 1) a row is named by its `number`, from 0; an element by that or the row's
    id and its own number in brackets, as `17[0]`, or by an id that lies in the element itself. A field may be
    text and id or URL at once where both keys name it. Every other field goes into `metadata` as JSON, an
    `id` or `url` that is of another kind too; a list that is gone into stands there as the one element. A
    lone surrogate is U+FFFD. A text above `max_document_bytes` is hashed but not held."""
    name = options.fields.text
    if LIST not in name or name in row:
        return (_document(Element(row), number, place, options, counts),)
    return _documents_of_elements(row, number, place, options, counts)


def _documents_of_elements(
    row: Mapping[str, Any], number: int, place: Place, options: ReadOptions, counts: InputCounts
) -> Iterator[Document | UnreadableError]:
    for element in elements_of(Element(row), options.fields, ElementBudget()):
        found: Document | UnreadableError
        try:
            with unreadable_for_any_error():
                found = _document(element, number, place, options, counts)
        except UnreadableError as error:
            if element.lists:
                error.args = (f"element {_numbers(index for _, index in element.lists)}: {error}",)
            found = error
        yield found


def items_of_row(
    documents: Callable[[], Iterable[Document | UnreadableError]],
    place: Place,
    counts: InputCounts,
    num_lost: int,
) -> Iterable[Document | Unreadable]:
    """What `documents` gives of a row, counted, and what of it is unreadable. Where the row itself is,
    `num_lost` are lost."""
    try:
        with unreadable_for_any_error():
            found = documents()
    except UnreadableError as error:
        return (_unreadable(error, place, num_lost),)
    if isinstance(found, tuple):  # of a row without lists, one document
        counts.add_row()
        return found
    return _items_of_elements(found, place, counts)


def _items_of_elements(
    found: Iterable[Document | UnreadableError], place: Place, counts: InputCounts
) -> Iterator[Document | Unreadable]:
    """The same of a row with lists. One that holds no element is a record of a type of its own and gives
    nothing."""
    num_found = 0
    try:
        with unreadable_for_any_error():
            for item in found:
                num_found += 1
                if isinstance(item, Document):
                    counts.add_row("element")
                    yield item
                else:
                    yield _unreadable(item, place, 1)
            if not num_found:
                counts.add_row("row without elements")
    except UnreadableError as error:
        yield _unreadable(error, place, 1)


def item_at(
    items: Iterable[Document | Unreadable], offset: int, doc_id: bytes | None
) -> Document | Unreadable | None:
    """What was read at `offset`: the document of `doc_id`, or else the first; None if there is nothing."""
    first = None
    for item in items:
        at = item.place.offset if isinstance(item, Document) else item.offset
        if at == offset:
            if doc_id is None or (isinstance(item, Document) and item.doc_id == doc_id):
                return item
            first = first or item
        elif first is not None:
            break
    return first


def _unreadable(error: UnreadableError, place: Place, num_records: int) -> Unreadable:
    return Unreadable(
        file=place.file,
        offset=place.offset,
        length=place.length,
        error=str(error),
        num_records=num_records,
        fault=error.fault,
    )


def _document(
    element: Element, number: int, place: Place, options: ReadOptions, counts: InputCounts
) -> Document:
    fields = options.fields
    text, text_keys = _text(element, fields.text)
    data, is_utf8 = _encoded(text)
    given, id_keys = _field(
        element, fields.id, ID, text_keys, (str, int), key="source.id_field", expected="a text or a number"
    )
    url, url_keys = _field(
        element, fields.url, URL, text_keys, (str,), key="source.url_field", expected="a text"
    )
    name = None if given is None or given == "" else str(given)
    if element.lists:
        of_id = () if name is None else id_keys
        inside = _numbers(index for keys, index in element.lists if of_id[: len(keys)] != keys)
        row_name, name = (
            f"{number if name is None else name}{inside}",
            None if name is None else name + inside,
        )
    else:
        row_name = str(number) if name is None else name
    captured_at, odd_date = _captured_at(element, fields.date)
    held = text if isinstance(text, str) and len(data) <= options.max_document_bytes else ""
    record_id, url_of_row = storable(name), storable(url)
    document = Document(
        doc_id=ids.row_doc_id(options.source, options.file, row_name, data),
        source=options.source,
        place=place,
        raw_hash=ids.content_hash(data),
        num_bytes=len(data),
        content_type="text/plain",
        record_id=record_id,
        url=url_of_row,
        captured_at=captured_at,
        metadata=metadata_of(element.row, {text_keys, id_keys, url_keys}),
        charset="utf-8",
        text=held if is_utf8 else without_surrogates(held),
    )
    if not is_utf8 or record_id != (name or None) or url_of_row != (url or None):
        counts.note("surrogates")
    if odd_date is not None:
        counts.note_odd_date(odd_date)
    return document


def _numbers(indices: Iterable[int]) -> str:
    return "".join(f"[{index}]" for index in indices)


def document_of_long_row(number: int, raw_hash: bytes, place: Place, options: ReadOptions) -> Document:
    """The document of a row that is too long to be read: what is known of it is the hash and length of its
    bytes."""
    return Document(
        doc_id=ids.row_doc_id(options.source, options.file, str(number), memoryview(raw_hash)),
        source=options.source,
        place=place,
        raw_hash=raw_hash,
        num_bytes=place.length,
        content_type="text/plain",
    )


def no_such_field(what: str, name: str, key: str, names: Iterable[str]) -> str:
    """What is wrong with a file or row that lacks the field of its text. Odd names are not shown: in a row
    they may be text of a page."""
    return f"there is no {what} {name!r}, only {names_shown(names)}: name the right one as {key}"


def fields_lacked(row: Mapping[str, Any], fields: RowFields) -> set[str] | None:
    """The keys of the recipe that name a field which this row has not got; one that lies in a null is there.
    None for a row that cannot tell, as one whose text lies in an empty list."""
    named = {key: name for key, name in keys_of(fields).items() if name is not None}
    try:
        elements = list(islice(elements_of(Element(row), fields, ElementBudget()), _LOOKED_AT_ELEMENTS))
    except BadRowError:
        return None  # its reading says so
    if not elements:
        return None
    return {
        key
        for key, name in named.items()
        if all(find_field(element, name)[0] is ABSENT for element in elements)
    }


def keys_of(fields: RowFields) -> dict[str, str | None]:
    """The names of fields by the keys of the recipe that give them."""
    return {
        "source.text_field": fields.text,
        "source.id_field": fields.id,
        "source.url_field": fields.url,
        "source.date_field": fields.date,
    }


def names_shown(names: Iterable[str]) -> str:
    """The names of fields for an error, less odd ones."""
    plain = list(islice(filter(_PLAIN_NAME.fullmatch, names), _SHOWN_FIELDS + 1))
    return (", ".join(plain[:_SHOWN_FIELDS]) + (", …" if len(plain) > _SHOWN_FIELDS else "")) or "none"


def _text(element: Element, name: str) -> tuple[str | LongText, Keys]:
    text, keys, is_list = find_field(element, name)
    if isinstance(text, str):
        return text, keys
    if isinstance(text, BadRowError):
        raise text
    if text is ABSENT or is_list:
        raise BadRowError(no_such_field("field", name, "source.text_field", element.row))
    if text is None:
        return "", keys
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadRowError(f"the field {name!r} is not UTF-8, from byte {error.start} of it on") from error
    if isinstance(text, str | LongText):
        return text, keys
    raise BadRowError(f"the field {name!r} is {kind_shown(text)}: expected a text")


def _field(
    element: Element,
    named: str | None,
    usual: str,
    text_keys: Keys,
    kinds: tuple[type, ...],
    *,
    key: str,
    expected: str,
) -> tuple[Any, Keys]:
    """The value of the field that is `named` in the recipe, or of the usual one, and its keys; None where
    there is none, and no keys where what is there is not taken. The field of the text is not the usual one: a
    text would stand in the tables."""
    value, keys, is_list = find_field(element, named or usual)
    if (named is None and keys == text_keys) or isinstance(value, LongText):
        return None, ()
    if is_list:
        raise BadRowError(
            f"the field {named!r} ({key}) lies in a list that source.text_field does not go into"
        )
    if value is ABSENT or _is_null(value):
        return None, keys
    value = _whole(_as_text(value)) if int in kinds else _as_text(value)
    if isinstance(value, kinds) and not isinstance(value, bool):
        return value, keys
    if named is not None:
        raise BadRowError(f"the field {named!r} ({key}) is {kind_shown(value)}: expected {expected}")
    return None, ()


def _is_null(value: Any) -> bool:
    """Whether a value is none: null, or NaN, which pandas writes in its place."""
    return value is None or (isinstance(value, (float, Decimal)) and math.isnan(value))


def _whole(value: Any) -> Any:
    """A number that is not whole as its text, and 1.0 as 1: numbers with a null among them become floats in
    pandas. Anything else as it is."""
    if not isinstance(value, (float, Decimal)) or not math.isfinite(value):
        return value
    return int(value) if value == int(value) else str(value)


def _as_text(value: Any) -> Any:
    """Bytes as the text that they are in UTF-8, as writers that do not mark texts have them, and a UUID, which
    Parquet has a type for, as JSON has it; all else as it is."""
    if isinstance(value, UUID):
        return str(value)
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def _captured_at(element: Element, named: str | None) -> tuple[str | None, str | None]:
    """The date of a row; and where its usual fields hold something that is no date, what that is, so far as
    it may be shown."""
    row = element.row
    if named is None:
        given = [
            value
            for name in DATES
            if name in row and not _is_null(value := _as_text(row[name])) and value != ""
        ]
        found = next(filter(None, map(date_of, given)), None)
        return found, _shown_date(given[0]) if given and found is None else None
    value, _, is_list = find_field(element, named)
    if value is ABSENT or _is_null(value) or value == "":
        return None, None
    value = _as_text(value)
    found = None if is_list else date_of(value)
    if found is None:
        what = "a text that is no date" if isinstance(value, str) else kind_shown(value)
        if isinstance(value, (int, float)):
            what = f"{_shown_date(value)}, a number that is no date from 1980 to 2099"
        raise BadRowError(
            f"the field {named!r} (source.date_field) is {what}: expected a date, as 2026-01-31T12:00:00Z,"
            " Sat, 31 Jan 2026 12:00:00 GMT, 20260131120000 or a Unix time"
        )
    return found, None


def _shown_date(value: Any) -> str:
    shown = str(value).strip()
    if _PLAIN_DATE.fullmatch(shown):
        return repr(shown)
    return "a text" if isinstance(value, str) else kind_shown(value)


def _encoded(text: str | LongText) -> tuple[memoryview, bool]:
    """The bytes that a text is known by, and whether they are UTF-8, which has no lone surrogates."""
    if isinstance(text, LongText):
        return text.data, True
    try:
        return memoryview(text.encode("utf-8")), True
    except UnicodeEncodeError:
        return memoryview(text.encode("utf-8", "surrogatepass")), False
