"""LaTeX sources of papers to documents: a file, a tar archive with the files of one paper, or one with a member for
each paper, as arXiv has them (https://info.arxiv.org/help/bulk_data_s3.html). Each may be compressed.

Nothing is written to disk, and links are not followed."""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import BinaryIO, Final, cast

from stages.document import Document, Place
from stages.reading.content import Cursor, DamagedError, WindowError
from stages.reading.content_types import LATEX, PDF
from stages.reading.file_names import unpacked_name
from stages.reading.members import is_compressed, read_through
from stages.reading.options import InputCounts, ReadOptions, Unreadable, UnreadableError
from stages.reading.rows.row import item_at
from stages.reading.unpacked import UnpackedStream
from stages.reading.whole_file import document_of_payload, read_file, read_held

_BLOCK: Final = 512
_MAX_HEADER_BYTES: Final = 1 << 20
"""Of an extended header of a member."""
_LOOKED_AT: Final = 1_000
"""Members whose names tell whether an archive is of one paper."""
TEX_ENDINGS: Final = (".tex", ".ltx", ".latex")
_PDF_MAGIC: Final = b"%PDF-"


def read_papers(
    stream: BinaryIO, options: ReadOptions, counts: InputCounts, begin: int = 0
) -> Iterator[Document | Unreadable]:
    """A document for each paper: the payload is its source, or the tar archive of its files, decompressed; or a PDF,
    which arXiv has of some. Offsets are those of members in the decompressed archive.

    `begin`: the member of an archive of several to begin with."""
    content = _content(stream, options)
    names = _names(content)
    if not names or any(name.endswith(TEX_ENDINGS) for name in names):
        begins_pdf = _read(content, 0, len(_PDF_MAGIC)) == _PDF_MAGIC
        yield from read_file(stream, options, counts, PDF if begins_pdf else LATEX)
        return
    for member in _members(content, begin):
        place = Place(
            file=options.file, offset=member.offset, length=member.offset_data - member.offset + member.size
        )
        if not member.isreg() or member.issparse() or not _is_paper(member.name):
            if not member.isdir():
                counts.note("other_members")
            continue
        cursor = Cursor(
            content, member.offset_data, member.offset_data + member.size, options.max_window_bytes
        )
        error: UnreadableError | None = None
        try:
            # A member that is packed itself, or plain: it begins behind the first byte of its archive.
            pieces = read_through(cursor) if is_compressed(cursor) else iter(cursor.read, b"")
            held = read_held(pieces, options.max_document_bytes)
        except (DamagedError, WindowError) as damage:
            error = damage
        is_cut_off = not _read(content, place.offset + place.length - 1, 1) if member.size else False
        if is_cut_off or error is not None:
            yield Unreadable(
                file=options.file,
                offset=place.offset,
                length=place.length,
                error="the archive ends within this member" if is_cut_off else str(error),
                num_records=1,
                breaks_off=is_cut_off,
            )
            if is_cut_off:
                return
            continue
        counts.add_row("member")
        content_type = PDF if held.data.startswith(_PDF_MAGIC) else LATEX
        yield document_of_payload(held, place, member.name, content_type, options)


def read_paper_at(
    stream: BinaryIO, offset: int, options: ReadOptions, doc_id: bytes | None = None
) -> Document | Unreadable:
    """The document whose member is at `offset`. ValueError if there is none."""
    found = item_at(read_papers(stream, options, InputCounts(), offset), offset, doc_id)
    if found is None:
        raise ValueError(
            f"{options.file}: no member with a paper begins at byte {offset} of its decompressed content"
        )
    return found


def _content(stream: BinaryIO, options: ReadOptions) -> BinaryIO:
    is_packed = is_compressed(Cursor(stream))
    return cast(BinaryIO, UnpackedStream(stream, options.max_window_bytes)) if is_packed else stream


def _names(content: BinaryIO) -> list[str]:
    """Of the first members, in lower case, as far as the archive is not damaged."""
    names: list[str] = []
    with suppress(UnreadableError):
        names.extend(member.name.lower() for member in islice(_members(content, 0), _LOOKED_AT))
    return names


def _is_paper(name: str) -> bool:
    """Whether a member of an archive of several papers is one: a source, packed or not, or a PDF."""
    ending = posixpath.splitext(unpacked_name(name))[1]
    return ending in (".tar", ".pdf", *TEX_ENDINGS) or name.lower().endswith((".gz", ".tgz"))


def _members(content: BinaryIO, begin: int) -> Iterator[tarfile.TarInfo]:
    """The members of a tar archive from the one at byte `begin` on; none of what is no archive. UnreadableError where
    it is damaged: where its library sees no header it takes the archive for ended."""
    content.seek(begin)
    try:
        archive = tarfile.open(fileobj=cast(BinaryIO, _ExactReads(content)), mode="r:")  # noqa: SIM115  # holds nothing
    except tarfile.ReadError as error:
        if begin:
            raise UnreadableError("no member of the archive begins here") from error
        return
    try:
        while (member := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # it would keep all
            yield member
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise UnreadableError(f"the tar archive is damaged: {error}") from error
    if _read(content, archive.offset, _BLOCK).strip(b"\0"):
        raise UnreadableError("the tar archive is damaged: no header of a member is where one should be")


def _read(stream: BinaryIO, offset: int, size: int) -> bytes:
    stream.seek(offset)
    return _ExactReads(stream).read(size)


class _ExactReads:
    """The stream as tarfile reads it: as many bytes as are asked for, fewer only at its end, and never as many as an
    extended header may claim to have."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int) -> bytes:
        if size > _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        pieces = []
        while size and (piece := self._stream.read(size)):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)
