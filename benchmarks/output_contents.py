"""Texts, clusters, token shards and a training run for a synthetic store: what the pages of a whole output read.

Every text is one of a few thousand articles and lies in a shard as its first tokens, so that hundreds of
thousands of documents are written a minute. A cluster's size follows a power law: the largest of a piece has a thousand
members."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.store import DOCUMENTS_A_SHARD, KEPT
from lineage.ids import content_hash
from lineage.index.blocks import ShardHasher, as_bytes
from lineage.index.output_index import Index, PartFile, Shard, TokenizerIdentity, make_index, shard_names
from lineage.storage.folder import Folder
from lineage.store.tables import PART, SCHEMAS, SHARD_INDEX
from pipeline.demo.pages import write_article
from stages.tokens.shards import encode_shard_index
from stages.tokens.tokenizer import Tokenizer, load_tokenizer
from tests.support.outputs.recorded_training import record_training
from trainer.order import OrderOptions
from trainer.telemetry.metrics_file import METRICS_FILE
from trainer.telemetry.step_report import StepReport

TOKENS: Final = 200
"""Tokens of a document, the end-of-text id among them."""
DUPLICATES: Final = 0.2
"""Share of all documents that are near duplicates of a kept one."""
RUN: Final = "seen"
_NUM_TEXTS: Final = 5_000
_DOCUMENTS_A_PART: Final = 50_000
_ROWS_A_GROUP: Final = 3_600
"""8 MiB of these texts."""
_OPTIONS: Final = OrderOptions(seed=1, seq_len=2048, global_batch=128, window_blocks=8, mixture_block=8)
_RECIPE: Final = """[run]
name = "synthetic"
output = "{output}"
[[source]]
name = "web"
inputs = ["/nowhere/*.warc.gz"]
"""


@dataclass(slots=True)
class WholeOutput:
    """What `store.build` makes besides the store below `out`. `duplicates`: some rows of near duplicates."""

    out: Folder
    rows: int
    duplicates: list[dict[str, Any]] = field(default_factory=list)
    _texts: pa.Array = field(init=False)
    _tokens: np.ndarray = field(init=False)
    _tokenizer: Tokenizer = field(init=False)
    _parts: list[PartFile] = field(default_factory=list)
    _shards: list[Shard] = field(default_factory=list)
    _waiting: list[pa.Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        articles = [write_article("en", random.Random(seed)).text for seed in range(_NUM_TEXTS)]
        self._tokenizer = load_tokenizer("cl100k_base")
        whole = [np.resize(tokens, TOKENS) for tokens in self._tokenizer.encode_batch(articles)]
        self._tokens = np.stack(whole).astype(np.uint32)  # shape (_NUM_TEXTS, TOKENS)
        self._tokens[:, -1] = self._tokenizer.eot_id
        self._texts = pa.array(articles)

    def take(self, piece: pa.Table) -> pa.Table:
        """The rows with clusters, in parts and in shards of documents of TOKENS each."""
        piece = _with_places(self._with_duplicates(piece))
        self._write_parts(piece)
        kept = piece.filter(pc.equal(piece["status"], "kept"))
        self._waiting.append(kept.select(["doc_id", "shard", "start", "num_tokens", "tokens_hash"]))
        self._write_shards(is_last=False)
        return piece

    def index(self) -> Index:
        """The index of all; the recipe that names the tokenizer is written too."""
        self._write_shards(is_last=True)
        self.out.publish("recipe.toml", _RECIPE.format(output=self.out.url).encode())
        made_by = self._tokenizer
        identity = TokenizerIdentity(
            name=made_by.name, hash=made_by.hash, vocab_size=made_by.vocab_size, eot_id=made_by.eot_id
        )
        return make_index(identity, shards=self._shards, documents=self._parts, dedup=())

    def record_training(self, output: Folder) -> int:
        """Record a run that has read every sequence of the finished output once; gives its last step."""
        last = record_training(self.out, output.url, RUN, options=_OPTIONS)
        num_tokens = _OPTIONS.seq_len * _OPTIONS.global_batch
        reports = (
            StepReport(
                step=step,
                attempt=1,
                loss=8 / (1 + step) ** 0.2,
                tokens_by_source={"web": num_tokens},
                lr=1e-3,
            )
            for step in range(last + 1)
        )
        output.publish(METRICS_FILE, "".join(f"{report.as_json()}\n" for report in reports).encode())
        return last

    def _with_duplicates(self, piece: pa.Table) -> pa.Table:
        """Some of the rejected documents are near duplicates of kept ones instead."""
        rng = np.random.default_rng([self.rows, piece.num_rows, len(self._parts)])
        is_kept = pc.equal(piece["status"], "kept").to_numpy()
        is_copy = ~is_kept & (rng.random(len(piece)) < DUPLICATES / (1 - KEPT))
        kept, copies = np.flatnonzero(is_kept), np.flatnonzero(is_copy)
        if not len(kept):
            return piece
        of = np.full(len(piece), -1)
        of[copies] = kept[(len(kept) * rng.random(len(copies)) ** 3).astype(int)]
        of[np.unique(of[copies])] = np.unique(of[copies])
        ids = np.array(piece["doc_id"].to_pylist(), object)
        least: dict[int, bytes] = {}
        for at in np.flatnonzero(of >= 0).tolist():
            least[of[at]] = min(least.get(of[at], ids[at]), ids[at])
        similarity = np.round(0.8 + 0.2 * rng.random(len(piece)), 4)
        values: dict[str, Any] = {
            "status": np.where(is_copy, "duplicate", np.where(is_kept, "kept", "rejected")),
            "cluster_id": [least.get(at) for at in of.tolist()],
            "duplicate_of": [
                ids[at] if copy else None for at, copy in zip(of.tolist(), is_copy, strict=True)
            ],
            "similarity": pa.array(similarity, mask=~is_copy),
            "value": _chosen(is_copy, pa.array(similarity), piece["value"]),
            "threshold": _chosen(is_copy, pa.scalar(0.8), piece["threshold"]),
            "stage": _chosen(is_copy, pa.scalar("dedup.near"), piece["stage"]),
            "rule": _chosen(is_copy, pa.scalar("dedup.near"), piece["rule"]),
        }
        changed = _with_columns(piece, values)
        self.duplicates.extend(changed.take(copies[:: max(1, len(copies) // 20)]).to_pylist())
        return changed

    def _write_parts(self, piece: pa.Table) -> None:
        survived = piece.filter(pc.is_valid(piece["part"]))
        for number in pc.unique(survived["part"]).to_pylist():
            rows = survived.filter(pc.equal(survived["part"], number))
            columns = {name: rows[name] for name in PART.names if name in rows.column_names}
            columns["text"] = self._texts.take(pa.array(_texts_of(rows["doc_id"])))
            part = pa.table([columns.get(c.name, pa.nulls(len(rows), c.type)) for c in PART], schema=PART)
            data, name = _part_bytes(part), f"documents/web/part-{number:05d}.parquet"
            self.out.write(name, data)
            self._parts.append(
                PartFile(
                    source="web", part=number, file=name, num_rows=len(rows), hash=content_hash(data).hex()
                )
            )

    def _write_shards(self, *, is_last: bool) -> None:
        """The shards that are full, or all."""
        rows = pa.concat_tables(self._waiting)
        while len(rows) >= DOCUMENTS_A_SHARD or (is_last and len(rows)):
            self._shards.append(self._write_shard(len(self._shards), rows.slice(0, DOCUMENTS_A_SHARD)))
            rows = rows.slice(DOCUMENTS_A_SHARD)
        self._waiting = [rows]

    def _write_shard(self, shard: int, rows: pa.Table) -> Shard:
        data = as_bytes(self._tokens[_texts_of(rows["doc_id"])].reshape(-1))
        hasher = ShardHasher()
        hasher.update(data)
        digests = hasher.digests()
        index = encode_shard_index(pa.table([rows[c.name] for c in SHARD_INDEX], schema=SHARD_INDEX))
        file, blocks_file, index_file = shard_names("web", shard)
        for name, content in ((file, bytes(data)), (blocks_file, digests.blocks), (index_file, index)):
            self.out.write(name, content)
        return Shard(
            source="web", shard=shard, file=file, num_tokens=TOKENS * len(rows), num_documents=len(rows),
            hash=digests.hash, blocks_file=blocks_file, blocks_hash=content_hash(digests.blocks).hex(),
            index_file=index_file, index_hash=content_hash(index).hex(),
        )  # fmt: skip


def _part_bytes(part: pa.Table) -> bytes:
    """A part with row groups as small as a run's (`pipeline.results.rows.RowWriter`): a page reads one of them for
    a text."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        part,
        sink,
        compression="zstd",
        compression_level=3,
        row_group_size=_ROWS_A_GROUP,
        write_page_index=True,
        write_page_checksum=True,
    )
    return bytes(sink.getvalue())


def _texts_of(ids: pa.ChunkedArray) -> np.ndarray:
    """The text that each document has."""
    return np.array([int.from_bytes(doc_id[:4], "big") % _NUM_TEXTS for doc_id in ids.to_pylist()])


def _with_places(piece: pa.Table) -> pa.Table:
    """Each survivor in a part, by its number among the survivors of it; each kept one in its shard."""
    number = (pc.cast(pc.divide(piece["warc_offset"], 24_000), pa.int64())).to_numpy()
    survived = pc.not_equal(piece["status"], "rejected").to_numpy()
    file = pc.cast(pc.utf8_slice_codeunits(piece["warc_file"], 15, 20), pa.int64()).to_numpy()
    part = (file * 50_000 + number) // _DOCUMENTS_A_PART
    part_row = np.zeros(len(piece), np.int64)
    for each in np.unique(part):
        here = survived & (part == each)
        part_row[here] = np.arange(here.sum())
    place = piece["start"].to_pandas().to_numpy() // 800 * TOKENS  # a float where it is null
    is_kept = pc.is_valid(piece["start"]).to_numpy()
    return _with_columns(
        piece,
        {
            "part": pa.array(part, mask=~survived),
            "part_row": pa.array(part_row, mask=~survived),
            "start": pa.array(np.where(is_kept, place, 0).astype(np.int64), mask=~is_kept),
            "num_tokens": pa.array(np.full(len(piece), TOKENS), mask=~is_kept),
        },
    )


def _chosen(where: np.ndarray, one: Any, other: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pa.array(where), one, other)


def _with_columns(rows: pa.Table, values: dict[str, Any]) -> pa.Table:
    types = {name: SCHEMAS["documents"].field(name).type for name in values}
    columns = {
        name: value.cast(types[name])
        if isinstance(value, (pa.Array, pa.ChunkedArray))
        else pa.array(value, types[name])
        for name, value in values.items()
    }
    return pa.table({name: columns.get(name, rows[name]) for name in rows.column_names})
