"""Judge the parsed texts of an input file: a unit of a run that starts from an earlier output.

A document that an unchanged step rejected is taken over as it stands. One that all of them let pass goes
on from there; where it comes behind the changed steps as it came there then, and survived the earlier run,
its clean text is taken over. So the unit's files are those that reading the input file with this recipe would
give."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, TypedDict, TypeVar

import pyarrow.parquet as pq

from lineage.ids import text_hash
from lineage.index.checksums import DamagedFileError
from lineage.index.names import EXCERPTS_FILE
from lineage.index.output_index import PartFile
from lineage.index.parsed_texts import ParsedPart
from lineage.purge.purged_sets import PURGED_RULE
from lineage.storage.folder import Folder
from lineage.store.column_names import INDEXED, LABEL, LICENSE, RIGHTS, SCORE, added_columns
from pipeline.phases.phase import Phase, publish_result
from pipeline.phases.read import ReadJob, chain_of, read_counts, read_note
from pipeline.plan import RunPlan, Unit
from pipeline.refilter.earlier import Refiltering, Start
from pipeline.results.excerpts import ExcerptRow
from pipeline.results.faults import READING
from pipeline.results.rows import opened
from pipeline.results.unit_results import ReadResult
from pipeline.units.facts import DocumentFacts, EditFacts, FindingFacts, UnitFacts, publish_facts, read_facts
from pipeline.units.files import UnitWriter
from pipeline.units.parsed_texts import ParsedTextRow, parsed_document, without_purged
from pipeline.units.tally import UnitTally
from stages.chain import Chain
from stages.document import Document, Edit, Finding, Outcome, Place, Rejection
from stages.quality.options import QualityTable
from stages.quality.step import QualityStep
from stages.steps.purged import origin_in

_TOGETHER: Final = 256


_OfDocument = TypeVar("_OfDocument", FindingFacts, EditFacts)


class _CleanText(TypedDict):
    """A row of tables.PART, as far as it is looked at."""

    text: str
    metadata: str | None
    captured_at: str | None
    url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefilterJob:
    """What all units of a run share: the earlier output, and where the documents of each source start."""

    read: ReadJob
    earlier: str
    starts: tuple[Start, ...]
    earlier_quality: QualityTable


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFromTexts:
    """A unit, and the files of the earlier output that it is made from: its parsed texts and its clean
    texts."""

    unit: Unit
    texts: ParsedPart
    part: PartFile

    @property
    def marker(self) -> str:
        return self.unit.marker


def refilter_phase(
    plan: RunPlan,
    job: ReadJob,
    refiltering: Refiltering,
    watch: Callable[[ReadResult], None],
) -> Phase[RefilterJob, UnitFromTexts, ReadResult]:
    """The judging of all units."""
    earlier, starts = refiltering.earlier, refiltering.starts
    texts = {(part.source, part.part): part for part in earlier.texts.parts}
    parts = {(part.source, part.part): part for part in earlier.index.documents}
    stages = dict.fromkeys(stage for start in starts for stage in start.stages[start.first :])
    return Phase(
        name="filter parsed texts",
        operator="->".join(("parsed_texts", *stages)),
        kind="read",
        task=refilter_unit,
        result=ReadResult,
        job=RefilterJob(
            read=job, earlier=earlier.out.url, starts=starts, earlier_quality=earlier.recipe.quality
        ),
        units=[
            UnitFromTexts(
                unit=unit, texts=texts[unit.source, unit.file_index], part=parts[unit.source, unit.file_index]
            )
            for unit in plan.units
        ],
        size=lambda item: item.texts.bytes or 1.0,
        note=read_note,
        counts=read_counts(plan.recipe),
        watch=watch,
    )


def refilter_unit(job: RefilterJob, item: UnitFromTexts) -> ReadResult:
    """Judge the documents of one input file and publish what came of them."""
    out, unit = Folder(job.read.out), item.unit
    facts = read_facts(Folder(job.earlier), item.texts.facts, item.texts.facts_hash)
    before, start = facts.result, job.starts[unit.source_index]
    # What reading found is that of the earlier run, and so is what was raised where rejections are taken over.
    unchanged = (READING, *start.stages[: start.num_unchanged])
    faults = tuple(row for row in before.faults if row.stage in unchanged)
    begun = replace(before, key=unit.key, source=unit.source, seconds={}, faults=faults)
    tally = UnitTally.resumed(begun, strict=job.read.strict)
    with UnitWriter(out, job.read.unit_files, unit, tally) as writer:
        _UnitFilter(job, item, facts, writer, tally).run()
    result = tally.result(writer.part, without_purged(out, writer.texts, tally))
    if job.read.unit_files.keep_facts:
        result = replace(result, facts=publish_facts(out, unit, result))
    return publish_result(out, unit.marker, result)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReusedRejection:
    """A document whose rejection is taken over."""

    row: DocumentFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResumedDocument:
    """A document that goes on from the first step that runs again: as it enters that, its row of facts and of
    parsed texts, and of clean texts where it survived the earlier run."""

    document: Document
    row: DocumentFacts
    kept: ParsedTextRow
    clean: _CleanText | None


class _UnitFilter:
    """The documents of one unit on their way."""

    def __init__(
        self, job: RefilterJob, item: UnitFromTexts, facts: UnitFacts, writer: UnitWriter, tally: UnitTally
    ) -> None:
        self._start = job.starts[item.unit.source_index]
        self._chain: Chain = chain_of(job.read, item.unit.source_index, self._start.first)
        self._language = job.read.languages[item.unit.source_index]
        self._purged, self._plan_key = job.read.tables.purged, job.read.key
        self._earlier, self._item = Folder(job.earlier), item
        self._writer, self._tally = writer, tally
        self._documents: list[DocumentFacts] = facts.documents.to_pylist()
        ledger = job.read.unit_files.whole_ledger
        self._findings: dict[int, list[FindingFacts]] = _by_document(
            facts.findings.to_pylist() if ledger else []
        )
        self._edits: dict[int, list[EditFacts]] = _by_document(
            facts.edits.to_pylist() if self._start.takes_survivors else []
        )
        self._measured = facts.measured
        self._quality_then = QualityStep(job.earlier_quality) if self._start.by_measures else None

    def run(self) -> None:
        """Write the rows of every document, in reading order."""
        excerpts, begun = _excerpts(self._earlier.url, self._plan_key), self._begin()
        while together := list(islice(begun, _TOGETHER)):
            for outcome in self._judged(together):
                if isinstance(outcome, _ReusedRejection):
                    row = outcome.row
                    shown = excerpts.get((row["doc_id"], row["stage"], row["rule"]), [])
                    self._writer.carry(row, self._findings.get(row["row"], []), shown, self._measured_of(row))
                else:
                    self._writer.add(outcome)

    def _judged(
        self, begun: Sequence[_ReusedRejection | _ResumedDocument | Outcome]
    ) -> list[_ReusedRejection | Outcome]:
        """What comes of each; the changed steps see many documents one after the other, as in a run from the
        inputs."""
        # The settled rejections keep their places, so that rows are written in the order of a run from the inputs.
        sent = [one for one in begun if isinstance(one, _ResumedDocument)]
        judged = iter(self._settle(sent, self._through_changed(sent)))
        return [next(judged) if isinstance(one, _ResumedDocument) else one for one in begun]

    def _through_changed(self, sent: Sequence[_ResumedDocument]) -> list[Outcome]:
        """What comes of each in the steps up to the settled ones, in order. Where what was measured then
        tells it, the text is not looked at."""
        start, seconds = self._start, self._tally.seconds
        told = [self._by_measures(one) for one in sent]
        others = [one.document for one, outcome in zip(sent, told, strict=True) if outcome is None]
        judged = iter(self._chain.run_from(start.first, others, seconds, start.settled))
        return [next(judged) if outcome is None else outcome for outcome in told]

    def _by_measures(self, one: _ResumedDocument) -> Outcome | None:
        if self._quality_then is None:
            return None
        quality = self._chain.plain_step("quality")
        assert isinstance(quality, QualityStep)
        rejected_by = one.row["rule"] if one.row["stage"] == quality.stage else None
        outcome = quality.judge_again(
            one.document, self._quality_then, self._measured_of(one.row), rejected_by
        )
        if isinstance(outcome, Document) and one.clean is None and self._purged is not None:
            return None  # the chain's last step looks for clean texts that were purged
        return outcome

    def _settle(self, sent: Sequence[_ResumedDocument], outcomes: Sequence[Outcome]) -> list[Outcome]:
        """What the settled steps say: those that come to them as they came then, and survived, end as they
        did."""
        taken = [self._taken_over(one, outcome) for one, outcome in zip(sent, outcomes, strict=True)]
        left = [outcome for outcome, found in zip(outcomes, taken, strict=True) if found is None]
        judged = iter(self._chain.run_from(self._start.settled, left, self._tally.seconds))
        return [next(judged) if found is None else found for found in taken]

    def _taken_over(self, one: _ResumedDocument, outcome: Outcome) -> Outcome | None:
        if one.clean is None or isinstance(outcome, Rejection) or not self._start.takes_survivors:
            return None
        # Later steps read the language too (tables of rules, phone formats): with another one they must run again.
        if (outcome.language, outcome.language_score) != (one.row["language"], one.row["language_score"]):
            return None
        return self._survivor(one.row, one.kept, one.clean)

    def _begin(self) -> Iterator[_ReusedRejection | _ResumedDocument | Outcome]:
        """Each document: decided already, or as it enters the first step that runs again."""
        start, texts, clean = self._start, self._texts(), self._clean_texts()
        up_to_parse, unchanged = start.stages[: start.parse + 1], start.stages[: start.num_unchanged]
        for row in self._documents:
            without = row["stage"] in up_to_parse or not start.has_texts
            # Three files are read side by side: facts have every document, parsed texts those that parse passed, clean
            # texts the survivors, all in reading order. So each row takes the next one of those that have it.
            kept = None if without else _next(texts, row, self._item.texts.file)
            clean_row = next(clean) if row["stage"] is None and start.takes_survivors else None
            # Before the text is kept: a text that was purged elsewhere must not be written again.
            if (rejection := self._purged_as(row, kept)) is not None:
                yield rejection
                continue
            if kept is not None:
                self._check_has_text(kept)
                self._writer.keep_text(kept)
            if clean_row is not None and start.is_unchanged:
                yield self._survivor(row, kept, clean_row)
            elif kept is None or row["stage"] in unchanged:
                yield _ReusedRejection(row=row)
            else:
                document = self._document(row, kept, start.first)
                yield _ResumedDocument(document=document, row=row, kept=kept, clean=clean_row)

    def _check_has_text(self, kept: ParsedTextRow) -> None:
        if kept["text"] is None:
            raise DamagedFileError(
                f"{self._item.texts.file} has no text of {kept['doc_id'].hex()}, which was not purged:"
                " run sluice verify"
            )

    def _document(self, row: DocumentFacts, kept: ParsedTextRow | None, first: int, **more: Any) -> Document:
        """A document as it enters `stages[first]`, but for the fields in `more`: no step between parse and that
        one changes a text."""
        passed = self._start.stages[:first]
        document = _as_read(row, self._language) if kept is None else _as_kept(row, kept)
        if "language" in passed or self._start.is_unchanged:  # a step of the user's may have named it too
            more |= {"language": row["language"], "language_score": row["language_score"]}
        if "classifier" in passed:
            more["scores"] = _scores(row)
        if labels := tuple(label for step in (READING, *passed) for label in _labels(row, step)):
            more["labels"] = labels
        findings = [finding for finding in self._findings.get(row["row"], []) if finding["stage"] in passed]
        return replace(document, findings=tuple(map(_finding, findings)), **more)

    def _survivor(self, row: DocumentFacts, kept: ParsedTextRow | None, clean: _CleanText) -> Outcome:
        """A document that the unchanged steps let pass, as they left it."""
        edits = tuple(
            Edit(stage=e["stage"], kind=e["kind"], count=e["count"]) for e in self._edits.get(row["row"], [])
        )
        document = self._document(
            row,
            kept,
            len(self._start.stages),
            text=clean["text"],
            metadata=clean["metadata"],
            captured_at=clean["captured_at"],
            url=clean["url"],
            edits=edits,
            measured=tuple(self._measured_of(row).items()),
        )
        if self._purged is not None and text_hash(document.text) in self._purged.hashes:
            return _purged(document, self._start.stages[-1])
        return document

    def _purged_as(self, row: DocumentFacts, kept: ParsedTextRow | None) -> Rejection | None:
        """The rejection of a document that an honoured output purged, as stages.steps.purged does it."""
        if self._purged is None:
            return None
        document = _as_kept(row, kept) if kept is not None else _as_read(row, self._language)
        if origin_in(self._purged, document):
            unparsed = replace(
                document, text="", text_hash=None, language=self._language, language_score=None
            )
            return _purged(
                replace(unparsed, charset=None) if document.is_html else unparsed, self._start.stages[0]
            )
        if (
            row["stage"] not in self._start.stages[: self._start.parse + 1]
            and row["text_hash"] in self._purged.hashes
        ):
            return _purged(replace(document, labels=(*_labels(row, READING), *_labels(row, "url"))), "parse")
        return None

    def _measured_of(self, row: DocumentFacts) -> Mapping[str, float]:
        """What the rules of quality measured of a document then, by rule."""
        found: Mapping[str, float] = json.loads(self._measured.get(row["doc_id"], "{}"))
        return found

    def _texts(self) -> Iterator[ParsedTextRow]:
        if self._start.has_texts:
            yield from _rows(self._earlier, self._item.texts.file, self._item.texts.hash)

    def _clean_texts(self) -> Iterator[_CleanText]:
        if self._start.takes_survivors:
            yield from _rows(self._earlier, self._item.part.file, self._item.part.hash)


def _rows(folder: Folder, name: str, digest: str) -> Iterator[Any]:
    with opened(folder, name, digest) as file:
        for batch in file.iter_batches(batch_size=_TOGETHER):
            yield from batch.to_pylist()


def _next(texts: Iterator[ParsedTextRow], row: DocumentFacts, name: str) -> ParsedTextRow:
    kept = next(texts, None)
    if kept is None or kept["doc_id"] != row["doc_id"]:
        raise DamagedFileError(
            f"{name} does not hold the text of {row['doc_id'].hex()} in its place: run sluice verify"
        )
    return kept


def _by_document(rows: Sequence[_OfDocument]) -> dict[int, list[_OfDocument]]:
    found = defaultdict(list)
    for row in rows:
        found[row["row"]].append(row)
    return found


def _as_read(row: DocumentFacts, language: str | None) -> Document:
    """A document of which no text is kept; `language` is the source's. What parse found of its charset is not
    what reading knew."""
    of_record = row["record_id"] is not None
    return Document(
        doc_id=row["doc_id"],
        source=row["source"],
        place=Place(file=row["warc_file"], offset=row["warc_offset"], length=row["warc_length"]),
        raw_hash=row["raw_hash"],
        record_id=row["record_id"],
        url=row["url"],
        captured_at=row["captured_at"],
        truncated=row.get("truncated"),
        charset=None if of_record and row["stage"] == "parse" else row["charset"],
        text_hash=row["text_hash"],
        language=language,
    )


def _as_kept(row: DocumentFacts, kept: ParsedTextRow) -> Document:
    """A document as parse gave it; without a text where it was purged."""
    return replace(parsed_document(row["source"], kept), truncated=row.get("truncated"))


def _scores(row: Mapping[str, object]) -> tuple[tuple[str, float], ...]:
    """What classifiers that turn nothing down gave. One that was not asked, behind a step that did, gave
    nothing."""
    scores = ((column, row[column]) for column in added_columns(row) if column.startswith(SCORE))
    return tuple((column.removeprefix(SCORE), score) for column, score in scores if isinstance(score, float))


def _labels(row: Mapping[str, object], step: str) -> tuple[tuple[str, str], ...]:
    """What a step found out, or the reader was told, that is a column of text."""
    is_of_step = {
        READING: INDEXED.__contains__,
        "url": RIGHTS.__contains__,
        "quality": LICENSE.__eq__,
        "classifier": lambda column: column.startswith(LABEL),
    }.get(step)
    columns = filter(is_of_step, added_columns(row)) if is_of_step is not None else ()
    return tuple((column, label) for column in columns if isinstance(label := row[column], str))


def _finding(row: FindingFacts) -> Finding:
    return Finding(
        stage=row["stage"],
        rule=row["rule"],
        value=row["value"],
        threshold=row["threshold"],
        rejected=row["verdict"] == "reject",
        matched=row.get("matched"),
    )


def _purged(document: Document, stage: str) -> Rejection:
    return Rejection(
        document=replace(document, text=""), finding=Finding(stage=stage, rule=PURGED_RULE, rejected=True)
    )


@functools.lru_cache(maxsize=1)
def _excerpts(
    earlier: str, _plan_key: str
) -> Mapping[tuple[bytes, str | None, str | None], list[ExcerptRow]]:
    """What the earlier report showed of rejected documents, rows of tables.EXCERPTS: of an unchanged step it
    is what this one shows."""
    with Folder(earlier).open(EXCERPTS_FILE) as file:
        rows = pq.read_table(file).to_pylist()
    found = defaultdict(list)
    for row in rows:
        if row["stage"] is not None and row["choice"] not in (None, "passed"):
            found[row["doc_id"], row["stage"], row["rule"]].append(row)
    return found
