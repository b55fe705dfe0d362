"""Where the members of an input begin, as an index says: one that is an input too, or that lies beside it on disk."""

from __future__ import annotations

import gzip
import itertools
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Final, cast

from lineage.storage.folder import is_remote, local_path
from pipeline.inputs.files import Input, open_input, open_place
from stages.reading.file_names import is_index
from stages.reading.member_starts import FalseIndexError, starts_in_cdx, starts_in_seek_table

_SEEKABLE: Final = (".zst", ".zstd")
_INDEXED: Final = (".warc.gz", ".arc.gz")
_ENDINGS: Final = (".cdx", ".cdxj", ".cdx.gz", ".cdxj.gz")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStarts:
    """`index` is what messages call the index; `read` gives the starts, in any order. It raises FalseIndexError, and
    OSError where the index cannot be read."""

    index: str
    read: Callable[[], Iterator[int]]


def indexes_among(inputs: Iterator[Input]) -> dict[str, Input]:
    """The inputs that are indexes of others, by URL."""
    return {each.url: each for each in inputs if is_index(each.name)}


def member_starts(found: Input, indexes: Mapping[str, Input]) -> MemberStarts | None:
    """The index of a file; None where there is none, or where none is made for its kind."""
    name = found.name.lower()
    if name.endswith(_SEEKABLE):
        return MemberStarts(index=f"the seek table of {found.url}", read=partial(_of_frames, found))
    ending = next((ending for ending in _INDEXED if name.endswith(ending)), None)
    if ending is None:
        return None
    stems = (found.url, found.url[: -len(".gz")], found.url[: -len(ending)])
    for stem, more in itertools.product(stems, _ENDINGS):
        url = f"{stem}{more}"
        if url in indexes or (not is_remote(url) and os.path.isfile(local_path(url))):
            return MemberStarts(index=url, read=partial(_of_cdx, found, indexes.get(url), url))
    return None


def _of_frames(found: Input) -> Iterator[int]:
    with open_input(found) as stream:
        yield from starts_in_seek_table(stream, found.size)


def _of_cdx(found: Input, index: Input | None, url: str) -> Iterator[int]:
    opened = open_place(url, url) if index is None else open_input(index)
    with opened as stream, _unpacked(stream, url) as lines:
        yield from starts_in_cdx(lines, found.name, found.size)


@contextmanager
def _unpacked(stream: BinaryIO, url: str) -> Iterator[BinaryIO]:
    if not url.endswith(".gz"):
        yield stream
        return
    try:
        yield cast(BinaryIO, gzip.GzipFile(fileobj=stream))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FalseIndexError(f"it cannot be unpacked: {error}") from error
