"""`make bench`: every benchmark in turn, each a ratio against a named peer or bound in one run.

The pipeline's own needs real pages: a folder of crawl files named by SLUICE_TEST_DATA or lying beside the
checkout; without one it runs on the demo's crawl."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pipeline.demo.crawl import make_crawl

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


def main() -> int:
    """Run them all; the number of those that failed."""
    real = Path(os.environ.get("SLUICE_TEST_DATA", _BESIDE)) / "crawl"
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        crawl = real
        if not real.is_dir():
            crawl = Path(scratch)
            make_crawl(crawl)
        commands = [
            ["rules", str(crawl)],
            ["recipes", str(crawl)],
            ["charsets", str(crawl)],
            ["dedup"],
            ["near_duplicates", str(crawl)],
            ["inside", str(crawl), "--times", "1", "4"],
            ["contamination", str(crawl)],
            ["dedup_scale", "--documents", "100000", "--peer", "5000"],
            ["loader"],
            ["training"],
            ["loss", "--tokens", "2048", "--plain-tokens", "512", "--rounds", "1"],
            ["float8"],
            ["layouts", "--rounds", "1", "--only", "one process", "zero 3 over 2", "pp 2, 1f1b"],
            ["checkpoint"],
            ["recovery"],
            ["model_step"],
            ["small_runs"],
            ["index"],
            ["forgetting", "--only", "zero 3", "--documents", "2"],
            ["store", "--rows", "1000000"],
            ["page", "--rows", "200000", "--pages", "400"],
            ["pricing", str(crawl), "--splits", "3"],
            ["steps", str(crawl), "--times", "1", "3"],
            ["pipeline", str(crawl), "--times", "1", "3"],
        ]
        failed = 0
        for name, *arguments in commands:
            print(f"== {name}", flush=True)
            failed += (
                subprocess.run(
                    [sys.executable, "-m", f"benchmarks.{name}", *arguments], check=False
                ).returncode
                != 0
            )
    return failed


if __name__ == "__main__":
    sys.exit(main())
