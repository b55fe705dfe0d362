"""The health of machines: known products, and replicas bit for bit."""

from __future__ import annotations

import dataclasses
import gc
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.processes.forked import ChildFailedError, run_forked
from tests.support.training.training_runs import AfterStep, Run
from trainer.health.probe import Probe, judge, known_product, probe, wrong_elements
from trainer.health.replicas import checksum
from trainer.options import TrainRecipe
from trainer.processes.runtime import Process
from trainer.run.parts import LaunchContext
from trainer.run.train import train

SOUND = Probe(
    rank=0,
    host="one",
    wrong_products=0,
    wrong_sums=0,
    product_seconds=1.0,
    free_disk=0.5,
    free_memory=0.5,
)


def test_a_known_product_is_exact_in_every_order_of_adding() -> None:
    left, right, expected = known_product(torch.device("cpu"))
    assert wrong_elements(left @ right, expected) == 0
    order = torch.randperm(left.shape[1])
    assert wrong_elements(left[:, order] @ right[order], expected) == 0
    half = left.to(torch.bfloat16) @ right.to(torch.bfloat16)
    assert wrong_elements(half, expected.to(torch.bfloat16)) == 0
    found = left @ right
    found.view(torch.int32)[3, 5] ^= 1 << 12
    found[7, 7] = float("nan")
    assert wrong_elements(found, expected) == 2


def _probed(process: Process) -> list[str]:
    return [symptom.text for symptom in judge([probe(process.device, "here", "/nowhere/yet")])]


def test_devices_that_compute_rightly_are_told_of_nothing(tmp_path: Path) -> None:
    for told in run_forked(tmp_path, 2, _probed):
        assert [text for text in told if "wrong" in text] == []


def test_a_rank_that_computes_wrongly_is_named() -> None:
    probes = [dataclasses.replace(SOUND, rank=rank, wrong_products=7 * (rank == 2)) for rank in range(4)]
    (found,) = judge(probes)
    assert (
        found.kind == "corrupt"
        and found.rank == 2
        and found.text.startswith("rank 2 (one) computes wrongly: 7 elements")
    )


def test_slow_devices_and_full_disks_are_told_and_wrong_sums_are_a_links() -> None:
    probes = [
        dataclasses.replace(
            SOUND,
            rank=rank,
            product_seconds=1.6 if rank == 3 else 1.0,
            free_disk=0.01 if rank == 1 else 0.5,
            free_memory=0.001 if rank == 0 else None,
            wrong_sums=int(rank == 2),
        )
        for rank in range(4)
    ]
    told = [symptom.text for symptom in judge(probes)]
    assert told == [
        "a known all-reduce came wrong to rank 2: a link or adapter",
        "rank 0 (one) has 0.1% of its memory free",
        "rank 1 (one) has 1.0% of its disk free",
        "rank 3 (one) is slow: a known product takes 1.6 of the median",
    ]


def test_every_flipped_bit_and_every_exchange_changes_a_checksum() -> None:
    numbers = torch.randn(1000, dtype=torch.bfloat16)
    expected = checksum(numbers)
    for bit in range(0, 16_000, 61):
        flipped = numbers.clone()
        flipped.view(torch.int16)[bit // 16] ^= torch.tensor(1 << bit % 16, dtype=torch.int32).to(torch.int16)
        assert not torch.equal(checksum(flipped), expected), bit
    exchanged = numbers.clone()
    exchanged[[3, 700]] = exchanged[[700, 3]]
    assert not torch.equal(checksum(exchanged), expected)
    assert torch.equal(checksum(torch.empty(0)), torch.zeros(2, dtype=torch.int64))
    assert torch.equal(
        checksum(numbers[:3]), checksum(numbers[:3].clone())
    )  # an odd number of bytes of words


def _train_flipped(recipe: TrainRecipe, rank: int, process: Process) -> None:
    """Train, with a bit of a rank's weights flipped after the second step."""

    def after(done: int) -> None:
        if done == 2 and process.rank == rank:
            # The loop gives nobody its model: it is looked for in memory, as a cosmic ray does.
            found = [each for each in gc.get_objects() if isinstance(each, nn.Parameter) and each.ndim == 2]
            shards = [each.to_local() for each in found if isinstance(each, DTensor)]
            (shards or found)[0].detach().view(torch.int64).view(-1)[5] ^= 1 << 40

    train(recipe, LaunchContext(process=process, hooks=AfterStep(after)))


REPLICATED: dict[str, dict[str, Any]] = {
    "ddp": {"workers": 3, "zero": 0},
    "hsdp": {"parallel": {"dp_replicate": 3, "dp_shard": 1}},
    "hsdp 3 x 2": {"parallel": {"dp_replicate": 3, "dp_shard": 2}},
    "tp x dp": {"parallel": {"dp_replicate": 3, "tp": 2}},
}


@pytest.mark.parametrize(
    "layout", [pytest.param(name, marks=[] if name == "ddp" else pytest.mark.slow) for name in REPLICATED]
)
def test_a_flipped_bit_is_found_named_and_mended(layout: str, tmp_path: Path) -> None:
    corpus = make_corpus(str(tmp_path / "out"), {"web": [1700, 530]}).url
    table = {"steps": 6, "recovery": {"check_replicas_every": 2}, "record_batches": False}
    run = Run(data=corpus, output=tmp_path / "run", changes=REPLICATED[layout] | table)
    num = run.recipe().train.num_workers
    run_forked(run.scratch, num, partial(_train_flipped, run.recipe(), 1))
    told = [symptom["text"] for row in run.metrics().values() for symptom in row.get("health", ())]
    (found,) = [line for line in told if "differs" in line]
    others = {3: "0, 2", 6: "3, 5"}[num]
    assert (
        found.startswith(f"after 4 steps rank 1 differs from its replicas {others} in ") and "mended" in found
    )


def test_two_replicas_that_differ_stop_the_run(tmp_path: Path) -> None:
    corpus = make_corpus(str(tmp_path / "out"), {"web": [1700, 530]}).url
    table = {
        "workers": 2,
        "zero": 0,
        "steps": 6,
        "recovery": {"check_replicas_every": 2},
        "record_batches": False,
    }
    run = Run(data=corpus, output=tmp_path / "run", changes=table)
    with pytest.raises(ChildFailedError, match="no majority of them says which is right"):
        run_forked(run.scratch, 2, partial(_train_flipped, run.recipe(), 1))


def test_weights_without_a_replica_are_refused(tmp_path: Path) -> None:
    corpus = make_corpus(str(tmp_path / "out"), {"web": [1700]}).url
    run = Run(data=corpus, output=tmp_path / "run", changes={"recovery": {"check_replicas_every": 2}})
    with pytest.raises(ChildFailedError, match="every weight lies on one process alone"):
        run.start()
