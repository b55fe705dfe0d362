"""A run over a few short texts, on Ray and without it, and where its processor time goes.

    python -m benchmarks.small_runs [--texts 20] [--rounds 3]

Given are wall and processor time of all processes of `sluice run` with `ray.address` "local" and "none", in
turns, and whether the bytes are equal. Last comes a run without Ray by what the processor worked on, in a
process of its own."""

from __future__ import annotations

import argparse
import functools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any
from unittest import mock

import tomli_w

from benchmarks.support.measure import measure
from pipeline.demo.pages import write_article

_PARTS = {
    "tokenizer": "kept_tokenizer",
    "recipe, files and versions": "plan_run",
    "steps, made": "read_job",
    "read and filter": "read",
    "compare": "compare",
    "tokenize": "tokenize",
    "shards": "shard",
    "facts and tables": "record",
    "report, checksums, index": "publish",
}
"""Parts of a run, and the functions of `pipeline.process` that do them."""


def main() -> None:
    """Print a line a run, then the parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.parts_of is not None:
        _print_parts(options.parts_of)
        return
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        folder, rng = Path(scratch), random.Random(0)
        rows = [{"id": str(n), "text": write_article("en", rng).text} for n in range(options.texts)]
        (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        recipe = folder / "recipe.toml"
        source = {"name": "texts", "inputs": [f"{folder}/texts.jsonl"]}
        recipe.write_text(
            tomli_w.dumps({"run": {"name": "small", "output": f"{folder}/out"}, "source": [source]})
        )
        for number in range(options.rounds):
            outs = []
            for address in ("local", "none"):
                outs.append(folder / f"{address}-{number}")
                words = ["--set", f"run.output={outs[-1]}", "--set", f"ray.address={address}"]
                cost = measure([sys.executable, "-m", "pipeline", "run", str(recipe), *words])
                print(f"{address}: {cost.wall_s:.1f} s, processor {cost.cpu_s:.1f} s", flush=True)
            same = len({(out / "index.json").read_bytes() for out in outs}) == 1
            print("equal bytes" if same else "THE BYTES DIFFER", flush=True)
        subprocess.run([sys.executable, "-m", "benchmarks.small_runs", "--parts-of", str(recipe)], check=True)


def _print_parts(recipe: str) -> None:
    """Processor seconds of each part of a run without Ray."""
    from pipeline import process  # timed: imports are a part of a short run
    from pipeline.phases.progress import ProgressReporter
    from pipeline.recipe.load import load

    seconds: defaultdict[str, float] = defaultdict(float)
    seconds["Python and imports"] = time.process_time()
    wanted = load(recipe, ["ray.address=none"])
    with mock.patch.multiple(process, **{name: _timed(seconds, part, name) for part, name in _PARTS.items()}):
        process.run(wanted, ProgressReporter(quiet=True))
    seconds["the rest"] = time.process_time() - sum(seconds.values())
    for part, value in seconds.items():
        print(f"{part}: {value:.2f} s")


def _timed(seconds: defaultdict[str, float], part: str, name: str) -> Any:
    from pipeline import process

    function = getattr(process, name)

    @functools.wraps(function)
    def timed(*given: Any, **options: Any) -> Any:
        begun = time.process_time()
        try:
            return function(*given, **options)
        finally:
            seconds[part] += time.process_time() - begun

    return timed


if __name__ == "__main__":
    main()
