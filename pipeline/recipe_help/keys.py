"""Every key of the data and the training recipe, as the dataclasses of their tables declare it."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from lineage.recipe import as_plain
from pipeline.recipe.tables import PipelineRecipe
from stages.quality.rule_sets.catalogue import threshold_defaults
from trainer.model.config.sizes import model_names
from trainer.options import TrainRecipe

Kind = Literal["data", "train"]
SHAPES: Final[Mapping[Kind, type]] = {"data": PipelineRecipe, "train": TrainRecipe}

_SCALARS: Final = {str: "text", int: "whole number", float: "number", bool: "true or false"}
_UNITS: Final = {
    "batch": "sequences", "blocks": "blocks", "bytes": "bytes", "cpus": "processors", "epochs": "epochs",
    "every": "steps", "files": "files", "gbps": "gigabits/s", "gpus": "GPUs", "hours": "hours", "len": "tokens",
    "memory": "bytes", "ratio": "share", "score": "share", "seconds": "seconds", "shingle": "words", "steps": "steps",
    "teraflops": "teraflop/s", "tokens": "tokens", "validation": "share", "window": "steps", "workers": "processes",
}  # fmt: skip
"""What a number counts whose key ends in this word and names no unit of its own."""
_NAMES: Final[Mapping[str, Callable[[], Iterable[str]]]] = {
    "train.model": model_names, "mix.proxy.model": model_names,
}  # fmt: skip
"""The names that the value of a key can be, by the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeKey:
    """One key. `name` is dotted, lists of tables without their numbers, as in source.limit. `default` is what
    TOML would hold, None where the key has none or need not be given; `shown_default` is its text for
    people. `names`: values that name files shipped with Sluice."""

    recipe: Kind
    table: str
    name: str
    type: str
    is_required: bool
    default: Any
    shown_default: str
    allowed: str
    unit: str
    help: str
    source: str
    names: tuple[str, ...] = ()

    @property
    def own_name(self) -> str:
        """The name within its table."""
        return self.name.rsplit(".", 1)[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeTable:
    """One table: `name` is dotted, `header` as TOML writes it."""

    recipe: Kind
    name: str
    header: str
    keys: tuple[RecipeKey, ...]


def recipe_tables(recipe: Kind) -> list[RecipeTable]:
    """The tables of a recipe, each before those within it, in the order of their declaration."""
    return list(_tables(recipe, SHAPES[recipe], "", is_list=False))


def recipe_keys(prefix: str = "") -> list[RecipeKey]:
    """The keys whose names begin with `prefix`, which ends at a dot or anywhere within a word; of both
    recipes."""
    tables = [table for recipe in SHAPES for table in recipe_tables(recipe)]
    return [key for table in tables for key in table.keys if key.name.startswith(prefix.strip("[]"))]


def _tables(recipe: Kind, shape: type, name: str, *, is_list: bool) -> Iterator[RecipeTable]:
    hints = typing.get_type_hints(shape)
    fields = dataclasses.fields(shape)
    within = [(field, inner) for field in fields if (inner := inner_table(hints[field.name]))]
    only_tables = {field.name for field, inner in within if not inner.is_also_value}
    keys = [_key(recipe, name, field, hints[field.name]) for field in fields if field.name not in only_tables]
    if name:
        header = f"[[{name}]]" if is_list else f"[{name}]"
        yield RecipeTable(recipe=recipe, name=name, header=header, keys=tuple(keys))
    for field, inner in within:
        inner_name = f"{name}.{field.name}" if name else field.name
        inner_name += ".NAME" * inner.is_named
        yield from _tables(recipe, inner.shape, inner_name, is_list=inner.is_list)


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerTable:
    """A field that holds a table: one, a list of them, or a table of named ones; `is_also_value`: or a plain
    value."""

    shape: type
    is_list: bool = False
    is_named: bool = False
    is_also_value: bool = False


def inner_table(hint: Any) -> InnerTable | None:
    """The table that a field of this type holds, None where it holds none."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return InnerTable(shape=typing.cast(type, hint))
    if origin is tuple and dataclasses.is_dataclass(arguments[0]):
        return InnerTable(shape=typing.cast(type, arguments[0]), is_list=True)
    if origin is dict and dataclasses.is_dataclass(arguments[1]):
        return InnerTable(shape=typing.cast(type, arguments[1]), is_named=True)
    if origin in (types.UnionType, typing.Union):
        others = [argument for argument in arguments if argument is not types.NoneType]
        for argument in others:
            if found := inner_table(argument):
                return dataclasses.replace(found, is_also_value=len(others) > 1)
    return None


def _key(recipe: Kind, table: str, field: dataclasses.Field[Any], hint: Any) -> RecipeKey:
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    is_required = default is dataclasses.MISSING
    plain = None if is_required else as_plain(default)
    metadata = field.metadata
    return RecipeKey(
        recipe=recipe,
        table=table,
        name=f"{table}.{field.name}",
        type=type_text(hint),
        is_required=is_required,
        default=plain,
        shown_default=f"required without {unless}"
        if (unless := metadata.get("unless"))
        else _shown_default(table, field.name, plain, is_required=is_required),
        allowed=_allowed(metadata),
        unit=metadata.get("unit") or _unit(field.name, hint),
        help=metadata.get("help", ""),
        source=metadata.get("source", ""),
        names=tuple(_NAMES[name]()) if (name := f"{table}.{field.name}") in _NAMES else (),
    )


def _shown_default(table: str, name: str, plain: Any, *, is_required: bool) -> str:
    if is_required:
        return "required"
    by_variant = threshold_defaults(name) if table == "quality" else {}
    if by_variant:
        return default_by_variant(name)
    return "not given" if plain is None else value_text(plain)


def default_by_variant(name: str) -> str:
    """The defaults of a threshold of [quality]: the first variant's, then the variants where it is
    another."""
    by_variant = {variant: _default_text(value) for variant, value in threshold_defaults(name).items()}
    first = next(iter(by_variant.values()))
    groups: dict[str, list[str]] = {}
    for variant, text in by_variant.items():
        groups.setdefault(text, []).append(variant)
    others = [f"{', '.join(variants)}: {text}" for text, variants in groups.items() if text != first]
    return first + (f" ({'; '.join(others)})" if others else "")


def _default_text(value: float | None) -> str:
    return "by language" if value is None else f"{value:g}"


def value_text(plain: Any) -> str:
    """A plain value as TOML writes it in one line."""
    if isinstance(plain, bool):
        return str(plain).lower()
    if isinstance(plain, str):
        return _quoted(plain)
    if isinstance(plain, list):
        return f"[{', '.join(map(value_text, plain))}]"
    if isinstance(plain, dict):
        pairs = ", ".join(f"{name_text(name)} = {value_text(value)}" for name, value in plain.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    return str(plain)


def name_text(name: str) -> str:
    """A key, or one part of a dotted one, as TOML writes it: bare where it may be."""
    is_bare = name.isascii() and name.replace("-", "a").replace("_", "a").isalnum()
    return name if is_bare else _quoted(name)


def _quoted(text: str) -> str:
    # JSON's escapes are TOML's, but JSON leaves U+007F as it is, which TOML forbids.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def type_text(hint: Any) -> str:
    """A field's type in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _SCALARS:
        return _SCALARS[hint]
    if origin is Literal:
        return " | ".join(value_text(argument) for argument in arguments)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(type_text(argument) for argument in arguments if argument is not types.NoneType)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return f"list of {type_text(arguments[0])}"
    if origin is tuple:
        return f"[{', '.join(map(type_text, arguments))}]"
    if origin is dict:
        return f"table of name = {type_text(arguments[1])}"
    assert dataclasses.is_dataclass(hint), hint
    return "table"


def _allowed(metadata: Mapping[str, Any]) -> str:
    texts = [
        f"{words} {metadata[name]:,}"
        for name, words in (("at_least", "at least"), ("above", "more than"), ("at_most", "at most"))
        if metadata.get(name) is not None
    ]
    if metadata.get("choices"):
        texts.append(f"of {', '.join(map(value_text, metadata['choices']))}")
    return ", ".join(texts)


def _unit(name: str, hint: Any) -> str:
    numbers = {hint, *typing.get_args(hint)} & {int, float}
    return _UNITS.get(name.rsplit("_", 1)[-1], "") if numbers else ""
