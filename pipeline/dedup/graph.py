"""Identity, the graph of repetitions, and its components.

Every `*_rows` function gives rows with a partition number; every other public function reduces a partition to
a table that is published."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lineage.ids import id_digest
from pipeline.dedup.exchange import PARTITION
from pipeline.dedup.inputs import ID, is_earlier, open_slice, read_keys
from pipeline.dedup.rows import (
    Context,
    FileSlice,
    PartitionResult,
    empty,
    first_documents,
    halves,
    ints,
    prefix,
    routed,
)
from pipeline.results.dedup_result import DedupCounts
from stages.dedup.candidates import begins_of, distinct_pairs
from stages.dedup.components import edges_digest, label_components, large_star, small_star

_URL: Final = 0
_TEXT: Final = 1


def identity_rows(context: Context, number: int) -> pa.Table:
    """The doc_ids of this run's documents, by doc_id."""
    tables = [read_keys(file, ["doc_id"]) for file in open_slice(context.folder, number) if not file.earlier]
    table = pa.concat_tables(tables) if tables else empty(node=pa.int64(), doc_id=ID)
    return routed(context.partition_of(prefix(table, "doc_id")), table)


def repeated_ids(_: int, rows: pa.Table) -> PartitionResult:
    """The documents whose doc_id stands at an earlier (source, file, offset) too. `digest` is that of the
    others."""
    high, low = halves(rows, "doc_id")
    order = np.lexsort((ints(rows, "node"), low, high))
    high, low = high[order], low[order]
    again = np.zeros(len(rows), np.bool_)
    again[1:] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    ordered = rows.take(pa.array(order))
    first = ordered.filter(pa.array(~again))
    found = ordered.filter(pa.array(again)).select(["node", "doc_id"])
    return PartitionResult(
        found, DedupCounts(dropped={"identity": len(found)}, digest=id_digest(first["doc_id"].to_pylist()))
    )


def repeated_rows(context: Context, name: str) -> pa.Table:
    """Documents that `repeated_ids` found, by slice."""
    rows = context.read(name, ["node"])
    return routed(context.slice_of(ints(rows, "node")), rows)


def repeated_nodes(_: int, rows: pa.Table) -> PartitionResult:
    """Sorted nodes that take no part in what follows."""
    return PartitionResult(pa.table({"node": np.sort(ints(rows, "node"))}))


def equal_rows(context: Context, files: FileSlice) -> pa.Table:
    """URL keys and clean hashes, by hash."""
    options, tables = context.table, []
    # Signatures are most of a file of keys.
    is_signed = options.near and not options.exact
    columns = ["url_key", "clean_hash", *(["signature"] if is_signed else [])]
    for _, table in first_documents(context, files, columns):
        if options.url:
            tables.append(_hashes(table, "url_key", _URL))
        if options.exact:
            tables.append(_hashes(table, "clean_hash", _TEXT))
        # Without exact deduplication equal texts are near-duplicates of each other, but only those with a signature.
        elif is_signed:
            tables.append(_hashes(table.filter(pc.is_valid(table["signature"])), "clean_hash", _TEXT))
    rows = pa.concat_tables([empty(node=pa.int64(), hash=ID, kind=pa.int8()), *tables])
    rows = rows.filter(pc.is_valid(rows["hash"]))
    return routed(context.partition_of(prefix(rows, "hash")), rows)


def _hashes(table: pa.Table, column: str, kind: int) -> pa.Table:
    kinds = pa.array(np.full(len(table), kind, np.int8))
    return pa.table({"node": table["node"], "hash": table[column], "kind": kinds})


def stars(_: int, rows: pa.Table) -> PartitionResult:
    """An edge from the least node of each equal URL or text to each other; none where all are of earlier
    outputs."""
    high, low = halves(rows, "hash")
    kind, node = rows["kind"].to_numpy(), ints(rows, "node")
    order = np.lexsort((node, low, high, kind))
    high, low, kind, node = high[order], low[order], kind[order], node[order]
    starts = begins_of(high, low, kind)
    centre = node[np.flatnonzero(starts)][np.cumsum(starts) - 1]
    # A star and not all pairs: a million copies of one page need a million edges, and the component is the same.
    # The least node of a group is of this run unless all are of earlier ones, whose nodes are greater.
    wanted = ~starts & ~is_earlier(centre)
    a, b = distinct_pairs(centre[wanted], node[wanted])
    return PartitionResult(pa.table({"a": a, "b": b}), DedupCounts(num_edges=len(a)))


def edge_rows(context: Context, name: str) -> pa.Table:
    """Edges, all to one partition."""
    rows = context.read(name, ["a", "b"])
    # Called for few edges only; many are labelled by rounds of `large_stars` and `small_stars`.
    return routed(np.zeros(len(rows), np.int64), rows)


def labels(_: int, rows: pa.Table) -> PartitionResult:
    """Every node of a component and its label, the least node there."""
    node, label = label_components(ints(rows, "a"), ints(rows, "b"))
    return PartitionResult(pa.table({"node": node, "label": label}))


def both_ends_rows(context: Context, name: str) -> pa.Table:
    """Edges from each of their ends, by that end."""
    rows = context.read(name, ["a", "b"])
    a, b = ints(rows, "a"), ints(rows, "b")
    node, neighbour = np.concatenate((a, b)), np.concatenate((b, a))
    return pa.table({PARTITION: context.partition_of(node), "a": node, "b": neighbour})


def greater_end_rows(context: Context, name: str) -> pa.Table:
    """Edges from their greater end, by it."""
    rows = context.read(name, ["a", "b"])
    a, b = ints(rows, "a"), ints(rows, "b")
    node, neighbour = np.maximum(a, b), np.minimum(a, b)
    return pa.table({PARTITION: context.partition_of(node), "a": node, "b": neighbour})


def large_stars(_: int, rows: pa.Table) -> PartitionResult:
    """One half of a round of distributed components."""
    a, b = large_star(*distinct_pairs(ints(rows, "a"), ints(rows, "b")))
    return PartitionResult(pa.table({"a": a, "b": b}))


def small_stars(_: int, rows: pa.Table) -> PartitionResult:
    """The other half; a round that leaves the digest as it was has changed no edge."""
    a, b = small_star(*distinct_pairs(ints(rows, "a"), ints(rows, "b")))
    return PartitionResult(pa.table({"a": a, "b": b}), DedupCounts(digest=edges_digest(a, b)))


def star_centre_rows(context: Context, name: str) -> pa.Table:
    """Edges of finished stars, by centre."""
    rows = context.read(name, ["a", "b"])
    return routed(context.partition_of(ints(rows, "b")), rows)


def star_labels(_: int, rows: pa.Table) -> PartitionResult:
    """`labels` of finished stars."""
    a, b = distinct_pairs(ints(rows, "a"), ints(rows, "b"))
    centres = np.unique(b)
    return PartitionResult(
        pa.table({"node": np.concatenate((a, centres)), "label": np.concatenate((b, centres))})
    )
