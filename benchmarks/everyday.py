"""What the commands of a first hour and of every day cost, in this checkout and another, in turns.

    python -m benchmarks.everyday CRAWL [--old CHECKOUT] [--rounds 3] [--only ROW…] [--skip-old ROW…]
                                  [--scratch FOLDER]

A line a run with wall and processor time of all its processes, then the medians as a table. Both sides run on
this environment's libraries with their own source, compiled ahead. A row whose command another checkout does
not know, or refuses, is marked as such. `--only` and `--skip-old` take the beginnings of rows.

With `--scratch` the outputs that rows look at, and what was measured, stay in that folder. A later call, also
of other rows, goes on from there, and its table is of all of them. An interrupted call prints the table of what
it has."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import tomli_w

from pipeline.demo.pages import write_article

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("sluice", "pipeline", "stages", "trainer", "lineage")
_IN_PROCESS = ("--set", "ray.address=none")
_PREPARED = "prepared"
_MEASURED = "measured.jsonl"
_PROXIES = 4
"""Mixtures that are tried; with two sources a design has nine runs: the natural mixture twice, both corners, a
drawn one and four that are held out."""
_VOCABULARY = 1024
"""Ids of the ablation's tokenizer: its steps are short, so that the row shows what a run costs besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds of one command; None where it failed, with the last line that it printed."""

    wall_s: float
    cpu_s: float
    why_not: str | None = None


class Side:
    """A checkout with its outputs."""

    def __init__(self, name: str, checkout: Path, folder: Path, crawl: Path) -> None:
        self.name, self.checkout, self.folder, self.crawl = name, checkout, folder, crawl
        folder.mkdir(exist_ok=True)
        self.env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        self.env |= {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        subprocess.run(
            [sys.executable, "-m", "compileall", "-q", *_PACKAGES], cwd=checkout, env=self.env, check=False
        )

    def call(self, *words: str) -> Spent:
        """Carry a command out to its end. Processor time is that of every process that was seen or waited
        for."""
        with tempfile.TemporaryFile("w+") as output:
            started = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=self.folder,
                env=self.env,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            seen: dict[tuple[int, float], float] = {}
            root = psutil.Process(process.pid)
            while True:
                found, status, usage = os.wait4(process.pid, os.WNOHANG)
                if found:
                    break
                _look(root, seen)
                time.sleep(0.02)
            wall = time.perf_counter() - started
            process.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            lines = output.read().strip().splitlines() or [""]
        waited = usage.ru_utime + usage.ru_stime
        cpu = max(
            waited,
            sum(value for key, value in seen.items() if key[0] != process.pid) + _own(seen, process.pid),
        )
        return Spent(wall_s=wall, cpu_s=cpu, why_not=lines[-1][:100] if process.returncode else None)

    def made(self, *words: str) -> None:
        """Carry out what rows need; RuntimeError if it fails."""
        if (spent := self.call(*words)).why_not is not None:
            raise RuntimeError(f"{self.name}: {' '.join(words)}: {spent.why_not}")

    def fresh(self, name: str) -> str:
        """An output that is not there yet."""
        number = 0
        while (place := self.folder / f"{name}-{number}").exists():
            number += 1
        return str(place)


def _look(root: psutil.Process, seen: dict[tuple[int, float], float]) -> None:
    try:
        members = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for member in members:
        try:
            times = member.cpu_times()
            seen[member.pid, member.create_time()] = times.user + times.system
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def _own(seen: dict[tuple[int, float], float], pid: int) -> float:
    return sum(value for key, value in seen.items() if key[0] == pid)


def _recipe(side: Side, name: str, inputs: str, **run: object) -> str:
    path = side.folder / f"{name}.toml"
    source = {"name": "cc", "inputs": [inputs]}
    path.write_text(
        tomli_w.dumps({"run": {"name": name, "output": f"{side.folder}/{name}", **run}, "source": [source]})
    )
    return str(path)


def prepare(side: Side) -> None:
    """Recipes and finished outputs that the rows look at, where they are not there yet; what an interrupted
    call left of them is continued."""
    if (side.folder / _PREPARED).exists():
        return
    folder, rng = side.folder, random.Random(0)
    rows = [{"id": str(number), "text": write_article("en", rng).text} for number in range(20)]
    (folder / "texts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    _recipe(side, "texts", f"{folder}/texts.jsonl")
    _recipe(side, "pages", f"{sorted(side.crawl.glob('*.warc.gz'))[0]}", keep_text=True)
    _recipe(side, "crawl", f"{side.crawl}/*.warc.gz", keep_text=True)
    # An old checkout may know no ray.address = "none".
    local = () if side.call("pipeline", "run", f"{folder}/texts.toml", *_IN_PROCESS).why_not else _IN_PROCESS
    side.made("pipeline", "run", f"{folder}/texts.toml", *local)
    side.made("pipeline", "run", f"{folder}/pages.toml", *local, "--set", "quality.ledger=all")
    side.made("pipeline", "run", f"{folder}/crawl.toml", *local)
    train = {"data": f"{folder}/crawl", "model": "debug", "seq_len": 256, "global_batch": 8, "workers": 1}
    whole = {"run": {"name": "once"}, "train": train | {"output": f"{folder}/once", "steps": 5}}
    (folder / "train.toml").write_text(tomli_w.dumps(whole))
    side.made("trainer", f"{folder}/train.toml")
    for name in ("a", "b"):
        rows = [{"text": write_article("en", rng).text} for _ in range(60)]
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    sources = [{"name": name, "inputs": [f"{folder}/{name}.jsonl"]} for name in ("a", "b")]
    tokenizer = ("--vocab", str(_VOCABULARY), "--to", f"{folder}/small.tiktoken")
    side.made("pipeline", "tokenizer", "train", f"{folder}/crawl", *tokenizer)
    two = {
        "run": {"name": "two", "output": f"{folder}/two"},
        "source": sources,
        "tokenize": {"encoding": f"{folder}/small.tiktoken"},
    }
    (folder / "two.toml").write_text(tomli_w.dumps(two))
    side.made("pipeline", "run", f"{folder}/two.toml", *local)
    proxies = {"runs": _PROXIES, "replicates": 1, "proxy": {"tokens": 20_000, "model": "debug"}}
    own = {"data": f"{folder}/two", "output": f"{folder}/mix", "steps": 5, "validation": 0.05}
    mix = {"run": {"name": "mix"}, "train": train | own}
    (folder / "mix.toml").write_text(tomli_w.dumps(mix | {"mix": proxies}))
    (folder / _PREPARED).touch()


def _ablation(side: Side) -> Spent:
    out = side.fresh("ablation")
    place = (
        "--set",
        f"train.output={out}",
        "--set",
        f"run.name={Path(out).name}",
    )  # a run's name has one output
    designed = side.call("pipeline", "mix", "design", f"{side.folder}/mix.toml", *place)
    if designed.why_not is not None:
        return designed
    return side.call("pipeline", "mix", "run", f"{side.folder}/mix.toml", *place)


def _running(recipe: str, *words: str) -> Callable[[Side], Spent]:
    def row(side: Side) -> Spent:
        given = [word.format(folder=side.folder) for word in words]
        out = side.fresh(recipe)
        return side.call(
            "pipeline", "run", f"{side.folder}/{recipe}.toml", "--set", f"run.output={out}", *given
        )

    return row


def _calling(*words: str) -> Callable[[Side], Spent]:
    return lambda side: side.call("pipeline", *(word.format(folder=side.folder) for word in words))


_CHANGED = ("--from", "{folder}/crawl", "--set", "quality.min_words=80")

ROWS: dict[str, Callable[[Side], Spent]] = {
    "20 texts, without Ray": _running("texts", *_IN_PROCESS),
    "20 texts, Ray": _running("texts"),
    "190 pages, without Ray": _running("pages", *_IN_PROCESS),
    "190 pages, Ray": _running("pages"),
    "1,138 pages, without Ray": _running("crawl", *_IN_PROCESS),
    "1,138 pages, Ray": _running("crawl"),
    "re-filter of 1,138 pages, without Ray": _running("crawl", *_IN_PROCESS, *_CHANGED),
    "re-filter of 1,138 pages, Ray": _running("crawl", *_CHANGED),
    "tune": _calling(
        "tune", "{folder}/pages/recipe.toml", "--from", "{folder}/pages", "--set", "quality.min_words=80"
    ),
    "verify": _calling("verify", "{folder}/crawl"),
    "trace": _calling("trace", "{folder}/crawl", "--shard", "cc/0", "--offset", "1000"),
    "lineage": _calling("lineage", "{folder}/crawl", "SELECT rule, count(*) FROM documents GROUP BY rule"),
    "a finished run": _calling("run", "{folder}/crawl.toml"),
    "a finished training": _calling("train", "{folder}/train.toml"),
    "ablation of nine proxies": _ablation,
}


def main() -> None:
    """Print a line a run, then the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("crawl", type=Path)
    parser.add_argument("--old", type=Path, metavar="CHECKOUT")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[""], metavar="ROW")
    parser.add_argument("--skip-old", nargs="*", default=[], metavar="ROW")
    parser.add_argument("--scratch", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    checkouts = {"new": _ROOT} | ({"old": options.old.resolve()} if options.old else {})
    with contextlib.ExitStack() as stack:
        scratch = options.scratch or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-"))
        )
        scratch.mkdir(parents=True, exist_ok=True)
        scratch = scratch.resolve()
        try:
            _measure(options, checkouts, scratch)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        _print_table(_read(scratch / _MEASURED), tuple(checkouts))


def _measure(options: argparse.Namespace, checkouts: Mapping[str, Path], scratch: Path) -> None:
    """Carry the rows out in turns. What came of each is written down at once."""
    sides = [Side(name, place, scratch / name, options.crawl.resolve()) for name, place in checkouts.items()]
    for side in sides:
        prepare(side)
    for row, carry_out in ROWS.items():
        if not row.startswith(tuple(options.only)):
            continue
        refused = {"old"} if row.startswith(tuple(options.skip_old)) else set[str]()
        for _ in range(options.rounds):
            for side in sides:
                if side.name in refused:
                    continue
                spent = carry_out(side)
                with (scratch / _MEASURED).open("a") as file:
                    file.write(json.dumps({"row": row, "side": side.name} | asdict(spent)) + "\n")
                print(f"{row}, {side.name}: {_shown(spent)}", flush=True)
                if spent.why_not is not None:
                    refused.add(side.name)


def _read(measured: Path) -> dict[tuple[str, str], list[Spent]]:
    """What was measured, by row and side."""
    found: dict[tuple[str, str], list[Spent]] = {}
    for line in measured.read_text().splitlines() if measured.exists() else ():
        plain = json.loads(line)
        key = plain.pop("row"), plain.pop("side")
        found.setdefault(key, []).append(Spent(**plain))
    return found


def _print_table(found: Mapping[tuple[str, str], Sequence[Spent]], names: Sequence[str]) -> None:
    print(f"\n| medians | runs | {' | '.join(f'{name}, wall | {name}, processor' for name in names)} |")
    print("| --- | --- |" + " --- | --- |" * len(names))
    for row in (row for row in ROWS if any((row, name) in found for name in names)):
        cells = [str(max(len(found.get((row, name), ())) for name in names))]
        cells += [_cells(found.get((row, name), ())) for name in names]
        print(f"| {row} | {' | '.join(cells)} |")
    _print_share(found, "re-filter of 1,138 pages, without Ray", "1,138 pages, without Ray")
    _print_share(found, "re-filter of 1,138 pages, Ray", "1,138 pages, Ray")


def _shown(spent: Spent) -> str:
    return spent.why_not or f"{spent.wall_s:.1f} s, processor {spent.cpu_s:.1f} s"


def _cells(runs: Sequence[Spent]) -> str:
    if not runs:
        return "not run | not run"
    if runs[-1].why_not is not None:
        return "refused | refused"
    wall, cpu = (
        statistics.median(values) for values in zip(*((one.wall_s, one.cpu_s) for one in runs), strict=True)
    )
    return f"{wall:.1f} s | {cpu:.1f} s"


def _print_share(found: Mapping[tuple[str, str], Sequence[Spent]], part: str, whole: str) -> None:
    runs = [found.get((row, "new"), []) for row in (part, whole)]
    if all(each and each[-1].why_not is None for each in runs):
        a, b = (statistics.median(one.cpu_s for one in each) for each in runs)
        print(f"{part}: {a / b:.1%} of the processor time of {whole}")


if __name__ == "__main__":
    main()
