"""Communication: volumes are those of the papers, and links those that a group's ranks lie on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.training.plans import DEEPSEEK_V3, mixtral, plan_of
from tests.trainer.planning.formulae import zero_volume
from trainer.options import PlanTable
from trainer.planning.communication import all_reduce_bytes, all_to_all_path, in_domain, link_of, ring_bytes
from trainer.planning.counts import num_parameters
from trainer.planning.gpus import Machine, machine_of


def machine_of_table(**keys: int | float) -> Machine:
    return machine_of(PlanTable(**{"rails": 8, **keys}))  # type: ignore[arg-type]


def test_zero_sends_what_its_paper_says() -> None:
    assert [zero_volume(1.0, stage) for stage in (1, 2, 3)] == [2, 2, 3]


@given(st.floats(1, 1e15), st.integers(1, 10**5))
def test_a_ring_sends_all_but_the_own_share_and_an_all_reduce_twice_that(size: float, num_gpus: int) -> None:
    assert ring_bytes(size, num_gpus) == pytest.approx(size - size / num_gpus, abs=size * 1e-12)
    assert all_reduce_bytes(size, num_gpus) == 2 * ring_bytes(size, num_gpus)


def test_gathering_and_reducing_are_counted_for_each_micro_batch(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    size = num_parameters(plan.layout.config) * 7 / 8
    assert plan.layout.num_micro_batches == 8
    sent = {kind.what.split()[0]: kind.num_bytes for kind in plan.traffic}
    assert sent == {"all-gather": 8 * 2 * 2 * size, "reduce-scatter": 8 * 4 * size}
    sent = {kind.what: kind.num_bytes for kind in plan_of(tmp_path, "train.zero=0").traffic}
    assert sent == {"all-reduce of gradients": 2 * 4 * size}


def test_peers_of_a_layer_send_the_stream_and_context_peers_keys_and_values(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "train.parallel.dp_shard=1", "train.parallel.tp=4", "train.parallel.cp=2")
    sent = {kind.axis: kind.num_bytes for kind in plan.traffic}
    stream = 8192 / 2 * 4096 * 2
    # Of the four messages of a layer forward two are gathered again in backward.
    assert sent["tp"] == 64 * (10 * 32 + 4) * stream * 3 / 4
    # Eight key-value heads of width 128, of which each tensor peer has two.
    assert sent["cp"] == 64 * 32 * 3 * (8192 * 2 * 2 * 128 * 2) / 2
    again = plan_of(
        tmp_path, "train.parallel.dp_shard=1", "train.parallel.tp=4", "train.activation_checkpointing=full"
    )
    assert again.traffic[0].num_bytes == 64 * (11 * 32 + 4) * 2 * stream * 3 / 4


def test_experts_are_kept_by_their_own_ranks_and_tokens_sent_to_them(tmp_path: Path) -> None:
    whole, spread = (
        plan_of(tmp_path, mixtral(tmp_path), "train.zero=2", f"train.parallel.ep={ep}") for ep in (1, 8)
    )
    assert whole.layout.mesh.num_workers == spread.layout.mesh.num_workers == 8
    # Moments are shared by all eight either way; gathered weights are an eighth of the experts.
    assert spread.memory.optimizer_states == pytest.approx(whole.memory.optimizer_states)
    experts = 32 * 8 * 3 * 4096 * 14336
    assert whole.memory.parameters - spread.memory.parameters == pytest.approx(2 * experts * 7 / 8)
    assert not any(kind.axis == "ep" for kind in whole.traffic)
    (sent,) = (kind for kind in spread.traffic if kind.axis == "ep")
    # Two copies of each of 8,192 tokens, there and back, forward and backward, in 32 layers and 8
    # micro-batches.
    assert sent.num_bytes == 8 * 32 * 4 * (8192 * 2 * 4096 * 2) * 7 / 8
    assert sent.link == "intra"


def test_routers_and_shared_experts_are_shared_by_tensor_peers_too(tmp_path: Path) -> None:
    model = mixtral(tmp_path, n_shared_experts=2)
    spread = ("train.parallel.dp_shard=4", "train.parallel.dp_replicate=2", "train.parallel.tp=2")
    plan = plan_of(tmp_path, model, "train.zero=1", *spread)
    sent = {kind.what: kind for kind in plan.traffic if kind.axis.startswith("dp")}
    name = "routers and shared experts"
    gathered = sent[f"all-gather of {name}"]
    whole = 32 * (4096 * 8 + 2 * 3 * 4096 * 14336)
    # Over all eight of a replica, who lie next to each other.
    assert (gathered.num_gpus, gathered.link, gathered.num_collectives) == (8, "intra", 64)
    assert gathered.num_bytes == 2 * whole * 7 / 8
    possessive = "routers' and shared experts' gradients"
    assert sent[f"reduce-scatter of {possessive}"].num_bytes == 4 * whole * 7 / 8
    assert sent[f"all-reduce of {possessive}"].num_bytes == 2 * (4 * whole / 8) / 2
    split = num_parameters(plan.layout.config) - whole - 32 * 8 * 3 * 4096 * 14336
    assert sent["all-gather of parameters"].num_bytes == 2 * split / 2 * 3 / 4
    assert sent["all-gather of parameters"].num_gpus == 4
    assert sent["all-gather of experts"].num_gpus == 8


def test_replicas_share_what_tensor_peers_have_of_experts(tmp_path: Path) -> None:
    spread = (
        "train.zero=0",
        "train.parallel.dp_shard=1",
        "train.parallel.dp_replicate=4",
        "train.parallel.tp=2",
    )
    plan = plan_of(tmp_path, mixtral(tmp_path), *spread)
    assert plan.layout.shards == (1, 2, 2)
    sent = {kind.what: kind for kind in plan.traffic}
    experts = 32 * 8 * 3 * 4096 * 14336
    assert plan.layout.num_micro_batches == 16
    assert sent["all-gather of experts"].num_bytes == 16 * 2 * experts / 2
    assert sent["reduce-scatter of experts' gradients"].num_bytes == 16 * 4 * experts / 2
    assert sent["all-reduce of experts' gradients"].num_bytes == 2 * 4 * experts / 2 * 3 / 4
    assert "all-gather of parameters" not in sent


def test_an_all_to_all_between_nodes_has_only_its_own_adapters(tmp_path: Path) -> None:
    table = machine_of_table(gpus_per_node=8, intra_gbps=3600, inter_gbps=400, near_gpus=64, far_gbps=100)
    assert all_to_all_path(8, table, 8).gbps == 3600
    # Of 15 others 8 are outside the node.
    assert all_to_all_path(16, table, 16).gbps == pytest.approx(400 * 15 / 8)
    far = all_to_all_path(128, table, 128)
    assert (far.link, far.gbps) == ("far", pytest.approx(100 * 127 / 64))


def test_more_collectives_wait_longer_where_hops_are_slow(tmp_path: Path) -> None:
    tensor = ("train.parallel.dp_shard=1", "train.parallel.tp=8")
    fast, slow = (
        plan_of(tmp_path, *tensor, f"plan.latency_us=[{hop}, 14, 28]").traffic[0] for hop in (0, 100)
    )
    # 64 micro-batches, ten collectives a layer and four more, seven hops of a ring each.
    assert slow.seconds - fast.seconds == pytest.approx(64 * (10 * 32 + 4) * 7 * 100e-6)
    assert fast.latency_seconds == 0


def test_a_ring_that_leaves_the_node_is_as_fast_as_its_members_adapters() -> None:
    table = machine_of_table(gpus_per_node=8, intra_gbps=3600, inter_gbps=400)
    assert link_of(1, 8, table, 4096) == ("intra", 3600)
    assert link_of(1, 16, table, 4096) == ("inter", 3200)
    assert link_of(8, 16, table, 4096) == ("inter", 400)
    # 384 members of a pod of 3,072 lie 8 apart, and each has its share of the way out.
    assert link_of(8, 512, table, 4096) == ("far", 400)
    assert link_of(1024, 4, table, 4096) == ("far", 3 * 57)


@pytest.mark.parametrize(
    ("node", "workers", "sizes", "link"),
    [
        # Ranks 6, 7 and 8 lie on two nodes.
        (8, 24, {"cp": 3, "dp_shard": 8}, "inter"),
        (8, 6, {"cp": 3, "dp_shard": 2}, "intra"),
        (9, 27, {"cp": 3, "dp_shard": 9}, "intra"),
        (6, 12, {"tp": 4, "dp_shard": 3}, "inter"),
        (4, 12, {"tp": 4, "dp_shard": 3}, "intra"),
    ],
)
def test_a_group_is_within_a_node_where_every_group_is(
    tmp_path: Path, node: int, workers: int, sizes: dict[str, int], link: str
) -> None:
    changes = [f"train.parallel.{axis}={size}" for axis, size in sizes.items()]
    plan = plan_of(
        tmp_path, *changes, f"plan.gpus_per_node={node}", "train.seq_len=6144", "train.global_batch=72"
    )
    assert plan.layout.mesh.num_workers == workers
    axis = next(iter(sizes))
    (sent,) = (kind for kind in plan.traffic if kind.axis == axis)
    assert sent.link == link
    refused = any("which training refuses" in note for note in plan.notes)
    assert refused == (axis == "tp" and link == "inter")


def test_a_group_on_two_nodes_crosses_with_the_fewest_adapters() -> None:
    table = machine_of_table(gpus_per_node=8, intra_gbps=3600, inter_gbps=400, near_gpus=3072, far_gbps=57)
    # Of 6, 7 and 8 one is alone on its node; of 6 consecutive ranks two are at least.
    assert link_of(1, 3, table, 24) == ("inter", 400)
    assert link_of(1, 6, table, 24) == ("inter", 800)
    assert link_of(1, 2048, table, 4096) == ("far", 3200)
    # An expert alone on its node has both others over its adapter.
    assert all_to_all_path(3, table, 24).gbps == 400


@pytest.mark.parametrize(
    ("reach", "keys", "within"),
    [
        (64, {"gpu": "GB200"}, True),  # on 64 of 72
        (32, {"gpu": "GB300"}, True),  # two groups on 64
        (16, {"gpu": "GB200"}, True),
        (72, {"gpu": "GB200"}, True),
        (128, {"gpu": "GB200"}, False),
        (7, {"gpu": "GB200"}, True),  # 28 GPUs, seven trays, twice
        (19, {"gpu": "GB200"}, False),  # whole trays of it are 76
        (3, {"gpu": "H100"}, False),  # a node is filled whole
        (4, {"gpu": "H100"}, True),
    ],
)
def test_groups_fill_whole_trays_of_a_rack_and_leave_the_rest_of_it_idle(
    reach: int, keys: dict[str, str], within: bool
) -> None:
    machine = machine_of(PlanTable(**keys))  # type: ignore[arg-type]
    assert in_domain(reach, machine, 4096) == within
    assert (link_of(1, reach, machine, 4096)[0] == "intra") == within
    alone = all_to_all_path(reach, machine, 4096)
    assert (alone.link == "intra") == within


def test_a_plan_says_how_many_gpus_of_a_rack_stay_idle(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(DEEPSEEK_V3))
    spread = (f"train.model={config}", "plan.gpu=GB200", "train.workers=256", "train.parallel.dp_shard=256")
    (note,) = (note for note in plan_of(tmp_path, *spread, "train.parallel.ep=64").notes if "idle" in note)
    assert note == "plan.gpu_domain = 72: groups of 64 are put on 64 GPUs of each, and 8 stay idle"
    assert not any("idle" in note for note in plan_of(tmp_path, *spread, "train.parallel.ep=8").notes)
