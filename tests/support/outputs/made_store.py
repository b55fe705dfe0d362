"""A small store with everything in it, for tests: documents of every status, a cluster, two shards, a purge,
a run."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pyarrow as pa

from lineage.ids import content_hash, sort_key, text_hash
from lineage.storage.folder import Folder
from lineage.store import tables
from lineage.store.column_names import added_columns
from lineage.store.delta import append, append_run, commit_tables
from lineage.store.rows import ShardSpan
from lineage.store.shuffle import Shuffle
from lineage.store.write import add_documents, add_rows, table_pieces, write_tables
from lineage.trace.exposure import Reading

NUM = 60
TOKENS = 100


def doc_id(number: int) -> bytes:
    """The id of the made document `number`."""
    return content_hash(f"document {number}".encode())


def document(number: int) -> dict[str, object]:
    """Document `number`: every third is rejected, every tenth repeats document 1, the others are kept in two
    shards."""
    row: dict[str, object] = {
        "k": sort_key(doc_id(number)),
        "doc_id": doc_id(number),
        "source": "web",
        "url": f"https://host{number % 4}.example/page/{number}",
        "host": f"host{number % 4}.example",
        "domain": f"host{number % 4}.example",
        "warc_file": f"crawl-{number % 2}.warc.gz",
        "warc_offset": number * 1000,
        "warc_length": 900,
        "record_id": f"<urn:uuid:{number}>",
        "captured_at": "2026-01-02T03:04:05Z",
        "charset": "utf-8",
        "raw_hash": content_hash(f"raw {number}".encode()),
        "text_hash": text_hash(f"text {number}"),
        "language": "en",
        "language_score": 0.9,
    }
    if number % 3 == 0:
        row |= {
            "status": "rejected",
            "stage": "quality",
            "rule": "gopher_quality.too_few_words",
            "value": 12.0,
            "threshold": 50.0,
        }
    elif number % 10 == 0:
        row |= {
            "status": "duplicate",
            "stage": "dedup.near",
            "rule": "dedup.near",
            "value": 0.9,
            "threshold": 0.8,
            "cluster_id": doc_id(1),
            "duplicate_of": doc_id(1),
            "similarity": 0.9,
            "part": 0,
            "part_row": number,
            "clean_hash": text_hash(f"clean {number}"),
            "num_chars": 300,
        }
    else:
        place = sum(1 for other in range(number) if is_kept(other))
        row |= {
            "status": "kept",
            "part": 0,
            "part_row": number,
            "clean_hash": text_hash(f"clean {number}"),
            "num_chars": 300,
            "shard": place // 20,
            "start": place % 20 * TOKENS,
            "num_tokens": TOKENS,
            "tokens_hash": content_hash(f"tokens {number}".encode()),
        }
        if number == 1:
            row["cluster_id"] = doc_id(1)
    return row


def is_kept(number: int) -> bool:
    """Whether document `number` is in a shard."""
    return number % 3 != 0 and number % 10 != 0


def table_of(name: str, rows: list[dict[str, object]]) -> pa.Table:
    """Rows of a table of the store, missing columns null."""
    schema = tables.SCHEMAS[name]
    return pa.Table.from_pylist(
        [{column: row.get(column) for column in schema.names} for row in rows], schema=schema
    )


def documents_table(numbers: range | list[int] = range(NUM)) -> pa.Table:
    """The made documents, in the order given."""
    return table_of("documents", [document(number) for number in numbers])


def make_store(out: Folder, documents: pa.Table | None = None) -> None:
    """Write the made store below `out`, as a run does."""
    documents = documents_table() if documents is None else documents
    kept = documents.filter(pa.compute.equal(documents["status"], "kept")).sort_by(
        [("shard", "ascending"), ("start", "ascending")]
    )
    edited = [
        {"k": sort_key(doc_id(n)), "doc_id": doc_id(n), "stage": "pii", "kind": "email", "count": n}
        for n in (1, 2)
    ]
    steps = [
        {
            "source": "web",
            "stage": stage,
            "position": position,
            "num_in": NUM,
            "num_out": NUM,
            "num_rejected": 0,
        }
        for position, stage in enumerate(("url", "parse", "quality", "pii", "identity", "dedup.near"))
    ]
    num = documents.num_rows
    pieces = table_pieces({"documents": num, "url_index": num, "warc_index": num, "hash_index": 4 * num})
    with Shuffle(pieces) as shuffle:
        add_documents(shuffle, documents)
        add_rows(shuffle, "placements", kept.select(tables.SCHEMAS["placements"].names))
        add_rows(shuffle, "edits", table_of("edits", edited))
        add_rows(shuffle, "steps", table_of("steps", steps))
        add_rows(
            shuffle,
            "inputs",
            table_of("inputs", [{"source": "web", "file": out.at("in.warc"), "num_records": NUM}]),
        )
        commit_tables(out, write_tables(out, shuffle), added=added_columns(documents.column_names))


def purge_rows(purge_id: str, numbers: list[int], before: str, after: str) -> tuple[pa.Table, pa.Table]:
    """Rows of `purged` and of `purges` for a purge of these documents."""
    purged = [{**document(n), "purge_id": purge_id, "role": "target"} for n in numbers]
    purge = {
        "purge_id": purge_id,
        "at": "2026-02-03T04:05:06Z",
        "by": "Ada",
        "reason": "asked to",
        "match": "{}",
        "num_documents": len(numbers),
        "num_tokens": TOKENS * len(numbers),
        "content_fingerprint_before": before,
        "content_fingerprint_after": after,
    }
    return table_of("purged", purged), table_of("purges", [purge])


def purge(out: Folder, purge_id: str, numbers: list[int], before: str, after: str) -> None:
    """Record a purge, as `sluice purge --apply` does."""
    purged, purges = purge_rows(purge_id, numbers, before, after)
    append(out, "purged", purged, purge_id)
    append(out, "purges", purges, purge_id)


def run_row(run: str = "first", output: str = "/runs/first", plan: str = "plan-a") -> pa.Table:
    """A row of training_runs; the plan of a made run is the prefix-less arithmetic order of
    `ArithmeticOrder`."""
    return table_of(
        "training_runs",
        [
            {
                "run": run,
                "output": output,
                "plan_fingerprint": plan,
                "order_version": 1,
                "seed": 0,
                "seq_len": 50,
                "global_batch": 4,
                "plan": json.dumps({"name": plan}),
            }
        ],
    )


def segment_row(attempt: int, first: int, last: int, **more: object) -> dict[str, object]:
    """A row of training_segments."""
    row = {
        "run": "first",
        "attempt": attempt,
        "parent_attempt": None,
        "content_fingerprint": "f0",
        "first_step": first,
        "last_step": last,
        "skipped_steps": "[]",
        "fact": 0,
        "prefix": "main/",
    }
    return row | more


def train(out: Folder, *segments: dict[str, object]) -> None:
    """Record a run and its stretches."""
    append_run(out, run_row())
    for number, segment in enumerate(segments):
        append(out, "training_segments", table_of("training_segments", [segment]), f"first:{number}")


@dataclass(frozen=True)
class ArithmeticOrder:
    """An order simple enough to check by hand: shard 0 then shard 1, 50 tokens a sequence, epoch after
    epoch."""

    seq_len: int = 50
    per_shard: int = 40

    def find(self, plan: str, span: ShardSpan, up_to: int) -> list[Reading]:
        """The sequences below `up_to` that read any of `span`."""
        assert span.source == "main/web", span
        readings = []
        for number in range(up_to):
            there = self.locate(plan, [number])[0]
            first, last = (
                max(span.start, there.start),
                min(span.start + span.num_tokens, there.start + self.seq_len),
            )
            if there.shard == span.shard and first < last:
                readings.append(
                    Reading(number, number // (2 * self.per_shard), first - there.start, last - first)
                )
        return readings

    def locate(self, plan: str, sequences: list[int]) -> list[ShardSpan]:
        """Where sequences lie."""
        places = []
        for number in sequences:
            shard, within = divmod(number % (2 * self.per_shard), self.per_shard)
            places.append(ShardSpan("main/web", shard, within * self.seq_len, self.seq_len))
        return places
