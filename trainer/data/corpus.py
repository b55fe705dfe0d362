"""What a run trains on: the shards of one or several outputs of the data pipeline, by source, as their
indexes say."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lineage.index.output_index import Index, Shard, TokenizerIdentity, read_index
from lineage.storage.folder import Folder
from lineage.storage.places import same_place
from trainer.options import DataTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """One shard of tokens and where it lies. `hash` names its content: a rewritten shard has another. An
    epoch reads it `repeats` times."""

    folder: str
    file: str
    hash: str
    num_tokens: int
    blocks_file: str
    blocks_hash: str
    repeats: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusOutput:
    """One output that the run reads: its folder or URL, what the run puts before its source names, and its
    content."""

    url: str
    prefix: str
    order_fingerprint: str
    content_fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """The shards of each source (with its prefix), sources by name, shards by number."""

    outputs: tuple[CorpusOutput, ...]
    sources: Mapping[str, tuple[ShardFile, ...]]
    tokenizer: TokenizerIdentity

    @property
    def lengths(self) -> dict[str, list[int]]:
        """Tokens of each shard of each source: what the order is made of."""
        return {source: [shard.num_tokens for shard in shards] for source, shards in self.sources.items()}

    @property
    def repeats(self) -> dict[str, list[int]]:
        """How often an epoch reads each shard of each source."""
        return {source: [shard.repeats for shard in shards] for source, shards in self.sources.items()}

    @property
    def epoch_tokens(self) -> dict[str, int]:
        """Tokens that an epoch of each source reads, held-out ones included."""
        return {
            source: sum(shard.num_tokens * shard.repeats for shard in shards)
            for source, shards in self.sources.items()
        }

    @property
    def hashes(self) -> frozenset[str]:
        """The content hash of every shard: all that a cache may still hold."""
        return frozenset(shard.hash for shards in self.sources.values() for shard in shards)


def open_corpus(tables: Sequence[DataTable]) -> Corpus:
    """The corpus that these outputs make up. ValueError where two cannot be read together; NotFinishedError
    where one is not finished."""
    indexes = [(table, Folder(table.out), read_index(Folder(table.out))) for table in tables]
    sources: dict[str, tuple[ShardFile, ...]] = {}
    first = indexes[0][2].tokenizer
    seen: list[Folder] = []
    for table, folder, index in indexes:
        if any(same_place(folder, earlier) for earlier in seen):
            raise ValueError(
                f"train.data names {folder.url} twice: lineage tells once what a run read of an output; a"
                " larger share of its sources is set by [[train.mixture]]"
            )
        seen.append(folder)
        if not index.has_tokens:
            raise ValueError(
                f"{folder.url} holds texts and no tokens (tokenize.off): tokenize it into a new output with"
                f" sluice run RECIPE --from {shlex.quote(folder.url)}, and train on that"
            )
        if index.tokenizer != first:
            raise ValueError(
                f"{folder.url} was tokenized with {index.tokenizer.name}, {indexes[0][1].url} with"
                f" {first.name}: a run reads one tokenizer's tokens"
            )
        for source, shards in _by_source(index, table.prefix, folder).items():
            if source in sources:
                raise ValueError(
                    f"two outputs of train.data have a source {source!r}: give one of them a prefix"
                )
            sources[source] = shards
    outputs = tuple(
        CorpusOutput(
            url=folder.url,
            prefix=table.prefix,
            order_fingerprint=index.order_fingerprint,
            content_fingerprint=index.content_fingerprint,
        )
        for table, folder, index in indexes
    )
    return Corpus(outputs=outputs, sources=dict(sorted(sources.items())), tokenizer=first)


def _by_source(index: Index, prefix: str, folder: Folder) -> dict[str, tuple[ShardFile, ...]]:
    found: dict[str, list[ShardFile]] = {}
    for shard in index.shards:
        files = found.setdefault(prefix + shard.source, [])
        if shard.shard != len(files):
            raise ValueError(
                f"{folder.url}: source {shard.source!r} lacks shard {len(files)}; run `sluice verify`"
            )
        files.append(_shard_file(shard, folder))
    return {source: tuple(files) for source, files in found.items()}


def _shard_file(shard: Shard, folder: Folder) -> ShardFile:
    return ShardFile(
        folder=folder.url,
        file=shard.file,
        hash=shard.hash,
        num_tokens=shard.num_tokens,
        blocks_file=shard.blocks_file,
        blocks_hash=shard.blocks_hash,
        repeats=shard.repeats,
    )


def reopen(corpus: Corpus) -> Corpus:
    """The same outputs as their indexes are now, after a purge say. ValueError if the order is no longer the
    same."""
    tables = [DataTable(out=output.url, prefix=output.prefix) for output in corpus.outputs]
    now = open_corpus(tables)
    for before, after in zip(corpus.outputs, now.outputs, strict=True):
        if before.order_fingerprint != after.order_fingerprint:
            raise ValueError(
                f"{after.url} now has order {after.order_fingerprint}, this run began with"
                f" {before.order_fingerprint}: shards were added or removed; a finished output never changes"
                " so. Restore it, or start a new run"
            )
    return now
