"""A page of a crawl in this checkout beside another one: its text, and the time that it takes.

    python -m benchmarks.pages CRAWL --old CHECKOUT [--rounds 5] [--extractors resiliparse trafilatura]

CRAWL is a folder of WARC files, CHECKOUT another checkout of this project with its modules compiled. Each has
a process of its own, which works while the other waits; the sides are measured in turns and the first round
is not counted. `read` is records to documents, `parse` a page to its text, `chain` all steps with the default
recipe. Each page counts with the fastest of its rounds, by the clock: nothing else ran in between then.
(Processor time comes in steps of whole milliseconds on many machines, longer than a page takes.) Then the
pages whose texts differ, with what differs."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def serve(crawl: Path, extractors: list[str]) -> None:
    """Answer each line of stdin, the name of a part, with what the checkout of PYTHONPATH takes for it."""
    import stages.chain
    from stages.chain import DEFAULT_STEPS, build_chain
    from stages.document import Document
    from stages.reading.reader import InputCounts, ReadOptions, read_documents
    from stages.steps.parse import ParseTable

    def read() -> list[Document]:
        found = []
        for path in sorted(crawl.glob("*.warc.gz")):
            with path.open("rb") as file:
                items = read_documents(file, ReadOptions(source="crawl", file=path.name), InputCounts())
                found += [item for item in items if isinstance(item, Document)]
        return found

    documents = read()
    tables: Any = vars(stages.chain)["StepTables"]  # where older checkouts have it too
    chains = {}
    for name in extractors:
        parse = ParseTable(extractor=name)  # type: ignore[arg-type]
        chains[name] = build_chain(DEFAULT_STEPS, tables(max_document_bytes=16 << 20, parse=parse))
        chains[name].prepare()
    print("ready", flush=True)
    for line in sys.stdin:
        part, _, name = line.strip().partition(" ")
        seconds, texts = [], []
        if part == "read":
            begun = time.perf_counter()
            read()
            seconds.append(time.perf_counter() - begun)
        else:
            steps = [step for step in chains[name].steps if part != "parse" or step.stage == "parse"]
            for document in documents:
                begun = time.perf_counter()
                outcome: Any = document
                for step in steps:
                    outcome = step(outcome) if isinstance(outcome, Document) else outcome
                seconds.append(time.perf_counter() - begun)
                if part == "texts":
                    texts.append(outcome.text if isinstance(outcome, Document) else outcome.document.text)
        print(json.dumps([seconds, texts, [one.url for one in documents] if texts else []]), flush=True)


class Side:
    """A checkout at work."""

    def __init__(self, checkout: Path, crawl: Path, extractors: list[str]) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).resolve()),
                str(crawl.resolve()),
                "--serve",
                "--extractors",
                *extractors,
            ],
            env=os.environ | {"PYTHONPATH": str(checkout.resolve())},
            cwd=checkout,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._line()

    def ask(self, part: str) -> list[Any]:
        """Seconds of a part, for each page where it goes by pages, and for `texts` the texts and their
        URLs."""
        assert self._process.stdin is not None
        self._process.stdin.write(part + "\n")
        self._process.stdin.flush()
        answer: list[Any] = json.loads(self._line())
        return answer

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"a side ended with {self._process.wait()}")
        return line


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("crawl", type=Path)
    parser.add_argument("--old", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--extractors", nargs="+", default=["resiliparse"], choices=["resiliparse", "trafilatura"]
    )
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.crawl, asked.extractors)
        return
    if asked.old is None:
        parser.error("--old: the other checkout is missing")
    sides = {
        name: Side(place, asked.crawl, asked.extractors)
        for name, place in (("old", asked.old), ("new", Path(__file__).parents[1]))
    }
    parts = ["read", *(f"{part} {name}" for name in asked.extractors for part in ("parse", "chain"))]
    fastest: dict[tuple[str, str], list[float]] = {}
    for number in range(asked.rounds + 1):
        for part in parts:
            for name in sorted(sides, reverse=number % 2 == 0):
                seconds = sides[name].ask(part)[0]
                if number:
                    fastest[part, name] = list(map(min, seconds, fastest.get((part, name), seconds)))
    for part in parts:
        old, new = sum(fastest[part, "old"]), sum(fastest[part, "new"])
        print(
            json.dumps(
                {"part": part, "old_s": round(old, 3), "new_s": round(new, 3), "ratio": round(new / old, 3)}
            ),
            flush=True,
        )
    for extractor in asked.extractors:
        texts = {name: side.ask(f"texts {extractor}") for name, side in sides.items()}
        differing = 0
        for before, after, url in zip(texts["old"][1], texts["new"][1], texts["new"][2], strict=True):
            if before != after:
                differing += 1
                words = [one for one in difflib.ndiff(before.split(), after.split()) if one[0] in "+-"]
                print(
                    json.dumps({"extractor": extractor, "url": url, "differs": " ".join(words)[:400]}),
                    flush=True,
                )
        print(
            json.dumps(
                {"extractor": extractor, "pages": len(texts["new"][1]), "texts_that_differ": differing}
            )
        )


if __name__ == "__main__":
    main()
