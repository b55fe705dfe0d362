"""Verify, part 5: each duplicate has an edge to a kept document: by URL, by text, or by a Jaccard measured
again.

1. `check_edges`: bucket by bucket, a duplicate and the document that it repeats; pairs by Jaccard are noted.
2. `check_similarities`: the texts of those pairs are fetched part by part, meet in a bucket, and are
  compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from lineage.ids import content_hash, sort_key
from lineage.index.output_index import Index
from lineage.index.source_keys import sources_with_fragments
from lineage.pages import compared_key
from lineage.storage.folder import Folder
from lineage.store.column_names import INSIDE
from lineage.store.purged_spans import PurgedSpans
from lineage.store.shuffle import Shuffle
from lineage.store.tables import SCHEMAS
from lineage.trace.earlier import NotOpenedError
from lineage.verify.documents import DUPLICATES
from lineage.verify.problems import Problem, VerifyHooks, guarded
from lineage.verify.rows import CheckedDocument, Duplicate, EditCount, PairRequest, PairSide, rows_of

_REQUESTS: Final = pa.schema([
    ("k", pa.int64()), ("part", pa.int64()), ("part_row", pa.int64()), ("doc_id", pa.binary()), ("other", pa.binary()),
    ("similarity", pa.float64()), ("threshold", pa.float64()),
])  # fmt: skip

_SIDES: Final = pa.schema(
    [("k", pa.int64()), *(_REQUESTS.field(i) for i in range(3, 7)), ("text", pa.string())]
)
_EXACT: Final = 1e-9


def check_edges(
    out: Folder, shuffle: Shuffle, index: Index, purged: PurgedSpans, hooks: VerifyHooks
) -> Iterator[Problem]:
    """Every duplicate against the kept document that it names; what lies in an earlier output that cannot be
    opened counts as there, and that output is a problem."""
    not_opened: dict[str, str] = {}
    num_unknown = 0
    apart = sources_with_fragments(out)
    ordinals = {(entry.source, entry.part): ordinal for ordinal, entry in enumerate(index.documents)}
    for bucket in range(shuffle.num_buckets("documents")):
        documents = rows_of(shuffle.read("documents", bucket, SCHEMAS["documents"]), CheckedDocument)
        # What keeps too little behind all comparing was kept by it.
        kept = {row.doc_id: row for row in documents if row.status == "kept" or row.stage == INSIDE}
        edits = rows_of(shuffle.read("edits", bucket, SCHEMAS["edits"]), EditCount)
        cut = {edit.doc_id for edit in edits if edit.stage == INSIDE}
        requests = []
        for row in rows_of(shuffle.read("duplicates", bucket, DUPLICATES), Duplicate):
            other = kept.get(row.duplicate_of)
            if other is None:
                try:
                    is_known = hooks.known_elsewhere(row.duplicate_of)
                except NotOpenedError as error:
                    is_known, not_opened = True, error.reasons
                    num_unknown += 1
                if not is_known:
                    yield _edge(row.doc_id, row.stage, f"{row.duplicate_of.hex()} is not kept")
                continue
            is_cut = other.doc_id in cut  # what is left of the text is not what was compared
            yield from _check_edge(
                row, other, apart, decided_by_bands=hooks.share_band is not None, is_cut=is_cut
            )
            if row.stage == "dedup.near" and not is_cut and not purged.doc_ids & {row.doc_id, other.doc_id}:
                for source, part, part_row in (
                    (row.source, row.part, row.part_row),
                    (other.source, other.part, other.part_row),
                ):
                    if part is not None and part_row is not None and (source, part) in ordinals:
                        requests.append(_request(row, part_row, ordinals[source, part]))
        shuffle.add("requests", _table(requests, _REQUESTS))
    for earlier, reason in not_opened.items():
        message = (
            f"cannot be opened, so {num_unknown:,} duplicates of what it may hold are not checked: {reason}"
        )
        yield Problem("duplicates.earlier", earlier, message)


def _edge(doc_id: bytes, stage: str, message: str) -> Problem:
    return Problem("duplicates.edge", f"document {doc_id.hex()}", f"is a duplicate by {stage}; {message}")


def _check_edge(
    row: Duplicate,
    other: CheckedDocument,
    apart: Collection[str],
    *,
    decided_by_bands: bool,
    is_cut: bool,
) -> Iterator[Problem]:
    if row.cluster_id != other.cluster_id:
        message = f"its cluster_id is not that of {other.doc_id.hex()}, which it repeats"
        yield Problem("documents.cluster", f"document {row.doc_id.hex()}", message)
    if row.stage == "dedup.url":
        keys = [compared_key(side.url, fragments=side.source in apart) for side in (row, other)]
        if keys[0] is None or keys[0] != keys[1]:
            yield _edge(row.doc_id, row.stage, f"its URL is not that of {other.doc_id.hex()}")
    elif row.stage == "dedup.exact":
        if (row.clean_hash != other.clean_hash and not is_cut) or row.similarity != 1.0:
            yield _edge(row.doc_id, row.stage, f"its text is not that of {other.doc_id.hex()}")
    elif row.similarity is None or (row.threshold is None) != decided_by_bands:
        yield _edge(
            row.doc_id, row.stage, f"its similarity is {row.similarity} and its threshold {row.threshold}"
        )
    elif row.threshold is not None and row.similarity < row.threshold:
        yield _edge(row.doc_id, row.stage, f"its similarity {row.similarity} is below {row.threshold}")


def _request(row: Duplicate, part_row: int, ordinal: int) -> PairRequest:
    return PairRequest(
        k=sort_key(content_hash(b"part %d" % ordinal)),
        part=ordinal,
        part_row=part_row,
        doc_id=row.doc_id,
        other=row.duplicate_of,
        similarity=row.similarity,
        threshold=row.threshold,
    )


def _table(rows: Sequence[NamedTuple], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([row._asdict() for row in rows], schema=schema)


def check_similarities(out: Folder, index: Index, shuffle: Shuffle, hooks: VerifyHooks) -> Iterator[Problem]:
    """Measure the Jaccard of every noted pair again."""
    for bucket in range(shuffle.num_buckets("requests")):
        by_part: dict[int, list[PairRequest]] = defaultdict(list)
        for request in rows_of(shuffle.read("requests", bucket, _REQUESTS), PairRequest):
            by_part[request.part].append(request)
        for ordinal in sorted(by_part):
            name = index.documents[ordinal].file
            yield from guarded(
                "documents.unreadable", name, _shuffle_sides(out, name, by_part[ordinal], shuffle)
            )
    for bucket in range(shuffle.num_buckets("sides")):
        pairs: dict[tuple[bytes, bytes], list[PairSide]] = defaultdict(list)
        for side in rows_of(shuffle.read("sides", bucket, _SIDES), PairSide):
            pairs[side.doc_id, side.other].append(side)
        for sides in pairs.values():
            yield from _check_pair(sides, hooks)


def _shuffle_sides(
    out: Folder, name: str, requests: list[PairRequest], shuffle: Shuffle
) -> Iterator[Problem]:
    first = 0
    with out.open(name) as stream:
        file = pq.ParquetFile(stream)
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            here = [request for request in requests if first <= request.part_row < first + size]
            if here:
                texts = file.read_row_group(group, columns=["text"])["text"]
                sides = [
                    PairSide(
                        k=sort_key(content_hash(request.doc_id + request.other)),
                        doc_id=request.doc_id,
                        other=request.other,
                        similarity=request.similarity,
                        threshold=request.threshold,
                        text=texts[request.part_row - first].as_py(),
                    )
                    for request in here
                ]
                shuffle.add("sides", _table(sides, _SIDES))
            first += size
    yield from ()


def _check_pair(sides: list[PairSide], hooks: VerifyHooks) -> Iterator[Problem]:
    row = sides[0]
    texts = [side.text for side in sides if side.text is not None]
    if len(sides) != 2 or len(texts) != 2:
        yield _edge(row.doc_id, "dedup.near", f"one of its texts and that of {row.other.hex()} is not there")
        return
    measured, threshold = hooks.jaccard(*texts), row.threshold
    is_below = threshold is not None and measured < threshold
    if hooks.share_band is not None and not hooks.share_band(*texts):
        yield _edge(row.doc_id, "dedup.near", f"it shares no band with {row.other.hex()}")
    elif is_below or row.similarity is None or abs(measured - row.similarity) > _EXACT:
        yield _edge(
            row.doc_id,
            "dedup.near",
            f"its Jaccard with {row.other.hex()} is {measured}, recorded is {row.similarity}",
        )
