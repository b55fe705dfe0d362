"""A training run as users start it, on made-up shards: tokens a second, MFU, and how much of a step waits for
data.

Each variant is a process of its own under torchrun, on all GPUs of this machine (else on one CPU process,
with a small model); medians over the steps after the warm-up, from the run's own metrics.jsonl. Then
attention alone, forward and backward: documents kept apart, beside one document as long as the sequence, and
beside torch's causal attention.

    python -m benchmarks.training [--model 1B] [--seq-len 8192] [--steps 60] [--scratch DIR]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lineage.index.blocks import BLOCK_TOKENS
from lineage.index.output_index import make_index, publish_index
from lineage.recipe import as_toml, parse_table
from lineage.storage.folder import Folder
from lineage.store.checksum_update import cover_output
from lineage.store.delta import commit_tables
from tests.support.outputs.synthetic import EOT, TOKENIZER, made_up_tokens, write_shard
from trainer.model.attention import attend_here, document_mask, kernel_for
from trainer.model.pieces import Scoring
from trainer.options import TrainRecipe

WARM_UP = 20
MEAN_DOCUMENT = 1000
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 64


def main() -> None:
    num_gpus = torch.cuda.device_count()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="1B" if num_gpus else "debug")
    parser.add_argument("--vocabulary", type=int, default=128_256 if num_gpus else EOT + 1)
    parser.add_argument("--seq-len", type=int, default=8192 if num_gpus else 512)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--scratch", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-training-", dir=options.scratch) as scratch:
        make_data(Folder(f"{scratch}/out"), options.vocabulary)
        for name, changes in variants(on_gpu=num_gpus > 0).items():
            print(
                json.dumps({name: train(Path(scratch), name, options, max(num_gpus, 1), changes)}), flush=True
            )
    print(json.dumps({"attention, milliseconds": attention(options.seq_len)}), flush=True)


def variants(*, on_gpu: bool) -> dict[str, dict[str, Any]]:
    """Changes to [train]. Without a GPU nothing is compiled: Inductor would be measured, and not the step."""
    plain: dict[str, dict[str, Any]] = {"plain": {}}
    return {**plain, "compiled": {"compile": True}} if on_gpu else plain


def make_data(out: Folder, vocabulary: int) -> None:
    """One shard of four blocks."""
    shard = write_shard(out, "web", 0, made_up_tokens(4 * BLOCK_TOKENS, mean_document=MEAN_DOCUMENT))
    index = make_index(dataclasses.replace(TOKENIZER, vocab_size=vocabulary), [shard], (), ())
    commit_tables(out, {})
    cover_output(out, index)
    publish_index(out, index)


def train(
    scratch: Path, name: str, options: argparse.Namespace, workers: int, changes: dict[str, Any]
) -> dict[str, float]:
    """Medians of a run."""
    output = scratch / name
    table = {
        "data": str(scratch / "out"),
        "output": str(output),
        "model": options.model,
        "seq_len": options.seq_len,
        "micro_batch": options.micro_batch,
        "global_batch": 2 * options.micro_batch * workers,
        "workers": workers,
        "steps": WARM_UP + options.steps,
        "activation_checkpointing": "selective",
        "checkpoint": {"every": 1 << 20},
    }
    recipe = parse_table(TrainRecipe, {"run": {"name": name}, "train": table | changes})
    path = scratch / f"{name}.toml"
    path.write_text(as_toml(recipe))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={workers}",
        "-m",
        "trainer",
        str(path),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()][WARM_UP:]
    told = {key: median_of(rows, key) for key in ("tokens_per_second", "mfu", "data_wait_share", "seconds")}
    return told | {
        phase: statistics.median(row["phases"][phase] for row in rows) for phase in rows[0]["phases"]
    }


def median_of(rows: list[dict[str, Any]], key: str) -> float:
    """The median of a figure that every row has, or none (MFU, where the device's peak is unknown): then
    0."""
    return statistics.median(row[key] or 0.0 for row in rows)


def attention(seq_len: int) -> dict[str, float]:
    """Milliseconds of forward and backward of one layer's attention over one row."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    shapes = ((1, seq_len, HEADS, HEAD_DIM), *((1, seq_len, KV_HEADS, HEAD_DIM),) * 2)
    inputs = [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for shape in shapes]
    ends = np.random.default_rng(0).random(seq_len) < 1 / MEAN_DOCUMENT
    documents_BT = torch.from_numpy(np.cumsum(ends)[None].astype(np.int32)).to(device)
    kernel = kernel_for(device, HEAD_DIM)
    apart, whole = (document_mask(each, kernel) for each in (documents_BT, torch.zeros_like(documents_BT)))
    scoring = Scoring(scale=HEAD_DIM**-0.5)
    return {
        "documents apart": milliseconds(inputs, lambda q, k, v: attend_here(q, k, v, apart, scoring)),
        "one document": milliseconds(inputs, lambda q, k, v: attend_here(q, k, v, whole, scoring)),
        "torch's causal attention": milliseconds(inputs, causal),
    }


def causal(query_BTHK: Tensor, key_BTGK: Tensor, value_BTGK: Tensor) -> Tensor:
    query, key, value = (tensor.transpose(1, 2) for tensor in (query_BTHK, key_BTGK, value_BTGK))
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


def milliseconds(inputs: list[Tensor], attention_of: Callable[..., Tensor]) -> float:
    """The median of ten rounds, after three that compile and warm up."""
    rounds = []
    for number in range(13):
        wait_for_device()
        began = time.perf_counter()
        torch.autograd.backward(attention_of(*inputs).sum())
        wait_for_device()
        if number >= 3:
            rounds.append((time.perf_counter() - began) * 1e3)
    return round(statistics.median(rounds), 2)


def wait_for_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
