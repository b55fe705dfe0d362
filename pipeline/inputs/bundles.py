"""Input files that are read together: a source file or a text is a document of a few kilobytes, as are the few
records that an index selects of a file, and a unit of work for each would take longer than reading it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pipeline.inputs.files import Input
from stages.reading.file_names import kind_by_name
from stages.reading.options import Format

_WHOLE: Final = ("file", "pdf", "epub", "latex")
_MOST_FILES: Final = 1_000
_MOST_BYTES: Final = 16 << 20
"""A bundle ends with the file that reaches one of these."""


def is_read_whole(name: str, format_name: Format) -> bool:
    """Whether a file of this name is a document by itself, in a source of this format, or an archive of such."""
    return format_name in _WHOLE or (format_name == "auto" and kind_by_name(name) is not None)


def bundled(inputs: Sequence[Input], format_name: Format) -> list[tuple[Input, ...]]:
    """The inputs of a source, in the order given, with neighbours that are documents by their format or name, or
    of which records are selected, together. A function of names and sizes alone."""
    bundles: list[tuple[Input, ...]] = []
    together: list[Input] = []
    num_bytes = 0
    for found in inputs:
        is_document = found.records is not None or is_read_whole(found.name, format_name)
        if together and (not is_document or len(together) == _MOST_FILES or num_bytes >= _MOST_BYTES):
            bundles.append(tuple(together))
            together, num_bytes = [], 0
        if is_document:
            together.append(found)
            num_bytes += found.size
        else:
            bundles.append((found,))
    return [*bundles, tuple(together)] if together else bundles
