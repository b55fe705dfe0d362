"""The loss of a run whose products are float8, emulated, beside bfloat16 and float32, on the demo's articles.

Every side is a run of its own under torchrun with the same recipe, seed and batches, but for `dtype`. What is
compared is the mean loss over stretches of 20 steps, which is as fine as the noise of single batches allows;
a second bfloat16 run with another seed, which draws other first weights and another order, says how far apart
two good runs may be.

    python -m benchmarks.float8 [--data OUT] [--model debug] [--steps 200] [--to FILE.csv]

`OUT` is the output of a data run; without one the articles of which `sluice demo` makes its crawl are
tokenized first. `FILE.csv` gets every step's losses."""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from lineage.recipe import as_toml, parse_table
from tests.support.outputs.demo_output import make_demo_output
from trainer.options import TrainRecipe

STRETCH = 20
PEER = "bfloat16"
SIDES: dict[str, dict[str, Any]] = {
    PEER: {"dtype": "bfloat16"},
    "float8 rowwise": {"dtype": "float8", "float8": {"recipe": "rowwise", "emulate": True}},
    "float8 tensorwise": {"dtype": "float8", "float8": {"recipe": "tensorwise", "emulate": True}},
    "bfloat16, another seed": {"dtype": "bfloat16", "seed": 1},
    "float32": {"dtype": "float32"},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="the output of a data run")
    parser.add_argument("--model", default="debug")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--to", type=Path, help="a CSV file of every step's losses")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-float8-") as scratch:
        data = options.data or make_demo_output(Path(scratch) / "demo")
        losses = {
            name: train(Path(scratch), data, name, {"model": options.model, "steps": options.steps} | side)
            for name, side in SIDES.items()
        }
    if options.to is not None:
        write_losses(options.to, losses)
    stretches = {
        name: [fmean(told[first : first + STRETCH]) for first in range(0, options.steps, STRETCH)]
        for name, told in losses.items()
    }
    for name, means in stretches.items():
        apart = [(mean - peer) / peer for mean, peer in zip(means, stretches[PEER], strict=True)]
        told = {
            "losses": [round(mean, 4) for mean in means],
            f"furthest_from_{PEER}": f"{max(apart, key=abs):+.2%}",
            "at_the_end": f"{apart[-1]:+.2%}",
        }
        print(json.dumps({name: told}), flush=True)


def train(scratch: Path, data: str, name: str, side: dict[str, Any]) -> list[float]:
    """The losses of a run's steps."""
    output = scratch / name
    table = {
        "data": data,
        "output": str(output),
        "seq_len": 128,
        "global_batch": 8,
        "micro_batch": 8,
        "workers": 1,
        "optimizer": {"lr": 3e-3, "warmup_steps": 10},
        "checkpoint": {"every": side["steps"]},
    }
    path = scratch / f"{name}.toml"
    path.write_text(as_toml(parse_table(TrainRecipe, {"run": {"name": name}, "train": table | side})))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=1",
        "-m",
        "trainer",
        str(path),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return [json.loads(line)["loss"] for line in (output / "metrics.jsonl").read_text().splitlines()]


def write_losses(path: Path, losses: dict[str, list[float]]) -> None:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["step", *losses])
        rows.writerows([step, *told] for step, told in enumerate(zip(*losses.values(), strict=True)))


if __name__ == "__main__":
    main()
