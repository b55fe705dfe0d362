"""How often an epoch reads each document, computed anew from a finished output's recipe and `documents`, and
held to what index.json says of the shards: what `verify` asks for.

Clusters are counted bucket by bucket of a shuffle, percentiles and rows in passes over it, so that memory is
that of a bucket, whatever the size of the output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lineage.ids import sort_keys
from lineage.index.names import RUN_FILE
from lineage.index.output_index import INDEX_FILE, Index
from lineage.index.source_keys import has_repeats
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.delta import open_table, state
from lineage.store.rows import shard_source
from lineage.store.shuffle import Shuffle
from lineage.store.write import num_buckets
from lineage.verify.problems import Problem
from pipeline.phases.buckets import (
    by_place,
    cuts_of,
    part_numbers,
    parted_sources,
    recorded_cuts,
    repeat_firsts,
)
from pipeline.phases.percentiles import Values, Weights
from pipeline.phases.repeats import CountedRows, Firsts, OfSource, own_tables, plan_repeats
from pipeline.recipe.load import recipe_of
from pipeline.recipe.parts import repeated_bucket
from pipeline.recipe.tables import BucketTable, PipelineRecipe
from pipeline.results.run_summary import RunSummary, read_summary
from stages.tokens.repeats import rows_of
from stages.tokens.shards import shuffle_key

_BATCH: Final = 1 << 16
_COLUMNS: Final = ("doc_id", "source", "bucket", "language", "cluster_id", "status", "shard", "num_tokens")
_TABLE: Final = "documents"


class _Piece(NamedTuple):
    """Kept documents that are counted together, and the number of each one's shard."""

    of: CountedRows
    shards: Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """The shuffled rows of `documents`, and what makes rows of [repeat] of them."""

    recipe: PipelineRecipe
    repeated: frozenset[str]
    shuffle: Shuffle
    firsts: Firsts
    bucket: BucketTable | None
    cuts: Sequence[Sequence[float]]

    def documents(self) -> Iterator[CountedRows]:
        """As `plan_repeats` takes them."""
        return (piece.of for piece in self.pieces())

    def pieces(self) -> Iterator[_Piece]:
        for number in range(self.shuffle.num_buckets(_TABLE)):
            rows = self.shuffle.read(_TABLE, number, pa.schema([]))
            if rows.num_rows:
                yield from self._of_bucket(rows)

    def _of_bucket(self, rows: pa.Table) -> Iterator[_Piece]:
        clusters = rows["cluster_id"].to_pylist()
        sizes = Counter(each for each in clusters if each is not None)
        of_cluster = np.array([1 if each is None else sizes[each] for each in clusters], np.int64)
        is_kept = pc.and_(
            pc.equal(rows["status"], "kept"), pc.is_in(rows["source"], pa.array(sorted(self.repeated)))
        )
        rows = rows.filter(is_kept)
        if not rows.num_rows:
            return
        values = (
            of_cluster[is_kept.to_numpy()]
            if self.bucket is None
            else part_numbers(self.bucket, self.cuts, rows)
        )
        doc_ids = rows["doc_id"].to_pylist()
        shuffled = b"".join(shuffle_key(self.recipe.run.seed, each) for each in doc_ids)
        keys = np.frombuffer(shuffled, ">u8").reshape(-1, 2).astype(np.uint64)
        num_tokens, shards = rows["num_tokens"].to_numpy(), rows["shard"].to_numpy()
        languages = own_tables(self.recipe.repeat, rows["language"].to_pylist())
        of_each = zip(rows["source"].to_pylist(), rows["bucket"].to_pylist(), languages, strict=True)
        for of, at in by_place(OfSource(*each) for each in of_each):
            numbers = rows_of(values[at], self.firsts[of.language])
            yield _Piece(CountedRows(of, numbers, keys[at], num_tokens[at]), shards[at])


def wrong_repeats(out: Folder, index: Index) -> Iterator[Problem]:
    """Each shard that index.json has read another number of times than [repeat] says of its documents, and
    what run.json says of them otherwise. Where a bucket's percentiles are shares of bytes, which lineage does not
    keep, its cuts are those of run.json."""
    given = {(shard.source, shard.shard): shard.repeats for shard in index.shards}
    if not has_repeats(out):
        for (source, number), once in given.items():
            if once != 1:
                yield _wrong(source, number, once, "the recipe repeats nothing: 1 expected")
        return
    recipe, summary = recipe_of(out), read_summary(out)
    bucket, (*_, repeated) = repeated_bucket(recipe), parted_sources(recipe)
    cuts = [] if bucket is None else _cuts(out, bucket, repeated, summary)
    with Shuffle(num_buckets(state(out, _TABLE).num_rows)) as shuffle:
        _shuffle(out, shuffle, () if bucket is None else bucket.columns)
        rows = _Rows(
            recipe=recipe,
            repeated=repeated,
            shuffle=shuffle,
            firsts=repeat_firsts(recipe.repeat, cuts),
            bucket=bucket,
            cuts=cuts,
        )
        try:
            planned = plan_repeats(recipe.repeat, rows.firsts, rows.documents)
        except RecipeError as error:
            yield Problem("repeats.curve", RUN_FILE, str(error))
            return
        found: dict[tuple[str, int], Counter[int]] = {}
        for piece in rows.pieces():
            times = np.zeros(len(piece.of.rows), np.int64)
            for row, each in enumerate(planned.times[piece.of.of]):
                chosen = piece.of.rows == row
                times[chosen] = each.of(piece.of.keys[chosen])
            source = shard_source(piece.of.of.source, piece.of.of.bucket)
            for shard, each_times in zip(piece.shards.tolist(), times.tolist(), strict=True):
                found.setdefault((source, shard), Counter())[each_times] += 1
    for (source, number), said_times in given.items():
        expected = found.get((source, number), Counter({1: 0}))
        if set(expected) != {said_times}:
            said = ", ".join(f"{each} for {num:,} of its documents" for each, num in sorted(expected.items()))
            yield _wrong(source, number, said_times, f"by [repeat], the clusters and the scores it is {said}")
    if planned.sizes != summary.repeats:
        theirs = set(map(str, summary.repeats))
        first = next((str(size) for size in planned.sizes if str(size) not in theirs), "no such row")
        yield Problem("repeats.sizes", RUN_FILE, f"`repeats` is not what documents come to: {first} expected")


def _wrong(source: str, number: int, times: int, why: str) -> Problem:
    return Problem(
        "repeats.times",
        f"{INDEX_FILE}, shard {source}/{number:05d}",
        f"an epoch reads it {times} times; {why}",
    )


def _shuffle(out: Folder, shuffle: Shuffle, columns: Sequence[str]) -> None:
    """All documents that were compared, by cluster, since clusters are of all sources."""
    dataset = open_table(out, _TABLE).to_pyarrow_dataset()
    wanted = pc.is_in(pc.field("status"), pa.array(["kept", "duplicate"]))
    for batch in dataset.to_batches([*_COLUMNS, *columns], filter=wanted, batch_size=_BATCH):
        rows = pa.Table.from_batches([batch])
        clusters = pc.coalesce(rows["cluster_id"].cast(pa.binary()), rows["doc_id"].cast(pa.binary()))
        if rows.num_rows:
            shuffle.add(_TABLE, rows.add_column(0, "k", pa.array(sort_keys(clusters.to_pylist()))))


def _cuts(
    out: Folder, table: BucketTable, repeated: Collection[str], summary: RunSummary
) -> Sequence[tuple[float, ...]]:
    """The cuts of each of the bucket's columns."""
    if table.percentiles and table.weigh == "bytes":
        return recorded_cuts(table, summary)
    return cuts_of(table, partial(_weighed, out, repeated))


def _weighed(
    out: Folder, repeated: Collection[str], column: str, weigh: str
) -> Iterator[tuple[Values, Weights]]:
    dataset = open_table(out, _TABLE).to_pyarrow_dataset()
    wanted = (pc.field("status") == "kept") & pc.is_in(pc.field("source"), pa.array(sorted(repeated)))
    for batch in dataset.to_batches([column, "num_tokens"], filter=wanted, batch_size=_BATCH):
        weights = batch["num_tokens"].to_numpy() if weigh == "tokens" else np.ones(batch.num_rows, np.int64)
        yield batch[column].to_numpy().astype(np.float64), weights.astype(np.int64)
