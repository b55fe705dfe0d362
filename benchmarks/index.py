"""A columnar index as an input: a million records selected, and a tenth of a crawl's records fetched by range.

    python -m benchmarks.index [--rows 3000000]

First, rows of an index in Common Crawl's form are made, of which a third matches, and selected: on disk, and over a
loopback web server. The bound is one minute. Second, of a crawl on that server a tenth of the records is fetched, and
all of them: requests and bytes, beside the bytes of the files."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.inputs.index import select_inputs
from pipeline.inputs.ranges import fetched
from pipeline.recipe.tables import SourceTable
from tests.support.inputs.cc_index import make_crawl
from tests.support.stores.range_server import Ranges, range_server

_FILES = 12
_WARCS = 9_000


def make_index(folder: Path, num_rows: int) -> None:
    """Rows as a crawl's: digests and URLs that do not compress, records spread over thousands of files."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for number in range(_FILES):
        num = num_rows // _FILES
        warc = rng.integers(0, _WARCS, num)
        table = pa.table({
            "url": [f"https://site-{value}.example/{value:x}" for value in rng.integers(0, 1 << 60, num).tolist()],
            "content_digest": [f"{value:032X}" for value in rng.integers(0, 1 << 62, num).tolist()],
            "content_languages": np.array(["dan", "eng", "deu,eng"])[rng.integers(0, 3, num)],
            "fetch_status": np.full(num, 200, np.int16),
            "warc_filename": [f"crawl-data/CC-MAIN-2026-10/segments/1.{w % 100}/warc/{w:05d}.warc.gz" for w in warc],
            "warc_record_offset": rng.integers(0, 1 << 30, num),
            "warc_record_length": rng.integers(1_000, 60_000, num).astype(np.int32),
            "warc_segment": [f"1.{w % 100}" for w in warc],
        })  # fmt: skip
        pq.write_table(table, folder / f"part-{number:05d}.parquet", row_group_size=100_000)


def selected(index: str | tuple[str, ...]) -> tuple[float, int, int]:
    """Wall seconds of a selection, and the records and files that it gives."""
    source = SourceTable(
        name="web", index=index, where="content_languages LIKE '%dan%' AND fetch_status = 200"
    )
    started = time.perf_counter()
    inputs = select_inputs(source, 0)
    seconds = time.perf_counter() - started
    return seconds, sum(len(found.records or ()) for found in inputs), len(inputs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=3_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        index = root / "cc-index" / "crawl=CC-MAIN-2026-10" / "subset=warc"
        make_index(index, options.rows)
        size = sum(path.stat().st_size for path in index.iterdir())
        print(f"an index of {options.rows:,} rows, {size / 1e6:.0f} MB")
        seconds, num, num_files = selected(str(index))
        print(f"on disk: {num:,} records of {num_files:,} WARC files selected in {seconds:.1f} s")
        ranges = Ranges()
        with range_server(root, ranges) as url:
            there = tuple(f"{url}/{path.relative_to(root)}" for path in sorted(index.iterdir()))
            seconds, num, num_files = selected(there)
        num_bytes = sum(asked.end - asked.begin for asked in ranges.asked)
        print(
            f"over a web server: {num:,} records of {num_files:,} WARC files selected in {seconds:.1f} s,"
            f" {len(ranges.asked):,} requests, {num_bytes / 1e6:.0f} MB"
        )
    with tempfile.TemporaryDirectory() as folder:
        crawl = make_crawl(Path(folder), num_files=3, num_pages=1_000)
        whole = sum((crawl.folder / name).stat().st_size for name in crawl.paths)
        for sample in (0.1, 1.0):
            ranges = Ranges()
            with range_server(crawl.folder, ranges) as url:
                source = SourceTable(name="web", index=crawl.index, root=url, sample=sample)
                inputs = select_inputs(source, 0)
                num = sum(1 for _ in fetched(inputs))
            num_bytes = sum(asked.end - asked.begin for asked in ranges.asked)
            print(
                f"{num:,} records ({sample:.0%} of the pages) fetched by {len(ranges.asked):,} requests:"
                f" {num_bytes / 1e6:.1f} MB, of which their own {sum(found.size for found in inputs) / 1e6:.1f} MB;"
                f" the files have {whole / 1e6:.1f} MB"
            )


if __name__ == "__main__":
    main()
