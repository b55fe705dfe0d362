"""A paragraph and an example for each table of a recipe (tables.toml): what docs/recipe.md and `sluice recipe`
show beside keys."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

from pipeline.recipe_help.keys import Kind

_FILE: Final = Path(__file__).with_name("tables.toml")


def _read(part: str) -> Mapping[tuple[Kind, str], str]:
    kinds = cast(dict[Kind, dict[str, dict[str, str]]], tomllib.loads(_FILE.read_text(encoding="utf-8")))
    return {(kind, name): parts[part] for kind, tables in kinds.items() for name, parts in tables.items()}


PARAGRAPHS: Final = _read("paragraph")
EXAMPLES: Final = _read("example")


def paragraph_of(kind: Kind, table: str) -> str:
    """What a table is, for its page and for editors; AssertionError where nothing of it is written."""
    assert (kind, table) in PARAGRAPHS, _lacks(kind, table, "paragraph")
    return PARAGRAPHS[kind, table]


def example_of(kind: Kind, table: str) -> str:
    """A table as a recipe has it. AssertionError as of `paragraph_of`."""
    assert (kind, table) in EXAMPLES, _lacks(kind, table, "example")
    return EXAMPLES[kind, table]


def _lacks(kind: Kind, table: str, part: str) -> str:
    return (
        f'pipeline/recipe_help/tables.toml has no {part} in [{kind}."{table}"]: write one for the new table'
    )
