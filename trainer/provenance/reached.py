"""How far attempts got past their last fact: what stands in metrics.jsonl of one that died, or that still
runs.

Facts are written at checkpoints, and the steps since the last one when the next attempt begins."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lineage.index.output_index import read_index
from lineage.storage.folder import Folder, StorageError
from lineage.storage.places import same_place
from lineage.store import delta as store
from lineage.store.rows import RunRow, SegmentRow
from lineage.trace.tracer import MoreRuns
from trainer.order import OrderPlan
from trainer.provenance.facts import FACTS_FILE, Fact, FactLog, RunFact, SegmentFact, segment_row
from trainer.telemetry.metrics_file import last_reports, read_reports
from trainer.telemetry.step_report import StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptProgress:
    """The last step that an attempt has reported, and those that it skipped."""

    last_step: int
    skipped: tuple[int, ...]


def reached(output: Folder) -> dict[int, AttemptProgress]:
    """How far each attempt got, by its step reports."""
    return _by_attempt(read_reports(output))


def reached_since(output: Folder, attempt: int, step: int) -> dict[int, AttemptProgress]:
    """The same of one attempt, the newest, with what it skipped behind `step`: reads only the end of a long
    file."""
    return _by_attempt(last_reports(output, lambda report: report.attempt == attempt and report.step > step))


def _by_attempt(reports: Iterable[StepReport]) -> dict[int, AttemptProgress]:
    last: dict[int, int] = {}
    skipped: dict[int, list[int]] = {}
    for report in reports:
        last[report.attempt] = max(last.get(report.attempt, -1), report.step)
        if report.skipped is not None:
            skipped.setdefault(report.attempt, []).append(report.step)
    return {
        attempt: AttemptProgress(last_step=step, skipped=tuple(skipped.get(attempt, ())))
        for attempt, step in last.items()
    }


def further_stretches(facts: Iterable[Fact], got: Mapping[int, AttemptProgress]) -> list[SegmentFact]:
    """The last stretches of each attempt that got further than its last fact says. `facts`: in the order they
    were written."""
    newest: dict[tuple[int, str], SegmentFact] = {}
    plans: dict[int, str] = {}
    plan = ""
    for fact in facts:
        if isinstance(fact, RunFact):
            plan = fact.plan  # an attempt says first which plan it has
        elif isinstance(fact, SegmentFact):
            plans.setdefault(fact.attempt, plan)
            before = newest.get((fact.attempt, fact.out))
            if before is None or fact.first_step >= before.first_step:
                newest[fact.attempt, fact.out] = fact
    further = []
    for (attempt, _), fact in newest.items():
        if attempt in got and got[attempt].last_step > fact.last_step:
            further += _continued(fact, got[attempt], OrderPlan.from_json(plans[attempt]))
    return further


def _continued(fact: SegmentFact, got: AttemptProgress, plan: OrderPlan) -> list[SegmentFact]:
    """The stretches from the one of `fact` on, of an attempt with `plan` that got so far: one for each
    mixture."""
    later = [segment for segment in plan.segments if fact.first_step < segment.first_step <= got.last_step]
    starts = [fact.first_step, *(segment.first_step for segment in later)]
    weights = [fact.weights, *(tuple(segment.weights.items()) for segment in later)]
    skipped = {*fact.skipped_steps, *got.skipped}
    return [
        dataclasses.replace(
            fact,
            weights=shares,
            first_sequence=begin * plan.global_batch,
            first_step=begin,
            last_step=end - 1,
            skipped_steps=tuple(step for step in sorted(skipped) if begin <= step < end),
        )
        for begin, end, shares in zip(starts, [*starts[1:], got.last_step + 1], weights, strict=True)
    ]


def read_facts(runs: Iterable[str], out: str | None = None) -> MoreRuns:
    """The facts that lie in the training outputs `runs`, whose runs lie there whatever the facts say, and the
    steps behind the last of them that metrics.jsonl tells of; with `out` only those about that output, as its
    store would hold them. StorageError if a folder has no facts."""
    run_rows, segment_rows, others, placed = [], [], set(), set()
    for url in runs:
        folder = Folder(url)
        if not folder.exists(FACTS_FILE):
            raise StorageError(f"no {FACTS_FILE} in {folder.url}: give the output of a training run")
        facts = facts_of(folder)
        ours = range(len(facts)) if out is None else _facts_about(Folder(out), facts, folder)
        for number, fact in enumerate(facts):
            if isinstance(fact, RunFact):
                run_rows.append(RunRow(**dataclasses.asdict(fact) | {"output": folder.url}, fact=number))
                if fact.output != folder.url:
                    placed.add((fact.run, fact.output))
            elif isinstance(fact, SegmentFact):
                if number in ours:
                    segment_rows.append(SegmentRow(**segment_row(number, fact)))  # type: ignore[arg-type]
                else:
                    others.add(fact.out)
    if others and not segment_rows:
        raise StorageError(
            f"the facts in {', '.join(runs)} are about {', '.join(sorted(others))}, not about {out}"
        )
    return MoreRuns(runs=tuple(run_rows), segments=tuple(segment_rows), placed=frozenset(placed))


def _facts_about(out: Folder, facts: Sequence[Fact], output: Folder) -> frozenset[int]:
    """The numbers of the facts about the stretches that read `out`, of the run at `output`: those that name its place,
    and of an attempt that read it elsewhere those about a content that it held. StorageError where an attempt read
    several outputs of such a content: which of them was copied or moved here, nothing tells."""
    segments = {number: fact for number, fact in enumerate(facts) if isinstance(fact, SegmentFact)}
    here = {place for place in {fact.out for fact in segments.values()} if same_place(Folder(place), out)}
    named = [fact for fact in segments.values() if fact.out in here]
    attempts, prefixes = {fact.attempt for fact in named}, {fact.prefix for fact in named}
    # What an attempt read beside the output is another one, however alike the two are.
    beside = {fact.out for fact in segments.values() if fact.attempt in attempts}
    found = {number for number, fact in segments.items() if fact.out in here}
    contents = _contents(out)
    alike: dict[int, dict[int, SegmentFact]] = defaultdict(dict)
    for number, fact in segments.items():
        if fact.attempt not in attempts and fact.out not in beside and fact.content_fingerprint in contents:
            alike[fact.attempt][number] = fact
    for candidates in alike.values():
        known = {number for number, fact in candidates.items() if fact.prefix in prefixes}
        chosen = {number: candidates[number] for number in known or candidates}
        if len({fact.prefix for fact in chosen.values()}) > 1:
            read = dict.fromkeys((fact.prefix, fact.out) for fact in chosen.values())
            places = " and ".join(f"as {prefix!r} at {place}" for prefix, place in read)
            raise StorageError(
                f"{out.url} holds what {output.url} has read {places}: which of these it is cannot be told; make the"
                " recorded place of each output a link to where it lies now, and give that"
            )
        found.update(chosen)
    return frozenset(found)


def facts_of(output: Folder) -> list[Fact]:
    """The facts of a training output, and those that its next attempt would add about the newest: what metrics.jsonl
    tells of the steps behind the last one."""
    facts = [fact for _, fact in FactLog(output).facts()]
    segments = [fact for fact in facts if isinstance(fact, SegmentFact)]
    if not segments:
        return facts
    newest = max(fact.attempt for fact in segments)
    recorded = max(fact.last_step for fact in segments if fact.attempt == newest)
    return facts + further_stretches(facts, reached_since(output, newest, recorded))


def _contents(out: Folder) -> frozenset[str]:
    """What the output held from its run on: a copy of it, or one that was moved, is the same output."""
    purges = store.read_table(out, "purges").select(
        ["content_fingerprint_before", "content_fingerprint_after"]
    )
    known = {fingerprint for column in purges.columns for fingerprint in column.to_pylist() if fingerprint}
    return frozenset({read_index(out).content_fingerprint, *known})
