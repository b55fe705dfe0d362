"""`sluice scan`: which documents of a run hold the texts of a benchmark, with the evidence that `purge
--from` takes.

Two passes over the clean texts, part by part, or over the shards where n-grams of tokens are asked for: the
first counts in how many documents each n-gram of the items stands and remembers the documents that hold any;
the second looks at those documents again, leaving common n-grams out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from lineage.ids import content_hash
from lineage.index.checked_against import checked_against
from lineage.index.output_index import Index, PartFile, read_index
from lineage.index.parsed_texts import read_parsed_texts
from lineage.recipe import RecipeError, errors_about
from lineage.secrets import without_secrets
from lineage.storage.folder import Folder
from lineage.store.lookup import Lookup
from pipeline.cluster.dataset import run_units
from pipeline.cluster.session import as_connected, units_session
from pipeline.cluster.tasks import TaskResources
from pipeline.inspect.scan.evidence import ControlCount, ScanEvidence, ScannedDocument
from pipeline.inspect.scan.passes import (
    ContaminatedDocument,
    ScanJob,
    ScanUnit,
    common_mask,
    finder_of,
    look,
    show,
)
from pipeline.inspect.scan.scanned_runs import Benchmark, ReadingRuns, ReadItem
from pipeline.phases.progress import ProgressReporter
from pipeline.recipe.load import recipe_of
from pipeline.recipe.tables import PipelineRecipe, RayTable
from pipeline.terminal import counted
from stages.composition import clean_text
from stages.contamination import Finder
from stages.steps.benchmark_items import read_items
from stages.steps.textfiles import named_bytes

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
    job = scan_job(out, index, recipe, items, request.ngram)
    finder = finder_of(job)
    names = ", ".join(map(without_secrets, read))
    if len(finder.skipped) == len(items):
        raise RecipeError(f"--against {names}: none of its {len(items)} items has five words to look for")
    # Before the long work: a run that is not there is a wrong call.
    runs = None if request.runs is None else ReadingRuns(out, request.runs)
    scanned_texts = find_items(out, index, job, recipe.ray, reporter, places=request.runs is not None)
    job, num_documents, found = scanned_texts.job, scanned_texts.num_documents, scanned_texts.found
    share = len(found) / max(1, num_documents)
    max_share = max(_SHARE, _FEW / max(1, num_documents)) if request.max_share is None else request.max_share
    found_items = tuple(sorted({match.item for one in found.values() for match in one.matches}))
    benchmarks = tuple(_benchmarks(out, read, finder.skipped, found_items))
    scanned = None if runs is None else runs.readings(benchmarks, scanned_texts.read_items())
    return ScanEvidence(
        against=names,
        benchmarks=benchmarks,
        ngram=request.ngram,
        content_fingerprint=index.content_fingerprint,
        num_items=len(items),
        skipped_items=tuple(finder.skipped),
        found_items=found_items,
        common_ngrams=len(job.common),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundItems:
    """What a scan found: the documents that hold an item, by doc_id; `job.common` has the n-grams that were left out.
    Items are looked for in `num_documents`."""

    job: ScanJob
    num_documents: int
    found: Mapping[bytes, ContaminatedDocument]

    def read_items(self) -> list[ReadItem]:
        """The items of each document, with the tokens that hold them, where the scan asked for `places`."""
        return [
            ReadItem(item=match.item, doc_id=doc_id, spans=spans)
            for doc_id in sorted(self.found)
            for match, spans in zip(self.found[doc_id].matches, self.found[doc_id].tokens, strict=True)
        ]


def scan_job(
    out: Folder, index: Index, recipe: PipelineRecipe, items: Sequence[str], ngram: Literal["13w", "8t"]
) -> ScanJob:
    """What is looked for in an output, and how."""
    return ScanJob(
        out=out.url,
        key=index.content_fingerprint,
        items=tuple(items),
        ngram=ngram,
        dedup=recipe.dedup,
        pii=recipe.pii,
        encoding=recipe.tokenize.encoding,
        eot_id=index.tokenizer.eot_id if index.has_tokens else None,
    )


def find_items(
    out: Folder, index: Index, job: ScanJob, ray: RayTable, reporter: ProgressReporter, *, places: bool
) -> FoundItems:
    """Both passes over an output; `places`: with the tokens that hold each item."""
    ray = as_connected(ray)
    with units_session(ray):
        units = _units(out, index, job.ngram)
        common, num_documents, units = _first_pass(job, units, TaskResources.of(ray), reporter)
        job = replace(job, common=tuple(common), places=places)
        found = _second_pass(job, units, TaskResources.of(ray), reporter)
    return FoundItems(job=job, num_documents=num_documents, found=found)


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


def _units(out: Folder, index: Index, ngram: str) -> list[ScanUnit]:
    """All that is scanned: clean texts, or for n-grams of tokens the shards; and the parsed texts of rejected
    documents, where they are kept."""
    of_tokens = ngram == "8t" and index.has_tokens
    units = [ScanUnit(held=one) for one in (index.shards if of_tokens else index.documents)]
    texts = read_parsed_texts(out)
    if texts is not None and texts.kept:
        survivors = {(part.source, part.part): part for part in index.documents}
        for one in texts.parts:
            held = PartFile(
                source=one.source, part=one.part, file=one.file, num_rows=one.num_rows, hash=one.hash
            )
            units.append(ScanUnit(held=held, survivors=survivors[one.source, one.part]))
    return units


def _urls(out: Folder, doc_ids: Sequence[bytes]) -> Iterator[tuple[bytes, str | None]]:
    lookup = Lookup(out)
    for first in range(0, len(doc_ids), _AT_ONCE):
        some = doc_ids[first : first + _AT_ONCE]
        known = {row.doc_id: row.url for row in lookup.documents(some)}
        yield from ((doc_id, known[doc_id]) for doc_id in some)


def _first_pass(
    job: ScanJob, units: Sequence[ScanUnit], work: TaskResources, reporter: ProgressReporter
) -> tuple[list[int], int, list[ScanUnit]]:
    seen: Counter[int] = Counter()
    num, again = 0, []
    with reporter.phase("scan", len(units)) as phase:
        for unit, found in run_units(look, job, units, work, operator="scan"):
            seen.update(found.seen)
            num += found.num_documents
            if found.rows:
                again.append(replace(unit, rows=found.rows))
            phase.step(1, counted(num, "document"))
    return [number for number, count in seen.items() if count > COMMON_IN], num, again


def _second_pass(
    job: ScanJob, units: Sequence[ScanUnit], work: TaskResources, reporter: ProgressReporter
) -> dict[bytes, ContaminatedDocument]:
    """The documents that hold an item, by doc_id."""
    found: dict[bytes, ContaminatedDocument] = {}
    with reporter.phase("evidence", len(units)) as phase:
        for _, documents in run_units(show, job, units, work, operator="scan_evidence"):
            found.update((document.doc_id, document) for document in documents)
            hold = "holds" if len(found) == 1 else "hold"
            phase.step(1, f"{counted(len(found), 'document')} {hold} an item")
    return found


def _control(finder: Finder, job: ScanJob, request: ScanRequest) -> ControlCount:
    """How many texts of the control file, which are known to be clean, would have been called
    contaminated."""
    assert request.control is not None
    texts = [clean_text(text)[0] for text in read_items(request.control, request.field)]
    ignore = common_mask(finder, job)
    flagged = sum(1 for text in texts if finder.find(text, ignore))
    return ControlCount(
        file=request.control, num=len(texts), flagged=flagged, rate=flagged / max(1, len(texts))
    )
