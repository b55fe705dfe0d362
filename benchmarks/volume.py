"""The whole way at real volume: Debian's documentation as a crawl, at several sizes, on two processors.

    python -m benchmarks.volume FOLDER --pages 40000 [--only run after recall kills datatrove] [--cpus 2]
    python -m benchmarks.volume FOLDER --table

FOLDER/crawl is packed by apt-get at the first call (benchmarks/support/debian_pages.py); a size takes its first files.
FOLDER/measured.jsonl takes a line for each part of a size, and `--table` prints all of them as tables. The parts:

run        extraction by resiliparse, language, quality, personal data, exact and near duplicates, tokens, shards:
           processor time a page by step, pages a second over time, memory of the driver and of a worker by phase
after      `verify`, `trace` of a page, and a `purge` of a package's pages with `verify` behind it, on that output
recall     pairs of documents by brute force: a sample against all documents, beside the clusters found
kills      the run again, SIGKILL to all its processes in every phase in turn; the bytes beside those of `run`
datatrove  its MinHash pipeline with the same extractor on the English pages of the same files, beside ours"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import random
import shutil
import statistics
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import tomli_w

from benchmarks.support.by_phase import LAST, CommandCost, run_by_phase
from benchmarks.support.debian_pages import MANIFEST, Packed, pack
from lineage.storage.folder import Folder
from lineage.store.delta import arrow_dataset
from stages.dedup.options import DedupTable
from stages.dedup.shingles import shingles

SIZES: Final = (40_000, 100_000, 400_000)
PARTS: Final = ("run", "after", "recall", "kills", "datatrove")
_SAMPLE: Final = 2_000
_COVERED: Final = ("shards/", "documents/", "dedup/", "lineage/", "index.json", "excerpts.parquet")
"""What is a function of inputs and recipe, byte for byte; commits in lineage/ name their time."""
_UNIT_MARKERS: Final = "work/units/*/unit.json"
_WINDOWS: Final = 5
"""Stretches of equal length that the reading is cut into, for its speed over time."""


def main() -> None:
    """Measure what is asked for, a line each; or print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pages", type=int, nargs="+", default=SIZES)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="print what was measured, and measure nothing")
    options = parser.parse_args()
    measured = options.folder / "measured.jsonl"
    if options.table:
        _print_tables([json.loads(line) for line in measured.read_text().splitlines()])
        return
    packed = pack(options.folder / "crawl")
    print(
        f"{sum(packed.num_pages):,} distinct pages of {len(packed.packages)} packages, with their versions in"
        f" {packed.folder / MANIFEST}",
        flush=True,
    )
    for size in options.pages:
        corpus = Corpus(options.folder, packed, size, options.cpus)
        for part in options.only:
            row = {"size": size, "pages": corpus.num_pages, "part": part, **MEASURES[part](corpus)}
            with open(measured, "a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)


class Corpus:
    """The first files of the packed folder that hold so many pages, and the output of their run."""

    def __init__(self, folder: Path, packed: Packed, size: int, cpus: int) -> None:
        self.folder, self.paths, self.cpus = folder, packed.first(size), cpus
        self.by_file = packed.num_pages[: len(self.paths)]
        self.num_pages = sum(self.by_file)
        self.out = folder / f"out-{size}"

    def recipe(self, out: Path) -> Path:
        """The recipe that makes `out`, in a file beside it."""
        path = out.with_suffix(".toml")
        path.write_text(
            tomli_w.dumps(
                {
                    "run": {"name": "volume", "output": str(out)},
                    "source": [{"name": "debian", "inputs": [str(each) for each in self.paths]}],
                    "parse": {"extractor": "resiliparse"},
                    "language": {"keep": [], "min_score": 0.3},
                    "quality": {"rules": ["gopher_quality"], "no_table": "pass", **_MILD},
                    "tokenize": {"shard_tokens": 20_000_000},
                    "ray": {"num_cpus": self.cpus},
                }
            )
        )
        return path


_MILD: Final[Mapping[str, float]] = {"min_words": 20, "min_alphabetic_words": 0.6, "min_stop_words": 1}
"""Pages of interfaces are tables of names: Gopher's own thresholds, made for prose, would leave too few of them for
duplicates to be a matter of volume."""


def run(corpus: Corpus) -> dict[str, Any]:
    """The run of a size."""
    shutil.rmtree(corpus.out, ignore_errors=True)
    units = _UnitsSeen(corpus.out)
    cost = run_by_phase(["run", str(corpus.recipe(corpus.out))], look=units.look)
    units.look(cost.wall_s, last=True)
    summary = json.loads((corpus.out / "run.json").read_text())
    (seconds,) = summary["seconds"].values()
    steps = {name: value for name, value in seconds.items() if name != "all"}
    steps["read, write"] = seconds["all"] - sum(steps.values())
    of_phase = {phase["name"]: phase for phase in summary["phases"]}
    return {
        **_told(cost),
        "files": len(corpus.paths),
        "documents": summary["num_documents"],
        "kept": summary["num_kept"],
        "tokens": summary["num_tokens"],
        "shards": summary["num_shards"],
        "rejected": {stage: sum(rules.values()) for stage, rules in summary["rejected"].items()},
        "dedup": summary["dedup"],
        "ms_a_page": {name: round(1000 * value / corpus.num_pages, 4) for name, value in steps.items()},
        "ms_a_page_of_phase": {
            name: round(1000 * phase["processor_seconds"] / corpus.num_pages, 4)
            for name, phase in of_phase.items()
        },
        "over_time": units.windows(),
        "output_mb": round(
            sum(path.stat().st_size for path in corpus.out.rglob("*") if path.is_file()) / 1e6
        ),
        "input_mb": round(sum(path.stat().st_size for path in corpus.paths) / 1e6),
    }


class _UnitsSeen:
    """What each unit of the reading said when it ended, and when."""

    def __init__(self, out: Path) -> None:
        self._out, self._seen = out, dict[str, tuple[float, dict[str, Any]]]()
        self._next = 0.0

    def look(self, seconds: float, *, last: bool = False) -> None:
        """Take in the markers of units that ended since the last look."""
        if seconds < self._next and not last:
            return
        self._next = seconds + 1.0
        for path in self._out.glob(_UNIT_MARKERS):
            if path.parent.name not in self._seen:
                try:
                    self._seen[path.parent.name] = seconds, json.loads(path.read_text())
                except (FileNotFoundError, json.JSONDecodeError):
                    continue  # removed with work/ meanwhile

    def windows(self) -> list[dict[str, Any]]:
        """For stretches of the reading that are equally long: pages a second, and processor milliseconds a page by
        step."""
        rows = sorted(self._seen.values(), key=lambda row: row[0])
        if not rows:
            return []
        found = []
        begin, end = rows[0][0] - 1.0, rows[-1][0]
        for number in range(_WINDOWS):
            low, high = (begin + (end - begin) * each / _WINDOWS for each in (number, number + 1))
            inside = [unit for seconds, unit in rows if low < seconds <= high]
            num, spent = sum(unit["num_documents"] for unit in inside), Counter[str]()
            for unit in inside:
                spent.update(unit["seconds"])
            found.append(
                {
                    "pages_a_second": round(num / (high - low), 1),
                    "ms_a_page": {
                        name: round(1000 * value / max(num, 1), 3) for name, value in spent.items()
                    },
                }
            )
        return found


def after(corpus: Corpus) -> dict[str, Any]:
    """What is done with a finished output."""
    out = str(corpus.out)
    kept = arrow_dataset(Folder(out), "documents").to_table(
        columns=["url", "host"], filter=pc.field("status") == "kept"
    )
    (url,) = random.Random(0).sample(kept["url"].to_pylist(), 1)
    host = url.split("/")[2]
    num_purged = pc.sum(pc.equal(kept["host"], host)).as_py()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir=corpus.folder) as scratch:
        copy = Path(scratch) / "out"
        shutil.copytree(corpus.out, copy)
        purge = ["purge", str(copy), "--host", host, "--reason", "takedown", "--by", "bench", "--apply"]
        costs = {
            "verify": run_by_phase(["verify", out]),
            "trace": run_by_phase(["trace", out, "--url", url]),
            "purge": run_by_phase(purge),
            "verify behind it": run_by_phase(["verify", str(copy)]),
        }
    return {
        "purged": num_purged,
        "costs": {
            name: {
                "wall_s": round(cost.wall_s, 2),
                "cpu_s": round(cost.cpu_s, 2),
                "mb": round(cost.driver / 1e6),
            }
            for name, cost in costs.items()
        },
    }


def kills(corpus: Corpus) -> dict[str, Any]:
    """The run again, killed once in every phase."""
    reference = json.loads((corpus.out / "run.json").read_text())
    out = corpus.folder / f"killed-{corpus.out.name}"
    shutil.rmtree(out, ignore_errors=True)
    begun = len(corpus.paths) // 3
    recipe, moments = str(corpus.recipe(out)), [f"read and filter: {begun} of {len(corpus.paths)} units done"]
    run_by_phase(["run", recipe], kill=lambda ended: sum(1 for _ in out.glob(_UNIT_MARKERS)) >= begun)
    rng = random.Random(0)
    lengths = {phase["name"]: phase["seconds"] for phase in reference["phases"]} | {LAST: 1.0}
    for before, name in itertools.pairwise(lengths):
        moment = lengths[name] * rng.uniform(0.2, 0.7)
        # A resumed call passes the phases that are finished first.
        run_by_phase(["run", recipe], kill=functools.partial(_has_ended, before, moment))
        moments.append(f"{name}: {moment:.2f} s")
    run_by_phase(["run", recipe])
    same = _bytes(corpus.out) == _bytes(out)
    shutil.rmtree(out)
    return {"killed": moments, "equal_bytes": same}


def _has_ended(phase: str, seconds: float, ended: Mapping[str, float]) -> bool:
    """Whether a phase ended so many seconds ago."""
    return ended.get(phase, -1.0) >= seconds


def _bytes(out: Path) -> dict[str, str]:
    """The hash of each file of an output that another run must have the same of."""
    found = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if path.is_file() and name.startswith(_COVERED) and "_delta_log" not in name:
            with open(path, "rb") as file:
                found[name] = hashlib.file_digest(file, "blake2b").hexdigest()
    return found


def recall(corpus: Corpus) -> dict[str, Any]:
    """Pairs at the threshold between a sample of the documents and all of them, by brute force: how many of them the
    run put into one cluster; and of the sample's documents that it dropped as near-duplicates, how many have such a
    pair with the one that stayed."""
    table = DedupTable()
    rows = arrow_dataset(Folder(str(corpus.out)), "documents").to_table(
        columns=["doc_id", "part", "part_row", "cluster_id", "duplicate_of", "stage", "similarity"],
        filter=pc.is_valid(pc.field("part_row"))
        & (pc.field("stage").is_null() | (pc.field("stage") != "identity")),
    )
    places = {
        (part, row): index
        for index, (part, row) in enumerate(
            zip(rows["part"].to_pylist(), rows["part_row"].to_pylist(), strict=True)
        )
    }
    ids, clusters = rows["doc_id"].to_pylist(), rows["cluster_id"].to_pylist()
    sampled = sorted(random.Random(0).sample(range(len(ids)), min(_SAMPLE, len(ids))))
    sets = _SampledSets(dict(_shingles_of(corpus.out, places, set(sampled), table)), table.threshold)
    pairs = dict[tuple[int, int], float]()
    for index, found in _shingles_of(corpus.out, places, None, table):
        for other, similarity in sets.near(index, found):
            pairs[min(index, other), max(index, other)] = similarity
    together = [
        pair for pair in pairs if clusters[pair[0]] is not None and clusters[pair[0]] == clusters[pair[1]]
    ]
    by_id = {doc_id: index for index, doc_id in enumerate(ids)}
    stages, kept = rows["stage"].to_pylist(), rows["duplicate_of"].to_pylist()
    near = [index for index in sampled if stages[index] == "dedup.near"]
    right = [
        index for index in near if (min(index, by_id[kept[index]]), max(index, by_id[kept[index]])) in pairs
    ]
    promised = statistics.fmean(
        1 - (1 - similarity**table.rows) ** table.bands for similarity in pairs.values()
    )
    return {
        "sample": len(sampled),
        "compared_with": len(ids),
        "pairs": len(pairs),
        "pairs_of_other_texts": sum(similarity < 1 for similarity in pairs.values()),
        "in_one_cluster": len(together),
        "promised_by_bands": round(promised, 5),
        "dropped_of_sample": len(near),
        "dropped_with_such_a_pair": len(right),
        "clusters": len(set(clusters) - {None}),
    }


def _shingles_of(
    out: Path, places: Mapping[tuple[int, int], int], wanted: set[int] | None, table: DedupTable
) -> Iterator[tuple[int, np.ndarray[Any, np.dtype[np.uint64]]]]:
    """The number of each wanted document that has words (None: of each), and its shingles; a file at a time."""
    for path in sorted(out.glob("documents/*/*.parquet")):
        part = int(path.stem.rpartition("-")[2])
        for row, text in enumerate(pq.read_table(path, columns=["text"])["text"].to_pylist()):
            index = places.get((part, row))
            if index is not None and (wanted is None or index in wanted):
                found = shingles(text, table)
                if len(found):
                    yield index, found


class _SampledSets:
    """Sets of shingles by each of their elements: what all of them share with another set is one look-up."""

    def __init__(self, sets: Mapping[int, np.ndarray[Any, np.dtype[np.uint64]]], threshold: float) -> None:
        self._indices = np.array(list(sets), np.int64)
        self._sizes = np.array([len(each) for each in sets.values()], np.int64)
        self._threshold = threshold
        elements = np.concatenate(list(sets.values()))
        owners = np.repeat(np.arange(len(sets)), self._sizes)
        order = np.argsort(elements, kind="stable")
        self._elements, self._owners = elements[order], owners[order]

    def near(self, index: int, other: np.ndarray[Any, np.dtype[np.uint64]]) -> Iterator[tuple[int, float]]:
        """The sets, but for that of `index` itself, whose Jaccard with another one reaches the threshold."""
        begin, end = (np.searchsorted(self._elements, other, side=side) for side in ("left", "right"))
        spans = np.flatnonzero(end > begin)
        hits = [self._owners[begin[span] : end[span]] for span in spans]
        shared = (
            np.bincount(np.concatenate(hits), minlength=len(self._sizes))
            if hits
            else np.zeros_like(self._sizes)
        )
        similarity = shared / (self._sizes + len(other) - shared)
        for place in np.flatnonzero(similarity >= self._threshold):
            if self._indices[place] != index:
                yield int(self._indices[place]), float(similarity[place])


def datatrove(corpus: Corpus) -> dict[str, Any]:
    """datatrove's pipeline beside ours: FineWeb's rules on the English pages, the same extractor and tokenizer."""
    from benchmarks.pipeline import cost_of, tokenizer_for

    with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir=corpus.folder) as scratch:
        crawl = Path(scratch) / "crawl"
        crawl.mkdir()
        for path in corpus.paths:
            (crawl / path.name).hardlink_to(path)
        tokenizer = tokenizer_for(Path(scratch))
        costs = {
            name: cost_of(side, crawl, corpus.num_pages, tokenizer, with_ray=True)
            for name, side in (("ours", "resiliparse"), ("datatrove", "datatrove-resiliparse"))
        }
    return {
        name: {key: round(value, 1) for key, value in asdict(cost).items()} for name, cost in costs.items()
    }


MEASURES: Final = {"run": run, "after": after, "recall": recall, "kills": kills, "datatrove": datatrove}


def _told(cost: CommandCost) -> dict[str, Any]:
    return {
        "wall_s": round(cost.wall_s, 1),
        "cpu_s": round(cost.cpu_s, 1),
        "together_mb": round(cost.together / 1e6),
        "phases": {
            name: {
                "seconds": round(phase.seconds, 1),
                "driver_mb": round(phase.driver / 1e6),
                "worker_mb": round(phase.worker / 1e6),
            }
            for name, phase in cost.phases.items()
        },
    }


def _print_tables(rows: Sequence[Mapping[str, Any]]) -> None:
    """What was measured last of each part of each size."""
    last: dict[str, dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for row in rows:
        last[row["part"]][row["pages"]] = row
    runs = [last["run"][pages] for pages in sorted(last["run"])]
    _print("", [f"{row['pages']:,}" for row in runs], _run_lines(runs))
    for part in PARTS[1:]:
        for pages, row in sorted(last[part].items()):
            print(f"\n{part}, {pages:,} pages:", json.dumps({k: v for k, v in row.items() if k != "part"}))


def _run_lines(runs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    def line(name: str, value: Any) -> tuple[str, list[str]]:
        return name, [value(row) for row in runs]

    yield line("wall time, s", lambda row: f"{row['wall_s']:.0f}")
    yield line("pages a second", lambda row: f"{row['pages'] / row['wall_s']:.0f}")
    yield line("processor time, ms a page", lambda row: f"{1000 * row['cpu_s'] / row['pages']:.2f}")
    for name in ("kept", "tokens", "shards"):
        yield line(name, lambda row, name=name: f"{row[name]:,}")
    for kind, head in (("ms_a_page", "ms a page, step"), ("ms_a_page_of_phase", "ms a page, phase")):
        for name in dict.fromkeys(name for row in runs for name in row[kind]):
            yield line(f"{head} {name}", lambda row, kind=kind, name=name: f"{row[kind].get(name, 0):.3f}")
    for name in dict.fromkeys(name for row in runs for name in row["phases"]):
        yield line(
            f"MB of driver, of a worker: {name}",
            lambda row, name=name: (
                f"{row['phases'][name]['driver_mb']}, {row['phases'][name]['worker_mb']}"
                if name in row["phases"]
                else ""
            ),
        )
    yield line(
        "reading, pages a second by fifths of its time",
        lambda row: ", ".join(f"{each['pages_a_second']:.0f}" for each in row["over_time"]),
    )


def _print(corner: str, heads: Sequence[str], lines: Iterator[tuple[str, list[str]]]) -> None:
    print(f"| {corner} | {' | '.join(heads)} |\n|{' --- |' * (len(heads) + 1)}")
    for name, values in lines:
        print(f"| {name} | {' | '.join(values)} |")


if __name__ == "__main__":
    main()
