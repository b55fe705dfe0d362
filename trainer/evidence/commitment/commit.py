"""`sluice commit`: count what a checkpoint has read, sort it by key, hash it, and publish the root.

Keys are sorted and summed by DuckDB on disk, and leaves hashed block by block, so that memory does not grow with their
number. The root is a function of what was read and of the run's secret, and of no number of workers or order of work.

    <output>/commitments/secret.json               made once for a run: blinds the values, and gives the key of its keys
    <output>/commitments/<checkpoint>/leaves.bin   sorted leaves, 56 bytes each (`tree.LEAF`)
    <output>/commitments/<checkpoint>/blocks.bin   the hash of every 1,024 of them
    <output>/commitments/<checkpoint>/commitment.json    the header, whose hash is the root; published last"""

from __future__ import annotations

import json
import secrets
import shlex
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import IO, Final, TypeVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.delta import arrow_dataset
from trainer.attempts import attempts, line_of_attempts
from trainer.checkpoint.store import Checkpoint
from trainer.evidence.commitment.keys import KEY_RULE, Kind, key_of, url_subject
from trainer.evidence.commitment.readings import ReadCheckpoint, ReadOutput, open_read, read_documents
from trainer.evidence.commitment.tree import BLOCK_LEAVES, LEAF, block_hashes, head_bits, root_of
from trainer.provenance.facts import FactLog, StartFact

FOLDER: Final = "commitments"
_SECRET: Final = f"{FOLDER}/secret.json"
_MEMORY: Final = "1GiB"
_ROWS: Final = 1 << 16
_LEAF_BYTES: Final = LEAF.itemsize
_BATCH_BYTES: Final = 16 * BLOCK_LEAVES * _LEAF_BYTES
Piece = TypeVar("Piece")
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """What a published root is the hash of. `tree`: the hash of the Merkle tree over `num_leaves` leaves; `key`: of the
    keyed hashes; `init_from`: the digest of the weights that the run began with, whose own readings are not covered;
    None where it began with random ones."""

    version: int
    run: str
    checkpoint: str
    step: int
    num_leaves: int
    head_bits: int
    key: str
    key_rule: str
    init_from: str | None
    tree: str

    @property
    def root(self) -> str:
        """What is published: the SHA-256 of all of it as canonical JSON, 64 hex digits."""
        return sha256(b"sluice commitment 1\0" + canonical(asdict(self))).hexdigest()


def canonical(row: object) -> bytes:
    """JSON in one form: sorted names, no blanks, ASCII."""
    return json.dumps(row, sort_keys=True, separators=(",", ":")).encode()


def commit_run(
    output: Folder, outs: Sequence[str] = (), checkpoint: Checkpoint | None = None, *, workers: int = 1
) -> Commitment:
    """Commit to what the newest checkpoint of a run has read, or this one, and publish that in the run's output;
    `outs`: where the outputs that it read lie now. `workers` processes hash keys and leaves. Errors as of `open_read`;
    DamagedFileError where lineage is damaged."""
    return found_again(open_read(output, outs, checkpoint), workers=workers, publish=True)


def commit_ended(output: Folder) -> str:
    """Commit a run that has ended, unless that is done; gives what to tell. What stands in the way is told and raises
    nothing: `sluice commit` makes up for it."""
    try:
        read = open_read(output)
        commitment = read_commitment(output, read.checkpoint.name)
        if commitment is None:
            commitment = found_again(read, publish=True)
    except (OSError, ValueError, duckdb.Error) as error:
        later = f"sluice commit {shlex.quote(output.url)} does it later"
        return f"warning: what the run has read is not committed: {error}; {later}"
    return f"commitment: root {commitment.root} over {commitment.num_leaves:,} leaves"


def found_again(read: ReadCheckpoint, *, workers: int = 1, publish: bool = False) -> Commitment:
    """The commitment of what a checkpoint has read, made of lineage; with `publish` its files are written.
    RecipeError where nothing is to be published and the run has no secret."""
    secret = _secret(read.output, is_made=publish)
    run_key = sha256(b"sluice run key 1\0" + secret).digest()
    with tempfile.TemporaryDirectory(prefix="sluice-commit-") as scratch, _executor(workers) as pool:
        leaves = Path(scratch) / "leaves.bin"
        num_leaves = _sorted_leaves(read, run_key, Path(scratch), leaves, pool)
        bits = head_bits(num_leaves)
        hashed = partial(block_hashes, secret=secret, bits=bits)
        hashes = [each for done in _in_order(hashed, _blocks(leaves), pool) for each in done]
        commitment = Commitment(
            version=1,
            run=read.run,
            checkpoint=read.checkpoint.name,
            step=read.checkpoint.step,
            num_leaves=num_leaves,
            head_bits=bits,
            key=run_key.hex(),
            key_rule=KEY_RULE,
            init_from=_init_from(read),
            tree=root_of(hashes).hex(),
        )
        if publish:
            _publish(read.output.folder(f"{FOLDER}/{commitment.checkpoint}"), commitment, leaves, hashes)
    return commitment


def read_commitment(output: Folder, checkpoint: str) -> Commitment | None:
    """The commitment of a checkpoint, None where none is published."""
    name = f"{FOLDER}/{checkpoint}/commitment.json"
    if not output.exists(name):
        return None
    row = json.loads(output.read(name))
    root = row.pop("root")
    commitment = Commitment(**row)
    if commitment.root != root:
        raise RecipeError(
            f"{output.at(name)} is damaged: its root is not that of what it says; commit the run again"
        )
    return commitment


def read_secret(output: Folder) -> bytes:
    """The secret of a run's commitments."""
    return _secret(output, is_made=False)


def _secret(output: Folder, *, is_made: bool) -> bytes:
    if is_made and not output.exists(_SECRET):
        output.publish_new(_SECRET, json.dumps({"secret": secrets.token_hex(32)}).encode())
    if not output.exists(_SECRET):
        raise RecipeError(
            f"{output.url} has no {_SECRET}: sluice commit {shlex.quote(output.url)} makes it and the commitment"
        )
    return bytes.fromhex(json.loads(output.read(_SECRET))["secret"])


def _init_from(read: ReadCheckpoint) -> str | None:
    line = line_of_attempts(attempts(read.output), read.checkpoint.attempt, read.checkpoint.step)
    first, _ = line[-1]
    facts = [fact for _, fact in FactLog(read.output).facts() if isinstance(fact, StartFact)]
    return next((fact.init_digest for fact in reversed(facts) if fact.attempt == first), None)


def _publish(folder: Folder, commitment: Commitment, leaves: Path, hashes: Sequence[bytes]) -> None:
    with folder.writing("leaves.bin") as target, leaves.open("rb") as made:
        while piece := made.read(_BATCH_BYTES):
            target.write(piece)
    folder.write("blocks.bin", b"".join(hashes))
    row = {**asdict(commitment), "root": commitment.root}
    folder.publish("commitment.json", json.dumps(row, indent=1).encode())


def _sorted_leaves(
    read: ReadCheckpoint, run_key: bytes, scratch: Path, leaves: Path, pool: ProcessPoolExecutor | None
) -> int:
    """Write the leaves of a checkpoint, sorted by key; gives their number."""
    keyed = scratch / "keyed.parquet"
    with pq.ParquetWriter(keyed, _KEYED) as writer:
        for each in read.outputs:
            for table in _in_order(partial(_keyed, run_key), _named(each, scratch), pool):
                writer.write_table(table)
    with _database(scratch) as database, leaves.open("wb") as file:
        rows = database.sql(
            "SELECT key, sum(readings)::UBIGINT, min(first_step)::UBIGINT, max(last_step)::UBIGINT"
            f" FROM read_parquet('{keyed}') GROUP BY key ORDER BY key"
        ).to_arrow_reader(_ROWS)
        return sum(_write_leaves(batch, file) for batch in rows)


_KEYED: Final = pa.schema([
    ("key", pa.binary(32)), ("readings", pa.int64()), ("first_step", pa.int64()), ("last_step", pa.int64()),
])  # fmt: skip


def _named(read: ReadOutput, scratch: Path) -> Iterator[pa.RecordBatch]:
    """The URL, domain, hash of the clean text and readings of each document that was read."""
    pieces = scratch / "readings.parquet"
    with pq.ParquetWriter(pieces, pa.schema([*_PIECE])) as writer:
        for table in read_documents(read):
            writer.write_table(table.select(_PIECE.names))
    with _database(scratch) as database:
        database.register("documents", arrow_dataset(read.out, "documents"))
        yield from database.sql(
            "SELECT url, domain, clean_hash, readings, first_step, last_step FROM documents"
            f" JOIN read_parquet('{pieces}') USING (doc_id) WHERE status = 'kept'"
        ).to_arrow_reader(_ROWS)


_PIECE: Final = pa.schema([
    ("doc_id", pa.binary()), ("readings", pa.int64()), ("first_step", pa.int64()), ("last_step", pa.int64()),
])  # fmt: skip


def _keyed(run_key: bytes, batch: pa.RecordBatch) -> pa.Table:
    """A row for each key of each document."""
    names: list[tuple[Kind, list[str | None]]] = [
        ("url", [None if url is None else url_subject(url) for url in batch["url"].to_pylist()]),
        ("domain", batch["domain"].to_pylist()),
        ("text", [None if each is None else each.hex() for each in batch["clean_hash"].to_pylist()]),
    ]
    keys = [
        None if subject is None else key_of(run_key, kind, subject)
        for kind, subjects in names
        for subject in subjects
    ]
    values = pa.Table.from_batches([batch.select(_KEYED.names[1:])] * len(names))
    table = pa.table([pa.array(keys, pa.binary(32)), *values.columns], schema=_KEYED)
    return table.filter(table["key"].is_valid())


def _write_leaves(batch: pa.RecordBatch, file: IO[bytes]) -> int:
    rows = np.empty(batch.num_rows, LEAF)
    rows["key"] = np.frombuffer(b"".join(batch.column(0).to_pylist()), "V32")
    for column, name in enumerate(LEAF.names[1:] if LEAF.names else (), 1):
        rows[name] = batch.column(column).to_numpy()
    file.write(rows.tobytes())
    return int(batch.num_rows)


def _blocks(leaves: Path) -> Iterator[list[bytes]]:
    """Blocks of stored leaves, some at a time."""
    size = BLOCK_LEAVES * _LEAF_BYTES
    with leaves.open("rb") as file:
        while piece := file.read(_BATCH_BYTES):
            yield [piece[at : at + size] for at in range(0, len(piece), size)]


def _database(scratch: Path) -> duckdb.DuckDBPyConnection:
    database = duckdb.connect(":memory:")
    database.execute(f"SET memory_limit = '{_MEMORY}'")
    database.execute(f"SET temp_directory = '{scratch}'")
    database.execute("SET preserve_insertion_order = false")
    return database


class _NoExecutor:
    """In place of a pool: this process does the work."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *raised: object) -> None:
        return None


def _executor(workers: int) -> ProcessPoolExecutor | _NoExecutor:
    return ProcessPoolExecutor(workers, get_context("spawn")) if workers > 1 else _NoExecutor()


def _in_order(
    work: Callable[[Piece], Done], pieces: Iterable[Piece], pool: ProcessPoolExecutor | None
) -> Iterator[Done]:
    """`work` of each piece in their order; a pool is given a few at a time."""
    if pool is None:
        yield from map(work, pieces)
        return
    waiting: deque[Future[Done]] = deque()
    for piece in pieces:
        waiting.append(pool.submit(work, piece))
        if len(waiting) > 8:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
