"""`sluice index`: the pages of WARC files as a table in the form of Common Crawl's columnar index.

It has a row for each record that is a document (HTML or text with status 200, or none), with the columns of
https://commoncrawl.org/columnar-index, by their names there; what is not known is null. The files have the rows of
many WARC files, sorted by url_surtkey; they are a function of the WARC files and their order."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa
from publicsuffixlist import PublicSuffixList

from lineage.index.output_index import INDEX_FILE
from lineage.pages import page_of
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, is_remote
from lineage.store.delta import arrow_dataset, read_table
from pipeline.inputs.files import Input, NamedFiles, list_inputs, may_be_called, open_input
from pipeline.results.rows import publish_table
from stages.document import Document
from stages.quality.languages import LABELS
from stages.reading.magic import HEAD_BYTES, is_streamed
from stages.reading.options import InputCounts, ReadOptions
from stages.reading.reader import detect_format, read_documents
from stages.reading.warc.headers import mime_type

_PART_ROWS: Final = 100_000
"""Rows of a file, and those of the WARC file that reaches it."""
_ZSTD_DICTIONARY: Final = b"\x5d\x2a\x4d\x18"
"""What a .warc.zst file begins with whose members need the dictionary in its first frame."""
_SEGMENT: Final = re.compile(r"/segments/([^/]+)/")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

SCHEMA: Final = pa.schema([
    ("url_surtkey", pa.string()), ("url", pa.string()), ("url_host_name", pa.string()), ("url_host_tld", pa.string()),
    ("url_host_2nd_last_part", pa.string()), ("url_host_3rd_last_part", pa.string()),
    ("url_host_4th_last_part", pa.string()), ("url_host_5th_last_part", pa.string()),
    ("url_host_registry_suffix", pa.string()), ("url_host_registered_domain", pa.string()),
    ("url_host_private_suffix", pa.string()), ("url_host_private_domain", pa.string()),
    ("url_host_name_reversed", pa.string()), ("url_protocol", pa.string()), ("url_port", pa.int32()),
    ("url_path", pa.string()), ("url_query", pa.string()), ("fetch_time", pa.timestamp("ms", "UTC")),
    ("fetch_status", pa.int16()), ("fetch_redirect", pa.string()), ("content_digest", pa.string()),
    ("content_mime_type", pa.string()), ("content_mime_detected", pa.string()), ("content_charset", pa.string()),
    ("content_languages", pa.string()), ("content_truncated", pa.string()), ("warc_filename", pa.string()),
    ("warc_record_offset", pa.int64()), ("warc_record_length", pa.int64()), ("warc_segment", pa.string()),
])  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenIndex:
    """What was written: `index` and `root` are what the keys of a [[source]] take. `passed_over` says of files
    that hold no record which a range gives, and `num_inside` counts records that lie with others in one member."""

    index: str
    root: str
    num_records: int
    num_files: int
    num_inside: int
    passed_over: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Warc:
    found: Input
    languages: Mapping[int, str]


def write_index(
    places: Sequence[str], to: Folder, crawl: str, notify: Callable[[int, int], None] = lambda done, of: None
) -> WrittenIndex:
    """Write the index of WARC files below `to`. Of a finished output among `places` its input files are meant, and
    the languages that its run found are in the table. The same call writes the same files.

    RecipeError where a file is missing, no file has records that a range gives, or files have no folder in common."""
    if not _NAME.fullmatch(crawl):
        raise RecipeError(f"--crawl {crawl!r}: expected letters, digits, '.', '-' or '_', at most 100")
    folder = f"crawl={crawl}/subset=warc"
    if strangers := [name for name in to.names() if not name.startswith(f"{folder}/part-")]:
        raise RecipeError(
            f"--to {to.url} holds {strangers[0]!r}, which is no part of the index of {crawl}: name a folder of its own"
        )
    warcs = [warc for place in places for warc in _warcs_of(place)]
    warcs = list({warc.found.url: warc for warc in warcs}.values())
    root = _common_root([warc.found.url for warc in warcs])
    rows: list[dict[str, object]] = []
    passed_over: list[str] = []
    num_records = num_parts = num_inside = 0

    def write_part() -> None:
        nonlocal num_parts, rows
        rows.sort(
            key=lambda row: (row["url_surtkey"], row["url"], row["warc_filename"], row["warc_record_offset"])
        )
        publish_table(to, f"{folder}/part-{num_parts:05d}.parquet", pa.Table.from_pylist(rows, schema=SCHEMA))
        num_parts, rows = num_parts + 1, []

    for number, warc in enumerate(warcs):
        why = _why_no_ranges(warc.found)
        if why is not None:
            passed_over.append(f"{warc.found.url} is passed over: {why}")
            continue
        found = list(_rows_of(warc, warc.found.url.removeprefix(f"{root}/")))
        single = _alone(found)
        num_inside += len(found) - len(single)
        num_records += len(single)
        rows += single
        if len(rows) >= _PART_ROWS:
            write_part()
        notify(number + 1, len(warcs))
    if rows:
        write_part()
    if not num_records:
        reason = (
            passed_over[0]
            if passed_over
            else f"{root} holds no page that lies alone in its compressed member"
        )
        raise RecipeError(f"nothing to index: {reason}")
    for name in to.names(folder):
        if int(name.rpartition("-")[2].removesuffix(".parquet")) >= num_parts:
            to.remove(name)  # of an earlier call with more files
    to.sync()
    return WrittenIndex(
        index=to.at(""),
        root=root,
        num_records=num_records,
        num_files=len(warcs) - len(passed_over),
        num_inside=num_inside,
        passed_over=passed_over,
    )


def _warcs_of(place: str) -> Iterator[_Warc]:
    out = Folder(place)
    if not (place.endswith((".paths", ".paths.gz")) or any(mark in place for mark in "*?[")) and out.exists(
        INDEX_FILE
    ):
        inputs = read_table(out, "inputs")
        languages = _languages(out)
        for source, file in sorted(
            zip(inputs["source"].to_pylist(), inputs["file"].to_pylist(), strict=True)
        ):
            (found,) = list_inputs(NamedFiles(key=f"the inputs of {place}", inputs=(file,)))
            named = [name for of, name in languages if of == source and may_be_called(file, name)]
            yield _Warc(found=found, languages=languages[source, max(named, key=len)] if named else {})
        return
    for found in list_inputs(NamedFiles(key="OUT|WARC", inputs=(place,))):
        yield _Warc(found=found, languages={})


def _languages(out: Folder) -> dict[tuple[str, str], dict[int, str]]:
    """The language of each document, by source and name of its file, and offset."""
    columns = ["source", "warc_file", "warc_offset", "language"]
    found: dict[tuple[str, str], dict[int, str]] = {}
    for batch in arrow_dataset(out, "documents").to_batches(columns=columns):
        for source, file, offset, language in zip(
            *(batch.column(name).to_pylist() for name in columns), strict=True
        ):
            if language is not None and file is not None and offset is not None:
                found.setdefault((source, file), {})[offset] = language
    return found


def _common_root(urls: Sequence[str]) -> str:
    schemes = {url.partition("://")[0] if is_remote(url) else "" for url in urls}
    paths = [url.partition("://")[2] if is_remote(url) else url for url in urls]
    root = (
        os.path.commonpath([posixpath.dirname(path) for path in paths]) if len(schemes) == 1 and paths else ""
    )
    if root in ("", "/"):
        raise RecipeError(
            f"{urls[0]} and {urls[-1]} have no folder in common, to which an index could name them: make one of each"
            if urls
            else "nothing to index: no file is named"
        )
    scheme = schemes.pop()
    return f"{scheme}://{root}" if scheme else root


def _why_no_ranges(found: Input) -> str | None:
    """Why no range of bytes of a file is a record; None where it may be."""
    with open_input(found) as stream:
        head = stream.read(HEAD_BYTES)
        stream.seek(0)
        if head.startswith(_ZSTD_DICTIONARY):
            return "its members need the dictionary in its first frame (unzstd, and compress it anew)"
        if is_streamed(head):
            return "its records lie anywhere in a bzip2 or xz stream: pack each as a gzip member (warcio recompress)"
        kind = detect_format(stream, ReadOptions(source="index", file=found.name, size=found.size))
    return None if kind == "warc" else "it holds no WARC records"


class _LastRecord(InputCounts):
    """Counts that remember the HTTP status of the last record: a document follows its record."""

    status: int | None = None

    def add_record(self, kind: str, mime: str | None, status: int | None) -> None:
        self.status = status
        InputCounts.add_record(self, kind, mime, status)


def _rows_of(warc: _Warc, name: str) -> Iterator[dict[str, object]]:
    counts = _LastRecord()
    segment = _SEGMENT.search(warc.found.url)
    options = ReadOptions(source="index", file=name, size=warc.found.size)
    with open_input(warc.found) as stream:
        for item in read_documents(stream, options, counts):
            if not isinstance(item, Document):
                continue
            language = warc.languages.get(item.place.offset)
            yield {
                **_of_url(item.url or ""),
                "url": item.url,
                "fetch_time": _time(item.captured_at),
                "fetch_status": counts.status,
                "content_digest": _digest(item),
                "content_mime_type": mime_type(item.content_type),
                "content_charset": item.charset or item.charset_hint,
                "content_languages": language and LABELS.get(language, language).partition("_")[0],
                "content_truncated": item.truncated,
                "warc_filename": name,
                "warc_record_offset": item.place.offset,
                "warc_record_length": item.place.length,
                "warc_segment": segment and segment[1],
            }


def _alone(rows: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """The rows of records that lie alone in their place: of several in one compressed member a range gives all."""
    num = Counter(row["warc_record_offset"] for row in rows)
    return [row for row in rows if num[row["warc_record_offset"]] == 1]


def _digest(document: Document) -> str | None:
    """SHA-1 of the payload in base32, as WARC-Payload-Digest has it; None of one that is too long to be held."""
    if len(document.payload) != document.num_bytes:
        return None
    return base64.b32encode(hashlib.sha1(document.payload).digest()).decode()


def _time(captured_at: str | None) -> datetime | None:
    return None if captured_at is None else datetime.fromisoformat(captured_at.replace("Z", "+00:00"))


def _of_url(url: str) -> dict[str, object]:
    """The columns of a URL; without a page it has no host."""
    page = page_of(url)
    if page is None:
        return {"url_surtkey": url.lower()}
    split = urlsplit(page.spelt)
    is_address = ":" in page.host or page.host.rpartition(".")[2].isdecimal()
    labels = [page.host] if is_address else page.host.split(".")
    # A key sorts by domain, as the Internet Archive's SURT: the host reversed, then path and query.
    query = f"?{split.query}" if split.query else ""
    of_host = {
        f"url_host_{name}_last_part": labels[-number] for number, name in _PARTS if number <= len(labels)
    }
    try:
        port = split.port
    except ValueError:
        port = None
    return {
        "url_surtkey": f"{','.join(reversed(labels))}){split.path or '/'}{query}".lower(),
        "url_host_name": page.host,
        "url_host_tld": None if is_address else labels[-1],
        **of_host,
        **({} if is_address else _of_suffixes("registry", "registered", page.host, is_private=False)),
        **({} if is_address else _of_suffixes("private", "private", page.host, is_private=True)),
        "url_host_name_reversed": ".".join(reversed(labels)),
        "url_protocol": split.scheme.lower(),
        "url_port": port,
        "url_path": split.path,
        "url_query": split.query or None,
    }


_PARTS: Final = ((2, "2nd"), (3, "3rd"), (4, "4th"), (5, "5th"))


def _of_suffixes(suffix: str, domain: str, host: str, *, is_private: bool) -> dict[str, str | None]:
    known = _suffixes(is_private)
    return {
        f"url_host_{suffix}_suffix": known.publicsuffix(host),
        f"url_host_{domain}_domain": known.privatesuffix(host),
    }


@functools.cache
def _suffixes(is_private: bool) -> PublicSuffixList:
    return PublicSuffixList(only_icann=not is_private)
