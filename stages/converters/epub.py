"""The chapters of an EPUB as pages of HTML, of which an extractor takes the text (https://www.w3.org/TR/epub-33).

container.xml names the package document, whose spine lists the chapters in reading order."""

from __future__ import annotations

import io
import posixpath
import struct
import zipfile
import zlib
from typing import Final
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

from stages.converters.converter import Converted, RefusedError
from stages.reading.charsets.charset import decode_text

_CONTAINER: Final = "META-INF/container.xml"
_ENCRYPTION: Final = "META-INF/encryption.xml"
_ENCRYPTED: Final = 1
"""A bit of a member's flags (APPNOTE.TXT, section 4.4.4)."""
_MAX_MEMBERS: Final = 20_000
_PAGES: Final = frozenset({"application/xhtml+xml", "text/html", "text/x-oeb1-document"})
_PAGE_ENDINGS: Final = (".xhtml", ".html", ".htm")
_MAX_FALLBACKS: Final = 10

_DAMAGED: Final = (
    *(zipfile.BadZipFile, zlib.error, struct.error, ElementTree.ParseError),
    *(EOFError, OSError, NotImplementedError, ValueError, OverflowError),
)
"""What zipfile and ElementTree raise of files that are none of theirs."""


def epub_pages(payload: bytes, max_bytes: int) -> Converted:
    """A page for each chapter, and the title. RefusedError if what is read of it unfolds to more than `max_bytes`; if
    a chapter is encrypted; if it is no EPUB, or a chapter cannot be read."""
    book = _Book(payload, max_bytes)
    try:
        container = book.xml(_CONTAINER)
        rootfile = container.find(".//{*}rootfile")
        path = "" if rootfile is None else rootfile.get("full-path", "")
        package = book.xml(path)
        chapters = _chapters(package, posixpath.dirname(path))
        if not chapters:
            raise RefusedError("damaged")
        if book.encrypted & {*chapters}:
            raise RefusedError("encrypted")
        pages = tuple(decode_text(book.read(chapter))[0] for chapter in chapters)
    except _DAMAGED as error:
        raise RefusedError("damaged") from error
    title = (package.findtext("{*}metadata/{http://purl.org/dc/elements/1.1/}title") or "").strip()
    return Converted(title=title or None, pages=pages)


class _Book:
    """The members of the zip, unpacked as they are read, up to so many bytes together."""

    def __init__(self, payload: bytes, max_bytes: int) -> None:
        self._left = max_bytes
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(payload))
        except _DAMAGED as error:
            raise RefusedError("damaged") from error
        self._names = self._zip.namelist()
        if len(self._names) > _MAX_MEMBERS:
            raise RefusedError("damaged")

    def read(self, name: str) -> bytes:
        try:
            member = self._zip.getinfo(name)
        except KeyError as error:
            raise RefusedError("damaged") from error
        if member.flag_bits & _ENCRYPTED:
            raise RefusedError("encrypted")
        # One byte more than is left, whatever length the member says that it has.
        with self._zip.open(member) as stream:
            data = stream.read(self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise RefusedError("too_large")
        return data

    def xml(self, name: str) -> ElementTree.Element:
        """The root element of a member. Entities are not read from elsewhere, and where they unfold to a hundred
        times the file, Expat gives up (XML_SetBillionLaughsAttackProtectionMaximumAmplification)."""
        return ElementTree.fromstring(self.read(name))

    @property
    def encrypted(self) -> set[str]:
        """What the book says is encrypted; fonts are, too, where they are only mangled."""
        if _ENCRYPTION not in self._names:
            return set()
        found = self.xml(_ENCRYPTION).iter("{http://www.w3.org/2001/04/xmlenc#}CipherReference")
        return {unquote(reference.get("URI", "")) for reference in found}


def _chapters(package: ElementTree.Element, folder: str) -> list[str]:
    """The chapters of the spine in reading order, each once, without navigation documents and non-linear items. Of an
    item that is no page, such as an image, the one that it falls back to."""
    items = {item.get("id"): item for item in package.iterfind("{*}manifest/{*}item")}
    chapters: dict[str, None] = {}
    for reference in package.iterfind("{*}spine/{*}itemref"):
        item, num_tried = items.get(reference.get("idref")), 0
        while item is not None and not _is_page(item) and num_tried < _MAX_FALLBACKS:
            item, num_tried = items.get(item.get("fallback")), num_tried + 1
        if item is None or reference.get("linear") == "no" or "nav" in item.get("properties", "").split():
            continue
        if _is_page(item):
            # An absolute path is one within the book.
            path = posixpath.join("/", folder, _path(item))
            chapters[posixpath.normpath(path).lstrip("/")] = None
    return list(chapters)


def _path(item: ElementTree.Element) -> str:
    return unquote(urlsplit(item.get("href", "")).path)


def _is_page(item: ElementTree.Element) -> bool:
    """Whether an item of the manifest is a page, by its media type or its name: either may be wrong."""
    media_type = item.get("media-type", "").partition(";")[0].strip().lower()
    return media_type in _PAGES or _path(item).lower().endswith(_PAGE_ENDINGS)
