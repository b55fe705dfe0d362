"""The largest clusters of duplicates, and the few members of each that the report shows side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from lineage.ids import sort_key
from lineage.index.output_index import part_name
from lineage.storage.folder import Folder
from lineage.store.delta import arrow_dataset
from lineage.store.lookup import Lookup
from lineage.store.rows import DocumentRow
from pipeline.results.excerpts import excerpt_of
from pipeline.results.rows import read_texts
from stages.pii.regions import region_of

NUM_CLUSTERS = 6
NUM_DUPLICATES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterExample:
    """A cluster: how many documents it has, how many were kept, and what is shown of it.

    `members` are the kept document that most others repeat (of several the least id; absent where it lies in
    an earlier output), then those of its duplicates that have the least ids."""

    cluster_id: bytes
    num_documents: int
    num_kept: int
    members: tuple[DocumentRow, ...]


def largest_clusters(out: Folder) -> tuple[ClusterExample, ...]:
    """The largest clusters of an output whose tables are committed; of equal ones those with the least
    ids."""
    sizes = _largest(out)
    shown = _shown_ids(out, list(sizes))
    rows = Lookup(out).documents([doc_id for ids in shown.values() for doc_id in ids])
    found = {(row.cluster_id, row.doc_id): row for row in rows}
    return tuple(
        ClusterExample(
            cluster_id=cluster_id,
            num_documents=num,
            num_kept=num_kept,
            members=tuple(
                found[cluster_id, doc_id] for doc_id in shown[cluster_id] if (cluster_id, doc_id) in found
            ),
        )
        for cluster_id, (num, num_kept) in sizes.items()
    )


def _largest(out: Folder) -> dict[bytes, tuple[int, int]]:
    """(documents, kept ones) of the largest clusters, largest first.

    File by file, since there may be more clusters than a process can count at once. A file is sorted by
    cluster, so only its first and last can go on in another."""
    best: dict[bytes, tuple[int, int]] = {}
    parted: dict[bytes, tuple[int, int]] = {}
    for rows in arrow_dataset(out, "cluster_index").tables(["cluster_id", "status"]):
        if not rows.num_rows:
            continue
        ends = {rows["cluster_id"][0].as_py(), rows["cluster_id"][-1].as_py()}
        for row in _counted(rows, ends):
            if row["id"] in ends:
                num, num_kept = parted.get(row["id"], (0, 0))
                parted[row["id"]] = num + row["kept_count"], num_kept + row["kept_sum"]
            else:
                best[row["id"]] = row["kept_count"], row["kept_sum"]
        best = _first(best)
    return _first(best | parted)


class _Counts(TypedDict):
    """Documents of a cluster, and how many of them are kept."""

    id: bytes
    kept_count: int
    kept_sum: int


def _counted(rows: pa.Table, always: Collection[bytes]) -> list[_Counts]:
    """Of the clusters that are `always` wanted and the largest."""
    table = pa.table(
        {"id": rows["cluster_id"], "kept": pc.cast(pc.equal(rows["status"], "kept"), pa.int64())}
    )
    counts = table.group_by("id").aggregate([("kept", "count"), ("kept", "sum")])
    wanted = pc.is_in(counts["id"], pa.array(sorted(always), pa.binary()))
    others = counts.filter(pc.invert(wanted)).sort_by([("kept_count", "descending"), ("id", "ascending")])
    return [*counts.filter(wanted).to_pylist(), *others.slice(0, NUM_CLUSTERS).to_pylist()]


def _first(sizes: Mapping[bytes, tuple[int, int]]) -> dict[bytes, tuple[int, int]]:
    return dict(sorted(sizes.items(), key=lambda entry: (-entry[1][0], entry[0]))[:NUM_CLUSTERS])


def _shown_ids(out: Folder, cluster_ids: Sequence[bytes]) -> dict[bytes, list[bytes]]:
    """The ids of what is shown of each cluster."""
    keys = pa.array(sorted({sort_key(cluster_id) for cluster_id in cluster_ids}), pa.int64())
    rows = arrow_dataset(out, "cluster_index").to_table(
        columns=["cluster_id", "doc_id", "duplicate_of"], filter=pc.field("k").isin(keys)
    )
    repeats = rows.filter(pc.is_valid(rows["duplicate_of"]))
    return {
        cluster_id: _shown_of(repeats.filter(pc.equal(repeats["cluster_id"], cluster_id)))
        for cluster_id in cluster_ids
    }


def _shown_of(repeats: pa.Table) -> list[bytes]:
    counts = repeats.group_by("duplicate_of").aggregate([("doc_id", "count")])
    ranked = counts.sort_by([("doc_id_count", "descending"), ("duplicate_of", "ascending")])
    most: list[bytes] = ranked["duplicate_of"].slice(0, 1).to_pylist()
    of_most = repeats.filter(pc.is_in(repeats["duplicate_of"], pa.array(most, pa.binary())))
    least: list[bytes] = of_most.sort_by("doc_id")["doc_id"].slice(0, NUM_DUPLICATES).to_pylist()
    return most + least


class MemberExcerpt(TypedDict):
    """A row of tables.EXCERPTS of a member of a large cluster: it has no choice, and a kept one no rule."""

    doc_id: bytes
    stage: str | None
    rule: str | None
    excerpt: str


def cluster_excerpts(out: Folder) -> list[MemberExcerpt]:
    """Rows of tables.EXCERPTS for the members of the largest clusters that the report shows, in order of
    doc_id."""
    by_part: dict[str, list[DocumentRow]] = defaultdict(list)
    for cluster in largest_clusters(out):
        for member in cluster.members:
            assert member.part is not None, "what was compared has a clean text"
            by_part[part_name("documents", member.source, member.part)].append(member)
    rows = [row for part, members in by_part.items() for row in _excerpts_of_part(out, part, members)]
    return sorted(rows, key=lambda row: row["doc_id"])


def _excerpts_of_part(out: Folder, part: str, members: Sequence[DocumentRow]) -> list[MemberExcerpt]:
    texts = read_texts(out, part, sorted({member.part_row or 0 for member in members}))
    return [
        {
            "doc_id": member.doc_id,
            "stage": member.stage,
            "rule": member.rule,
            "excerpt": excerpt_of(texts[member.part_row or 0], region_of(member.language, member.host)),
        }
        for member in members
    ]
