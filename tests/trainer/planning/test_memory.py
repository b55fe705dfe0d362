"""Memory: the formulae give the figures that the papers print, and a plan's follows its layout."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch.distributed.pipelining.schedules import _Action, _add_send_recv, _ComputationType

from lineage.recipe import parse_table
from tests.support.training.plans import mixtral, plan_of
from tests.trainer.planning.formulae import GptLayer, gpt_layer_activations, zero_bytes
from trainer.model.attention import document_masks
from trainer.model.config.sizes import model_config
from trainer.model.transformer import CausalLM
from trainer.optim.optimizer import Optimizer
from trainer.planning.counts import num_parameters
from trainer.planning.layout import PlannedLayout, part_counts
from trainer.planning.memory import (
    instants,
    layer_activations,
    memory,
    memory_of_rank,
    split_backward_bytes,
    stage_activations,
    stage_messages,
)
from trainer.planning.schedules import PipelinePlan, action_table, fullest_instants
from trainer.recipe_tables.optimizer import OptimizerTable
from trainer.recipe_tables.parallelism import Mesh, Schedule, rank_of_stage


@pytest.mark.parametrize(
    ("num_gpus", "stages"),
    [
        (1, (120, 120, 120)),
        (4, (52.5, 41.3, 30)),
        (16, (35.6, 21.6, 7.5)),
        (64, (31.4, 16.6, 1.88)),
        (256, (30.4, 15.4, 0.47)),
        (1024, (30.1, 15.1, 0.12)),
    ],
)
def test_model_states_are_those_of_the_zero_table(num_gpus: int, stages: tuple[float, float, float]) -> None:
    for stage, gigabytes in zip((1, 2, 3), stages, strict=True):
        found = zero_bytes(7.5e9, num_gpus, stage) / 1e9  # type: ignore[arg-type]
        # Printed to three digits, below 1 to two.
        assert found == pytest.approx(gigabytes, abs=0.05 if gigabytes > 2 else 0.005), stage
    assert zero_bytes(7.5e9, num_gpus, 0) == 120e9


@pytest.mark.parametrize(
    ("how", "gibibytes"),
    [
        ({}, 256.5),
        ({"tp": 8, "sequence_parallel": True}, 32.06),
        ({"tp": 8, "sequence_parallel": True, "recompute": "selective"}, 9.56),
        ({"recompute": "full"}, 4.5),
    ],
)
def test_activations_of_gpt_175b_are_those_of_korthikanti(how: dict[str, Any], gibibytes: float) -> None:
    layer = GptLayer(seq_len=2048, micro_batch=1, width=12288, num_heads=96)
    assert 96 * gpt_layer_activations(layer, **how) / 2**30 == pytest.approx(
        gibibytes, abs=0.05 * gibibytes / 100
    )


def test_tensor_parallelism_alone_leaves_ten_of_the_stream_whole() -> None:
    layer = GptLayer(seq_len=2048, micro_batch=1, width=12288, num_heads=96)
    sbh = 2048 * 12288
    assert gpt_layer_activations(layer, tp=8) == sbh * (10 + 24 / 8 + 5 * 96 * 2048 / (12288 * 8))


@pytest.mark.parametrize("num_gpus", [1, 8, 64])
def test_states_are_sixteen_bytes_a_parameter_over_the_shards(tmp_path: Path, num_gpus: int) -> None:
    plan = plan_of(tmp_path, f"train.parallel.dp_shard={num_gpus}")
    found = plan.memory
    kept = 4 * num_parameters(plan.layout.config) / num_gpus
    assert found.optimizer_states == 2 * kept
    assert found.parameters > kept
    # At the fullest instant, when the loss is computed, those of earlier micro-batches: over 64 GPUs there
    # are none.
    assert found.gradients == (kept if num_gpus < 64 else 0)
    assert 4 * kept == zero_bytes(num_parameters(plan.layout.config), num_gpus, 3)


@pytest.mark.parametrize(
    "optimizer", [("adamw", 0.0), ("adamw", 0.9), ("muon", 0.0), ("muon", 0.9)], ids="{0[0]} {0[1]}".format
)
def test_states_are_those_that_the_optimizer_keeps(tmp_path: Path, optimizer: tuple[str, float]) -> None:
    name, ema = optimizer
    asked = [f'train.optimizer.name="{name}"', f"train.optimizer.ema={ema}", "train.model=debug"]
    plan = plan_of(tmp_path, *asked, "train.parallel.dp_shard=1")
    table = parse_table(OptimizerTable, {"name": name, "ema": ema})
    with torch.device("meta"):
        parameters = dict(CausalLM(plan.layout.config).named_parameters())
        kept = Optimizer(parameters, table, None)
        states = [tensor for parameter in parameters.values() for tensor in kept.state(parameter).values()]
    held = sum(tensor.nbytes for tensor in states)
    assert plan.memory.optimizer_states == pytest.approx(held, rel=1e-3)
    assert plan.checkpoints.num_bytes == pytest.approx(
        held + sum(parameter.nbytes for parameter in parameters.values()), rel=1e-3
    )


def test_what_is_sharded_or_computed_again_takes_less_memory(tmp_path: Path) -> None:
    by_zero = [plan_of(tmp_path, f"train.zero={zero}").memory for zero in (3, 2, 0)]
    assert by_zero[0].parameters < by_zero[1].parameters < by_zero[2].parameters
    assert by_zero[1].optimizer_states * 8 == by_zero[2].optimizer_states
    recomputed = [
        plan_of(tmp_path, f"train.activation_checkpointing={how}").memory.activations
        for how in ("none", "selective", "full")
    ]
    assert recomputed[0] > recomputed[1] > recomputed[2]


def test_tensor_peers_gather_shared_experts_whole_and_share_them_between_steps(tmp_path: Path) -> None:
    without, with_them = (
        plan_of(tmp_path, mixtral(tmp_path, n_shared_experts=num), "train.zero=2", "train.parallel.tp=2")
        for num in (0, 2)
    )
    shared = 32 * 2 * 3 * 4096 * 14336
    added = with_them.memory.parameters - without.memory.parameters
    assert added == pytest.approx(2 * shared + 4 * shared / (8 * 2))
    added = with_them.memory.optimizer_states - without.memory.optimizer_states
    assert added == pytest.approx(8 * shared / (8 * 2))


@pytest.mark.parametrize(("global_batch", "in_flight"), [(16, 4), (4, 4)])
def test_a_first_stage_keeps_as_many_micro_batches_as_are_under_way(
    tmp_path: Path, global_batch: int, in_flight: int
) -> None:
    plan = plan_of(
        tmp_path, "train.parallel.dp_shard=1", "train.parallel.pp=4", f"train.global_batch={global_batch}"
    )
    of_stage = 8 * layer_activations(plan.layout) + stage_activations(plan.layout)
    assert most_kept(plan.layout, 0) == in_flight * of_stage


def most_kept(layout: PlannedLayout, rank: int) -> float:
    """Bytes of a rank's activations, where it has the most, without places for messages."""
    (found,) = instants(layout, [(rank,)])
    return max(instant.activations for instant in found) - stage_messages(layout, layout.ranks[rank])


@pytest.mark.parametrize("schedule", get_args(Schedule))
@pytest.mark.parametrize(("pp", "num_virtual", "num_micro_batches"), [(4, 2, 8), (8, 4, 64), (8, 3, 20)])
def test_as_many_messages_are_on_their_way_as_torch_asks_for_ahead(
    tmp_path: Path, schedule: Schedule, pp: int, num_virtual: int, num_micro_batches: int
) -> None:
    num_virtual = {"1f1b": 1, "gpipe": 1, "zbv": 2, "dualpipev": 2}.get(schedule, num_virtual)
    changes = (
        "train.parallel.dp_shard=1",
        f"train.parallel.pp={pp}",
        f"train.global_batch={num_micro_batches}",
        f"train.pipeline.schedule={schedule}",
        f"train.pipeline.virtual_stages={num_virtual}",
    )
    layout = plan_of(tmp_path, *changes).layout
    stream = layout.tokens * layout.config.width * layout.compute_bytes
    asked = messages_of_torch(schedule, pp, num_virtual, layout.num_micro_batches)
    planned = [stage_messages(layout, layout.ranks[rank]) / stream for rank in range(pp)]
    assert all(0 < most <= num <= 2 * most + 1 for most, num in zip(asked, planned, strict=True))


def messages_of_torch(schedule: Schedule, pp: int, num_virtual: int, num_micro_batches: int) -> list[int]:
    """The most messages that each rank has asked for and not yet taken, as torch puts their places between
    the passes."""
    kinds = {"F": "FORWARD", "B": "FULL_BACKWARD", "I": "BACKWARD_INPUT", "W": "BACKWARD_WEIGHT"}
    actions = {
        rank: [_Action(stage, _ComputationType[kinds[kind]], micro) for stage, kind, micro in of_rank]
        for rank, of_rank in enumerate(
            action_table(PipelinePlan(schedule, pp, num_virtual, num_micro_batches))
        )
    }
    home = partial(rank_of_stage, schedule, pp=pp)
    with_messages = _add_send_recv(actions, home, pp * num_virtual)
    most = []
    for rank, of_rank in with_messages.items():
        waiting, counts = set(), [0]
        for stage, kind, micro, *_ in of_rank:
            if kind.name in ("RECV_F", "RECV_B"):
                waiting.add((stage, kind.name[-1], micro))
            elif kind.name in ("FORWARD", "FULL_BACKWARD", "BACKWARD_INPUT"):
                counts.append(len(waiting))
                waiting.discard((stage, "F" if kind.name == "FORWARD" else "B", micro))
        assert not waiting, rank
        most.append(max(counts))
    return most


def test_zero_1_shards_what_lies_between_steps_and_keeps_the_rest_whole_within_one(tmp_path: Path) -> None:
    by_zero = {zero: plan_of(tmp_path, f"train.zero={zero}") for zero in (0, 1, 2)}
    num = num_parameters(by_zero[0].layout.config)
    assert by_zero[1].memory.parameters == by_zero[2].memory.parameters == (4 / 8 + 2) * num
    assert by_zero[0].memory.parameters == (4 + 2) * num
    assert by_zero[1].memory.gradients == 4 * num
    assert by_zero[0].memory.gradients == 2 * 4 * num  # beside DDP's buckets, since the step accumulates
    assert by_zero[1].memory.optimizer_states == by_zero[2].memory.optimizer_states == num
    sent = {kind.what: kind.num_bytes for kind in by_zero[1].traffic}
    # Each once a step, however many micro-batches there are.
    assert sent == {
        "all-gather of parameters": 2 * num * 7 / 8,
        "reduce-scatter of gradients": 4 * num * 7 / 8,
    }


def test_a_pipeline_keeps_gradients_whole_within_a_step(tmp_path: Path) -> None:
    pipelined = plan_of(tmp_path, "train.parallel.pp=4", "train.parallel.dp_shard=2", "train.micro_batch=1")
    part = pipelined.layout.ranks[pipelined.memory.rank]
    num = sum(part_counts(pipelined.layout.config, part))
    assert pipelined.memory.gradients == pytest.approx(4 * num)
    assert pipelined.memory.optimizer_states == pytest.approx(8 * num / 2)


@pytest.mark.parametrize(
    ("schedule", "num_virtual", "kept", "between"),
    [
        ("1f1b", 1, 4 * 2, 0),
        ("gpipe", 1, 16 * 2, 0),
        ("interleaved", 2, 11, 0),
        ("zbv", 2, 8, 1),
        ("dualpipev", 2, 9, 0),
    ],
)
def test_a_schedule_keeps_as_many_layers_as_its_table_has_under_way(
    tmp_path: Path, schedule: str, num_virtual: int, kept: int, between: int
) -> None:
    # 8 layers on 4 ranks: two a rank, in one stage or in two.
    config = {
        "model_type": "llama",
        "num_local_experts": None,
        "num_experts_per_tok": None,
        "num_hidden_layers": 8,
    }
    changes = (
        mixtral(tmp_path, **config),
        "train.parallel.dp_shard=1",
        "train.parallel.pp=4",
        "train.global_batch=16",
        f"train.pipeline.schedule={schedule}",
        f"train.pipeline.virtual_stages={num_virtual}",
    )
    layout = plan_of(tmp_path, *changes).layout
    rank = 1 if schedule in ("zbv", "dualpipev") else 0
    of_layer = layer_activations(layout) + stage_activations(layout) * num_virtual / 2
    expected = kept * of_layer + between * split_backward_bytes(layout)
    assert most_kept(layout, rank) == pytest.approx(expected)


@pytest.mark.parametrize("num_micro_batches", [32, 36, 40, 45, 54])
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "interleaved_zero_bubble", "zbv", "dualpipev"])
def test_as_much_is_under_way_as_in_the_whole_table(
    tmp_path: Path, schedule: Schedule, num_micro_batches: int
) -> None:
    # Interleaved schedules go in rounds: 36 micro-batches in four of 9, 32 in four of 8.
    num_virtual = {"1f1b": 1, "zbv": 2, "dualpipev": 2}.get(schedule, 4)
    changes = (
        "train.parallel.dp_shard=1",
        "train.parallel.pp=8",
        f"train.global_batch={num_micro_batches}",
        f"train.pipeline.schedule={schedule}",
        f"train.pipeline.virtual_stages={num_virtual}",
    )
    layout = plan_of(tmp_path, *changes).layout
    assert layout.num_micro_batches == num_micro_batches
    of_stage = 4 // num_virtual * layer_activations(layout) + stage_activations(layout)
    each = [[size] * 8 * num_virtual for size in (of_stage, 4 // num_virtual * split_backward_bytes(layout))]
    actions = action_table(PipelinePlan(schedule, 8, num_virtual, num_micro_batches))[1]
    whole = fullest_instants(actions, *each, [0] * 8 * num_virtual)
    assert most_kept(layout, 1) == pytest.approx(max(instant.kept + instant.between for instant in whole))


@pytest.mark.parametrize("num_dense", [0, 6])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("pp", [5, 7, 9])
@pytest.mark.parametrize("schedule", get_args(Schedule))
def test_no_rank_holds_more_than_the_fullest(
    tmp_path: Path, schedule: Schedule, pp: int, recompute: str, num_dense: int
) -> None:
    config = {"model_type": "deepseek", "first_k_dense_replace": num_dense, "num_hidden_layers": 2 * pp + 3}
    config |= {"n_routed_experts": 4, "moe_intermediate_size": 4096}
    changes = (
        mixtral(tmp_path, **config),
        f"train.parallel.pp={pp}",
        f"train.global_batch={8 * 2 * pp}",
        f"train.pipeline.schedule={schedule}",
        f"train.activation_checkpointing={recompute}",
        "train.pipeline.first_stage_less_layers=1",
        "train.pipeline.last_stage_less_layers=1",
    )
    layout = plan_of(tmp_path, *changes).layout
    every = [memory_of_rank(layout, rank) for rank in range(pp)]
    assert memory(layout) == max(every, key=lambda held: held.total)


def test_a_v_shaped_pipeline_whose_middle_ranks_are_the_fullest_does_not_fit(tmp_path: Path) -> None:
    changes = (
        "train.seq_len=9216",
        "train.global_batch=112",
        "train.parallel.pp=7",
        "train.pipeline.schedule=zbv",
        "train.pipeline.first_stage_less_layers=1",
        "train.pipeline.last_stage_less_layers=1",
        "train.activation_checkpointing=full",
    )
    plan = plan_of(tmp_path, *changes)
    assert plan.memory.rank == 5
    assert not plan.fits


def test_a_model_that_is_too_large_does_not_fit(tmp_path: Path) -> None:
    assert plan_of(tmp_path, "train.activation_checkpointing=full").fits
    assert not plan_of(tmp_path, "train.model=70B").fits


def saved_bytes(num_layers: int, tokens_BT: torch.Tensor) -> int:
    """What the debug model with so many layers really keeps for backward, weights aside."""
    model = CausalLM(dataclasses.replace(model_config("debug", 250), num_layers=num_layers))
    owned = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            storages[storage.data_ptr()] = storage
        return tensor

    positions_BT = torch.arange(tokens_BT.shape[1]).expand_as(tokens_BT)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(tokens_BT, positions_BT, document_masks(torch.zeros_like(tokens_BT), (None,), "dense"))
    return sum(storage.nbytes() for storage in storages.values())


def test_a_layer_keeps_for_backward_what_is_reckoned() -> None:
    tokens_BT = torch.randint(0, 250, (2, 64))
    layout = PlannedLayout(
        config=model_config("debug", 250),
        mesh=Mesh(dp_replicate=1, dp_shard=1, tp=1, pp=1, cp=1, ep=1),
        zero=3,
        recompute="none",
        compute_bytes=4,
        weight_bytes=4,
        seq_len=64,
        global_batch=2,
        micro_batch=2,
        num_micro_batches=1,
    )
    # A CPU has no fused norm, which keeps its input scaled too, and its attention keeps the mask in float32.
    only_on_cpu = 4 * tokens_BT.numel() * (2 * layout.config.width + layout.seq_len)
    assert saved_bytes(2, tokens_BT) - saved_bytes(1, tokens_BT) == layer_activations(layout) + only_on_cpu
