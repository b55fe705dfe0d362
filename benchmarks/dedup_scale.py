"""Deduplication of up to millions of synthetic documents: time, memory, disk, and what is found of what was
planted.

    python -m benchmarks.dedup_scale --documents 1000000 10000000 [--engines local ray_data] [--longer 43]
        [--rounds-above 100000] [--peer 100000 [--rensa-python PYTHON]]

A tenth of the documents stand in planted clusters: a base text of 24 words, exact copies of it, and copies
whose last k words are others, so that k of 20 shingles differ and the Jaccard similarity is (20 - k) / (20 +
k): .905, .818, .739 and .667 for k of 1 to 4. Their signatures are those of their texts. The others resemble
nothing: their signatures are random numbers, and they have no text, for none is compared. Members of a
cluster lie in different files. `--longer 43` makes the planted texts as long as a web page, 864 words, with
the same similarities; `--rounds-above 100000` finds components by rounds above so many edges, instead of the
default.

For each size and engine, in a process of its own: wall and processor time by phase, peak memory of all its
processes, peak of temporary disk, and by Jaccard how many of the planted pairs at or above the threshold of
.8 became near edges (recall, beside what the bands promise), and how many edges were planted (precision).
`--peer N`: datatrove's MinHash stages on N documents of the same kind, each with a text of its own, beside
ours on the same texts, and beside rensa's index in memory where `--rensa-python` names an interpreter that
has it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.dedup import job_of, phases, unit_of, write_corpus, write_unit
from benchmarks.support.measure import measure
from lineage.ids import text_hash
from lineage.storage.folder import Folder
from lineage.store.tables import KEYS, PART
from pipeline.cluster.session import ray_session
from pipeline.dedup.corpus import IN_PROCESS_ROWS, DedupJob, deduplicate
from pipeline.dedup.exchange import Engine, InPhases, InProcess
from pipeline.dedup.inputs import locators
from pipeline.phases.phase import RunState
from pipeline.phases.progress import ProgressReporter
from pipeline.plan import RunPlan
from pipeline.recipe.tables import PipelineRecipe, RunTable, SourceTable
from pipeline.results.rows import read_rows
from stages.dedup.bands import I64
from stages.dedup.minhash import Signer
from stages.dedup.options import DedupTable

SHINGLES: Final = 20
"""Of a planted text, times `longer`."""
PLANTED_SHARE: Final = 0.1
DOCUMENTS_A_FILE: Final = 100_000
CLUSTERS: Final = ((0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 1, 2, 3))
"""The planted clusters, again and again: how many of the last words of each member are others than the
base's."""
_SIZES: Final = tuple(map(len, CLUSTERS))
_STARTS: Final = np.cumsum((0, *_SIZES))


class Plan:
    """Which documents of a corpus are members of which cluster: member m lies in file m mod num_files, and
    there in row (m div num_files) * stride."""

    def __init__(self, num_documents: int, longer: int = 1) -> None:
        self.num_documents, self.longer = num_documents, longer
        self.num_words = SHINGLES * longer + DedupTable().shingle - 1
        self.num_files = max(4, math.ceil(num_documents / DOCUMENTS_A_FILE))
        self.num_members = int(num_documents * PLANTED_SHARE) // int(_STARTS[-1]) * int(_STARTS[-1])
        self.stride = int(1 / PLANTED_SHARE)

    def num_rows(self, file: int) -> int:
        return len(range(file, self.num_documents, self.num_files))

    def members(self, file: int) -> range:
        """The members that lie in a file, in order of row."""
        return range(file, self.num_members, self.num_files)

    def member_of(self, nodes: I64) -> I64:
        """The member that each node is, -1 for none."""
        _, file, row = locators(nodes)
        member = row // self.stride * self.num_files + file
        return np.where((row % self.stride == 0) & (member < self.num_members), member, -1)

    def text_of(self, member: int) -> str:
        """A member's text: the words of its cluster, and at their end its own."""
        cluster, place = cluster_and_place(member)
        own = CLUSTERS[cluster % len(CLUSTERS)][place] * self.longer
        words = _words(random.Random(cluster), self.num_words)
        return " ".join(words[: self.num_words - own] + _words(random.Random(f"own {member}"), own))

    def planted_pairs(self, threshold: float) -> Counter[float]:
        """How many pairs of different texts were planted, by their Jaccard, where it reaches the
        threshold."""
        found: Counter[float] = Counter()
        for cluster in CLUSTERS:
            for place, other in enumerate(cluster):
                for one in cluster[:place]:
                    if max(one, other) and jaccard_of(one, other) >= threshold:
                        found[jaccard_of(one, other)] += self.num_members // int(_STARTS[-1])
        return found


def jaccard_of(one: int, other: int) -> float:
    """Of two members of a cluster whose last `one` and `other` words are their own."""
    differing = max(one, other)
    return round((SHINGLES - differing) / (SHINGLES + differing), 3)


def cluster_and_place(member: int) -> tuple[int, int]:
    """The cluster of a member, and its place there."""
    period, rest = divmod(member, int(_STARTS[-1]))
    kind = int(np.searchsorted(_STARTS, rest, side="right")) - 1
    return period * len(CLUSTERS) + kind, rest - int(_STARTS[kind])


def _words(rng: random.Random, number: int) -> list[str]:
    return [f"{rng.getrandbits(32):x}" for _ in range(number)]


def write_synthetic(root: Path, plan: Plan, table: DedupTable) -> None:
    """The corpus of a plan below `root`, as a run's units would leave it."""
    signer = Signer(table)
    width = 4 * table.num_perm
    for file in range(plan.num_files):
        num_rows, rng = plan.num_rows(file), np.random.default_rng(file)
        hashes = _cut(rng.bytes(16 * num_rows), 16)
        texts, clean, signed = [""] * num_rows, list(hashes), _cut(rng.bytes(width * num_rows), width)
        for row, member in enumerate(plan.members(file)):
            text = plan.text_of(member)
            signature = signer.signature(text)
            assert signature is not None
            place = row * plan.stride
            texts[place], clean[place], signed[place] = text, text_hash(text), signature
        columns = {
            "doc_id": hashes,
            "source_index": np.zeros(num_rows, np.int32),
            "file_index": np.full(num_rows, file, np.int32),
            "offset": np.arange(num_rows),
            "part_row": np.arange(num_rows),
            "num_chars": np.fromiter(map(len, texts), np.int64, num_rows),
            "captured_at": pa.nulls(num_rows, pa.string()),
            "url_key": pa.nulls(num_rows, pa.binary()),
            "clean_hash": clean,
            "signature": signed,
        }
        part = {name: pa.nulls(num_rows, PART.field(name).type) for name in PART.names} | {"text": texts}
        write_unit(root, file, pa.table(columns, schema=KEYS), pa.table(part, schema=PART))


def _cut(data: bytes, width: int) -> list[bytes]:
    return [data[start : start + width] for start in range(0, len(data), width)]


def run_once(root: Path, plan: Plan, engine_name: str, rounds_above: int) -> None:
    """Compare the corpus below `root`, and leave what was measured in `result.json` there."""
    units = [unit_of(file) for file in range(plan.num_files)]
    job = job_of(root, units, plan.num_documents, DedupTable(url=False))
    job = dataclasses.replace(job, in_process_rows=rounds_above)
    if engine_name == "local":
        spent = _timed(job, InProcess())
    else:
        with ray_session("local", num_cpus=2):
            spent = _timed(job, InPhases(run_below(root)))
    (root / "result.json").write_text(json.dumps(spent | _found(job, plan)))


def run_below(root: Path) -> RunState:
    """A run whose output is below `root` and whose input files are not read."""
    source = SourceTable(name="none", inputs=("none",))
    recipe = PipelineRecipe(run=RunTable(name="dedup_scale", output=str(root)), source=(source,))
    plan = RunPlan(recipe=recipe, out=Folder(str(root)), units=(), identity={}, key="")
    return RunState(plan=plan, reporter=ProgressReporter(quiet=True))


def _timed(job: DedupJob, engine: Engine) -> dict[str, Any]:
    begun = time.perf_counter()
    seconds: dict[str, float] = {}
    for name, spent in phases(job, engine):
        seconds[name] = seconds.get(name, 0.0) + spent
    return {
        "compare_s": round(time.perf_counter() - begun, 1),
        "phases": {k: round(v, 1) for k, v in seconds.items()},
    }


def _found(job: DedupJob, plan: Plan) -> dict[str, Any]:
    """Recall by Jaccard and precision of the near edges."""
    folder = job.work.folder("dedup")
    right: Counter[float] = Counter()
    num_edges = 0
    for name in sorted(name for name in folder.names("near") if name.endswith(".parquet")):
        edges = read_rows(folder, name, ["a", "b"])
        num_edges += len(edges)
        ends = (plan.member_of(edges[column].to_numpy()).tolist() for column in ("a", "b"))
        for left, other in zip(*ends, strict=True):
            (cluster, place), (its_cluster, its_place) = cluster_and_place(left), cluster_and_place(other)
            if min(left, other) >= 0 and cluster == its_cluster:
                kinds = CLUSTERS[cluster % len(CLUSTERS)]
                right[jaccard_of(kinds[place], kinds[its_place])] += 1
    planted = plan.planted_pairs(job.table.threshold)
    promised = {s: 1 - (1 - s**job.table.rows) ** job.table.bands for s in planted}
    result = deduplicate(job)  # finished: the counts alone are read
    return {
        "recall": {str(s): round(right[s] / number, 5) for s, number in planted.items()},
        "promised": {str(s): round(share, 5) for s, share in promised.items()},
        "precision": round(sum(right[s] for s in planted) / max(num_edges, 1), 6),
        "edges": num_edges,
        "counts": result.counts.in_summary(),
        "exact_planted": plan.num_members // int(_STARTS[-1]),
    }


def compare_size(plan: Plan, engines: Sequence[str], rounds_above: int, scratch: Path) -> None:
    """Print a line for each engine."""
    num_documents = plan.num_documents
    root = scratch / f"corpus-{num_documents}"
    begun = time.process_time()
    write_synthetic(root, plan, DedupTable(url=False))
    made = time.process_time() - begun
    corpus = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    print(
        json.dumps({"documents": num_documents, "made_cpu_s": round(made, 1), "corpus_mb": corpus // 10**6}),
        flush=True,
    )
    for engine in engines:
        shutil.rmtree(root / "work" / "dedup", ignore_errors=True)
        command = [sys.executable, "-m", "benchmarks.dedup_scale", "--run", str(root), engine]
        command += ["--documents", str(num_documents), "--longer", str(plan.longer)]
        cost = measure([*command, "--rounds-above", str(rounds_above)], scratch)
        told = {
            "documents": num_documents,
            "words": plan.num_words,
            "engine": engine,
            "wall_s": round(cost.wall_s, 1),
            "cpu_s": round(cost.cpu_s, 1),
            "peak_mb": round(cost.peak_mb),
            "temporary_disk_mb": round(cost.peak_disk_mb - corpus / 1e6),
        }
        print(json.dumps(told | json.loads((root / "result.json").read_text())), flush=True)
    shutil.rmtree(root)


def compare_with_peers(plan: Plan, rensa: str | None, scratch: Path) -> None:
    """datatrove's stages on texts, rensa where an interpreter has it, and ours on the same: processor seconds
    of signing and of all the rest."""
    from benchmarks.peers.datatrove import duplicate_stages

    num_documents, rng = plan.num_documents, random.Random(0)
    texts = [
        plan.text_of(number) if number < plan.num_members else " ".join(_words(rng, plan.num_words))
        for number in range(num_documents)
    ]
    filtered = scratch / "filtered"
    filtered.mkdir()
    with (filtered / "00000.jsonl").open("w") as file:
        for number, text in enumerate(texts):
            file.write(json.dumps({"text": text, "id": str(number), "metadata": {"language": "en"}}) + "\n")
    told: dict[str, Any] = {"documents": num_documents, "words": plan.num_words}
    begun = time.process_time()
    job = write_corpus(scratch / "ours", texts, DedupTable(url=False, bands=14, rows=8))
    told["ours_sign_s"] = round(time.process_time() - begun, 1)
    begun = time.process_time()
    result = deduplicate(job)
    told["ours_compare_s"] = round(time.process_time() - begun, 1)
    told["ours_dropped"] = sum(result.counts.dropped.values())
    told |= _peer_seconds(duplicate_stages(str(filtered), scratch, 1), scratch)
    told["datatrove_dropped"] = num_documents - told.pop("forwarded")
    if rensa:
        command = [rensa, "-m", "benchmarks.peers.rensa", str(filtered / "00000.jsonl")]
        root = Path(__file__).parents[1]
        told |= json.loads(
            subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
        )
    print(json.dumps(told), flush=True)


def _peer_seconds(stages: Sequence[tuple[list[Any], int]], scratch: Path) -> dict[str, Any]:
    from datatrove.executor import LocalPipelineExecutor
    from loguru import logger

    logger.remove()  # it tells of every task
    told: dict[str, Any] = {}
    for name, (steps, tasks) in zip(("sign", "buckets", "cluster", "filter"), stages, strict=True):
        begun = time.process_time()
        logs = str(scratch / f"logs-{name}")
        stats = (
            LocalPipelineExecutor(pipeline=steps, tasks=tasks, workers=1, logging_dir=logs)
            .run()
            .stats[-1]
            .stats
        )
        told[f"datatrove_{name}_s"] = round(time.process_time() - begun, 1)
        if name == "filter":
            told["forwarded"] = int(stats["forwarded"].total)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, nargs="*", default=[1_000_000])
    parser.add_argument("--engines", nargs="*", default=["local", "ray_data"], choices=["local", "ray_data"])
    parser.add_argument("--longer", type=int, default=1, help="how many times as long the planted texts are")
    parser.add_argument(
        "--rounds-above",
        type=int,
        default=IN_PROCESS_ROWS,
        help="edges above which components are found by rounds",
    )
    parser.add_argument("--peer", type=int, nargs="*", default=[], help="documents that datatrove gets too")
    parser.add_argument("--rensa-python", metavar="PYTHON", help="an interpreter that has rensa, for --peer")
    parser.add_argument(
        "--scratch", type=Path, help="a folder for the corpora: 1 KB a document, and 2 KB while it runs"
    )
    parser.add_argument("--run", nargs=2, metavar=("CORPUS", "ENGINE"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.run:
        run_once(Path(asked.run[0]), Plan(asked.documents[0], asked.longer), asked.run[1], asked.rounds_above)
        return
    root = asked.scratch or tempfile.gettempdir()
    for num_documents, with_peer in [
        *((n, False) for n in asked.documents),
        *((n, True) for n in asked.peer),
    ]:
        plan = Plan(num_documents, asked.longer)
        with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir=root) as scratch:
            # What spills counts as temporary disk. This process found its own folder with an earlier size.
            os.environ["TMPDIR"] = tempfile.tempdir = scratch
            if with_peer:
                compare_with_peers(plan, asked.rensa_python, Path(scratch))
            else:
                compare_size(plan, asked.engines, asked.rounds_above, Path(scratch))


if __name__ == "__main__":
    main()
