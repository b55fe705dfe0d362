"""Processor time of the quality rules a page, ours against datatrove's filters, on the same texts in one
process.

usage: python -m benchmarks.rules CRAWL_DIR [--extractor resiliparse|trafilatura] [--every-language] (--help
for all)

Both sides take turns, rule set by rule set and round by round, and the best of the rounds counts. Ours
depends on which words its memo knows, so it is told four times:

  cold   the memo is empty (loading spaCy's tables is left out on both sides)
  new    the pages of one WARC file, never seen, after those of all the others; each file in its turn
  heaps  the same pages with their plain words drawn from a vocabulary that grows by Heaps' law, after three such copies
  seen   all pages once more

`new_words` is the share of what stands between white space that the memo did not know. datatrove's cache of
its last five splits is emptied before each page of a single rule set and left alone in "as one pipeline",
where it lets the repetition and quality filters share a split. Verdicts are compared on the way, on every
text of every kind; a disagreement ends the run with exit 1."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.support.texts import english, extracted_by_file, with_new_words
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
        Document(doc_id=b"", source="x", place=place, raw_hash=b"", text=text, language="en")
        for text in texts
    ]
    return [not isinstance(judge(page), Rejection) for page in documents]


def seconds(work: Callable[[], list[bool]]) -> tuple[float, list[bool]]:
    """Processor seconds of one call, and what it returned."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


class Best:
    """The least processor seconds of each pass over texts, and one side's verdicts held against the
    other's."""

    def __init__(self, rules: tuple[str, ...]) -> None:
        self.rules = rules
        self.seconds: dict[str, float] = {}
        self._filters = [peers()[rule] for rule in rules]

    def ours(self, name: str, texts: Sequence[str], expected: list[bool]) -> None:
        """One pass of ours over texts on which datatrove said `expected`."""
        spent, kept = seconds(lambda: ours(texts, self.rules))
        self._note(name, spent)
        if kept != expected:
            differing = sum(a != b for a, b in zip(kept, expected, strict=True))
            sys.exit(f"{self.rules}, {name}: the two sides disagree on {differing} texts")

    def theirs(self, name: str, texts: Sequence[str]) -> list[bool]:
        """One pass of datatrove's."""
        spent, kept = seconds(lambda: theirs(texts, self._filters, forget=len(self.rules) == 1))
        self._note(name, spent)
        return kept

    def _note(self, name: str, spent: float) -> None:
        self.seconds[name] = min(self.seconds.get(name, spent), spent)


def forgotten(rules: tuple[str, ...], after: Sequence[str] = ()) -> None:
    """A memo that knows the words of `after` alone."""
    quality.forget_splitters()
    ours(["Load the tables.", *after], rules)


def compare(name: str, files: Sequence[Sequence[str]], rules: tuple[str, ...], rounds: int) -> dict[str, Any]:
    """Milliseconds a page of both sides for one list of rule sets, alternating; `files` are the texts of each
    file."""
    texts = [text for file in files for text in file]
    best = Best(rules)
    theirs(["Load the tables."], [peers()[rule] for rule in rules], forget=True)
    grown = with_new_words(texts, 4)
    kept: list[bool] = []
    for _ in range(rounds):
        kept = best.theirs("datatrove", texts)
        forgotten(rules)
        best.ours("cold", texts, kept)
        best.ours("seen", texts, kept)
        new = 0.0
        for place, file in enumerate(files):
            forgotten(rules, [text for other in files if other is not file for text in other])
            start = sum(map(len, files[:place]))
            best.seconds.pop("file", None)
            best.ours("file", file, kept[start : start + len(file)])
            new += best.seconds.pop("file")
        best.seconds["new"] = min(best.seconds.get("new", new), new)
        expected = best.theirs("datatrove_heaps", grown[-1])
        forgotten(rules, [text for copy in grown[:-1] for text in copy])
        best.ours("heaps", grown[-1], expected)
    told = {f"{side}_ms": round(1000 * spent / max(len(texts), 1), 3) for side, spent in best.seconds.items()}
    ratios = {side: best.seconds["datatrove"] / best.seconds[side] for side in ("cold", "new", "seen")}
    ratios["heaps"] = best.seconds["datatrove_heaps"] / best.seconds["heaps"]
    return {
        "rules": name,
        "pages": len(texts),
        "kept": sum(kept),
        **told,
        **{f"{side}_ratio": round(ratio, 1) for side, ratio in ratios.items()},
    }


def new_share(files: Sequence[Sequence[str]]) -> float:
    """The share of the substrings between white space that occur in no other file."""
    of_file = [[word for text in file for word in text.split()] for file in files]
    known = [set(words) for words in of_file]
    new = 0
    for place, words in enumerate(of_file):
        others = set().union(*(one for other, one in enumerate(known) if other != place))
        new += sum(word not in others for word in words)
    return new / max(sum(map(len, of_file)), 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("crawl", type=Path)
    parser.add_argument("--extractor", choices=["resiliparse", "trafilatura"], default="resiliparse")
    parser.add_argument("--pages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help='one rule set, or "as one pipeline"')
    parser.add_argument("--every-language", action="store_true", help="also pages that are not English")
    asked = parser.parse_args()
    files = extracted_by_file(asked.crawl, asked.extractor, asked.pages)
    files = [file if asked.every_language else english(file) for file in files]
    print(json.dumps({"new_words": round(new_share(files), 4)}), flush=True)
    for rules in (*((rule,) for rule in FINEWEB_ORDER), FINEWEB_ORDER):
        name = rules[0] if len(rules) == 1 else "as one pipeline"
        if asked.only in (None, name):
            print(json.dumps(compare(name, files, rules, asked.rounds)), flush=True)


if __name__ == "__main__":
    main()
