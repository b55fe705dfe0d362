"""The records of a small OUT: some of each file rejected, some planted that repeat others."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from lineage.ids import row_doc_id, warc_doc_id
from stages.dedup.options import DedupTable
from stages.dedup.shingles import jaccard, shingles

THRESHOLD = 0.8


def similarity(left: str, right: str) -> float:
    """The Jaccard of two texts' 5-word shingles."""
    return jaccard(shingles(left, DedupTable()), shingles(right, DedupTable()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record of the crawl and what became of it."""

    doc_id: bytes
    source: str
    file: int
    offset: int
    url: str | None
    text: str
    status: str = "kept"
    stage: str | None = None
    rule: str | None = None
    value: float | None = None
    threshold: float | None = None
    cluster_id: bytes | None = None
    duplicate_of: bytes | None = None
    similarity: float | None = None

    @property
    def survived(self) -> bool:
        """Whether the filters let it through: then it has a row in a part."""
        return self.status != "rejected"


def make_records(seed: int = 0, per_file: int = 12) -> tuple[tuple[Record, ...], dict[str, Record]]:
    """The records of three files of `web` and one of `books`, and the planted ones by name."""
    rng = random.Random(seed)
    vocabulary = [
        "".join(rng.choice("abcdefghijklmnop") for _ in range(rng.randrange(2, 9))) for _ in range(400)
    ]

    def words(num: int) -> str:
        return " ".join(rng.choice(vocabulary) for _ in range(num)) + " – ende."

    records = [
        _record(seed, "web", file, row, words(rng.randrange(20, 120)))
        for file in range(3)
        for row in range(per_file)
    ]
    records += [_record(seed, "books", 0, row, words(50)) for row in range(per_file // 2)]
    for at in (0, per_file, 2 * per_file):
        records[at] = replace(
            records[at], status="rejected", stage="url", rule="url.too_long", value=2e8, threshold=1e8
        )
        records[at + 1] = replace(
            records[at + 1], text="", status="rejected", stage="parse", rule="parse.empty"
        )
    named = _plant(records, per_file, vocabulary[0])
    return tuple(records), {name: records[at] for name, at in named.items()}


def _plant(records: list[Record], per_file: int, other_word: str) -> dict[str, int]:
    """Make some records repeat others; gives where each planted record stands."""
    named = {
        "original": 3,
        "exact": per_file + 3,
        "near": 2 * per_file + 3,
        "url_original": 4,
        "same_url": 2 * per_file + 4,
        "first": 5,
        "again": per_file + 5,
        "text_original": 6,
        "longer": 7,
        "same_text": per_file + 6,
    }
    _plant_texts(records, [named[name] for name in ("original", "exact", "near")], other_word)
    records[named["same_text"]] = replace(
        records[named["same_text"]], text=records[named["text_original"]].text
    )
    for kept, dropped in (("url_original", "same_url"), ("longer", "same_text")):
        original, again = records[named[kept]], records[named[dropped]]
        cluster_id = min(original.doc_id, again.doc_id)
        records[named[kept]] = replace(original, cluster_id=cluster_id)
        records[named[dropped]] = _duplicate(
            again, original, "dedup.url", url=original.url, cluster_id=cluster_id
        )
    first, again = records[named["first"]], records[named["again"]]
    records[named["again"]] = _duplicate(
        replace(again, doc_id=first.doc_id, url=first.url, text=first.text),
        first,
        "identity",
        rule="identity.repeated",
    )
    return named


def _plant_texts(records: list[Record], places: list[int], other_word: str) -> None:
    """A cluster of three: a kept text, the same again, and one with another word near its end."""
    cluster_id = min(records[at].doc_id for at in places)
    original, exact, near = (replace(records[at], cluster_id=cluster_id) for at in places)
    original = replace(original, text=" ".join([original.text] * 2))
    words = original.text.split(" ")
    words[-3] = other_word + "x"
    altered = " ".join(words)
    alike = similarity(original.text, altered)
    assert THRESHOLD <= alike < 1
    exact = _duplicate(
        replace(exact, text=original.text), original, "dedup.exact", value=1.0, threshold=1.0, similarity=1.0
    )
    near = _duplicate(
        replace(near, text=altered),
        original,
        "dedup.near",
        value=alike,
        threshold=THRESHOLD,
        similarity=alike,
    )
    for at, record in zip(places, (original, exact, near), strict=True):
        records[at] = record


def _duplicate(record: Record, of: Record, stage: str, rule: str | None = None, **changes: Any) -> Record:
    return replace(
        record, status="duplicate", stage=stage, rule=rule or stage, duplicate_of=of.doc_id, **changes
    )


def _record(seed: int, source: str, file: int, row: int, text: str) -> Record:
    if source == "web":
        url = f"http://host{row % 4}.example/{seed}/{file}/{row}"
        doc_id = warc_doc_id(f"<urn:{seed}:{file}:{row}>", url, text.encode())
        return Record(doc_id=doc_id, source=source, file=file, offset=row * 1000, url=url, text=text)
    doc_id = row_doc_id(source, file_name(source, file), str(row), text)
    return Record(doc_id=doc_id, source=source, file=file, offset=row * 1000, url=None, text=text)


def file_name(source: str, file: int) -> str:
    """The name of an input file."""
    return f"{source}-{file:05d}.warc.gz"
