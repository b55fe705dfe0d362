"""`sluice scan`: which documents of a run hold the texts of a benchmark, with the evidence that `purge
--from` takes.

Two passes over the clean texts, part by part, or over the shards where n-grams of tokens are asked for: the
first counts in how many documents each n-gram of the items stands and remembers the documents that hold any;
the second looks at those documents again, leaving common n-grams out."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from lineage.ids import content_hash
from lineage.index.checked_against import checked_against
from lineage.index.checksums import check_file
from lineage.index.output_index import Index, PartFile, Shard, check_outside, read_index
from lineage.index.parsed_texts import read_parsed_texts
from lineage.json_record import JsonRecord, json_name
from lineage.recipe import RecipeError, errors_about
from lineage.secrets import without_secrets
from lineage.storage.folder import Folder, split
from lineage.store.lookup import Lookup
from pipeline.cluster.dataset import run_units
from pipeline.cluster.session import as_connected, units_session
from pipeline.cluster.tasks import TaskResources
from pipeline.inspect.scan.scanned_runs import Benchmark, ReadingRuns, ReadItem, ScannedRun
from pipeline.phases.progress import ProgressReporter
from pipeline.phases.tokenize import kept_tokenizer
from pipeline.recipe.load import recipe_of
from pipeline.results.rows import clean_texts, read_rows
from pipeline.terminal import counted
from stages.composition import clean_text
from stages.contamination import SHOWN_SPANS, Evidence, Finder, Kind
from stages.dedup.options import DedupTable
from stages.ngrams import ElementKind, Tokens
from stages.pii.options import PiiTable
from stages.steps.benchmark_items import read_items
from stages.steps.textfiles import named_bytes
from stages.tokens.tokenizer import Tokenizer

COMMON_IN = 10
"""An n-gram that stands in more documents than this is common and counts for nothing (GPT-3, appendix C)."""

_SHARE: Final = 0.01
_FEW: Final = 10
_AT_ONCE = 256  # documents that the lineage store is asked for at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRequest:
    """What to look for, and how: the items of all files of `against`, numbered through. Without `max_share` a
    purge takes one document of a hundred, but ten at least: of a small corpus a few documents are a large
    share. `runs`: with what training runs read of the items; those of the output's store, and those at these
    training outputs."""

    against: tuple[str, ...]
    field: str = "text"
    ngram: Literal["13w", "8t"] = "13w"
    control: str | None = None
    max_share: float | None = None
    runs: tuple[str, ...] | None = None


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
class Piece:
    """What one task reads: a part of the clean texts, or, for n-grams of tokens, a shard; in the second pass
    only some of its documents, by their number in it. Of parsed texts (run.keep_text) those are read that no
    part has: `survivors` is the part of the same input file."""

    held: PartFile | Shard
    survivors: PartFile | None = None
    rows: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScannedDocument:
    """A document as a piece holds it; `tokens` where it came from a shard, without its end-of-text."""

    row: int
    doc_id: bytes
    text: str
    tokens: Tokens | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Match(JsonRecord):
    """One item in one document: stages.contamination.Evidence, with the `text` of its longest span. `spans`
    are of the document's tokens where the elements are tokens."""

    item: int
    kind: Kind
    overlap: float
    longest: int
    element_kind: ElementKind = json_name("unit")
    spans: tuple[tuple[int, int], ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedDocument(JsonRecord):
    """A document that holds items; `doc_id` in hex."""

    doc_id: str
    url: str | None
    matches: tuple[Match, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlCount(JsonRecord):
    """How many of `num` clean texts of the control file would have been called contaminated."""

    file: str
    num: int
    flagged: int
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanEvidence(JsonRecord):
    """What a scan found: the file that `purge --from` takes. `against` names the files; `skipped_items` are
    too short to look for; `refused`: the share of documents is above `max_share`, and a purge refuses the
    file. `runs`: what each training run read of the items; null where it was not asked for."""

    format: int = 1
    against: str
    benchmarks: tuple[Benchmark, ...] = ()
    ngram: Literal["13w", "8t"]
    content_fingerprint: str
    num_items: int
    skipped_items: tuple[int, ...]
    found_items: tuple[int, ...]
    common_ngrams: int
    num_documents: int
    num_found: int
    share: float
    max_share: float
    refused: bool
    control: ControlCount | None
    documents: tuple[ScannedDocument, ...]
    runs: tuple[ScannedRun, ...] | None = None


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
def _finder(job: ScanJob) -> Finder:
    encode = _tokenizer(job).encode_batch if job.ngram == "8t" else None
    return Finder(job.items, job.ngram, job.dedup, job.pii, encode)


def _common_mask(finder: Finder, job: ScanJob) -> npt.NDArray[np.bool_]:
    ignore = np.zeros(finder.num_ngrams, dtype=np.bool_)
    ignore[list(job.common)] = True
    return ignore


def _documents(job: ScanJob, piece: Piece) -> Iterator[_ScannedDocument]:
    """The documents asked for; purged ones are not there any more."""
    wanted = None if piece.rows is None else frozenset(piece.rows)
    if isinstance(piece.held, Shard):
        return _of_shard(job, piece.held, wanted)
    return _of_part(job, piece.held, piece.survivors, wanted)


def _of_part(
    job: ScanJob, part: PartFile, survivors: PartFile | None, wanted: frozenset[int] | None
) -> Iterator[_ScannedDocument]:
    out = Folder(job.out)
    elsewhere = set()
    if survivors is not None:
        elsewhere = set(read_rows(out, survivors.file, ["doc_id"], survivors.hash)["doc_id"].to_pylist())
    for row, doc_id, text in clean_texts(out, part):
        if (wanted is None or row in wanted) and doc_id not in elsewhere:
            yield _ScannedDocument(row=row, doc_id=doc_id, text=text)


def _of_shard(job: ScanJob, shard: Shard, wanted: frozenset[int] | None) -> Iterator[_ScannedDocument]:
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
                yield _ScannedDocument(
                    row=row, doc_id=plain["doc_id"], text=tokenizer.decode(tokens), tokens=tokens
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceFound:
    """What the first pass finds in a piece: how many documents it has, which of them hold any item, and in
    how many of them each n-gram stands."""

    num_documents: int
    rows: tuple[int, ...]
    seen: Mapping[int, int]


def look(job: ScanJob, piece: Piece) -> PieceFound:
    """First pass over a piece."""
    finder = _finder(replace(job, common=()))
    seen: Counter[int] = Counter()
    rows, num = [], 0
    for document in _documents(job, piece):
        num += 1
        present = finder.ngrams_in(document.text).tolist()
        seen.update(present)
        if present or finder.resembles(document.text):
            rows.append(document.row)
    return PieceFound(num_documents=num, rows=tuple(rows), seen=seen)


def show(job: ScanJob, piece: Piece) -> list[ContaminatedDocument]:
    """Second pass: the documents of a piece that hold an item, with the evidence."""
    finder = _finder(replace(job, common=(), places=False))
    ignore = _common_mask(finder, job)
    found = []
    for document in _documents(job, piece):
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
    job: ScanJob, document: _ScannedDocument, evidence: Sequence[Evidence]
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
    document: _ScannedDocument,
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


def scan(out: Folder, request: ScanRequest, reporter: ProgressReporter) -> ScanEvidence:
    """What was looked for, how much was found, and the documents with their matches, by doc_id.

    n-grams of words are looked for in the clean texts, duplicates of kept ones among them; n-grams of tokens
    in the shards."""
    index = read_index(out)
    recipe = recipe_of(out)
    read = {file: _read_benchmark(file, request.field) for file in request.against}
    items = [item for _, of_file in read.values() for item in of_file]
    if request.runs is not None and not index.has_tokens:
        raise RecipeError(
            f"--runs: {out.url} holds texts and no tokens (tokenize.off), so no run has read it"
        )
    job = ScanJob(
        out=out.url,
        key=index.content_fingerprint,
        items=tuple(items),
        ngram=request.ngram,
        dedup=recipe.dedup,
        pii=recipe.pii,
        encoding=recipe.tokenize.encoding,
        eot_id=index.tokenizer.eot_id if index.has_tokens else None,
    )
    finder = _finder(job)
    names = ", ".join(map(without_secrets, read))
    if len(finder.skipped) == len(items):
        raise RecipeError(f"--against {names}: none of its {len(items)} items has five words to look for")
    # Before the long work: a run that is not there is a wrong call.
    runs = None if request.runs is None else ReadingRuns(out, request.runs)
    ray = as_connected(recipe.ray)
    with units_session(ray):
        pieces = _pieces(out, index, request.ngram)
        common, num_documents, pieces = _first_pass(job, pieces, TaskResources.of(ray), reporter)
        job = replace(job, common=tuple(common), places=request.runs is not None)
        found = _second_pass(job, pieces, TaskResources.of(ray), reporter)
    share = len(found) / max(1, num_documents)
    max_share = max(_SHARE, _FEW / max(1, num_documents)) if request.max_share is None else request.max_share
    found_items = tuple(sorted({match.item for one in found.values() for match in one.matches}))
    benchmarks = tuple(_benchmarks(out, read, finder.skipped, found_items))
    scanned = None
    if runs is not None:
        scanned = runs.readings(
            benchmarks, [read for doc_id in sorted(found) for read in _read_items(found[doc_id])]
        )
    return ScanEvidence(
        against=names,
        benchmarks=benchmarks,
        ngram=request.ngram,
        content_fingerprint=index.content_fingerprint,
        num_items=len(items),
        skipped_items=tuple(finder.skipped),
        found_items=found_items,
        common_ngrams=len(common),
        num_documents=num_documents,
        num_found=len(found),
        share=share,
        max_share=max_share,
        refused=share > max_share,
        control=None if request.control is None else _control(finder, job, request),
        documents=tuple(
            ScannedDocument(doc_id=doc_id.hex(), url=url, matches=found[doc_id].matches)
            for doc_id, url in _urls(out, sorted(found))
        ),
        runs=scanned,
    )


def _read_items(found: ContaminatedDocument) -> Iterator[ReadItem]:
    """The items that a document holds, each with the tokens that hold it."""
    for match, spans in zip(found.matches, found.tokens, strict=True):
        yield ReadItem(item=match.item, doc_id=found.doc_id, spans=spans)


def _read_benchmark(file: str, field: str) -> tuple[str, list[str]]:
    """The digest of a file and its items; RecipeError where it has none."""
    with errors_about("--against"):
        digest, items = content_hash(named_bytes(file)).hex(), read_items(file, field)
    if not items:
        raise RecipeError(f"--against {without_secrets(file)}: there is no item in it")
    return digest, items


def _benchmarks(
    out: Folder, read: Mapping[str, tuple[str, list[str]]], skipped: Sequence[int], found: Sequence[int]
) -> Iterator[Benchmark]:
    checked = {one.digest for one in checked_against(out)}
    first = 0
    for file, (digest, items) in read.items():
        mine = range(first, first + len(items))
        yield Benchmark(
            file=without_secrets(file),
            digest=digest,
            first_item=first,
            num_items=len(items),
            num_skipped=sum(item in mine for item in skipped),
            num_found=sum(item in mine for item in found),
            was_checked=digest in checked,
        )
        first = mine.stop


def _pieces(out: Folder, index: Index, ngram: str) -> list[Piece]:
    """All that is scanned: clean texts, or for n-grams of tokens the shards; and the parsed texts of rejected
    documents, where they are kept."""
    of_tokens = ngram == "8t" and index.has_tokens
    pieces = [Piece(held=one) for one in (index.shards if of_tokens else index.documents)]
    texts = read_parsed_texts(out)
    if texts is not None and texts.kept:
        survivors = {(part.source, part.part): part for part in index.documents}
        for one in texts.parts:
            held = PartFile(
                source=one.source, part=one.part, file=one.file, num_rows=one.num_rows, hash=one.hash
            )
            pieces.append(Piece(held=held, survivors=survivors[one.source, one.part]))
    return pieces


def _urls(out: Folder, doc_ids: Sequence[bytes]) -> Iterator[tuple[bytes, str | None]]:
    lookup = Lookup(out)
    for first in range(0, len(doc_ids), _AT_ONCE):
        some = doc_ids[first : first + _AT_ONCE]
        known = {row.doc_id: row.url for row in lookup.documents(some)}
        yield from ((doc_id, known[doc_id]) for doc_id in some)


def _first_pass(
    job: ScanJob, pieces: Sequence[Piece], work: TaskResources, reporter: ProgressReporter
) -> tuple[list[int], int, list[Piece]]:
    seen: Counter[int] = Counter()
    num, again = 0, []
    with reporter.phase("scan", len(pieces)) as phase:
        for piece, found in run_units(look, job, pieces, work, operator="scan"):
            seen.update(found.seen)
            num += found.num_documents
            if found.rows:
                again.append(replace(piece, rows=found.rows))
            phase.step(1, counted(num, "document"))
    return [number for number, count in seen.items() if count > COMMON_IN], num, again


def _second_pass(
    job: ScanJob, pieces: Sequence[Piece], work: TaskResources, reporter: ProgressReporter
) -> dict[bytes, ContaminatedDocument]:
    """The documents that hold an item, by doc_id."""
    found: dict[bytes, ContaminatedDocument] = {}
    with reporter.phase("evidence", len(pieces)) as phase:
        for _, documents in run_units(show, job, pieces, work, operator="scan_evidence"):
            found.update((document.doc_id, document) for document in documents)
            hold = "holds" if len(found) == 1 else "hold"
            phase.step(1, f"{counted(len(found), 'document')} {hold} an item")
    return found


def _control(finder: Finder, job: ScanJob, request: ScanRequest) -> ControlCount:
    """How many texts of the control file, which are known to be clean, would have been called
    contaminated."""
    assert request.control is not None
    texts = [clean_text(text)[0] for text in read_items(request.control, request.field)]
    ignore = _common_mask(finder, job)
    flagged = sum(1 for text in texts if finder.find(text, ignore))
    return ControlCount(
        file=request.control, num=len(texts), flagged=flagged, rate=flagged / max(1, len(texts))
    )


def write_evidence(evidence: ScanEvidence, to: str) -> None:
    """Write the evidence to a file, which must not lie under an output: it quotes documents."""
    check_outside("--to", to)
    folder, name = split(to)
    folder.publish(name, json.dumps(evidence.to_json(), indent=1, ensure_ascii=False).encode())
