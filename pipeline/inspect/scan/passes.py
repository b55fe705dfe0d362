"""The two passes of a scan over one unit: which of its documents hold any n-gram, and the evidence in them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from lineage.index.checksums import check_file
from lineage.index.output_index import PartFile, Shard
from lineage.storage.folder import Folder
from pipeline.inspect.scan.evidence import Match
from pipeline.phases.tokenize import kept_tokenizer
from pipeline.results.rows import clean_texts, read_rows
from stages.contamination import SHOWN_SPANS, Evidence, Finder
from stages.dedup.options import DedupTable
from stages.ngrams import Tokens
from stages.pii.options import PiiTable
from stages.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanJob:
    """What all scanning tasks share. `common` are the numbers of n-grams to leave out; `places`: whether the
    tokens of what is found are asked for."""

    out: str
    key: str
    items: tuple[str, ...]
    ngram: Literal["13w", "8t"]
    dedup: DedupTable
    pii: PiiTable
    encoding: str
    eot_id: int | None
    common: tuple[int, ...] = ()
    places: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanUnit:
    """What one task reads: a part of the clean texts, or, for n-grams of tokens, a shard; in the second pass
    only some of its documents, by their number in it. Of parsed texts (run.keep_text) those are read that no
    part has: `survivors` is the part of the same input file."""

    held: PartFile | Shard
    survivors: PartFile | None = None
    rows: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _DocumentOfUnit:
    """A document as a unit holds it; `tokens` where it came from a shard, without its end-of-text."""

    row: int
    doc_id: bytes
    text: str
    tokens: Tokens | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContaminatedDocument:
    """A document that holds items; `tokens` are, for each match, the spans of its tokens that hold the item,
    where they were asked for."""

    doc_id: bytes
    matches: tuple[Match, ...]
    tokens: tuple[tuple[tuple[int, int], ...], ...] = ()


def _tokenizer(job: ScanJob) -> Tokenizer:
    """The tokenizer whose tokens the shards hold: the end of documents is the one that they recorded."""
    return kept_tokenizer(job.encoding, job.eot_id)


@functools.lru_cache(maxsize=2)
def finder_of(job: ScanJob) -> Finder:
    encode = _tokenizer(job).encode_batch if job.ngram == "8t" else None
    return Finder(job.items, job.ngram, job.dedup, job.pii, encode)


def common_mask(finder: Finder, job: ScanJob) -> npt.NDArray[np.bool_]:
    ignore = np.zeros(finder.num_ngrams, dtype=np.bool_)
    ignore[list(job.common)] = True
    return ignore


def _documents(job: ScanJob, unit: ScanUnit) -> Iterator[_DocumentOfUnit]:
    """The documents asked for; purged ones are not there any more."""
    wanted = None if unit.rows is None else frozenset(unit.rows)
    if isinstance(unit.held, Shard):
        return _of_shard(job, unit.held, wanted)
    return _of_part(job, unit.held, unit.survivors, wanted)


def _of_part(
    job: ScanJob, part: PartFile, survivors: PartFile | None, wanted: frozenset[int] | None
) -> Iterator[_DocumentOfUnit]:
    out = Folder(job.out)
    elsewhere = set()
    if survivors is not None:
        elsewhere = set(read_rows(out, survivors.file, ["doc_id"], survivors.hash)["doc_id"].to_pylist())
    for row, doc_id, text in clean_texts(out, part):
        if (wanted is None or row in wanted) and doc_id not in elsewhere:
            yield _DocumentOfUnit(row=row, doc_id=doc_id, text=text)


def _of_shard(job: ScanJob, shard: Shard, wanted: frozenset[int] | None) -> Iterator[_DocumentOfUnit]:
    """From the tokens themselves, so that what is found is what a training run would read."""
    folder, tokenizer = Folder(job.out), _tokenizer(job)
    placed = read_rows(folder, shard.index_file, ["doc_id", "start", "num_tokens"], shard.index_hash)
    if wanted is None:
        check_file(folder, shard.file, shard.hash)
    with folder.open(shard.file) as stream:
        for row, plain in enumerate(placed.to_pylist()):
            if wanted is not None and row not in wanted:
                continue
            stream.seek(plain["start"] * 4)
            tokens = np.frombuffer(stream.read(plain["num_tokens"] * 4), "<u4")[:-1]
            if not len(tokens) or tokens[0] != tokenizer.eot_id:
                yield _DocumentOfUnit(
                    row=row, doc_id=plain["doc_id"], text=tokenizer.decode(tokens), tokens=tokens
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanUnitResult:
    """What the first pass finds in a unit: how many documents it has, which of them hold any item, and in
    how many of them each n-gram stands."""

    num_documents: int
    rows: tuple[int, ...]
    seen: Mapping[int, int]


def look(job: ScanJob, unit: ScanUnit) -> ScanUnitResult:
    """First pass over a unit."""
    finder = finder_of(replace(job, common=()))
    seen: Counter[int] = Counter()
    rows, num = [], 0
    for document in _documents(job, unit):
        num += 1
        present = finder.ngrams_in(document.text).tolist()
        seen.update(present)
        if present or finder.resembles(document.text):
            rows.append(document.row)
    return ScanUnitResult(num_documents=num, rows=tuple(rows), seen=seen)


def show(job: ScanJob, unit: ScanUnit) -> list[ContaminatedDocument]:
    """Second pass: the documents of a unit that hold an item, with the evidence."""
    finder = finder_of(replace(job, common=(), places=False))
    ignore = common_mask(finder, job)
    found = []
    for document in _documents(job, unit):
        evidence = finder.find(document.text, ignore)
        if evidence:
            tokens, of_tokens = _tokens_of(job, document, evidence)
            found.append(
                ContaminatedDocument(
                    doc_id=document.doc_id,
                    matches=tuple(
                        _as_match(job, document, one, tokens, spans)
                        for one, spans in zip(evidence, of_tokens, strict=True)
                    ),
                    # One that shows only some of its spans counts as the whole document: rather too much.
                    tokens=tuple(
                        ((0, len(tokens)),) if len(one.spans) == SHOWN_SPANS else spans
                        for one, spans in zip(evidence, of_tokens, strict=True)
                    )
                    if job.places
                    else (),
                )
            )
    return found


_NO_TOKENS: Final = np.empty(0, np.uint32)


def _tokens_of(
    job: ScanJob, document: _DocumentOfUnit, evidence: Sequence[Evidence]
) -> tuple[Tokens, tuple[tuple[tuple[int, int], ...], ...]]:
    """The document's tokens, and the spans of them that hold each evidence; none where none are asked for.
    The whole document where tokens cannot be told apart by their characters."""
    if not job.places and all(one.element_kind == "words" for one in evidence):
        return _NO_TOKENS, ((),) * len(evidence)
    tokenizer = _tokenizer(job)
    tokens = tokenizer.encode(document.text) if document.tokens is None else document.tokens
    ends = _ends_of(tokenizer, tokens, document.text)
    if ends is None:
        return tokens, (((0, len(tokens)),),) * len(evidence)
    reach = _reach_of(document.text)
    return tokens, tuple(_token_spans(reach, ends, one.spans) for one in evidence)


def _ends_of(tokenizer: Tokenizer, tokens: Tokens, text: str) -> npt.NDArray[np.int64] | None:
    """Where in the UTF-8 of `text` each of its tokens ends; None where the bytes of the tokens are not those
    of the text."""
    distinct, which = np.unique(tokens, return_inverse=True)
    sizes = np.array(
        [len(tokenizer.decode_bytes(distinct[at : at + 1])) for at in range(len(distinct))], np.int64
    )
    ends = np.cumsum(sizes[which]) if len(tokens) else np.empty(0, np.int64)
    length = len(text.encode("utf-8", "surrogatepass"))
    return ends if len(ends) and int(ends[-1]) == length and tokenizer.keeps(text) else None


def _reach_of(text: str) -> npt.NDArray[np.int64]:
    """How many bytes of UTF-8 lie before each character of a text, and in all of it."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    sizes = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def _token_spans(
    reach: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], spans: Sequence[tuple[int, int]]
) -> tuple[tuple[int, int], ...]:
    """The tokens that hold any character of each span of characters."""
    places = reach[np.array(spans, np.int64)]
    first, last = (
        np.searchsorted(ends, places[:, 0], "right"),
        np.searchsorted(ends, places[:, 1], "left") + 1,
    )
    return tuple(zip(first.tolist(), last.tolist(), strict=True))


def _as_match(
    job: ScanJob,
    document: _DocumentOfUnit,
    evidence: Evidence,
    tokens: Tokens,
    of_tokens: tuple[tuple[int, int], ...],
) -> Match:
    start, end = evidence.spans[0]
    text, spans = document.text[start:end], evidence.spans
    if evidence.element_kind == "tokens":
        spans = of_tokens
        text = _tokenizer(job).decode(tokens[spans[0][0] : spans[0][1]])
    return Match(
        item=evidence.item,
        kind=evidence.kind,
        overlap=evidence.overlap,
        longest=evidence.longest,
        element_kind=evidence.element_kind,
        spans=spans,
        text=text,
    )
