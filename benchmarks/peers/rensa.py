"""A peer: rensa's deduplicator (MinHash in Rust, an index in memory) over texts of a JSONL file.

    PYTHON -m benchmarks.peers.rensa TEXTS.jsonl

Run by an interpreter that has rensa, which the project does not need; `benchmarks.dedup_scale --rensa-python`
does. It prints one line of JSON: processor seconds, memory in megabytes, and how many texts were dropped. 128
values in 16 bands, shingles of 5 words, threshold .8 of the estimated similarity: rensa verifies no pair by
its texts."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import rensa

SHINGLE = 5


def shingles(text: str) -> list[str]:
    """Runs of five words; a shorter text whole."""
    words = text.split()
    return [" ".join(words[start : start + SHINGLE]) for start in range(max(1, len(words) - SHINGLE + 1))]


def main(path: Path) -> None:
    with path.open() as file:
        texts = [json.loads(line)["text"] for line in file]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.process_time()
    index = rensa.RMinHashDeduplicator(threshold=0.8, num_perm=128, use_lsh=True, num_bands=16)
    kept = index.add_pairs((str(number), shingles(text)) for number, text in enumerate(texts))
    told = {
        "rensa_s": round(time.process_time() - begun, 2),
        "rensa_mb": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024),
        "rensa_dropped": len(kept) - sum(kept),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
