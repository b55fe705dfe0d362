"""How a command prints its result: as one JSON document, or for people."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from pipeline.terminal import harmless_json, speaks_unicode

if TYPE_CHECKING:
    from rich.table import Table


_WIDE: Final = 10_000


def print_json(value: Any) -> None:
    """One JSON document on stdout, exact also where stdout takes ASCII alone."""
    in_ascii = not speaks_unicode(sys.stdout.encoding)
    sys.stdout.write(harmless_json(json.dumps(value, ensure_ascii=in_ascii, allow_nan=False)) + "\n")


def console() -> Console:
    """Where people read results. In a pipe or a file lines are as long as they are: wrapped ones cannot be
    searched."""
    is_wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=_WIDE if is_wide else None)


def titled_table(title: str, *columns: str) -> Table:
    """A table whose first column is words and whose others are figures; without names of columns, two and no
    head."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_header=any(columns))
    for index, column in enumerate(columns or ("", "")):
        table.add_column(column, justify="left" if index == 0 else "right")
    return table
