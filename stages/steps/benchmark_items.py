"""The items of a benchmark: the texts of a JSONL file's lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from lineage.recipe import RecipeError, utf8_text
from lineage.secrets import without_secrets
from stages.reading.rows.row import names_shown
from stages.steps.textfiles import json_lines, read_named_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An item of a benchmark: the line of its file, from 1, and its text."""

    line: int
    text: str


def short_names(files: Sequence[str]) -> dict[str, str]:
    """The last part of each file's path, and the whole of it (without credentials) where two have the
    same."""
    last = {file: PurePosixPath(file).name for file in files}
    several = Counter(last.values())
    return {file: name if several[name] == 1 else without_secrets(file) for file, name in last.items()}


def read_items(file: str, field: str) -> list[str]:
    """The texts at `field` of a JSONL file's lines, in order; RecipeError names the line that has none."""
    return [item.text for item in read_lines(file, field)]


def read_lines(file: str, field: str) -> list[Item]:
    """The same with the lines on which they stand."""
    items = []
    text = utf8_text(read_named_file(file), file)
    for number, row in json_lines(text, file):
        value = row
        for part in field.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if not isinstance(value, str):
            there = f", only {names_shown(row)}" if isinstance(row, dict) else ""
            raise RecipeError(
                f"{file} line {number} has no text at {field!r}{there}: name the key of the text"
            )
        items.append(Item(line=number, text=value))
    return items
