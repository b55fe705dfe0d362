"""A training run: its curves, what each source gave to it, skipped steps, its checkpoints, and what it read
of every purge."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lineage.storage.folder import Folder
from lineage.store.lookup import Lookup
from lineage.store.rows import SegmentRow
from lineage.trace.exposure import TrainingRun
from lineage.trace.tracer import Tracer, UnknownError
from pipeline.inspect.trace.tracing import UNREADABLE, ExposedRun, known_checkpoints, training_account
from pipeline.page.views.plan import Certificates, certificates_of
from pipeline.report.training.profile import render_profile
from pipeline.training.profiled import read_profile
from trainer.evaluation.result import EvaluationResult
from trainer.telemetry.metrics_file import METRICS_FILE, metrics_size
from trainer.telemetry.step_report import StepReport
from trainer.telemetry.trace_file import FOLDER as TRACES

MOST_POINTS: Final = 1_500
_PIECE: Final = 8 << 20
_MOST_BYTES: Final = 256 << 20
"""Of metrics.jsonl that is read: longer ones are read from their end."""
_MOST_SKIPPED: Final = 200
_MOST_EVALUATIONS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceShare:
    """What a source gave to the applied steps that are reported: tokens, and their share of all, 0 to 1."""

    source: str
    num_tokens: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """A run's reports as curves of at most MOST_POINTS steps: of `steps` the loss, learning rate, gradient
    norm and seconds (None where there is none), and the tokens of each source; the last attempt's where a
    step was done twice, and none that a later attempt went back before. `sources` are over all steps that
    count, applied ones; `evaluations` stand the newest first; `num_read` reports were read; `is_cut`: only the
    end of the file was."""

    steps: tuple[int, ...]
    loss: tuple[float | None, ...]
    lr: tuple[float | None, ...]
    gradient_norm: tuple[float | None, ...]
    seconds: tuple[float | None, ...]
    tokens: dict[str, tuple[int, ...]]
    sources: tuple[SourceShare, ...]
    evaluations: tuple[EvaluationResult, ...]
    num_read: int
    is_cut: bool

    def as_json(self) -> str:
        """For the page's curves: a list for the steps and one for each curve, by its name."""
        curves: dict[str, Sequence[float | None]] = {
            "loss": self.loss,
            "learning rate": self.lr,
            "gradient norm": self.gradient_norm,
            "seconds a step": self.seconds,
        }
        mixture = {f"tokens of {source}": values for source, values in self.tokens.items()}
        return json.dumps({"steps": self.steps, "curves": curves, "mixture": mixture})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRun:
    """A run with what the store has of it, and its checkpoints; `unknown` says why these are not known."""

    run: TrainingRun
    plan: dict[str, object]
    segments: tuple[SegmentRow, ...]
    skipped: tuple[int, ...]
    num_skipped: int
    checkpoints: tuple[int, ...]
    unknown: str
    certificates: Certificates


def shown_run(out: Folder, tracer: Tracer, name: str) -> ShownRun:
    """UnknownError where the store has no such run."""
    run = next((run for run in tracer.runs() if run.run == name), None)
    if run is None:
        raise UnknownError(f"no training run {name!r} is recorded in {out.url}")
    checkpoints, unknown = known_checkpoints(run)
    skipped = sorted({step for segment in run.segments for step in json.loads(segment.skipped_steps or "[]")})
    return ShownRun(
        run=run,
        plan=json.loads(run.plan),
        segments=run.segments,
        skipped=tuple(skipped[:_MOST_SKIPPED]),
        num_skipped=len(skipped),
        checkpoints=tuple(sorted(checkpoints)),
        unknown=unknown or "",
        certificates=certificates_of(run),
    )


def metrics_of(output: str) -> Metrics:
    """The reports of the run at `output`; none where they cannot be read."""
    reports: dict[int, StepReport] = {}
    num_read, attempt, is_cut = 0, 0, False
    folder = Folder(output)
    try:
        is_cut = metrics_size(folder) > _MOST_BYTES
        for report in _reports(folder):
            num_read += 1
            if report.attempt > attempt:
                # It went on from before this step: what was done from there on is in no weights.
                attempt = report.attempt
                reports = {step: kept for step, kept in reports.items() if step < report.step}
            reports[report.step] = _thin(report)
    except UNREADABLE:
        pass
    steps = sorted(reports)
    stride = -(-len(steps) // MOST_POINTS) or 1
    shown = steps[::stride] if not steps or steps[-1] in steps[::stride] else [*steps[::stride], steps[-1]]
    chosen = [reports[step] for step in shown]
    tokens: Counter[str] = Counter()
    for report in reports.values():
        if report.skipped is None:
            tokens.update(report.tokens_by_source)
    whole = sum(tokens.values())
    sources = tuple(
        SourceShare(source=source, num_tokens=num, share=num / whole if whole else 0.0)
        for source, num in sorted(tokens.items(), key=lambda pair: (-pair[1], pair[0]))
    )
    return Metrics(
        steps=tuple(shown),
        loss=tuple(report.loss for report in chosen),
        lr=tuple(report.lr for report in chosen),
        gradient_norm=tuple(report.gradient_norm for report in chosen),
        seconds=tuple(report.seconds for report in chosen),
        tokens={
            share.source: tuple(r.tokens_by_source.get(share.source, 0) for r in chosen)
            for share in sources[:8]
        },
        sources=sources,
        evaluations=tuple(result for step in reversed(steps) for result in reports[step].evaluations)[
            :_MOST_EVALUATIONS
        ],
        num_read=num_read,
        is_cut=is_cut,
    )


def has_traces(output: str) -> bool:
    """Whether the run at `output` left a trace; not where that cannot be known."""
    try:
        return bool(Folder(output).names(TRACES))
    except UNREADABLE:
        return False


def profile_page(output: str) -> str:
    """The page of the run's traces. UnknownError where none can be read."""
    try:
        return render_profile(read_profile(Folder(output)))
    except UNREADABLE as error:
        raise UnknownError(str(error)) from error


def _thin(report: StepReport) -> StepReport:
    """What a curve takes of a report: a long run has a million of them."""
    return StepReport(
        step=report.step,
        attempt=report.attempt,
        loss=report.loss,
        tokens_by_source=report.tokens_by_source,
        gradient_norm=report.gradient_norm,
        lr=report.lr,
        seconds=report.seconds,
        skipped=report.skipped,
        evaluations=report.evaluations,
    )


def _reports(folder: Folder) -> Iterator[StepReport]:
    """The reports of the file, or of its end, piece by piece."""
    size = metrics_size(folder)
    start = max(0, size - _MOST_BYTES)
    rest, is_first = b"", start > 0
    while start < size:
        data = rest + folder.read_range(METRICS_FILE, start, min(_PIECE, size - start))
        start += _PIECE
        *lines, rest = data.split(b"\n")
        for line in lines[1:] if is_first else lines:
            if line:
                yield StepReport.from_json(line)
        is_first = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeOfRun:
    """What a run read of a purge's documents, all before it: afterwards end-of-text stood in their place.
    `seen`: as of `training_account`, None where it read none."""

    purge_id: str
    at: str
    reason: str
    seen: ExposedRun | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgesOfRun:
    """What a run read of each purge, and why its readings since its last checkpoint are not known."""

    purges: tuple[PurgeOfRun, ...]
    unread: str | None


def purges_of_run(out: Folder, lookup: Lookup, name: str, purged: dict[str, list[bytes]]) -> PurgesOfRun:
    """A line for each purge, the last first. `purged`: the placed documents of each."""
    found, unread = [], None
    for purge in sorted(lookup.purges(), key=lambda purge: purge.at, reverse=True):
        placed = sorted(set(purged.get(purge.purge_id, [])))
        account = training_account(out.url, placed, purge.purge_id)
        unread = account.unread.get(name, unread)
        seen = next((each for each in account.exposures if each.run == name), None)
        found.append(PurgeOfRun(purge_id=purge.purge_id, at=purge.at, reason=purge.reason, seen=seen))
    return PurgesOfRun(purges=tuple(found), unread=unread)
