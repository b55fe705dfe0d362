"""What the workers of a run reserve, and where tensor-parallel peers may lie."""

from __future__ import annotations

from typing import Any

import pytest

from lineage.recipe import RecipeError, parse_table
from trainer.options import TrainRecipe, TrainTable
from trainer.processes.placement import local_cpus, split_peers, workers_of


def table(**changes: Any) -> TrainTable:
    least = {"data": "out", "output": "t", "model": "debug", "seq_len": 64, "global_batch": 4, "steps": 2}
    return parse_table(TrainRecipe, {"run": {"name": "t"}, "train": {**least, **changes}}).train


def test_a_worker_reserves_a_processor_and_a_gpu_where_all_can_have_one() -> None:
    assert workers_of(table(workers=2), 0).each == {"CPU": 1.0}
    assert workers_of(table(workers=2), 1).each == {"CPU": 1.0}
    assert workers_of(table(workers=2), 2).each == {"CPU": 1.0, "GPU": 1.0}


def test_a_worker_reserves_what_the_recipe_says() -> None:
    asked = {"cpus": 4.0, "gpus": 1, "memory": 1 << 30, "resource": "gpu_node"}
    workers = workers_of(table(workers=4, resources=asked), 0)
    assert workers.each == {"CPU": 4.0, "GPU": 1.0, "memory": float(1 << 30), "gpu_node": 0.001}
    assert (workers.num, workers.together, workers.per_node) == (4, 1, None)
    assert local_cpus(table(workers=4, resources=asked)) == 16
    assert "GPU" not in workers_of(table(workers=2, resources={"gpus": 0}), 8).each


def test_tensor_parallel_peers_and_strictly_packed_workers_share_a_node() -> None:
    parallel = {"tp": 2, "dp_shard": 2}
    assert workers_of(table(parallel=parallel), 0).together == 2
    assert workers_of(table(parallel=parallel, resources={"placement": "STRICT_PACK"}), 0).together == 4
    assert workers_of(table(workers=4, resources={"placement": "STRICT_SPREAD"}), 0).per_node == 1


@pytest.mark.parametrize("placement", ["SPREAD", "STRICT_SPREAD"])
def test_peers_cannot_be_spread(placement: str) -> None:
    with pytest.raises(RecipeError, match="tensor-parallel peers share a node"):
        table(parallel={"tp": 2}, resources={"placement": placement})


def test_peers_on_two_nodes_are_named() -> None:
    assert split_peers(["a", "a", "b", "b"], 2) is None
    assert split_peers(["a", "b", "c"], 1) is None
    said = split_peers(["a", "a", "a", "b"], 2)
    assert said is not None and "rank 2 on a, rank 3 on b" in said
