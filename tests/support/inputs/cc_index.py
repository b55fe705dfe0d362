"""A small crawl in Common Crawl's layout: WARC files of requests, responses and metadata, their list, and the
columnar index, whose places are those that warcio finds."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from warcio.archiveiterator import ArchiveIterator

from pipeline.demo.pages import render_page, write_article
from tests.support.inputs.make_warc import http, member, record

CRAWL = "CC-MAIN-2026-10"
SEGMENT = "1770000000000.10"
LANGUAGES = {"en": "eng", "it": "ita", "de": "deu"}
TABLE = f"cc-index/table/cc-main/warc/crawl={CRAWL}"
_COLUMNS = {
    "url": pa.string(), "url_host_name": pa.string(), "url_host_tld": pa.string(), "fetch_status": pa.int16(),
    "content_digest": pa.string(), "content_mime_type": pa.string(), "content_languages": pa.string(),
    "warc_filename": pa.string(), "warc_record_offset": pa.int32(), "warc_record_length": pa.int32(),
    "warc_segment": pa.string(),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallCrawl:
    """`rows` are those of the index, `paths` the WARC files below `folder`."""

    folder: Path
    rows: Sequence[dict[str, Any]]
    paths: Sequence[str]

    @property
    def paths_list(self) -> str:
        return str(self.folder / "crawl-data" / CRAWL / "warc.paths.gz")

    @property
    def index(self) -> str:
        return str(self.folder / TABLE / "subset=warc")


def make_crawl(folder: Path, num_files: int = 3, num_pages: int = 12, seed: int = 0) -> SmallCrawl:
    """Files of so many pages each in three languages, a few of them 404; the index has those in a subset of their
    own."""
    rng = random.Random(seed)
    paths = []
    rows: list[dict[str, Any]] = []
    for number in range(num_files):
        name = f"crawl-data/{CRAWL}/segments/{SEGMENT}/warc/{CRAWL}-{number:05d}.warc.gz"
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        told: dict[str, tuple[str, str]] = {}
        with open(path, "wb") as file:
            file.write(member(record(b"software: a test\r\n", "info", **{"WARC-Type": "warcinfo"})))
            for page in range(num_pages):
                language = rng.choice(list(LANGUAGES))
                host = f"site-{page % 5}.{'edu' if page % 3 else 'com'}"
                url = f"https://{host}/{number}/{page}"
                html = render_page(write_article(language, rng), host, rng)
                status = "404 Not Found" if page % 6 == 5 else "200 OK"
                told[url] = (language, status)
                request = b"GET / HTTP/1.1\r\nHost: " + host.encode() + b"\r\n\r\n"
                name_of = f"{number}-{page}"
                for kind, block in (("request", request), ("response", http(html, status=status))):
                    fields = {"WARC-Type": kind, "WARC-Target-URI": url}
                    file.write(member(record(block, f"{name_of}-{kind}", **fields)))
                file.write(member(record(b"a: b\r\n", f"{name_of}-meta", **{"WARC-Type": "metadata"})))
        paths.append(name)
        rows += _rows_of(path, name, told)
    listed = folder / "crawl-data" / CRAWL / "warc.paths.gz"
    listed.write_bytes(gzip.compress("".join(f"{name}\n" for name in paths).encode()))
    for subset, is_of in (("warc", 200), ("crawldiagnostics", 404)):
        of_subset = [row for row in rows if row["fetch_status"] == is_of]
        write_index(folder / TABLE / f"subset={subset}", of_subset)
    return SmallCrawl(folder=folder, rows=rows, paths=paths)


def write_index(folder: Path, rows: Sequence[dict[str, Any]], num_files: int = 2) -> None:
    """The rows, in the order of their URLs as Common Crawl has them, as Parquet files of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    ordered = sorted(
        rows, key=lambda row: ",".join(reversed(urlsplit(row["url"]).netloc.split("."))) + row["url"]
    )
    for number in range(num_files):
        part = ordered[len(ordered) * number // num_files : len(ordered) * (number + 1) // num_files]
        table = pa.Table.from_pylist(list(part), schema=pa.schema(list(_COLUMNS.items())))
        pq.write_table(table, folder / f"part-{number:05d}-x.c000.gz.parquet", compression="gzip")


def _rows_of(path: Path, name: str, told: dict[str, tuple[str, str]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with open(path, "rb") as file:
        records = ArchiveIterator(file)
        for found in records:
            if found.rec_type != "response":
                continue
            url = found.rec_headers.get_header("WARC-Target-URI")
            found.content_stream().read()
            offset, length = records.get_record_offset(), records.get_record_length()
            language, status = told[url]
            host = urlsplit(url).netloc
            rows.append({
                "url": url, "url_host_name": host, "url_host_tld": host.rpartition(".")[2],
                "fetch_status": int(status[:3]), "content_digest": f"DIGEST{len(rows):026d}",
                "content_mime_type": "text/html", "content_languages": LANGUAGES[language], "warc_filename": name,
                "warc_record_offset": offset, "warc_record_length": length, "warc_segment": SEGMENT,
            })  # fmt: skip
    return rows
