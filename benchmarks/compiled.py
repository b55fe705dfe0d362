"""What each compiled module saves of a page's processor time, beside the numpy code that it took the place
of.

    python -m benchmarks.compiled CRAWL.warc.gz… [--rounds 5]

A chain of every step runs over the files' pages with each extractor, and what it asks of the modules is noted
down. The same is then asked of them and of the earlier code (from the commit before they came, out of git's
history), in turns, in one process; the answers are compared on the way, and the best of the rounds counts.
The memo of words begins empty in each round, as in a new process, and is measured once more when it is full
of the same texts' words (`words_warm`): a long run lies between the two. `words` is what memo.pyx and
affix_loop.pyx save together."""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from stages.chain import DEFAULT_STEPS, build_chain
from stages.dedup.minhash import Signer
from stages.dedup.options import DedupTable
from stages.document import Document
from stages.html import page as html_page
from stages.html.markup_bounds import markup_bounds
from stages.quality import text_view
from stages.quality.languages import STOP_WORDS
from stages.quality.options import QualityTable
from stages.quality.windows import Windows
from stages.quality.words import Splitter
from stages.reading.options import ReadOptions
from stages.reading.reader import read_documents
from stages.steps.catalogue import StepTables
from stages.steps.language import LanguageTable
from stages.steps.parse import ParseTable

_BEFORE: Final = "becd4d2ad968ead35ed7c2aa553c46467c181bdf"
"""The last commit without compiled modules."""
_MAX_DEPTH: Final = ParseTable().max_depth
_MAX_BYTES: Final = 20 << 20
_RULES: Final = ("gopher_repetition", "gopher_quality", "c4", "fineweb")


class Asked:
    """What a run asked of the modules: pages for their markup, texts for their words, (letters, lengths,
    calls) for their n-grams."""

    def __init__(self) -> None:
        self.pages: list[bytes] = []
        self.texts: list[str] = []
        self.grams: list[tuple[str, array[int], list[tuple[str, int]]]] = []


class _NotedWindows:
    """Windows, with each call noted down."""

    def __init__(self, asked: Asked, solid: str, lengths: array[int]) -> None:
        self._windows = Windows(solid, lengths)
        self._calls: list[tuple[str, int]] = []
        asked.grams.append((solid, lengths, self._calls))

    def most_common(self, n: int) -> tuple[int, int] | None:
        self._calls.append(("most_common", n))
        return self._windows.most_common(n)

    def greedy_duplicate_chars(self, n: int) -> int:
        self._calls.append(("greedy_duplicate_chars", n))
        return self._windows.greedy_duplicate_chars(n)

    def num_chars(self, start: int, n: int) -> int:
        return self._windows.num_chars(start, n)


@contextmanager
def noting(asked: Asked) -> Iterator[None]:
    """Within it everything that is asked of the three modules is noted down."""
    split = Splitter.split

    def noted_bounds(
        html: bytes, head: list[tuple[int, int]] | None = None
    ) -> tuple[int, int, int, int, int, bool]:
        asked.pages.append(html)
        return markup_bounds(html, head)

    def noted_split(self: Splitter, text: str) -> Any:
        asked.texts.append(text)
        return split(self, text)

    html_page.markup_bounds = noted_bounds  # type: ignore[attr-defined]
    text_view.Windows = lambda solid, lengths: _NotedWindows(asked, solid, lengths)  # type: ignore[attr-defined,assignment,misc]
    Splitter.split = noted_split  # type: ignore[method-assign]
    try:
        yield
    finally:
        html_page.markup_bounds, text_view.Windows, Splitter.split = markup_bounds, Windows, split  # type: ignore


def documents_of(crawl: Path) -> list[Document]:
    """The documents of a crawl file."""
    reading = ReadOptions(source="crawl", file=crawl.name, max_document_bytes=_MAX_BYTES)
    with crawl.open("rb") as stream:
        return [item for item in read_documents(stream, reading) if isinstance(item, Document)]


def run(crawl: Sequence[Path], extractor: Any, *, prefilter: bool) -> int:
    """What units of the read phase do but for writing their rows: read files, take their documents through
    every step before those that compare documents, sign what stays. Gives the number of documents."""
    tables = StepTables(
        max_document_bytes=_MAX_BYTES,
        parse=ParseTable(extractor=extractor),
        language=LanguageTable(prefilter=prefilter),
        quality=QualityTable(rules=_RULES, c4_terminal_punctuation=False),
    )
    signer, num_documents = Signer(DedupTable()), 0
    for file in crawl:
        for outcome in build_chain(DEFAULT_STEPS, tables).run([documents_of(file)], {}):
            num_documents += 1
            if isinstance(outcome, Document):
                signer.signature(outcome.text)
    return num_documents


def earlier(folder: Path) -> Any:
    """The earlier code's modules (markup, windows, words), as a package of another name."""
    (folder / "before").mkdir()
    for name in (
        "markup.py",
        "quality/windows.py",
        "quality/words.py",
        "quality/tokens.py",
        "quality/spacy_tokens.py",
    ):
        shown = subprocess.run(
            ["git", "show", f"{_BEFORE}:stages/{name}"], capture_output=True, text=True, check=True
        )
        for module in ("windows", "words", "tokens", "spacy_tokens"):
            shown.stdout = shown.stdout.replace(f"stages.quality.{module} ", f"before.{module} ")
        (folder / "before" / Path(name).name).write_text(shown.stdout)
    sys.path.insert(0, str(folder))
    return [importlib.import_module(f"before.{name}") for name in ("markup", "windows", "words")]


def best(rounds: int, *sides: Callable[[], object]) -> list[float]:
    """Processor seconds of each side's best round, the sides in turns; ValueError where they answer
    differently."""
    seconds = [float("inf")] * len(sides)
    for _ in range(rounds):
        answers = []
        for number, side in enumerate(sides):
            begun = time.process_time()
            answers.append(side())
            seconds[number] = min(seconds[number], time.process_time() - begun)
        if any(answer != answers[0] for answer in answers):
            raise ValueError("the compiled module and the code before it give different answers")
    return seconds


def measure(crawl: Sequence[Path], extractor: str, before: Any, rounds: int) -> dict[str, Any]:
    """Milliseconds a page of a whole unit and, for each module, of itself, of the earlier code, and the share
    that it saves of a unit with the earlier code."""
    markup, old_windows, old_words = before
    asked, prefilter = Asked(), extractor == "trafilatura"
    with noting(asked):
        num_pages = run(crawl, extractor, prefilter=prefilter)
    (whole,) = best(rounds, lambda: run(crawl, extractor, prefilter=prefilter))

    # Loading spaCy's tables is not what is measured: as many splitters as are asked for, made beforehand.
    stop_words = STOP_WORDS["en"]
    fresh = [Splitter("en", stop_words) for _ in range(rounds)]
    old_fresh = [old_words.Splitter("en", stop_words) for _ in range(rounds)]
    warm, old_warm = fresh[-1], old_fresh[-1]

    # The earlier n-grams start from hashes that its memo of words kept.
    ready = [(old_tokens(old_words, solid, lengths), solid, calls) for solid, lengths, calls in asked.grams]

    sides = {
        "markup_bounds": (
            lambda: [markup_bounds(page)[0] for page in asked.pages],
            lambda: [bounds_before(markup, page) for page in asked.pages],
        ),
        "words": (
            lambda: words(asked.texts, fresh.pop(0), lambda split: split.lengths()),
            lambda: words(asked.texts, old_fresh.pop(0), lambda split: split.tokens().lengths),
        ),
        "words_warm": (
            lambda: words(asked.texts, warm, lambda split: split.lengths()),
            lambda: words(asked.texts, old_warm, lambda split: split.tokens().lengths),
        ),
        "windows": (lambda: grams(asked), lambda: grams_before(old_windows, ready)),
    }
    each = 1000 / num_pages
    result: dict[str, Any] = {"extractor": extractor, "pages": num_pages, "page_ms": round(whole * each, 2)}
    result |= {"texts": len(asked.texts), "texts_with_grams": len(asked.grams)}
    for name, (ours, theirs) in sides.items():
        mine, old = best(rounds, ours, theirs)
        result[name] = {
            "ms": round(mine * each, 4),
            "before_ms": round(old * each, 4),
            "saves": f"{(old - mine) / (whole + old - mine):.1%}",
        }
    return result


def words(texts: Sequence[str], splitter: Any, lengths_of: Callable[[Any], Any]) -> list[object]:
    """What a splitter gives of each text."""
    found: list[object] = []
    for text in texts:
        split = splitter.split(text)
        found.append(
            (split.counts.num_tokens, split.counts.word_chars, split.solid(), len(lengths_of(split)))
        )
    return found


def grams(asked: Asked) -> list[object]:
    """The answers to every question about n-grams."""
    found: list[object] = []
    for solid, lengths, calls in asked.grams:
        windows = Windows(solid, lengths)
        found += [getattr(windows, name)(n) for name, n in calls]
    return found


def grams_before(old_windows: Any, ready: Sequence[tuple[Any, str, list[tuple[str, int]]]]) -> list[object]:
    """The same of the earlier code."""
    found: list[object] = []
    for tokens, solid, calls in ready:
        windows = old_windows.Windows(tokens, solid)
        found += [getattr(old_windows, name)(windows, n) for name, n in calls]
    return found


def bounds_before(markup: Any, page: bytes) -> int:
    """What the earlier code asked of a page's markup."""
    markup.depth_bound(page, _MAX_DEPTH)
    tags: int = markup.num_tags(page)
    return tags


def old_tokens(old_words: Any, solid: str, lengths: array[int]) -> Any:
    """The words of a text as the earlier code held them."""
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + length)
    codes = [old_words.hash_of(solid[a:b]) for a, b in itertools.pairwise(ends)]
    numbers = old_words.np
    return old_words.Tokens(
        lengths=numbers.array(lengths, numbers.int64), hashes=numbers.array(codes, numbers.uint64)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("crawl", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        before = earlier(Path(scratch))
        for extractor in ("resiliparse", "trafilatura"):
            print(json.dumps(measure(asked.crawl, extractor, before, asked.rounds)), flush=True)


if __name__ == "__main__":
    main()
