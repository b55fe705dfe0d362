"""Processor time of the quality rules a page, ours against datatrove's filters, on the same texts in one process.

usage: python benchmarks/rules.py CRAWL_DIR [--extractor resiliparse|trafilatura] [--every-language] (--help for all)

Both sides take turns, rule set by rule set and round by round. `cold` is our first pass over the texts with an empty
memo (loading spaCy's tables left out on both sides), `warm` the best of the later ones. datatrove's cache of its last
five splits is emptied before each page of a single rule set and left alone in "as one pipeline", where it lets the
repetition and quality filters share a split. Verdicts are compared on the way; a disagreement ends the run with exit 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.texts import english, extracted
from stages.document import Document, Place, Rejection
from stages.quality import step as quality
from stages.quality.options import QualityTable

FINEWEB_ORDER = ("gopher_repetition", "gopher_quality", "c4", "fineweb")
KEYS: dict[str, Any] = {"c4_terminal_punctuation": False}


def peers() -> dict[str, Any]:
    """datatrove's filters by our names."""
    from datatrove.pipeline import filters

    return {
        "gopher_repetition": filters.GopherRepetitionFilter(),
        "gopher_quality": filters.GopherQualityFilter(),
        "c4": filters.C4QualityFilter(filter_no_terminal_punct=False),
        "fineweb": filters.FineWebQualityFilter(),
    }


def theirs(texts: Sequence[str], filters: Sequence[Any], *, forget: bool) -> list[bool]:
    """Which texts pass datatrove's filters one after the other."""
    from datatrove.data import Document as PeerDocument
    from datatrove.utils.text import split_into_parts

    kept = []
    for text in texts:
        if forget:
            split_into_parts.cache_clear()
        page = PeerDocument(text=text, id="x")
        kept.append(all(one.filter(page) is True for one in filters))
    return kept


def ours(texts: Sequence[str], rules: tuple[str, ...]) -> list[bool]:
    """Which texts pass our rule sets."""
    judge = quality.quality_step(QualityTable(rules=rules, **KEYS))
    place = Place(file="x", offset=0, length=0)
    documents = [
        Document(doc_id=b"", source="x", place=place, raw_hash=b"", text=text, language="en") for text in texts
    ]
    return [not isinstance(judge(page), Rejection) for page in documents]


def seconds(work: Callable[[], list[bool]]) -> tuple[float, list[bool]]:
    """Processor seconds of one call, and what it returned."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def compare(name: str, texts: Sequence[str], rules: tuple[str, ...], rounds: int) -> dict[str, Any]:
    """Milliseconds a page of both sides for one list of rule sets, alternating."""
    filters = [peers()[rule] for rule in rules]
    quality.forget_splitters()
    ours(["Load the tables."], rules), theirs(["Load the tables."], filters, forget=True)
    mine: list[float] = []
    peer: list[float] = []
    for _ in range(rounds):
        spent, kept = seconds(lambda: ours(texts, rules))
        mine.append(spent)
        spent, expected = seconds(lambda: theirs(texts, filters, forget=len(rules) == 1))
        peer.append(spent)
        if kept != expected:
            sys.exit(
                f"{name}: the two sides disagree on {sum(a != b for a, b in zip(kept, expected, strict=True))} texts"
            )
    each = 1000 / max(len(texts), 1)
    best = min(peer)
    return {
        "rules": name,
        "pages": len(texts),
        "kept": sum(kept),
        "datatrove_ms": round(best * each, 3),
        "cold_ms": round(mine[0] * each, 3),
        "warm_ms": round(min(mine[1:]) * each, 3),
        "cold_ratio": round(best / mine[0], 1),
        "warm_ratio": round(best / min(mine[1:]), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("crawl", type=Path)
    parser.add_argument("--extractor", choices=["resiliparse", "trafilatura"], default="resiliparse")
    parser.add_argument("--pages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--every-language", action="store_true", help="also pages that are not English")
    asked = parser.parse_args()
    texts = extracted(asked.crawl, asked.extractor, asked.pages)
    texts = texts if asked.every_language else english(texts)
    for rules in (*((rule,) for rule in FINEWEB_ORDER), FINEWEB_ORDER):
        name = rules[0] if len(rules) == 1 else "as one pipeline"
        print(json.dumps(compare(name, texts, rules, max(asked.rounds, 2))), flush=True)


if __name__ == "__main__":
    main()
