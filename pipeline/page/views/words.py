"""Words in the clean texts: read from the parts one after the other, up to a number of finds or some seconds;
what was looked at is told, and the search goes on from there."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lineage.index.output_index import Index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.page.views.texts import Stretch
from pipeline.results.rows import opened
from stages.pii.options import KINDS
from stages.pii.scrub import scrub

MOST_FINDS: Final = 50
SECONDS: Final = 4.0
_MOST_WORDS: Final = 8
_MOST_CHARS: Final = 300
_AROUND: Final = 120
_PASSAGES: Final = 3
_QUOTED: Final = re.compile(r'"([^"]+)"|(\S+)')


class TextPlace(NamedTuple):
    """A text: row `row` of row group `group` of part number `part`, of those that the index lists."""

    part: int
    group: int
    row: int


FIRST_TEXT: Final = TextPlace(0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WordFind:
    """A document whose clean text has the words, and some passages with them: `new` marks a word."""

    doc_id: bytes
    passages: tuple[tuple[Stretch, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WordSearch:
    """What was found from one place of the parts to another. `next`: where to go on, None at the end.
    `num_looked`: the documents that were looked at this time, `share`: of all texts, how far the search has come
    (0 to 1)."""

    words: tuple[str, ...]
    finds: tuple[WordFind, ...]
    num_looked: int
    share: float
    next: TextPlace | None


def words_of(wanted: str) -> tuple[str, ...]:
    """The words and "quoted passages" that a text must hold, each. RecipeError for too many or too long
    ones."""
    words = tuple(dict.fromkeys(quoted or word for quoted, word in _QUOTED.findall(wanted)))
    if not words or len(words) > _MOST_WORDS or sum(map(len, words)) > _MOST_CHARS:
        raise RecipeError(
            f'expected 1 to {_MOST_WORDS} words or "passages in quotes", of up to'
            f" {_MOST_CHARS} characters together"
        )
    return words


def find_words(
    out: Folder,
    index: Index,
    words: tuple[str, ...],
    start: TextPlace = FIRST_TEXT,
    *,
    seconds: float = SECONDS,
) -> WordSearch:
    """The documents whose clean texts hold all of these, without regard to case, from `start` on."""
    finds: list[WordFind] = []
    part, group, row = start
    parts, num_looked, started = index.documents, 0, time.monotonic()
    seen = sum(each.num_rows for each in parts[:part])
    is_over = False
    while part < len(parts) and not is_over:
        with opened(out, parts[part].file) as file:
            before = range(min(group, file.num_row_groups))
            seen += sum(file.metadata.row_group(number).num_rows for number in before) + row
            while group < file.num_row_groups and not is_over:
                rows = file.read_row_group(group, columns=["doc_id", "text"]).slice(row)
                found, num = _finds(rows, words, MOST_FINDS - len(finds))
                finds += found
                num_looked += num
                group, row = (group, row + num) if num < len(rows) else (group + 1, 0)
                is_over = len(finds) >= MOST_FINDS or time.monotonic() - started > seconds
            if group >= file.num_row_groups:
                part, group = part + 1, 0
    num_rows = sum(each.num_rows for each in parts)
    return WordSearch(
        words=words,
        finds=tuple(finds),
        num_looked=num_looked,
        share=(seen + num_looked) / num_rows if num_rows else 1.0,
        next=TextPlace(part, group, row) if part < len(parts) else None,
    )


def _finds(rows: pa.Table, words: tuple[str, ...], most: int) -> tuple[list[WordFind], int]:
    """At most so many documents with all of the words, and how many rows were looked at for them: up to the
    last of these, or all."""
    has_all = pa.array([True] * len(rows))
    for word in words:
        has_all = pc.and_(
            has_all, pc.fill_null(pc.match_substring(rows["text"], word, ignore_case=True), False)
        )
    places = pc.indices_nonzero(has_all)
    num = len(rows) if len(places) < most else places[most - 1].as_py() + 1
    return [
        WordFind(doc_id=row["doc_id"], passages=tuple(_passages(row["text"], words)))
        for row in rows.take(places.slice(0, most)).to_pylist()
    ], num


def _passages(text: str, words: tuple[str, ...]) -> list[tuple[Stretch, ...]]:
    """Where the words stand, some characters around each, without personal data."""
    pattern = re.compile("|".join(map(re.escape, words)), re.IGNORECASE)
    passages: list[tuple[Stretch, ...]] = []
    end = -1
    for found in pattern.finditer(text):
        if found.start() < end:
            continue
        if len(passages) == _PASSAGES:
            break
        begin, end = max(0, found.start() - _AROUND), min(len(text), found.end() + _AROUND)
        around = ("… " if begin else "") + text[begin:end] + (" …" if end < len(text) else "")
        passages.append(tuple(_marked(scrub(around, KINDS, None).text, pattern)))
    return passages


def _marked(text: str, pattern: re.Pattern[str]) -> list[Stretch]:
    pieces, position = [], 0
    for found in pattern.finditer(text):
        pieces += [Stretch(text[position : found.start()], ""), Stretch(found[0], "new")]
        position = found.end()
    return [*pieces, Stretch(text[position:], "")]
