"""What a purge is asked for by what people have: a list of ids or URLs, a condition, a source, an input
file."""

from __future__ import annotations

import csv
import difflib
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from lineage.ids import ID_BYTES, parse_id
from lineage.index.output_index import read_index
from lineage.pages import page_of
from lineage.purge.plan import PurgeMatch
from lineage.recipe import RecipeError, errors_about, utf8_text
from lineage.secrets import without_secrets
from lineage.storage.folder import Folder, is_remote, local_path
from lineage.store.delta import read_table
from lineage.store.lookup import Lookup
from lineage.store.queries.query import WrongQueryError, query
from lineage.store.queries.views import text_literal
from lineage.trace.nearest import nearest
from lineage.trace.tracer import UnknownError
from pipeline.inputs.files import may_be_called
from stages.steps.textfiles import json_lines, read_named_file, without_packing

_ID_COLUMNS: Final = ("doc_id", "id")
_URL_COLUMN: Final = "url"
_ENDINGS: Final = frozenset({"", "txt", "list", "lst", "csv", "tsv", "jsonl", "ndjson", "json", "parquet"})
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:\S", re.ASCII | re.IGNORECASE)
_EDGES: Final = " \t\r\n\x0b\x0c\u00a0\u200b\u2028\u2029\ufeff"
"""What stands around the entries of lists that programs export."""
_JSON_EDGES: Final = b"\xef\xbb\xbf \t\r\n"
_MOST_WITH_NEAREST: Final = 100
"""Unknown names for which the nearest is looked up: a list may hold millions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownName:
    """An id or URL of a list that the output has not got."""

    name: str
    nearest: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeTargets:
    """A match of documents that the output has; `unknown` are listed names of which it has none, each with
    the recorded ones that are most like it (of the first few)."""

    match: PurgeMatch
    unknown: tuple[UnknownName, ...] = ()


def listed_targets(out: Folder, path: str) -> PurgeTargets:
    """The documents that a file lists, by ids or by URLs in any spelling; its ending says what it is.

    A text has a name a line; lines that are empty or begin with # do not count. A table (CSV, TSV, JSON lines, a
    JSON list, Parquet) has a column doc_id, id or url, and with an id and url a row without id is named by its
    URL; a CSV of one column needs no header. An empty JSON list, as `sluice rights` writes where nothing is denied,
    names nothing. RecipeError where the file cannot be read or has another ending, a
    row names nothing, or what is neither id nor URL, or has too many cells, or ids and URLs stand in one column;
    UnknownError where the output has none of them."""
    listed = list(dict.fromkeys(_names(path)))
    if (
        not listed and list_ending(path) == "json"
    ):  # a plan by which nothing is to go, as `sluice rights` writes it
        return PurgeTargets(match=PurgeMatch(kind="scan", values=(), named_by=f"--from {path}"))
    if not listed:
        raise RecipeError(f"--from {path}: it lists nothing, expected ids or URLs")
    lookup = Lookup(out)
    by_url = lookup.of_urls([name.value for name in listed if not _is_id(name.value)])
    for name in listed:
        # To say that the output has not got it would be no answer.
        if not (_is_id(name.value) or by_url.get(name.value) or _is_url(name.value)):
            raise RecipeError(
                f"--from {name.place}: {name.value[:200]!r} is neither an id (32 hexadecimal digits) nor a URL:"
                " mend the entry or take it out"
            )
    named = [name.value for name in listed if not name.in_place_of_id]
    others = [value for value in named if not _is_id(value)]
    if others and len(others) != len(named):
        raise RecipeError(
            f"--from {path}: it lists ids and {others[0]!r}, which is none: give ids or URLs, in two lists"
        )
    ids = {parse_id(name.value): name.value for name in listed if _is_id(name.value)}
    there = {row.doc_id for row in lookup.documents(sorted(ids))}
    of_urls = {url: [row.doc_id for row in rows] for url, rows in by_url.items()}
    names = [value for doc_id, value in ids.items() if doc_id not in there]
    names += [url for url, found in of_urls.items() if not found]
    unknown = [
        UnknownName(name=name, nearest=tuple(nearest(lookup, name)) if number < _MOST_WITH_NEAREST else ())
        for number, name in enumerate(names)
    ]
    if not there and not any(of_urls.values()):
        near = (
            f"; nearest to {unknown[0].name}: {', '.join(unknown[0].nearest)}" if unknown[0].nearest else ""
        )
        raise UnknownError(f"--from {path}: none of its {len(listed):,} ids or URLs is in {out.url}{near}")
    named_by = f"--from {path}"
    if not ids:
        urls = tuple(url for url, found in of_urls.items() if found)
        return PurgeTargets(
            match=PurgeMatch(kind="url", values=urls, named_by=named_by), unknown=tuple(unknown)
        )
    # A match is of one kind. Its documents stay out by URL as well where they are named by id, so nothing is
    # lost.
    known = [doc_id for doc_id in ids if doc_id in there] + [
        doc_id for found in of_urls.values() for doc_id in found
    ]
    values = tuple(doc_id.hex() for doc_id in dict.fromkeys(known))
    return PurgeTargets(
        match=PurgeMatch(kind="doc", values=values, named_by=named_by), unknown=tuple(unknown)
    )


def targets_where(out: Folder, condition: str) -> PurgeTargets:
    """The documents for which a SQL condition over the view `documents` holds, as in host = 'example.org'.

    RecipeError where it is no condition, UnknownError where it holds for none."""
    return _by_condition(out, condition, named_by=f"--where {condition}")


def targets_of_source(out: Folder, source: str) -> PurgeTargets:
    """All documents of a source. RecipeError where the output has no such source."""
    sources = sorted({part.source for part in read_index(out).documents})
    if source not in sources:
        raise RecipeError(f"--source {source!r}: {out.url} has {', '.join(map(repr, sources))}")
    return _by_condition(out, f"source = {text_literal(source)}", named_by=f"--source {source}")


def targets_of_file(out: Folder, file: str) -> PurgeTargets:
    """All documents of one input file: its path or URL as in the view `inputs`, or its name as in the column
    warc_file.

    A file that several sources read is taken from each. RecipeError where no input is called so, or several
    are."""
    rows = query(
        out, "SELECT DISTINCT source, warc_file FROM documents WHERE warc_file IS NOT NULL ORDER BY ALL"
    ).rows
    names = [(str(source), str(name)) for source, name in rows]
    # A file without documents has no name there, so the name of another could pass for its own.
    read = [row for row in read_table(out, "inputs").to_pylist() if row["num_documents"]]
    inputs = sorted({(row["source"], row["file"]) for row in read})
    path = _as_input(file)
    chosen = [place for place in inputs if place[1] == path] if "/" in file else []
    if not chosen:
        chosen = _inputs_of_name(out, file, names, inputs)
    conditions = [_of_input(place, names) for place in chosen]
    return _by_condition(out, " OR ".join(conditions), named_by=f"--warc {chosen[0][1]}")


def _as_input(file: str) -> str:
    """A path or URL as the view `inputs` would have it."""
    return without_secrets(file) if is_remote(file) else local_path(file)


def _inputs_of_name(
    out: Folder, name: str, names: Sequence[tuple[str, str]], inputs: Sequence[tuple[str, str]]
) -> list[tuple[str, str]]:
    """The (source, file) whose documents have a name in the column warc_file."""
    sources = {source for source, other in names if other == name}
    found = [place for place in inputs if place[0] in sources and may_be_called(place[1], name)]
    files = sorted({file for _, file in found})
    if len(files) > 1:
        of = "; ".join(f"{file} (source {source})" for source, file in found)
        raise RecipeError(
            f"--warc {name!r} names {len(files)} input files of {out.url}, expected one: give its path: {of}"
        )
    if not files:
        last = name.rpartition("/")[2]
        known = sorted({file for _, file in inputs})
        near = [file for file in known if may_be_called(file, last)] or difflib.get_close_matches(
            name, known, n=3
        )
        such = ", ".join(near[:3] or known[:3])
        raise RecipeError(
            f"--warc {name!r} names no input file with documents of {out.url}, expected one such as {such}"
        )
    return found


def _of_input(place: tuple[str, str], names: Sequence[tuple[str, str]]) -> str:
    """The condition that holds for the documents of an input. Names differ within a source, but a short one
    may end the path of a file that has a longer one: RecipeError, which says how to choose."""
    source, file = place
    found = [name for other, name in names if other == source and may_be_called(file, name)]
    conditions = [f"source = {text_literal(source)} AND warc_file = {text_literal(name)}" for name in found]
    if len(found) != 1:
        ways = (
            ", or ".join(f'--where "{condition}"' for condition in conditions)
            or "--where and the column warc_file"
        )
        raise RecipeError(
            f"--warc {file}: it has one of {len(found)} names in source {source!r}: choose with {ways}"
        )
    return f"({conditions[0]})"


def _by_condition(out: Folder, condition: str, *, named_by: str) -> PurgeTargets:
    try:
        # On lines of its own, so that a comment in it ends with it.
        rows = query(
            out, f"SELECT DISTINCT doc_id FROM documents WHERE (\n{condition}\n) ORDER BY doc_id"
        ).rows
    except WrongQueryError as error:
        raise RecipeError(f"{named_by}: expected a condition over the view documents ({error})") from error
    if not rows:
        raise UnknownError(f"{named_by}: it holds for no document of {out.url}")
    # Ids that were found and not named, as those of a scan: `doc` would bar the URL of each from later runs.
    return PurgeTargets(
        match=PurgeMatch(kind="scan", values=tuple(str(row[0]) for row in rows), named_by=named_by)
    )


def _is_id(name: str) -> bool:
    try:
        parse_id(name)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Name:
    """An id or URL of a list, and where it stands there; `in_place_of_id`: the URL of a row whose id is
    empty."""

    value: str
    place: str = field(compare=False)
    in_place_of_id: bool = False


def _names(path: str) -> list[_Name]:
    ending = list_ending(path)
    data = _content(path)
    if ending == "parquet":
        try:
            return _of_table(path, pq.read_table(io.BytesIO(data)))
        except (OSError, pa.ArrowException) as error:
            raise RecipeError(f"--from {path} cannot be read: {error}") from error
    text = utf8_text(data, f"--from {path}")
    if ending in ("csv", "tsv"):
        return _of_rows(path, list(_rows(path, text, "\t" if ending == "tsv" else ",")))
    if ending in ("jsonl", "ndjson"):
        return [_of_json(f"{path}, line {line}", value) for line, value in json_lines(text, f"--from {path}")]
    if ending == "json":
        return _of_array(path, text)
    lines = ((number, line.strip(_EDGES)) for number, line in enumerate(io.StringIO(text, newline=None), 1))
    told = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if told and told[0][1].lower() in (*_ID_COLUMNS, _URL_COLUMN):
        told = told[1:]
    return [_Name(line, f"{path}, line {number}") for number, line in told]


def is_scan_evidence(path: str) -> bool:
    """Whether a file is what `sluice scan` wrote and no list: a JSON object. RecipeError where it cannot be
    read."""
    return list_ending(path) == "json" and _content(path).lstrip(_JSON_EDGES)[:1] == b"{"


def _content(path: str) -> bytes:
    with errors_about("--from"):
        return read_named_file(path)


def list_ending(path: str) -> str:
    """What a list's name says that it is: the ending, without that of a compression; "" for none, which is a
    list of lines. RecipeError for one of another kind."""
    name = without_packing(without_secrets(path).rpartition("/")[2].lower())
    ending = name.rpartition(".")[2] if "." in name.strip(".") else ""
    if ending not in _ENDINGS:
        raise RecipeError(
            f"--from {path}: a file that ends in .{ending} is no list that is read: expected .txt (an id or URL a"
            " line), .csv, .tsv, .jsonl or .parquet with a column doc_id, id or url, .json (a list of them, or"
            " what sluice scan wrote), each also with .gz, .zst, .bz2 or .xz behind it"
        )
    return ending


def _of_array(path: str, text: str) -> list[_Name]:
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecipeError(
            f"--from {path} is not JSON: {error}; JSON lines, an object a line, end in .jsonl"
        ) from error
    if not isinstance(found, list):
        raise RecipeError(f"--from {path}: expected a JSON list of ids, URLs, or objects with one of them")
    return [_of_json(f"{path}, entry {number}", value) for number, value in enumerate(found, 1)]


def _of_json(place: str, value: object) -> _Name:
    """What a JSON value names: a text, or an object with the key of an id or URL."""
    if isinstance(value, str):
        return _Name(value.strip(_EDGES), place)
    if not isinstance(value, dict):
        raise RecipeError(f"--from {place}: expected an id, a URL, or an object with one of them")
    row = {str(key).strip().lower(): each for key, each in value.items()}
    columns = _columns(list(row))
    if not columns:
        raise _no_column(place, list(map(str, value)))
    return _named(place, [(column, _as_text(row[column])) for column in columns])


def _is_url(name: str) -> bool:
    """Whether a name is one that a document may have as its URL: of a page, or of another scheme (urn:…)."""
    return page_of(name) is not None or (
        _SCHEME.match(name) is not None and not re.search(r"[\s{}\"<>]", name)
    )


def _rows(path: str, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV that are not blank lines, each with the number of its first line."""
    # Strict: a quote that is not closed would make one cell of all lines that follow.
    reader = csv.reader(io.StringIO(text), strict=True, delimiter=delimiter)
    line = 1
    try:
        for row in reader:
            cells = [cell.strip(_EDGES) for cell in row]
            if cells not in ([], [""]):
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise RecipeError(
            f"--from {path}, line {line}: it is no CSV from here: expected lines that end with LF or CRLF,"
            f" quotes that close, and cells of at most {csv.field_size_limit():,} characters"
        ) from error


def _of_rows(path: str, rows: Sequence[tuple[int, list[str]]]) -> list[_Name]:
    if not rows:
        return []
    first = rows[0][1]
    for line, row in rows:
        if len(row) > len(first):
            raise RecipeError(
                f"--from {path}, line {line}: it has {len(row)} cells and the first row {len(first)}: put a"
                " value that holds a comma in quotes, or list the values in a .txt file, one a line"
            )
    header = [cell.lower() for cell in first]
    columns = _columns(header)
    if not columns:
        if len(first) != 1:
            raise _no_column(
                path, first, "; a CSV without header has one column, with a comma in quotes only"
            )
        if not _is_id(first[0]) and not set(first[0]) & set(
            "./:"
        ):  # the header of a column that we do not know
            raise _no_column(path, first)
        return [_Name(row[0], f"{path}, line {line}") for line, row in rows]
    places = [(column, header.index(column)) for column in columns]
    return [
        _named(f"{path}, line {line}", [(column, row[at] if at < len(row) else "") for column, at in places])
        for line, row in rows[1:]
    ]


def _of_table(path: str, table: pa.Table) -> list[_Name]:
    table = table.rename_columns([name.lower() for name in table.column_names])
    columns = _columns(table.column_names)
    if not columns:
        raise _no_column(path, table.column_names)
    rows = table.select(columns).to_pylist()
    return [
        _named(f"{path}, row {number}", [(column, _as_text(row[column])) for column in columns])
        for number, row in enumerate(rows, start=1)
    ]


def _columns(header: Sequence[str]) -> list[str]:
    """The columns that name a row: that of ids, and that of URLs for rows without id."""
    ids = [name for name in _ID_COLUMNS if name in header]
    return ids[:1] + [_URL_COLUMN] * (_URL_COLUMN in header)


def _named(place: str, cells: Sequence[tuple[str, str]]) -> _Name:
    for number, (_, value) in enumerate(cells):
        if value:
            return _Name(value, place, in_place_of_id=number > 0)
    empty = " and ".join(column for column, _ in cells) + (" are empty" if len(cells) > 1 else " is empty")
    raise RecipeError(f"--from {place}: it names nothing, as {empty}: give an id or URL, or take the row out")


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.hex() if len(value) == ID_BYTES else value.decode("utf-8", "replace")
    return str(value).strip(_EDGES)


def _no_column(path: str, names: Sequence[str], more: str = "") -> RecipeError:
    wanted = ", ".join((*_ID_COLUMNS, _URL_COLUMN))
    return RecipeError(f"--from {path}: expected a column {wanted}; it has {', '.join(names)}{more}")
