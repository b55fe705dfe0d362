"""One threshold changed: a run from the texts that an earlier one kept, beside a run from the crawl files.

    python -m benchmarks.refilter CRAWL [--times 1] [--rounds 1] [--set quality.min_words=80]

Trafilatura, two workers. Given are wall and processor time of all processes of both commands, what a run over
a single text costs (Ray's start, imports and tables: neither can do without), and whether the bytes are
equal. Last come the units that read and judge alone, in this process, once its models are loaded."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import tomli_w

from benchmarks.support.enlarge import enlarge
from benchmarks.support.measure import Cost, measure
from pipeline.demo.pages import write_article
from pipeline.phases.read import read_job, read_unit
from pipeline.plan import plan_run
from pipeline.recipe.load import load
from pipeline.refilter.earlier import Refiltering, open_earlier, plan_from, starts_of
from pipeline.refilter.unit import refilter_phase, refilter_unit

_COVERED = ("shards/", "documents/", "dedup/", "texts/", "index.json", "excerpts.parquet")


def main() -> None:
    """Print a line a run, then the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("crawl", type=Path)
    parser.add_argument("--times", type=int, default=1, help="the crawl's pages so many times over")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--set", default="quality.min_words=80", metavar="KEY=VALUE", help="what is changed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        folder = Path(scratch)
        crawl = folder / "crawl"
        crawl.mkdir()
        num_pages = enlarge(options.crawl, crawl, options.times)
        recipe = _recipe(folder / "recipe.toml", f"{crawl}/*.warc.gz")
        _say("keeps its texts", _run(recipe, folder / "kept"), num_pages)
        (folder / "one.jsonl").write_text(
            json.dumps({"text": write_article("en", random.Random(0)).text}) + "\n"
        )
        least = _run(_recipe(folder / "one.toml", f"{folder}/one.jsonl"), folder / "one")
        _say("a single text", least, 1)
        pairs = []
        for number in range(options.rounds):
            outs = folder / f"crawl-{number}", folder / f"texts-{number}"
            before = _run(recipe, outs[0], "--set", options.set)
            _say("from the crawl", before, num_pages)
            after = _run(recipe, outs[1], "--set", options.set, "--from", str(folder / "kept"))
            _say("from its texts", after, num_pages)
            print("equal bytes" if _bytes(outs[0]) == _bytes(outs[1]) else "THE BYTES DIFFER", flush=True)
            pairs.append((before, after))
        _print_units(recipe, folder, options.set)
    for what, cost in (("as a whole", 0.0), ("without what a single text costs", least.cpu_s)):
        ratios = [(before.cpu_s - cost) / max(after.cpu_s - cost, 0.1) for before, after in pairs]
        print(f"processor time {what}, from the crawl beside from its texts: {statistics.median(ratios):.1f}")


def _print_units(path: Path, folder: Path, change: str) -> None:
    """Processor seconds of reading all crawl files, and of judging their parsed texts."""
    recipe = load(path, [change, f"run.output={folder / 'units'}"])
    plan, job = plan_run(recipe), read_job(recipe)
    read_unit(replace(job, key=plan.key), min(plan.units, key=lambda unit: unit.size))
    started = time.process_time()
    for unit in plan.units:
        read_unit(replace(job, key=plan.key), unit)
    reading = time.process_time() - started
    earlier = open_earlier(str(folder / "kept"))
    plan = plan_from(recipe, earlier)
    refiltering = Refiltering(earlier=earlier, starts=starts_of(plan, earlier))
    phase = refilter_phase(plan, replace(job, key=plan.key), refiltering, lambda result: None)
    started = time.process_time()
    for item in phase.units:
        refilter_unit(phase.job, item)
    judging = time.process_time() - started
    print(
        f"units alone: reading {reading:.2f} s, judging parsed texts {judging:.2f} s: {reading / judging:.1f}"
    )


def _recipe(path: Path, inputs: str) -> Path:
    plain = {
        "run": {"name": "bench", "output": str(path.with_suffix("")), "keep_text": True},
        "source": [{"name": "cc", "inputs": [inputs]}],
        "ray": {"num_cpus": 2},
    }
    path.write_text(tomli_w.dumps(plain))
    return path


def _run(recipe: Path, out: Path, *more: str) -> Cost:
    return measure(
        [sys.executable, "-m", "pipeline", "run", str(recipe), "--set", f"run.output={out}", *more]
    )


def _say(what: str, cost: Cost, num_pages: int) -> None:
    print(f"{what}: {num_pages:,} pages, {cost.wall_s:.1f} s, processor {cost.cpu_s:.1f} s", flush=True)


def _bytes(out: Path) -> dict[str, bytes]:
    """Every file that the recipe and the pages decide; facts name the place of an input."""
    names = (str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    chosen = [
        name
        for name in names
        if name.startswith(_COVERED) and "/facts/" not in name and "texts.json" not in name
    ]
    return {name: (out / name).read_bytes() for name in chosen}


if __name__ == "__main__":
    main()
