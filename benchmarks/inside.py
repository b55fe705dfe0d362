"""Repeats inside documents: time and memory over 1, 4 and 16 times the real pages, and the length of anchors' n-grams.

    python -m benchmarks.inside CRAWL [--times 1 4 16] [--min-bytes 100 500]

The pages' texts are repeated with other words, so that each time has the repeats of the first and none with it. Each
measurement is a process of its own; the peak is of resident memory, above what the texts took."""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.support.texts import extracted
from pipeline.dedup.exchange import InProcess
from pipeline.dedup.inside.flow import look_inside
from stages.dedup.inside import anchors
from stages.dedup.inside.options import InsideTable
from stages.dedup.options import DedupTable
from tests.support.inputs.dedup_corpus import Corpus, Doc
from tests.support.inputs.inside_corpus import inside_job

_WORD = re.compile(r"\w+")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("crawl", type=Path)
    parser.add_argument("--times", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--min-bytes", type=int, nargs="+", default=[100, 500])
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.crawl, **json.loads(options.measure))))
        return
    cases = [
        {"method": "substring", "min_bytes": size, "times": times, "share": 0.5}
        for size in options.min_bytes
        for times in options.times
    ]
    cases += [{"method": "substring", "min_bytes": 100, "times": 4, "share": share} for share in (0.3, 0.7)]
    cases += [
        {"method": method, "min_bytes": 500, "times": times, "share": 0.5}
        for method in ("line", "paragraph")
        for times in options.times
    ]
    print("method min_bytes n-gram times megabytes documents cuts seconds s/MB peak_MB")
    for case in cases:
        call = [sys.executable, "-m", "benchmarks.inside", str(options.crawl), "--measure", json.dumps(case)]
        found = json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)
        print(*(found[name] for name in found), flush=True)


def measure(crawl: Path, *, method: str, min_bytes: int, times: int, share: float) -> dict[str, object]:
    """One run of all phases in this process."""
    texts = extracted(crawl, "resiliparse", 10_000)
    docs = [
        Doc(text=other_words(text, n), name=f"{n} {at}")
        for n in range(times)
        for at, text in enumerate(texts)
    ]
    num_bytes = sum(len(doc.text.encode()) for doc in docs)
    corpus = Corpus(files={(0, 0): docs}, table=DedupTable(near=False, url=False, exact=True))
    table = InsideTable(method=method, min_bytes=min_bytes)  # type: ignore[arg-type]
    anchors.gram_bytes = lambda min_bytes: round(min_bytes * share)
    with tempfile.TemporaryDirectory() as folder:
        job = inside_job(corpus, Path(folder), table)
        num_docs = len(docs)
        del docs, corpus, texts
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.process_time()
        found = look_inside(job, InProcess())
        seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "method": method,
        "min_bytes": min_bytes,
        "n-gram": share,
        "times": times,
        "megabytes": round(num_bytes / 1e6, 1),
        "documents": num_docs,
        "cuts": found.counts.num_cuts,
        "seconds": round(seconds, 2),
        "s/MB": round(seconds / num_bytes * 1e6, 3),
        "peak_MB": round((peak - before) / 1024),
    }


def other_words(text: str, number: int) -> str:
    """The text with each word another one, equal ones alike; itself for number 0."""
    known: dict[str, str] = {}

    def other(found: re.Match[str]) -> str:
        word = found.group()
        if word not in known:
            chosen = random.Random(f"{number} {word}")
            known[word] = "".join(chosen.choice("abcdefghijklmnopqrstuvwxyz") for _ in word)
        return known[word]

    return _WORD.sub(other, text) if number else text


if __name__ == "__main__":
    main()
