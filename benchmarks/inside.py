"""Repeats inside documents: time and memory over 1, 4 and 16 times the real pages, and the length of anchors' n-grams;
over up to a million short documents; and what is found beside Google's tool.

    python -m benchmarks.inside CRAWL [--times 1 4 16] [--min-bytes 100 500]
    python -m benchmarks.inside CRAWL --beside 300 [--min-bytes 100 500]
    python -m benchmarks.inside --documents 62500 250000 1000000 [--engines local ray_data]

The pages' texts are repeated with other words, so that each time has the repeats of the first and none with it. Each
measurement is a process of its own; the peak is of resident memory, above what the texts took.

`--beside`: the bytes that are cut or stay as the twin of a cut, beside those that `self-similar` and `collect` of
deduplicate-text-datasets name: by its definition, every byte of a window that stands twice.

`--documents`: 30 to 110 words each, drawn from 200,000 by Zipf's law. Three in ten hold a planted passage of 20 to 45
words, before and after words of their own: a tenth of these one of three menus, which so stand in 1% of all documents
each, and the others one of a pool with a passage for 20 documents. Memory is that of the driver, and of the largest
worker on Ray."""

from __future__ import annotations

import argparse
import json
import pickle
import random
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import psutil

from benchmarks.dedup_scale import run_below
from benchmarks.support.texts import extracted
from pipeline.cluster.session import ray_session
from pipeline.dedup.exchange import Engine, InPhases, InProcess
from pipeline.dedup.inside.flow import InsideJob, look_inside
from stages.dedup.inside import anchors
from stages.dedup.inside.options import InsideTable
from stages.dedup.options import DedupTable
from tests.support.inputs.dedup_corpus import Corpus, Doc
from tests.support.inputs.inside_corpus import beside_googles_tool, inside_job, look

_WORD = re.compile(r"\w+")
_DOCUMENTS_A_FILE: Final = 62_500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("crawl", type=Path, nargs="?")
    parser.add_argument("--times", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--min-bytes", type=int, nargs="+", default=[100, 500])
    parser.add_argument("--beside", type=int, metavar="PAGES")
    parser.add_argument("--documents", type=int, nargs="+")
    parser.add_argument("--engines", nargs="+", choices=("local", "ray_data"), default=("local", "ray_data"))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--write", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        print(json.dumps(write_documents(**json.loads(options.write))))
    elif options.measure:
        case = json.loads(options.measure)
        print(json.dumps(measure(options.crawl, **case) if options.crawl else measure_documents(**case)))
    elif options.documents:
        many_documents(options.documents, options.engines)
    elif options.crawl is None:
        parser.error("expected CRAWL or --documents")
    elif options.beside:
        for min_bytes in options.min_bytes:
            beside(options.crawl, options.beside, min_bytes)
    else:
        over_pages(options)


def over_pages(options: argparse.Namespace) -> None:
    """Each method over some times the pages."""
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
        print(*called(str(options.crawl), "--measure", json.dumps(case)).values(), flush=True)


def called(*words: str) -> dict[str, object]:
    """What this module prints in a process of its own."""
    call = [sys.executable, "-m", "benchmarks.inside", *words]
    ended = subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, object] = json.loads(ended.stdout.splitlines()[-1])
    return found


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


def beside(crawl: Path, num_pages: int, min_bytes: int) -> None:
    """What is found of that which Google's tool finds."""
    texts = [text for text in extracted(crawl, "resiliparse", num_pages * 2) if text][:num_pages]
    docs = [Doc(text=text, name=str(number)) for number, text in enumerate(texts)]
    corpus = Corpus(files={(0, 0): docs}, table=DedupTable(near=False, url=False, exact=True))
    table = InsideTable(method="substring", min_bytes=min_bytes, min_chars=1)
    with tempfile.TemporaryDirectory() as folder:
        found = beside_googles_tool(corpus, look(corpus, Path(folder), table), min_bytes)
    print(
        f"{found.num_documents} pages, {found.num_bytes:,} bytes, {min_bytes} bytes and more: the tool names"
        f" {found.num_named:,} bytes, of which {found.num_both:,} are cut or a twin's (recall"
        f" {found.num_both / found.num_named:.4f}); cut or a twin's are {found.num_ours:,} (precision"
        f" {found.num_both / found.num_ours:.4f}); cut are {found.num_cut:,}"
    )


def many_documents(sizes: Sequence[int], engines: Sequence[str]) -> None:
    """Each size by each engine."""
    table = InsideTable(method="substring", min_bytes=100)
    print(
        "engine documents megabytes planted_MB cut_MB cuts rejected wall_s processor_s s/MB driver_MB"
        " above_start_MB worker_MB"
    )
    for size in sizes:
        for engine in engines:
            with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
                known = {"folder": folder, "min_bytes": table.min_bytes}
                written = called("--write", json.dumps({**known, "num_documents": size}))
                found = called("--measure", json.dumps({"folder": folder, "engine": engine, **written}))
                print(*found.values(), flush=True)


def write_documents(*, folder: str, num_documents: int, min_bytes: int) -> dict[str, int]:
    """Write such a corpus, compared, and the job that looks inside it; its bytes, and those of passages that were
    planted before."""
    words = _vocabulary()
    drawn = np.random.default_rng(7)
    pool = [_passage(drawn, words) for _ in range(max(1, num_documents // 20))]
    menus = [_passage(drawn, words) for _ in range(3)]
    files: dict[tuple[int, int], Sequence[Doc]] = {}
    num_bytes, num_planted, seen = 0, 0, set[str]()
    for number in range(-(-num_documents // _DOCUMENTS_A_FILE)):
        docs = []
        for at in range(min(_DOCUMENTS_A_FILE, num_documents - number * _DOCUMENTS_A_FILE)):
            text = _text(drawn, words, int(drawn.integers(30, 111)))
            if drawn.random() < 0.3:
                among = menus if drawn.random() < 0.1 else pool
                passage = among[int(drawn.integers(len(among)))]
                middle = text.index(" ", len(text) // 2)
                text = f"{text[:middle]}\n{passage}\n{text[middle + 1 :]}"
                num_planted += len(passage) if passage in seen else 0
                seen.add(passage)
            num_bytes += len(text)
            docs.append(Doc(text=text, name=f"{number} {at}"))
        files[0, number] = docs
    corpus = Corpus(files=files, table=DedupTable(near=False, url=False, exact=True))
    table = InsideTable(method="substring", min_bytes=min_bytes)
    job = inside_job(corpus, Path(folder), table)
    (Path(folder) / "job.pickle").write_bytes(pickle.dumps(job))
    return {"num_documents": num_documents, "num_bytes": num_bytes, "num_planted": num_planted}


def _vocabulary() -> list[str]:
    chosen = random.Random(3)
    letters = "etaoinshrdlucmfwypvbgk"
    return ["".join(chosen.choices(letters, k=chosen.randint(2, 12))) for _ in range(200_000)]


def _text(drawn: np.random.Generator, words: list[str], num_words: int) -> str:
    # Ranks by Zipf's law: the inverse of the distribution of 1 / rank, continuous.
    ranks = np.exp(drawn.random(num_words) * np.log(len(words))).astype(np.int64) - 1
    return " ".join(words[rank] for rank in ranks.tolist())


def _passage(drawn: np.random.Generator, words: list[str]) -> str:
    return _text(drawn, words, int(drawn.integers(20, 46)))


def measure_documents(
    *, folder: str, engine: str, num_documents: int, num_bytes: int, num_planted: int
) -> dict[str, object]:
    """One run of all phases: by this process, or by it and two workers."""
    job: InsideJob = pickle.loads((Path(folder) / "job.pickle").read_bytes())
    is_local = engine == "local"
    with nullcontext() if is_local else ray_session("local", num_cpus=2), _watched_workers() as workers:
        runner: Engine = InProcess() if is_local else InPhases(run_below(Path(folder)))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started, spent = time.perf_counter(), time.process_time()
        found = look_inside(job, runner)
        seconds, spent = time.perf_counter() - started, time.process_time() - spent
    spent += sum(workers.seconds.values())
    driver = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "engine": engine,
        "documents": num_documents,
        "megabytes": round(num_bytes / 1e6, 1),
        "planted_MB": round(num_planted / 1e6, 2),
        "cut_MB": round(found.counts.cut_chars / 1e6, 2),
        "cuts": found.counts.num_cuts,
        "rejected": sum(found.counts.dropped.values()),
        "wall_s": round(seconds, 1),
        "processor_s": round(spent, 1),
        "s/MB": round(spent / num_bytes * 1e6, 3),
        "driver_MB": round(driver / 1024),
        "above_start_MB": round((driver - before) / 1024),
        "worker_MB": round(workers.largest / 1e6),
    }


@dataclass(slots=True)
class _Workers:
    """The most memory in bytes, without what is shared, that one of Ray's workers below this process had, and the
    processor seconds of each."""

    largest: float = 0.0
    seconds: dict[int, float] = field(default_factory=dict)


@contextmanager
def _watched_workers() -> Iterator[_Workers]:
    workers, ended = _Workers(), threading.Event()

    def watch() -> None:
        me = psutil.Process()
        while not ended.wait(0.1):
            for child in me.children(recursive=True):
                try:
                    if " ".join(child.cmdline()).startswith("ray::"):
                        memory, times = child.memory_info(), child.cpu_times()
                        workers.largest = max(workers.largest, memory.rss - memory.shared)
                        workers.seconds[child.pid] = times.user + times.system
                except psutil.NoSuchProcess:
                    continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield workers
    finally:
        ended.set()
        watcher.join()


if __name__ == "__main__":
    main()
