"""The cost of reading publishers' signals on a page: its share of the page's whole time, measured side by side.

    python -m benchmarks.signals CRAWL [--rounds 5] [--pages 1000] [--extractor trafilatura]

CRAWL is a folder of WARC files. Batches of pages pass two chains in turns, in one process, as in a run: with signals,
all of them and a robots.txt for every host, and with `rights.record = []`. Each batch counts with the fastest of its
rounds on either side; the first round is not counted. `signals alone` is the time of reading the signals, the
page's HTML at hand; `without robots` that of headers and HTML alone, the default."""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from lineage.pages import page_of
from stages.chain import DEFAULT_STEPS, Chain, build_chain
from stages.document import Document
from stages.html.page import PageReader
from stages.reading.reader import InputCounts, ReadOptions, read_documents
from stages.rights.options import RightsTable
from stages.steps.catalogue import StepTables
from stages.steps.parse import ParseTable
from stages.steps.rights import RightsReader

_TOGETHER: Final = 64
_ROBOTS: Final = (
    "User-agent: *\nContent-Signal: search=yes,ai-train=no\nContent-Usage: / train-ai=n\nAllow: /\n\n"
    "User-agent: GPTBot\nUser-agent: CCBot\nDisallow: /private/\nDisallow: /*?print=\nAllow: /\n"
)


def read_pages(crawl: Path, most: int) -> list[Document]:
    """The first documents of a folder's WARC files."""
    found: list[Document] = []
    for path in sorted(crawl.glob("*.warc.gz")):
        with path.open("rb") as file:
            for item in read_documents(file, ReadOptions(source="crawl", file=path.name), InputCounts()):
                if isinstance(item, Document):
                    found.append(item)
                if len(found) == most:
                    return found
    return found


def write_robots(path: Path, documents: list[Document]) -> None:
    """A robots.txt response for the host of each page."""
    hosts = {page.host for document in documents if (page := page_of(document.url)) is not None}
    with path.open("wb") as file:
        writer = WARCWriter(file, gzip=True)
        for host in sorted(hosts):
            head = StatusAndHeaders("200 OK", [("Content-Type", "text/plain")], protocol="HTTP/1.1")
            url = f"https://{host}/robots.txt"
            payload = io.BytesIO(_ROBOTS.encode())
            writer.write_record(
                writer.create_warc_record(url, "response", payload=payload, http_headers=head)
            )


def run_batch(chain: Chain, batch: list[Document]) -> None:
    """All steps on a batch, as a run takes it."""
    for _ in chain.run([batch], {}):
        pass


def read_batch(reader: RightsReader, batch: list[Document]) -> None:
    """The signals of a batch whose pages are at hand."""
    for document in batch:
        reader.read(document)


def seconds_of(run: Callable[..., object], *arguments: object) -> float:
    """How long a call takes."""
    begun = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("crawl", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pages", type=int, default=1000)
    parser.add_argument("--extractor", default="trafilatura", choices=["trafilatura", "resiliparse"])
    options = parser.parse_args()
    documents = read_pages(options.crawl, options.pages)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        robots = Path(scratch) / "robots.warc.gz"
        write_robots(robots, documents)
        sides: dict[str, Chain] = {}
        for name, rights in {
            "without": RightsTable(record=()),
            "with": RightsTable(robots=(str(robots),)),
        }.items():
            tables = StepTables(
                max_document_bytes=16 << 20, parse=ParseTable(extractor=options.extractor), rights=rights
            )
            sides[name] = build_chain(DEFAULT_STEPS, tables)
            sides[name].prepare()
    table = sides["with"].tables
    pages = PageReader(table.parse.bounds(table.max_document_bytes), table.parse.timeout_seconds)
    readers = {
        "signals alone": RightsReader(table.rights, pages),
        "without robots": RightsReader(RightsTable(), pages),
    }
    batches = [documents[first : first + _TOGETHER] for first in range(0, len(documents), _TOGETHER)]
    at_hand = [
        [pages.with_page(document)[0] if document.is_html else document for document in batch]
        for batch in batches
    ]
    best = {name: [float("inf")] * len(batches) for name in (*sides, *readers)}
    for round_number in range(options.rounds + 1):
        for at, batch in enumerate(batches):
            # In turns, and the other side first each time: what one leaves in the caches helps the next.
            for name in list(sides) if (round_number + at) % 2 else list(reversed(sides)):
                seconds = seconds_of(run_batch, sides[name], batch)
                if round_number:
                    best[name][at] = min(best[name][at], seconds)
            for name, reader in readers.items():
                seconds = seconds_of(read_batch, reader, at_hand[at])
                if round_number:
                    best[name][at] = min(best[name][at], seconds)
    print(
        f"{len(documents):,} pages, default recipe with {options.extractor}, fastest of {options.rounds} rounds"
    )
    whole = sum(best["without"])
    for name, times in best.items():
        print(f"{name:14} {sum(times) / len(documents) * 1e6:9.0f} µs a page  {sum(times) / whole:7.2%}")
    print(f"with − without: {(sum(best['with']) - whole) / whole:.2%} of a page's time")


if __name__ == "__main__":
    main()
