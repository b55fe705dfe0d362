"""What a commitment and its proofs cost, at sizes given by the number of documents: the time and memory of the tree
beside a plain loop that hashes each key once, then size, time and truth of proofs.

Documents are synthetic (`benchmarks.store`), each with a URL and a text of its own and 30 to a domain; a made-up run
has read one and a half epochs of them. Proofs of 1,000 URLs, domains and texts, half of them present, are compared with
what tracing says of each document alone, and checked by deploy/verify_proof.py.

    python -m benchmarks.proofs --documents 5000000
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import store
from lineage.index.output_index import Index, Shard, TokenizerIdentity, make_index, read_index
from lineage.storage.folder import Folder
from lineage.store.delta import arrow_dataset
from lineage.store.rows import ShardSpan
from lineage.trace.exposure import AppliedStretch
from trainer.checkpoint.store import Checkpoint
from trainer.evidence.commitment.commit import found_again
from trainer.evidence.commitment.keys import KINDS
from trainer.evidence.commitment.prove import proof_bytes, prove
from trainer.evidence.commitment.readings import ReadCheckpoint, ReadOutput
from trainer.order import OrderOptions, OrderPlan, plan_order
from trainer.provenance.exposure import find_readings
from trainer.provenance.facts import claim_output

SEQ_LEN, GLOBAL_BATCH, STEP = 4096, 512, 0
CHECKER = Path(__file__).resolve().parents[1] / "deploy" / "verify_proof.py"


class _Shards(store.NoContents):
    """The index of a store whose every document is kept, with its shards' lengths."""

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}

    def take(self, piece: pa.Table) -> pa.Table:
        for shard, size in zip(piece["shard"].to_pylist(), piece["num_tokens"].to_pylist(), strict=True):
            self._tokens[shard] = self._tokens.get(shard, 0) + size
        return piece

    def index(self) -> Index:
        none = TokenizerIdentity(name="synthetic", hash="", vocab_size=1, eot_id=0)
        return make_index(none, [_shard(*each) for each in self._tokens.items()], documents=(), dedup=())


def _shard(number: int, num_tokens: int) -> Shard:
    return Shard(
        source="web",
        shard=number,
        num_tokens=num_tokens,
        num_documents=0,
        file=f"{number}",
        blocks_file=f"{number}.blocks",
        index_file=f"{number}.parquet",
        hash="",
        blocks_hash="",
        index_hash="",
    )


def _plan(out: Folder) -> tuple[OrderPlan, int]:
    """The order over a store, and the steps of one and a half epochs of it."""
    lengths = {"web": [shard.num_tokens for shard in read_index(out).shards]}
    plan = plan_order(lengths, OrderOptions(seed=1, seq_len=SEQ_LEN, global_batch=GLOBAL_BATCH))
    return plan, 3 * sum(lengths["web"]) // (2 * SEQ_LEN * GLOBAL_BATCH)


def _read(out: Folder, output: Folder) -> ReadCheckpoint:
    """What the made-up run has read."""
    plan, steps = _plan(out)
    stretch = AppliedStretch(
        plan=plan.to_json(),
        prefix="",
        content_fingerprint="",
        first_step=0,
        end_step=steps,
        skipped=frozenset(),
    )
    read = ReadOutput(out=out, index=read_index(out), stretches=(stretch,), erased_in={})
    checkpoint = Checkpoint(name=f"step-{STEP:08d}.attempt-1", step=STEP, attempt=1)
    return ReadCheckpoint(output=output, run="made up", checkpoint=checkpoint, outputs=(read,))


def commit(out: str, output: str, workers: int) -> None:
    """Commit in this process, and print what that took."""
    began = time.monotonic()
    commitment = found_again(_read(Folder(out), Folder(output)), workers=workers, publish=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    figures = {"seconds": time.monotonic() - began, "mb": peak, "processor": time.process_time()}
    print(json.dumps({"root": commitment.root, "num_leaves": commitment.num_leaves, **figures}))


def hashed_once(out: str) -> float:
    """Seconds of a plain loop over the documents that hashes a URL, a domain and a text of each."""
    began = time.monotonic()
    for table in arrow_dataset(Folder(out), "documents").tables(["url", "domain", "clean_hash"]):
        for column in table.columns:
            for value in column.to_pylist():
                sha256(value if isinstance(value, bytes) else value.encode()).digest()
    return time.monotonic() - began


def check_proofs(out: Folder, output: Folder, root: str, num: int) -> None:
    """Proofs of `num` subjects of each kind, half of them present, against tracing; prints size, time and faults."""
    verify = runpy.run_path(str(CHECKER))["verify"]
    chance = random.Random(3)
    plan, steps = _plan(out)
    table = next(
        iter(arrow_dataset(out, "documents").tables(["url", "domain", "clean_hash", "shard", "start"]))
    )
    rows = table.take(chance.sample(range(table.num_rows), num // 2)).to_pylist()
    of_domain = {row["domain"]: [0, steps, 0] for row in rows}
    domains = pa.array(list(of_domain))
    for piece in arrow_dataset(out, "documents").tables(["domain", "shard", "start"]):
        for row in piece.filter(pc.is_in(piece["domain"], domains)).to_pylist():
            found = of_domain[row["domain"]]
            number, first, last = _traced(plan, steps, row)
            found[:] = [found[0] + number, min(found[1], first), max(found[2], last)]
    sizes, proving, checking, wrong = [], [], [], 0
    for kind in KINDS:
        for row in rows:
            subject = row["clean_hash"].hex() if kind == "text" else row[kind]
            expected = of_domain[row["domain"]] if kind == "domain" else _traced(plan, steps, row)
            for name, values in ((subject, expected), (f"{subject}x", None)):
                began = time.process_time()
                proof = prove(output, kind, [name], STEP)
                proved = time.process_time()
                data = proof_bytes(proof)
                verify(root, data)
                checking.append(time.process_time() - proved)
                proving.append(proved - began)
                sizes.append(len(data))
                wrong += (proof.leaf and [*proof.leaf]) != (values and [*values])
    print(
        f"{len(sizes):,} proofs, {wrong} wrong; bytes: median {statistics.median(sizes):,.0f}, most {max(sizes):,};"
        f" to prove {1e3 * statistics.median(proving):.1f} ms; to check {1e3 * statistics.median(checking):.2f} ms,"
        f" most {1e3 * max(checking):.2f} ms of processor time"
    )


def _traced(plan: OrderPlan, steps: int, row: dict[str, int]) -> tuple[int, int, int]:
    span = ShardSpan("web", row["shard"], row["start"], store.TOKENS_A_DOCUMENT)
    read = [
        each.sequence // GLOBAL_BATCH for each in find_readings(plan.to_json(), span, steps * GLOBAL_BATCH)
    ]
    return len(read), min(read), max(read)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=1_000_000, help="each gives two keys of its own")
    parser.add_argument("--proofs", type=int, default=1000, help="of each kind, half of them present")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--commit", nargs=3, metavar=("OUT", "OUTPUT", "WORKERS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.commit:
        commit(options.commit[0], options.commit[1], int(options.commit[2]))
        return 0
    store.KEPT = 1.0
    with tempfile.TemporaryDirectory(prefix="sluice-proofs-") as scratch:
        out, output = Folder(f"{scratch}/out"), Folder(f"{scratch}/run")
        store.build(out, options.documents, scratch, _Shards())
        claim_output("made up", output)
        bound = hashed_once(out.url)
        roots = set()
        for workers in options.workers:
            call = [sys.executable, "-m", "benchmarks.proofs", "--commit", out.url, output.url, str(workers)]
            made = json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)
            roots.add(made["root"])
            print(
                f"{made['num_leaves']:,} leaves, {workers} workers: {made['seconds']:.0f} s,"
                f" {made['seconds'] / bound:.1f} times the plain loop's {bound:.0f} s; most memory {made['mb']:,} MB"
            )
        print(f"roots: {len(roots)} different")
        check_proofs(out, output, roots.pop(), options.proofs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
