"""`sluice recipe new`: a named recipe with every key of its tables, each with its help."""

from __future__ import annotations

import textwrap
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from lineage.recipe import RecipeError, parse_table, with_overrides
from pipeline.recipe.load import differing_keys
from pipeline.recipe_help.check import kind_of
from pipeline.recipe_help.keys import (
    SHAPES,
    RecipeKey,
    RecipeTable,
    name_text,
    recipe_tables,
    value_text,
)
from pipeline.recipe_help.named import template
from pipeline.recipe_help.tables import PARAGRAPHS
from stages.quality.rule_sets.catalogue import threshold_defaults

_WIDTH: Final = 120

_Entry = tuple[RecipeTable, str, Mapping[str, Any]]
"""A table, its dotted name as TOML writes it, and what it holds."""


def new_recipe(name: str, overrides: Sequence[str] = ()) -> str:
    """The text of the recipe `name` with some keys changed; RecipeError where the changed recipe is wrong,
    or where the text would not hold each of its values."""
    named = template(name)
    plain, kind = with_overrides(named.tables, overrides), kind_of(named.tables)
    parse_table(typing.cast(Any, SHAPES[kind]), plain)
    tables = {table.name: table for table in recipe_tables(kind)}
    lines = textwrap.wrap(named.comment, _WIDTH - 2)
    lines = [*(f"# {line}" for line in lines), "# A key behind a # has the value that it has when left out."]
    written = {key: _entries(tables, key, key, value) for key, value in plain.items()}
    lines += [f"{key} = {value_text(plain[key])}" for key, entries in written.items() if not entries]
    lines += [line for entries in written.values() for entry in entries for line in _of_table(tables, *entry)]
    absent = [table.header for name, table in tables.items() if name.split(".")[0] not in plain]
    if absent:
        rest = textwrap.wrap(f"Also: {', '.join(absent)}; see `sluice recipe keys`.", _WIDTH - 2)
        lines += ["", *(f"# {line}" for line in rest)]
    if named.rest:
        lines += ["", *named.rest]
    text = "\n".join(lines) + "\n"
    _check_holds(text, plain)
    return text


def _entries(tables: Mapping[str, RecipeTable], name: str, shown: str, value: Any) -> list[_Entry]:
    """The tables of which a value consists, `name` and `shown` being its own name; none where it stands in
    one line: a plain value, an empty list of tables, an empty table of named ones."""
    if named := tables.get(f"{name}.NAME"):
        return [(named, f"{shown}.{name_text(chosen)}", entry) for chosen, entry in value.items()]
    if name not in tables or not isinstance(value, (dict, list)):
        return []
    return [(tables[name], shown, entry) for entry in (value if isinstance(value, list) else [value])]


def _of_table(
    tables: Mapping[str, RecipeTable], table: RecipeTable, shown: str, entry: Mapping[str, Any]
) -> Iterator[str]:
    yield ""
    yield from (
        f"# {line}" for line in textwrap.wrap(PARAGRAPHS.get((table.recipe, table.name), ""), _WIDTH - 2)
    )
    yield table.header.replace(table.name, shown)
    within = {
        key: _entries(tables, f"{table.name}.{key}", f"{shown}.{key}", value) for key, value in entry.items()
    }
    for key in table.keys:
        if not within.get(key.own_name):
            yield from _of_key(key, entry, table.name)
    # A list of tables that is empty has neither a key among the table's own nor a header.
    own_names = {key.own_name for key in table.keys}
    for name in (name for name, entries in within.items() if not entries and name not in own_names):
        yield f"{name} = {value_text(entry[name])}"
    for entries in within.values():
        for found in entries:
            yield from _of_table(tables, *found)


def _of_key(key: RecipeKey, entry: Mapping[str, Any], table: str) -> Iterator[str]:
    if key.own_name in entry:
        yield from _commented(f"{key.own_name} = {value_text(entry[key.own_name])}", key)
        return
    default = key.default
    if table == "quality":
        variant = entry.get("variant", "datatrove")
        by_variant = threshold_defaults(key.own_name)
        if by_variant and variant not in by_variant:
            return
        default = by_variant.get(variant, default)
        default = (
            int(default) if default is not None and by_variant and key.type == "whole number" else default
        )
        if by_variant and default is None:
            yield from _commented(f"# {key.own_name}: by language", key)
            return
    if default is None:
        yield from _commented(f"# {key.own_name}: not given", key)
    else:
        yield from _commented(f"#{key.own_name} = {value_text(default)}", key)


def _check_holds(text: str, plain: Mapping[str, Any]) -> None:
    try:
        text.encode()
        held = tomllib.loads(text)
    except ValueError as error:  # a lone surrogate, as of an argument that is not UTF-8
        raise RecipeError(f"what --set gives cannot be written as TOML: {error}") from error
    lost = differing_keys(dict(plain), held, ignore=frozenset())
    if lost:
        raise RecipeError(
            f"a value would not be in the file as given: {lost[0].partition(' now and was ')[0]}"
        )


def _commented(line: str, key: RecipeKey) -> Iterator[str]:
    """A line with the key's help behind it, or above it where there is no room."""
    beside = f"{line:<40}  # {key.help}" if key.help else line
    if len(beside) <= _WIDTH:
        yield beside
        return
    yield from (f"# {part}" for part in textwrap.wrap(key.help, _WIDTH - 2))
    yield line
