"""A text or source file as one document: its text as it stands, its name as the id."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import BinaryIO, Final

from blake3 import blake3

from lineage import ids
from stages.document import Document, Place
from stages.reading.charsets.charset import decode_text
from stages.reading.content import Cursor, DamagedError, TornError, WindowError
from stages.reading.members import read_through
from stages.reading.options import InputCounts, ReadOptions, Unreadable

_BINARY: Final = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f]")
"""What no text has (file(1) takes the others for text, encoding.c)."""
_LOOKED_AT: Final = 8 << 10
_WIDE: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_file(stream: BinaryIO, options: ReadOptions, counts: InputCounts) -> Iterator[Document | Unreadable]:
    """The document of a file, compressed or not; nothing of a binary one, which is counted in the notes. A
    text above `max_document_bytes` is hashed and not held."""
    cursor = Cursor(stream, max_window_bytes=options.max_window_bytes)
    hasher, pieces, num_bytes = blake3(), list[bytes](), 0
    try:
        for piece in read_through(cursor):
            hasher.update(piece)
            if num_bytes <= options.max_document_bytes:
                pieces.append(piece)
            num_bytes += len(piece)
    except (DamagedError, WindowError) as error:
        yield Unreadable(
            file=options.file,
            offset=0,
            length=num_bytes,
            error=str(error),
            num_records=1,
            num_bytes=options.size,
            breaks_off=isinstance(error, TornError),
        )
        return
    held = b"".join(pieces)
    if not num_bytes:
        counts.note("empty")
    elif not held.startswith(_WIDE) and _BINARY.search(held, 0, _LOOKED_AT):
        counts.note("binary")
    else:
        counts.add_row("file")
        text, charset = (
            decode_text(held, is_html=False) if num_bytes <= options.max_document_bytes else ("", None)
        )
        raw_hash = hasher.digest(length=ids.ID_BYTES)
        yield Document(
            doc_id=ids.row_doc_id(options.source, options.file, "", memoryview(raw_hash)),
            source=options.source,
            place=Place(file=options.file, offset=0, length=num_bytes),
            raw_hash=raw_hash,
            num_bytes=num_bytes,
            content_type="text/plain",
            record_id=options.file,
            charset=charset,
            text=text,
        )


def read_file_at(
    stream: BinaryIO, offset: int, options: ReadOptions, doc_id: bytes | None = None
) -> Document | Unreadable:
    """The document of a file, which is at offset 0. ValueError if there is none."""
    found = next(read_file(stream, options, InputCounts()), None)
    if offset or found is None:
        raise ValueError(
            f"{options.file}: it is read as a whole, so its document is at byte 0, and there is"
            f" {'one there' if found is not None else 'none: it is empty, or binary'}"
        )
    return found
