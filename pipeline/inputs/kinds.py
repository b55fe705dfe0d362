"""Inputs that no reader is for, and fields that their rows have not got, named before a run starts
anything."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from lineage.recipe import RecipeError
from lineage.storage.folder import is_remote
from pipeline.inputs.bundles import is_read_whole
from pipeline.inputs.files import Input, open_input
from pipeline.recipe.tables import LimitsTable, SourceTable
from stages.reading.content_types import TYPES_OF, why_not_converted
from stages.reading.file_names import is_marker, kind_by_name
from stages.reading.magic import HEAD_BYTES
from stages.reading.options import ReadOptions, RowFields, Unreadable
from stages.reading.rows.row import keys_of

_ROWS: Final = 20
"""Of a file, which must all lack a field before the run is refused: one such row is no wrong recipe."""


def check_kinds(inputs: Sequence[Input], source: SourceTable, limits: LimitsTable) -> None:
    """RecipeError where the first bytes of a source's inputs say that they are not read, with what to do, and
    their share of the source's bytes is above limits.max_bad_records: below it they are told as unreadable,
    and the run goes on.

    All files on disk are looked at, and of remote ones the first of each ending, which stands for the
    others; none that is read as it is, and none that is passed over by its name."""
    max_bad_share = limits.max_bad_records
    records = of_records(inputs, source)
    found = [(each, why) for each in _looked_at(records) if (why := _why_not(each, limits.max_window_bytes))]
    num_bytes = sum(_stands_for(each, inputs) for each, _ in found)
    if num_bytes <= max_bad_share * sum(each.size for each in inputs):
        return
    first, why = found[0]
    more = f"; {len(found) - 1:,} more files cannot be read either" if len(found) > 1 else ""
    raise RecipeError(f"source.inputs of {first.source!r}: {first.url} cannot be read: {why}{more}")


def check_converters(inputs: Sequence[Input], source: SourceTable) -> None:
    """RecipeError where the library that converts a source's documents is not installed: told by its format, the
    names of its files, and its types."""
    named = {
        source.format if source.format != "auto" else kind_by_name(each.name) or source.format
        for each in inputs
    }
    for kind in sorted({*source.mime, *(TYPES_OF[name] for name in named if name in TYPES_OF)}):
        if why := why_not_converted(kind):
            raise RecipeError(f"source {source.name!r}: {why}", "source.format")


def of_records(inputs: Sequence[Input], source: SourceTable) -> list[Input]:
    """The inputs that hold records or rows: neither documents by themselves nor markers of writers."""
    return [each for each in inputs if not (is_read_whole(each.name, source.format) or is_marker(each.name))]


def _stands_for(looked_at: Input, inputs: Sequence[Input]) -> int:
    """The bytes of the files that one which was looked at stands for."""
    if not is_remote(looked_at.url):
        return looked_at.size
    return sum(each.size for each in inputs if is_remote(each.url) and _ending(each) == _ending(looked_at))


def _ending(found: Input) -> str:
    return posixpath.splitext(found.name)[1]


def _looked_at(inputs: Sequence[Input]) -> Iterator[Input]:
    endings = set()
    for each in inputs:
        ending = _ending(each)
        if not is_remote(each.url):
            yield each
        elif ending not in endings:
            endings.add(ending)
            yield each


def _why_not(found: Input, max_window_bytes: int) -> str | None:
    from stages.reading.reader import why_no_reader  # not needed by a run from parsed texts

    try:
        with open_input(found) as stream:
            head = stream.read(HEAD_BYTES)
    except OSError:
        return None  # its reading says so, and tries again
    return why_no_reader(head, found.name, max_window_bytes)


def check_fields(inputs: Sequence[Input], source: SourceTable, limits: LimitsTable) -> None:
    """RecipeError where the first rows of a file have not got a field that the source names: by the footer of a
    Parquet file, by the first rows of JSON lines; and where none of its files has rows.

    Files are looked at as `check_kinds` looks at them. Of the first of each ending also the values are: none of
    the first rows may be a document by its fields. Where first rows are unreadable otherwise, the run says
    so."""
    are_rows, endings = [], set[str]()
    for each in _looked_at(inputs):
        has_rows, why = _without_field(each, source, limits, reads_values=_ending(each) not in endings)
        endings.add(_ending(each))
        are_rows.append(has_rows)
        if why is not None:
            key = next((key for key in keys_of(source.row_fields) if key in why), "source.text_field")
            raise RecipeError(f"source {source.name!r}: {each.url}: {why}", key)
    if are_rows and not any(are_rows) and source.row_fields != RowFields():
        raise RecipeError(
            f"source {source.name!r}: its files hold records without fields (WARC, ARC, WACZ or WET):"
            " text_field, id_field, url_field and date_field are for JSON lines and Parquet",
            "source.text_field",
        )


def _without_field(
    found: Input, source: SourceTable, limits: LimitsTable, *, reads_values: bool
) -> tuple[bool, str | None]:
    """Whether a file may have rows, and why no document comes of its first ones, where all of them lack a field
    that the recipe names."""
    from stages.reading.reader import lacks_fields, read_documents

    options = ReadOptions(
        source=source.name,
        file=found.name,
        format=source.format,
        fields=source.row_fields,
        namespaces=source.namespaces,
        max_document_bytes=limits.max_document_bytes,
        max_window_bytes=limits.max_window_bytes,
        size=found.size,
    )
    try:
        with open_input(found) as stream:
            has_rows, why = lacks_fields(stream, options, _ROWS)
            if not has_rows or why is not None or not reads_values:
                return has_rows, why
            stream.seek(0)
            rows = list(islice(read_documents(stream, options), _ROWS))
    except OSError:
        return True, None  # its reading says so, and tries again
    errors = [row.error if isinstance(row, Unreadable) else "" for row in rows]
    wrong = bool(errors) and all(any(key in error for key in keys_of(source.row_fields)) for error in errors)
    return True, errors[0] if wrong else None
