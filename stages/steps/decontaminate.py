"""Decontaminate step: turns documents down that hold much of an item of a benchmark."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from lineage.recipe import RecipeError, blamed_on, key, utf8_text
from stages.document import Document, Outcome, decide
from stages.ngrams import Encode, NgramIndex
from stages.rules import Rule
from stages.steps.parse import clean_text
from stages.steps.textfiles import read_named_file

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
    ngram: Literal["13w", "8t"] = key("13w", help="13-grams of words, or 8-grams of the recipe's tokens")
    ratio: float = key(0.5, at_least=0, at_most=1, help="a document with more than this share of an item goes")


class DecontaminateStep:
    """Its rule measures the largest overlap that an item has with the document (see `stages.ngrams`)."""

    stage = STAGE

    def __init__(
        self, table: DecontaminateTable, load_encode: Callable[[], Encode] | None = None, *, ledger: bool = False
    ) -> None:
        self._table = table
        self._load_encode = load_encode
        self._ledger = ledger
        self._rules = decontaminate_rules(table)

    def prepare(self) -> None:
        """Read the benchmarks now; RecipeError if one cannot be, or has nothing that can be looked for."""
        _ = self._index

    def __call__(self, document: Document, /) -> Outcome:
        overlap = max((match.overlap for match in self._index.match(document.text)), default=0.0)
        return decide(document, [rule.finding(overlap) for rule in self._rules], ledger=self._ledger)

    @cached_property
    def _index(self) -> NgramIndex:
        encode = self._load_encode() if self._load_encode and self._table.ngram == "8t" else None
        return benchmark_index(self._table, encode)


def decontaminate_rules(table: DecontaminateTable) -> tuple[Rule, ...]:
    """Every rule of the step."""
    return (_OVERLAP.at(table.ratio),)


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
    text = utf8_text(read_named_file(file), file)
    # Not splitlines, which also splits at characters that JSON lets stand in a text.
    for number, line in enumerate(io.StringIO(text, newline=None), start=1):
        if not line.strip():
            continue
        try:
            value: object = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise RecipeError(f"{file} line {number} is not JSON: {error}") from error
        for part in field.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if not isinstance(value, str):
            raise RecipeError(f"{file} line {number} has no text at {field!r}: name the key of the text")
        items.append(value)
    return items
