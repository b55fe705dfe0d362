"""A small finished OUT, made by the real writers: two sources, three kinds of duplicate, several shards.

Everything is a function of the arguments."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lineage.ids import content_hash, text_hash, tokens_hash
from lineage.index.blocks import as_bytes
from lineage.index.output_index import (
    Index,
    PartFile,
    Shard,
    TokenizerIdentity,
    make_index,
    part_name,
    publish_index,
)
from lineage.pages import compared_key
from lineage.storage.folder import Folder
from lineage.store import tables
from lineage.store.checksum_update import cover_output
from lineage.store.delta import commit_tables
from lineage.store.shuffle import Shuffle
from lineage.store.write import add_rows, index_rows, placement_buckets, write_bucket, write_tables
from stages.tokens.shards import RunSlice, cut_group, place_group, publish_shard, slice_bytes, write_run
from stages.tokens.tokenizer import Tokenizer, load_tokenizer
from tests.support.outputs.small_out.hooks import render_plainly
from tests.support.outputs.small_out.records import Record, make_records
from tests.support.outputs.small_out.rows import document_rows, excerpt_rows, input_files, small_tables

SHARD_TOKENS = 700
GROUP_FILES = 2
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallOut:
    """The finished folder, its records in (source, file, offset) order, and the tokenizer that made its
    shards.

    `named` gives the planted records: original, exact, near; url_original, same_url; first, again; longer,
    same_text (dropped for its URL), text_original (which has the text of same_text)."""

    folder: Folder
    index: Index
    records: tuple[Record, ...]
    tokenizer: Tokenizer
    named: dict[str, Record]


Tamper = Callable[[str, pa.Table], pa.Table]
"""What a test changes in the rows of a table (by name; also `dedup`, `parts`) before they are written."""


Plant = Callable[[bytes, npt.NDArray[np.uint32]], npt.NDArray[np.uint32]]
"""What a test makes of a document's tokens, by doc_id, before anything is computed from them; end-of-text is
there."""


def _as_it_is(_name: str, rows: pa.Table) -> pa.Table:
    return rows


def _whole(_doc_id: bytes, tokens: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    return tokens


@functools.cache
def default_tokenizer() -> Tokenizer:
    """The tokenizer of every small OUT."""
    return load_tokenizer("cl100k_base")


def make_small_out(
    url: str,
    seed: int = 0,
    per_file: int = 12,
    tamper: Tamper = _as_it_is,
    plant: Plant = _whole,
    *,
    tokenizer: Tokenizer | None = None,
) -> SmallOut:
    """Write a finished OUT to `url` (a path, or s3://…). `tokenizer`: another one than
    `default_tokenizer`."""
    out = Folder(url)
    records, named = make_records(seed, per_file)
    tokenizer = tokenizer or default_tokenizer()
    parts, rows_of = _write_parts(out, records, tamper)
    shards, placed = _write_shards(out, records, tokenizer, plant)
    dedup = _write_dedup(out, records, rows_of, tamper)
    rows = {"documents": document_rows(records, rows_of, placed), **small_tables(records)}
    _write_store(out, rows, shards, tamper)
    out.publish(
        "excerpts.parquet", _parquet(tamper("excerpts", _table(excerpt_rows(records), tables.EXCERPTS)))
    )
    out.publish("recipe.toml", b'[run]\nname = "small"\n')
    out.publish("run.json", json.dumps({"num_documents": len(records)}).encode())
    out.publish("report.html", render_plainly(out))
    identity = TokenizerIdentity(
        name=tokenizer.name, hash=tokenizer.hash, vocab_size=tokenizer.vocab_size, eot_id=tokenizer.eot_id
    )
    index = make_index(identity, shards, parts, dedup)
    cover_output(out, index)
    publish_index(out, index)
    return SmallOut(folder=out, index=index, records=records, tokenizer=tokenizer, named=named)


def change_where(name: str, doc_id: bytes, column: str, value: object) -> Callable[[str, pa.Table], pa.Table]:
    """A tampering that gives one column of a document's row in one table another value."""

    def tamper(table: str, rows: pa.Table) -> pa.Table:
        if table != name:
            return rows
        at = rows.schema.get_field_index(column)
        hit = pc.equal(rows["doc_id"], pa.scalar(doc_id, pa.binary()))
        changed = pc.if_else(hit, pa.scalar(value, rows.schema.field(column).type), rows[column])
        return rows.set_column(at, rows.schema.field(column), changed)

    return tamper


def _write_parts(
    out: Folder, records: tuple[Record, ...], tamper: Tamper
) -> tuple[list[PartFile], dict[int, int]]:
    """The parts, and the part_row of each survivor by its place in `records`."""
    parts: list[PartFile] = []
    rows_of: dict[int, int] = {}
    for source, file in input_files(records):
        here = [i for i, r in enumerate(records) if (r.source, r.file) == (source, file) and r.survived]
        rows_of |= {i: row for row, i in enumerate(here)}
        rows = [
            {
                "doc_id": records[i].doc_id,
                "text": records[i].text,
                "url": records[i].url,
                "metadata": json.dumps({"note": records[i].text[:20]}),
            }
            for i in here
        ]
        name, data = (
            part_name("documents", source, file),
            _parquet(tamper("parts", _table(rows, tables.PART))),
        )
        out.publish(name, data)
        parts.append(
            PartFile(source=source, part=file, file=name, num_rows=len(rows), hash=content_hash(data).hex())
        )
    return parts, rows_of


def _write_shards(
    out: Folder, records: tuple[Record, ...], tokenizer: Tokenizer, plant: Plant
) -> tuple[list[Shard], dict[bytes, dict[str, Any]]]:
    """The shards, and the placement columns of each kept document."""
    shards: list[Shard] = []
    placed: dict[bytes, dict[str, Any]] = {}
    for source in sorted({record.source for record in records}):
        files = [file for name, file in input_files(records) if name == source]
        first = 0
        for group in range(0, len(files), GROUP_FILES):
            runs = [
                _run(records, source, file, tokenizer, plant) for file in files[group : group + GROUP_FILES]
            ]
            indexes = [rows for rows, _ in runs]
            cuts = cut_group(indexes, SHARD_TOKENS)
            for rows, places in zip(indexes, place_group(indexes, cuts), strict=True):
                for row, place in zip(rows.to_pylist(), places.to_pylist(), strict=True):
                    of_run = {name: row[name] for name in ("num_tokens", "tokens_hash")}
                    placed[row["doc_id"]] = {
                        "shard": first + place["shard"],
                        "start": place["start"],
                        **of_run,
                    }
            for number in range(len(cuts) - 1):
                slices = [_slice(run, cuts[number][r], cuts[number + 1][r]) for r, run in enumerate(runs)]
                shards.append(publish_shard(out, source, first + number, slices))
            first += len(cuts) - 1
    return shards, placed


def _run(
    records: tuple[Record, ...], source: str, file: int, tokenizer: Tokenizer, plant: Plant
) -> tuple[pa.Table, bytes]:
    kept = [r for r in records if (r.source, r.file) == (source, file) and r.status == "kept"]
    tokens = io.BytesIO()
    rows = write_run([(r.doc_id, r.text) for r in kept], tokenizer, SEED, tokens)
    if plant is _whole:
        return rows, tokens.getvalue()
    ends = np.cumsum(rows["num_tokens"].to_numpy())[:-1]
    of_row = np.split(np.frombuffer(tokens.getvalue(), "<u4"), ends)
    planted = [plant(doc_id, held) for doc_id, held in zip(rows["doc_id"].to_pylist(), of_row, strict=True)]
    changed = {
        "num_tokens": [len(held) for held in planted],
        "tokens_hash": [tokens_hash(held) for held in planted],
    }
    for name, column in changed.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(name), pa.array(column, rows.schema.field(name).type))
    return rows, b"".join(map(as_bytes, planted))


def _slice(run: tuple[pa.Table, bytes], first: int, last: int) -> RunSlice:
    rows, tokens = run
    at, size = slice_bytes(rows, first, last)
    return RunSlice(rows=rows.slice(first, last - first), tokens=io.BytesIO(tokens[at : at + size]))


def _write_dedup(
    out: Folder, records: tuple[Record, ...], rows_of: dict[int, int], tamper: Tamper
) -> list[PartFile]:
    files = []
    for source, file in input_files(records):
        rows = [
            {
                "doc_id": r.doc_id,
                "source": source,
                "part": file,
                "part_row": rows_of[i],
                "num_chars": len(r.text),
                "url_key": compared_key(r.url),
                "clean_hash": text_hash(r.text),
                "signature": b"\0" * 8,
            }
            for i, r in enumerate(records)
            if (r.source, r.file) == (source, file) and r.status == "kept"
        ]
        name, data = part_name("dedup", source, file), _parquet(tamper("dedup", _table(rows, tables.DEDUP)))
        out.publish(name, data)
        files.append(
            PartFile(source=source, part=file, file=name, num_rows=len(rows), hash=content_hash(data).hex())
        )
    return files


def _write_store(
    out: Folder, given: dict[str, list[dict[str, Any]]], shards: list[Shard], tamper: Tamper
) -> None:
    with Shuffle() as shuffle:
        for name, rows in given.items():
            table = tamper(name, _table(rows, tables.SCHEMAS[name]))
            add_rows(shuffle, name, table)
            if name == "documents":
                for index_name, derived in index_rows(table).items():
                    add_rows(shuffle, index_name, tamper(index_name, derived))
        files = write_tables(out, shuffle)
    for bucket, places in enumerate(placement_buckets((s.source, s.shard, s.num_documents) for s in shards)):
        of_bucket = [s for s in shards if (s.source, s.shard) in places]
        rows = tamper("placements", pa.concat_tables([_placements(out, shard) for shard in of_bucket]))
        files["placements"] += write_bucket(out, "placements", bucket, [rows])
    commit_tables(out, files)


def _placements(out: Folder, shard: Shard) -> pa.Table:
    with out.open(shard.index_file) as file:
        rows = pq.read_table(file).to_pylist()
    return pa.Table.from_pylist(
        [{**row, "source": shard.source, "shard": shard.shard} for row in rows],
        schema=tables.SCHEMAS["placements"],
    )


def _table(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)


def _parquet(rows: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, compression="zstd")
    return buffer.getvalue()
