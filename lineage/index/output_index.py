"""index.json: names every file that a reader may open, and is published last (readers never list a folder).

`order_fingerprint` covers what the training order depends on (sources, shard numbers, lengths) and outlives
purges; `content_fingerprint` covers the tokens themselves. No time, no absolute path and nothing of the
cluster is in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from lineage.ids import content_hash
from lineage.index.checksums import seal, unseal_format
from lineage.json_record import JsonRecord, left_out_at
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, StorageError, kind_of, split

INDEX_FILE: Final = "index.json"
FORMAT: Final = 2
_SHARD_FILE: Final = re.compile(r"shards/(?P<source>[^/]+)/(?P<shard>\d{5,})(\.r\d+)?\.bin")
_REWRITTEN: Final = ("shards/", "documents/", "dedup/")
"""Folders of the files that a purge writes again, under other names."""


class NotFinishedError(StorageError):
    """The OUT has no index: its run never reached the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerIdentity(JsonRecord):
    """Which tokenizer made the shards: `hash` decides, `name` is for people. Ids lie below `vocab_size`."""

    name: str
    hash: str
    vocab_size: int
    eot_id: int


NO_TOKENIZER: Final = TokenizerIdentity(name="none", hash="", vocab_size=0, eot_id=0)
"""Of an OUT that holds texts and no tokens (`tokenize.off`); null in index.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard(JsonRecord):
    """One token shard. Files are named relative to OUT; hashes are BLAKE3-128 in hex; `num_tokens` counts the
    end-of-text ids too, so the file has 4 × num_tokens bytes. An epoch of training reads it `repeats`
    times."""

    source: str
    shard: int
    file: str
    num_tokens: int
    num_documents: int
    hash: str
    blocks_file: str
    blocks_hash: str
    index_file: str
    index_hash: str
    repeats: int = left_out_at(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile(JsonRecord):
    """One file of documents/ or dedup/: its number within its source, its rows and its BLAKE3-128 in hex."""

    source: str
    part: int
    file: str
    num_rows: int
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Index(JsonRecord):
    """What a finished OUT holds. `version` is 1 after the run, and one more after each purge."""

    version: int
    tokenizer: TokenizerIdentity
    shards: tuple[Shard, ...]
    documents: tuple[PartFile, ...]
    dedup: tuple[PartFile, ...]

    def __post_init__(self) -> None:
        for entries in (self.shards, self.documents, self.dedup):
            places = [
                (entry.source, entry.shard if isinstance(entry, Shard) else entry.part) for entry in entries
            ]
            if places != sorted(set(places)):
                raise ValueError("the entries of an index are in order of (source, number), each once")

    @property
    def has_tokens(self) -> bool:
        """Whether its texts were tokenized."""
        return self.tokenizer != NO_TOKENIZER

    @property
    def order_fingerprint(self) -> str:
        """BLAKE3-128 (hex) of the (source, shard, num_tokens) of every shard, in order, with how often an
        epoch reads it where that is not once; without tokens of the (source, part, num_rows) of every part of
        texts."""
        if not self.has_tokens:
            return _fingerprint("texts", [[p.source, p.part, p.num_rows] for p in self.documents])
        times = ([s.repeats] if s.repeats != 1 else [] for s in self.shards)
        return _fingerprint(
            "order",
            [[s.source, s.shard, s.num_tokens, *each] for s, each in zip(self.shards, times, strict=True)],
        )

    @property
    def content_fingerprint(self) -> str:
        """BLAKE3-128 (hex) of the tokenizer's hash and the (source, shard, hash) of every shard, in order;
        without tokens of the (source, part, hash) of every part of texts and of what later runs compare
        with."""
        if not self.has_tokens:
            parts = [[p.source, p.part, p.hash] for p in (*self.documents, *self.dedup)]
            return _fingerprint("contents of texts", parts)
        return _fingerprint(
            "content", [self.tokenizer.hash, [[s.source, s.shard, s.hash] for s in self.shards]]
        )

    @property
    def num_tokens(self) -> int:
        """Tokens of all shards, end-of-text ids included."""
        return sum(shard.num_tokens for shard in self.shards)

    @property
    def source_of_shards(self) -> dict[str, str]:
        """The source of the recipe whose documents the shards of a source hold: the shards of one that is parted
        are called after its parts, and the recipe has no other source that is called like one."""
        sources = {part.source for part in self.documents}
        named = {shard.source for shard in self.shards}
        parted = {name: [s for s in sources if name.startswith(f"{s}.")] for name in named - sources}
        return {name: parted.get(name, [name])[0] for name in named}

    def files(self) -> dict[str, str]:
        """The hash (hex) of every file that this index covers, by name."""
        covered = {shard.file: shard.hash for shard in self.shards}
        covered |= {shard.blocks_file: shard.blocks_hash for shard in self.shards}
        covered |= {shard.index_file: shard.index_hash for shard in self.shards}
        return covered | {entry.file: entry.hash for entry in (*self.documents, *self.dedup)}


def make_index(
    tokenizer: TokenizerIdentity,
    shards: Iterable[Shard],
    documents: Iterable[PartFile],
    dedup: Iterable[PartFile],
    version: int = 1,
) -> Index:
    """The index of these files, given in any order."""
    return Index(
        version=version,
        tokenizer=tokenizer,
        shards=tuple(sorted(shards, key=lambda shard: (shard.source, shard.shard))),
        documents=tuple(sorted(documents, key=lambda part: (part.source, part.part))),
        dedup=tuple(sorted(dedup, key=lambda part: (part.source, part.part))),
    )


def encode_index(index: Index) -> bytes:
    """The bytes of index.json; equal indexes give equal bytes."""
    plain = index.to_json()
    return seal(
        {
            "format": FORMAT,
            "version": plain.pop("version"),
            "tokenizer": plain.pop("tokenizer") if index.has_tokens else None,
            "order_fingerprint": index.order_fingerprint,
            "content_fingerprint": index.content_fingerprint,
        }
        | {name: plain[name] for name in ("shards", "documents", "dedup")}
    )


def decode_index(data: bytes, where: str) -> Index:
    """The index that `data` holds; DamagedFileError if a byte of it is wrong, StorageError for another
    format."""
    fields = unseal_format(data, where, FORMAT)
    del fields["order_fingerprint"], fields["content_fingerprint"]  # computed from the rest
    return Index.from_json(fields | {"tokenizer": fields["tokenizer"] or NO_TOKENIZER.to_json()})


def publish_index(folder: Folder, index: Index) -> None:
    """Make `index` the index of `folder`, atomically. Every file that it names must be there already."""
    folder.publish(INDEX_FILE, encode_index(index))


def read_index(out: Folder | str) -> Index:
    """The index of an OUT; NotFinishedError if it has none, DamagedFileError if a byte of it is not as
    written."""
    folder = out if isinstance(out, Folder) else Folder(out)
    try:
        data = folder.read(INDEX_FILE)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _without_index(folder) from error
    return decode_index(data, folder.at(INDEX_FILE))


def purged_meanwhile(path: str) -> str | None:
    """A sentence on a file of a finished output that is gone because a purge wrote another in its place, after a reader
    took its name from the index; None for any other path."""
    folder, name = split(path)
    while not folder.exists(INDEX_FILE):
        folder, above = split(folder.url)
        if not above:
            return None
        name = f"{above}/{name}"
    index = read_index(folder)
    if index.version == 1 or name in index.files() or not name.startswith(_REWRITTEN):
        return None
    return (
        f"{folder.url} was purged from while it was read: {name} is of an earlier version, and the output is at"
        f" version {index.version} now, which a new call reads"
    )


def check_finished(out: Folder) -> None:
    """NotFinishedError if an OUT has no index, by one request."""
    if not out.exists(INDEX_FILE):
        raise _without_index(out)


def _without_index(out: Folder) -> NotFinishedError:
    why = "the path is wrong, or the run is not finished (the same `sluice run` continues it)"
    if out.url.startswith("s3://"):
        from lineage.storage.objects import (
            why_no_bucket,
        )  # imports botocore, for which a folder on disk need not wait

        why = why_no_bucket(out) or why
    elif kind_of(out.url) == "file":
        why = "it is a file, and the output of a run is the folder or URL that run.output names"
    return NotFinishedError(f"no {INDEX_FILE} in {out.url}: {why}")


def check_outside(flag: str, target: str, *, is_folder: bool = False) -> None:
    """RecipeError if `target`, which the option or key `flag` names to be written, lies under a finished
    output, or is one itself where it `is_folder`."""
    folder = Folder(target) if is_folder else split(target)[0]
    if folder.url.startswith("hf://"):
        return  # no output lies on the Hub, and above a repository there are no folders
    while not (folder.exists(INDEX_FILE) and folder.exists("checksums.json")):
        parent, name = split(folder.url)
        if not name or parent.url.endswith(":/"):
            return
        folder = parent
    raise RecipeError(
        f"{flag} {target} lies under {folder.url}, a finished output, to which nothing is added: it must lie elsewhere"
    )


def shard_names(source: str, shard: int, generation: int = 0) -> tuple[str, str, str]:
    """The names of a shard's tokens, blocks and index files; `generation` counts the purges that rewrote
    it."""
    stem = f"shards/{source}/{shard:05d}"
    mark = f".r{generation}" if generation else ""
    return f"{stem}{mark}.bin", f"{stem}{mark}.blocks", f"{stem}.idx.parquet"


def part_name(folder: str, source: str, part: int, generation: int = 0) -> str:
    """The name of a part of `documents` or `dedup`; `generation` counts the purges that rewrote it."""
    mark = f".r{generation}" if generation else ""
    return f"{folder}/{source}/part-{part:05d}{mark}.parquet"


def shard_of(file: str) -> tuple[str, int] | None:
    """The (source, shard) whose tokens a file's name says it holds, in whatever generation; None for another
    file."""
    found = _SHARD_FILE.fullmatch(file)
    return None if found is None else (found["source"], int(found["shard"]))


def generation_of(file: str) -> int:
    """The generation in a file's name: k of `.r<k>.`, else 0."""
    marks = [
        piece
        for piece in file.rsplit("/", 1)[-1].split(".")[1:-1]
        if piece[:1] == "r" and piece[1:].isdigit()
    ]
    return int(marks[-1][1:]) if marks else 0


def _fingerprint(kind: str, value: Any) -> str:
    return content_hash(
        json.dumps([kind, FORMAT, value], ensure_ascii=True, separators=(",", ":")).encode()
    ).hex()
