"""Jupyter notebooks as their cells: a script in the percent format of Jupytext, which StarCoder's scripts
come from.

`# %%` stands before each cell; a cell of Markdown or raw text is commented out behind `# %% [markdown]`.
Outputs and metadata go: they are pictures and tables in base64 and HTML. Li et al. 2023 (StarCoder), section
3.2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stages.composition import clean_text
from stages.nesting import read_json


class NoNotebookError(ValueError):
    """A text that is no notebook."""


def cells(text: str) -> tuple[str, int]:
    """The notebook's cells as one script, a clean text, and how many they are; NoNotebookError for another
    text. Empty cells go."""
    try:
        notebook: Any = read_json(text)
    except ValueError as error:
        raise NoNotebookError(str(error)) from error
    found = list(_cells(notebook))
    # JSON's escapes bring what cleaning took out of the file's own text, such as lone surrogates.
    script, _ = clean_text("\n\n".join(found))
    return script, len(found)


def _cells(notebook: Any) -> Iterator[str]:
    if not isinstance(notebook, Mapping):
        raise NoNotebookError("no object")
    # Version 3 of the format has the cells of each worksheet apart, and their code under `input`.
    sheets = notebook.get("worksheets", [])
    lists = (
        [notebook.get("cells")] if "cells" in notebook else [_of(sheet, "cells") for sheet in _list(sheets)]
    )
    if not lists:
        raise NoNotebookError("no cells")
    for cell in (cell for each in lists for cell in _list(each)):
        source = _source(_of(cell, "source") if _of(cell, "source") is not None else _of(cell, "input"))
        if not source.strip():
            continue
        kind = _of(cell, "cell_type")
        if kind == "code":
            yield f"# %%\n{source.rstrip()}"
        else:
            lines = (f"# {line}".rstrip() for line in source.rstrip().split("\n"))
            yield "# %% [markdown]\n" + "\n".join(lines)


def _of(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _source(value: Any) -> str:
    if isinstance(value, list):
        return "".join(line for line in value if isinstance(line, str))
    return value if isinstance(value, str) else ""
