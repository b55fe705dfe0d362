"""A document's text, clean and as it was after parse, and what differs between two texts, word by word."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from rapidfuzz.distance import LCSseq

from lineage.index.output_index import Index
from lineage.index.parsed_texts import read_parsed_texts
from lineage.storage.folder import Folder
from lineage.store.rows import DocumentRow
from pipeline.results.rows import opened, read_texts
from stages.pii.options import KINDS
from stages.pii.regions import region_of
from stages.pii.scrub import PLACEHOLDERS, scrub

Mark = Literal["", "gone", "new", "masked", "part"]

SHOWN_CHARS: Final = 20_000
MOST_CHARS: Final = 400_000
"""Characters of a text that a page shows at most: a line of a hostile page has ten million."""
_CHARS_AROUND: Final = 300
"""Characters that are shown before and behind a part of a text."""
_MOST_WORDS: Final = 12_000
"""Words and signs of each text that are compared: the library's memory is a bit for each pair."""
_WORDS: Final = re.compile(r"\w+|\s+|[^\w\s]")
_PLACEHOLDERS: Final = {mark for kinds in PLACEHOLDERS.values() for marks in kinds.values() for mark in marks}
_PLACEHOLDER: Final = re.compile("|".join(re.escape(mark.decode()) for mark in sorted(_PLACEHOLDERS)))


class Stretch(NamedTuple):
    """A stretch of a text and how it is marked: `gone` from the other text, `new` in this one, personal data
    that is `masked`, or the `part` that is meant."""

    text: str
    mark: Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownText:
    """A text in pieces, as far as it is shown, and how many characters the whole has."""

    pieces: tuple[Stretch, ...]
    num_chars: int
    num_shown: int


def clean_text(out: Folder, index: Index, row: DocumentRow) -> str | None:
    """The clean text of a document that survived the filters; None where there is none, or it was purged."""
    if row.part is None or row.part_row is None:
        return None
    part = next(
        (part for part in index.documents if (part.source, part.part) == (row.source, row.part)), None
    )
    return None if part is None else read_texts(out, part.file, [row.part_row]).get(row.part_row)


def parsed_text(out: Folder, row: DocumentRow) -> str | None:
    """The text after parse where the run kept it (run.keep_text), of rejected documents too; else None."""
    texts = read_parsed_texts(out)
    if texts is None or not texts.kept or texts.removed is not None:
        return None
    for part in texts.of_source(row.source):
        if part.name == row.warc_file:
            return _text_of(out, part.file, row.doc_id)
    return None


def _text_of(out: Folder, file: str, doc_id: bytes) -> str | None:
    """The text of a document in a file of parsed texts: ids are read first, and texts of one row group
    alone."""
    with opened(out, file) as parts:
        for group in range(parts.num_row_groups):
            ids = parts.read_row_group(group, columns=["doc_id"])["doc_id"]
            at = pc.index(ids, pa.scalar(doc_id, ids.type)).as_py()
            if at >= 0:
                text = parts.read_row_group(group, columns=["text"])["text"][at].as_py()
                return None if text is None else str(text)
    return None


def masked(text: str, row: DocumentRow) -> str:
    """The text without personal data of any kind, whatever the recipe scrubs."""
    return scrub(text, KINDS, region_of(row.language, row.host)).text


def cut(text: str, num_chars: int) -> str:
    """The beginning of a text, as far as it is shown."""
    return text[: min(num_chars, MOST_CHARS)]


def shown(text: str, num_chars: int) -> ShownText:
    """A text alone: what is masked in it is marked."""
    beginning = cut(text, num_chars)
    return ShownText(
        pieces=tuple(_with_placeholders([Stretch(beginning, "")])),
        num_chars=len(text),
        num_shown=len(beginning),
    )


def part_shown(before: str, part: str, behind: str, row: DocumentRow) -> ShownText:
    """A part of a text, marked, with a bit of what stands around it; personal data is masked in all of it, and
    what crosses an end of the part counts as one."""
    clean = masked(before + part + behind, row)
    start, end = (_num_equal(masked(beginning, row), clean) for beginning in (before, before + part))
    end = max(start, end)
    pieces = [
        Stretch(clean[max(0, start - _CHARS_AROUND) : start], ""),
        Stretch(cut(clean[start:end], MOST_CHARS), "part"),
        Stretch(clean[end : end + _CHARS_AROUND], ""),
    ]
    num = min(end - start, MOST_CHARS)
    return ShownText(
        pieces=tuple(_with_placeholders([piece for piece in pieces if piece.text])),
        num_chars=end - start,
        num_shown=num,
    )


def side_by_side(old: str, new: str, num_chars: int) -> tuple[ShownText, ShownText]:
    """Two texts with what only one of them has marked: `gone` in the old one, `new` in the new one."""
    lefts, rights = differing(cut(old, num_chars), cut(new, num_chars))
    return (
        ShownText(
            pieces=tuple(_with_placeholders(lefts)),
            num_chars=len(old),
            num_shown=sum(len(p.text) for p in lefts),
        ),
        ShownText(
            pieces=tuple(_with_placeholders(rights)),
            num_chars=len(new),
            num_shown=sum(len(p.text) for p in rights),
        ),
    )


def differing(old: str, new: str) -> tuple[list[Stretch], list[Stretch]]:
    """The pieces of both texts. Words are compared, up to a bound; behind it the rest counts as it is,
    unmarked."""
    left, right = _WORDS.findall(old), _WORDS.findall(new)
    begin = _num_equal(left, right)
    end = _num_equal(left[begin:][::-1], right[begin:][::-1])
    a, b = left[begin : len(left) - end][:_MOST_WORDS], right[begin : len(right) - end][:_MOST_WORDS]
    lefts, rights = [Stretch("".join(left[:begin]), "")], [Stretch("".join(right[:begin]), "")]
    for block in LCSseq.opcodes(a, b):
        is_same = block.tag == "equal"
        lefts.append(Stretch("".join(a[block.src_start : block.src_end]), "" if is_same else "gone"))
        rights.append(Stretch("".join(b[block.dest_start : block.dest_end]), "" if is_same else "new"))
    lefts.append(Stretch("".join(left[begin + len(a) :]), ""))
    rights.append(Stretch("".join(right[begin + len(b) :]), ""))
    return [piece for piece in lefts if piece.text], [piece for piece in rights if piece.text]


def _num_equal(left: Sequence[str], right: Sequence[str]) -> int:
    for number, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return number
    return min(len(left), len(right))


def _with_placeholders(pieces: Sequence[Stretch]) -> Iterator[Stretch]:
    """The same pieces, with every placeholder of personal data as one of its own. (A word that differs may be
    a part of one: `EMAIL` between two signs that do not.)"""
    whole = "".join(piece.text for piece in pieces)
    spans = [found.span() for found in _PLACEHOLDER.finditer(whole)]
    position, number = 0, 0
    for text, mark in pieces:
        end = position + len(text)
        while position < end:
            while number < len(spans) and spans[number][1] <= position:
                number += 1
            if number < len(spans) and spans[number][0] <= position:
                if position == spans[number][0]:
                    yield Stretch(whole[slice(*spans[number])], "masked")
                position = min(end, spans[number][1])
                continue
            stop = min(end, spans[number][0] if number < len(spans) else end)
            yield Stretch(whole[position:stop], mark)
            position = stop
