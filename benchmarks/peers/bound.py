"""What the libraries of the fast way take alone: reading and decoding pages, resiliparse's extraction,
fastText's prediction. No rule, hash, row or shard: no pipeline that gets its texts and languages from them
can be faster.

    python -m benchmarks.peers.bound CRAWL OUT

Two plain processes, a file at a time, 64 pages through each library in turn. Writes OUT/run.json as a run
does."""

from __future__ import annotations

import concurrent.futures
import itertools
import json
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

from benchmarks.peers.plain import WORKERS
from benchmarks.support.texts import main_text, pages_of, predicted

_TOGETHER = 64


def main(crawl: str, out: str) -> None:
    """Take every page of the crawl through the libraries."""
    started, seconds = time.perf_counter(), Counter[str]()
    with concurrent.futures.ProcessPoolExecutor(WORKERS) as pool:
        for spent in pool.map(_take, sorted(Path(crawl).glob("*.warc.gz"))):
            seconds.update(spent)
    Path(out).mkdir()
    (Path(out) / "run.json").write_text(json.dumps({"seconds": {"crawl": seconds}}))
    print(f"{time.perf_counter() - started:.1f} s")


def _take(path: Path) -> dict[str, float]:
    """Seconds of each library over one file, and of `all`."""
    seconds, started = defaultdict[str, float](float), time.perf_counter()
    pages = pages_of(path)
    while htmls := list(itertools.islice(pages, _TOGETHER)):
        begun = time.perf_counter()
        texts = [main_text(html) for html in htmls]
        parsed = time.perf_counter()
        for text in texts:
            predicted(text)
        seconds["parse"] += parsed - begun
        seconds["language"] += time.perf_counter() - parsed
    return {**seconds, "all": time.perf_counter() - started}


if __name__ == "__main__":
    main(*sys.argv[1:])
