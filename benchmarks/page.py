"""How long the lineage page takes to answer, over many pages, and how its server's memory grows: a synthetic
output with texts, clusters, token shards and a training run.

One server is asked as a browser asks it, for pages of documents, for searches by each of their names and for
what the training run read; and some times for what reads whole columns. Told are the median, the 99th and the
slowest answer by the clock, the slowest first byte, processor seconds of the server a page, and its memory
before the first page and after the last. The bound beside them is a page that asks the store nothing (the SQL
box, empty). With --s3 the store lies in a server that speaks S3, and the requests of a page to it are told.

    python -m benchmarks.page --rows 1000000 10000000 --pages 1000
    python -m benchmarks.page --rows 50000 500000 --pages 60 --s3
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import requests

from benchmarks import store, store_requests
from benchmarks.output_contents import RUN, WholeOutput
from lineage.storage.folder import Folder, filesystem

ABSENT = "-or-not"
"""Behind a URL that is none."""
_ALERT = re.compile(r'role="alert".*?>(.*?)</', re.DOTALL)
_TICKS = os.sysconf("SC_CLK_TCK")


def places_of(row: dict[str, Any], copy: dict[str, Any], step: int) -> dict[str, str]:
    """The page of one document, and the searches that lead to it; that of a near duplicate, and what differs
    between it and the one that was kept; what the training run read in `step`."""
    named = store.questions(row)
    file, offset = named["warc"].split()
    shard, token = named["token"].split()
    searched = {
        "url": named["url"] + "/",
        "hash": named["hash"],
        "host": named["host"],
        "crawl place": f"{file}@{offset}",
        "token": f"web/{shard}:{token}",
    }
    return {
        "nothing (bound)": "sql",
        "front": "",
        "runs": "runs",
        "a run": f"runs/{RUN}",
        "curves of a run": f"runs/{RUN}/metrics.json",
        "document": f"document/{named['id']}",
        "near duplicate": f"document/{copy['doc_id'].hex()}",
        "what differs": f"document/{copy['doc_id'].hex()}/diff?with={copy['duplicate_of'].hex()}",
        "tokens": f"document/{named['id']}/tokens",
        "search by step": f"search?q={RUN}:{step}",
        "search by step and row": f"search?q={RUN}:{step}:3",
        **{f"search by {kind}": f"search?{urlencode({'q': name})}" for kind, name in searched.items()},
    }


def slow_places(sample: dict[str, Any]) -> dict[str, str]:
    """What reads whole columns: each is asked a few times."""
    sql = "SELECT rule, count(*) FROM documents WHERE status = 'rejected' GROUP BY rule"
    of_host = f"SELECT * FROM documents WHERE host = '{sample['host']}'"
    band = "SELECT doc_id, url, rule FROM documents WHERE source = 'web' AND stage = 'dedup.near' LIMIT 200"
    return {
        "what it is made of": "shape",
        "SQL, group-by of rejections": f"sql?{urlencode({'q': sql})}",
        "SQL, documents of a host": f"sql?{urlencode({'q': of_host})}",
        "SQL, a band of the funnel": f"sql?{urlencode({'q': band})}",
        "words": f"search?{urlencode({'q': 'words:the harbour'})}",
        "words that are nowhere": f"search?{urlencode({'q': 'words:xylophonist quagga'})}",
        "a URL that is none": f"search?{urlencode({'q': str(sample['url']) + ABSENT})}",
    }


class Server:
    """A page that is being served, by a process of its own."""

    def __init__(self, out: Folder, state: str) -> None:
        command = [sys.executable, "-m", "pipeline", "page", out.url, "--json"]
        environment = {**os.environ, "XDG_STATE_HOME": state}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        self.may_be_stopped: set[str] = set()
        self.session = requests.Session()
        self.base = self.session.get(json.loads(self.process.stdout.readline())["url"], timeout=600).url

    def seconds(self, place: str) -> tuple[float, float]:
        """How long a page takes to its end and to its first byte, without what it redirects to."""
        began = time.perf_counter()
        answer = self.session.get(
            self.base + place,
            headers={"Sec-Fetch-Mode": "navigate"},
            timeout=600,
            allow_redirects=False,
        )
        took = time.perf_counter() - began
        is_told = answer.status_code in (200, 302) or place.endswith(ABSENT)
        assert is_told, (place, answer.status_code, answer.text[-500:])
        alert = _ALERT.search(answer.text)
        # What a question over whole columns came to at the page's limits of time and memory is its answer;
        # no page of a document may end so.
        assert alert is None or place in self.may_be_stopped, (place, alert[1])
        if alert is not None:
            print(f"{place}: {alert[1].strip()}", file=sys.stderr, flush=True)
        return took, answer.elapsed.total_seconds()

    @property
    def processor(self) -> float:
        """Processor seconds so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    @property
    def mb(self) -> int:
        """Memory that it holds now."""
        return (
            int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
            >> 20
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What of an output is asked for: kept documents, near duplicates, and steps before `num_steps`."""

    samples: list[dict[str, Any]]
    duplicates: list[dict[str, Any]]
    num_steps: int

    def places(self, number: int) -> dict[str, str]:
        """The places of one kept document, one duplicate and one step."""
        of = (self.samples, self.duplicates)
        row, copy = (rows[number % len(rows)] for rows in of)
        return places_of(row, copy, number * 7919 % self.num_steps)


def measure(server: Server, asked: Asked, num_pages: int, num_slow: int = 5) -> dict[str, Any]:
    """Ask for so many pages, each kind in turn and each of another document."""
    kinds = list(asked.places(0))
    for place in asked.places(-1).values():
        server.seconds(place)
    before = server.mb
    took: dict[str, list[tuple[float, float]]] = defaultdict(list)
    spent: dict[str, float] = defaultdict(float)

    def visit(kind: str, place: str) -> None:
        began = server.processor
        took[kind].append(server.seconds(place))
        spent[kind] += server.processor - began

    for number in range(num_pages):
        kind = kinds[number % len(kinds)]
        visit(kind, asked.places(number // len(kinds))[kind])
    after = server.mb
    print(json.dumps(_answers(took, spent), indent=1), file=sys.stderr, flush=True)
    for number in range(num_slow):
        slow = slow_places(asked.samples[number % len(asked.samples)])
        server.may_be_stopped = set(slow.values())
        for kind, place in slow.items():
            visit(kind, place)
    return {"seconds": _answers(took, spent), "mb_before": before, "mb_after": after, "pages": num_pages}


def _answers(took: dict[str, list[tuple[float, float]]], spent: dict[str, float]) -> dict[str, Any]:
    return {
        kind: {
            "pages": len(times),
            "median": round(statistics.median(whole for whole, _ in times), 4),
            "p99": round(sorted(whole for whole, _ in times)[int(0.99 * (len(times) - 1))], 4),
            "worst": round(max(whole for whole, _ in times), 4),
            "worst_first_byte": round(max(first for _, first in times), 4),
            "processor": round(spent[kind] / len(times), 4),
        }
        for kind, times in took.items()
    }


def count_requests(server: Server, log: Path, asked: Asked) -> dict[str, dict[str, int]]:
    """The requests to the store that one page of each kind makes, when others were shown before."""
    counts = {}
    for kind, place in asked.places(len(asked.samples) // 2).items():
        offset = len(log.read_text(errors="replace"))
        server.seconds(place)
        counts[kind] = store_requests.requests(log, offset)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000], help="documents of the stores")
    parser.add_argument("--pages", type=int, default=1_000, help="pages that each server is asked for")
    parser.add_argument("--s3", action="store_true", help="the stores lie in a local server that speaks S3")
    parser.add_argument("--scratch", type=Path, help="where the stores go for the time of the run")
    options = parser.parse_args()
    told: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir=options.scratch) as scratch:
        log = Path(scratch) / "log"
        s3 = store_requests.serve(log) if options.s3 else None
        try:
            if s3 is not None:
                filesystem(f"s3://{store_requests.BUCKET}").mkdir(store_requests.BUCKET)
            for rows in options.rows:
                root = f"s3://{store_requests.BUCKET}" if options.s3 else scratch
                out = Folder(f"{root}/{rows}")
                contents = WholeOutput(out=out, rows=rows)
                samples = store.build(out, rows, scratch, contents)
                num_steps = contents.record_training(Folder(f"{scratch}/training-{rows}")) + 1
                asked = Asked(samples=samples, duplicates=contents.duplicates, num_steps=num_steps)
                server = Server(out, scratch)
                try:
                    told[rows] = measure(server, asked, options.pages)
                    if s3 is not None:
                        told[rows]["requests"] = count_requests(server, log, asked)
                finally:
                    server.process.kill()
                    server.process.wait()
        finally:
            if s3 is not None:
                s3.kill()
                s3.wait()
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
