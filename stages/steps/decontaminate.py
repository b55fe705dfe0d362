"""Decontaminate step: turns documents down that hold much of an item of a benchmark."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

from lineage.recipe import RecipeError, errors_about, key
from lineage.secrets import without_secrets
from stages.composition import clean_text
from stages.document import Document, Outcome, decide
from stages.ngrams import Encode, NgramIndex
from stages.rules import Rule
from stages.steps.benchmark_items import read_lines, short_names

STAGE = "decontaminate"
_OVERLAP: Final = Rule(
    stage=STAGE,
    name="decontaminate.overlap",
    side="above, or 1",
    keys=("decontaminate.ratio",),
    help="the largest share of a benchmark's item that the document holds",
)
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecontaminateTable:
    """`[decontaminate]`: which texts must not be trained on."""

    against: tuple[str, ...] = key((), is_path=True, help="JSONL files of benchmark items, also .gz")
    field: str = key("text", help="the key that holds an item's text; a.b for b within a")
    ngram: Literal["13w", "8t"] = key(
        "13w",
        help="13-grams of words, or 8-grams of the recipe's tokens; both in lower case, without punctuation",
    )
    ratio: float = key(
        0.5, at_least=0, at_most=1, help="a document with more than this share of an item is rejected"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmarks:
    """The items of all files, ready to be looked for; `names` says of each which it is, as in
    gsm8k.jsonl:17."""

    index: NgramIndex
    names: Sequence[str]


class DecontaminateStep:
    """Its rule measures the largest overlap that an item has with the document (see `stages.ngrams`), and
    names that item: of several the first."""

    stage = STAGE

    def __init__(
        self,
        table: DecontaminateTable,
        load_encode: Callable[[], Encode] | None = None,
        *,
        ledger: bool = False,
    ) -> None:
        self._table = table
        self._load_encode = load_encode
        self._ledger = ledger
        self._rules = decontaminate_rules(table)

    def prepare(self) -> None:
        """Read the benchmarks now; RecipeError if one cannot be, or has nothing that can be looked for."""
        _ = self._benchmarks

    def __call__(self, document: Document, /) -> Outcome:
        found = self._benchmarks.index.match(document.text)
        largest = max(found, key=lambda match: match.overlap, default=None)
        overlap = 0.0 if largest is None else largest.overlap
        matched = None if largest is None else self._benchmarks.names[largest.item]
        findings = [replace(rule.finding(overlap), matched=matched) for rule in self._rules]
        return decide(document, findings, ledger=self._ledger)

    @cached_property
    def _benchmarks(self) -> Benchmarks:
        encode = self._load_encode() if self._load_encode and self._table.ngram == "8t" else None
        return read_benchmarks(self._table, encode)


def decontaminate_rules(table: DecontaminateTable) -> tuple[Rule, ...]:
    """Every rule of the step."""
    return (_OVERLAP.at(table.ratio),)


def read_benchmarks(table: DecontaminateTable, encode: Encode | None) -> Benchmarks:
    """The items of the table's files; RecipeError names a file of which none can be looked for."""
    with errors_about("decontaminate.against"):
        read = {file: read_lines(file, table.field) for file in table.against}
    # As parse leaves texts: composed, with line feeds. Another form of the same item would not be found in
    # them.
    items = [clean_text(item.text)[0] for of_file in read.values() for item in of_file]
    shown = short_names(table.against)
    names = [f"{shown[file]}:{item.line}" for file, of_file in read.items() for item in of_file]
    index = NgramIndex(items, table.ngram, encode)
    skipped, first = set(index.skipped), 0
    for file, of_file in read.items():
        # The output is recorded as checked against each file.
        if skipped.issuperset(range(first, first + len(of_file))):
            raise RecipeError(
                f"decontaminate.against: none of the {len(of_file)} items of {without_secrets(file)!r} is long"
                " enough to look for, so nothing would be compared; give items of five words or more"
            )
        first += len(of_file)
    if skipped:
        _LOG.warning(
            "%d of %d benchmark items have fewer than 5 words and are skipped", len(skipped), len(items)
        )
    return Benchmarks(index=index, names=names)
