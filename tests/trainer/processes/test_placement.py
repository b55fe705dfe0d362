"""What the workers of a run reserve, and where tensor-parallel peers may lie."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage.recipe import RecipeError, parse_table
from trainer.options import TrainRecipe, TrainTable
from trainer.processes.placement import LabelledNode, label_selectors, local_cpus, split_peers, workers_of


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


def nodes_of(racks: dict[str, list[float]]) -> list[LabelledNode]:
    """Nodes with so many processors in each rack, in turn as a cluster might name them."""
    found = [(rack, cpus) for rack, every in racks.items() for cpus in every]
    return [
        LabelledNode(labels={"rack": rack}, resources={"CPU": cpus})
        for rack, cpus in found[::2] + found[1::2]
    ]


def test_consecutive_ranks_fill_one_rack_before_the_next() -> None:
    nodes = nodes_of({"a": [2.0], "b": [4.0, 4.0], "c": [4.0]})
    workers = workers_of(table(parallel={"pp": 2, "dp_shard": 3, "tp": 2}), 0)
    assert [chosen["rack"] for chosen in label_selectors(workers, nodes, "rack")] == ["b"] * 8 + ["c"] * 4


@given(
    st.dictionaries(st.sampled_from("abcde"), st.lists(st.integers(0, 9).map(float), max_size=4)),
    st.integers(1, 4),
)
def test_no_value_is_left_and_come_back_to_and_peers_are_never_parted(
    racks: dict[str, list[float]], tp: int
) -> None:
    room = {rack: sum(int(cpus) // tp * tp for cpus in every) for rack, every in racks.items()}
    num = max(tp, sum(room.values()) // 2 // tp * tp)
    workers = workers_of(table(parallel={"tp": tp, "dp_shard": num // tp}), 0)
    if num > sum(room.values()):
        with pytest.raises(RecipeError, match=f"room for 0 of {num} workers"):
            label_selectors(workers, nodes_of(racks), "rack")
        return
    chosen = [one["rack"] for one in label_selectors(workers, nodes_of(racks), "rack")]
    runs = [rack for rack, _ in itertools.groupby(chosen)]
    assert len(runs) == len(set(runs))
    assert all(chosen.count(rack) <= room[rack] for rack in runs)
    assert all(len(set(chosen[first : first + tp])) == 1 for first in range(0, num, tp))


def test_a_label_that_training_nodes_lack_is_refused() -> None:
    with pytest.raises(
        RecipeError, match=r"near = 'zone': the nodes with this label have room for 0 of 2 workers"
    ):
        label_selectors(workers_of(table(workers=2), 0), nodes_of({"a": [4.0]}), "zone")
