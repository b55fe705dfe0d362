"""Where the compressed members of a file begin, as an index of it says: a CDX or CDXJ file of a WARC file, or the seek
table at the end of a zstd file.

An index saves the search for a member, and is not trusted: a reader begins nowhere but where a member does."""

from __future__ import annotations

import itertools
import json
import posixpath
from collections.abc import Iterator
from typing import BinaryIO, Final

import numpy as np

_MOST_LINE_BYTES: Final = 64 << 10
_ALWAYS_READ_BYTES: Final = 64 << 20
"""Of an index; a larger one is read as far as the file that it is of is large."""
_OFFSET, _NAME = b"V", b"g"
"""The letters of the compressed file's offset and of its name in the head of a CDX file (archive.org,
"CDX and DAT Legend")."""
_COLUMNS: Final = {
    11: b"N b a m s k r M S V g".split(),
    10: b"N b a m s k r M V g".split(),
    9: b"N b a m s k r V g".split(),
}
"""Those of a file without a head, by their number."""

_SEEKABLE: Final = b"\xb1\xea\x92\x8f"
_TABLE: Final = b"\x5e\x2a\x4d\x18"
_FOOTER_BYTES: Final = 9
_HEAD_BYTES: Final = 8
_MOST_TABLE_BYTES: Final = 256 << 20


class FalseIndexError(ValueError):
    """An index that is not one of its file; the message says why."""


def starts_in_cdx(index: BinaryIO, name: str, size: int) -> Iterator[int]:
    """The offsets in a file of `size` bytes that the lines of an index name, in their order; lines about files with
    another name than `name` are passed over. FalseIndexError for a line that is none, and where no line is about this
    file."""
    columns: list[bytes] | None = None
    num_read, is_named = 0, False
    for number in itertools.count(1):
        line = index.readline(_MOST_LINE_BYTES)
        if not line:
            break
        num_read += len(line)
        if num_read > max(_ALWAYS_READ_BYTES, size):
            raise FalseIndexError(f"it has more than {num_read:,} bytes, and the file {size:,}")
        if line.startswith(b" CDX "):
            columns = line.split()[1:]
        elif line.strip() and not line.startswith(b"!"):  # metadata of OpenWayback's and pywb's
            place = _place_in(line, columns)
            if place is None:
                raise FalseIndexError(f"its line {number:,} names no file and offset")
            if posixpath.basename(place[0]) == posixpath.basename(name):
                is_named = True
                if place[1] >= size:
                    raise FalseIndexError(
                        f"its line {number:,} names byte {place[1]:,}, and the file has {size:,}"
                    )
                yield place[1]
    if not is_named:
        raise FalseIndexError("none of its lines names this file")


def _place_in(line: bytes, columns: list[bytes] | None) -> tuple[str, int] | None:
    """The file and the offset that a line names."""
    try:
        if b"{" in line:
            fields = json.loads(line[line.index(b"{") :])
            name, offset = fields["filename"], int(fields["offset"])
        else:
            values = line.split()
            columns = columns or _COLUMNS[len(values)]
            name = values[columns.index(_NAME)].decode()
            offset = int(values[columns.index(_OFFSET)])
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None
    return (name, offset) if isinstance(name, str) and offset >= 0 else None


def starts_in_seek_table(stream: BinaryIO, size: int) -> list[int]:
    """Where the frames of a zstd file begin that hold anything, by the table at its end (zstd's
    contrib/seekable_format, 0.1.0); none where it has no table. FalseIndexError for one that does not fit the file."""
    if size < _HEAD_BYTES + _FOOTER_BYTES:
        return []
    stream.seek(size - _FOOTER_BYTES)
    footer = stream.read(_FOOTER_BYTES)
    if not footer.endswith(_SEEKABLE):
        return []
    num_frames, has_checksums = int.from_bytes(footer[:4], "little"), footer[4] >> 7
    width = 2 + has_checksums
    num_bytes = num_frames * width * 4
    begin = size - _FOOTER_BYTES - num_bytes - _HEAD_BYTES
    if begin < 0 or num_bytes > _MOST_TABLE_BYTES:
        raise FalseIndexError(f"its seek table says that it has {num_frames:,} frames")
    stream.seek(begin)
    table = stream.read(_HEAD_BYTES + num_bytes)
    length = num_bytes + _FOOTER_BYTES
    if table[:_HEAD_BYTES] != _TABLE + length.to_bytes(4, "little"):
        raise FalseIndexError("its seek table does not begin as one")
    sizes = np.frombuffer(table, "<u4", offset=_HEAD_BYTES).reshape(-1, width).astype(np.int64)
    ends = np.cumsum(sizes[:, 0])
    if num_frames and ends[-1] != begin:
        raise FalseIndexError(f"its seek table is of frames of {ends[-1]:,} bytes, and they have {begin:,}")
    starts: list[int] = (ends - sizes[:, 0])[sizes[:, 1] > 0].tolist()
    return starts
