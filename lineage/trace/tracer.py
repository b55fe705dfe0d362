"""A document's whole history, from every direction: crawl record ⇄ decisions ⇄ token range ⇄ (run, step,
row).

A `Tracer` finds documents by one of their names and joins the facts about each into its history. Exposures to
training are not stored but computed, by inverting each run's order. What higher layers compute of orders
comes as functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from lineage.ids import text_hash
from lineage.index.output_index import read_index
from lineage.index.source_keys import has_repeats
from lineage.pages import named_host, normalise_url, page_of
from lineage.storage.folder import Folder
from lineage.store.delta import StoreError
from lineage.store.lookup import Lookup
from lineage.store.rows import (
    CutRow,
    DocumentRow,
    EditRow,
    FindingRow,
    MemberRow,
    PurgedRow,
    RunRow,
    SegmentRow,
    ShardSpan,
)
from lineage.trace.document_history import DocumentHistory, DuplicateCluster, PurgeOfDocument, StageDecision
from lineage.trace.exposure import (
    Exposure,
    FindReadings,
    LocateSequences,
    TrainingRun,
    erased_from,
    exposures,
    fold,
    plans_of_step,
)
from lineage.trace.nearest import nearest

_AT_ONCE: Final = 256
_Fact = TypeVar("_Fact", EditRow, FindingRow, PurgedRow)


class UnknownError(StoreError):
    """Nothing in this output has the name that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Functions:
    """What tracing takes from higher layers: without `find` and `locate` a history holds nothing of
    training, and without `why_repeated`, which takes a document and the size of its cluster, not why it is
    read more than once."""

    find: FindReadings | None = None
    locate: LocateSequences | None = None
    why_repeated: Callable[[Folder, DocumentRow, int], str | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPart:
    """Tokens [start, end) of a document."""

    doc_id: bytes
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreRuns:
    """Facts of training runs that the store has not got (a run whose store was down): read from their own
    outputs. `placed`: (run, output) of those that lie elsewhere than their facts say: copied, moved or behind
    a link."""

    runs: Sequence[RunRow] = field(default=())
    segments: Sequence[SegmentRow] = field(default=())
    placed: frozenset[tuple[str, str]] = frozenset()


def all_runs(lookup: Lookup, more: MoreRuns) -> list[TrainingRun]:
    """The runs that a store tells of, with what their own outputs add.

    Of a run that is read elsewhere than the store has it, only its own facts count: the original may have
    gone on since, which is no history of a copy."""
    runs, segments = lookup.runs(), lookup.segments()
    # Facts are numbered by their log, and the logs of a copy and its original part: they cannot be mixed.
    elsewhere = {row.run for row in runs if (row.run, row.output) in more.placed}
    return fold(
        [*(row for row in runs if row.run not in elsewhere), *more.runs],
        [*(row for row in segments if row.run not in elsewhere), *more.segments],
    )


class Tracer:
    """Answers `trace` for the run at `out`, as of a version of the corpus or now: the version decides which
    documents count as purged, and never which training steps read them.

    Methods raise UnknownError where nothing matches, StoreError where the store is missing or damaged.
    Histories come sorted by doc_id unless said otherwise, one a document id."""

    def __init__(
        self, out: Folder, functions: Functions, *, version: int | None = None, more: MoreRuns = MoreRuns()
    ) -> None:
        self._out = out
        self._functions = functions
        self._more = more
        # A version overlays documents with the purges that made it. What a training step met is not a matter
        # of the version that is asked for: a purge erased content from itself on.
        self._overlay = Lookup(out, version)
        self._lookup = self._overlay if version is None else Lookup(out)
        self._stages: dict[str, list[str]] = {}
        self._runs: list[TrainingRun] | None = None
        self._repeats: dict[tuple[str, int], int] | None = None

    @property
    def lookup(self) -> Lookup:
        """The lookups that its histories are joined from, whose tables are open already: of what is now."""
        return self._lookup

    def by_id(self, doc_id: bytes) -> DocumentHistory:
        """The history of a document; of rows with this id, that of the one that was not a repetition."""
        rows = self._lookup.documents([doc_id])
        if not rows:
            raise UnknownError(f"no document {doc_id.hex()} in {self._out.url}{self._nearest(doc_id.hex())}")
        return self._histories_of(rows, f"document {doc_id.hex()}")[0]

    def by_url(self, url: str) -> list[DocumentHistory]:
        """The documents of a URL, however it is spelt."""
        matching = self._lookup.of_url(url)
        if not matching:
            wanted = normalise_url(url)
            looked_for = repr(url) if url == wanted else f"{url!r} (as {wanted!r})"
            raise UnknownError(
                f"no document with the URL {looked_for} in {self._out.url}{self._nearest(url)}"
            )
        return self._histories_of(matching, f"document with the URL {url!r}")

    def _nearest(self, name: str) -> str:
        """The end of a message about a URL or an id that is not recorded."""
        near = nearest(self._lookup, name)
        if near:
            return "; nearest: " + ", ".join(near)
        page = page_of(name)
        return f"; its host {page.host} has no document" if page is not None else ""

    def by_hash(self, digest: bytes) -> list[DocumentHistory]:
        """The documents whose raw, text, clean or tokens hash this is; UnknownError for that of the empty text, which
        is not looked up."""
        if digest == text_hash(""):
            raise UnknownError(
                f"{digest.hex()} is the hash of the empty text, by which no document is looked up: ask SQL for"
                f" documents with raw_hash or text_hash = '{digest.hex()}'"
            )
        return self._histories_of(self._lookup.by_hashes([digest]), f"document with the hash {digest.hex()}")

    def by_host(self, host: str, limit: int | None = None) -> tuple[list[DocumentHistory], int]:
        """The documents of a host in order of URL, the first `limit` of them, and how many it has."""
        name = named_host(host)
        ids, num = self._distinct(name, limit) if name else ([], 0)
        if not num:
            raise UnknownError(f"no document of host {name or host!r} in {self._out.url}")
        histories = {history.doc_id: history for history in self.histories(ids)}
        return [histories[doc_id] for doc_id in ids], num

    def _distinct(self, host: str, limit: int | None) -> tuple[list[bytes], int]:
        """The first `limit` ids of a host in order of URL, and how many it has: a document may have several
        records."""
        asked = None if limit is None else max(limit, 1)
        while True:
            listed = self._lookup.host(host, asked)
            ids = list(dict.fromkeys(row.doc_id for row in listed))
            if asked is None or len(listed) < asked:
                return ids[:limit], len(ids)
            if limit is not None and len(ids) >= limit:
                return ids[:limit], self._lookup.num_of_host(host)
            asked *= 2

    def last_of_host(self, host: str) -> DocumentHistory:
        """The last of the documents that `by_host` gives without a limit."""
        (history,) = self.histories([self._lookup.last_of_host(named_host(host) or host).doc_id])
        return history

    def by_place(self, warc_file: str, offset: int) -> list[DocumentHistory]:
        """The document read from the member at byte `offset` of a crawl file, named as in `warc_file`."""
        what = (
            f"document at offset {offset} of {warc_file!r} (file names are relative, as in column warc_file)"
        )
        return self._histories_of(self._lookup.by_place(warc_file, offset), what)

    def by_token(self, source: str, shard: int, offset: int) -> list[DocumentHistory]:
        """The document that a token of a shard belongs to."""
        [placements] = self._lookup.at_spans([ShardSpan(source, shard, offset, 1)])
        if not placements:
            raise UnknownError(f"no document at token {offset} of shard {source}/{shard} in {self._out.url}")
        return self.histories([placement.doc_id for placement in placements])

    def by_step(self, run: str, step: int, row: int | None = None) -> list[DocumentHistory]:
        """The documents that a training step (or one row of its batch) read, in the order of rows and
        tokens."""
        training = self._run_of_step(run, step, row)
        rows = range(training.global_batch) if row is None else range(row, row + 1)
        return self._histories_read_at(training, step, rows, self._ids_of_rows(training, step, rows))

    def first_of_step(self, run: str, step: int, most: int) -> tuple[list[DocumentHistory], int]:
        """The same of the step's first rows, as many as hold `most` documents, and how many rows these are: a
        batch may hold a hundred thousand documents."""
        training = self._run_of_step(run, step, None)
        ids: dict[bytes, None] = {}
        num_rows = 0
        while num_rows < training.global_batch and len(ids) < most:
            # One row says how many documents a row has; nothing is known of rows whose documents were all purged.
            more = -(-(most - len(ids)) * num_rows // len(ids)) if ids else max(1, num_rows)
            some = range(num_rows, min(training.global_batch, num_rows + more))
            ids |= dict.fromkeys(self._ids_of_rows(training, step, some))
            num_rows = some.stop
        return self._histories_read_at(training, step, range(num_rows), list(ids)), num_rows

    def _run_of_step(self, run: str, step: int, row: int | None) -> TrainingRun:
        """The run; UnknownError where it took no such step, or has no such row."""
        known = {training.run: training for training in self.runs()}
        if run not in known:
            names = ", ".join(map(repr, known)) or "none"
            raise UnknownError(f"no training run {run!r} is recorded in {self._out.url} (recorded: {names})")
        training = known[run]
        if not 0 <= step < training.num_steps:
            if any(segment.run == run for segment in self._more.segments):
                raise UnknownError(
                    f"run {run!r} never took a step {step}: its own facts, in {training.output}, tell of steps"
                    f" 0 to {training.num_steps - 1}"
                )
            recorded = f"0 to {training.num_steps - 1} are" if training.num_steps else "none is"
            raise UnknownError(
                f"step {step} of run {run!r} is not recorded, {recorded}: steps are recorded at checkpoints"
                f" and at the next start; --runs {training.output} takes in those since"
            )
        if row is not None and not 0 <= row < training.global_batch:
            raise UnknownError(f"row {row} of run {run!r}: a batch has rows 0 to {training.global_batch - 1}")
        if self._functions.locate is None:
            raise UnknownError(f"the order of run {run!r} is not at hand, so its steps cannot be traced")
        return training

    def _ids_of_rows(self, run: TrainingRun, step: int, rows: range) -> list[bytes]:
        """The ids of the documents that stood in these rows of a step's batch, as each of its plans has it."""
        assert self._functions.locate is not None
        spans: list[ShardSpan] = []
        for plan in plans_of_step(run, step):
            spans += self._functions.locate(plan.plan, [step * plan.global_batch + number for number in rows])
        return self._read_by(run, spans)

    def _histories_read_at(
        self, run: TrainingRun, step: int, rows: range, doc_ids: Sequence[bytes]
    ) -> list[DocumentHistory]:
        """The histories of those documents that the step met in these rows: what was purged before it ran
        stood there as end-of-text."""
        found = self.histories(doc_ids)
        if self._functions.find is None:
            return found
        return [
            history
            for history in found
            if any(e.run == run.run and e.step == step and e.row in rows for e in history.exposures)
        ]

    def histories(self, doc_ids: Sequence[bytes]) -> list[DocumentHistory]:
        """The histories of documents, in the order given; UnknownError names one that is not there."""
        found: list[DocumentHistory] = []
        distinct = list(dict.fromkeys(doc_ids))
        for first in range(0, len(distinct), _AT_ONCE):
            some = distinct[first : first + _AT_ONCE]
            rows = {row.doc_id: row for row in one_each(self._lookup.documents(some))}
            for doc_id in some:
                if doc_id not in rows:
                    raise UnknownError(f"no document {doc_id.hex()} in {self._out.url}")
            found.extend(self._joined([rows[doc_id] for doc_id in some]))
        return found

    def runs(self) -> list[TrainingRun]:
        """The training runs that read this output, by their latest facts."""
        if self._runs is None:
            self._runs = all_runs(self._lookup, self._more)
        return self._runs

    def exposures_of(self, parts: Sequence[DocumentPart]) -> list[tuple[Exposure, ...]]:
        """For each part the rows of runs that read any of its tokens; none for what no shard holds.
        UnknownError for a document that is not there."""
        distinct = list(dict.fromkeys(part.doc_id for part in parts))
        rows: dict[bytes, DocumentRow] = {}
        erased: dict[bytes, list[PurgedRow]] = {}
        for first in range(0, len(distinct), _AT_ONCE):
            some = distinct[first : first + _AT_ONCE]
            rows |= {row.doc_id: row for row in one_each(self._lookup.documents(some))}
            erased |= _grouped(self._lookup.purged(some))
        lacking = next((doc_id for doc_id in distinct if doc_id not in rows), None)
        if lacking is not None:
            raise UnknownError(f"no document {lacking.hex()} in {self._out.url}")
        return [
            self._exposures(rows[part.doc_id], erased.get(part.doc_id, []), (part.start, part.end))
            for part in parts
        ]

    def _read_by(self, run: TrainingRun, spans: Iterable[ShardSpan]) -> list[bytes]:
        """The ids of the documents of this output (a run may read several) that `spans` hold, in that
        order."""
        asked = list(spans)
        found = [self._lookup.at_spans_of_run(prefix, asked) for prefix in run.prefixes]
        return [
            placement.doc_id for span in asked for of_prefix in found for placement in of_prefix.get(span, ())
        ]

    def _histories_of(self, rows: list[DocumentRow], what: str) -> list[DocumentHistory]:
        if not rows:
            raise UnknownError(f"no {what} in {self._out.url}")
        chosen = sorted(one_each(rows), key=lambda row: row.doc_id)
        pieces = (chosen[first : first + _AT_ONCE] for first in range(0, len(chosen), _AT_ONCE))
        return [history for piece in pieces for history in self._joined(piece)]

    def _joined(self, rows: list[DocumentRow]) -> list[DocumentHistory]:
        ids = [row.doc_id for row in rows]
        edits = _grouped(self._lookup.edits(ids))
        findings = _grouped(
            dict.fromkeys(self._lookup.findings(ids))
        )  # a record that was met twice left them twice
        erased = _grouped(self._lookup.purged(ids))
        purged = _grouped(self._overlay.purged(ids))
        members: dict[bytes, list[MemberRow]] = {}
        for member in self._lookup.members(row.cluster_id for row in rows if row.cluster_id is not None):
            members.setdefault(member.cluster_id, []).append(member)
        clusters = {
            row: None if row.cluster_id is None else _cluster(row, members.get(row.cluster_id, []))
            for row in rows
        }
        repeats = {
            row: 1 if row.shard is None else self._repeats_of(row.shard_source, row.shard) for row in rows
        }
        return [
            DocumentHistory(
                row=row,
                decisions=stage_decisions(
                    row, self._passed(row), edits.get(row.doc_id, []), findings.get(row.doc_id, [])
                ),
                cluster=clusters[row],
                exposures=self._exposures(row, erased.get(row.doc_id, [])),
                purged=self._purge(purged.get(row.doc_id, [])),
                repeats=repeats[row],
                why_repeated=self._why_repeated(row, clusters[row]) if repeats[row] != 1 else None,
            )
            for row in rows
        ]

    def _why_repeated(self, row: DocumentRow, cluster: DuplicateCluster | None) -> str | None:
        """Why an epoch does not read the document once."""
        why = self._functions.why_repeated
        return None if why is None else why(self._out, row, 1 if cluster is None else len(cluster.members))

    def _repeats_of(self, source: str, shard: int) -> int:
        """How often an epoch of training reads a shard."""
        if self._repeats is None:
            shards = read_index(self._out).shards if has_repeats(self._out) else ()
            self._repeats = {(each.source, each.shard): each.repeats for each in shards}
        return self._repeats.get((source, shard), 1)

    def _passed(self, row: DocumentRow) -> list[str]:
        """The stages of the row's source up to the one that decided, that one left out."""
        if not self._stages:
            for step in sorted(self._lookup.steps(), key=lambda step: step.position):
                self._stages.setdefault(step.source, []).append(step.stage)
        stages = self._stages.get(row.source, [])
        return stages[: stages.index(row.stage)] if row.stage in stages else stages

    def _exposures(
        self, row: DocumentRow, erased: Sequence[PurgedRow], within: tuple[int, int] | None = None
    ) -> tuple[Exposure, ...]:
        if self._functions.find is None or row.shard is None or row.start is None or row.num_tokens is None:
            return ()
        start, end = (0, row.num_tokens) if within is None else within
        span = ShardSpan(row.shard_source, row.shard, row.start + start, min(end, row.num_tokens) - start)
        erased_in: frozenset[str] = frozenset()
        if erased:
            ids, purges = {entry.purge_id for entry in erased}, self._lookup.purges()
            erased_in = erased_in.union(*(erased_from(p, purges) for p in purges if p.purge_id in ids))
        find = self._functions.find
        return tuple(exposure for run in self.runs() for exposure in exposures(run, span, find, erased_in))

    def _purge(self, purged: Sequence[PurgedRow]) -> PurgeOfDocument | None:
        """The purge that took the document: the last, if it went again after a backup had brought it back."""
        if not purged:
            return None
        purges = {purge.purge_id: purge for purge in self._overlay.purges()}
        ended = [entry for entry in purged if entry.purge_id in purges]
        last = max(ended, key=lambda entry: purges[entry.purge_id].at) if ended else purged[0]
        purge = purges.get(last.purge_id)
        return PurgeOfDocument(
            purge_id=last.purge_id,
            role=last.role,
            at=purge.at if purge else None,
            by=purge.by if purge else None,
            reason=purge.reason if purge else None,
        )


def _where(edit: EditRow) -> str | None:
    """Where text that was cut stays: the document, and the first of its characters there."""
    if not isinstance(edit, CutRow) or edit.twin is None:
        return None
    return f"{edit.twin.hex()}:{edit.twin_start}"


def stage_decisions(
    row: DocumentRow, passed: Sequence[str], edits: Sequence[EditRow], findings: Sequence[FindingRow]
) -> tuple[StageDecision, ...]:
    """Every stage that a document passed, in order, then the one that decided.

    A stage that changed the text has the verdict "edit", once for each kind (the rule) with its count (the
    value), and for a repeat the document in which it stays (`matched`). Findings of the whole ledger stand with
    their stage."""
    decisions: list[StageDecision] = []
    deciding = row.stage if row.status != "kept" else None
    for stage in (*passed, *([deciding] if deciding is not None else [])):
        decisions.extend(
            StageDecision(
                stage=stage,
                rule=f.rule,
                value=f.value,
                threshold=f.threshold,
                verdict=f.verdict,
                matched=f.matched,
            )
            for f in findings
            # A rule of another stage turned down another record of this id.
            if f.stage == stage
            and (f.verdict != "reject" or stage == deciding)
            and not (stage == deciding and f.rule == row.rule)
        )
        changed = [
            StageDecision(stage=stage, rule=e.kind, value=e.count, verdict="edit", matched=_where(e))
            for e in edits
            if e.stage == stage
        ]
        decisions.extend(changed)
        if stage == deciding:
            verdict = "duplicate" if row.status == "duplicate" else "reject"
            decisions.append(
                StageDecision(
                    stage=stage,
                    rule=row.rule,
                    value=row.value,
                    threshold=row.threshold,
                    verdict=verdict,
                    matched=row.matched,
                )
            )
        elif not changed:
            # Without the ledger this one measure of a stage that let the document pass is known: a column has
            # it.
            is_known = stage == "language" and all(finding.stage != stage for finding in findings)
            score = row.language_score if is_known else None
            decisions.append(StageDecision(stage=stage, verdict="keep", value=score))
    return tuple(decisions)


def one_each(rows: Sequence[DocumentRow]) -> list[DocumentRow]:
    """One row for each id, in the order of their first rows: the one that was kept, else one that was not a
    repetition of another."""
    best: dict[bytes, DocumentRow] = {}
    for row in sorted(rows, key=lambda row: (row.status != "kept", row.stage == "identity")):
        best.setdefault(row.doc_id, row)
    return [best[doc_id] for doc_id in dict.fromkeys(row.doc_id for row in rows)]


def _cluster(row: DocumentRow, members: list[MemberRow]) -> DuplicateCluster:
    assert row.cluster_id is not None
    return DuplicateCluster(
        id=row.cluster_id,
        duplicate_of=row.duplicate_of,
        similarity=row.similarity,
        members=tuple(sorted({member.doc_id for member in members})),
    )


def _grouped(rows: Iterable[_Fact]) -> dict[bytes, list[_Fact]]:
    groups: dict[bytes, list[_Fact]] = {}
    for row in rows:
        groups.setdefault(row.doc_id, []).append(row)
    return groups
