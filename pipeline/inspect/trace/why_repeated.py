"""Why an epoch of training reads a document as often as it does, in a sentence: which row of [repeat] its
cluster or its score belongs to."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import pyarrow.compute as pc

from lineage.ids import sort_key
from lineage.storage.folder import Folder
from lineage.store.delta import open_table
from lineage.store.rows import DocumentRow
from pipeline.phases.buckets import recorded_cuts, repeat_firsts
from pipeline.phases.repeats import own_tables
from pipeline.recipe.load import recipe_of
from pipeline.recipe.parts import repeated_bucket
from pipeline.recipe.tables import BucketTable
from pipeline.results.run_summary import read_summary
from pipeline.terminal import counted


def why_repeated(out: Folder, row: DocumentRow, cluster_size: int) -> str | None:
    """The sentence for a document that a shard holds; None where run.json has no row that it belongs to."""
    recipe, summary = recipe_of(out), read_summary(out)
    bucket = repeated_bucket(recipe)
    if bucket is None:
        cuts: list[tuple[float, ...]] = []
        number, said = cluster_size, f"its cluster has {counted(cluster_size, 'document')}"
    else:
        cuts = recorded_cuts(bucket, summary)
        number, said = _by_scores(out, row, bucket, cuts)
    [language] = own_tables(recipe.repeat, [row.language])
    firsts = repeat_firsts(recipe.repeat, cuts)[language]
    at = bisect_right(firsts, number) - 1
    wanted = row.shard_source, language, firsts[max(at, 0)]
    size = next((e for e in summary.repeats if (e.source, e.language, e.first) == wanted), None)
    if size is None:
        return None
    last = firsts[at + 1] - 1 if at + 1 < len(firsts) else None
    numbers = f"{size.first} and more" if last is None else f"{size.first} to {last}"
    numbers = f"{size.first}" if last == size.first else numbers
    of = "clusters of" if bucket is None else f"[[bucket]] {bucket.name!r}, part"
    table = "[repeat]" if language is None else f"[repeat.language.{language}]"
    return (
        f"{said}; of {of} {numbers}, source {size.source!r} has {counted(size.num_documents, 'document')}"
        f"{'' if language is None else f' in {language}'}, which {table} has read {size.times:.6g} times,"
        f" {size.num_readings:,} times together"
    )


def _by_scores(
    out: Folder, row: DocumentRow, bucket: BucketTable, cuts: list[tuple[float, ...]]
) -> tuple[int, str]:
    """The number of the part that the document's scores put it in, and what they are."""
    is_it = (pc.field("k") == sort_key(row.doc_id)) & (pc.field("source") == row.source)
    dataset = open_table(out, "documents").to_pyarrow_dataset()
    rows = dataset.to_table(["doc_id", *bucket.columns], filter=is_it & (pc.field("status") == "kept"))
    [scores] = [each for each in rows.to_pylist() if each["doc_id"] == row.doc_id]
    number = max(
        int(np.digitize(scores[column], each)) for column, each in zip(bucket.columns, cuts, strict=True)
    )
    return number, " and ".join(f"its {column} is {scores[column]:.6g}" for column in bucket.columns)
