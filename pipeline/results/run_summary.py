"""run.json: what a finished run came to, and what it is a function of."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rich.filesize import decimal

from lineage.index.names import RUN_FILE
from lineage.json_record import JsonRecord, left_out_at
from lineage.storage.folder import Folder
from pipeline.cluster.dataset import DatasetStats
from pipeline.results.estimates import STEP, Prediction
from pipeline.results.faults import FaultRow
from pipeline.results.unit_results import BucketCuts, BucketSize, ReadResult, RepeatSize
from pipeline.terminal import counted
from stages.dedup.options import BY_DATE
from stages.reading.options import Note


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTime:
    """How long a phase took, the last line of its progress, and the processor seconds of all its processes."""

    name: str
    seconds: float
    note: str
    processor_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTextsSize:
    """How many documents' texts after parse an output keeps, and what they take with their facts."""

    num_documents: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadInput:
    """About how much of the input was not read: bytes as they lie, their share, and records in as many bytes;
    how many files break off, of which nobody knows how much is missing."""

    num_bytes: int
    share: float
    num_records: int
    num_broken_off: int

    def sentence(self) -> str:
        """In a line, for people."""
        torn = self.num_broken_off
        files = f": {torn:,} files break off, and count as a whole" if torn > 1 else ""
        files = ": a file breaks off, and counts as a whole" if torn == 1 else files
        return (
            f"About {decimal(self.num_bytes)} of the input ({100 * self.share:.2g}%) were not read, about"
            f" {counted(self.num_records, 'record')}{files}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideSummary(JsonRecord):
    """What [dedup.inside] cut: how many documents, cuts and characters, and how many documents kept too little."""

    method: str
    num_documents: int
    num_cuts: int
    num_chars: int
    num_rejected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary(JsonRecord):
    """Counts are those of the whole run. `num_unreadable` counts stretches, and `unread` says about how much was not
    read with them, but for single bad records; `rejected` is by stage and rule; `seconds` are processor seconds by
    source and stage; `devices` are the kinds that models ran on, by model; `parsed_texts` is what run.keep_text
    keeps, `prediction` what `sluice plan --keep` wrote for this run, `from_output` the earlier output whose texts
    were the input; `nothing_kept` is the reason where no document was kept; `unlike_pages` are, by source, the
    documents that went for their URL alone though their text is not like that of the kept one; `num_without_page` are
    those whose URL names no page; `num_compared` are the documents that came to be compared, `num_without_date` those
    of them without a time of capture; `notes` counts what was read otherwise than it is written
    (`stages.reading.options.Note`), `odd_date` is an example of its odd dates; `bucket_cuts` are where each
    [[bucket]] cuts, `buckets` the parts of sources, `repeats` how often an epoch reads what, `inside` what was cut
    out of documents; `identity` is what later
    calls compare (`RunPlan.identity`)."""

    name: str
    output: str
    num_files: int
    num_bytes: int
    num_records: int
    num_unreadable: int
    unread: UnreadInput | None = None
    num_documents: int
    num_kept: int
    nothing_kept: str | None = None
    num_tokens: int
    num_shards: int
    rejected: Mapping[str, Mapping[str, int]]
    faults: tuple[FaultRow, ...] = ()
    dedup: Mapping[str, int]
    unlike_pages: Mapping[str, int] = field(default_factory=dict)
    num_without_page: int = 0
    num_compared: int = 0
    num_without_date: int = 0
    notes: Mapping[str, int] = field(default_factory=dict)
    odd_date: str | None = None
    order_fingerprint: str
    content_fingerprint: str
    seconds: Mapping[str, Mapping[str, float]]
    phases: tuple[PhaseTime, ...]
    datasets: tuple[DatasetStats, ...] = ()
    devices: Mapping[str, str] = field(default_factory=dict)
    parsed_texts: ParsedTextsSize | None = None
    from_output: str | None = None
    prediction: Prediction | None = None
    bucket_cuts: tuple[BucketCuts, ...] = ()
    buckets: tuple[BucketSize, ...] = ()
    repeats: tuple[RepeatSize, ...] = ()
    inside: InsideSummary | None = left_out_at(None)  # noqa: RUF009  # as it is for every other type
    identity: Mapping[str, Any] = field(repr=False)  # it names every input file


NOTES: Final[Mapping[Note, tuple[str, str]]] = {
    "mended": ("record", "with a wrong Content-Length, read to the end of the compressed member"),
    "other_members": ("file", "of WACZ and tar inputs beside the archives or papers, without records"),
    "surrogates": ("row", "with a lone surrogate in text, id or URL, replaced by U+FFFD"),
    "odd_dates": ("row", "without a date, because captured_at or date has no known format"),
    "empty": ("empty input file", ""),
    "marker": ("input file", "left by a writer of tables (_SUCCESS and the like), not read"),
    "binary": ("binary input file", ", not a document"),
}
"""What was read otherwise than it is written, or not read: the noun that is counted, and what is said of it."""


def notes_of(notes: Mapping[str, int], odd_date: str | None = None) -> list[str]:
    """A sentence for each of NOTES that was counted."""
    example = {"odd_dates": f", as {odd_date}" if odd_date else ""}
    return [
        f"{counted(notes[name], noun)} {text}".rstrip().replace(" ,", ",") + f"{example.get(name, '')}."
        for name, (noun, text) in NOTES.items()
        if notes.get(name)
    ]


def first_odd_date(read_results: Iterable[ReadResult]) -> str | None:
    """The first of the dates that are none, with the file that it is in."""
    return next(
        (f"{unit.odd_date} in {unit.file}" for unit in read_results if unit.odd_date is not None), None
    )


def undated(summary: RunSummary) -> list[str]:
    """A sentence where the copy that stays hangs on dates, and some documents have none."""
    recipe = summary.identity["recipe"]
    dedup, steps = recipe["dedup"], {step for source in recipe["source"] for step in source["steps"]}
    compares = any(dedup.get(name) and f"dedup.{name}" in steps for name in ("url", "exact", "near"))
    if dedup.get("keep") not in BY_DATE or not compares or not summary.num_without_date:
        return []
    return [
        f"{summary.num_without_date:,} of {summary.num_compared:,} documents that were compared have no date:"
        f' dedup.keep = "{dedup["keep"]}" takes one with a date before them (source.date_field names the field).'
    ]


def unlike_warnings(unlike_pages: Mapping[str, int]) -> list[str]:
    """A sentence for each source of which dedup.url dropped documents whose texts are unlike the kept
    ones."""
    return [
        f"dedup.url dropped {num:,} {'document' if num == 1 else 'documents'} of source {source!r} whose text"
        " is unlike that of the kept one (estimated Jaccard below 0.2), as their URLs name one page. Where"
        " these differ in what stands behind # alone, give the source fragments = true; dedup.url = false"
        " keeps all of them. To see them: SELECT doc_id, url, duplicate_of FROM documents WHERE stage ="
        f" 'dedup.url' AND source = '{source}'"
        for source, num in sorted(unlike_pages.items())
    ]


def limited(identity: Mapping[str, Any]) -> list[str]:
    """A sentence for each source of which only the first documents of each file were read."""
    return [
        f"Of each file of source {source['name']!r} only the first {source['limit_documents']:,} documents"
        " were read (limit_documents): what lies behind them is neither read nor counted."
        for source in identity["recipe"]["source"]
        if source.get("limit_documents") is not None
    ]


def empty_parts(summary: RunSummary) -> list[str]:
    """A sentence for each [[bucket]] whose percentiles are of no document, and for each part of a source that
    no kept document is in; none where none was kept at all, which is said otherwise."""
    if not summary.num_kept:
        return []
    recipe = summary.identity["recipe"]
    parted = [source["name"] for source in recipe["source"] if "classifier" in source["steps"]]
    filled = {(size.source, part) for size in summary.buckets for part in size.bucket.split(".")}
    said = []
    repeat = recipe.get("repeat", {})
    for table in recipe.get("bucket", ()):
        name = table["name"]
        cuts = [each for each in summary.bucket_cuts if each.name == name]
        if table.get("percentiles") and not any(each.cuts for each in cuts):
            columns = " and ".join(each.column for each in cuts)
            said.append(
                f"[[bucket]] {name!r} has percentiles, and no kept document has {columns}: it cuts nowhere, and"
                " makes no part."
            )
            continue
        if repeat.get("by") == "bucket" and repeat.get("bucket") in (None, name):
            continue  # it names no part of a source, but rows of [repeat]
        num_parts = max((len(each.cuts) + 1 for each in cuts if each.cuts), default=0)
        for source in parted:
            empty = [f"{name}-{k}" for k in range(num_parts) if (source, f"{name}-{k}") not in filled]
            if empty:
                are = "part" if len(empty) == 1 else "parts"
                said.append(
                    f"No kept document of source {source!r} is in the {are} {', '.join(empty)} of [[bucket]]"
                    f" {name!r}: there are no shards of that name, and no mixture can take them."
                )
    return said


def unread_sources(summary: RunSummary) -> list[str]:
    """A sentence for each source, or part of one, of which [repeat] has every document read 0 times."""
    sums: dict[str, tuple[int, int]] = {}
    for size in summary.repeats:
        num, readings = sums.get(size.source, (0, 0))
        sums[size.source] = num + size.num_documents, readings + size.num_readings
    return [
        f"[repeat] has {'each of ' if num > 1 else ''}the {num:,} kept document{'s' * (num > 1)} of source"
        f" {source!r} read 0 times: an epoch of training holds nothing of it."
        for source, (num, readings) in sums.items()
        if not readings
    ]


_REAL_PHASES: Final = {
    "compare": ("compare",),
    "tokenize": ("tokenize large files", "tokenize"),
    "shard": ("cut into shards", "write shards"),
    "lineage": ("join lineage facts", "write lineage"),
}
"""The phases that a prediction takes together, by the name that it gives them."""


def came_to(summary: RunSummary) -> dict[str, float]:
    """What a run came to, by the names of a prediction; processor hours only of what was done in one call, or is
    counted whatever the number of calls."""
    stages, phases = Counter[str](), {phase.name: phase.processor_seconds for phase in summary.phases}
    for of_source in summary.seconds.values():
        stages.update(of_source)
    whole = stages.pop("all", 0.0)
    seconds = dict(stages) | {"read, write": whole - stages.total()}
    for name, parts in _REAL_PHASES.items():
        if any(part in phases for part in parts):
            seconds[name] = sum(phases.get(part, 0.0) for part in parts)
    return {
        "documents": summary.num_documents,
        "kept_documents": summary.num_kept,
        "kept_share": summary.num_kept / max(summary.num_documents, 1),
        "tokens": summary.num_tokens,
        **{f"{STEP}{name}": value / 3600 for name, value in seconds.items()},
    }


def encode_summary(summary: RunSummary) -> bytes:
    """The bytes of run.json."""
    return json.dumps(summary.to_json(), indent=1, sort_keys=True).encode()


def read_summary(out: Folder) -> RunSummary:
    """The run.json of a finished output."""
    return RunSummary.from_json(json.loads(out.read(RUN_FILE)))
