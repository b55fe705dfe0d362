"""What is cut inside the documents of a small corpus, and how brute force and small references would cut them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import regex

from pipeline.dedup.corpus import deduplicate
from pipeline.dedup.exchange import Engine, InProcess
from pipeline.dedup.inputs import locators
from pipeline.dedup.inside.flow import FoundInside, InsideJob, look_inside
from pipeline.dedup.rows import ints
from stages.dedup.inside.options import InsideTable
from tests.support.inputs.dedup_corpus import Corpus, Doc

Stretch = tuple[int, int]
_BORDER = regex.compile(r"(?w)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCut:
    """Characters [start, end) of a document stand in `twin` from `twin_place` on, once all is cut; they were at `place`
    of what is left of it."""

    start: int
    end: int
    place: int
    twin: bytes | None
    twin_place: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The cuts of each document, those that are rejected with their rule, and the texts that are left."""

    cuts: dict[bytes, list[FoundCut]]
    rejected: dict[bytes, str]
    left: dict[bytes, str]
    found: FoundInside

    @property
    def stretches(self) -> dict[bytes, list[Stretch]]:
        """What is cut of each document, stretches that touch as one."""
        return {doc_id: united((cut.start, cut.end) for cut in cuts) for doc_id, cuts in self.cuts.items()}


def inside_job(corpus: Corpus, root: Path, table: InsideTable, **options: Any) -> InsideJob:
    """The corpus written below `root` and compared."""
    job = corpus.job(root)
    compared = deduplicate(job)
    names = {(each.source_index, each.group): f"work/{each.name}" for each in compared.verdicts}
    units = tuple(
        (
            unit,
            names[unit.source_index, unit.file_index // corpus.group_files],
            len(docs),
            sum(len(doc.text) for doc in docs),
        )
        for unit, docs in zip(job.units, corpus.files.values(), strict=True)
    )
    return InsideJob(
        table=table,
        keep=corpus.table.keep,
        work=job.work,
        out=job.out,
        units=units,
        compared=compared,
        group_files=corpus.group_files,
        **options,
    )


def look(
    corpus: Corpus, root: Path, table: InsideTable, engine: Engine | None = None, **options: Any
) -> Looked:
    """What is cut inside the documents of a corpus."""
    job = inside_job(corpus, root, table, **options)
    return read_found(corpus, job, look_inside(job, engine or InProcess()))


def read_found(corpus: Corpus, job: InsideJob, found: FoundInside) -> Looked:
    """What a job has published."""
    texts = corpus.texts()
    cuts: dict[bytes, list[FoundCut]] = {}
    for name in found.cuts.values():
        rows = pq.read_table(found.folder.at(name))
        places = zip(*(column.tolist() for column in locators(ints(rows, "node"))), strict=True)
        for row, (source, file, number) in zip(rows.to_pylist(), places, strict=True):
            cut = FoundCut(
                start=row["start"],
                end=row["end"],
                place=row["place"],
                twin=row["twin_id"],
                twin_place=row["twin_place"],
            )
            cuts.setdefault(corpus.files[source, file][number].doc_id, []).append(cut)
    rows = [row for group in found.verdicts for row in pq.read_table(job.work.at(group.name)).to_pylist()]
    rejected = {
        corpus.files[row["source_index"], row["file_index"]][row["part_row"]].doc_id: row["rule"]
        for row in rows
        if row["status"] == "rejected"
    }
    left = {
        doc_id: without(text, united((cut.start, cut.end) for cut in cuts.get(doc_id, ())))
        for doc_id, text in texts.items()
    }
    return Looked(cuts=cuts, rejected=rejected, left=left, found=found)


def check_twins(corpus: Corpus, looked: Looked) -> int:
    """Assert that the text of every cut stays where it is said to, in a document that is kept, and that `place` is
    where it was; the number of cuts with a twin."""
    texts, num = corpus.texts(), 0
    for doc_id, cuts in looked.cuts.items():
        gone = 0
        for cut in cuts:
            assert cut.place == cut.start - gone, (doc_id.hex(), cut)
            gone += cut.end - cut.start
            if cut.twin is not None:
                assert cut.twin_place is not None and cut.twin not in looked.rejected
                there = looked.left[cut.twin][cut.twin_place : cut.twin_place + cut.end - cut.start]
                assert there == texts[doc_id][cut.start : cut.end], (doc_id.hex(), cut)
                num += 1
    return num


def united(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Stretches in order, those that touch as one."""
    found: list[Stretch] = []
    for start, end in sorted(stretches):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def without(text: str, stretches: Sequence[Stretch]) -> str:
    """The text without these stretches."""
    gone = {place for start, end in stretches for place in range(start, end)}
    return "".join(letter for place, letter in enumerate(text) if place not in gone)


def in_order(docs: Iterable[Doc]) -> list[Doc]:
    """Documents as dedup.keep = "longest" takes them."""
    return sorted(docs, key=lambda doc: (-len(doc.text), doc.doc_id))


Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideTool:
    """Bytes of documents that are kept: those that Google's tool names, those that are cut or stay as the twin of a
    cut (`num_ours`), those that are both, and those that are cut."""

    num_documents: int
    num_bytes: int
    num_named: int
    num_ours: int
    num_both: int
    num_cut: int


def beside_googles_tool(corpus: Corpus, looked: Looked, min_bytes: int) -> BesideTool:
    """What is found beside what the tool would name in the same documents."""
    seen: dict[str, Doc] = {}
    for doc in in_order(doc for docs in corpus.files.values() for doc in docs):
        seen.setdefault(doc.text, doc)
    docs = [doc for doc in seen.values() if doc.doc_id not in looked.rejected]
    cut = {doc.doc_id: np.zeros(len(doc.text), np.bool_) for doc in docs}
    for doc_id in cut.keys() & looked.cuts.keys():
        for one in looked.cuts[doc_id]:
            cut[doc_id][one.start : one.end] = True
    ours = {doc_id: mask.copy() for doc_id, mask in cut.items()}
    left = {doc_id: np.flatnonzero(~mask) for doc_id, mask in cut.items()}
    for doc_id in cut.keys() & looked.cuts.keys():
        for one in looked.cuts[doc_id]:
            if one.twin is not None and one.twin_place is not None:
                there = left[one.twin][one.twin_place : one.twin_place + one.end - one.start]
                ours[one.twin][there] = True
    named = named_by_googles_tool([doc.text.encode() for doc in docs], min_bytes)
    found = [(_of_bytes(doc.text, ours[doc.doc_id]), _of_bytes(doc.text, cut[doc.doc_id])) for doc in docs]
    return BesideTool(
        num_documents=len(docs),
        num_bytes=sum(map(len, named)),
        num_named=sum(int(mask.sum()) for mask in named),
        num_ours=sum(int(mask.sum()) for mask, _ in found),
        num_both=sum(int((mask & one).sum()) for (mask, _), one in zip(found, named, strict=True)),
        num_cut=sum(int(mask.sum()) for _, mask in found),
    )


def _of_bytes(text: str, characters: Mask) -> Mask:
    return np.repeat(characters, [len(letter.encode()) for letter in text])


def named_by_googles_tool(texts: Sequence[bytes], num_bytes: int) -> list[Mask]:
    """The bytes of each text that `self-similar` and `collect` of deduplicate-text-datasets name: those of every run of
    `num_bytes` that stands twice in the corpus, all copies alike.

    Runs are told apart by their ranks among all runs of 1, 2, 4, … bytes (Karp, Miller and Rosenberg 1972), with a
    separator of its own behind each text, as the tool's scripts put one there."""
    joined = np.concatenate([
        part
        for number, text in enumerate(texts)
        for part in (np.frombuffer(text, np.uint8).astype(np.int64), np.array([256 + number], np.int64))
    ])  # fmt: skip
    rank, size = np.unique(joined, return_inverse=True)[1].astype(np.int64), 1
    while size < num_bytes:
        shift = min(size, num_bytes - size)
        pairs = rank[: len(rank) - shift] * (rank.max() + 1) + rank[shift:]
        rank, size = np.unique(pairs, return_inverse=True)[1].astype(np.int64), size + shift
    steps = np.zeros(len(joined) + 1, np.int64)
    stands_twice = np.flatnonzero(np.bincount(rank)[rank] > 1)
    np.add.at(steps, stands_twice, 1)
    np.add.at(steps, stands_twice + num_bytes, -1)
    named = np.cumsum(steps)[:-1] > 0
    ends = np.cumsum([len(text) + 1 for text in texts])
    return [named[end - len(text) - 1 : end - 1] for text, end in zip(texts, ends.tolist(), strict=True)]


def brute_force(
    docs: Sequence[Doc], table: InsideTable
) -> tuple[dict[bytes, list[Stretch]], dict[bytes, str]]:
    """Every run of min_bytes that stands before, looked for window by window: what is cut of each document, and the
    documents that keep too little."""
    first = _brute_round(docs, table)
    rejected = {
        doc.doc_id: "dedup.inside.min_chars"
        for doc in docs
        if first[doc.doc_id] and len(without(doc.text, first[doc.doc_id]).strip()) < table.min_chars
    }
    kept = [doc for doc in docs if doc.doc_id not in rejected]
    found = _brute_round(kept, table) if rejected else first
    return {doc_id: stretches for doc_id, stretches in found.items() if stretches}, rejected


def _brute_round(docs: Sequence[Doc], table: InsideTable) -> dict[bytes, list[Stretch]]:
    seen: set[bytes] = set()
    found = {}
    for doc in in_order(docs):
        data = doc.text.encode()
        marks = bytearray(len(data))
        for place in range(len(data) - table.min_bytes + 1):
            window = data[place : place + table.min_bytes]
            if window in seen:
                marks[place : place + table.min_bytes] = b"\1" * table.min_bytes
            seen.add(window)
        found[doc.doc_id] = [
            shortened for stretch in _marked(doc.text, marks) if (shortened := _shortened(doc.text, *stretch))
        ]
    return found


def _marked(text: str, marks: bytearray) -> list[Stretch]:
    """The characters all of whose bytes are marked, as stretches."""
    found, place = [], 0
    for number, letter in enumerate(text):
        size = len(letter.encode())
        if all(marks[place : place + size]):
            found.append((number, number + 1))
        place += size
    return united(found)


def _shortened(text: str, start: int, end: int) -> Stretch | None:
    """A stretch as whole words, that leaves no two words as one."""
    borders = sorted({0, len(text), *(found.start() for found in _BORDER.finditer(text))})
    inside = [border for border in borders if start <= border <= end]
    for begin in inside[:-1]:
        joined = text[:begin] + text[inside[-1] :]
        is_space = (
            not begin or inside[-1] == len(text) or text[begin - 1].isspace() or text[inside[-1]].isspace()
        )
        if is_space or any(found.start() == begin for found in _BORDER.finditer(joined)):
            return begin, inside[-1]
    return None


_PUNCTUATION = "，。、„”“«»１」「《》´∶：？！（）；–—．～’…━〈〉【】％►"


def ccnet_lines(docs: Sequence[Doc], *, num_shares: int = 1) -> dict[bytes, list[int]]:
    """The numbers of the lines that CCNet would cut of each document, if it took them in our order."""
    seen: set[tuple[int, str]] = set()
    found = {}
    for doc in in_order(docs):
        share = int.from_bytes(doc.doc_id[:8], "big") % num_shares
        gone = []
        for number, line in enumerate(doc.text.split("\n")):
            plain = re.sub(r"\d", "0", line.strip().lower())
            plain = "".join(
                letter
                for letter in plain
                if letter not in _PUNCTUATION and not (ord(letter) < 32 or 127 <= ord(letter) < 160)
            )
            if (share, plain) in seen:
                gone.append(number)
            seen.add((share, plain))
        found[doc.doc_id] = gone
    return found


def bff_paragraphs(docs: Sequence[Doc], table: InsideTable) -> tuple[dict[bytes, list[int]], set[bytes]]:
    """The numbers of the paragraphs that bff would cut of each document, if it took them in our order with a filter
    that does not err, and the documents that old-both would empty."""
    seen: set[tuple[str, ...]] = set()
    found, emptied = {}, set()
    for doc in in_order(docs):
        gone, num_all, num_seen = [], 0, 0
        for number, paragraph in enumerate(doc.text.split("\n")):
            borders = sorted({0, len(paragraph), *(each.start() for each in _BORDER.finditer(paragraph))})
            words = [paragraph[a:b] for a, b in itertools.pairwise(borders)]
            words = [word for word in words if word.strip()]
            if len(words) >= table.ngram:
                size = table.ngram
            elif words and len(words) >= table.min_ngram:
                size = len(words)
            else:
                continue
            ngrams = [tuple(words[at : at + size]) for at in range(len(words) - size + 1)]
            contained = sum(ngram in seen for ngram in ngrams)
            num_all, num_seen = num_all + len(ngrams), num_seen + contained
            if contained / len(ngrams) > table.threshold:
                gone.append(number)
            else:
                seen.update(ngrams)
        found[doc.doc_id] = gone
        if num_all and num_seen / num_all > table.threshold:
            emptied.add(doc.doc_id)
    return found, emptied
