"""The small files that a recipe or a call names (lists, models, texts to find), read from disk, S3 or the
web."""

from __future__ import annotations

import gzip
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from lineage.recipe import RecipeError, utf8_text
from lineage.secrets import redacted, without_secrets
from lineage.storage.folder import is_remote, local_path, split, with_environment


def read_named_file(name: str) -> bytes:
    """The content of a named file, decompressed where it ends in .gz; RecipeError if unreadable."""
    data = named_bytes(name)
    try:
        return gzip.decompress(data) if without_secrets(name).endswith(".gz") else data
    except (OSError, EOFError, zlib.error) as error:
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


def list_lines(name: str) -> Iterator[str]:
    """The entries of a list file: its lines, stripped, without empty ones and `#` comments."""
    for _, entry in numbered_lines(name):
        yield entry


def numbered_lines(name: str, *, has_inner_comments: bool = True) -> Iterator[tuple[int, str]]:
    """The entries of a list file with the numbers, from 1, of their lines. Without inner comments a `#`
    begins one only at the very start of a line, as in lists of URLs."""
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
