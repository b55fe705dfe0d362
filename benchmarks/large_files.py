"""One large file on two workers, beside the same records in eight files, and beside one worker.

    python -m benchmarks.large_files CRAWL [--megabytes 200] [--kinds warc.gz jsonl jsonl.zst parquet] [--steps parse …]

The crawl's pages, in copies with other words, as one file of gzip members; and their texts as rows of a file, plain,
in zstd frames of a thousand rows, and in row groups of as many. Given are wall and processor time of all processes,
and whether one worker and the parts give the same bytes. The extractor is resiliparse, which makes pages cheap and
so the share of what parts cost large; so do fewer steps than all."""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
import zstandard

from benchmarks.support.enlarge import enlarge
from benchmarks.support.measure import Cost, measure
from benchmarks.support.texts import PLAIN_WORD, english, extracted
from lineage.magic import GZIP_MAGIC
from stages.reading.content import Cursor
from stages.reading.members import open_member

_NUM_FILES = 8
_COVERED = ("shards/", "documents/", "dedup/", "index.json", "excerpts.parquet")
_ROWS = 1_000


def main() -> None:
    """Print a line a run, then the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("crawl", type=Path)
    parser.add_argument("--megabytes", type=int, default=200, help="of the large file, about")
    kinds = ("warc.gz", "jsonl", "jsonl.zst", "parquet")
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--steps", nargs="+", help="of the source, in place of all")
    options = parser.parse_args()
    steps = {"steps": options.steps} if options.steps else {}
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        for kind in options.kinds:
            _compare(Path(scratch) / kind, kind, options.crawl, options.megabytes * 1_000_000, steps)


def _compare(
    folder: Path, kind: str, crawl: Path, num_bytes: int, steps: Mapping[str, Sequence[str]]
) -> None:
    folder.mkdir()
    records = list(
        _members(folder, crawl, num_bytes) if kind == "warc.gz" else _row_groups(kind, crawl, num_bytes)
    )
    one, eight = folder / "one", folder / "eight"
    size = _write(one / f"all.{kind}", kind, records)
    share = -(-len(records) // _NUM_FILES)
    for number in range(_NUM_FILES):
        _write(eight / f"{number}.{kind}", kind, records[number * share : (number + 1) * share])
    unit_bytes = size // _NUM_FILES + 1
    costs = {
        "one worker": _run(folder, one, "worker", steps, num_cpus=1, unit_bytes=0),
        "eight files": _run(folder, eight, "files", steps, num_cpus=2, unit_bytes=0),
        "eight parts": _run(folder, one, "parts", steps, num_cpus=2, unit_bytes=unit_bytes),
    }
    for name, cost in costs.items():
        print(
            f"{kind}, {size / 1e6:.0f} MB, {name}: {cost.wall_s:.1f} s, processor {cost.cpu_s:.1f} s",
            flush=True,
        )
    parts, files, worker = (costs[name] for name in ("eight parts", "eight files", "one worker"))
    print(
        f"{kind}: processor time of parts beside files {parts.cpu_s / files.cpu_s:.3f},"
        f" wall time beside one worker {parts.wall_s / worker.wall_s:.3f};",
        "equal bytes"
        if _bytes(folder / "out-parts") == _bytes(folder / "out-worker")
        else "THE BYTES DIFFER",
        flush=True,
    )


def _members(folder: Path, crawl: Path, num_bytes: int) -> Iterator[bytes]:
    """The gzip members of the enlarged crawl."""
    pages = folder / "pages"
    enlarge(
        crawl, pages, max(1, round(num_bytes / sum(path.stat().st_size for path in crawl.glob("*.warc.gz"))))
    )
    for path in sorted(pages.glob("*.warc.gz")):
        data = path.read_bytes()
        with open(path, "rb") as stream:
            cursor = Cursor(stream)
            while cursor.peek(3) == GZIP_MAGIC:
                begin = cursor.position
                member = open_member(cursor)
                assert member is not None
                while member.more():
                    pass
                yield data[begin : cursor.position]


def _row_groups(kind: str, crawl: Path, num_bytes: int) -> Iterator[bytes]:
    """Thousands of rows, as JSON lines or in a zstd frame."""
    texts = english(extracted(crawl, "resiliparse", 10_000))
    num_copies = max(1, round(num_bytes / sum(map(len, texts))))
    copies = (_mixed(text, copy) for copy in range(num_copies) for text in texts)
    lines = (json.dumps({"text": text}).encode() + b"\n" for text in copies)
    while rows := b"".join(itertools.islice(lines, _ROWS)):
        yield zstandard.ZstdCompressor().compress(rows) if kind == "jsonl.zst" else rows


def _mixed(text: str, copy: int) -> str:
    """The text with its plain words in another order in each copy: no copy is a near-duplicate of another."""
    words = PLAIN_WORD.findall(text)
    random.Random(copy).shuffle(words)
    left = iter(words)
    return PLAIN_WORD.sub(lambda _: next(left), text)


def _write(path: Path, kind: str, records: Iterable[bytes]) -> int:
    path.parent.mkdir(exist_ok=True)
    if kind == "parquet":
        with pq.ParquetWriter(path, pa.schema([("text", pa.string())]), compression="zstd") as writer:
            for rows in records:
                writer.write_table(pa.table({"text": [json.loads(row)["text"] for row in rows.splitlines()]}))
    else:
        with open(path, "wb") as file:
            file.writelines(records)
    return path.stat().st_size


def _run(
    folder: Path,
    inputs: Path,
    out: str,
    steps: Mapping[str, Sequence[str]],
    *,
    num_cpus: int,
    unit_bytes: int,
) -> Cost:
    plain = {
        "run": {"name": "bench", "output": str(folder / f"out-{out}"), "unit_bytes": unit_bytes},
        "source": [{"name": "cc", "inputs": [f"{inputs}/*"], **steps}],
        "parse": {"extractor": "resiliparse"},
        "ray": {"num_cpus": num_cpus},
    }
    recipe = folder / f"{out}.toml"
    recipe.write_text(tomli_w.dumps(plain))
    return measure([sys.executable, "-m", "pipeline", "run", str(recipe)])


def _bytes(out: Path) -> dict[str, bytes]:
    names: Sequence[str] = [str(path.relative_to(out)) for path in sorted(out.rglob("*")) if path.is_file()]
    return {name: (out / name).read_bytes() for name in names if name.startswith(_COVERED)}


if __name__ == "__main__":
    main()
