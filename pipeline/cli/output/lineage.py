"""Query the lineage store with SQL, read-only, or serve its page.

  sluice lineage OUT "SELECT rule, count(*) n FROM documents GROUP BY rule ORDER BY n DESC"
  sluice lineage OUT "SELECT * FROM steps" --json
  sluice lineage OUT "SELECT url, stage FROM documents" --csv-safe        for a spreadsheet
  sluice lineage OUT --serve                           the page of OUT (see `sluice page`)
  sluice lineage OUT --version 1 --serve               the page as of version 1, read-only

views: documents, edits, findings, placements, steps, step_rules, inputs, unreadable, purges, purged,
training_runs, training_segments, cache_sweeps, exports, reused_steps. `SELECT * FROM documents LIMIT 1` shows
the columns of a view. SQL reserves the column names at, by (purges, exports, cache_sweeps) and offset
(unreadable): write them in double quotes, as in "at", or with the view, as in purges.at."""

from __future__ import annotations

import argparse
import csv
import io
import re
import shutil
import sys
from collections.abc import Sequence
from typing import Final

from lineage.index.output_index import check_finished
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.cli.arguments import add_json
from pipeline.cli.output.page import add_serving, page_options
from pipeline.cli.printing import print_json
from pipeline.terminal import visible, without_formula

_SHOWN_ROWS = 200
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"")
_RESERVED: Final = {"at": "purges", "by": "purges", "offset": "unreadable"}
"""Columns whose names DuckDB reserves, each with a view that has it."""
_BARE: Final = re.compile(
    rf"(?<![.\w])(?<!order )(?<!group )(?<!partition )({'|'.join(_RESERVED)})(?!\w| ?\d)"
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", help="a finished run's output: a folder or an s3:// URL")
    parser.add_argument("sql", metavar="SELECT", nargs="?", help="one SELECT over the views")
    parser.add_argument(
        "--version", type=int, help="the version of the corpus (1 after the run; each purge adds 1)"
    )
    parser.add_argument(
        "--serve", action="store_true", help="serve the page on loopback and print its address"
    )
    add_serving(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print CSV with exact values")
    form.add_argument(
        "--csv-safe",
        action="store_true",
        help="print CSV for a spreadsheet, with an apostrophe before each text that looks like a formula",
    )
    add_json(form)


def run(options: argparse.Namespace) -> int:
    if options.serve == (options.sql is not None):
        raise RecipeError("give either a SELECT or --serve")
    check_finished(Folder(options.out))
    if options.serve:
        from pipeline.page.serve import serve

        return serve([Folder(options.out)], page_options(options, options.version), as_json=options.json)
    from lineage.store.queries.query import WrongQueryError, query

    try:
        result = query(Folder(options.out), options.sql, options.version)
        objects = result.objects() if options.json else []
    except WrongQueryError as error:
        raise RecipeError(f"{error}{_hint(options.sql, str(error))}") from error
    if options.json:
        print_json(objects)
    elif options.csv or options.csv_safe:
        _print_csv(result.columns, result.rows, safe=options.csv_safe)
    else:
        _print_table(result.columns, result.rows)
    return 0


def _hint(sql: str, error: str) -> str:
    """What to write in place of a column's name that DuckDB reserves: its message points behind it, and names
    another word."""
    found = _BARE.search(" ".join(_QUOTED.sub("", sql).lower().split()))
    if found is None or "syntax error" not in error:
        return ""
    name = found[0]
    qualified = f"{_RESERVED[name]}.{name}"
    return f'. The word {name} is reserved: write the column as "{name}" in double quotes, or as {qualified}'


def _print_csv(columns: tuple[str, ...], rows: Sequence[tuple[object, ...]], *, safe: bool) -> None:
    """In UTF-8 for a file or a pipe, and exact but for what `safe` changes; on a terminal as the terminal may
    be given it."""
    if safe:
        columns = tuple(map(without_formula, columns))
        rows = [
            tuple(without_formula(value) if isinstance(value, str) else value for value in row)
            for row in rows
        ]
    if sys.stdout.isatty():
        rows = [tuple(visible(value) if isinstance(value, str) else value for value in row) for row in rows]
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    writer = csv.writer(sys.stdout)
    writer.writerow(columns)
    writer.writerows(rows)


def _print_table(columns: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> None:
    """Aligned columns, a row a line: a pipe can cut. On a terminal that is too narrow for that, a field a
    line."""
    shown = [["" if value is None else _one_line(value) for value in row] for row in rows[:_SHOWN_ROWS]]
    numeric = [
        all(isinstance(row[i], (int, float)) or row[i] is None for row in rows[:_SHOWN_ROWS])
        for i in range(len(columns))
    ]
    widths = [max([len(name), *(len(row[i]) for row in shown)]) for i, name in enumerate(columns)]
    if sys.stdout.isatty() and sum(widths) + 2 * (len(widths) - 1) > shutil.get_terminal_size().columns:
        _print_fields([_one_line(name) for name in columns], shown)
    else:
        _print_aligned(columns, shown, widths, numeric)
    if len(rows) > _SHOWN_ROWS:
        print(f"… and {len(rows) - _SHOWN_ROWS:,} more rows (--csv or --json give all)")


def _print_fields(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """One field a line, rows apart by a line with their number."""
    width = max(map(len, names))
    for number, row in enumerate(rows, 1):
        print(f"row {number:,} ".ljust(width + 2, "-"))
        for name, value in zip(names, row, strict=True):
            print(f"{name.ljust(width)}  {value}".rstrip())


def _print_aligned(
    columns: Sequence[str], shown: Sequence[Sequence[str]], widths: Sequence[int], numeric: Sequence[bool]
) -> None:
    for line in [[_one_line(name) for name in columns], ["-" * width for width in widths], *shown]:
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        )
        print("  ".join(cells).rstrip())


def _one_line(value: object) -> str:
    """A value in one line: a URL from the open web must not steer a terminal."""
    return visible(str(value))
