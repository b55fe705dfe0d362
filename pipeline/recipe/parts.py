"""What must hold of the tables that part and repeat documents: [[bucket]] and [repeat]."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lineage.recipe import (
    RecipeError,
)
from lineage.store.column_names import LABEL, LICENSE, SCORE
from pipeline.recipe.tables import (
    MOST_PERCENTILES,
    BucketTable,
    PipelineRecipe,
    columns_added_by,
    effective_dedup,
)
from stages.tokens.repeats import check_repeat

_BUCKET = re.compile(r"[A-Za-z0-9_-]{1,50}")
_PART = re.compile(r"[A-Za-z0-9_-]{1,80}")


def check_buckets(recipe: PipelineRecipe) -> None:
    """RecipeError where a [[bucket]] cannot be: its name, what it parts by, its cuts; and where sources that
    are parted have no shards, or could not be told from another source."""
    names = [table.name for table in recipe.bucket]
    known = columns_added_by(recipe)
    for table in recipe.bucket:
        if not _BUCKET.fullmatch(table.name):
            raise RecipeError(
                f"bucket.name = {table.name!r}: expected letters, digits, '_' and '-', at most 50",
                "bucket.name",
            )
        if names.count(table.name) > 1:
            raise RecipeError(f"bucket.name = {table.name!r} is given twice: each names parts of its own")
        _check_bucket(table, known)
    if recipe.bucket and not any("classifier" in source.steps for source in recipe.source):
        raise RecipeError(
            "[[bucket]] is given, and no source.steps names 'classifier', which gives what it parts by"
        )
    parted = [source.name for source in recipe.source if recipe.bucket or recipe.language.keep == "all"]
    if parted and recipe.tokenize.off:
        why = "[[bucket]]" if recipe.bucket else 'language.keep = "all"'
        raise RecipeError(f"{why} parts shards, and with tokenize.off there are none: leave one of them out")
    for name in parted:
        like = next((other.name for other in recipe.source if other.name.startswith(f"{name}.")), None)
        if like is not None:
            raise RecipeError(
                f"source.name = {like!r} reads as a part of the source {name!r}, which this recipe parts:"
                " give it another name"
            )


def repeated_bucket(recipe: PipelineRecipe) -> BucketTable | None:
    """The [[bucket]] by which documents are repeated, None where none is. RecipeError where the recipe names
    none that can be."""
    repeat = recipe.repeat
    if repeat.by != "bucket":
        return None
    names = [table.name for table in recipe.bucket]
    if not names:
        raise RecipeError(
            'repeat.by = "bucket", and the recipe has no [[bucket]]: add one of the scores of a [[classifier]],'
            " or repeat by cluster_size",
            "repeat.by",
        )
    if repeat.bucket is None and len(names) > 1:
        raise RecipeError(
            f'repeat.by = "bucket", and the recipe has several [[bucket]]: name one of'
            f" {', '.join(map(repr, names))} in repeat.bucket",
            "repeat.bucket",
        )
    wanted = names[0] if repeat.bucket is None else repeat.bucket
    if wanted not in names:
        raise RecipeError(
            f"repeat.bucket = {wanted!r}: expected the name of a [[bucket]], {' or '.join(map(repr, names))}",
            "repeat.bucket",
        )
    return recipe.bucket[names.index(wanted)]


def check_repeats(recipe: PipelineRecipe) -> None:
    """RecipeError where documents cannot be repeated as the recipe says."""
    repeat = recipe.repeat
    check_repeat(repeat)
    if repeat.by is None:
        return
    if recipe.tokenize.off:
        raise RecipeError(
            "[repeat] says how often shards are read, and with tokenize.off there are none: leave one of them"
            " out",
            "repeat.by",
        )
    table = effective_dedup(recipe)
    if repeat.by == "cluster_size" and not (table.url or table.exact or table.near):
        raise RecipeError(
            'repeat.by = "cluster_size", and no source compares documents, so that each is a cluster of one:'
            " add dedup.exact or dedup.near to source.steps and leave it on in [dedup]",
            "repeat.by",
        )
    bucket = repeated_bucket(recipe)
    if bucket is None:
        return
    if bucket.is_of_labels:
        raise RecipeError(
            f"repeat.bucket: {bucket.name!r} parts by a label, whose classes have no order: give its parts"
            " shares in [[train.mixture]], and repeat by a [[bucket]] of scores",
            "repeat.bucket",
        )
    highest = len(bucket.cuts or bucket.percentiles)
    if repeat.table and repeat.firsts[-1] > highest:
        raise RecipeError(
            f"repeat.table.{repeat.firsts[-1]}: [[bucket]] {bucket.name!r} has the parts 0 to {highest}",
            "repeat.table",
        )


def check_part(name: str, what: str) -> None:
    """RecipeError where a language or class, `what` it is, cannot stand in the name of a source's part: as a
    folder's, and told from its neighbours, which dots part."""
    if not _PART.fullmatch(name):
        raise RecipeError(
            f"{what} {name!r} cannot name a part of a source: expected ASCII letters, digits, '_' and '-', at"
            " most 80; take a model, or a step, that gives other names, or part sources by something else"
        )


def _check_bucket(table: BucketTable, known: Sequence[str]) -> None:
    where = f"bucket.by of {table.name!r}"
    if not table.columns:
        raise RecipeError(f"{where} is empty: name score_NAME or label_NAME of a classifier", "bucket.by")
    if len(set(table.columns)) < len(table.columns):
        raise RecipeError(f"{where} names a column twice: expected each once", "bucket.by")
    if table.weigh != "documents" and not table.percentiles:
        raise RecipeError(
            f"bucket.weigh of {table.name!r} = {table.weigh!r} says what percentiles are shares of, and it has"
            " none: leave bucket.weigh out, or give percentiles",
            "bucket.weigh",
        )
    for column in table.columns:
        if column not in known or not column.startswith((SCORE, LABEL)):
            there = ", ".join(name for name in known if name != LICENSE) or "none"
            raise RecipeError(
                f'{where} = {column!r}, and no step gives that column: a [[classifier]] with reject = "never"'
                f' gives score_<name>, and with label = "*" label_<name> (this recipe\'s: {there})',
                "bucket.by",
            )
    if table.is_of_labels:
        if len(table.columns) > 1 or table.cuts or table.percentiles:
            raise RecipeError(
                f"{where} is a label, whose classes are the parts: it goes with no other column, no cuts and"
                " no percentiles",
                "bucket.by",
            )
        return
    if any(column.startswith(LABEL) for column in table.columns):
        raise RecipeError(
            f"{where} names scores and labels together: expected scores, or one label", "bucket.by"
        )
    if bool(table.cuts) == bool(table.percentiles):
        given = "both cuts and percentiles" if table.cuts else "neither cuts nor percentiles"
        raise RecipeError(f"bucket {table.name!r} has {given}: expected one of them", "bucket.cuts")
    for name, values in (("cuts", table.cuts), ("percentiles", table.percentiles)):
        if list(values) != sorted(set(values)):
            raise RecipeError(
                f"bucket.{name} of {table.name!r} = {list(values)}: expected rising numbers", f"bucket.{name}"
            )
    if len(table.percentiles) > MOST_PERCENTILES:
        raise RecipeError(
            f"bucket.percentiles of {table.name!r} are {len(table.percentiles)}: expected at most"
            f" {MOST_PERCENTILES}",
            "bucket.percentiles",
        )
