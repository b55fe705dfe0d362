"""Frozen dataclasses that are kept as JSON objects: markers, run.json, entries of index.json, evidence of a
scan."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from itertools import repeat
from types import UnionType
from typing import Any, Final, Self, Union, get_args, get_origin, get_type_hints

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
"""A value of JSON."""

_JSON_NAME: Final = "json_name"
_LEFT_OUT: Final = "left_out"


def finite(value: float | None) -> float | None:
    """A number as JSON has it: null where it is not finite."""
    return value if value is None or math.isfinite(value) else None


def finite_values(value: Any) -> Any:
    """A value with null for each number in it that JSON does not have, and a list for each tuple."""
    if isinstance(value, dict):
        return {name: finite_values(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_values(one) for one in value]
    return finite(value) if isinstance(value, float) else value


def json_name(name: str) -> Any:
    """A field whose key in JSON is `name`, where that differs from the field's own name."""
    return field(metadata={_JSON_NAME: name})


def left_out_at(default: Any) -> Any:
    """A field that is left out of the JSON if it equals `default`."""
    return field(default=default, metadata={_LEFT_OUT: True})


class JsonRecord:
    """The base of a frozen dataclass whose fields are plain values, mappings of these, dataclasses, named
    tuples, or tuples of any of these.

    `from_json` takes every key of `to_json` and no other: a key too many, or one missing whose field has no
    default, raises TypeError, as a misspelt field does at construction. Types of plain values are not
    checked: the files are our own, under checksums or in work/."""

    __slots__ = ()

    def to_json(self) -> dict[str, object]:
        """An object for `json.dumps`, its keys in the order of the fields."""
        plain: dict[str, object] = _to_plain(self)
        return plain

    @classmethod
    def from_json(cls, plain: object) -> Self:
        """The record that `to_json` gave."""
        record: Self = _from_plain(cls, plain)
        return record


def _to_plain(value: Any) -> Any:
    if is_dataclass(value):
        return {_key(one): _to_plain(getattr(value, one.name)) for one in fields(value) if _has(value, one)}
    if isinstance(value, (tuple, list)):
        return [_to_plain(one) for one in value]
    return {key: _to_plain(one) for key, one in value.items()} if isinstance(value, Mapping) else value


def _from_plain(shape: Any, plain: Any) -> Any:
    if is_dataclass(shape):
        return _dataclass_from_plain(shape, plain)
    if get_origin(shape) is tuple:
        first, *others = get_args(shape)
        return tuple(map(_from_plain, repeat(first) if others == [...] else (first, *others), plain))
    if get_origin(shape) is Mapping:
        return {key: _from_plain(get_args(shape)[1], one) for key, one in plain.items()}
    if isinstance(shape, type) and issubclass(shape, tuple):
        return shape(*plain)
    is_optional = get_origin(shape) in (Union, UnionType)
    optional = [
        one for one in get_args(shape) if is_optional and (is_dataclass(one) or get_origin(one) is tuple)
    ]
    return _from_plain(_fitting(optional, plain), plain) if optional and plain is not None else plain


def _fitting(shapes: list[Any], plain: Any) -> Any:
    """Of several dataclasses the one with these keys."""
    return (
        shapes[0]
        if len(shapes) == 1
        else next(one for one in shapes if _fields_by_key(one)[0].keys() == plain.keys())
    )


def _dataclass_from_plain(shape: Any, plain: object) -> Any:
    if not isinstance(plain, Mapping):
        raise TypeError(f"{shape.__name__} is an object in JSON, found {plain!r:.200}")
    names, shapes = _fields_by_key(shape)
    values = ((str(key), value) for key, value in plain.items())
    return shape(**{names.get(key, key): _from_plain(shapes.get(key), value) for key, value in values})


@functools.cache
def _fields_by_key(shape: Any) -> tuple[dict[str, str], dict[str, object]]:
    """The names and the types of a dataclass's fields, by their keys in JSON."""
    hints = get_type_hints(shape)
    return {_key(one): one.name for one in fields(shape)}, {
        _key(one): hints[one.name] for one in fields(shape)
    }


def _has(value: Any, one: Any) -> bool:
    return not one.metadata.get(_LEFT_OUT) or getattr(value, one.name) != one.default


def _key(one: Any) -> str:
    return str(one.metadata.get(_JSON_NAME, one.name))
