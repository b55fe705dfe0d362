"""From components to verdicts: the documents of each component meet, are decided on, and go to their group's file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lineage.tables import VERDICTS
from pipeline.dedup_inputs import is_earlier, locators, open_chunk, ordinals, read_keys
from pipeline.dedup_rows import Context, Reduced, ints, routed
from stages.dedup.candidates import distinct_pairs
from stages.dedup.decide import Decision, Member, NearEdge, decide

_NO_NODE: Final = -1
_DECIDING: Final = ("doc_id", "url_key", "clean_hash", "num_chars", "captured_at", "signature")
_PLACE: Final = ("source_index", "file_index", "part_row")
_DECISIONS: Final = pa.schema([("node", pa.int64()), *(field for field in VERDICTS if field.name not in _PLACE)])


def label_rows(context: Context, name: str) -> pa.Table:
    """Labels by chunk of their node."""
    rows = context.read(name, ["node", "label"])
    none = np.full(len(rows), _NO_NODE)
    return _by_chunk(context, node=rows["node"], label=rows["label"], b=none, similarity=np.zeros(len(rows)))


def near_edge_rows(context: Context, name: str) -> pa.Table:
    """Verified edges by chunk of their first node, where that node's label is."""
    rows = context.read(name, ["a", "b", "similarity"])
    none = np.full(len(rows), _NO_NODE)
    return _by_chunk(context, node=rows["a"], label=none, b=rows["b"], similarity=rows["similarity"])


def _by_chunk(context: Context, **columns: Any) -> pa.Table:
    rows = pa.table(columns)
    return routed(context.chunk_of(ints(rows, "node")), rows)


def members(context: Context, chunk: int, rows: pa.Table) -> Reduced:
    """The documents of components with what decides on them, and the verified edges (b is a node), all labelled."""
    is_edge = ints(rows, "b") != _NO_NODE
    labelled, edges = rows.filter(pa.array(~is_edge)), rows.filter(pa.array(is_edge))
    node, label = distinct_pairs(ints(labelled, "node"), ints(labelled, "label"))
    ordinal = ordinals(node)
    of_edge = pa.array(label[np.searchsorted(node, ints(edges, "node"))], pa.int64())
    tables = [pa.table({"node": edges["node"], "label": of_edge, "b": edges["b"], "similarity": edges["similarity"]})]
    for file in open_chunk(context.folder, chunk):
        here = slice(*np.searchsorted(ordinal, [file.ordinal, file.ordinal + 1]))
        if here.start < here.stop:
            table = read_keys(file, _DECIDING)
            table = table.take(pa.array(np.searchsorted(ints(table, "node"), node[here])))
            table = table.append_column("has_words", pc.is_valid(table["signature"])).drop_columns(["signature"])
            table = table.append_column("label", pa.array(label[here]))
            tables.append(table.append_column("b", pa.array(np.full(len(table), _NO_NODE))))
    return Reduced(pa.concat_tables(tables, promote_options="default"), {})


def component_rows(context: Context, name: str) -> pa.Table:
    """Members and edges by label."""
    rows = context.read(name)
    return routed(context.spread(ints(rows, "label")), rows)


def decisions(context: Context, _: int, rows: pa.Table) -> Reduced:
    """The decision on each document of the partition's components."""
    made: list[Decision] = []
    for component in _components(rows):
        among = [_member(row) for row in component if row["b"] == _NO_NODE]
        edges = [NearEdge(a=row["node"], b=row["b"], similarity=row["similarity"])
                 for row in component if row["b"] != _NO_NODE]  # fmt: skip
        made += decide(among, edges, context.table)
    found = pa.Table.from_pylist([_decision_row(decision) for decision in made], schema=_DECISIONS)
    stages = [decision.stage for decision in made if decision.stage is not None]
    return Reduced(found, {stage: stages.count(stage) for stage in sorted(set(stages))})


def _components(rows: pa.Table) -> Iterator[list[dict[str, Any]]]:
    label = ints(rows, "label")
    order = np.argsort(label, kind="stable")
    ordered, label = rows.take(pa.array(order)), label[order]
    ordered = ordered.append_column("earlier", pa.array(is_earlier(ints(ordered, "node"))))
    bounds = np.flatnonzero(np.append(True, label[1:] != label[:-1])).tolist()
    for begin, end in zip(bounds, [*bounds[1:], len(label)], strict=True):
        yield ordered.slice(begin, end - begin).to_pylist()


def _member(row: dict[str, Any]) -> Member:
    return Member(
        node=row["node"], doc_id=row["doc_id"], clean_hash=row["clean_hash"], url_key=row["url_key"],
        num_chars=row["num_chars"], captured_at=row["captured_at"], has_words=row["has_words"],
        earlier=row["earlier"],
    )  # fmt: skip


def _decision_row(decision: Decision) -> dict[str, Any]:
    return {
        "node": decision.node, "doc_id": decision.doc_id, "status": "duplicate" if decision.stage else "kept",
        "stage": decision.stage, "rule": decision.stage, "value": decision.similarity, "threshold": decision.threshold,
        "cluster_id": decision.cluster_id, "duplicate_of": decision.duplicate_of, "similarity": decision.similarity,
    }  # fmt: skip


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
        "node": rows["node"], "doc_id": doc_id, "status": pa.array(["duplicate"] * len(rows), pa.string()),
        "stage": same, "rule": same, "value": no_real, "threshold": no_real, "cluster_id": no_hash,
        "duplicate_of": doc_id, "similarity": no_real,
    }  # fmt: skip
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
