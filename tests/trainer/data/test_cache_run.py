"""A training run through a cache much smaller than its data, from a store that fails in every way."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineage.index.blocks import BLOCK_BYTES, BLOCK_TOKENS
from tests.support.outputs.synthetic import made_up_tokens, write_output
from tests.support.processes.forked import run_forked
from tests.support.stores.failing_server import Faults, failing_server
from tests.support.stores.peaks import peak_bytes
from tests.support.training.training_runs import Run
from trainer.options import TrainRecipe
from trainer.processes.result import TrainingResult
from trainer.processes.runtime import Process
from trainer.run.parts import LaunchContext
from trainer.run.train import train

NUM_BLOCKS = 22  # 184 MB, each block a source of its own, read in a stretch of its own
STEPS_A_BLOCK = 4
SEQ_LEN, GLOBAL_BATCH = 256, 32


def changes() -> dict[str, Any]:
    names = [f"source-{number:02d}" for number in range(NUM_BLOCKS)]
    mixture = [
        {"first_step": STEPS_A_BLOCK * number, "weights": dict.fromkeys(names, 0.0) | {name: 1.0}}
        for number, name in enumerate(names)
    ]
    return {
        "workers": 2,
        "dtype": "float32",
        "seq_len": SEQ_LEN,
        "global_batch": GLOBAL_BATCH,
        "micro_batch": 16,
        "steps": NUM_BLOCKS * STEPS_A_BLOCK,
        "mixture": mixture,
        "record_batches": False,
        "order": {"window_blocks": 1, "mixture_block": GLOBAL_BATCH},
        "checkpoint": {"every": 1000},
    }


@pytest.mark.slow
def test_a_run_from_a_throttled_failing_s3_through_a_tenth_of_the_data_ends_with_the_same_losses(
    tmp_path: Path,
) -> None:
    served, folder = tmp_path / "served", tmp_path / "cache"
    tokens = {f"source-{number:02d}": [made_up_tokens(BLOCK_TOKENS, number)] for number in range(NUM_BLOCKS)}
    write_output(served / "bucket" / "out", tokens)
    plain = Run(data=str(served / "bucket" / "out"), output=tmp_path / "plain", changes=changes())
    plain.start()
    cache = {"dir": str(folder), "max_bytes": 2 * BLOCK_BYTES, "prefetch_blocks": 1}
    run = Run(data="s3://bucket/out", output=tmp_path / "run", changes=changes() | {"cache": cache})
    faults = Faults(error=0.1, short=0.1, wrong=0.1, hang=0.05, hang_seconds=0.5, bytes_per_second=40e6)
    with failing_server(served, faults) as url, peak_bytes(folder) as peak:
        env = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "y",
            "LOCAL_WORLD_SIZE": "2",
        }
        results = run_forked(run.scratch, 2, partial(train_from, env, run.recipe()))
    assert all(result.finished for result in results)
    assert run.losses() == plain.losses()
    assert 0 < peak.bytes <= 2 * BLOCK_BYTES
    assert min(faults.counts[kind] for kind in ("error", "short", "wrong")) > 0
    last = run.metrics()[NUM_BLOCKS * STEPS_A_BLOCK - 1]
    read = NUM_BLOCKS * STEPS_A_BLOCK * GLOBAL_BATCH * SEQ_LEN * 4
    told = last["loading"]
    assert told["read_amplification"] == pytest.approx(
        told["bytes_fetched"] / read, rel=0.05
    )  # some made ahead
    assert told["bytes_fetched"] >= NUM_BLOCKS * BLOCK_BYTES
    assert told["damaged_blocks"] == faults.counts["wrong"] + faults.counts["wrong .blocks"]
    waits = [row["data_wait_share"] for row in run.metrics().values()]
    print(f"wait share {np.mean(waits):.2f}, {told}")


def train_from(env: dict[str, str], recipe: TrainRecipe, process: Process) -> TrainingResult:
    os.environ.update(env)
    return train(recipe, LaunchContext(process=process))
