"""The whole pipeline beside datatrove's FineWeb-like one: the same files, rules and extractor call, two
workers each.

    python -m benchmarks.pipeline CRAWL [--times 1 9] [--rounds 1] [--english]
                                        [--sides datatrove trafilatura prefilter resiliparse plain bound]
    python -m benchmarks.pipeline CRAWL [--pages 50] --sides datatrove fineweb fineweb-raw fineweb2 dclm dolma3

In each round the sides run in turn at both sizes, with one tokenizer; given are the whole and, from the two
sizes, the cost of one more page beside the first side's, so that start-up is seen and not mistaken for work.
Per step: milliseconds a page, and MB/s of compressed input on one core. `fineweb` and so on are the recipes
of that name, and `fineweb-raw` and so on those that compare texts as they are: what normalisation costs.
`plain` is our `trafilatura` without Ray (and with its jemalloc), `bound` what the libraries of `resiliparse`
take alone. Peak memory is that of all processes together; an idle Ray's own is measured first."""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from benchmarks.support.enlarge import enlarge, is_english
from benchmarks.support.measure import Cost, measure
from pipeline.recipe_help.named import template

VARIANTS: dict[str, dict[str, Any]] = {
    "trafilatura": {"parse": {"extractor": "trafilatura", "favor": "precision"}},
    "prefilter": {
        "parse": {"extractor": "trafilatura", "favor": "precision"},
        "language": {"prefilter": True},
    },
    "resiliparse": {"parse": {"extractor": "resiliparse"}},
}
VARIANTS["plain"] = VARIANTS["trafilatura"]  # without Ray: see benchmarks/peers/plain.py
NAMED = ("fineweb", "fineweb2", "dclm", "dolma3")
"""Recipes by their names, as `sluice recipe new` writes them: also what each extracts, judges and compares."""
_PEER_RESILIPARSE = "datatrove-resiliparse"
"""datatrove with the extractor of our `resiliparse`."""
_RAW = "-raw"
RAW = tuple(f"{name}{_RAW}" for name in NAMED)
"""The same with dedup.normalise = "none"."""
_RAY = importlib.util.find_spec("ray")
_JEMALLOC = Path(str(_RAY and _RAY.origin)).parent / "core" / "libjemalloc.so"  # as Ray's workers have it

Round = tuple[dict[str, Cost], dict[str, Cost]]
"""What each side took at the small size, and at the large one."""

_IDLE = """
import time
from pipeline.cluster.session import ray_session
with ray_session("local", num_cpus=2):
    time.sleep(5)
"""


def main() -> None:
    """Print a line a run, then the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("crawl", type=Path)
    parser.add_argument(
        "--times", type=int, nargs=2, default=[1, 9], help="the two sizes, as multiples of the crawl"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--pages", type=int, help="only so many pages of each file of the crawl, the first")
    usual = ["datatrove", *VARIANTS, *NAMED, "bound"]
    parser.add_argument(
        "--sides",
        nargs="+",
        choices=[*usual, *RAW, _PEER_RESILIPARSE],
        default=usual,
        help="the first is what others are held to",
    )
    parser.add_argument(
        "--without-ray", action="store_true", help="our sides in a plain pool of processes, as `plain`"
    )
    parser.add_argument("--english", action="store_true", help="only the pages that are in English")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        compare(options, Path(scratch))


def compare(options: argparse.Namespace, scratch: Path) -> None:
    """Run every side at both sizes, in turn, `rounds` times over: a machine that slows down slows all of
    them."""
    tokenizer = tokenizer_for(scratch)
    if not options.without_ray:
        idle = measure([sys.executable, "-c", _IDLE])
        print(json.dumps({"side": "an idle Ray", "peak_mb": round(idle.peak_mb)}))
    crawls = {times: scratch / f"crawl-{times}" for times in options.times}
    wanted = is_english if options.english else None
    pages = {
        times: enlarge(options.crawl, crawl, times, wanted, options.pages) for times, crawl in crawls.items()
    }
    small, large = options.times
    rounds: list[Round] = []
    for _ in range(options.rounds):
        at_small, at_large = (
            {
                side: cost_of(side, crawls[times], pages[times], tokenizer, with_ray=not options.without_ray)
                for side in options.sides
            }
            for times in (small, large)
        )
        rounds.append((at_small, at_large))
    for side in options.sides[1:]:
        for what in ("wall_s", "cpu_s"):
            _tell(rounds, options.sides[0], side, what, pages[large] - pages[small])


def _tell(rounds: Sequence[Round], first: str, side: str, what: str, num_pages: int) -> None:
    """Print what one more page costs beside the first side: the ratio of the medians, and of each round."""

    def one_more(name: str) -> list[float]:
        """Milliseconds, round by round."""
        return [
            1000 * (getattr(large[name], what) - getattr(small[name], what)) / num_pages
            for small, large in rounds
        ]

    theirs, ours = one_more(first), one_more(side)
    median_theirs, median_ours = statistics.median(theirs), statistics.median(ours)
    each = ", ".join(f"{their / our:.2f}" for their, our in zip(theirs, ours, strict=True))
    print(
        f"{side}: one more page costs {median_ours:.2f} ms of {what[:-2]} time, {first}'s"
        f" {median_theirs:.2f}: {median_theirs / median_ours:.2f} times faster (round by round: {each})"
    )


def cost_of(side: str, crawl: Path, num_pages: int, tokenizer: Path, *, with_ray: bool) -> Cost:
    """Run one side and print what it took."""
    out = tokenizer.with_name("out")
    cost = measure(_command(side, crawl, out, tokenizer, with_ray=with_ray))
    steps = _their_steps(out) if side.startswith("datatrove") else _our_steps(out)
    shutil.rmtree(out)
    megabytes = sum(file.stat().st_size for file in crawl.iterdir()) / 1e6
    print(
        json.dumps(
            {
                "side": side,
                "pages": num_pages,
                "wall_s": round(cost.wall_s, 1),
                "cpu_s": round(cost.cpu_s, 1),
                "peak_mb": round(cost.peak_mb),
                "ms_per_page": {
                    name: round(1000 * seconds / num_pages, 3) for name, seconds in steps.items()
                },
                "mb_per_s": {
                    name: round(megabytes / seconds, 1) for name, seconds in steps.items() if seconds >= 0.01
                },
            }
        ),
        flush=True,
    )
    return cost


def _our_steps(out: Path) -> dict[str, float]:
    """Seconds of each step over all workers; `other` is reading, hashing and writing."""
    seconds: dict[str, float]
    (seconds,) = json.loads((out / "run.json").read_text())["seconds"].values()
    together = seconds.pop("all")
    return seconds | {"other": together - sum(seconds.values())}


def _their_steps(out: Path) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for stats in sorted(out.glob("logs-*/stats.json")):
        for step in json.loads(stats.read_text()):
            name = step["name"].split(" ", 2)[-1]
            spent = step["time_stats"]  # a plain number where a step timed a single thing
            seconds[name] = seconds.get(name, 0.0) + (spent["total"] if isinstance(spent, dict) else spent)
    return seconds


def tokenizer_for(scratch: Path) -> Path:
    """A byte-level BPE for the peer, which wants a tokenizer.json with an end-of-text token."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    texts = [
        Path(path).read_text(encoding="utf-8", errors="replace")
        for path in Path(__file__).parents[1].glob("*/*.py")
    ]
    trainer = BpeTrainer(
        vocab_size=8000,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    path = scratch / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def _command(side: str, crawl: Path, out: Path, tokenizer: Path, *, with_ray: bool) -> list[str]:
    match side:
        case "datatrove" | "datatrove-resiliparse":
            return [
                sys.executable,
                "-m",
                "benchmarks.peers.datatrove",
                str(crawl),
                str(out),
                str(tokenizer),
                "en",
                *(["--resiliparse"] if side != "datatrove" else []),
            ]
        case "bound":
            return [sys.executable, "-m", "benchmarks.peers.bound", str(crawl), str(out)]
    return _ours(side, crawl, out, tokenizer, with_ray=with_ray)


def _ours(variant: str, crawl: Path, out: Path, tokenizer: Path, *, with_ray: bool) -> list[str]:
    recipe: dict[str, Any] = {
        "run": {"name": "bench", "output": str(out)},
        "source": [{"name": "crawl", "inputs": [str(crawl / "*.warc.gz")]}],
        "quality": {
            "rules": ["gopher_repetition", "gopher_quality", "c4", "fineweb"],
            "c4_terminal_punctuation": False,
        },
        "pii": {"kinds": []},
        "dedup": {"url": False, "bands": 14, "rows": 8, "engine": "local"},
        "tokenize": {"encoding": str(tokenizer)},
        "ray": {"num_cpus": 2},
        **VARIANTS.get(variant, {}),
    }
    if variant in (*NAMED, *RAW):
        recipe = {
            **template(variant.removesuffix(_RAW)).tables,
            **{name: recipe[name] for name in ("run", "source", "tokenize", "ray")},
        }
        # As the other sides: in this process.
        recipe["dedup"] = {**recipe["dedup"], "engine": "local"}
        if variant in RAW:
            recipe["dedup"]["normalise"] = "none"
    path = tokenizer.with_name(f"{variant}.toml")
    path.write_text(tomli_w.dumps(recipe))
    if variant == "plain" or not with_ray:
        return ["env", f"LD_PRELOAD={_JEMALLOC}", sys.executable, "-m", "benchmarks.peers.plain", str(path)]
    return [sys.executable, "-m", "pipeline", "run", str(path), "--json"]


if __name__ == "__main__":
    main()
