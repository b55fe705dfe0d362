"""`sluice run` of this checkout beside that of another one, in turn: what a change of the engine costs.

    python -m benchmarks.engine CRAWL --other CHECKOUT [--times 1] [--rounds 3] [--extractor resiliparse]

Both get the same files and two workers, the one that begins changing from round to round; given are wall and
processor time of all processes, their ratios by round, and whether the bytes are equal. `resiliparse` makes
pages cheap, and so the engine's share large. The other checkout must have its compiled modules."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import tomli_w

from benchmarks.support.enlarge import enlarge
from benchmarks.support.measure import Cost, measure

_HERE = Path(__file__).resolve().parents[1]


def main() -> None:
    """Print a line a run, then the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("crawl", type=Path)
    parser.add_argument("--other", type=Path, required=True, help="the checkout that this one is held to")
    parser.add_argument("--times", type=int, default=1, help="the crawl's pages so many times over")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--extractor", choices=["resiliparse", "trafilatura"], default="resiliparse")
    options = parser.parse_args()
    sides = {"this": _HERE, "other": options.other.resolve()}
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        crawl = Path(scratch) / "crawl"
        crawl.mkdir()
        num_pages = enlarge(options.crawl, crawl, options.times)
        costs: dict[str, list[Cost]] = {name: [] for name in sides}
        for number in range(options.rounds):
            indexes = set()
            for name in sorted(sides, reverse=number % 2 == 0):
                out = Path(scratch) / f"{name}-{number}"
                cost = measure(_command(sides[name], crawl, out, options.extractor))
                indexes.add((out / "index.json").read_bytes())
                costs[name].append(cost)
                print(
                    f"{name:5} {num_pages:,} pages: {cost.wall_s:.1f} s, processor {cost.cpu_s:.1f} s",
                    flush=True,
                )
            print("equal bytes" if len(indexes) == 1 else "THE BYTES DIFFER", flush=True)
    pairs = list(zip(costs["this"], costs["other"], strict=True))
    for what, ratios in (
        ("wall time", [this.wall_s / other.wall_s for this, other in pairs]),
        ("processor time", [this.cpu_s / other.cpu_s for this, other in pairs]),
    ):
        shown = ", ".join(f"{ratio:.3f}" for ratio in ratios)
        print(f"{what}, this beside other: {statistics.median(ratios):.3f} (by round {shown})")


def _command(checkout: Path, crawl: Path, out: Path, extractor: str) -> list[str]:
    recipe = {
        "run": {"name": "bench", "output": str(out)},
        "source": [{"name": "crawl", "inputs": [str(crawl / "*.warc.gz")]}],
        "parse": {"extractor": extractor},
        "ray": {"num_cpus": 2},
    }
    path = out.with_suffix(".toml")
    path.write_text(tomli_w.dumps(recipe))
    return [
        "env",
        f"--chdir={checkout}",
        f"PYTHONPATH={checkout}",
        sys.executable,
        "-m",
        "pipeline",
        "run",
        str(path),
    ]


if __name__ == "__main__":
    main()
