"""Values of Parquet columns in Python: texts, lists that are read an element at a time, and what they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from stages.reading.rows.elements import LongText, next_step
from stages.reading.rows.other_fields import BadRowError, Keys
from stages.reading.rows.row import MAX_OTHER_BYTES

_NESTED_BYTES: Final = 16
"""What a value within a list, map or struct counts for, besides its own bytes."""
BAD_DATA = (pa.ArrowException, OSError, ValueError, OverflowError, LookupError)
"""What pyarrow raises for damaged pages and for values that Python cannot hold, such as broken UTF-8."""


def value_at(values: pa.Array, index: int, num_lists: int, parts: Keys, longest: int) -> Any:
    """A value as documents_from_row takes it, which lies in lists and behind further parts of a name: a list
    as the sequence of its elements, which are made one at a time."""
    scalar = values[index]
    if not scalar.is_valid:
        return None
    if num_lists:
        return _Elements(stored_as(scalar.values), num_lists - 1, parts, longest)
    return _text(scalar, longest)


class _Elements(Sequence[Any]):
    """The elements of a list that a text lies in: texts, lists of them, or structs as mappings; None for
    null. In the place of one that cannot be read stands a BadRowError."""

    def __init__(self, values: pa.Array, num_lists: int, parts: Keys, longest: int) -> None:
        self._values, self._num_lists, self._parts, self._longest = values, num_lists, parts, longest
        self._others: dict[str, pa.Array] = {}
        self._inner: pa.Array = None
        self._key = ""
        self._are_large = False
        if not num_lists and parts:
            children = {field.name: values.field(number) for number, field in enumerate(values.type)}
            step = next_step(parts, children)
            assert step is not None, "the schema has been looked at"
            self._key, self._num_inner, self._further = step
            self._inner = stored_as(children.pop(self._key))
            self._others = children
            self._are_large = sum(map(weight_of, children.values())) > MAX_OTHER_BYTES

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Any:
        try:
            if self._inner is None:
                return value_at(self._values, index, self._num_lists, self._parts, self._longest)
            return self._struct_at(index) if self._values[index].is_valid else None
        except BAD_DATA as error:
            return BadRowError(f"a value that cannot be read: {type(error).__name__}")

    def _struct_at(self, index: int) -> Any:
        weight = (
            sum(weight_of(column.slice(index, 1)) for column in self._others.values())
            if self._are_large
            else 0
        )
        if weight > MAX_OTHER_BYTES:
            return BadRowError(f"its other fields take {weight} bytes: expected at most {MAX_OTHER_BYTES}")
        found = {name: plain_value(column[index]) for name, column in self._others.items()}
        found[self._key] = self._inner_at(index)
        return found

    def _inner_at(self, index: int) -> Any:
        """What the name goes on with in a struct: a text, a list, or another struct on the way to one of
        them."""
        if self._num_inner or not self._further:
            return value_at(self._inner, index, self._num_inner, self._further, self._longest)
        return _Elements(self._inner, 0, self._further, self._longest)[index]


def _text(scalar: pa.Scalar, longest: int) -> str | bytes | LongText:
    """The text of a valid value; as bytes where it is none in UTF-8, or is not marked as one."""
    if isinstance(scalar, pa.DictionaryScalar):
        scalar = scalar.value
        if not scalar.is_valid:
            return ""
    data = scalar.as_buffer()
    if data.size > longest:
        return LongText(memoryview(data))
    try:
        found: str | bytes = scalar.as_py()
    except UnicodeDecodeError:
        found = data.to_pybytes()
    return found


def stored_as(column: pa.Array) -> pa.Array:
    """What a column of an extension type is stored as; any other as it is."""
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def without_column(column: pa.StructArray, path: tuple[str, ...]) -> pa.StructArray:
    """A struct column less a field in it."""
    children = {}
    for number, field in enumerate(column.type):
        child = column.field(number)
        if field.name != path[0]:
            children[field.name] = child
        elif path[1:]:
            children[field.name] = without_column(child, path[1:])
    if not children:
        return pa.array(
            [{}] * len(column), pa.struct([]), mask=pc.is_null(column).to_numpy(zero_copy_only=False)
        )
    return pa.StructArray.from_arrays(list(children.values()), names=list(children), mask=pc.is_null(column))


def put_at(row: dict[str, object], path: Keys, value: Any) -> None:
    """Set a field, in the structs that it lies in; where one of those is null, nothing."""
    for part in path[:-1]:
        inner = row.get(part)
        if not isinstance(inner, dict):
            return
        row = inner
    row[path[-1]] = value


def plain_value(scalar: pa.Scalar) -> Any:
    """The value in Python; a date or instant that Python has none for (a year above 9999, as tables end what
    has no end, or an unknown time zone) as a text, in UTC: a row is not lost for it."""
    try:
        return scalar.as_py()
    except (ArithmeticError, ValueError, LookupError):
        if pa.types.is_timestamp(scalar.type):
            return scalar.cast(pa.timestamp(scalar.type.unit)).cast(pa.string()).as_py()
        if pa.types.is_date(scalar.type):
            return scalar.cast(pa.string()).as_py()
        raise


def weight_of(column: pa.Array) -> int:
    """About how many bytes the values of a column take in Python, without making them."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        lengths = (
            pc.take(pc.binary_length(column.dictionary), column.indices)
            if _is_binary(kind.value_type)
            else None
        )
        return int(pc.sum(lengths).as_py() or 0) if lengths is not None else int(column.indices.nbytes)
    if pa.types.is_struct(kind):
        children: list[int] = [weight_of(child) for child in column.flatten()]
        return sum(children) + _NESTED_BYTES * len(column) * int(kind.num_fields)
    if _is_list(kind):
        values = _entries(column) if pa.types.is_map(kind) else column.flatten()
        return weight_of(values) + _NESTED_BYTES * len(values)
    return int(column.nbytes)


def _entries(column: pa.MapArray) -> pa.StructArray:
    """The keys and values of a column of maps, which pyarrow's `flatten` is not for."""
    offsets = column.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return column.values.slice(first, last - first)


def _is_binary(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


def _is_list(kind: pa.DataType) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_map)
    return any(test(kind) for test in tests)
