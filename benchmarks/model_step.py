"""A model step of `sluice run` beside a plain loop over the same batches of the same encoder.

    python -m benchmarks.model_step [--documents 20000] [--chars 600] [--width 128] [--files 8]

A transformers encoder with random weights scores texts on one actor of one thread, while other workers read.
The peer is the same encoder called by a loop over the same texts, 256 at a time, which does nothing else.
Told are the documents a second of the loop and of the actor while it scores, the share of the phase in which
it scores, how much of the scores was there before reading ended, the largest block in the object store, and
the peak memory of all processes."""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import tomli_w

from benchmarks.support.measure import measure
from pipeline.model_steps.fragments import MOST_DOCUMENTS
from pipeline.models.encoder import load_encoder
from stages.steps.classifier import ClassifierTable
from tests.support.steps.tiny_encoder import make_encoder


def main() -> None:
    """Print the figures of one run and one loop."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--chars", type=int, default=600, help="of each text")
    parser.add_argument(
        "--width", type=int, default=128, help="of the encoder; it has two layers and sees 128 tokens"
    )
    parser.add_argument("--files", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        folder = Path(scratch)
        texts = _write_texts(folder, options.documents, options.chars, options.files)
        (folder / "encoder").mkdir()
        table = {
            "name": "edu",
            "model": make_encoder(folder / "encoder", width=options.width),
            "label": "high",
        }
        loop = _loop(table, texts)
        print(f"plain loop: {loop:,.0f} documents/s", flush=True)
        watch = _Watch(folder / "out")
        watch.start()
        cost = measure([sys.executable, "-m", "pipeline", "run", str(_recipe(folder, table))])
        watch.stopped.set()
        summary = json.loads((folder / "out" / "run.json").read_text())
    scoring = sum(of_source["classifier"] for of_source in summary["seconds"].values())
    [phase] = [phase["seconds"] for phase in summary["phases"] if phase["name"] == "read and ask models"]
    rate = len(texts) / scoring
    print(f"model step: {rate:,.0f} documents/s while it scores, {rate / loop:.3f} of the loop's", flush=True)
    print(f"  it scores for {scoring:.1f} s of the {phase:.1f} s in which files are read and scored")
    print(f"  {watch.early:,} of {watch.all:,} fragments were scored before the last file was read")
    print(
        f"  largest block in the object store: {_largest_block(summary):,} bytes; peak memory"
        f" {cost.peak_mb:,.0f} MB"
    )
    print(f"  the whole run: {cost.wall_s:.1f} s, processor {cost.cpu_s:.1f} s")


def _write_texts(folder: Path, num: int, chars: int, num_files: int) -> list[str]:
    """Texts of the crawl's kind of length, in files of JSONL; the texts in the order in which they are
    read."""
    rng = random.Random(0)
    texts = []
    for _ in range(num):
        size = max(20, int(chars * rng.lognormvariate(-0.3, 0.8)))
        texts.append(" ".join(f"w{rng.randrange(10**4)}" for _ in range(size // 6)))
    for number in range(num_files):
        rows = (json.dumps({"text": text}) + "\n" for text in texts[number::num_files])
        (folder / f"texts-{number}.jsonl").write_text("".join(rows))
    return [text for number in range(num_files) for text in texts[number::num_files]]


def _loop(table: dict[str, Any], texts: list[str]) -> float:
    """Documents a second of the encoder in this process."""
    scores = load_encoder(ClassifierTable(**table, threshold=0.5), False)
    scores(texts[:MOST_DOCUMENTS])
    started = time.perf_counter()
    for first in range(0, len(texts), MOST_DOCUMENTS):
        scores(texts[first : first + MOST_DOCUMENTS])
    return len(texts) / (time.perf_counter() - started)


def _recipe(folder: Path, table: dict[str, Any]) -> Path:
    steps = ["parse", "language", "classifier", "pii", "identity"]
    plain = {
        "run": {"name": "bench", "output": str(folder / "out")},
        "source": [{"name": "texts", "inputs": [str(folder / "*.jsonl")], "steps": steps}],
        "language": {"keep": [], "min_score": 0.0},
        "classifier": [{**table, "threshold": 0.0, "reject": "below"}],
        "ray": {"num_cpus": 2},
    }
    path = folder / "recipe.toml"
    path.write_text(tomli_w.dumps(plain))
    return path


class _Watch(threading.Thread):
    """Looks at a run's files as they come: `early` fragments were scored when the last file had been read, of
    `all`."""

    def __init__(self, out: Path) -> None:
        super().__init__(daemon=True)
        self.stopped = threading.Event()
        self.early = self.all = 0
        self._out, self._num_read = out, 0

    def run(self) -> None:
        while not self.stopped.wait(0.1):
            names = [path.name for path in self._out.glob("work/units/*/*")]
            num_read = names.count("fragments.json")
            scored = sum(name.count(".") == 2 for name in names if name.endswith(".arrow"))
            if num_read > self._num_read:
                self._num_read, self.early = num_read, scored
            self.all = max(self.all, scored)


def _largest_block(summary: dict[str, Any]) -> int:
    """Bytes, from Ray Data's own report of the Dataset that reads and scores."""
    report = "\n".join(summary["datasets"][0]["lines"])
    return max(int(found) for found in re.findall(r"Output size bytes per block: \d+ min, (\d+) max", report))


if __name__ == "__main__":
    main()
