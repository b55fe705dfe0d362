"""From components to verdicts: the documents of each component meet, are decided on, and go to their group's
file."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lineage.store.tables import VERDICTS
from pipeline.dedup.inputs import is_earlier, locators, open_slice, ordinals, read_keys
from pipeline.dedup.rows import Context, PartitionResult, halves, ints, routed
from pipeline.results.dedup_result import DedupCounts
from stages.dedup.bands import I64
from stages.dedup.candidates import begins_of, distinct_pairs
from stages.dedup.decide import DEDUP_STAGES, NONE, Decisions, Members, NearEdges, decide
from stages.dedup.options import DedupTable, Keep

_NO_NODE: Final = -1
_DECIDING: Final = ("doc_id", "url_key", "clean_hash", "num_chars", "captured_at", "signature")
_PLACE: Final = ("source_index", "file_index", "part_row")
_DECISIONS: Final = pa.schema([
    ("node", pa.int64()), ("kept", pa.int64()), *(field for field in VERDICTS if field.name not in _PLACE),
])  # fmt: skip
"""`kept`: the node of `duplicate_of`, _NO_NODE for none."""


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


def members(context: Context, number: int, rows: pa.Table) -> PartitionResult:
    """The documents of components with what decides on them, and the verified edges (b is a node), all
    labelled."""
    is_edge = ints(rows, "b") != _NO_NODE
    labelled, edges = rows.filter(pa.array(~is_edge)), rows.filter(pa.array(is_edge))
    node, label = distinct_pairs(ints(labelled, "node"), ints(labelled, "label"))
    ordinal = ordinals(node)
    of_edge = pa.array(label[np.searchsorted(node, ints(edges, "node"))], pa.int64())
    tables = [
        pa.table(
            {"node": edges["node"], "label": of_edge, "b": edges["b"], "similarity": edges["similarity"]}
        )
    ]
    for file in open_slice(context.folder, number):
        here = slice(*np.searchsorted(ordinal, [file.ordinal, file.ordinal + 1]))
        if here.start < here.stop:
            table = read_keys(file, _DECIDING)
            # Before rows are taken: the signatures of a file may be more than the 2 GiB that one array of
            # them holds.
            table = table.append_column("has_words", pc.is_valid(table["signature"])).drop_columns(
                ["signature"]
            )
            table = table.take(pa.array(np.searchsorted(ints(table, "node"), node[here])))
            table = table.append_column("label", pa.array(label[here]))
            tables.append(table.append_column("b", pa.array(np.full(len(table), _NO_NODE))))
    return PartitionResult(pa.concat_tables(tables, promote_options="default"))


def component_rows(context: Context, name: str) -> pa.Table:
    """Members and edges by label."""
    rows = context.read(name)
    return routed(context.partition_of(ints(rows, "label")), rows)


def decisions(context: Context, _: int, rows: pa.Table) -> PartitionResult:
    """The decision on each document of the partition's components."""
    is_edge = ints(rows, "b") != _NO_NODE
    documents, edges = rows.filter(pa.array(~is_edge)), rows.filter(pa.array(is_edge))
    found = decide(_members(documents, context.table.keep), _near_edges(documents, edges), context.table)
    stages = pa.array(DEDUP_STAGES).take(_index(found.stage))
    counts = {name: int(np.count_nonzero(found.stage == number)) for number, name in enumerate(DEDUP_STAGES)}
    made = _decision_table(
        documents["node"], documents["doc_id"].cast(pa.binary()), found, stages, context.table
    )
    return PartitionResult(
        made, DedupCounts(dropped={name: count for name, count in counts.items() if count})
    )


def _members(rows: pa.Table, keep: Keep) -> Members:
    label, node = ints(rows, "label"), ints(rows, "node")
    return Members(
        component=label,
        node=node,
        doc_id=_numbered(np.zeros_like(label), rows, "doc_id"),
        text=_numbered(label, rows, "clean_hash"),
        url=_numbered(label, rows, "url_key"),
        num_chars=ints(rows, "num_chars"),
        captured_at=_time_ranks(rows["captured_at"])
        if keep in ("earliest", "newest")
        else np.full(len(rows), NONE),
        has_words=rows["has_words"].to_numpy(),
        earlier=is_earlier(node),
    )


def _numbered(component: I64, rows: pa.Table, name: str) -> I64:
    """A number from 0 on for each hash of each component, ascending as the hashes do; NONE for none."""
    given = np.flatnonzero(pc.is_valid(rows[name]).to_numpy())
    high, low = halves(rows.take(pa.array(given)) if len(given) < len(rows) else rows, name)
    component = component[given]
    order = np.lexsort((low, high, component))
    component, high, low = component[order], high[order], low[order]
    numbers = np.full(len(rows), NONE)
    numbers[given[order]] = np.cumsum(begins_of(component, high, low)) - 1
    return numbers


def _time_ranks(times: pa.ChunkedArray) -> I64:
    """Numbers that ascend as the times of capture do; NONE for none."""
    # Without the Z, which sorts after the point of a fraction.
    plain = pc.replace_substring_regex(times, "Z$", "")
    ranks: I64 = pc.rank(plain, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    return np.where(pc.fill_null(pc.equal(plain, ""), True).to_numpy(), NONE, ranks)


def _near_edges(documents: pa.Table, edges: pa.Table) -> NearEdges:
    node = ints(documents, "node")
    order = np.argsort(node)
    a, b = (order[np.searchsorted(node, ints(edges, name), sorter=order)] for name in ("node", "b"))
    return NearEdges(a=a, b=b, similarity=edges["similarity"].to_numpy())


def _decision_table(
    node: pa.ChunkedArray, doc_id: pa.ChunkedArray, found: Decisions, stages: pa.Array, table: DedupTable
) -> pa.Table:
    thresholds = pa.array([None, 1.0, table.threshold if table.verify else None], pa.float64())
    similarity = pa.array(found.similarity, mask=np.isnan(found.similarity))
    columns = {
        "node": node.take(pa.array(found.row)),
        "kept": pc.fill_null(node.take(_index(found.duplicate_of)), _NO_NODE),
        "doc_id": doc_id.take(pa.array(found.row)),
        "status": pa.array(["duplicate", "kept"]).take(pa.array((found.stage == NONE).astype(np.int64))),
        "stage": stages,
        "rule": stages,
        "value": similarity,
        "threshold": thresholds.take(_index(found.stage)),
        "cluster_id": doc_id.take(pa.array(found.first)),
        "cluster_size": _sizes(found.first),
        "duplicate_of": doc_id.take(_index(found.duplicate_of)),
        "similarity": similarity,
    }
    return pa.table({name: columns[name] for name in _DECISIONS.names}, schema=_DECISIONS)


def _sizes(component: I64) -> I64:
    """How many documents have each one's number."""
    _, which, sizes = np.unique(component, return_inverse=True, return_counts=True)
    return sizes[which].astype(np.int64)


def _index(numbers: I64) -> pa.Array:
    """Numbers to take by, null where there are none."""
    return pa.array(numbers, mask=numbers == NONE)


def decision_rows(context: Context, name: str) -> pa.Table:
    """Decisions by group of files."""
    rows = context.read(name)
    return routed(context.group_of(ints(rows, "node")), rows)


def url_pair_rows(context: Context, name: str) -> pa.Table:
    """Each document that was dropped for its URL (b) and the one that was kept of it (a), by b: of one page a
    million documents may have gone."""
    rows = context.read(name, ["node", "kept", "stage"])
    rows = rows.filter(pc.equal(rows["stage"], "dedup.url"))
    b = ints(rows, "node")
    return routed(context.partition_of(b), pa.table({"a": rows["kept"], "b": b}))


def url_pairs(_: int, rows: pa.Table) -> PartitionResult:
    """The pairs as they came."""
    return PartitionResult(rows.select(["a", "b"]))


def repeated_verdict_rows(context: Context, name: str) -> pa.Table:
    """What identity has taken out, as duplicates of their own doc_id, by group of files."""
    rows = context.read(name, ["node", "doc_id"])
    no_real, no_hash = pa.nulls(len(rows), pa.float64()), pa.nulls(len(rows), pa.binary())
    same = pa.array(["identity"] * len(rows), pa.string())
    doc_id = rows["doc_id"].cast(pa.binary())
    columns = {
        "node": rows["node"],
        "kept": np.full(len(rows), _NO_NODE),
        "doc_id": doc_id,
        "status": pa.array(["duplicate"] * len(rows), pa.string()),
        "stage": same,
        "rule": same,
        "value": no_real,
        "threshold": no_real,
        "cluster_id": no_hash,
        "cluster_size": np.ones(len(rows), np.int64),
        "duplicate_of": doc_id,
        "similarity": no_real,
    }
    found = pa.table({name: columns[name] for name in _DECISIONS.names}, schema=_DECISIONS)
    return routed(context.group_of(ints(found, "node")), found)


def verdicts(_: int, rows: pa.Table) -> PartitionResult:
    """A group's verdicts in order of (file_index, part_row)."""
    node = ints(rows, "node")
    order = np.argsort(node, kind="stable")
    ordered, places = rows.take(pa.array(order)), dict(zip(_PLACE, locators(node[order]), strict=True))
    columns = [
        pa.array(places[field.name]).cast(field.type) if field.name in places else ordered[field.name]
        for field in VERDICTS
    ]
    return PartitionResult(pa.table(columns, schema=VERDICTS))
