"""From components to verdicts: the documents of each component meet, are decided on, and go to their group's file."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lineage.store.tables import VERDICTS
from pipeline.dedup.inputs import is_earlier, locators, open_slice, ordinals, read_keys
from pipeline.dedup.rows import Context, Reduced, ints, routed
from stages.dedup.candidates import distinct_pairs
from stages.dedup.decide import ComponentMember, DedupDecision, NearEdge, decide

_NO_NODE: Final = -1
_DECIDING: Final = ("doc_id", "url_key", "clean_hash", "num_chars", "captured_at", "signature")
_PLACE: Final = ("source_index", "file_index", "part_row")
_DECISIONS: Final = pa.schema([("node", pa.int64()), *(field for field in VERDICTS if field.name not in _PLACE)])


def label_rows(context: Context, name: str) -> pa.Table:
    """Labels by slice of their node."""
    rows = context.read(name, ["node", "label"])
    none = np.full(len(rows), _NO_NODE)
    return _by_slice(context, node=rows["node"], label=rows["label"], b=none, similarity=np.zeros(len(rows)))


def near_edge_rows(context: Context, name: str) -> pa.Table:
    """Verified edges by slice of their first node, where that node's label is."""
    rows = context.read(name, ["a", "b", "similarity"])
    none = np.full(len(rows), _NO_NODE)
    return _by_slice(context, node=rows["a"], label=none, b=rows["b"], similarity=rows["similarity"])


def _by_slice(context: Context, **columns: Any) -> pa.Table:
    rows = pa.table(columns)
    return routed(context.slice_of(ints(rows, "node")), rows)


def members(context: Context, number: int, rows: pa.Table) -> Reduced:
    """The documents of components with what decides on them, and the verified edges (b is a node), all labelled."""
    is_edge = ints(rows, "b") != _NO_NODE
    labelled, edges = rows.filter(pa.array(~is_edge)), rows.filter(pa.array(is_edge))
    node, label = distinct_pairs(ints(labelled, "node"), ints(labelled, "label"))
    ordinal = ordinals(node)
    of_edge = pa.array(label[np.searchsorted(node, ints(edges, "node"))], pa.int64())
    tables = [pa.table({"node": edges["node"], "label": of_edge, "b": edges["b"], "similarity": edges["similarity"]})]
    for file in open_slice(context.folder, number):
        here = slice(*np.searchsorted(ordinal, [file.ordinal, file.ordinal + 1]))
        if here.start < here.stop:
            table = read_keys(file, _DECIDING)
            # Before rows are taken: the signatures of a file may be more than the 2 GiB that one array of them holds.
            table = table.append_column("has_words", pc.is_valid(table["signature"])).drop_columns(["signature"])
            table = table.take(pa.array(np.searchsorted(ints(table, "node"), node[here])))
            table = table.append_column("label", pa.array(label[here]))
            tables.append(table.append_column("b", pa.array(np.full(len(table), _NO_NODE))))
    return Reduced(pa.concat_tables(tables, promote_options="default"), {})


def component_rows(context: Context, name: str) -> pa.Table:
    """Members and edges by label."""
    rows = context.read(name)
    return routed(context.partition_of(ints(rows, "label")), rows)


def decisions(context: Context, _: int, rows: pa.Table) -> Reduced:
    """The decision on each document of the partition's components."""
    rows = rows.take(pa.array(np.argsort(ints(rows, "label"), kind="stable")))
    is_edge = ints(rows, "b") != _NO_NODE
    of_edges, of_members = ints(rows, "label")[is_edge], ints(rows, "label")[~is_edge]
    edges, among = _edges(rows.filter(pa.array(is_edge))), _members(rows.filter(pa.array(~is_edge)))
    labels, starts = np.unique(of_members, return_index=True)
    ends = np.append(starts[1:], len(among))
    first, last = np.searchsorted(of_edges, labels, "left"), np.searchsorted(of_edges, labels, "right")
    made: list[DedupDecision] = []
    for begin, end, from_edge, to_edge in zip(*(a.tolist() for a in (starts, ends, first, last)), strict=True):
        made += decide(among[begin:end], edges[from_edge:to_edge], context.table)
    stages = Counter(decision.stage for decision in made if decision.stage is not None)
    return Reduced(_decision_table(made), dict(sorted(stages.items())))


def _edges(rows: pa.Table) -> list[NearEdge]:
    columns = (rows[name].to_pylist() for name in ("node", "b", "similarity"))
    return [NearEdge(a=a, b=b, similarity=similarity) for a, b, similarity in zip(*columns, strict=True)]


def _members(rows: pa.Table) -> list[ComponentMember]:
    names = ("node", "doc_id", "clean_hash", "url_key", "num_chars", "captured_at", "has_words")
    columns = [*(rows[name].to_pylist() for name in names), is_earlier(ints(rows, "node")).tolist()]
    return [
        ComponentMember(
            node=node,
            doc_id=doc_id,
            clean_hash=clean_hash,
            url_key=url_key,
            num_chars=num_chars,
            captured_at=captured_at,
            has_words=has_words,
            earlier=earlier,
        )
        for node, doc_id, clean_hash, url_key, num_chars, captured_at, has_words, earlier in zip(*columns, strict=True)
    ]


def _decision_table(made: list[DedupDecision]) -> pa.Table:
    names = ("node", "doc_id", "stage", "threshold", "cluster_id", "duplicate_of", "similarity")
    columns = {name: [getattr(decision, name) for decision in made] for name in names}
    columns["status"] = ["duplicate" if stage else "kept" for stage in columns["stage"]]
    columns["rule"], columns["value"] = columns["stage"], columns["similarity"]
    return pa.table({name: columns[name] for name in _DECISIONS.names}, schema=_DECISIONS)


def decision_rows(context: Context, name: str) -> pa.Table:
    """Decisions by group of files."""
    rows = context.read(name)
    return routed(context.group_of(ints(rows, "node")), rows)


def repeated_verdict_rows(context: Context, name: str) -> pa.Table:
    """What identity has taken out, as duplicates of their own doc_id, by group of files."""
    rows = context.read(name, ["node", "doc_id"])
    no_real, no_hash = pa.nulls(len(rows), pa.float64()), pa.nulls(len(rows), pa.binary())
    same = pa.array(["identity"] * len(rows), pa.string())
    doc_id = rows["doc_id"].cast(pa.binary())
    columns = {
        "node": rows["node"],
        "doc_id": doc_id,
        "status": pa.array(["duplicate"] * len(rows), pa.string()),
        "stage": same,
        "rule": same,
        "value": no_real,
        "threshold": no_real,
        "cluster_id": no_hash,
        "duplicate_of": doc_id,
        "similarity": no_real,
    }
    found = pa.table({name: columns[name] for name in _DECISIONS.names}, schema=_DECISIONS)
    return routed(context.group_of(ints(found, "node")), found)


def verdicts(_: int, rows: pa.Table) -> Reduced:
    """A group's verdicts in order of (file_index, part_row)."""
    node = ints(rows, "node")
    order = np.argsort(node, kind="stable")
    ordered, places = rows.take(pa.array(order)), dict(zip(_PLACE, locators(node[order]), strict=True))
    columns = [
        pa.array(places[field.name]).cast(field.type) if field.name in places else ordered[field.name]
        for field in VERDICTS
    ]
    return Reduced(pa.table(columns, schema=VERDICTS), {})
