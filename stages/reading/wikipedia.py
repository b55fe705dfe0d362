"""A dump of a MediaWiki site, as Wikipedia's pages-articles (https://www.mediawiki.org/wiki/Help:Export), to
documents, one a page.

Pages are cut out by their tags, which stand nowhere else: in texts `<` is escaped. So each page is parsed by itself,
damage costs the page that it lies in, and a page's place is its bytes in the decompressed dump."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, Final
from urllib.parse import quote
from xml.etree import ElementTree

from lineage import ids
from stages.document import Document, Place
from stages.reading.content import Cursor, DamagedError, TornError, WindowError
from stages.reading.content_types import wikitext_type
from stages.reading.members import is_compressed, read_through
from stages.reading.options import (
    InputCounts,
    ReadOptions,
    Unreadable,
    UnreadableError,
    unreadable_for_any_error,
)
from stages.reading.rows.other_fields import metadata_with
from stages.reading.rows.row import item_at

_BEGIN: Final = b"<page>"
_END: Final = b"</page>"
_DUMP_ENDS: Final = b"</mediawiki>"
_IN_PAGE: Final = (_END, b"<title>", b"<text")
_MAX_HEAD_BYTES: Final = 1 << 20
"""Limit on the head of a dump, which ends at the first page. A head has the site's name and namespaces: kilobytes."""
_MAX_TAGS: Final = 10_000
"""Of a page: one revision has forty. An element takes a hundred times as much memory as its tag."""
_MAX_TITLE: Final = 512
"""MediaWiki's own limit is 255 bytes, behind the name of a namespace."""
_BESIDE_TEXT: Final = 64 << 10
_SITEINFO: Final = re.compile(rb"<siteinfo>.*?</siteinfo>", re.DOTALL)
_BEGINS_DUMP: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]{0,200}\?>\s*)?<mediawiki[\s>]")
_FILES: Final = ("-2", "6")
_CATEGORIES: Final = "14"
"""Keys of namespaces (https://www.mediawiki.org/wiki/Manual:Namespace)."""
_FILE_NAMES: Final = ("media", "file", "image")
_CATEGORY: Final = "category"
"""What every wiki calls them besides in its own language."""
_TIMESTAMP: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_IN_URL: Final = "/:;@$!*(),~"
"""What MediaWiki leaves as it is in a title (wfUrlencode)."""


def begins_dump(begin: bytes) -> bool:
    """Whether content that begins so is a dump."""
    return _BEGINS_DUMP.match(begin) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """What the dump says of its site: the URL that titles follow, and the content type of its pages."""

    base: str | None = None
    content_type: str = wikitext_type(_FILE_NAMES, (_CATEGORY,))


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Bytes of the dump: a page, or with an `error` what is none."""

    offset: int
    length: int
    data: bytes = b""
    error: str | None = None


def read_wikipedia(
    stream: BinaryIO, options: ReadOptions, counts: InputCounts, begin: int = 0
) -> Iterator[Document | Unreadable]:
    """A document for each page of `options.namespaces` that is no redirect; others are counted by kind. Its text is
    that of its last revision. Behind damaged compression nothing is read.

    `begin`: where to begin in a dump that is not compressed."""
    site, cursor = _read_site(stream, options), Cursor(stream, max_window_bytes=options.max_window_bytes)
    is_plain = not is_compressed(cursor)
    counts.end = options.size if is_plain else None
    splitter = _Splitter(begin if is_plain else 0, options.max_document_bytes)
    if is_plain:
        cursor.seek(begin)
    try:
        for piece in iter(cursor.read, b"") if is_plain else read_through(cursor):
            for stretch in splitter.add(piece):
                try:
                    with unreadable_for_any_error():
                        document = _read_page(stretch, site, options, counts)
                except UnreadableError as error:
                    yield Unreadable(
                        file=options.file,
                        offset=stretch.offset,
                        length=stretch.length,
                        error=str(error),
                        num_records=1,
                        fault=error.fault,
                    )
                    continue
                if document is not None:
                    yield document
    except (DamagedError, WindowError) as error:
        left = None if options.size is None else max(options.size - cursor.position, 0)
        num = 1 if left is None else max(1, counts.num_records * left // max(cursor.position, 1))
        torn = isinstance(error, TornError)
        yield Unreadable(
            file=options.file,
            offset=splitter.offset,
            length=0,
            error=str(error),
            num_records=num,
            num_bytes=left,
            breaks_off=torn,
        )
        return
    if (why := splitter.why_not_whole) is not None:
        yield Unreadable(
            file=options.file,
            offset=splitter.offset,
            length=splitter.num_held,
            error=why,
            num_records=1,
            num_bytes=0,
            breaks_off=True,
        )


def read_wikipedia_at(
    stream: BinaryIO, offset: int, options: ReadOptions, doc_id: bytes | None = None
) -> Document | Unreadable:
    """The document of the page at byte `offset` of the decompressed dump. ValueError if there is none."""
    found = item_at(read_wikipedia(stream, options, InputCounts(), offset), offset, doc_id)
    if found is None:
        raise ValueError(
            f"{options.file}: no page with a document begins at byte {offset} of its decompressed content"
        )
    return found


class _Splitter:
    """Cuts a dump at its pages. `offset` is that of the first byte that is held."""

    def __init__(self, offset: int, max_document_bytes: int) -> None:
        self.offset = offset
        self._most = max_document_bytes + _BESIDE_TEXT
        self._max_document_bytes = max_document_bytes
        self._held = bytearray()
        self._is_in_page = self._is_ended = False
        self._looked_at = self._num_dropped = self._num_lost = 0

    @property
    def num_held(self) -> int:
        """The bytes of the page that is begun."""
        return self._num_dropped + len(self._held) if self._is_in_page else 0

    @property
    def why_not_whole(self) -> str | None:
        """Why the dump is not whole, if it ends here."""
        if self._is_in_page:
            return "the dump ends within a page: it is cut off, so fetch it again"
        self._pass_gap(len(self._held), len(self._held))
        return (
            None if self._is_ended else "the dump ends before </mediawiki>: it is cut off, so fetch it again"
        )

    def add(self, piece: bytes) -> Iterator[_Stretch]:
        """The pages that end in the next piece, and what is none."""
        self._held += piece
        while True:
            mark = _END if self._is_in_page else _BEGIN
            at = self._held.find(mark, self._looked_at)
            if at < 0:
                # The last bytes may be the beginning of a mark.
                self._looked_at = max(len(self._held) - len(_DUMP_ENDS) + 1, 0)
                if self._is_in_page and self.num_held > self._most:
                    self._num_dropped += self._looked_at
                    self._let_go(self._looked_at)
                elif not self._is_in_page:
                    self._pass_gap(self._looked_at, len(self._held))
                return
            if self._is_in_page:
                yield from self._page(at + len(mark))
            else:
                self._pass_gap(at, at)
                if self._num_lost:
                    reason = "a page without the tag that it begins with"
                    yield _Stretch(self.offset - self._num_lost, self._num_lost, error=reason)
                self._is_in_page, self._is_ended, self._num_lost = True, False, 0
                self._looked_at = len(_BEGIN)

    def _page(self, end: int) -> Iterator[_Stretch]:
        start, length = self.offset - self._num_dropped, self._num_dropped + end
        data = bytes(self._held[:end])
        self._let_go(end)
        self._is_in_page = False
        if self._num_dropped or length > self._most:
            self._num_dropped = 0
            reason = (
                f"the page has {length} bytes, and limits.max_document_bytes = {self._max_document_bytes}: raise it, or"
                " take a dump with current revisions alone (pages-articles)"
            )
            yield _Stretch(start, length, error=reason)
            return
        # A page whose end is lost costs itself alone.
        if last := data.rfind(_BEGIN):
            yield _Stretch(start, last, error="a page that does not end before the next one begins")
        yield _Stretch(start + last, length - last, data[last:])

    def _pass_gap(self, num_bytes: int, seen: int) -> None:
        """Let bytes go that stand between two pages: nothing, the head or end of a dump, or what is left of a page.
        `seen`: up to where marks are looked for, which may lie across the end of these."""
        gap = self._held[:seen]
        self._is_ended = self._is_ended or _DUMP_ENDS in gap
        if self._num_lost or any(tag in gap for tag in _IN_PAGE):
            self._num_lost += num_bytes
        self._let_go(num_bytes)

    def _let_go(self, num_bytes: int) -> None:
        del self._held[:num_bytes]
        self.offset += num_bytes
        self._looked_at = 0


def _read_site(stream: BinaryIO, options: ReadOptions) -> _Site:
    """What stands before the first page; a dump that says nothing there has pages without URLs."""
    stream.seek(0)
    head = bytearray()
    with suppress(DamagedError, WindowError):
        for piece in read_through(Cursor(stream, max_window_bytes=options.max_window_bytes)):
            head += piece
            if _BEGIN in head or len(head) > _MAX_HEAD_BYTES:
                break
    found = _SITEINFO.search(head, 0, _MAX_HEAD_BYTES)
    if found is None or found[0].count(b"<") > _MAX_TAGS:
        return _Site()
    try:
        site = ElementTree.fromstring(found[0])
    except ElementTree.ParseError:
        return _Site()
    names = {each.get("key"): (each.text or "").replace("_", " ").lower() for each in site.iter("namespace")}
    media = {names[key] for key in _FILES if names.get(key)}
    base = (site.findtext("base") or "").rpartition("/")[0]
    return _Site(
        base=f"{base}/" if base.startswith(("https://", "http://")) else None,
        content_type=wikitext_type(
            {*_FILE_NAMES, *media}, {_CATEGORY, names.get(_CATEGORIES, _CATEGORY) or _CATEGORY}
        ),
    )


def _read_page(stretch: _Stretch, site: _Site, options: ReadOptions, counts: InputCounts) -> Document | None:
    """The document of a page; None for one that is only counted. UnreadableError if it is no page."""
    if stretch.error is not None:
        raise UnreadableError(stretch.error)
    if (num_tags := stretch.data.count(b"<")) > _MAX_TAGS:
        raise UnreadableError(f"the page has {num_tags} tags, expected at most {_MAX_TAGS}")
    try:
        page = ElementTree.fromstring(stretch.data)
        namespace = int(page.findtext("ns") or 0)
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        raise UnreadableError(f"the page cannot be read as XML of a dump: {type(error).__name__}") from error
    if (length := len(page.findtext("title") or "")) > _MAX_TITLE:
        raise UnreadableError(f"the page has a title of {length} characters, expected at most {_MAX_TITLE}")
    # Of a history, which Special:Export writes in either order, the newest; of equal times, or none, the last.
    revision = max(
        reversed(page.findall("revision")),
        key=lambda each: each.findtext("timestamp") or "now",
        default=ElementTree.Element("revision"),
    )
    if namespace not in options.namespaces:
        counts.add_row(f"namespace {namespace}")
    elif page.find("redirect") is not None:
        counts.add_row("redirect")
    elif revision.findtext("model", "wikitext") != "wikitext":
        counts.add_row("no wikitext")
    else:
        counts.add_row("page")
        return _document(page, revision, stretch, site, options)
    return None


def _document(
    page: ElementTree.Element,
    revision: ElementTree.Element,
    stretch: _Stretch,
    site: _Site,
    options: ReadOptions,
) -> Document:
    title, timestamp = page.findtext("title") or "", revision.findtext("timestamp") or ""
    payload = (revision.findtext("text") or "").encode()
    page_id, revision_id = page.findtext("id") or "", revision.findtext("id") or ""
    return Document(
        doc_id=ids.row_doc_id(options.source, options.file, page_id, memoryview(payload)),
        source=options.source,
        place=Place(file=options.file, offset=stretch.offset, length=stretch.length),
        raw_hash=ids.content_hash(payload),
        num_bytes=len(payload),
        payload=payload,
        content_type=site.content_type,
        record_id=page_id or None,
        url=None if site.base is None else site.base + quote(title.replace(" ", "_"), _IN_URL),
        captured_at=timestamp if _TIMESTAMP.fullmatch(timestamp) else None,
        metadata=metadata_with(None, page_id=page_id, revision_id=revision_id, title=title),
        charset="utf-8",
    )
