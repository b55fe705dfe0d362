"""The small files that a recipe or a call names (lists, models, texts to find), read from disk, S3 or the
web."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import zstandard

from lineage.recipe import RecipeError, utf8_text
from lineage.secrets import redacted, without_secrets
from lineage.storage.folder import is_remote, local_path, split, with_environment

_PACKINGS: Final[dict[str, Callable[[bytes], bytes]]] = {
    ".gz": gzip.decompress,
    ".zst": lambda data: zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read(),
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
}
_TABLES: Final = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet")


def without_packing(name: str) -> str:
    """A file's name without the ending of its compression."""
    return next((name.removesuffix(ending) for ending in _PACKINGS if name.endswith(ending)), name)


def read_named_file(name: str) -> bytes:
    """The content of a named file, decompressed where it ends in .gz, .zst, .bz2 or .xz; RecipeError if
    unreadable."""
    data = named_bytes(name)
    shown = without_secrets(name).lower()
    unpack = next((unpack for ending, unpack in _PACKINGS.items() if shown.endswith(ending)), bytes)
    try:
        return unpack(data)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        raise _unreadable(name, error) from None


def named_bytes(name: str) -> bytes:
    """The bytes of a named file as they are; RecipeError if unreadable."""
    folder, file = split(with_environment(name))
    try:
        return folder.read(file)
    except OSError as error:
        raise _unreadable(name, error) from None


def _unreadable(name: str, error: Exception) -> RecipeError:
    return RecipeError(f"{without_secrets(name)!r} cannot be read: {redacted(str(error))}")


def json_lines(text: str, what: str) -> Iterator[tuple[int, object]]:
    """The JSON values of a text's lines with their numbers, from 1; RecipeError names `what` and a line that is
    none."""
    # Not splitlines, which also splits at characters that JSON lets stand in a text.
    for number, line in enumerate(io.StringIO(text, newline=None), start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RecipeError(f"{what} line {number} is not JSON: {error}") from error


def numbered_lines(name: str, *, has_inner_comments: bool = True) -> Iterator[tuple[int, str]]:
    """The entries of a list file with the numbers, from 1, of their lines. Without inner comments a `#`
    begins one only at the very start of a line, as in lists of URLs. RecipeError for a table: its lines are no
    entries."""
    shown = without_packing(without_secrets(name).lower())
    if shown.endswith(_TABLES):
        raise RecipeError(
            f"the list {without_secrets(name)!r} is a table by its ending: expected a text file, an entry a line"
        )
    text = utf8_text(read_named_file(name), f"the list {without_secrets(name)!r}")
    for number, line in enumerate(text.splitlines(), 1):
        is_comment = line.startswith("#")
        entry = ("" if is_comment else line.partition("#")[0] if has_inner_comments else line).strip()
        if entry:
            yield number, entry


@contextmanager
def as_local_file(name: str) -> Iterator[str]:
    """A local path of a file that the recipe names, for libraries that open files themselves."""
    if not is_remote(name):
        yield local_path(name)
        return
    with tempfile.NamedTemporaryFile(prefix="sluice-model-") as spool:
        spool.write(read_named_file(name))
        spool.flush()
        yield spool.name
