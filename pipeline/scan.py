"""`sluice scan`: which documents of a run hold the texts of a benchmark, with the evidence that `purge --from` takes.

Two passes over the clean texts, part by part: the first counts in how many documents each n-gram of the items stands
and remembers the documents that hold any; the second looks at those documents again, leaving common n-grams out.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from lineage.index import PartFile, read_index
from lineage.recipe import RecipeError
from lineage.storage import Folder, local_path
from pipeline import engine
from pipeline.engine import Work, run_units
from pipeline.progress import Reporter
from pipeline.recipe import recipe_of
from stages.contamination import Finder
from stages.decontaminate import read_items
from stages.dedup.options import DedupTable
from stages.tokenizer import load_tokenizer

COMMON_IN = 10
"""An n-gram that stands in more documents than this is common and counts for nothing (GPT-3, appendix C)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRequest:
    """What to look for, and how."""

    against: str
    field: str = "text"
    ngram: Literal["13w", "8t"] = "13w"
    control: str | None = None
    max_share: float = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanJob:
    """What all scanning tasks share. `common` are the numbers of n-grams to leave out."""

    out: str
    key: str
    items: tuple[str, ...]
    ngram: Literal["13w", "8t"]
    dedup: DedupTable
    kinds: tuple[str, ...]
    encoding: str
    common: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartToScan:
    """A part of clean texts; in the second pass only some of its rows."""

    part: PartFile
    rows: tuple[int, ...] | None = None


@functools.lru_cache(maxsize=2)
def _finder(job: ScanJob) -> Finder:
    encode = load_tokenizer(job.encoding).encode if job.ngram == "8t" else None
    return Finder(job.items, job.ngram, job.dedup, job.kinds, encode)


def _common_mask(finder: Finder, job: ScanJob) -> npt.NDArray[np.bool_]:
    ignore = np.zeros(finder.num_ngrams, dtype=np.bool_)
    ignore[list(job.common)] = True
    return ignore


def _rows(job: ScanJob, item: PartToScan) -> Iterator[tuple[int, bytes, str, str]]:
    """(row, doc_id, url, text) of the rows asked for; purged texts are not there any more."""
    wanted = None if item.rows is None else frozenset(item.rows)
    first = 0
    with Folder(job.out).open(item.part.file) as stream:
        for batch in pq.ParquetFile(stream).iter_batches(batch_size=512, columns=["doc_id", "url", "text"]):
            for offset, row in enumerate(batch.to_pylist()):
                if row["text"] is not None and (wanted is None or first + offset in wanted):
                    yield first + offset, row["doc_id"], row["url"] or "", row["text"]
            first += batch.num_rows


def look(job: ScanJob, item: PartToScan, careful: bool) -> dict[str, Any]:
    """First pass over a part: how many documents it has, which rows hold any item, and how often each n-gram stands."""
    finder = _finder(replace_common(job, ()))
    seen: Counter[int] = Counter()
    rows, num = [], 0
    for row, _, _, text in _rows(job, item):
        num += 1
        present = finder.ngrams_in(text).tolist()
        seen.update(present)
        if present or finder.find(text):
            rows.append(row)
    return {"num": num, "rows": rows, "seen": dict(seen)}


def show(job: ScanJob, item: PartToScan, careful: bool) -> list[dict[str, Any]]:
    """Second pass: the documents of a part that hold an item, with the evidence."""
    finder = _finder(replace_common(job, ()))
    ignore = _common_mask(finder, job)
    found = []
    for _, doc_id, url, text in _rows(job, item):
        evidence = finder.find(text, ignore)
        if evidence:
            found.append({
                "doc_id": doc_id.hex(), "url": url,
                "matches": [asdict(one) | {"text": [text[a:b] for a, b in one.spans[:1]]} for one in evidence],
            })  # fmt: skip
    return found


def replace_common(job: ScanJob, common: Sequence[int]) -> ScanJob:
    """The job with other common n-grams."""
    return ScanJob(**{name: getattr(job, name) for name in ScanJob.__dataclass_fields__ if name != "common"},
                   common=tuple(common))  # fmt: skip


def scan(out: Folder, request: ScanRequest, reporter: Reporter) -> dict[str, Any]:
    """The evidence: what was looked for, how much was found, and `documents` with their matches, by doc_id."""
    index = read_index(out)
    recipe = recipe_of(out)
    items = read_items(request.against, request.field)
    if not items:
        raise RecipeError(f"--against {request.against}: there is no item in it")
    job = ScanJob(
        out=out.url, key=index.content_fingerprint, items=tuple(items), ngram=request.ngram, dedup=recipe.dedup,
        kinds=recipe.pii.kinds, encoding=recipe.tokenize.encoding,
    )  # fmt: skip
    finder = _finder(job)
    if len(finder.skipped) == len(items):
        raise RecipeError(f"--against {request.against}: none of its {len(items)} items has five words to look for")
    with engine.cluster(recipe.ray):
        common, num_documents, parts = _first_pass(job, index.documents, Work.of(recipe.ray), reporter)
        job = replace_common(job, common)
        documents = _second_pass(job, parts, Work.of(recipe.ray), reporter)
    share = len(documents) / max(1, num_documents)
    return {
        "format": 1,
        "against": request.against,
        "ngram": request.ngram,
        "content_fingerprint": index.content_fingerprint,
        "num_items": len(items),
        "skipped_items": list(finder.skipped),
        "found_items": sorted({match["item"] for document in documents for match in document["matches"]}),
        "common_ngrams": len(common),
        "num_documents": num_documents,
        "num_found": len(documents),
        "share": share,
        "max_share": request.max_share,
        "refused": share > request.max_share,
        "control": None if request.control is None else _control(finder, job, request),
        "documents": sorted(documents, key=lambda document: str(document["doc_id"])),
    }


def _first_pass(
    job: ScanJob, parts: Sequence[PartFile], work: Work, reporter: Reporter
) -> tuple[list[int], int, list[PartToScan]]:
    seen: Counter[int] = Counter()
    num, again = 0, []
    with reporter.phase("scan", len(parts)) as phase:
        for item, done in run_units(look, job, [PartToScan(part=part) for part in parts], work):
            seen.update(done["seen"])
            num += done["num"]
            if done["rows"]:
                again.append(PartToScan(part=item.part, rows=tuple(done["rows"])))
            phase.step(1, f"{num:,} documents")
    return [number for number, count in seen.items() if count > COMMON_IN], num, again


def _second_pass(job: ScanJob, parts: Sequence[PartToScan], work: Work, reporter: Reporter) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    with reporter.phase("evidence", len(parts)) as phase:
        for _, documents in run_units(show, job, parts, work):
            found.update({document["doc_id"]: document for document in documents})
            phase.step(1, f"{len(found):,} documents hold an item")
    return list(found.values())


def _control(finder: Finder, job: ScanJob, request: ScanRequest) -> dict[str, Any]:
    """How many texts of the control file, which are known to be clean, would have been called contaminated."""
    assert request.control is not None
    texts = read_items(request.control, request.field)
    ignore = _common_mask(finder, job)
    flagged = sum(1 for text in texts if finder.find(text, ignore))
    return {"file": request.control, "num": len(texts), "flagged": flagged, "rate": flagged / max(1, len(texts))}


def write_evidence(evidence: dict[str, Any], out: Folder, to: str) -> None:
    """Write the evidence to a file that does not lie under `out`: it quotes documents."""
    target = to if "://" in to else local_path(to)
    if target == out.url or target.startswith(out.url.rstrip("/") + "/"):
        raise RecipeError(f"--to {to} lies under {out.url}: evidence quotes documents, so it must lie elsewhere")
    folder, _, name = target.rpartition("/")
    Folder(folder).publish(name, json.dumps(evidence, indent=1, ensure_ascii=False).encode())
