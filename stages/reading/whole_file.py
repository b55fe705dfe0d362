"""A file as one document, whose id is its name: a text or source file as it stands, or a payload for the step parse."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from blake3 import blake3

from lineage import ids
from stages.document import Document, Place
from stages.reading.charsets.charset import decode_text
from stages.reading.content import Cursor, DamagedError, TornError, WindowError
from stages.reading.members import read_through
from stages.reading.options import InputCounts, ReadOptions, Unreadable
from stages.reading.rows.other_fields import storable

_BINARY: Final = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f]")
"""What no text has (file(1) takes the others for text, encoding.c)."""
_LOOKED_AT: Final = 8 << 10
_WIDE: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_file(
    stream: BinaryIO, options: ReadOptions, counts: InputCounts, content_type: str | None = None
) -> Iterator[Document | Unreadable]:
    """The document of a file, compressed or not; nothing of a binary one, which is counted in the notes. With a
    `content_type` its bytes are the payload, for the step parse to convert. What is above `max_document_bytes` is
    hashed and not held."""
    cursor = Cursor(stream, max_window_bytes=options.max_window_bytes)
    num_read = 0

    def pieces() -> Iterator[bytes]:
        nonlocal num_read
        for piece in read_through(cursor):
            num_read += len(piece)
            yield piece

    try:
        held = read_held(pieces(), options.max_document_bytes)
    except (DamagedError, WindowError) as error:
        yield Unreadable(
            file=options.file,
            offset=0,
            length=num_read,
            error=str(error),
            num_records=1,
            num_bytes=options.size,
            breaks_off=isinstance(error, TornError),
        )
        return
    if not held.num_bytes:
        counts.note("empty")
        return
    place = Place(file=options.file, offset=0, length=held.num_bytes)
    if content_type is not None:
        counts.add_row("file")
        yield document_of_payload(held, place, options.file, content_type, options)
    elif not held.data.startswith(_WIDE) and _BINARY.search(held.data, 0, _LOOKED_AT):
        counts.note("binary")
    else:
        counts.add_row("file")
        is_held = held.num_bytes <= options.max_document_bytes
        text, charset = decode_text(held.data, is_html=False) if is_held else ("", None)
        document = document_of_payload(held, place, options.file, "text/plain", options)
        yield document.but(payload=b"", charset=charset, text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldContent:
    """A document's bytes: all if they are no more than is held, or else a beginning."""

    data: bytes
    num_bytes: int
    raw_hash: bytes


def read_held(pieces: Iterable[bytes], max_bytes: int) -> HeldContent:
    """The content that these pieces make, of which about `max_bytes` are held."""
    hasher, kept, num_bytes = blake3(), list[bytes](), 0
    for piece in pieces:
        hasher.update(piece)
        if num_bytes <= max_bytes:
            kept.append(piece)
        num_bytes += len(piece)
    return HeldContent(data=b"".join(kept), num_bytes=num_bytes, raw_hash=hasher.digest(length=ids.ID_BYTES))


def document_of_payload(
    held: HeldContent, place: Place, name: str, content_type: str, options: ReadOptions
) -> Document:
    """The document of a file, or of a member of an archive, of this name."""
    is_member = name != options.file
    return Document(
        doc_id=ids.row_doc_id(
            options.source, options.file, name if is_member else "", memoryview(held.raw_hash)
        ),
        source=options.source,
        place=place,
        raw_hash=held.raw_hash,
        num_bytes=held.num_bytes,
        payload=held.data if held.num_bytes <= options.max_document_bytes else b"",
        content_type=content_type,
        record_id=storable(name) if is_member else name,
    )


def read_file_at(
    stream: BinaryIO,
    offset: int,
    options: ReadOptions,
    doc_id: bytes | None = None,
    content_type: str | None = None,
) -> Document | Unreadable:
    """The document of a file, which is at offset 0. ValueError if there is none."""
    found = next(read_file(stream, options, InputCounts(), content_type), None)
    if offset or found is None:
        raise ValueError(
            f"{options.file}: it is read as a whole, so its document is at byte 0, and there is"
            f" {'one there' if found is not None else 'none: it is empty, or binary'}"
        )
    return found
