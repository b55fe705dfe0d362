"""Plans: the formulae give the figures that the papers print, and a recipe's plan follows its layout."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lineage.recipe import RecipeError, load_recipe
from pipeline.cli.main import main
from tests.support.tiny_corpus import make_corpus
from trainer.model.attention import document_mask
from trainer.model.sizes import model_config
from trainer.model.transformer import Llama
from trainer.options import Mesh, PlanTable, TrainRecipe
from trainer.planning.cadence import (
    asynchronous_overhead,
    availability_interval,
    cadence_overhead,
    restart_overhead,
    young_interval,
)
from trainer.planning.communication import all_reduce_bytes, all_to_all_path, link_of, ring_bytes, zero_volume
from trainer.planning.gpus import GPUS, utilisation
from trainer.planning.layout import PlannedLayout
from trainer.planning.memory import GptLayer, activations, gpt_layer_activations, layer_activations, zero_bytes
from trainer.planning.plan import TrainingPlan, plan_training
from trainer.planning.schedules import PassTimes, PipelinePlan, span
from trainer.planning.shape import Shape
from trainer.planning.throughput import (
    Gpt,
    bubble_of_useful,
    bubble_of_whole,
    gpt_hardware_flops,
    gpt_model_flops,
    gpt_parameters,
    gpt_step_flops,
    least_pipeline_seconds,
    pass_times,
    pipeline_seconds,
    send_seconds,
    training_seconds,
)

RECIPE = """
[run]
name = "r"
[train]
data = "nowhere"
output = "run"
model = "8B"
seq_len = 8192
global_batch = 64
micro_batch = 1
steps = 1000
[train.parallel]
dp_shard = 8
"""


def plan_of(tmp_path: Path, *overrides: str) -> TrainingPlan:
    path = tmp_path / "train.toml"
    path.write_text(RECIPE)
    return plan_training(load_recipe(path, TrainRecipe, overrides))


# The papers' figures.


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


def test_zero_sends_what_its_paper_says() -> None:
    assert [zero_volume(1.0, stage) for stage in (1, 2, 3)] == [2, 2, 3]


@given(st.floats(1, 1e15), st.integers(1, 10**5))
def test_a_ring_sends_all_but_the_own_share_and_an_all_reduce_twice_that(size: float, num_gpus: int) -> None:
    assert ring_bytes(size, num_gpus) == pytest.approx(size - size / num_gpus, abs=size * 1e-12)
    assert all_reduce_bytes(size, num_gpus) == 2 * ring_bytes(size, num_gpus)


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
    assert 96 * gpt_layer_activations(layer, **how) / 2**30 == pytest.approx(gibibytes, abs=0.05 * gibibytes / 100)


def test_tensor_parallelism_alone_leaves_ten_of_the_stream_whole() -> None:
    layer = GptLayer(seq_len=2048, micro_batch=1, width=12288, num_heads=96)
    sbh = 2048 * 12288
    assert gpt_layer_activations(layer, tp=8) == sbh * (10 + 24 / 8 + 5 * 96 * 2048 / (12288 * 8))


@pytest.mark.parametrize(
    ("billions", "gpt", "teraflops", "percent"),
    [
        (1.7, Gpt(num_layers=24, width=2304), 137, 44),
        (7.5, Gpt(num_layers=36, width=4096), 142, 46),
        (39.1, Gpt(num_layers=48, width=8192), 138, 44),
        (145.6, Gpt(num_layers=80, width=12288), 148, 47),
        (1008.0, Gpt(num_layers=128, width=25600), 163, 52),
    ],
)
def test_sizes_and_shares_of_peak_are_those_of_narayanan(
    billions: float, gpt: Gpt, teraflops: float, percent: float
) -> None:
    assert gpt_parameters(gpt) / 1e9 == pytest.approx(billions, abs=0.05)
    assert 100 * utilisation(teraflops * 1e12, GPUS["A100"].peak_flops) == pytest.approx(percent, abs=0.5)


@pytest.mark.parametrize("gpt", [Gpt(num_layers=48, width=8192), Gpt(num_layers=128, width=25600)])
def test_eight_operations_a_token_and_parameter_are_those_of_a_step(gpt: Gpt) -> None:
    # Equation 4 leaves out the small terms of equation 3.
    eight = training_seconds(1536 * gpt.seq_len, gpt_parameters(gpt), 1, 1.0)
    assert gpt_step_flops(gpt, 1536) == pytest.approx(eight, rel=0.05)


@pytest.mark.parametrize(
    ("tokens", "parameters", "num_gpus", "teraflops", "days"),
    [(300e9, 175e9, 1024, 140, 34), (450e9, 1.008e12, 3072, 163, 84)],
)
def test_training_times_are_those_of_narayanan(
    tokens: float, parameters: float, num_gpus: int, teraflops: float, days: float
) -> None:
    assert training_seconds(tokens, parameters, num_gpus, teraflops * 1e12) / 86400 == pytest.approx(days, abs=0.5)


# Sequences a step, GPUs and seconds of its table 5; shares of an A100's peak.
@pytest.mark.parametrize(
    ("gpt", "run", "shares"),
    [
        (Gpt(num_layers=48, width=6144), (4, 8, 1.10), (41.5, 43.7)),
        (Gpt(num_layers=96, width=12288), (64, 64, 13.75), (51.4, 52.8)),
        (Gpt(num_layers=105, width=20480), (280, 280, 37.83), (56.0, 57.0)),
        (Gpt(num_layers=128, width=25600), (512, 512, 71.49), (56.3, 57.0)),
    ],
)
def test_utilisation_is_that_of_korthikanti(gpt: Gpt, run: tuple[int, int, float], shares: tuple[float, float]) -> None:
    batch, num_gpus, seconds = run
    for flops, percent in zip((gpt_model_flops(gpt, batch), gpt_hardware_flops(gpt, batch)), shares, strict=True):
        found = 100 * utilisation(flops / seconds / num_gpus, GPUS["A100"].peak_flops)
        assert found == pytest.approx(percent, rel=0.01)


def test_bubbles_are_as_published() -> None:
    assert bubble_of_whole(4, 4) == 3 / 7
    assert bubble_of_whole(8, 32) == 7 / 39
    assert bubble_of_useful(4, 4) == 3 / 4
    assert bubble_of_useful(8, 32, virtual_stages=2) == 7 / 64


@pytest.mark.parametrize(
    ("mtbf_hours", "save", "young", "available", "percent"), [(1.8, 5, 255, 265, 3.9), (7.9, 30, 1306, 1344, 4.6)]
)
def test_cadence_is_as_published(
    mtbf_hours: float, save: float, young: float, available: float, percent: float
) -> None:
    mtbf = mtbf_hours * 3600
    assert young_interval(save, mtbf) == pytest.approx(young, abs=0.5)
    assert availability_interval(save, mtbf, 300) == pytest.approx(available, abs=0.5)
    assert 100 * cadence_overhead(young_interval(save, mtbf), save, mtbf) == pytest.approx(percent, abs=0.05)


@given(st.floats(1, 1e4), st.floats(1e3, 1e6), st.floats(0.1, 10))
def test_no_interval_loses_less_than_youngs(save: float, mtbf: float, factor: float) -> None:
    best = young_interval(save, mtbf)
    assert cadence_overhead(best, save, mtbf) <= cadence_overhead(best * factor, save, mtbf) * (1 + 1e-12)


def test_saving_beside_the_loop_waits_only_for_what_does_not_fit_between_two_saves() -> None:
    assert asynchronous_overhead(100, 20, 36_000) == 70 / 36_000
    assert asynchronous_overhead(100, 150, 36_000) == 0.5 + 200 / 36_000
    assert restart_overhead(300, 36_000) == 300 / 36_000


# A recipe's plan.

LLAMA_3_405B = (
    "train.model=405B", "train.zero=2", "train.global_batch=2048", "train.parallel.tp=8", "train.parallel.pp=16",
    "train.parallel.dp_shard=128", "train.pipeline.schedule=interleaved", "train.pipeline.virtual_stages=8",
    "train.pipeline.first_stage_less_layers=1", "train.pipeline.last_stage_less_layers=1",
)  # fmt: skip


def test_the_estimate_for_llama_3_405b_is_near_the_published_share_of_peak(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, *LLAMA_3_405B)
    assert plan.layout.mesh.num_workers == 16_384
    assert plan.layout.num_micro_batches == 16
    assert plan.budget.num_tokens // plan.budget.steps == 2**24
    assert plan.throughput.mfu == pytest.approx(0.41, rel=0.1)
    long = ("train.seq_len=131072", "train.global_batch=128", "train.parallel.dp_shard=8", "train.parallel.cp=16")
    assert plan_of(tmp_path, *LLAMA_3_405B, *long).throughput.mfu == pytest.approx(0.38, rel=0.1)
    # 400 teraflops are printed to ten, 41% to one.
    assert 100 * utilisation(405e12, plan.gpu.peak_flops) == pytest.approx(41, abs=0.5)
    assert any("torch's pipelines hold weights and gradients whole" in note for note in plan.notes)


@pytest.mark.parametrize("num_gpus", [1, 8, 64])
def test_states_are_sixteen_bytes_a_parameter_over_the_shards(tmp_path: Path, num_gpus: int) -> None:
    plan = plan_of(tmp_path, f"train.parallel.dp_shard={num_gpus}")
    found = plan.memory
    kept = 4 * plan.layout.config.num_parameters / num_gpus
    assert found.optimizer_states == 2 * kept
    assert found.parameters > kept
    assert found.gradients > kept
    assert 4 * kept == zero_bytes(plan.layout.config.num_parameters, num_gpus, 3)


def test_what_is_sharded_or_computed_again_takes_less_memory(tmp_path: Path) -> None:
    by_zero = [plan_of(tmp_path, f"train.zero={zero}").memory for zero in (3, 2, 0)]
    assert by_zero[0].parameters < by_zero[1].parameters < by_zero[2].parameters
    assert by_zero[1].optimizer_states * 8 == by_zero[2].optimizer_states
    recomputed = [
        plan_of(tmp_path, f"train.activation_checkpointing={how}").memory.activations
        for how in ("none", "selective", "full")
    ]
    assert recomputed[0] > recomputed[1] > recomputed[2]


def test_more_to_compute_again_takes_longer_and_lowers_mfu_but_not_hfu(tmp_path: Path) -> None:
    none, full = (plan_of(tmp_path, f"train.activation_checkpointing={how}").throughput for how in ("none", "full"))
    assert full.step_seconds > none.step_seconds
    assert full.mfu < none.mfu
    # Not quite: adding gradients up takes no longer.
    assert full.hfu == pytest.approx(none.hfu, rel=0.02)


def test_gathering_and_reducing_are_counted_for_each_micro_batch(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    size = plan.layout.config.num_parameters * 7 / 8
    assert plan.layout.num_micro_batches == 8
    sent = {kind.what.split()[0]: kind.num_bytes for kind in plan.traffic}
    assert sent == {"all-gather": 8 * 2 * 2 * size, "reduce-scatter": 8 * 4 * size}
    sent = {kind.what: kind.num_bytes for kind in plan_of(tmp_path, "train.zero=0").traffic}
    assert sent == {"all-reduce of gradients": 2 * 4 * size}


def test_peers_of_a_layer_send_the_stream_and_context_peers_keys_and_values(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "train.parallel.dp_shard=1", "train.parallel.tp=4", "train.parallel.cp=2")
    sent = {kind.axis: kind.num_bytes for kind in plan.traffic}
    stream = 8192 / 2 * 4096 * 2
    assert sent["tp"] == 64 * (8 * 32 + 4) * stream * 3 / 4
    # Eight key-value heads of width 128, of which each tensor peer has two.
    assert sent["cp"] == 64 * 32 * 3 * (8192 * 2 * 2 * 128 * 2) / 2
    again = plan_of(tmp_path, "train.parallel.dp_shard=1", "train.parallel.tp=4", "train.activation_checkpointing=full")
    assert again.traffic[0].num_bytes == 64 * (11 * 32 + 4) * 2 * stream * 3 / 4


def test_an_all_reduce_longer_than_the_last_backward_shows_in_the_step(tmp_path: Path) -> None:
    slow, fast = (plan_of(tmp_path, "train.zero=0", f"plan.intra_gbps={gbps}").throughput for gbps in (36, 3600))
    assert fast.exposed_seconds == 0
    # Backward of a micro-batch is two thirds of its operations, and adding gradients up.
    adding = 8_030_261_248 * 12 / 3.35e12
    backward = (fast.compute_seconds / 8 - adding) * 2 / 3 + adding
    assert slow.exposed_seconds == pytest.approx(slow.communication_seconds - backward)
    assert slow.step_seconds == pytest.approx(fast.step_seconds + slow.exposed_seconds)


@pytest.mark.parametrize(("global_batch", "in_flight"), [(16, 4), (4, 4)])
def test_a_first_stage_keeps_as_many_micro_batches_as_are_under_way(
    tmp_path: Path, global_batch: int, in_flight: int
) -> None:
    plan = plan_of(tmp_path, "train.parallel.dp_shard=1", "train.parallel.pp=4", f"train.global_batch={global_batch}")
    assert plan.memory.activations == in_flight * 8 * layer_activations(plan.layout)


def mixtral(tmp_path: Path, **changes: Any) -> str:
    """The config.json of Mixtral 8x7B (2401.04088, table 1)."""
    config = {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
        "intermediate_size": 14336,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
    }
    path = tmp_path / "mixtral.json"
    path.write_text(json.dumps(config | changes))
    return f"train.model={path}"


def test_a_model_of_experts_has_the_parameters_that_its_paper_says(tmp_path: Path) -> None:
    shape = plan_of(tmp_path, mixtral(tmp_path)).layout.shape
    # 46.7 billion, of which a token passes 12.9 (mistral.ai/news/mixtral-of-experts).
    assert shape.num_parameters / 1e9 == pytest.approx(46.7, abs=0.05)
    assert shape.num_active_parameters / 1e9 == pytest.approx(12.9, abs=0.05)
    assert shape.flops_per_token(8192) < 6 * shape.num_active_parameters + 12 * 32 * 4096 * 8192


def test_deepseek_moe_has_a_dense_first_layer_and_shared_experts(tmp_path: Path) -> None:
    # DeepSeekMoE 16B (2401.06066, section 5.1.2): 16.4 billion, 2.8 of them a token.
    changes = {
        "model_type": "deepseek", "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16,
        "num_hidden_layers": 28, "intermediate_size": 10944, "n_routed_experts": 64, "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408, "n_shared_experts": 2, "first_k_dense_replace": 1, "vocab_size": 102400,
    }  # fmt: skip
    plan = plan_of(tmp_path, mixtral(tmp_path, **changes), "train.parallel.ep=8")
    assert plan.layout.shape.num_parameters / 1e9 == pytest.approx(16.4, abs=0.05)
    assert plan.layout.shape.num_active_parameters / 1e9 == pytest.approx(2.8, abs=0.05)
    assert (plan.layout.stages[0].num_dense, plan.layout.stages[0].num_sparse) == (1, 27)


def test_experts_are_kept_by_their_own_ranks_and_tokens_sent_to_them(tmp_path: Path) -> None:
    whole, spread = (plan_of(tmp_path, mixtral(tmp_path), "train.zero=2", f"train.parallel.ep={ep}") for ep in (1, 8))
    assert whole.layout.mesh.num_workers == spread.layout.mesh.num_workers == 8
    # Moments are shared by all eight either way; gathered weights are an eighth of the experts.
    assert spread.memory.optimizer_states == pytest.approx(whole.memory.optimizer_states)
    experts = 32 * 8 * 3 * 4096 * 14336
    assert whole.memory.parameters - spread.memory.parameters == pytest.approx(2 * experts * 7 / 8)
    assert not any(kind.axis == "ep" for kind in whole.traffic)
    (sent,) = (kind for kind in spread.traffic if kind.axis == "ep")
    # Two copies of each of 8,192 tokens, there and back, forward and backward, in 32 layers and 8 micro-batches.
    assert sent.num_bytes == 8 * 32 * 4 * (8192 * 2 * 4096 * 2) * 7 / 8
    assert sent.link == "intra"


def test_an_all_to_all_between_nodes_has_only_its_own_adapters(tmp_path: Path) -> None:
    table = PlanTable(gpus_per_node=8, intra_gbps=3600, inter_gbps=400, near_gpus=64, far_gbps=100)
    assert all_to_all_path(8, table).gbps == 3600
    # Of 15 others 8 are outside the node.
    assert all_to_all_path(16, table).gbps == pytest.approx(400 * 15 / 8)
    far = all_to_all_path(128, table)
    assert (far.link, far.gbps) == ("far", pytest.approx(100 * 127 / 64))


def test_float8_speeds_up_products_with_weights_and_nothing_else(tmp_path: Path) -> None:
    plans = [plan_of(tmp_path, f"train.dtype={dtype}", "train.parallel.dp_shard=8") for dtype in ("bf16", "float8")]
    shape, parts = plans[0].layout.shape, plans[0].layout.num_micro_batches
    saved = plans[0].throughput.compute_seconds - plans[1].throughput.compute_seconds
    linear = 32 * shape.layer_flops(sparse=False) * 8192 * parts
    assert saved == pytest.approx(linear * (1 / (0.5 * 989e12) - 1 / (0.36 * 1979e12)))
    assert plans[0].memory == plans[1].memory
    with pytest.raises(RecipeError, match="'float8': A100"):
        plan_of(tmp_path, "train.dtype=float8", "plan.gpu=A100")


def test_zero_1_keeps_weights_and_gradients_whole_and_moments_sharded(tmp_path: Path) -> None:
    by_zero = {zero: plan_of(tmp_path, f"train.zero={zero}") for zero in (0, 1, 2)}
    num = by_zero[0].layout.config.num_parameters
    assert by_zero[1].memory.parameters == by_zero[0].memory.parameters == (4 + 2) * num
    assert by_zero[1].memory.gradients == by_zero[0].memory.gradients == 4 * num
    assert by_zero[1].memory.optimizer_states == by_zero[2].memory.optimizer_states == num
    sent = {kind.what: kind.num_bytes for kind in by_zero[1].traffic}
    assert sent == {"all-gather of parameters": 4 * num * 7 / 8, "all-reduce of gradients": 2 * 4 * num * 7 / 8}


def test_a_pipeline_keeps_gradients_whole_within_a_step(tmp_path: Path) -> None:
    pipelined = plan_of(tmp_path, "train.parallel.pp=4", "train.parallel.dp_shard=2", "train.micro_batch=1")
    part = pipelined.layout.ranks[pipelined.memory.rank]
    num = pipelined.layout.num_parameters(part)
    assert pipelined.memory.gradients == pytest.approx(4 * num / 2 + 4 * num)
    assert pipelined.memory.optimizer_states == pytest.approx(8 * num / 2)


@pytest.mark.parametrize(
    ("schedule", "num_virtual", "kept"),
    [("1f1b", 1, 4 * 2), ("gpipe", 1, 16 * 2), ("interleaved", 2, 11), ("zbv", 2, 8), ("dualpipev", 2, 9)],
)
def test_a_schedule_keeps_as_many_layers_as_its_table_has_under_way(
    tmp_path: Path, schedule: str, num_virtual: int, kept: int
) -> None:
    # 8 layers on 4 ranks: two a rank, in one stage or in two.
    config = {"model_type": "llama", "num_local_experts": None, "num_hidden_layers": 8}
    changes = (
        mixtral(tmp_path, **config), "train.parallel.dp_shard=1", "train.parallel.pp=4", "train.global_batch=16",
        f"train.pipeline.schedule={schedule}", f"train.pipeline.virtual_stages={num_virtual}",
    )  # fmt: skip
    layout = plan_of(tmp_path, *changes).layout
    second = activations(layout, 1 if schedule in ("zbv", "dualpipev") else 0)
    assert second == pytest.approx(kept * layer_activations(layout))


def test_the_bubble_of_a_plan_is_that_of_its_table(tmp_path: Path) -> None:
    def bubble(schedule: str, *more: str) -> float:
        return plan_of(
            tmp_path, "train.parallel.dp_shard=1", "train.parallel.pp=4", "train.global_batch=16",
            f"train.pipeline.schedule={schedule}", "plan.inter_gbps=1e9", "plan.intra_gbps=1e9",
            "plan.latency_us=[0, 0, 0]", *more,
        ).throughput.bubble  # fmt: skip

    # The output matrix makes the last stage the fullest, which 1F1B waits for.
    assert 1 - 16 / 19 < bubble("1f1b") < 0.3
    assert bubble("1f1b", "train.pipeline.last_stage_less_layers=2") < bubble("1f1b")
    assert bubble("zbv") < bubble("interleaved") < bubble("1f1b")
    assert bubble("interleaved", "train.pipeline.virtual_stages=4") < bubble("interleaved")


def test_many_micro_batches_take_as_long_as_their_whole_table(tmp_path: Path) -> None:
    for schedule in ("1f1b", "interleaved", "interleaved_zero_bubble", "zbv", "dualpipev"):
        layout = plan_of(
            tmp_path, "train.parallel.dp_shard=1", "train.parallel.pp=4", f"train.pipeline.schedule={schedule}"
        ).layout
        plan, gpu = PlanTable(), GPUS["H100"]
        times = pass_times(layout, plan, gpu)
        whole = PassTimes(
            forward=times.whole.forward, input=times.whole.input, weight=times.whole.weight,
            send=send_seconds(layout, plan),
        )  # fmt: skip
        pipeline = PipelinePlan(layout.pipeline.schedule, 4, layout.pipeline.num_virtual, 64)
        assert layout.num_micro_batches == 64
        found = pipeline_seconds(times, layout, plan)
        assert found == pytest.approx(span(pipeline, whole, times.shares), rel=1e-9), schedule
        assert least_pipeline_seconds(times, layout, plan) <= found * (1 + 1e-12)


def test_context_peers_gather_or_pass_round_and_without_balance_one_has_more_work(tmp_path: Path) -> None:
    long = ("train.seq_len=131072", "train.parallel.dp_shard=1", "train.parallel.cp=8", "train.global_batch=1")
    gather, ring, uneven = (
        plan_of(tmp_path, *long, f"train.context.{key}") for key in ("method=gather", "method=ring", "balance=none")
    )
    assert ring.throughput.step_seconds < gather.throughput.step_seconds < uneven.throughput.step_seconds
    # A ring keeps its own keys and values for backward, a gather those of the whole sequence.
    assert ring.memory.activations < gather.memory.activations
    attention = 32 * gather.layout.shape.attention_flops(131072) * 16384 / (0.5 * 989e12)
    more = uneven.throughput.compute_seconds - gather.throughput.compute_seconds
    assert more == pytest.approx(attention * (15 / 8 - 1))


def test_more_collectives_wait_longer_where_hops_are_slow(tmp_path: Path) -> None:
    tensor = ("train.parallel.dp_shard=1", "train.parallel.tp=8")
    fast, slow = (plan_of(tmp_path, *tensor, f"plan.latency_us=[{hop}, 14, 28]").traffic[0] for hop in (0, 100))
    # 64 micro-batches, eight collectives a layer and four more, three hops each.
    assert slow.seconds - fast.seconds == pytest.approx(64 * (8 * 32 + 4) * 3 * 100e-6)
    assert fast.latency_seconds == 0


def test_a_ring_that_leaves_the_node_is_as_fast_as_its_members_adapters() -> None:
    table = PlanTable(gpus_per_node=8, intra_gbps=3600, inter_gbps=400)
    assert link_of(1, 8, table) == ("intra", 3600)
    assert link_of(1, 16, table) == ("inter", 3200)
    assert link_of(8, 16, table) == ("inter", 400)
    # 384 members of a pod of 3,072 lie 8 apart, and each has its share of the way out.
    assert link_of(8, 512, table) == ("far", 400)
    assert link_of(1024, 4, table) == ("far", 3 * 57)


def test_a_gpu_alone_sends_nothing(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "train.parallel.dp_shard=1")
    assert plan.traffic == ()
    assert plan.throughput.exposed_seconds == 0
    speed = plan.throughput
    num = plan.layout.config.num_parameters
    # Half the peak, less the passes over gradients in each of 64 micro-batches and over the optimizer's states in one.
    passes = (64 * 12 + 28) * num / 3.35e12
    assert speed.mfu == pytest.approx(0.5 * (speed.step_seconds - passes) / speed.step_seconds)
    assert speed.mfu > 0.47


def test_a_model_that_is_too_large_does_not_fit(tmp_path: Path) -> None:
    assert plan_of(tmp_path, "train.activation_checkpointing=full").fits
    assert not plan_of(tmp_path, "train.model=70B").fits


def test_days_and_cost_follow_from_the_time_of_a_step(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "plan.price=3")
    ideal = 1000 * plan.throughput.step_seconds
    overhead = plan.checkpoints.overhead + plan.checkpoints.restart_overhead
    assert plan.budget.ideal_days == pytest.approx(ideal / 86400)
    assert plan.budget.cost == pytest.approx(3 * 8 * ideal * (1 + overhead) / 3600)
    assert plan.checkpoints.num_bytes == 12 * plan.layout.config.num_parameters


def saved_bytes(num_layers: int, tokens_BT: torch.Tensor) -> int:
    """What the debug model with so many layers really keeps for backward, weights aside."""
    model = Llama(dataclasses.replace(model_config("debug", 250), num_layers=num_layers))
    owned = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            storages[storage.data_ptr()] = storage
        return tensor

    positions_BT = torch.arange(tokens_BT.shape[1]).expand_as(tokens_BT)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(tokens_BT, positions_BT, document_mask(torch.zeros_like(tokens_BT), "dense"))
    return sum(storage.nbytes() for storage in storages.values())


def test_a_layer_keeps_for_backward_what_is_reckoned() -> None:
    tokens_BT = torch.randint(0, 250, (2, 64))
    layout = PlannedLayout(
        shape=Shape(config=model_config("debug", 250)),
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


# The command and its errors.


def test_the_vocabulary_is_the_configs_where_there_is_no_data(tmp_path: Path) -> None:
    assert plan_of(tmp_path).vocabulary.size == 128_256
    assert plan_of(tmp_path).layout.config.num_parameters == 8_030_261_248
    config = {
        "hidden_size": 64,
        "num_attention_heads": 8,
        "num_hidden_layers": 2,
        "intermediate_size": 192,
        "vocab_size": 1000,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    plan = plan_of(tmp_path, f"train.model={path}")
    assert plan.vocabulary.size == 1000
    assert str(path) in plan.vocabulary.origin


def test_vocabulary_and_epochs_are_the_datas_where_there_is_some(tmp_path: Path) -> None:
    make_corpus(str(tmp_path / "out"), {"web": [3000, 1000], "code": [4096]})
    plan = plan_of(tmp_path, f"train.data={tmp_path / 'out'}", "train.model=debug", "train.seq_len=1024")
    assert plan.vocabulary.size == 256
    assert "tiny" in plan.vocabulary.origin
    assert plan.budget.corpus_tokens == 8096
    assert plan.budget.epochs == 1000 * 64 * 1024 / 8096


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("plan.gpu=H1000", "plan.gpu = 'H1000': expected one of H100"),
        ("train.parallel.tp=3", "train.parallel.tp = 3: it must divide"),
        ("train.parallel.pp=33", "train.parallel.pp = 33: expected at most the model's layers, 32"),
        ("train.parallel.cp=3", "train.parallel.cp = 3"),
        ("train.parallel.ep=2", "train.parallel.ep = 2: expected 1"),
        ("train.parallel.ep=3", "train.parallel.ep = 3: expected a divisor"),
        ("train.parallel.pp=16 train.global_batch=8", "it needs at least 16 micro-batches"),
        ("train.parallel.pp=2 train.pipeline.schedule=zbv train.activation_checkpointing=selective", "cannot split"),
        ("train.parallel.cp=4096 train.context.balance=zigzag train.seq_len=4096", "with tp = 1 and zigzag"),
        ("train.model=9B", "train.model = '9B': expected debug"),
        ("plan.mtbf_hours=0", "plan.mtbf_hours = 0"),
        ("plan.efficiency=1.5", "plan.efficiency = 1.5: expected at most 1"),
    ],
)
def test_a_recipe_that_cannot_be_carried_out_is_refused_by_key(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(RecipeError) as error:
        plan_of(tmp_path, *override.split())
    assert message in str(error.value)


def test_the_command_prints_one_object_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.toml"
    path.write_text(RECIPE)
    assert main(["plan", str(path), "--json", "--set", "plan.gpu=h200"]) == 0
    plan = json.loads(capsys.readouterr().out)
    memory = plan["memory"]
    buckets = ("parameters", "gradients", "optimizer_states", "activations")
    assert memory["total"] == pytest.approx(sum(memory[name] for name in buckets))
    assert plan["gpu"]["name"] == "H200"
    assert plan["layout"]["workers"] == 8
    assert main(["plan", str(path)]) == 0
    page = capsys.readouterr().out
    for word in ("optimizer states", "reduce-scatter", "MFU", "Young", "GPU hours"):
        assert word in page
    assert main(["plan", str(path), "--set", "plan.gpu=none"]) == 2
