"""What durability costs a run: wall and processor time with its syncs, and with an fsync that does nothing,
in turns.

    python -m benchmarks.syncs [--texts 20 5000] [--rounds 3] [--folder DIR]

Each number of texts is a run without Ray over four files of them, in a folder of a real disk (--folder). The
fsync that does nothing is tests/support/processes/faulty_disk.c, which stands before libc's calls in both: so
it is the sync alone that differs."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path

import tomli_w

from benchmarks.support.measure import Cost, measure
from pipeline.demo.pages import write_article
from tests.support.stores.faulty_disk import compile_faulty_disk, read_record

_FILES = 4


def main() -> None:
    """Print a line a run, then the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, nargs="+", default=[20, 5000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="on the disk to measure (that of temporary files)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir=options.folder) as scratch:
        folder = Path(scratch)
        library = compile_faulty_disk(folder)
        for texts in options.texts:
            _measure_runs(folder, library, texts, options.rounds)


def _measure_runs(folder: Path, library: Path, texts: int, rounds: int) -> None:
    rng, inputs = random.Random(0), folder / f"texts-{texts}"
    inputs.mkdir()
    for number in range(_FILES):
        rows = [
            {"id": f"{number}-{n}", "text": write_article("en", rng).text} for n in range(texts // _FILES)
        ]
        (inputs / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"name": "texts", "inputs": [f"{inputs}/*.jsonl"]}
    recipe = inputs / "recipe.toml"
    recipe.write_text(
        tomli_w.dumps(
            {"run": {"name": "syncs", "output": "-"}, "source": [source], "ray": {"address": "none"}}
        )
    )
    costs: dict[str, list[Cost]] = {"synced": [], "not synced": []}
    acts = inputs / "acts"
    for number in range(rounds):
        for kind, found in costs.items():
            out = inputs / f"out-{kind.replace(' ', '-')}-{number}"
            own = [f"LD_PRELOAD={library}", f"DISK_UNDER={inputs}", f"DISK_NO_SYNC={int(kind != 'synced')}"]
            own += [f"DISK_RECORD={acts}"] if number == 0 and kind == "synced" else []
            run = [sys.executable, "-m", "pipeline", "run", str(recipe), "--set", f"run.output={out}"]
            found.append(measure(["env", *own, *run]))
            print(
                f"{texts} texts, {kind}: {found[-1].wall_s:.1f} s, processor {found[-1].cpu_s:.1f} s",
                flush=True,
            )
    recorded = read_record(acts)
    print(f"{texts} texts: {sum(act.kind == 'sync' for act in recorded)} syncs of {len(recorded)} calls")
    for kind, found in costs.items():
        wall = statistics.median(cost.wall_s for cost in found)
        processor = statistics.median(cost.cpu_s for cost in found)
        print(f"{texts} texts, {kind}, median of {rounds}: {wall:.1f} s, processor {processor:.1f} s")


if __name__ == "__main__":
    main()
