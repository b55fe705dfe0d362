"""How long the lineage store takes to answer, and how that grows: synthetic stores of several sizes, side by
side.

Each question is asked by a fresh process (interpreter start, imports and all), in turns between the sizes,
and medians are told beside a bound: a process that makes the same imports and asks nothing.

    python -m benchmarks.store --rows 1000000 10000000
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from lineage.ids import sort_keys
from lineage.index.output_index import Index, TokenizerIdentity, make_index, publish_index
from lineage.purge.plan import PlanHooks, PurgeMatch, plan_purge
from lineage.storage.folder import Folder
from lineage.store.checksum_update import cover_output
from lineage.store.delta import append, commit_tables, state
from lineage.store.shuffle import Shuffle
from lineage.store.tables import SCHEMAS
from lineage.store.write import (
    TableFile,
    add_documents,
    add_rows,
    placement_buckets,
    table_pieces,
    write_bucket,
    write_tables,
)

PIECE = 250_000
DOCUMENTS_A_SHARD = 300_000
TOKENS_A_DOCUMENT = 800
RULES = (
    "gopher_quality.too_few_words",
    "gopher_repetition.top_2_gram",
    "language.not_kept",
    "url.blocked_host",
)
KEPT = 0.3
PURGED_AT_ONCE = 1000

ASK = """
import sys, time
from lineage.storage.folder import Folder
from lineage.trace.tracer import Functions, Tracer
out, kind, name = sys.argv[1:4]
if kind != "nothing":
    ask = Tracer(Folder(out), Functions())
    if kind == "id":
        told = [ask.by_id(bytes.fromhex(name))]
    elif kind == "url":
        told = ask.by_url(name)
    elif kind == "hash":
        told = ask.by_hash(bytes.fromhex(name))
    elif kind == "host":
        told = ask.by_host(name, 20)[0]
    elif kind == "warc":
        file, offset = name.split()
        told = ask.by_place(file, int(offset))
    else:
        shard, token = name.split()
        told = ask.by_token("web", int(shard), int(token))
    assert told and told[0].as_json()
print(time.process_time(), next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""

SQL = """
import sys, time
from lineage.store.queries.sql import query
from lineage.storage.folder import Folder
assert query(Folder(sys.argv[1]), "SELECT rule, count(*) FROM documents WHERE status = 'rejected' GROUP BY rule").rows
print(time.process_time(), next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def synthetic(first: int, num: int, kept_before: int, rows: int) -> pa.Table:
    """Documents `first` to `first + num` of `rows`: random ids and hashes, 30 to a host in no order of time;
    30% are kept in shards of 300,000, the others rejected."""
    rng = np.random.default_rng([rows, first])
    number = np.arange(first, first + num)
    kept = rng.random(num) < KEPT
    place = kept_before + np.cumsum(kept) - 1
    hosts = [f"host-{n}.example" for n in (number * 2_654_435_761 % rows // 30).tolist()]
    ids = _hashes(rng, num)
    columns: dict[str, object] = {
        "k": sort_keys(ids),
        "doc_id": pa.array(ids, pa.binary()),
        "source": ["web"] * num,
        "url": [
            f"https://{host}/articles/{n}/a-title" for host, n in zip(hosts, number.tolist(), strict=True)
        ],
        "host": hosts,
        "domain": hosts,
        "warc_file": [f"segments/crawl-{n // 50_000:05d}.warc.gz" for n in number.tolist()],
        "warc_offset": number % 50_000 * 24_000,
        "warc_length": rng.integers(5_000, 40_000, num),
        "record_id": [f"<urn:uuid:{value.hex()}>" for value in _hashes(rng, num)],
        "captured_at": ["2026-01-02T03:04:05Z"] * num,
        "charset": ["utf-8"] * num,
        "raw_hash": pa.array(_hashes(rng, num), pa.binary()),
        "text_hash": pa.array(_hashes(rng, num), pa.binary()),
        "num_chars": rng.integers(200, 9_000, num),
        "language": ["en"] * num,
        "language_score": np.round(rng.random(num), 4),
        "status": np.where(kept, "kept", "rejected"),
    }
    of_rejected = {
        "stage": ["quality"] * num,
        "rule": np.array(RULES)[rng.integers(0, len(RULES), num)],
        "value": rng.random(num),
        "threshold": np.full(num, 0.5),
    }
    of_kept = {
        "clean_hash": _hashes(rng, num),
        "tokens_hash": _hashes(rng, num),
        "part": number // 50_000,
        "part_row": number % 50_000,
        "shard": place // DOCUMENTS_A_SHARD,
        "start": place % DOCUMENTS_A_SHARD * TOKENS_A_DOCUMENT,
        "num_tokens": np.full(num, TOKENS_A_DOCUMENT),
    }
    columns |= {
        name: pa.array(values, SCHEMAS["documents"].field(name).type, mask=kept)
        for name, values in of_rejected.items()
    }
    columns |= {
        name: pa.array(values, SCHEMAS["documents"].field(name).type, mask=~kept)
        for name, values in of_kept.items()
    }
    return pa.table(
        {
            name: columns.get(name, pa.nulls(num, SCHEMAS["documents"].field(name).type))
            for name in SCHEMAS["documents"].names
        }
    )


def _hashes(rng: np.random.Generator, num: int) -> list[bytes]:
    raw = rng.bytes(16 * num)
    return [raw[at : at + 16] for at in range(0, len(raw), 16)]


class Contents(Protocol):
    """What an output has besides its store, made with the store's rows."""

    def take(self, piece: pa.Table) -> pa.Table:
        """The next rows of `documents` as they are to be recorded: of the same documents in the same order."""

    def index(self) -> Index:
        """The index, when every row was taken."""


class NoContents:
    """A store alone: no text, no shard."""

    def take(self, piece: pa.Table) -> pa.Table:
        return piece

    def index(self) -> Index:
        none = TokenizerIdentity(name="synthetic", hash="", vocab_size=1, eot_id=0)
        return make_index(none, shards=(), documents=(), dedup=())


def build(out: Folder, rows: int, scratch: str, contents: Contents | None = None) -> list[dict[str, object]]:
    """Make a store of `rows` documents below `out`; gives some of its rows to ask about."""
    contents = contents or NoContents()
    samples: list[dict[str, object]] = []
    kept_before = 0
    placed: list[pa.Table] = []
    expected = dict.fromkeys(("documents", "url_index", "domain_index", "warc_index"), rows)
    expected |= {"hash_index": 4 * rows, "edits": rows // 10}
    with Shuffle(table_pieces(expected), scratch=scratch) as shuffle:
        for first in range(0, rows, PIECE):
            piece = contents.take(synthetic(first, min(PIECE, rows - first), kept_before, rows))
            add_documents(shuffle, piece)
            kept = piece.filter(pa.compute.equal(piece["status"], "kept"))
            kept_before += kept.num_rows
            placed.append(kept.select(SCHEMAS["placements"].names))
            edited = piece.slice(0, piece.num_rows // 10).select(["k", "doc_id"])
            add_rows(shuffle, "edits", edited.append_column("kind", pa.array(["email"] * edited.num_rows)))
            wanted = -(-PURGED_AT_ONCE * PIECE // rows)
            samples.extend(kept.take(np.linspace(0, kept.num_rows - 1, wanted).astype(int)).to_pylist())
        counts = {"num_in": [rows], "num_out": [kept_before], "num_rejected": [rows - kept_before]}
        add_rows(
            shuffle, "steps", pa.table({"source": ["web"], "stage": ["quality"], "position": [0]} | counts)
        )
        files = write_tables(out, shuffle)
    files["placements"] += _write_placements(out, placed)
    commit_tables(out, files)
    index = contents.index()
    cover_output(out, index)
    publish_index(out, index)
    return samples


def _write_placements(out: Folder, placed: list[pa.Table]) -> list[TableFile]:
    everything = pa.concat_tables(placed)
    shards = everything["shard"].to_numpy()
    counts = np.bincount(shards).tolist()
    files: list[TableFile] = []
    for bucket, places in enumerate(
        placement_buckets(("web", shard, num) for shard, num in enumerate(counts))
    ):
        low, high = places[0][1], places[-1][1]
        rows = everything.filter(pa.array((shards >= low) & (shards <= high)))
        files += write_bucket(out, "placements", bucket, [rows])
    return files


def questions(row: dict[str, object]) -> dict[str, str]:
    """The name of one document in each direction."""
    assert isinstance(row["start"], int)
    doc_id, clean_hash = row["doc_id"], row["clean_hash"]
    assert isinstance(doc_id, bytes) and isinstance(clean_hash, bytes)
    return {
        "nothing": "-",
        "id": doc_id.hex(),
        "url": str(row["url"]),
        "hash": clean_hash.hex(),
        "host": str(row["host"]),
        "warc": f"{row['warc_file']} {row['warc_offset']}",
        "token": f"{row['shard']} {row['start'] + 7}",
    }


@dataclass(frozen=True, slots=True)
class Cost:
    """What a fresh process took: seconds by the clock, seconds of processor, most MB of memory."""

    seconds: float
    processor: float
    mb: float


def ask(script: str, *arguments: str) -> Cost:
    """The cost of a fresh process that runs `script`."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
    )
    took = time.perf_counter() - began
    processor, kib = done.stdout.split()[-2:]
    return Cost(took, float(processor), int(kib) / 1024)


def measure(stores: dict[int, tuple[Folder, list[dict[str, object]]]], rounds: int) -> dict[str, object]:
    """Medians of each question at each size, sizes taking turns."""
    costs: dict[str, dict[int, list[Cost]]] = {}
    for turn in range(rounds):
        for rows, (out, samples) in stores.items():
            named = questions(samples[turn * 7 % len(samples)])
            asked = {kind: [ASK, out.url, kind, name] for kind, name in named.items()}
            asked["group-by of rejections (SQL)"] = [SQL, out.url]
            for kind, arguments in asked.items():
                costs.setdefault(kind, {}).setdefault(rows, []).append(ask(*arguments))
    return {kind: _summary(by_rows) for kind, by_rows in costs.items()}


def _summary(by_rows: dict[int, list[Cost]]) -> dict[str, object]:
    seconds = {rows: statistics.median(cost.seconds for cost in costs) for rows, costs in by_rows.items()}
    processor = {rows: statistics.median(cost.processor for cost in costs) for rows, costs in by_rows.items()}
    least, most = min(by_rows), max(by_rows)
    return {
        "seconds": {rows: round(value, 3) for rows, value in seconds.items()},
        "seconds_growth": round(seconds[most] / seconds[least], 2),
        "processor_seconds": {rows: round(value, 3) for rows, value in processor.items()},
        "processor_growth": round(processor[most] / processor[least], 2),
        "peak_mb": {rows: round(max(cost.mb for cost in costs)) for rows, costs in by_rows.items()},
    }


def purge(out: Folder, samples: list[dict[str, object]]) -> dict[str, float]:
    """Seconds to plan a purge of documents that lie all over the store, and to record it there. (What it does
    to shards and texts hangs on their number and not on the store's size.)"""
    chosen = samples[:PURGED_AT_ONCE]
    rows = [row | {"purge_id": "p", "role": "target"} for row in chosen]
    purged = pa.Table.from_pylist(
        [{name: row.get(name) for name in SCHEMAS["purged"].names} for row in rows],
        schema=SCHEMAS["purged"],
    )
    match = PurgeMatch(
        kind="doc", values=tuple(row["doc_id"].hex() for row in chosen if isinstance(row["doc_id"], bytes))
    )
    hooks = PlanHooks(resembles=lambda left, right: False)
    began = time.perf_counter()
    assert plan_purge(out, match, hooks).num_documents == PURGED_AT_ONCE
    planned = time.perf_counter()
    append(out, "purged", purged, "p")
    return {"plan": round(planned - began, 3), "record": round(time.perf_counter() - planned, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[1_000_000, 10_000_000], help="sizes to compare"
    )
    parser.add_argument("--rounds", type=int, default=7, help="fresh processes for each question and size")
    parser.add_argument(
        "--scratch", type=Path, help="where the stores go for the time of the run (the temporary folder)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir=options.scratch) as scratch:
        compare(Path(scratch), options.rows, options.rounds)


def compare(scratch: Path, sizes: list[int], rounds: int) -> None:
    """Build the stores, ask them in turn, and print what that took."""
    stores, built = {}, {}
    for rows in sizes:
        out = Folder(str(scratch / str(rows)))
        began = time.perf_counter()
        stores[rows] = (out, build(out, rows, str(scratch)))
        size = sum(out.size(name) for name in out.names())
        files = {
            name: len(state(out, name).files)
            for name in ("documents", "hash_index", "url_index", "placements")
        }
        built[rows] = {
            "seconds": round(time.perf_counter() - began),
            "mb": round(size / 2**20),
            "files": files,
        }
        print(f"{rows:,} documents: {built[rows]}", file=sys.stderr)
    answers = measure(stores, rounds)
    purges = {rows: purge(out, samples) for rows, (out, samples) in stores.items()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    told = {
        "built": built,
        "builder_peak_mb": peak,
        "questions": answers,
        f"purge_of_{PURGED_AT_ONCE}": purges,
    }
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
