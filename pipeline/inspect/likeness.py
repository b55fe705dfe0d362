"""How the kept texts of a training recipe's data compare to a target: shares of sources (EM), documents
(DSIR)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

import numpy as np

from lineage.index.output_index import read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.lookup import Lookup
from pipeline.results.rows import clean_texts, read_rows
from stages.steps.benchmark_items import read_items
from trainer.mix.dsir import (
    BUCKETS,
    effective_sample_size,
    features,
    gumbel_top_k,
    length_effect,
    log_ratio,
    log_weights,
    unigrams,
)
from trainer.mix.em import fit_mixture, smoothed
from trainer.mix.swarm import Floats
from trainer.options import DataTable

_AT_ONCE: Final = 1024


class Text(NamedTuple):
    """A kept text, its id, and the source that a mixture names: that of its shards with the prefix of `train.data`.
    An epoch reads it `repeats` times."""

    source: str
    doc_id: str
    text: str
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """What DSIR chose. `effective_sample_size`: in documents, of all; `length_effect`: correlation of log
    weight and number of n-grams, None where one is constant; `by_source`: chosen documents."""

    num_documents: int
    num_chosen: int
    effective_sample_size: float
    length_effect: float | None
    by_source: dict[str, int]

    def as_plain(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def texts_of(outs: tuple[DataTable, ...]) -> Iterator[Text]:
    """The texts that a training reads, part by part: kept, deduplicated, not purged, and of no shard that an epoch
    never reads. RecipeError where two outputs have a source of one name, which no training reads."""
    named: dict[str, int] = {}
    for number, table in enumerate(outs):
        folder = Folder(table.out)
        index = read_index(folder)
        kept_by = {(part.source, part.part): part for part in index.dedup}
        repeats = {(shard.source, shard.shard): shard.repeats for shard in index.shards}
        # Without parts of a source and [repeat] a row's place says nothing more, and is not looked up.
        whole = {part.source for part in index.documents} >= {source for source, _ in repeats}
        is_plain = whole and set(repeats.values()) <= {1}
        for part in index.documents:
            kept = kept_by[part.source, part.part]
            ids = read_rows(folder, kept.file, ["part_row", "doc_id"], kept.hash)
            rows = set(ids["part_row"].to_pylist())
            places = {} if is_plain else _places(Lookup(folder), ids["doc_id"].to_pylist())
            for found in clean_texts(folder, part):
                if found.row in rows:
                    place = places.get(found.doc_id)
                    source, times = (part.source, 1) if place is None else (place[0], repeats[place])
                    name = table.prefix + source
                    if named.setdefault(name, number) != number:
                        raise RecipeError(
                            f"two outputs of train.data have a source {name!r}: give one of them a prefix"
                        )
                    if times:
                        yield Text(name, found.doc_id.hex(), found.text, times)


def _places(lookup: Lookup, doc_ids: list[bytes]) -> dict[bytes, tuple[str, int]]:
    """The source and the number of the shard that holds each document."""
    pieces = (doc_ids[first : first + _AT_ONCE] for first in range(0, len(doc_ids), _AT_ONCE))
    rows = (row for piece in pieces for row in lookup.documents(piece))
    return {row.doc_id: (row.shard_source, row.shard) for row in rows if row.shard is not None}


def target_texts(file: str, field: str) -> list[str]:
    """The texts of a JSONL file. RecipeError for a line that has none at `field`, or a file without any."""
    texts = read_items(file, field)
    if not texts:
        raise RecipeError(f"{file} holds no text")
    return texts


def likely_shares(outs: tuple[DataTable, ...], target: list[str]) -> dict[str, float]:
    """The shares of the sources whose words together look most like the target's, by source."""
    counts: dict[str, Floats] = {}
    for text in texts_of(outs):
        counts.setdefault(text.source, np.zeros(BUCKETS))[:] += text.repeats * unigrams(text.text)
    sources = sorted(source for source, own in counts.items() if own.sum())
    if len(sources) < 2:
        raise RecipeError(f"{len(sources)} sources of train.data have words: expected at least 2 to mix")
    wanted = np.sum([unigrams(text) for text in target], axis=0)
    shares = fit_mixture(wanted, smoothed(np.stack([counts[source] for source in sources])))
    return dict(zip(sources, shares.tolist(), strict=True))


def choose_documents(
    outs: tuple[DataTable, ...], target: list[str], keep: int, seed: int
) -> tuple[Likeness, list[dict[str, object]]]:
    """`keep` documents drawn by importance to the target: the summary, and a row each with its log weight."""
    wanted = np.sum([features(text) for text in target], axis=0)
    raw = np.zeros(BUCKETS)
    names = []
    for text in texts_of(outs):
        raw += features(text.text)
        names.append((text.source, text.doc_id))
    if not 0 < keep <= len(names):
        raise RecipeError(f"--keep {keep}: train.data has {len(names)} kept texts, expected 1 to that many")
    weights, lengths = log_weights((text.text for text in texts_of(outs)), log_ratio(wanted, raw))
    chosen = gumbel_top_k(weights, keep, seed)
    by_source: dict[str, int] = {}
    for number in chosen:
        by_source[names[number][0]] = by_source.get(names[number][0], 0) + 1
    summary = Likeness(
        num_documents=len(names),
        num_chosen=keep,
        effective_sample_size=effective_sample_size(weights),
        length_effect=length_effect(weights, lengths),
        by_source=dict(sorted(by_source.items())),
    )
    rows = [
        {"source": names[number][0], "doc_id": names[number][1], "log_weight": float(weights[number])}
        for number in chosen
    ]
    return summary, rows
