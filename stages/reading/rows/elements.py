"""The fields of a row by their names, and the elements of the lists that a name leads into."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from stages.reading.options import (
    RowFields,
)
from stages.reading.rows.other_fields import (
    BadRowError,
    Keys,
    as_json_text,
    only_fields,
    with_field,
    without_field,
)

LIST: Final = "[]"
"""Behind the name of a field that is a list: its elements are meant."""
_MAX_REPEATED_BYTES: Final = 64 << 20
"""What the elements of a row's lists may repeat of its other fields. Past it these stand in the first
element's metadata alone: of a row with a million elements and a megabyte beside them, all would take a
terabyte."""
ID: Final = "id"
URL: Final = "url"
DATES: Final = ("captured_at", "date")


@dataclass(frozen=True, slots=True)
class LongText:
    """In the place of a text above `max_document_bytes`: its UTF-8, which no one makes a text of."""

    data: memoryview


class Element(NamedTuple):
    """A row with one element in the place of each list that the text lies in. `lists` are those: the keys of
    each, and the number of the element, from 0. The row itself has none."""

    row: Mapping[str, Any]
    lists: tuple[tuple[Keys, int], ...] = ()

    def num_open(self, keys: Keys) -> int:
        return sum(opened == keys for opened, _ in self.lists)


ABSENT: Final = object()


def next_step(parts: Keys, names: Container[str]) -> tuple[str, int, Keys] | None:
    """Where a path of these parts goes on among fields of these names: the field, how many lists are gone
    into there, and the parts behind it; None if nowhere. A field whose own name has dots or brackets goes
    before nested ones."""
    for num in range(len(parts), 0, -1):
        name, num_lists = ".".join(parts[:num]), 0
        while name not in names and name.endswith(LIST):
            name, num_lists = name.removesuffix(LIST), num_lists + 1
        if name in names:
            return name, num_lists, parts[num:]
    return None


def find_field(element: Element, name: str) -> tuple[Any, Keys, bool]:
    """The value of a field or ABSENT, its keys (none where it lies in a null), and whether it is a list that
    the name goes into and the element does not stand for. Called for every field of every row: the whole name
    is looked up first, and a path is made only where there is none."""
    row = element.row
    if name in row:
        return row[name], (name,), False
    if "." not in name and LIST not in name:
        return ABSENT, (), False
    value: Any = row
    keys: Keys = ()
    parts: Keys = tuple(name.split("."))
    while parts:
        if value is None or isinstance(value, BadRowError):
            return value, (), False
        step = next_step(parts, value) if isinstance(value, Mapping) else None
        if step is None:
            return ABSENT, (), False
        key, num_lists, parts = step
        value, keys = value[key], (*keys, key)
        num_open = element.num_open(keys)
        if num_lists > num_open:
            return value, keys, True
        if num_lists < num_open:
            return ABSENT, (), False
    return value, keys, False


class ElementBudget:
    """Bytes of a row's other fields that its elements may repeat."""

    def __init__(self) -> None:
        self._left = _MAX_REPEATED_BYTES

    def holds(self, fields: Mapping[str, Any], times: int) -> bool:
        """Whether so many copies of the fields fit, as JSON; they are taken then."""
        num_bytes = len(as_json_text(fields)) * times if fields else 0
        if num_bytes > self._left:
            return False
        self._left -= num_bytes
        return True


def elements_of(element: Element, fields: RowFields, budget: ElementBudget) -> Iterator[Element]:
    """The row once for each element of the lists that its text lies in. BadRowError if one of them is
    none."""
    value, keys, is_list = find_field(element, fields.text)
    if not is_list:
        yield element
        return
    if value is None:
        return
    if isinstance(value, str | bytes | LongText) or not isinstance(value, Sequence):
        raise BadRowError(
            f"the field {'.'.join(keys)!r} is {kind_shown(value)}: expected a list (source.text_field)"
        )
    with_each = without_field(element.row, keys)
    first = with_each
    if len(value) > 1 and not budget.holds(with_each, len(value) - 1):
        with_each = only_fields(with_each, _named(element, fields))
        if not budget.holds(with_each, len(value) - 1):
            raise BadRowError(
                f"its id, URL and date would be repeated {len(value)} times: more than {_MAX_REPEATED_BYTES} bytes"
            )
    for index in range(len(value)):
        each = value[index]
        row = with_field(with_each if index else first, keys, each)
        yield from elements_of(Element(row, (*element.lists, (keys, index))), fields, budget)


def _named(element: Element, fields: RowFields) -> list[Keys]:
    """The keys of what a document takes from its row besides the text."""
    names = (fields.id or ID, fields.url or URL, *(DATES if fields.date is None else (fields.date,)))
    return [keys for _, keys, _ in (find_field(element, name) for name in names) if keys]


def kind_shown(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"
