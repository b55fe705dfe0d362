"""A small finished OUT, made by the real writers: two sources, three kinds of duplicate, several shards.

Everything is a function of the arguments."""

from __future__ import annotations

import functools
import io
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lineage.ids import content_hash, id_digest, row_doc_id, show_digest, sort_key, text_hash, warc_doc_id
from lineage.index.output_index import Index, PartFile, Shard, TokenizerIdentity, make_index, part_name, publish_index
from lineage.purge.execution import ApplyHooks, PurgeRequest
from lineage.purge.plan import PlanHooks, PurgeMatch
from lineage.storage.folder import Folder
from lineage.store import tables
from lineage.store.checksum_update import update_checksums
from lineage.store.delta import commit_tables, read_table
from lineage.store.shuffle import Shuffle
from lineage.store.write import add_rows, index_rows, placement_buckets, write_tables
from lineage.verify.problems import VerifyHooks
from stages.dedup.shingles import jaccard, shingles
from stages.steps.url import named_host, url_key
from stages.tokens.shards import RunSlice, cut_group, place_group, publish_shard, slice_bytes, write_run
from stages.tokens.tokenizer import Tokenizer, load_tokenizer

STAGES = ("url", "parse", "identity", "dedup.url", "dedup.exact", "dedup.near")
SHARD_TOKENS = 700
GROUP_FILES = 2
SEED = 0
THRESHOLD = 0.8


def similarity(left: str, right: str) -> float:
    """The Jaccard of two texts' 5-word shingles."""
    return jaccard(shingles(left, 5), shingles(right, 5))


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record of the crawl and what became of it."""

    doc_id: bytes
    source: str
    file: int
    offset: int
    url: str | None
    text: str
    status: str = "kept"
    stage: str | None = None
    rule: str | None = None
    value: float | None = None
    threshold: float | None = None
    cluster_id: bytes | None = None
    duplicate_of: bytes | None = None
    similarity: float | None = None

    @property
    def survived(self) -> bool:
        """Whether the filters let it through: then it has a row in a part."""
        return self.status != "rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallOut:
    """The finished folder, its records in (source, file, offset) order, and the tokenizer that made its shards.

    `named` gives the planted records: original, exact, near; url_original, same_url; first, again; longer, same_text
    (dropped for its URL), text_original (which has the text of same_text)."""

    folder: Folder
    index: Index
    records: tuple[Record, ...]
    tokenizer: Tokenizer
    named: dict[str, Record]


Tamper = Callable[[str, pa.Table], pa.Table]
"""What a test changes in the rows of a table (by name; also `dedup`, `parts`) before they are written."""


def _as_it_is(_name: str, rows: pa.Table) -> pa.Table:
    return rows


@functools.cache
def default_tokenizer() -> Tokenizer:
    """The tokenizer of every small OUT."""
    return load_tokenizer("cl100k_base")


def make_records(seed: int = 0, per_file: int = 12) -> tuple[tuple[Record, ...], dict[str, Record]]:
    """The records of three files of `web` and one of `books`, and the planted ones by name."""
    rng = random.Random(seed)
    vocabulary = ["".join(rng.choice("abcdefghijklmnop") for _ in range(rng.randrange(2, 9))) for _ in range(400)]

    def words(num: int) -> str:
        return " ".join(rng.choice(vocabulary) for _ in range(num)) + " – ende."

    records = [
        _record(seed, "web", file, row, words(rng.randrange(20, 120))) for file in range(3) for row in range(per_file)
    ]
    records += [_record(seed, "books", 0, row, words(50)) for row in range(per_file // 2)]
    for at in (0, per_file, 2 * per_file):
        records[at] = replace(
            records[at], status="rejected", stage="url", rule="url.too_long", value=2e8, threshold=1e8
        )
        records[at + 1] = replace(records[at + 1], text="", status="rejected", stage="parse", rule="parse.empty")
    named = _plant(records, per_file, vocabulary[0])
    return tuple(records), {name: records[at] for name, at in named.items()}


def _plant(records: list[Record], per_file: int, other_word: str) -> dict[str, int]:
    """Make some records repeat others; gives where each planted record stands."""
    named = {
        "original": 3,
        "exact": per_file + 3,
        "near": 2 * per_file + 3,
        "url_original": 4,
        "same_url": 2 * per_file + 4,
        "first": 5,
        "again": per_file + 5,
        "text_original": 6,
        "longer": 7,
        "same_text": per_file + 6,
    }
    text = " ".join([records[3].text] * 2)
    altered = text.split(" ")
    altered[-3] = other_word + "x"
    cluster = [named[name] for name in ("original", "exact", "near")]
    cluster_id = min(records[at].doc_id for at in cluster)
    of = records[3].doc_id
    records[3] = replace(records[3], text=text, cluster_id=cluster_id)
    records[cluster[1]] = replace(
        records[cluster[1]],
        text=text,
        cluster_id=cluster_id,
        status="duplicate",
        stage="dedup.exact",
        rule="dedup.exact",
        value=1.0,
        threshold=1.0,
        duplicate_of=of,
        similarity=1.0,
    )
    near = similarity(text, " ".join(altered))
    assert THRESHOLD <= near < 1
    records[cluster[2]] = replace(
        records[cluster[2]],
        text=" ".join(altered),
        cluster_id=cluster_id,
        status="duplicate",
        stage="dedup.near",
        rule="dedup.near",
        value=near,
        threshold=THRESHOLD,
        duplicate_of=of,
        similarity=near,
    )
    records[named["same_text"]] = replace(records[named["same_text"]], text=records[named["text_original"]].text)
    for kept, dropped in (("url_original", "same_url"), ("longer", "same_text")):
        original, again = records[named[kept]], records[named[dropped]]
        cluster_id = min(original.doc_id, again.doc_id)
        records[named[kept]] = replace(original, cluster_id=cluster_id)
        records[named[dropped]] = replace(
            again,
            url=original.url,
            cluster_id=cluster_id,
            status="duplicate",
            stage="dedup.url",
            rule="dedup.url",
            duplicate_of=original.doc_id,
        )
    first = records[named["first"]]
    records[named["again"]] = replace(
        records[named["again"]],
        doc_id=first.doc_id,
        url=first.url,
        text=first.text,
        status="duplicate",
        stage="identity",
        rule="identity.repeated",
        duplicate_of=first.doc_id,
    )
    return named


def _record(seed: int, source: str, file: int, row: int, text: str) -> Record:
    if source == "web":
        url = f"http://host{row % 4}.example/{seed}/{file}/{row}"
        doc_id = warc_doc_id(f"<urn:{seed}:{file}:{row}>", url, text.encode())
        return Record(doc_id=doc_id, source=source, file=file, offset=row * 1000, url=url, text=text)
    doc_id = row_doc_id(source, file_name(source, file), str(row), text)
    return Record(doc_id=doc_id, source=source, file=file, offset=row * 1000, url=None, text=text)


def file_name(source: str, file: int) -> str:
    """The name of an input file."""
    return f"{source}-{file:05d}.warc.gz"


def make_small_out(url: str, seed: int = 0, per_file: int = 12, tamper: Tamper = _as_it_is) -> SmallOut:
    """Write a finished OUT to `url` (a path, or s3://…)."""
    out = Folder(url)
    records, named = make_records(seed, per_file)
    tokenizer = default_tokenizer()
    parts, rows_of = _write_parts(out, records, tamper)
    shards, placed = _write_shards(out, records, tokenizer)
    dedup = _write_dedup(out, records, rows_of, tamper)
    rows = {"documents": document_rows(records, rows_of, placed), **_small_tables(records)}
    _write_store(out, rows, shards, tamper)
    out.publish("excerpts.parquet", _parquet(tamper("excerpts", _table(_excerpts(records), tables.EXCERPTS))))
    out.publish("recipe.toml", b'[run]\nname = "small"\n')
    out.publish("run.json", json.dumps({"num_documents": len(records)}).encode())
    out.publish("report.html", render_plainly(out))
    identity = TokenizerIdentity(
        name=tokenizer.name, hash=tokenizer.hash, vocab_size=tokenizer.vocab_size, eot_id=tokenizer.eot_id
    )
    index = make_index(identity, shards, parts, dedup)
    update_checksums(out, index)
    publish_index(out, index)
    return SmallOut(folder=out, index=index, records=records, tokenizer=tokenizer, named=named)


def render_plainly(out: Folder) -> bytes:
    """A report that shows every excerpt and every purge, as the real one does."""
    with out.open("excerpts.parquet") as file:
        shown = [f"{row['rule']}: {row['excerpt']}" for row in pq.read_table(file).to_pylist()]
    shown += [f"purged: {purge_id}" for purge_id in sorted(read_table(out, "purges")["purge_id"].to_pylist())]
    return ("<html>" + "".join(f"<p>{line}</p>" for line in shown) + "</html>").encode()


def stale_report(out: Folder, _index: Index) -> str | None:
    """What `verify` is told of a report that is not what would be rendered now."""
    return None if out.read("report.html") == render_plainly(out) else "shows another state"


def verify_hooks() -> VerifyHooks:
    """What proving a small OUT whole needs."""
    return VerifyHooks(jaccard=similarity, url_key=url_key, stale_report=stale_report)


def plan_hooks() -> PlanHooks:
    """What planning a purge of a small OUT needs."""
    return PlanHooks(
        url_key=url_key, named_host=named_host, resembles=lambda left, right: similarity(left, right) >= THRESHOLD
    )


def apply_hooks() -> ApplyHooks:
    """What applying one needs."""
    return ApplyHooks(
        render=render_plainly, drop_cached=lambda _out, _index: None, clean_export=lambda _out, _index, row: row
    )


def ordered(match: PurgeMatch) -> PurgeRequest:
    """An order to purge what `match` names."""
    return PurgeRequest(match=match, by="a test", reason="to see it gone")


def _table(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)


def _parquet(rows: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, compression="zstd")
    return buffer.getvalue()


def _files(records: Iterable[Record]) -> list[tuple[str, int]]:
    return sorted({(record.source, record.file) for record in records})


def _write_parts(out: Folder, records: tuple[Record, ...], tamper: Tamper) -> tuple[list[PartFile], dict[int, int]]:
    """The parts, and the part_row of each survivor by its place in `records`."""
    parts, rows_of = [], {}
    for source, file in _files(records):
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
        name, data = part_name("documents", source, file), _parquet(tamper("parts", _table(rows, tables.PART)))
        out.publish(name, data)
        parts.append(PartFile(source=source, part=file, file=name, num_rows=len(rows), hash=content_hash(data).hex()))
    return parts, rows_of


def _write_shards(
    out: Folder, records: tuple[Record, ...], tokenizer: Tokenizer
) -> tuple[list[Shard], dict[bytes, dict[str, Any]]]:
    """The shards, and the placement columns of each kept document."""
    shards: list[Shard] = []
    placed: dict[bytes, dict[str, Any]] = {}
    for source in sorted({record.source for record in records}):
        files = [file for name, file in _files(records) if name == source]
        first = 0
        for group in range(0, len(files), GROUP_FILES):
            runs = [_run(records, source, file, tokenizer) for file in files[group : group + GROUP_FILES]]
            indexes = [rows for rows, _ in runs]
            cuts = cut_group(indexes, SHARD_TOKENS)
            for rows, places in zip(indexes, place_group(indexes, cuts), strict=True):
                for row, place in zip(rows.to_pylist(), places.to_pylist(), strict=True):
                    of_run = {name: row[name] for name in ("num_tokens", "tokens_hash")}
                    placed[row["doc_id"]] = {"shard": first + place["shard"], "start": place["start"], **of_run}
            for number in range(len(cuts) - 1):
                slices = [_slice(run, cuts[number][r], cuts[number + 1][r]) for r, run in enumerate(runs)]
                shards.append(publish_shard(out, source, first + number, slices))
            first += len(cuts) - 1
    return shards, placed


def _run(records: tuple[Record, ...], source: str, file: int, tokenizer: Tokenizer) -> tuple[pa.Table, bytes]:
    kept = [r for r in records if (r.source, r.file) == (source, file) and r.status == "kept"]
    tokens = io.BytesIO()
    rows = write_run([r.doc_id for r in kept], [r.text for r in kept], tokenizer, SEED, tokens)
    return rows, tokens.getvalue()


def _slice(run: tuple[pa.Table, bytes], first: int, last: int) -> RunSlice:
    rows, tokens = run
    at, size = slice_bytes(rows, first, last)
    return RunSlice(rows=rows.slice(first, last - first), tokens=io.BytesIO(tokens[at : at + size]))


def _write_dedup(out: Folder, records: tuple[Record, ...], rows_of: dict[int, int], tamper: Tamper) -> list[PartFile]:
    files = []
    for source, file in _files(records):
        rows = [
            {
                "doc_id": r.doc_id,
                "source": source,
                "part": file,
                "part_row": rows_of[i],
                "num_chars": len(r.text),
                "url_key": url_key(r.url) if r.url else None,
                "clean_hash": text_hash(r.text),
                "signature": b"\0" * 8,
            }
            for i, r in enumerate(records)
            if (r.source, r.file) == (source, file) and r.status == "kept"
        ]
        name, data = part_name("dedup", source, file), _parquet(tamper("dedup", _table(rows, tables.DEDUP)))
        out.publish(name, data)
        files.append(PartFile(source=source, part=file, file=name, num_rows=len(rows), hash=content_hash(data).hex()))
    return files


def document_rows(
    records: tuple[Record, ...], rows_of: dict[int, int], placed: dict[bytes, dict[str, Any]]
) -> list[dict[str, Any]]:
    """The rows of `documents`."""
    return [
        {
            "k": sort_key(r.doc_id),
            "doc_id": r.doc_id,
            "source": r.source,
            "url": r.url,
            "host": r.url.split("/")[2] if r.url else None,
            "warc_file": file_name(r.source, r.file),
            "warc_offset": r.offset,
            "warc_length": 900,
            "record_id": f"<{r.offset}>",
            "raw_hash": text_hash(r.text + "raw"),
            "text_hash": text_hash(r.text),
            "clean_hash": text_hash(r.text) if r.survived else None,
            "num_chars": len(r.text),
            "language": "en",
            "language_score": 0.9,
            "status": r.status,
            "stage": r.stage,
            "rule": r.rule,
            "value": r.value,
            "threshold": r.threshold,
            "cluster_id": r.cluster_id,
            "duplicate_of": r.duplicate_of,
            "similarity": r.similarity,
            "part": r.file if r.survived else None,
            "part_row": rows_of.get(i),
            **(placed[r.doc_id] if r.status == "kept" else {}),
        }
        for i, r in enumerate(records)
    ]


def _write_store(out: Folder, given: dict[str, list[dict[str, Any]]], shards: list[Shard], tamper: Tamper) -> None:
    with Shuffle() as shuffle:
        for name, rows in given.items():
            table = tamper(name, _table(rows, tables.WRITTEN_ONCE[name]))
            add_rows(shuffle, name, table)
            if name == "documents":
                for index_name, derived in index_rows(table, url_key).items():
                    add_rows(shuffle, index_name, tamper(index_name, derived))
        for bucket, places in enumerate(placement_buckets((s.source, s.shard, s.num_documents) for s in shards)):
            of_bucket = [s for s in shards if (s.source, s.shard) in places]
            rows = pa.concat_tables([_placements(out, shard) for shard in of_bucket])
            add_rows(shuffle, "placements", tamper("placements", rows), bucket)
        commit_tables(out, write_tables(out, shuffle))


def _placements(out: Folder, shard: Shard) -> pa.Table:
    with out.open(shard.index_file) as file:
        rows = pq.read_table(file).to_pylist()
    return pa.Table.from_pylist(
        [{**row, "source": shard.source, "shard": shard.shard} for row in rows], schema=tables.PLACEMENTS
    )


def _small_tables(records: tuple[Record, ...]) -> dict[str, list[dict[str, Any]]]:
    steps, rules, inputs = [], [], []
    for source in sorted({record.source for record in records}):
        here = [r for r in records if r.source == source]
        for position, stage in enumerate(STAGES):
            gone = [r for r in here if r.stage == stage]
            left = [r for r in here if r.stage != stage]
            steps.append(
                {
                    "source": source,
                    "stage": stage,
                    "position": position,
                    "num_in": len(here),
                    "num_out": len(left),
                    "num_rejected": len(gone),
                    "digest_in": _digest(here),
                    "digest_out": _digest(left),
                    "digest_rejected": _digest(gone),
                }
            )
            for rule in sorted({str(r.rule) for r in gone}):
                by_rule = [r for r in gone if r.rule == rule]
                rules.append(
                    {"source": source, "stage": stage, "rule": rule, "num": len(by_rule), "digest": _digest(by_rule)}
                )
            here = left
    for source, file in _files(records):
        num = sum((r.source, r.file) == (source, file) for r in records)
        inputs.append(
            {
                "source": source,
                "file": file_name(source, file),
                "bytes": 12_345,
                "num_records": num + 1,
                "num_documents": num,
                "by_type": json.dumps({"response": num, "warcinfo": 1}),
                "by_mime": "{}",
                "by_status": "{}",
            }
        )
    unreadable = [{"source": "web", "file": file_name("web", 2), "offset": 99_000, "length": 17, "error": "cut"}]
    kept = [r for r in records if r.status == "kept"]
    edits = [
        {"k": sort_key(r.doc_id), "doc_id": r.doc_id, "stage": "pii", "kind": "email", "count": 1} for r in kept[::3]
    ]
    findings = [
        {
            "k": sort_key(r.doc_id),
            "doc_id": r.doc_id,
            "stage": "url",
            "rule": "url.too_long",
            "value": 10.0,
            "threshold": 100.0,
            "verdict": "keep",
        }
        for r in kept[::5]
    ]
    return {
        "steps": steps,
        "step_rules": rules,
        "inputs": inputs,
        "unreadable": unreadable,
        "edits": edits,
        "findings": findings,
    }


def _digest(records: Iterable[Record]) -> str:
    return show_digest(id_digest(record.doc_id for record in records))


def _excerpts(records: tuple[Record, ...]) -> list[dict[str, Any]]:
    return [
        {"doc_id": r.doc_id, "stage": r.stage, "rule": r.rule, "excerpt": r.text[:200]}
        for r in records
        if r.stage is not None and r.text
    ]


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
