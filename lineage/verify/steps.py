"""Verify, part 3: nothing is lost. Every step balances as counts and as digests, and the documents agree with
it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from lineage.ids import add_digests, show_digest
from lineage.storage.folder import Folder
from lineage.store.delta import read_table
from lineage.store.rows import InputRow, StepRow, StepRuleRow
from lineage.verify.problems import Problem


@dataclass(slots=True)
class MultisetDigest:
    """A multiset of documents, as number and digest."""

    num: int = 0
    digest: int = 0

    def add(self, doc_id: bytes) -> None:
        self.num += 1
        self.digest = add_digests((self.digest, int.from_bytes(doc_id, "big")))

    def __str__(self) -> str:
        return f"{self.num} documents with digest {show_digest(self.digest)}"


@dataclass(slots=True)
class Tally:
    """What the rows of `documents` add up to: by source, by (source, stage, rule) that rejected, and what was
    kept."""

    by_source: defaultdict[str, MultisetDigest] = field(default_factory=lambda: defaultdict(MultisetDigest))
    by_rule: defaultdict[tuple[str, str, str], MultisetDigest] = field(
        default_factory=lambda: defaultdict(MultisetDigest)
    )
    kept: defaultdict[str, MultisetDigest] = field(default_factory=lambda: defaultdict(MultisetDigest))

    def add(self, rows: pa.Table) -> None:
        """Count some rows of `documents`."""
        columns = [rows[name].to_pylist() for name in ("doc_id", "source", "status", "stage", "rule")]
        for doc_id, source, status, stage, rule in zip(*columns, strict=True):
            self.by_source[source].add(doc_id)
            if status == "kept":
                self.kept[source].add(doc_id)
            else:
                self.by_rule[source, stage or "", rule or ""].add(doc_id)


def check_steps(out: Folder, tally: Tally) -> Iterator[Problem]:
    """`steps`, `step_rules` and `inputs` against one another and against the documents."""
    rules = [StepRuleRow(**row) for row in read_table(out, "step_rules").to_pylist()]
    steps = [StepRow(**row) for row in read_table(out, "steps").to_pylist()]
    yield from _check_rules(rules, tally)
    for source in sorted({*tally.by_source, *(step.source for step in steps)}):
        ordered = sorted((step for step in steps if step.source == source), key=lambda step: step.position)
        yield from _check_chain(source, ordered, tally)
        for step in ordered:
            yield from _check_balance(step)
            of_step = [rule for rule in rules if (rule.source, rule.stage) == (source, step.stage)]
            yield from _check_sum(step, of_step)
    known = {(step.source, step.stage) for step in steps}
    for rule in rules:
        if (rule.source, rule.stage) not in known:
            where = f"lineage/step_rules, {rule.source}/{rule.stage}/{rule.rule}"
            yield Problem("steps.missing", where, "there is no such step")
    yield from _check_inputs([InputRow(**row) for row in read_table(out, "inputs").to_pylist()], tally)


def _sum_of(num: int, digest: str) -> MultisetDigest:
    return MultisetDigest(num, int(digest, 16))


def _check_chain(source: str, steps: list[StepRow], tally: Tally) -> Iterator[Problem]:
    """What one step lets out is what the next takes in, from all documents to those kept."""
    if [step.position for step in steps] != list(range(len(steps))):
        positions = [step.position for step in steps]
        yield Problem(
            "steps.chain", f"lineage/steps, {source}", f"positions are {positions}, each once from 0 expected"
        )
    flowing, what = tally.by_source[source], "the documents are"
    for step in steps:
        taken = _sum_of(step.num_in, step.digest_in)
        if taken != flowing:
            yield Problem(
                "steps.chain",
                f"lineage/steps, {source}/{step.stage}",
                f"takes in {taken}; {what} {flowing}",
            )
        flowing, what = _sum_of(step.num_out, step.digest_out), f"{step.stage} lets out"
    if flowing != tally.kept[source]:
        message = f"the last step lets out {flowing}, kept are {tally.kept[source]}"
        yield Problem("steps.chain", f"lineage/steps, {source}", message)


def _check_balance(step: StepRow) -> Iterator[Problem]:
    taken, let_out = _sum_of(step.num_in, step.digest_in), _sum_of(step.num_out, step.digest_out)
    rejected = _sum_of(step.num_rejected, step.digest_rejected)
    together = MultisetDigest(let_out.num + rejected.num, add_digests((let_out.digest, rejected.digest)))
    if taken != together:
        where = f"lineage/steps, {step.source}/{step.stage}"
        yield Problem("steps.balance", where, f"in: {taken}; out and rejected together: {together}")


def _check_sum(step: StepRow, rules: Iterable[StepRuleRow]) -> Iterator[Problem]:
    sums = [_sum_of(rule.num, rule.digest) for rule in rules]
    together = MultisetDigest(sum(s.num for s in sums), add_digests(s.digest for s in sums))
    rejected = _sum_of(step.num_rejected, step.digest_rejected)
    if together != rejected:
        where = f"lineage/steps, {step.source}/{step.stage}"
        yield Problem("steps.rules", where, f"rejected: {rejected}; its rules together: {together}")


def _check_rules(rules: list[StepRuleRow], tally: Tally) -> Iterator[Problem]:
    recorded: dict[tuple[str, str, str], MultisetDigest] = {}
    for rule in rules:
        name = (rule.source, rule.stage, rule.rule)
        if name in recorded:
            yield Problem("steps.repeated", f"lineage/step_rules, {'/'.join(name)}", "stands there twice")
        recorded[name] = _sum_of(rule.num, rule.digest)
    for name in sorted(recorded.keys() | tally.by_rule.keys()):
        said, found = recorded.get(name, MultisetDigest()), tally.by_rule.get(name, MultisetDigest())
        if said != found:
            message = f"says {said}, `documents` has {found}"
            yield Problem("steps.documents", f"lineage/step_rules, {'/'.join(name)}", message)


def _check_inputs(inputs: list[InputRow], tally: Tally) -> Iterator[Problem]:
    given: Counter[str] = Counter()
    seen: Counter[tuple[str, str]] = Counter()
    for row in inputs:
        where = f"lineage/inputs, {row.source}/{row.file}"
        given[row.source] += row.num_documents
        seen[row.source, row.file] += 1
        if seen[row.source, row.file] == 2:
            yield Problem("inputs.repeated", where, "stands there more than once")
        by_type = sum(json.loads(row.by_type).values())
        if by_type != row.num_records:
            yield Problem("inputs.records", where, f"{row.num_records} records, {by_type} by type")
    for source in sorted({*given, *tally.by_source}):
        if given[source] != tally.by_source[source].num:
            message = f"{given[source]} documents in all files, `documents` has {tally.by_source[source].num}"
            yield Problem("inputs.documents", f"lineage/inputs, {source}", message)
