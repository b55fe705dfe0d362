"""What lies between extraction and tokens, ours against datatrove's: processor time in one process, one core
each.

    python -m benchmarks.steps CRAWL [--times 1 9] [--rounds 2]

Both sides get the same English texts (trafilatura for precision) and go all the way from them to the list of
documents that stay: Gopher repetition and quality, C4, FineWeb, MinHash signatures, buckets, clusters and
removal, with the files that each writes in between. Languages are told before, so that neither side's time
holds fastText's. Given are the whole and, from two sizes, the cost of one more page."""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.dedup import write_corpus
from benchmarks.peers.datatrove import duplicate_stages, quality_filters
from benchmarks.rules import FINEWEB_ORDER
from benchmarks.rules import ours as judged
from benchmarks.support.texts import PLAIN_WORD, english, extracted
from pipeline.dedup.corpus import deduplicate
from stages.dedup.options import DedupTable


def altered(texts: Sequence[str], times: int) -> list[str]:
    """The texts `times` over; in every copy but the first each third plain word is another one of the same
    text: no copy is a near-duplicate of another, and what rules look at stays as it is."""
    return [_mixed(text, random.Random(copy)) if copy else text for copy in range(times) for text in texts]


def _mixed(text: str, rng: random.Random) -> str:
    words, places = PLAIN_WORD.findall(text), itertools.count()
    return PLAIN_WORD.sub(lambda word: rng.choice(words) if next(places) % 3 == 0 else word[0], text)


def theirs(texts: Sequence[str], scratch: Path) -> tuple[int, int]:
    """Documents that datatrove's filters keep, and those that stay after deduplication."""
    from datatrove.data import Document
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.writers.jsonl import JsonlWriter
    from loguru import logger

    logger.remove()  # it tells of every task
    documents = [
        Document(text=text, id=str(number), metadata={"language": "en"}) for number, text in enumerate(texts)
    ]
    filtered = str(scratch / "filtered")
    stages = [
        ([documents, *quality_filters(), JsonlWriter(filtered)], 1),
        *duplicate_stages(filtered, scratch, 1),
    ]
    counts = []
    for number, (steps, tasks) in enumerate(stages):
        executor = LocalPipelineExecutor(
            pipeline=steps, tasks=tasks, workers=1, logging_dir=str(scratch / f"{number}")
        )
        counts.append(executor.run().stats[-1].stats)
    return int(counts[0]["total"].total), int(counts[-1]["forwarded"].total)


def ours(texts: Sequence[str], scratch: Path) -> tuple[int, int]:
    """The same of our steps."""
    kept = [text for text, stays in zip(texts, judged(texts, FINEWEB_ORDER), strict=True) if stays]
    result = deduplicate(write_corpus(scratch, kept, DedupTable(url=False, bands=14, rows=8)))
    return len(kept), len(kept) - sum(result.counts.dropped.values())


def spent(
    side: Callable[[Sequence[str], Path], tuple[int, int]], texts: Sequence[str]
) -> tuple[float, tuple[int, int]]:
    """Processor seconds of one side, and what it kept."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        begun = time.process_time()
        kept = side(texts, Path(scratch))
        return time.process_time() - begun, kept


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("crawl", type=Path)
    parser.add_argument(
        "--times", type=int, nargs=2, default=[1, 9], help="the two sizes, as multiples of the crawl"
    )
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    pages = english(extracted(asked.crawl, "trafilatura", 1_000_000))
    sides = {"datatrove": theirs, "ours": ours}
    for side in sides.values():
        spent(side, pages[:20])  # models and tables are loaded
    best: dict[tuple[str, int], float] = {}
    for times in asked.times:
        texts = altered(pages, times)
        for _ in range(asked.rounds):
            for name, side in sides.items():
                seconds, (kept, stay) = spent(side, texts)
                best[name, times] = min(best.get((name, times), seconds), seconds)
                print(
                    json.dumps(
                        {
                            "side": name,
                            "pages": len(texts),
                            "kept": kept,
                            "after_dedup": stay,
                            "cpu_s": round(seconds, 2),
                        }
                    ),
                    flush=True,
                )
    small, large = asked.times
    extra = len(pages) * (large - small)
    each = {name: 1000 * (best[name, large] - best[name, small]) / extra for name in sides}
    print(
        f"one more English page costs {each['ours']:.2f} ms of processor time, datatrove's"
        f" {each['datatrove']:.2f}: {each['datatrove'] / each['ours']:.1f} times less"
    )


if __name__ == "__main__":
    main()
