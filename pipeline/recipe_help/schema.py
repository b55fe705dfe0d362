"""JSON Schema (draft 2020-12) of a recipe, of the same dataclasses that its reader reads.

An editor completes and checks a recipe by it. It knows keys, types, bounds and choices, and not what several
keys must hold together, which `sluice recipe check` does. JSON has one kind of number, so that 2.0 is a whole
number there, and has neither infinity nor NaN."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Final, Literal

from pipeline.recipe_help.keys import SHAPES, Kind, inner_table, recipe_tables
from pipeline.recipe_help.page import meaning
from pipeline.recipe_help.tables import paragraph_of

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_TITLES: Final[Mapping[Kind, str]] = {
    "data": "A data recipe of Sluice",
    "train": "A training recipe of Sluice",
}
_TYPES: Final = {str: "string", int: "integer", float: "number", bool: "boolean"}
_LIMITS: Final = {"minimum": "at_least", "maximum": "at_most", "exclusiveMinimum": "above"}


def recipe_schema(kind: Kind | None = None) -> dict[str, object]:
    """The schema of a kind of recipe; None: of either, told apart by [train] as `sluice recipe check`
    does."""
    if kind is None:
        schemas = {each: recipe_schema(each) for each in SHAPES}
        for schema in schemas.values():
            del schema["$schema"]
        return {
            "$schema": DIALECT,
            "title": "A recipe of Sluice",
            "if": {"required": ["train"]},
            "then": {"$ref": "#/$defs/train"},
            "else": {"$ref": "#/$defs/data"},
            "$defs": schemas,
        }
    return {"$schema": DIALECT, "title": _TITLES[kind], **_Schemas(kind).table(SHAPES[kind], "")}


class _Schemas:
    """The schemas of one recipe's tables and keys."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._keys = {key.name: key for table in recipe_tables(kind) for key in table.keys}

    def table(self, shape: type, name: str) -> dict[str, object]:
        """A table; `name` is dotted, as in RecipeTable. A key that is not one of its fields is refused."""
        hints = typing.get_type_hints(shape)
        fields = dataclasses.fields(shape)
        required = [
            field.name
            for field in fields
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        ]
        either = [
            {"required": [name]}
            for field in fields
            if (other := field.metadata.get("unless"))
            for name in (field.name, other)
        ]
        return {
            "type": "object",
            **({"description": paragraph_of(self._kind, name)} if name else {}),
            "properties": {field.name: self._field(field, hints[field.name], name) for field in fields},
            **({"required": required} if required else {}),
            **({"anyOf": either} if either else {}),
            "additionalProperties": False,
        }

    def _field(self, field: dataclasses.Field[Any], hint: Any, table: str) -> dict[str, object]:
        name = f"{table}.{field.name}" if table else field.name
        schema = self._value(hint, field.metadata, name)
        key = self._keys.get(name)
        if key is None:  # it holds a table, whose paragraph describes it
            return schema
        by_variant = key.default is None and not key.is_required and key.shown_default != "not given"
        description = meaning(key) + (f"; default: {key.shown_default}" if by_variant else "")
        default = {} if key.default is None else {"default": key.default}
        return {**schema, "description": description, **default}

    def _value(self, hint: Any, bounds: Mapping[str, Any], name: str) -> dict[str, object]:
        """What `lineage.recipe` takes for a field of this type with these bounds."""
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (types.UnionType, typing.Union):
            # None is a key that is left out: TOML has no null.
            of = [
                self._value(argument, bounds, name)
                for argument in arguments
                if argument is not types.NoneType
            ]
            return of[0] if len(of) == 1 else {"anyOf": of}
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
            return {"type": "array", "items": self._value(arguments[0], bounds, name)}
        if origin is tuple:
            items = [self._value(argument, bounds, name) for argument in arguments]
            return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        if origin is dict:
            inner = inner_table(hint)
            names = (
                {"propertyNames": {"enum": list(bounds["choices"])}}
                if inner and bounds.get("choices")
                else {}
            )
            of_value = self._value(arguments[1], bounds, f"{name}.NAME" if inner else name)
            return {"type": "object", **names, "additionalProperties": of_value}
        if dataclasses.is_dataclass(hint):
            return self.table(typing.cast(type, hint), name)
        return _scalar(hint, bounds)


def _scalar(hint: Any, bounds: Mapping[str, Any]) -> dict[str, object]:
    schema: dict[str, object] = {"type": _TYPES[hint]}
    if hint in (int, float):
        limits = {words: bounds.get(name) for words, name in _LIMITS.items() if bounds.get(name) is not None}
        # A whole number has 64 bits.
        schema |= ({"minimum": -(1 << 63), "maximum": (1 << 63) - 1} if hint is int else {}) | limits
    if bounds.get("choices"):
        schema["enum"] = list(bounds["choices"])
    return schema
