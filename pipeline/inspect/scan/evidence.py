"""What a scan found: the file that `purge --from` takes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from lineage.index.output_index import check_outside
from lineage.json_record import JsonRecord, json_name
from lineage.storage.folder import split
from pipeline.inspect.scan.scanned_runs import Benchmark, ScannedRun
from stages.contamination import Kind
from stages.ngrams import ElementKind


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


def write_evidence(evidence: ScanEvidence, to: str) -> None:
    """Write the evidence to a file, which must not lie under an output: it quotes documents."""
    check_outside("--to", to)
    folder, name = split(to)
    folder.publish(name, json.dumps(evidence.to_json(), indent=1, ensure_ascii=False).encode())
