"""Repeated lines of a corpus, by the hash of what is compared of them."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from lineage.ids import text_hash
from pipeline.dedup.inputs import ID
from pipeline.dedup.inside.cutting import cut_rows_of_lines
from pipeline.dedup.inside.pieces import (
    ORDER,
    InsideContext,
    PieceOfCorpus,
    as_texts,
    documents_of,
    in_order,
    open_piece,
    text_of,
)
from pipeline.dedup.rows import PartitionResult, halves, ints, prefix, routed
from stages.dedup.candidates import begins_of
from stages.dedup.inside.lines import lines_of, normalised_line, without_lines

_MOST_SHARES: Final = 1 << 32


def line_rows(context: InsideContext, piece: PieceOfCorpus) -> pa.Table:
    """The lines of a piece, the first of equal ones in each document and how many it has, by hash."""
    documents = documents_of(context, open_piece(context.folder, piece.number), piece.rejected(context))
    texts = as_texts(documents)
    shares = _shares(documents, context.table.share)
    rows, numbers, starts, hashes = [], [], [], []
    for row in range(len(documents)):
        text = text_of(texts, row)
        for number, (start, end) in enumerate(lines_of(text)):
            rows.append(row)
            numbers.append(number)
            starts.append(start)
            hashes.append(text_hash(normalised_line(text[start:end])))
    table = documents.select(ORDER).take(pa.array(rows, pa.int64()))
    table = table.append_column("share", pa.array(shares[np.array(rows, np.int64)]))
    table = table.append_column("line", pa.array(numbers, pa.int64()))
    table = table.append_column("start", pa.array(starts, pa.int64()))
    table = table.append_column("hash", pa.array(hashes, ID))
    return routed(context.partition_of(prefix(table, "hash")), table)


def _shares(documents: pa.Table, share: float) -> np.ndarray:
    """The share of the corpus that each document is compared in: a function of its id alone."""
    num = max(1, round(1 / share))
    high = ints(documents, "id_high").view(np.uint64) ^ np.uint64(1 << 63)
    return (high % np.uint64(min(num, _MOST_SHARES))).astype(np.int64)


def repeated_lines(_: int, rows: pa.Table) -> PartitionResult:
    """The lines that stand before, in their share, and where the first one is."""
    order = in_order(rows, "line")
    high, low = halves(rows, "hash")
    share = ints(rows, "share")
    by_hash = order[np.lexsort((low[order], high[order], share[order]))]
    high, low, share = high[by_hash], low[by_hash], share[by_hash]
    new = begins_of(high, low, share)
    first = by_hash[np.flatnonzero(new)][np.cumsum(new) - 1]
    again = ~new
    node, line, start = (ints(rows, name) for name in ("node", "line", "start"))
    columns = {
        "node": node[by_hash[again]],
        "start": line[by_hash[again]],
        "twin": node[first[again]],
        "twin_start": start[first[again]],
    }
    return PartitionResult(pa.table(columns))


def line_cut_rows(context: InsideContext, piece: PieceOfCorpus) -> pa.Table:
    """The cuts of a piece, by slice."""
    documents = documents_of(context, open_piece(context.folder, piece.number), piece.rejected(context))
    return cut_rows_of_lines(
        context, documents, piece, lambda text, gone: without_lines(lines_of(text), gone)
    )
