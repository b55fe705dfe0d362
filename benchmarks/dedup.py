"""Signatures a second against datasketch, and the time of whole deduplications, on this machine.

    python -m benchmarks.dedup [--documents 2000] [--corpus 20000]

Every scheme signs the same texts in turn, several rounds over, and the best round counts.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from datasketch import MinHash

from lineage.ids import text_hash
from lineage.storage.folder import Folder
from lineage.store.tables import KEYS, PART
from pipeline.dedup.corpus import DedupJob, deduplicate
from pipeline.dedup.exchange import Engine
from pipeline.dedup.inputs import DedupUnit
from stages.dedup.minhash import Signer
from stages.dedup.options import DedupTable
from stages.dedup.shingles import jaccard, shingle_strings, shingles

ROUNDS = 5
WORDS_A_PAGE = 867
"""Mean of the pages of a real crawl after extraction."""


def make_texts(number: int, seed: int = 0) -> list[str]:
    """Texts of a web page's length over a vocabulary with a long tail."""
    chosen = random.Random(seed)
    vocabulary = ["".join(chosen.choices("etaoinshrdlucmfw", k=chosen.randint(2, 9))) for _ in range(30_000)]
    weights = [1 / rank for rank in range(1, len(vocabulary) + 1)]
    lengths = [max(50, round(chosen.expovariate(1 / WORDS_A_PAGE))) for _ in range(number)]
    return [" ".join(chosen.choices(vocabulary, weights, k=length)) for length in lengths]


def signed_by_datasketch(text: str) -> None:
    sketch = MinHash(128)
    sketch.update_batch(shingle_strings(text, DedupTable()))


def rates(texts: Sequence[str], ways: dict[str, Callable[[str], object]]) -> dict[str, float]:
    """Documents a second of processor time of each way, the best of alternating rounds."""
    best: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            start = time.process_time()
            for text in texts:
                way(text)
            best[name] = max(best.get(name, 0.0), len(texts) / (time.process_time() - start))
    return best


def write_corpus(root: Path, texts: Sequence[str], table: DedupTable) -> DedupJob:
    """The texts as four units, as a run would leave them."""
    signer, units = Signer(table), []
    for file in range(4):
        chosen = texts[file::4]
        keys = [
            {
                "doc_id": text_hash(f"{file} {row}"),
                "source_index": 0,
                "file_index": file,
                "offset": row,
                "part_row": row,
                "num_chars": len(text),
                "clean_hash": text_hash(text),
                "signature": signer.signature(text),
            }
            for row, text in enumerate(chosen)
        ]
        part = [{"doc_id": b"", "text": text} for text in chosen]
        units.append(
            write_unit(
                root, file, pa.Table.from_pylist(keys, schema=KEYS), pa.Table.from_pylist(part, schema=PART)
            )
        )
    return job_of(root, units, len(texts), table)


def write_unit(root: Path, file: int, keys: pa.Table, part: pa.Table) -> DedupUnit:
    """One unit of a corpus below `root`: its keys and its clean texts."""
    unit = unit_of(file)
    for folder, name, rows in ((root / "work", unit.keys, keys), (root, unit.part, part)):
        with Folder(str(folder)).writing(name) as stream:
            pq.write_table(rows, stream, row_group_size=1000)
    return unit


def unit_of(file: int) -> DedupUnit:
    """The names of a unit's files."""
    return DedupUnit(source_index=0, file_index=file, keys=f"{file}.parquet", part=f"part-{file}.parquet")


def job_of(root: Path, units: Sequence[DedupUnit], num_documents: int, table: DedupTable) -> DedupJob:
    """The deduplication of a corpus below `root`."""
    work, out = Folder(str(root / "work")), Folder(str(root))
    return DedupJob(table=table, work=work, out=out, units=tuple(units), num_rows=num_documents)


def phases(job: DedupJob, engine: Engine | None = None) -> Iterator[tuple[str, float]]:
    """Each phase of a deduplication and its seconds."""
    marks: list[tuple[str, float]] = []
    result = deduplicate(job, engine, notify=lambda name: marks.append((name, time.perf_counter())))
    marks.append(("end", time.perf_counter()))
    for (name, begin), (_, end) in itertools.pairwise(marks):
        yield name, end - begin
    print("   ", ", ".join(f"{name} {number:,}" for name, number in result.counts.in_summary().items()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--corpus", type=int, default=20_000)
    options = parser.parse_args()
    texts = make_texts(options.documents)
    fast, exact = Signer(DedupTable()), Signer(DedupTable(scheme="datasketch"))
    first = shingles(texts[0], DedupTable())
    found = rates(
        texts,
        {
            "datasketch 2.0.0 update_batch": signed_by_datasketch,
            'scheme "datasketch"': exact.signature,
            'scheme "fast"': fast.signature,
            "shingle sets": lambda text: shingles(text, DedupTable()),
            "sets and Jaccard": lambda text: jaccard(first, shingles(text, DedupTable())),
        },
    )
    peer = found["datasketch 2.0.0 update_batch"]
    print(
        f"{options.documents:,} documents of {WORDS_A_PAGE} words, 128 permutations, 5-word shingles, one"
        f" core:"
    )
    for name, rate in found.items():
        print(f"  {name:32}{rate:10,.0f} documents/s {rate / peer:6.1f} x datasketch")
    pages = make_texts(options.corpus * 3 // 4, seed=1)
    pages += [f"{text} and a few words more" for text in pages[: options.corpus - len(pages)]]
    with tempfile.TemporaryDirectory() as folder:
        job = write_corpus(Path(folder), pages, DedupTable())
        print(f"{options.corpus:,} documents, a quarter of them near-duplicates, in one process:")
        spent = list(phases(job))
        for name, seconds in spent:
            print(f"  {name:32}{seconds:10.2f} s")
        print(f"  {'together':32}{sum(seconds for _, seconds in spent):10.2f} s")


if __name__ == "__main__":
    main()
