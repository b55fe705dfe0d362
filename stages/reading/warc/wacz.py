"""WACZ files (https://specs.webrecorder.net/wacz/1.1.1): the WARC files in the folder `archive` of a zip.

The zip's directory says where each of them lies. One that is stored, as the standard has it, is read where it
lies: its records' offsets are those in the zip. One that is deflated is unpacked, and its records' offsets
are counted behind the zip's last byte, as if all that are deflated stood there unpacked, in the order in
which they lie in it."""

from __future__ import annotations

import io
import re
import struct
import tempfile
import zipfile
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from typing import BinaryIO, Final, cast

from isal import igzip_lib, isal_zlib

from lineage.magic import GZIP_MAGIC, ZSTD_MAGIC
from stages.document import Document
from stages.reading.content import Cursor
from stages.reading.members import PIECE_BYTES
from stages.reading.options import (
    InputCounts,
    ReadOptions,
    Unreadable,
    UnreadableError,
    unreadable_for_any_error,
)
from stages.reading.warc.documents import read_record_at, read_records

_MAGIC: Final = (b"PK\x03\x04", b"PK\x05\x06")
_ARCHIVE = re.compile(r"(?:.*/)?archive/(?:.*/)?[^/]+\.w?arc(?:\.gz|\.zst)?", re.IGNORECASE | re.DOTALL)
"""Of the names with `/` for a backslash, which some programs write. Who packs a folder again has it below
another."""
_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""What a zip has before each file (APPNOTE.TXT, section 4.3.7): its mark, the lengths of a name and an extra
field."""
_ENCRYPTED: Final = 1  # a bit of the flags (section 4.4.4)
_MAX_DIRECTORY_BYTES: Final = 4 << 20
"""A directory takes twenty times as much in memory."""
_MAX_UNPACKED_BYTES: Final = 16 << 30
"""Of a deflated member: what is unpacked lies in a temporary file. Crawlers begin a new WARC file after 1
GB."""
_IN_MEMORY_BYTES: Final = 16 << 20
_MOST_TIMES: Final = 100
"""How often longer a compressed WARC file may be than what it is deflated to, where deflating gains nothing:
each of two codings gives 1,032 bytes for one, so that a small file could keep a machine busy for days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A WARC file of the zip: `header`, where it begins there with its local header; `num_packed`, its bytes
    behind that; `num_bytes`, unpacked; `next_header`, where another begins, or the zip's end. `begin`: the
    offset of its first byte, None for one that is stored, as that is only known from its local header.
    `error`: why it cannot be read; then `num_packed` bytes from `header` on are unreadable."""

    header: int
    num_packed: int
    num_bytes: int
    next_header: int
    crc: int
    begin: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Directory:
    """The zip's bytes, its WARC files in the order of their offsets, where those offsets end, and how many
    other files it has."""

    size: int
    members: tuple[_Member, ...]
    end: int
    num_others: int


def is_zip(stream: BinaryIO) -> bool:
    """Whether the stream begins as a zip file does."""
    stream.seek(0)
    return stream.read(len(_MAGIC[0])) in _MAGIC


def read_wacz(stream: BinaryIO, options: ReadOptions, counts: InputCounts) -> Iterator[Document | Unreadable]:
    """The documents and unreadable stretches of a WACZ file, which together with the counted records tile its
    WARC files. Where its directory cannot be read, records are looked for in all its bytes."""
    counts.end = options.size
    try:
        with unreadable_for_any_error():
            directory = _read_directory(stream)
    except UnreadableError as error:
        reason = f"the zip's directory cannot be read, so records are looked for in all its bytes: {error}"
        yield Unreadable(file=options.file, offset=0, length=0, error=reason, fault=error.fault)
        yield from read_records(Cursor(stream, max_window_bytes=options.max_window_bytes), options, counts)
        return
    counts.end = directory.end
    for _ in range(directory.num_others):
        counts.note("other_members")
    if not directory.members:
        reason = (
            "a zip file without a WARC file in a folder `archive`, so no WACZ: unpack it, and name its files"
        )
        yield Unreadable(file=options.file, offset=0, length=directory.size, error=reason)
    for member in directory.members:
        yield from _read_member(stream, member, options, counts)


def read_wacz_at(
    stream: BinaryIO, offset: int, options: ReadOptions, doc_id: bytes | None = None
) -> Document | Unreadable:
    """`read_record_at` of a WACZ file."""
    with archive_at(stream, offset) as archive:
        window = options.max_window_bytes
        cursor = (
            Cursor(stream, max_window_bytes=window)
            if archive is None
            else Cursor(archive, archive.begin, archive.end, window)
        )
        return read_record_at(cursor, offset, options, doc_id)


@contextmanager
def archive_at(stream: BinaryIO, offset: int) -> Iterator[_StoredFile | _DeflatedFile | None]:
    """The WARC file among whose records one of this offset may be, as a stream over such offsets; None where
    the zip does not say, and records lie where they lie."""
    archive = None
    with suppress(UnreadableError), unreadable_for_any_error():
        member = _member_at(_read_directory(stream), offset)
        if member is not None and member.error is None:
            archive = _open(stream, member)
    if archive is None:
        yield None
        return
    with archive:
        yield archive


def _member_at(directory: _Directory, offset: int) -> _Member | None:
    """The member among whose records one of this offset may be."""
    is_stored = offset < directory.size  # deflated files have their offsets behind the zip
    begins = [
        (member.header if member.begin is None else member.begin, member)
        for member in directory.members
        if (member.begin is None) == is_stored
    ]
    return max((found for found in begins if found[0] <= offset), key=itemgetter(0), default=(0, None))[1]


def _read_directory(stream: BinaryIO) -> _Directory:
    """UnreadableError where the zip has no directory, or one that is too long."""
    size = stream.seek(0, 2)
    try:
        with zipfile.ZipFile(cast(BinaryIO, _BoundedReads(stream, size))) as packed:
            entries = [entry for entry in packed.infolist() if not entry.filename.endswith("/")]
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error) as error:
        # Besides the first: a newer version of zip, a name that is not UTF-8, numbers that cannot be.
        raise UnreadableError(str(error)) from error
    archives = [entry for entry in entries if _ARCHIVE.fullmatch(entry.filename.replace("\\", "/"))]
    # A hostile directory may list one member many times, or members inside one another. Sorted, each may only begin
    # where those before it end, so that no byte is read twice.
    archives.sort(key=attrgetter("header_offset"))
    members, reached, end = [], 0, size
    headers = [entry.header_offset for entry in archives]
    for entry in archives:
        first, behind = entry.header_offset, entry.header_offset + _LOCAL_HEADER.size + entry.compress_size
        member = _Member(
            header=first,
            num_packed=entry.compress_size,
            num_bytes=entry.file_size,
            next_header=min([*headers[(at := bisect_right(headers, first)) : at + 1], size]),
            crc=entry.CRC,
        )
        if not 0 <= first < behind <= size:
            members.append(
                replace(member, header=reached, num_packed=0, error="a member of the zip lies beyond it")
            )
            continue
        reason = _why_not(entry, reached)
        if reason is not None:
            unread = max(first, reached)
            member = replace(member, header=unread, num_packed=max(behind - unread, 0), error=reason)
        elif entry.compress_type == zipfile.ZIP_DEFLATED:
            # A record of a deflated file has no offset in the zip. Such files get offsets behind the zip, one file
            # after the other, so that every record still has a place of its own.
            member = replace(member, begin=end)
            end += entry.file_size
        members.append(member)
        reached = max(reached, behind)
    in_order = sorted(members, key=lambda member: member.header if member.begin is None else member.begin)
    return _Directory(size=size, members=tuple(in_order), end=end, num_others=len(entries) - len(archives))


def _why_not(entry: zipfile.ZipInfo, reached: int) -> str | None:
    """Why a member of the zip is not read, if it is not; `reached`: where those before it end."""
    if entry.header_offset < reached:
        return "a member of the zip lies over another one"
    if entry.flag_bits & _ENCRYPTED:
        return "a member of the zip is encrypted: decrypt it, and name its files"
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        known = zipfile.compressor_names.get(entry.compress_type, "unknown")  # type: ignore[attr-defined]
        return f"a member of the zip is packed by method {entry.compress_type} ({known}): unpack it, and name its files"
    if entry.compress_type == zipfile.ZIP_STORED and entry.compress_size != entry.file_size:
        return (
            f"a member of the zip is stored, and has {entry.compress_size} bytes there and"
            f" {entry.file_size} unpacked"
        )
    if entry.compress_type == zipfile.ZIP_DEFLATED and entry.file_size > _MAX_UNPACKED_BYTES:
        return f"a member of the zip has {entry.file_size} bytes unpacked: unpack it, and name its files"
    return None


class _BoundedReads:
    """The stream as zipfile reads it. What a hostile zip says of its directory could lead it before the first
    byte, which a file calls a failure of its own, or to read as much as the zip is long: each is an
    UnreadableError."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream, self._size = stream, size
        self.tell = stream.tell

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self._size}[whence]
        if not 0 <= place <= self._size:
            raise UnreadableError(f"it should lie at byte {place} of {self._size}")
        return self._stream.seek(place)

    def read(self, num_bytes: int = -1) -> bytes:
        if num_bytes > _MAX_DIRECTORY_BYTES:
            raise UnreadableError(f"it has {num_bytes} bytes, expected at most {_MAX_DIRECTORY_BYTES}")
        return self._stream.read(_MAX_DIRECTORY_BYTES if num_bytes < 0 else num_bytes)


def _read_member(
    stream: BinaryIO, member: _Member, options: ReadOptions, counts: InputCounts
) -> Iterator[Document | Unreadable]:
    def unreadable(offset: int, length: int, error: str) -> Unreadable:
        return Unreadable(file=options.file, offset=offset, length=length, error=error)

    if member.error is not None:
        yield unreadable(member.header, member.num_packed, member.error)
        return
    try:
        archive = _open(stream, member)
    except UnreadableError as error:
        # In the order of the records: those of a deflated member have places behind the whole zip.
        if member.begin is None:
            yield unreadable(member.header, member.num_packed, str(error))
        else:
            yield unreadable(member.begin, member.num_bytes, str(error))
        return
    with archive:
        num_unreadable = 0
        cursor = Cursor(archive, archive.begin, archive.end, options.max_window_bytes)
        for item in read_records(cursor, options, counts):
            num_unreadable += isinstance(item, Unreadable)
            yield item
        if archive.error is not None:
            yield unreadable(archive.reached, archive.end - archive.reached, archive.error)
        # If a record could not be read, the damage is reported already.
        elif archive.crc != member.crc and not num_unreadable:
            reason = (
                "the zip's checksum of a member says that it held something else than what was read of it"
            )
            yield unreadable(archive.end, 0, reason)


def _open(stream: BinaryIO, member: _Member) -> _StoredFile | _DeflatedFile:
    """UnreadableError where the member's local header is not there."""
    stream.seek(member.header)
    head = stream.read(_LOCAL_HEADER.size)
    if len(head) < _LOCAL_HEADER.size or not head.startswith(_MAGIC[0]):
        raise UnreadableError("no member of the zip begins where its directory says that one does")
    _, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(head)
    data = member.header + _LOCAL_HEADER.size + name_bytes + extra_bytes
    # The local header's own lengths may differ from the directory's: what decides is where the next member begins.
    if data + member.num_packed > member.next_header:
        raise UnreadableError("a member of the zip lies over what follows it")
    if member.begin is None:
        return _StoredFile(stream, data, data + member.num_packed)
    packed = Cursor(stream, data, data + member.num_packed)
    return _DeflatedFile(packed, member.begin, member.begin + member.num_bytes)


class _StoredFile:
    """A WARC file that is stored in the zip, as a stream over the offsets from `begin` to `end`.

    `crc` covers what was read, up to `reached`."""

    def __init__(self, stream: BinaryIO, begin: int, end: int) -> None:
        self.begin = self.reached = self._at = begin
        self.end = end
        self.crc = 0
        self._stream = stream

    @property
    def error(self) -> str | None:
        """Why there is no more of it, if `reached` is not its end."""
        return None if self.reached == self.end else "the zip ends before a member of it does"

    def seek(self, offset: int, /) -> int:
        self._at = self._stream.seek(offset)
        return self._at

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        # Damage is read twice, and a checksum takes each byte once: only bytes after `reached` are added.
        is_new = self.reached - self._at
        if 0 <= is_new < len(data):
            self.crc = isal_zlib.crc32(data[is_new:], self.crc)
            self.reached = self._at + len(data)
        self._at += len(data)
        return data

    def __enter__(self) -> _StoredFile:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class _DeflatedFile:
    """A WARC file that is deflated in the zip, as a stream over the offsets from `begin` to `end`. It is
    unpacked as far as it is read, and kept in a temporary file, for damage is looked at twice.

    `crc` covers what was unpacked, up to `reached`; `error`: why there is no more, if that is not the end, or
    what else is wrong."""

    def __init__(self, packed: Cursor, begin: int, end: int) -> None:
        self.begin = self.reached = self._at = begin
        self.end = end
        self.crc = 0
        self.error: str | None = None
        self._packed = packed
        self._packed_begin = packed.position
        self._inflater = isal_zlib.decompressobj(wbits=-15)  # without a header, as in a zip
        self._kept = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115  # closed by __exit__
        self._is_compressed = False

    def seek(self, offset: int, /) -> int:
        self._at = offset
        return offset

    def read(self, size: int, /) -> bytes:
        # One byte more, so that what goes on behind the stated end is seen when that is read.
        while self.reached <= self._at + size and self._unpack_some():
            pass
        self._kept.seek(self._at - self.begin)
        data = self._kept.read(size)
        self._at += len(data)
        return data

    def _unpack_some(self) -> bool:
        """Unpack the next piece; says whether there was one."""
        if self.error is not None or self._inflater.eof:
            return False
        data = self._inflater.unconsumed_tail or self._packed.read()
        try:
            piece = self._inflater.decompress(data, PIECE_BYTES)
        except igzip_lib.IsalError as error:  # type: ignore[misc]  # its stub calls it a value
            self.error = f"a damaged member of the zip: {error}"
            return False
        # Only a compressed file can unfold twice: the text of a plain one is bounded by the stated size.
        if self.reached == self.begin and piece:
            self._is_compressed = piece.startswith((GZIP_MAGIC, ZSTD_MAGIC))
        room, num_packed = self.end - self.reached, self._packed.position - self._packed_begin
        self._keep(piece[:room])  # no further than stated: the offsets behind belong to the next member
        if len(piece) > room:
            self.error = "a member of the zip has more bytes than its directory says"
        elif self._inflater.eof and self.reached < self.end:
            self.error = "a member of the zip has fewer bytes than its directory says"
        elif not data and not piece and not self._inflater.eof:
            self.error = "the zip ends before a member of it does"
        elif self._is_compressed and self.reached - self.begin > _MOST_TIMES * num_packed:
            self.error = f"a compressed member of the zip unpacks to more than {_MOST_TIMES} times its bytes"
        return True

    def _keep(self, piece: bytes) -> None:
        self._kept.seek(0, 2)
        self._kept.write(piece)
        self.crc = isal_zlib.crc32(piece, self.crc)
        self.reached += len(piece)

    def __enter__(self) -> _DeflatedFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._kept.close()
