"""docs/recipe.md, made of the same strings as the commands' answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pipeline.recipe_help.keys import SHAPES, Kind, RecipeKey, RecipeTable, recipe_tables
from pipeline.recipe_help.tables import example_of, paragraph_of

_TITLES: Final[dict[Kind, str]] = {"data": "The data recipe", "train": "The training recipe"}
_OPENING: Final = """# The recipe

A recipe is a TOML file of tables. `sluice run` reads a data recipe, which has `[[source]]`; `sluice train`, `plan` and
`mix` read a training recipe, which has `[train]`. Every key but the required ones has a default, and an unknown key is
an error. `--set key=value` changes a key of a call.

```
sluice recipe new fineweb --to my.toml     # a commented recipe; also text, train and mix
sluice recipe check my.toml                # its errors, with line and column
sluice recipe keys dedup                   # what this page says of a table or a key
sluice recipe diff recipes/crawl.toml my.toml      # the values that differ once defaults are filled in
sluice recipe schema data --to data.json           # JSON Schema, or train: editors complete and check a recipe by it
```

An editor with Taplo (in VS Code: Even Better TOML) takes the schema that the first line of a recipe names:
`#:schema ./data.json`. It marks unknown keys, wrong types, values out of range and unknown choices as they are written;
what several keys must hold together `sluice recipe check FILE` says.

`sluice recipe keys --markdown` writes this page (`make docs`)."""


def page() -> str:
    """The whole page as Markdown."""
    return "\n".join([_OPENING, *(line for kind in SHAPES for line in _of_recipe(kind))]) + "\n"


def _of_recipe(kind: Kind) -> Iterator[str]:
    yield f"\n## {_TITLES[kind]}"
    for table in recipe_tables(kind):
        yield from _of_table(table)


def _of_table(table: RecipeTable) -> Iterator[str]:
    place = (table.recipe, table.name)
    yield f"\n### `{table.header}`\n\n{paragraph_of(*place)}\n\n```toml\n{example_of(*place)}\n```\n"
    yield "| key | type | default | meaning |\n| --- | --- | --- | --- |"
    for key in table.keys:
        cells = (f"`{key.own_name}`", _cell(key.type), _default(key), _cell(meaning(key)))
        yield f"| {' | '.join(cells)} |"


def _default(key: RecipeKey) -> str:
    is_value = not key.is_required and key.default is not None
    return f"`{key.shown_default}`" if is_value else _cell(key.shown_default)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def meaning(key: RecipeKey) -> str:
    """The help of a key with its unit, what is allowed, and its source."""
    unit = "" if not key.unit or key.unit in key.help else f"in {key.unit}"
    parts = (key.help, unit, key.allowed, key.source and f"source: {key.source}")
    return "; ".join(part for part in parts if part)
