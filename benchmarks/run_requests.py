"""How many requests to an object store a run sends: for itself, for each unit and for each shard.

A local server that speaks S3 logs every request of runs that read from it and write to it, with different numbers of
files and shards; reads of the input files are counted apart, by runs into a folder. The three numbers are the least
squares over these runs. HEAD counts as a read, since stores charge it as GET; DELETE is free. `sluice plan` takes its
constants from here.

    python -m benchmarks.run_requests
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import tomli_w

from benchmarks.store_requests import BUCKET, requests, serve
from lineage.index.output_index import read_index
from lineage.storage.folder import Folder, filesystem
from pipeline.demo.pages import write_article

_WRITES, _READS = ("PUT", "POST"), ("GET", "HEAD")


def main() -> None:
    """Print a line a run, then the fit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--shard-tokens", type=int, nargs="+", default=[2_000, 1_000_000])
    options = parser.parse_args()
    rows, writes, reads = [], [], []
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        log = Path(folder) / "log"
        server = serve(log)
        try:
            filesystem(f"s3://{BUCKET}").mkdir(BUCKET)
            for num_files in options.files:
                _write_inputs(num_files)
                offset = len(log.read_text(errors="replace"))
                _run(Path(folder), num_files, options.shard_tokens[0], str(Path(folder) / f"out-{num_files}"))
                counts = requests(log, offset)
                of_inputs = sum(counts.get(method, 0) for method in _READS) / num_files
                print(f"{num_files} files into a folder: {of_inputs:.1f} reads a file", flush=True)
                for shard_tokens in options.shard_tokens:
                    offset = len(log.read_text(errors="replace"))
                    out = _run(
                        Path(folder), num_files, shard_tokens, f"s3://{BUCKET}/out-{num_files}-{shard_tokens}"
                    )
                    counts = requests(log, offset)
                    shards = len(read_index(out).shards)
                    print(f"{num_files} files, {shards} shards: {json.dumps(counts)}", flush=True)
                    rows.append((1, num_files, shards))
                    writes.append(sum(counts.get(method, 0) for method in _WRITES))
                    reads.append(sum(counts.get(method, 0) for method in _READS) - of_inputs * num_files)
        finally:
            server.kill()
            server.wait()
    for name, counted in (("writes", writes), ("reads", reads)):
        fit, *_ = np.linalg.lstsq(np.array(rows, float), np.array(counted, float), rcond=None)
        off = np.abs(np.array(rows) @ fit / np.array(counted) - 1).max()
        print(f"{name}: run {fit[0]:.0f}, unit {fit[1]:.1f}, shard {fit[2]:.1f}; off by at most {off:.0%}")


def _write_inputs(num_files: int) -> None:
    """Files of rows: each is a unit."""
    files = filesystem(f"s3://{BUCKET}")
    for number in range(num_files):
        texts = (write_article("en", random.Random(100 * number + each), 10).text for each in range(40))
        lines = "".join(f"{json.dumps({'id': str(at), 'text': text})}\n" for at, text in enumerate(texts))
        files.pipe_file(f"{BUCKET}/in-{num_files}/{number:03}.jsonl", lines.encode())


def _run(folder: Path, num_files: int, shard_tokens: int, out: str) -> Folder:
    recipe = folder / f"{num_files}-{shard_tokens}.toml"
    plain = {
        "run": {"name": "counted", "output": out},
        "source": [{"name": "posts", "inputs": [f"s3://{BUCKET}/in-{num_files}/*.jsonl"]}],
        "tokenize": {"shard_tokens": shard_tokens},
        "ray": {"address": "none"},
    }
    recipe.write_text(tomli_w.dumps(plain))
    command = [sys.executable, "-m", "sluice", "run", str(recipe), "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
    return Folder(out)


if __name__ == "__main__":
    main()
