"""What a purge is asked for by what people have: a list of ids or URLs, a condition, a source, an input file."""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lineage.ids import parse_id
from lineage.index.output_index import read_index
from lineage.purge.plan import PlanHooks, PurgeMatch
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, split
from lineage.store.lookup import Lookup
from lineage.store.query import WrongQueryError, query
from lineage.trace.tracer import UnknownError

_COLUMNS = ("doc_id", "id", "url")


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeTargets:
    """A match of documents that the output has; `unknown` are listed names of which it has none."""

    match: PurgeMatch
    unknown: tuple[str, ...] = ()


def listed_targets(out: Folder, path: str, hooks: PlanHooks) -> PurgeTargets:
    """The documents that a .txt, .csv or .parquet file lists: by ids, or by URLs in any spelling.

    A text has a name a line; lines that are empty or begin with # do not count. A table has a column doc_id, id or url;
    a CSV of one column needs no header. RecipeError where the file cannot be read or mixes ids and URLs, UnknownError
    where the output has none of them."""
    names = list(dict.fromkeys(_names(path)))
    if not names:
        raise RecipeError(f"--from {path}: it lists nothing, expected ids or URLs")
    are_ids = [_is_id(name) for name in names]
    if any(are_ids) and not all(are_ids):
        other = names[are_ids.index(False)]
        raise RecipeError(f"--from {path}: it lists ids and {other!r}, which is none: give ids or URLs, in two lists")
    lookup = Lookup(out)
    if all(are_ids):
        ids = {parse_id(name): name for name in names}
        there = {row.doc_id for row in lookup.documents(sorted(ids))}
        known = [doc_id.hex() for doc_id in ids if doc_id in there]
        unknown = tuple(name for doc_id, name in ids.items() if doc_id not in there)
    else:
        known = [name for name in names if _has_url(lookup, name, hooks)]
        unknown = tuple(name for name in names if name not in set(known))
    if not known:
        raise UnknownError(f"--from {path}: none of its {len(names):,} ids or URLs is in {out.url}")
    kind: Any = "doc" if all(are_ids) else "url"
    return PurgeTargets(match=PurgeMatch(kind=kind, values=tuple(known), named_by=f"--from {path}"), unknown=unknown)


def targets_where(out: Folder, condition: str) -> PurgeTargets:
    """The documents for which a SQL condition over the view `documents` holds, as in host = 'example.org'.

    RecipeError where it is no condition, UnknownError where it holds for none."""
    return _by_condition(out, condition, named_by=f"--where {condition}")


def targets_of_source(out: Folder, source: str) -> PurgeTargets:
    """All documents of a source. RecipeError where the output has no such source."""
    sources = sorted({part.source for part in read_index(out).documents})
    if source not in sources:
        raise RecipeError(f"--source {source!r}: {out.url} has {', '.join(map(repr, sources))}")
    return _by_condition(out, f"source = {_literal(source)}", named_by=f"--source {source}")


def targets_of_file(out: Folder, file: str) -> PurgeTargets:
    """All documents of an input file: its name as in the column warc_file, or a path that ends in it. RecipeError where
    no input has that name, or several have."""
    names = [str(row[0]) for row in query(out, "SELECT DISTINCT warc_file FROM documents ORDER BY 1").rows]
    found = [name for name in names if file == name] or [name for name in names if file.endswith(f"/{name}")]
    if len(found) != 1:
        near = found or difflib.get_close_matches(file, names, n=3) or names[:3]
        raise RecipeError(
            f"--warc {file!r} names {len(found)} input files of {out.url}, expected one: such as {', '.join(near)}"
        )
    return _by_condition(out, f"warc_file = {_literal(found[0])}", named_by=f"--warc {found[0]}")


def _by_condition(out: Folder, condition: str, *, named_by: str) -> PurgeTargets:
    try:
        # On lines of its own, so that a comment in it ends with it.
        rows = query(out, f"SELECT DISTINCT doc_id FROM documents WHERE (\n{condition}\n) ORDER BY doc_id").rows
    except WrongQueryError as error:
        raise RecipeError(f"{named_by}: expected a condition over the view documents ({error})") from error
    if not rows:
        raise UnknownError(f"{named_by}: it holds for no document of {out.url}")
    return PurgeTargets(match=PurgeMatch(kind="doc", values=tuple(str(row[0]) for row in rows), named_by=named_by))


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _has_url(lookup: Lookup, url: str, hooks: PlanHooks) -> bool:
    wanted = hooks.url_key(url)
    rows = [] if wanted is None else lookup.by_url_key(wanted)
    return any(row.url and hooks.url_key(row.url) == wanted for row in rows)


def _is_id(name: str) -> bool:
    try:
        parse_id(name)
    except ValueError:
        return False
    return True


def _names(path: str) -> list[str]:
    folder, name = split(path)
    ending = name.lower().rsplit(".", 1)[-1]
    try:
        data = folder.read(name)
        if ending == "parquet":
            return _of_table(path, pq.read_table(io.BytesIO(data)))
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise RecipeError(f"--from {path} cannot be read: {error}") from error
    if ending == "csv":
        return _of_rows(path, list(csv.reader(io.StringIO(text))))
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _of_rows(path: str, rows: Sequence[Sequence[str]]) -> list[str]:
    rows = [[cell.strip() for cell in row] for row in rows if any(cell.strip() for cell in row)]
    if not rows:
        return []
    header = [cell.lower() for cell in rows[0]]
    column = next((header.index(name) for name in _COLUMNS if name in header), None)
    if column is None:
        if len(rows[0]) != 1:
            raise _no_column(path, rows[0])
        return [row[0] for row in rows]
    return [row[column] for row in rows[1:] if len(row) > column and row[column]]


def _of_table(path: str, table: pa.Table) -> list[str]:
    column = next((name for name in _COLUMNS if name in table.column_names), None)
    if column is None:
        raise _no_column(path, table.column_names)
    values = [value for value in table[column].to_pylist() if value is not None]
    return [value.hex() if isinstance(value, bytes) else str(value) for value in values]


def _no_column(path: str, names: Sequence[str]) -> RecipeError:
    return RecipeError(f"--from {path}: expected a column {', '.join(_COLUMNS)}; it has {', '.join(names)}")
