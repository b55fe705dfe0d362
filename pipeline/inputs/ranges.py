"""Byte ranges of files, fetched by few connections, each again where an answer breaks off or a server is busy.

A request for a range states its end, so a server sends nothing in vain."""

from __future__ import annotations

import io
import random
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Final, cast

from lineage.storage.errors import UnreachableError
from lineage.storage.folder import filesystem, is_remote, local_path
from pipeline.inputs.files import Input
from pipeline.inputs.retries import READING, Retries
from pipeline.inputs.selected import MOST_JOINED, SelectedRecord, SelectedRecords, joined
from stages.document import Document
from stages.reading.options import FileSpan, InputCounts, ReadOptions, Unreadable

CONNECTIONS: Final = 2
"""Of one reader at once: what is fetched while the records before it are parsed. A machine has as many readers
as it has workers, and Common Crawl asks for few connections."""


class FileRanges:
    """Reads ranges of one file, `url`, which messages call `shown`. FileNotFoundError or OSError where the file is
    not there, stays out of reach or changes meanwhile. A range behind the end of the file is shorter."""

    def __init__(self, url: str, shown: str, retries: Retries | None = None) -> None:
        self._url, self._shown, self._retries = url, shown, retries or READING
        self._http: Any = None

    def read(self, begin: int, length: int) -> bytes:
        if not is_remote(self._url):
            with open(local_path(self._url), "rb") as file:
                file.seek(begin)
                return file.read(length)
        if not self._url.startswith(("http://", "https://", "hf://")):
            return self._from_store(begin, length)
        if self._http is None:
            from pipeline.inputs.http_file import HttpRanges

            address, headers = (
                filesystem(self._url).address(self._url) if self._url.startswith("hf://") else (self._url, {})
            )
            self._http = HttpRanges(address, self._shown, self._retries, headers)
        return cast(bytes, self._http.read(begin, length))

    def _from_store(self, begin: int, length: int) -> bytes:
        """From an object store, whose client repeats requests itself for some seconds."""
        for attempt in range(1, self._retries.attempts + 1):
            try:
                store = filesystem(self._url)
                return cast(bytes, store.cat_file(self._url, start=begin, end=begin + length))
            except UnreachableError:
                if attempt == self._retries.attempts:
                    raise
                time.sleep(self._retries.pause(attempt) * random.uniform(0.5, 1.5))
        raise AssertionError


class RangeStream(io.RawIOBase):
    """`length` bytes of a file from `begin`, read by ranges as they are asked for."""

    def __init__(self, reader: FileRanges, begin: int, length: int) -> None:
        self._reader, self._begin, self._length = reader, begin, length
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        self._position = max(start + offset, 0)
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        length = min(len(buffer), self._length - self._position, MOST_JOINED)
        data = self._reader.read(self._begin + self._position, length) if length > 0 else b""
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRecord:
    """A selected record and a stream of its bytes: fewer where the file ends before it does. Reading it raises
    FileNotFoundError where the file is not there."""

    record: SelectedRecord
    stream: BinaryIO


def fetched(inputs: Sequence[Input], retries: Retries | None = None) -> Generator[FetchedRecord, None, None]:
    """The selected records of files, in order: of each file those of its `records`. While one is worked on, the
    next few requests are under way. OSError as of FileRanges."""
    groups = (
        (FileRanges(found.address, found.url, retries), group)
        for found in inputs
        for group in joined(list(found.records or ()))
    )
    is_near = all(not is_remote(found.url) for found in inputs)
    ahead: deque[tuple[FileRanges, list[SelectedRecord], Callable[[], bytes]]] = deque()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        try:
            for reader, group in groups:
                ahead.append((reader, group, _start(None if is_near else pool, reader, group)))
                if len(ahead) > CONNECTIONS:
                    yield from _records(*ahead.popleft())
            while ahead:
                yield from _records(*ahead.popleft())
        finally:
            pool.shutdown(cancel_futures=True)


def read_selected(
    fetched: FetchedRecord, records: SelectedRecords, options: ReadOptions, counts: InputCounts
) -> Iterator[Document | Unreadable]:
    """What a selected record is, at its place in its file, as the reading of the whole file gives it, with what the
    index says of it. What is no record is a stretch of the length that the index gives, which is lost alone."""
    from stages.reading.reader import read_documents  # not needed by a run from parsed texts

    record, of_record = fetched.record, InputCounts()
    told = (("crawl", records.crawl), ("warc_segment", records.segment), ("content_digest", record.digest))
    labels = tuple((name, value) for name, value in told if value is not None)
    # A length that is too long reaches into records that were not selected, or that are read by themselves.
    whole = replace(options, format="warc", size=None, span=FileSpan(begin=0, end=1))
    why = "the file ends before it, or the index is of another one"
    try:
        for item in read_documents(fetched.stream, whole, of_record):
            if isinstance(item, Document):
                place = replace(item.place, offset=record.offset + item.place.offset)
                yield item.but(place=place, labels=labels)
            else:
                yield replace(
                    item, offset=record.offset + item.offset, num_records=1, num_bytes=0, breaks_off=False
                )
    except FileNotFoundError:
        why = "its file is not there"
    if not of_record.num_records and not of_record.num_unreadable:
        yield Unreadable(
            file=options.file,
            offset=record.offset,
            length=record.length,
            error=f"no record is there: {why}",
            num_records=1,
            num_bytes=0,
        )
    of_record.notes.pop("empty", None)
    counts.add(of_record)


def _start(
    pool: ThreadPoolExecutor | None, reader: FileRanges, group: list[SelectedRecord]
) -> Callable[[], bytes]:
    """What gives the bytes of a group, which are on their way where there is a pool."""
    begin, end = _extent(group)
    if end - begin > MOST_JOINED:
        return bytes  # one long record, which is read as it is parsed
    if pool is None:
        return lambda: reader.read(begin, end - begin)
    under_way: Future[bytes] = pool.submit(reader.read, begin, end - begin)
    return under_way.result


def _records(
    reader: FileRanges, group: list[SelectedRecord], data_of: Callable[[], bytes]
) -> Iterator[FetchedRecord]:
    begin, end = _extent(group)
    data: bytes | None = None
    with suppress(FileNotFoundError):  # which each stream then raises
        data = data_of() if end - begin <= MOST_JOINED else None
    for record in group:
        if data is None:
            stream = io.BufferedReader(RangeStream(reader, record.offset, record.length), MOST_JOINED)
            yield FetchedRecord(record=record, stream=stream)
            continue
        first = record.offset - begin
        yield FetchedRecord(record=record, stream=io.BytesIO(data[first : first + record.length]))


def _extent(group: list[SelectedRecord]) -> tuple[int, int]:
    return group[0].offset, max(record.offset + record.length for record in group)
