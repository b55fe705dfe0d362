"""The lineage tables that fit in memory, from the results of all units."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence

import pyarrow as pa

from lineage.ids import add_digests, show_digest
from lineage.store import tables
from pipeline.results.unit_results import JoinResult, ReadResult


def small_tables(
    stages: Mapping[str, Sequence[str]], read_results: Sequence[ReadResult], joined: Sequence[JoinResult]
) -> dict[str, pa.Table]:
    """`steps`, `step_rules`, `inputs` and `unreadable`, by name. `stages` are those of each source, in
    order."""
    steps, step_rules = _step_tables(stages, read_results, joined)
    inputs, unreadable = _input_tables(read_results)
    return {"steps": steps, "step_rules": step_rules, "inputs": inputs, "unreadable": unreadable}


def _step_tables(
    stages: Mapping[str, Sequence[str]], read_results: Sequence[ReadResult], joined: Sequence[JoinResult]
) -> tuple[pa.Table, pa.Table]:
    """`steps` and `step_rules`: for each source (in order) what each of its stages took in, let out and
    rejected."""
    totals: dict[str, list[int]] = {source: [0, 0] for source in stages}
    rules: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for unit, facts in zip(read_results, joined, strict=True):
        total = totals[unit.source]
        total[0] += unit.num_documents
        total[1] = add_digests((total[1], int(unit.digest, 16)))
        for count in (*unit.rejected, *facts.dropped):
            entry = rules[unit.source, count.stage, count.rule]
            entry[0] += count.num
            entry[1] = add_digests((entry[1], int(count.digest, 16)))
    steps = []
    for source, names in stages.items():
        num, digest = totals[source]
        for position, stage in enumerate(names):
            gone = [value for (s, t, _), value in rules.items() if (s, t) == (source, stage)]
            num_rejected, rejected = sum(value[0] for value in gone), add_digests(value[1] for value in gone)
            num_out, digest_out = num - num_rejected, add_digests((digest, -rejected))
            row = {"source": source, "position": position, "stage": stage}
            row |= {"num_in": num, "num_out": num_out, "num_rejected": num_rejected}
            row |= {"digest_in": show_digest(digest), "digest_out": show_digest(digest_out)}
            steps.append(row | {"digest_rejected": show_digest(rejected)})
            num, digest = num_out, digest_out
    rule_rows = [
        {"source": source, "stage": stage, "rule": rule, "num": number, "digest": show_digest(digest)}
        for (source, stage, rule), (number, digest) in sorted(rules.items())
    ]
    return pa.Table.from_pylist(steps, schema=tables.SCHEMAS["steps"]), pa.Table.from_pylist(
        rule_rows, schema=tables.SCHEMAS["step_rules"]
    )


def _input_tables(read_results: Sequence[ReadResult]) -> tuple[pa.Table, pa.Table]:
    """`inputs` and `unreadable`."""
    inputs = [
        {
            "source": unit.source,
            "file": each.url,
            "bytes": each.num_bytes,
            "num_records": each.num_records,
            "num_documents": each.num_documents,
            "by_type": json.dumps(each.by_type, sort_keys=True),
            "by_mime": json.dumps(each.by_mime, sort_keys=True),
            "by_status": json.dumps(each.by_status, sort_keys=True),
            "notes": json.dumps(each.notes, sort_keys=True),
        }
        for unit in read_results
        for each in unit.input_files
    ]
    unreadable = [
        {"source": unit.source} | stretch._asdict() | {"file": stretch.file or unit.file}
        for unit in read_results
        for stretch in unit.unreadable
    ]
    return (
        pa.Table.from_pylist(inputs, schema=tables.SCHEMAS["inputs"]),
        pa.Table.from_pylist(unreadable, schema=tables.SCHEMAS["unreadable"]),
    )
