"""All that is shown of one document: its texts, every rule with its measure, its cluster, who has read it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import pyarrow as pa

from lineage.index.output_index import Index
from lineage.storage.folder import Folder
from lineage.store.lookup import Lookup
from lineage.store.rows import DocumentRow, MemberRow
from lineage.trace.document_history import DocumentHistory, StageDecision
from lineage.trace.exposure import Exposure, TrainingRun
from lineage.trace.tracer import Tracer
from pipeline.inspect.explain.explanation import StepJson
from pipeline.inspect.trace.tracing import UNREADABLE, UndoneReadings, known_checkpoints, undone_readings
from pipeline.page.views.texts import ShownText, clean_text, masked, parsed_text, shown, side_by_side
from trainer.provenance.batches import read_row_losses
from trainer.telemetry.metrics_file import metrics_size, read_reports

MOST_MEMBERS: Final = 100
MOST_EXPOSURES: Final = 400
_MOST_BATCH_FILES: Final = 50
_MOST_METRICS: Final = 8 << 20
"""Bytes of a run's metrics that are read for the losses of some steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleBar:
    """A decision. Where it measured something against a threshold: both as places on one scale, from 0 to
    1, and `margin`, how far they are apart as a share of the threshold (of 1 where that is 0)."""

    decision: StageDecision
    value_at: float | None
    threshold_at: float | None
    margin: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedRules:
    """The rules that decided on a document: those that turned it down first, then those with the smallest
    margin. `nearest` is the one of those that let it pass that came nearest to turning it down; None where
    none of them has measured anything against a threshold."""

    bars: tuple[RuleBar, ...]
    nearest: RuleBar | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTexts:
    """The clean text, and the text after parse, as far as there is each: of both, what only one has is
    marked. `edits` are the kinds of change with their number."""

    clean: ShownText | None
    parsed: ShownText | None
    is_masked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMember:
    """A member of a cluster with what is recorded of it; `row` is None for one of an earlier output."""

    member: MemberRow
    row: DocumentRow | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Relatives:
    """The first of the `num_members` members of a document's cluster, itself first, then kept ones. `records`:
    the first of the `num_records` further records that are the same document and were dropped at `identity`, in
    order of place."""

    members: tuple[ClusterMember, ...]
    num_members: int
    records: tuple[DocumentRow, ...]
    num_records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingShown:
    """A time that a run read the document, the loss of its step where the run's metrics have it, and that of
    its row where the run recorded it (train.record_losses)."""

    exposure: Exposure
    loss: float | None
    row_loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """A run on a line of its steps: where the document was read, and its checkpoints. Of the readings that
    count in its weights, None where none does: `first_step` and `last_step`, the last checkpoint `before` the
    first of them, and the first checkpoints `after_first` and `after_last`. `unknown`: why its checkpoints
    are."""

    run: str
    output: str
    num_steps: int
    num_readings: int
    readings: tuple[ReadingShown, ...]
    checkpoints: tuple[int, ...]
    first_step: int | None
    last_step: int | None
    before: int | None
    after_first: int | None
    after_last: int | None
    undone: tuple[UndoneReadings, ...]
    unknown: str


def texts_of(
    out: Folder, index: Index, history: DocumentHistory, num_chars: int, *, unmasked: bool
) -> ShownTexts:
    """The texts of a document that was not purged; personal data in them is masked unless it is asked for."""
    if history.purged is not None:
        return ShownTexts(clean=None, parsed=None, is_masked=False)
    row = history.row
    whole = [clean_text(out, index, row), parsed_text(out, row)]
    clean, parsed = (text if text is None or unmasked else masked(text, row) for text in whole)
    if clean is not None and parsed is not None:
        left, right = side_by_side(parsed, clean, num_chars)
        return ShownTexts(clean=right, parsed=left, is_masked=not unmasked)
    return ShownTexts(
        clean=None if clean is None else shown(clean, num_chars),
        parsed=None if parsed is None else shown(parsed, num_chars),
        is_masked=not unmasked,
    )


def rule_bars(decisions: Sequence[StageDecision]) -> list[tuple[str, list[RuleBar]]]:
    """The decisions by stage, in order. A stage whose rules are all there says nothing besides."""
    found = []
    for stage, of_stage in groupby(decisions, key=lambda decision: decision.stage):
        listed = list(of_stage)
        telling = [d for d in listed if d.verdict != "keep" or d.rule is not None or d.value is not None]
        found.append((stage, [_bar(decision) for decision in telling or listed[:1]]))
    return found


def ranked_rules(decisions: Sequence[StageDecision]) -> RankedRules:
    """The rules of these decisions by rank."""
    bars = [
        _bar(decision) for decision in decisions if decision.rule is not None and decision.verdict != "edit"
    ]
    passed = [bar for bar in bars if bar.margin is not None and bar.decision.verdict == "keep"]

    def rank(bar: RuleBar) -> tuple[bool, bool, float]:
        return bar.decision.verdict == "keep", bar.margin is None, bar.margin or 0.0

    return RankedRules(bars=tuple(sorted(bars, key=rank)), nearest=min(passed, key=rank, default=None))


def explained_rules(steps: Sequence[StepJson]) -> RankedRules:
    """The same of the `steps` of `sluice explain --json`."""
    verdicts = {"kept": "keep", "rejected": "reject"}
    return ranked_rules(
        [
            StageDecision(
                stage=step["stage"],
                verdict=verdicts.get(finding["verdict"], finding["verdict"]),
                rule=finding["rule"],
                value=finding["value"],
                threshold=finding["threshold"],
            )
            for step in steps
            for finding in step["findings"]
        ]
    )


def without_rules(decisions: Sequence[StageDecision]) -> list[StageDecision]:
    """What stages did besides their rules, of stages that have none or edited the text."""
    with_rules = {d.stage for d in decisions if d.rule is not None and d.verdict != "edit"}
    return [d for d in decisions if d.verdict == "edit" or (d.rule is None and d.stage not in with_rules)]


def _bar(decision: StageDecision) -> RuleBar:
    value, threshold = decision.value, decision.threshold
    if value is None or threshold is None or decision.verdict == "edit":
        return RuleBar(decision=decision, value_at=None, threshold_at=None)
    low, high = min(0.0, value, threshold), max(0.0, value, threshold)
    # The threshold never stands at the very end, where nobody would see on which side of it the value lies.
    width = (high - low) * 1.15 or 1.0
    return RuleBar(
        decision=decision,
        value_at=(value - low) / width,
        threshold_at=(threshold - low) / width,
        margin=abs(value - threshold) / (abs(threshold) or 1.0),
    )


def cluster_of(lookup: Lookup, row: DocumentRow) -> Relatives:
    """What was compared with a document, or is the same: one question for the rows of all, as each is a dozen
    requests to a store in S3."""
    members = [] if row.cluster_id is None else lookup.members([row.cluster_id])
    distinct = list({member.doc_id: member for member in members}.values())
    distinct.sort(
        key=lambda m: (m.doc_id != row.doc_id, m.status != "kept", -(m.similarity or 0.0), m.doc_id)
    )
    some = distinct[:MOST_MEMBERS]
    found = lookup.documents(list(dict.fromkeys([row.doc_id, *(member.doc_id for member in some)])))
    rows = {each.doc_id: each for each in found}
    others = {_place(each): each for each in found if each.doc_id == row.doc_id}
    others.pop(_place(row), None)
    return Relatives(
        members=tuple(ClusterMember(member=member, row=rows.get(member.doc_id)) for member in some),
        num_members=len(distinct),
        records=tuple(others[place] for place in sorted(others)[:MOST_MEMBERS]),
        num_records=len(others),
    )


def _place(row: DocumentRow) -> tuple[str, str, int]:
    return row.source, row.warc_file or "", row.warc_offset or 0


def run_lines(tracer: Tracer, exposures: Sequence[Exposure]) -> list[RunLine]:
    """A line for each run that has read the document."""
    by_run: dict[str, list[Exposure]] = defaultdict(list)
    for exposure in exposures:
        by_run[exposure.run].append(exposure)
    return [_line(run, by_run[run.run]) for run in tracer.runs() if run.run in by_run]


def _line(run: TrainingRun, exposures: Sequence[Exposure]) -> RunLine:
    steps = [exposure.step for exposure in exposures]
    applied = [exposure.step for exposure in exposures if exposure.applied]
    first, last = min(applied, default=None), max(applied, default=None)
    kept, unknown = known_checkpoints(run)
    checkpoints = sorted(kept)
    some = exposures[:MOST_EXPOSURES]
    losses = step_losses(run.output, {exposure.step for exposure in some}, {e.attempt for e in some})
    of_rows = row_losses(run.output, {(e.attempt, e.step, e.row) for e in some})
    return RunLine(
        run=run.run,
        output=run.output,
        num_steps=max(run.num_steps, max(steps) + 1),
        num_readings=len(exposures),
        readings=tuple(
            ReadingShown(
                exposure=e,
                loss=losses.get((e.step, e.attempt)),
                row_loss=of_rows.get((e.attempt, e.step, e.row)),
            )
            for e in some
        ),
        checkpoints=tuple(checkpoints),
        first_step=first,
        last_step=last,
        before=None if first is None else max((step for step in checkpoints if step <= first), default=None),
        after_first=_first_behind(checkpoints, first),
        after_last=_first_behind(checkpoints, last),
        undone=undone_readings(run, exposures),
        unknown=unknown or "",
    )


def _first_behind(checkpoints: Sequence[int], step: int | None) -> int | None:
    """The first checkpoint whose weights have done `step`."""
    return None if step is None else min((done for done in checkpoints if done > step), default=None)


def step_losses(output: str, steps: set[int], attempts: set[int]) -> dict[tuple[int, int], float]:
    """The loss of these steps, by step and attempt, where the run's metrics can be read and are not too
    many."""
    try:
        folder = Folder(output)
        if metrics_size(folder) > _MOST_METRICS:
            return {}
        return {
            (report.step, report.attempt): report.loss
            for report in read_reports(folder)
            if report.step in steps and report.attempt in attempts and report.loss is not None
        }
    except UNREADABLE:
        return {}


def row_losses(output: str, rows: set[tuple[int, int, int]]) -> dict[tuple[int, int, int], float]:
    """The loss of these rows, by attempt, step and row, where they are recorded and can be read."""
    try:
        return read_row_losses(Folder(output), rows, _MOST_BATCH_FILES)
    except (*UNREADABLE, pa.ArrowException):
        return {}


def num_edits(decisions: Sequence[StageDecision]) -> list[tuple[str, str, int]]:
    """(stage, kind, count) of every change that a step made to the text."""
    counts: Counter[tuple[str, str]] = Counter()
    for decision in decisions:
        if decision.verdict == "edit":
            counts[decision.stage, decision.rule or ""] += int(decision.value or 0)
    return [(stage, kind, num) for (stage, kind), num in counts.items()]
