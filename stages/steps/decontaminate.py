"""Decontaminate step: turns documents down that hold much of an item of a benchmark."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from lineage.recipe import RecipeError, blamed_on, key
from stages.document import Document, Finding, Outcome, decide
from stages.ngrams import Encode, NgramIndex
from stages.steps.parse import clean_text
from stages.steps.textfiles import read_named_file

STAGE = "decontaminate"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecontaminateTable:
    """`[decontaminate]`: which texts must not be trained on."""

    against: tuple[str, ...] = key((), is_path=True, help="JSONL files of benchmark items, also .gz")
    field: str = key("text", help="the key that holds an item's text; a.b for b within a")
    ngram: Literal["13w", "8t"] = key("13w", help="13-grams of words, or 8-grams of the recipe's tokens")
    ratio: float = key(0.5, at_least=0, at_most=1, help="a document with more than this share of an item goes")


class DecontaminateStep:
    """Rule: `decontaminate.overlap`; value is the largest overlap that an item has with the document (see
    `stages.ngrams`), and it is rejected above the threshold, or at 1 whatever the threshold."""

    stage = STAGE

    def __init__(
        self, table: DecontaminateTable, load_encode: Callable[[], Encode] | None = None, *, ledger: bool = False
    ) -> None:
        self._table = table
        self._load_encode = load_encode
        self._ledger = ledger

    def prepare(self) -> None:
        """Read the benchmarks now; RecipeError if one cannot be, or has nothing that can be looked for."""
        _ = self._index

    def __call__(self, document: Document, /) -> Outcome:
        overlap = max((match.overlap for match in self._index.match(document.text)), default=0.0)
        ratio = self._table.ratio
        finding = Finding(
            stage=STAGE,
            rule="decontaminate.overlap",
            value=overlap,
            threshold=ratio,
            rejected=overlap > ratio or overlap == 1,
        )
        return decide(document, (finding,), ledger=self._ledger)

    @cached_property
    def _index(self) -> NgramIndex:
        encode = self._load_encode() if self._load_encode and self._table.ngram == "8t" else None
        return benchmark_index(self._table, encode)


def benchmark_index(table: DecontaminateTable, encode: Encode | None) -> NgramIndex:
    """The index of all items of the table's files; RecipeError if a file has none that can be looked for."""
    with blamed_on("decontaminate.against"):
        # As parse leaves texts: composed, with line feeds. Another form of the same item would not be found in them.
        items = [clean_text(item)[0] for file in table.against for item in read_items(file, table.field)]
    index = NgramIndex(items, table.ngram, encode)
    if len(index.skipped) == len(items):
        raise RecipeError(
            f"decontaminate.against = {list(table.against)}: none of the {len(items)} items is long enough to look "
            "for, so nothing would be compared; give items of five words or more"
        )
    if index.skipped:
        _LOG.warning("%d of %d benchmark items have fewer than 5 words and are skipped", len(index.skipped), len(items))
    return index


def read_items(file: str, field: str) -> list[str]:
    """The texts at `field` of a JSONL file's lines, in order; RecipeError names the line that has none."""
    items = []
    for number, line in enumerate(read_named_file(file).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            value: object = json.loads(line)
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RecipeError(f"{file} line {number} is not JSON: {error}") from error
        for part in field.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if not isinstance(value, str):
            raise RecipeError(f"{file} line {number} has no text at {field!r}: name the key of the text")
        items.append(value)
    return items
