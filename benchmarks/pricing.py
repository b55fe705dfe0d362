"""What `sluice plan` says of a data recipe, beside the run: how often its intervals hold, what the sample costs.

    python -m benchmarks.pricing CRAWL [--splits 20] [--address none] [--extractor trafilatura]

Each split is a random half of the crawl's pages, in as many files; it is planned with a seed of its own, and run.
Real is what the run came to: documents, tokens and the output's bytes as it counts them, processor time of all its
processes. The sample's cost is the processor time of the plan beside that of the run for 100 times the sample, at what
a document of the run takes."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import tomli_w

from benchmarks.support.measure import measure
from lineage.magic import GZIP_MAGIC
from stages.reading.content import Cursor
from stages.reading.members import open_member

_SAMPLES: int = 100


def main() -> None:
    """Print a line a split, then how many intervals held."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("crawl", type=Path)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first split")
    parser.add_argument("--address", default="none", help="ray.address")
    parser.add_argument("--extractor", default="trafilatura")
    options = parser.parse_args()
    members = {path.name: list(gzip_members(path)) for path in sorted(options.crawl.glob("*.warc.gz"))}
    held: dict[str, int] = {}
    for number in range(options.first, options.first + options.splits):
        with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
            recipe = _split(Path(folder), members, number, options)
            for name, is_inside in _compare(Path(folder), recipe, number):
                held[name] = held.get(name, 0) + is_inside
    for name, times in held.items():
        print(f"{name}: inside the interval {times} of {options.splits} times")


def gzip_members(path: Path) -> Iterator[bytes]:
    """The members of a gzip file, as they lie."""
    data = path.read_bytes()
    with open(path, "rb") as stream:
        cursor = Cursor(stream)
        while cursor.peek(3) == GZIP_MAGIC:
            begin, member = cursor.position, open_member(cursor)
            assert member is not None
            while member.more():
                pass
            yield data[begin : cursor.position]


def _split(
    folder: Path, members: Mapping[str, list[bytes]], number: int, options: argparse.Namespace
) -> Path:
    chance = random.Random(number)
    for name, found in members.items():
        half = sorted(chance.sample(range(len(found)), len(found) // 2))
        (folder / name).write_bytes(b"".join(found[one] for one in half))
    recipe = folder / "recipe.toml"
    plain = {
        "run": {"name": "split", "output": str(folder / "out")},
        "source": [{"name": "web", "inputs": [f"{folder}/*.warc.gz"]}],
        "parse": {"extractor": options.extractor},
        "ray": {"address": options.address},
    }
    recipe.write_text(tomli_w.dumps(plain))
    return recipe


def _compare(folder: Path, recipe: Path, number: int) -> Iterator[tuple[str, bool]]:
    command = [sys.executable, "-m", "pipeline"]
    plan = measure([*command, "plan", str(recipe), "--seed", str(number), "--keep"])
    run = measure([*command, "run", str(recipe)])
    summary = json.loads((folder / "out/run.json").read_text())
    found = summary["prediction"]["estimates"]
    real = {
        "documents": summary["num_documents"],
        "kept_share": summary["num_kept"] / summary["num_documents"],
        "tokens": summary["num_tokens"],
        "processor_hours": run.cpu_s / 3600,
        "output": sum(path.stat().st_size for path in (folder / "out").rglob("*") if path.is_file()),
    }
    print(f"split {number}:", end=" ")
    for name, value in real.items():
        of = found[name]
        is_inside = of["low"] <= value <= of["high"]
        factor = 3600 if name == "processor_hours" else 1
        shown = " ".join(f"{each * factor:,.4g}" for each in (value, of["value"], of["low"], of["high"]))
        print(f"{name} {shown}{'' if is_inside else ' OUTSIDE'};", end=" ")
        yield name, is_inside
    documents = found["sample_documents"]["value"]
    share = plan.cpu_s / (_SAMPLES * documents * run.cpu_s / summary["num_documents"])
    print(
        f"plan {plan.cpu_s:.1f} s for {documents:.0f} documents, {share:.2%} of a run for 100 times as many",
        flush=True,
    )


if __name__ == "__main__":
    main()
