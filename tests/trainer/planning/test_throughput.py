"""Throughput: the figures that the papers print, and a step's time as its layout makes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lineage.recipe import RecipeError
from tests.support.training.plans import mixtral, plan_of
from tests.trainer.planning.formulae import (
    Gpt,
    bubble_of_useful,
    bubble_of_whole,
    gpt_hardware_flops,
    gpt_model_flops,
    gpt_parameters,
    gpt_step_flops,
    training_seconds,
)
from trainer.options import PlanTable
from trainer.planning.communication import stage_message
from trainer.planning.counts import attention_flops, layer_flops, num_parameters
from trainer.planning.gpus import COPIES, GPUS, machine_of
from trainer.planning.schedules import PassTimes, PipelinePlan, span
from trainer.planning.throughput import (
    Throughput,
    least_pipeline_seconds,
    pass_times,
    pipeline_seconds,
)
from trainer.recipe_tables.parallelism import Schedule


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
    assert 100 * teraflops * 1e12 / GPUS["A100"].peak_flops == pytest.approx(percent, abs=0.5)


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
    assert training_seconds(tokens, parameters, num_gpus, teraflops * 1e12) / 86400 == pytest.approx(
        days, abs=0.5
    )


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
def test_utilisation_is_that_of_korthikanti(
    gpt: Gpt, run: tuple[int, int, float], shares: tuple[float, float]
) -> None:
    batch, num_gpus, seconds = run
    for flops, percent in zip(
        (gpt_model_flops(gpt, batch), gpt_hardware_flops(gpt, batch)), shares, strict=True
    ):
        found = 100 * flops / seconds / num_gpus / GPUS["A100"].peak_flops
        assert found == pytest.approx(percent, rel=0.01)


def test_bubbles_are_as_published() -> None:
    assert bubble_of_whole(4, 4) == 3 / 7
    assert bubble_of_whole(8, 32) == 7 / 39
    assert bubble_of_useful(4, 4) == 3 / 4
    assert bubble_of_useful(8, 32, virtual_stages=2) == 7 / 64


HALF = ("plan.efficiency=0.5", "plan.float8_efficiency=0.36")
"""All kernels at one share of the peak, whatever their shape."""
BANDWIDTH = COPIES * 3.35e12

LLAMA_3_405B = (
    "train.model=405B",
    "train.zero=2",
    "train.global_batch=2048",
    "train.parallel.tp=8",
    "train.parallel.pp=16",
    "train.parallel.dp_shard=128",
    "train.pipeline.schedule=interleaved",
    "train.pipeline.virtual_stages=8",
    "train.pipeline.first_stage_less_layers=1",
    "train.pipeline.last_stage_less_layers=1",
)


def test_the_estimate_for_llama_3_405b_is_near_the_published_share_of_peak(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, *LLAMA_3_405B)
    assert plan.layout.mesh.num_workers == 16_384
    assert plan.layout.num_micro_batches == 16
    assert plan.budget.num_tokens // plan.budget.steps == 2**24
    assert plan.throughput.mfu == pytest.approx(0.41, rel=0.15)
    long = (
        "train.seq_len=131072",
        "train.global_batch=128",
        "train.parallel.dp_shard=8",
        "train.parallel.cp=16",
    )
    assert plan_of(tmp_path, *LLAMA_3_405B, *long).throughput.mfu == pytest.approx(0.38, rel=0.25)
    # 400 teraflops are printed to ten, 41% to one.
    assert 100 * 405e12 / plan.machine.gpu.peak_flops == pytest.approx(41, abs=0.5)
    assert any("torch's pipelines hold weights and gradients whole" in note for note in plan.notes)


def test_more_to_compute_again_takes_longer_and_lowers_mfu_but_not_hfu(tmp_path: Path) -> None:
    none, full = (
        plan_of(tmp_path, f"train.activation_checkpointing={how}").throughput for how in ("none", "full")
    )
    assert full.step_seconds > none.step_seconds
    assert full.mfu < none.mfu
    # Not quite: adding gradients up takes no longer.
    assert full.hfu == pytest.approx(none.hfu, rel=0.02)


def test_a_short_last_micro_batch_takes_the_time_of_its_sequences_unless_a_pipeline_fills_it_up(
    tmp_path: Path,
) -> None:
    small = ("train.global_batch=72", "train.seq_len=2048", *HALF)
    nine = {size: plan_of(tmp_path, *small, f"train.micro_batch={size}") for size in (1, 3, 4, 8, 9)}
    adding = num_parameters(nine[9].layout.config) * 12 / BANDWIDTH
    whole = nine[9].throughput.compute_seconds - adding
    for size, plan in nine.items():
        num = plan.layout.num_micro_batches
        assert num == -(-9 // size)
        # The same nine sequences, and gradients added up once a micro-batch.
        assert plan.throughput.compute_seconds == pytest.approx(whole + num * adding), size
        assert not plan.notes
    spread = ("train.parallel.tp=2", "train.parallel.cp=2", "train.parallel.dp_shard=2")
    sent = [
        plan_of(tmp_path, "train.global_batch=18", *spread, f"train.micro_batch={size}").traffic
        for size in (9, 8)
    ]
    for whole_batch, cut in zip(*sent, strict=True):
        if whole_batch.axis in ("tp", "cp"):
            assert whole_batch.num_bytes == pytest.approx(cut.num_bytes)
    piped = ("train.parallel.dp_shard=1", "train.parallel.pp=2", "train.global_batch=9")
    full, short = (plan_of(tmp_path, *piped, f"train.micro_batch={size}") for size in (3, 2))
    assert not full.notes[1:]
    assert "a rank's 9 sequences are no multiple of it" in short.notes[1]
    assert "some have one of padding" in plan_of(tmp_path, "train.global_batch=71").notes[0]


def test_an_all_reduce_longer_than_the_last_backward_shows_in_the_step(tmp_path: Path) -> None:
    slow, fast = (
        plan_of(tmp_path, "train.zero=0", f"plan.intra_gbps={gbps}", "plan.overlap=1", *HALF).throughput
        for gbps in (36, 3600)
    )
    assert fast.exposed_seconds == 0
    # Backward of a micro-batch is two thirds of its operations in layers, and adding gradients up.
    adding = 8_030_261_248 * 12 / BANDWIDTH
    head = 6 * 8192 * 4096 * 128_256 / (0.5 * 989e12)
    backward = (fast.compute_seconds / 8 - adding - head) * 2 / 3 + adding
    assert slow.exposed_seconds == pytest.approx(slow.communication_seconds - backward)
    assert slow.step_seconds == pytest.approx(fast.step_seconds + slow.exposed_seconds)


def test_float8_speeds_up_products_with_weights_and_nothing_else(tmp_path: Path) -> None:
    plans = [
        plan_of(tmp_path, f"train.dtype={dtype}", "train.parallel.dp_shard=8", *HALF)
        for dtype in ("bf16", "float8")
    ]
    config, parts = plans[0].layout.config, plans[0].layout.num_micro_batches
    saved = plans[0].throughput.compute_seconds - plans[1].throughput.compute_seconds
    # Norms have no product.
    linear = 32 * (layer_flops(config, sparse=False) - 6 * 2 * config.width) * 8192 * parts
    assert saved == pytest.approx(linear * (1 / (0.5 * 989e12) - 1 / (0.36 * 1979e12)))
    assert plans[0].memory == plans[1].memory
    with pytest.raises(RecipeError, match="'float8': A100"):
        plan_of(tmp_path, "train.dtype=float8", "plan.gpu=A100")


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_float8_leaves_experts_their_router_and_narrow_matrices_as_fast_as_they_are(
    tmp_path: Path, recompute: str
) -> None:
    def saved(*changes: str, **config: int) -> float:
        given = (mixtral(tmp_path, **config), f"train.activation_checkpointing={recompute}", *changes, *HALF)
        plain, float8 = (plan_of(tmp_path, *given, f"train.dtype={dtype}") for dtype in ("bf16", "float8"))
        return plain.throughput.compute_seconds - float8.throughput.compute_seconds

    faster = 1 / (0.5 * 989e12) - 1 / (0.36 * 1979e12)
    # Queries and attention's output, keys and values; the second of each is computed again, or both.
    attention = 2 * 4096 * 4096, 2 * 4096 * 1024
    times = {"none": 3.0, "selective": 3.5, "full": 4.0}[recompute]
    tokens = 8192 * 8 * 32  # of a GPU, in 32 layers
    assert saved() == pytest.approx(2 * times * sum(attention) * tokens * faster)
    # Of the shared expert's three matrices one.
    shared = 3 * 4096 * 14336
    times_shared = {"none": 3.0, "selective": 3 + 1 / 3, "full": 4.0}[recompute]
    both = 2 * (times * sum(attention) + times_shared * shared) * tokens * faster
    assert saved(n_shared_experts=1) == pytest.approx(both)
    # Four heads of two numbers each are no multiple of 16 columns.
    assert saved(num_key_value_heads=4, num_attention_heads=4, head_dim=2) == 0


def test_the_bubble_of_a_plan_is_that_of_its_table(tmp_path: Path) -> None:
    def bubble(schedule: str, *more: str) -> float:
        return of(schedule, *more).bubble

    def imbalance(schedule: str, *more: str) -> float:
        return of(schedule, *more).imbalance

    def of(schedule: str, *more: str) -> Throughput:
        return plan_of(
            tmp_path,
            "train.parallel.dp_shard=1",
            "train.parallel.pp=4",
            "train.global_batch=16",
            f"train.pipeline.schedule={schedule}",
            "plan.inter_gbps=1e9",
            "plan.intra_gbps=1e9",
            "plan.latency_us=[0, 0, 0]",
            *more,
        ).throughput

    # The output matrix makes the last stage the fullest, for which a lighter one makes up.
    assert bubble("1f1b") == pytest.approx(1 - 16 / 19, abs=0.03)
    lighter = "train.pipeline.last_stage_less_layers=2"
    assert imbalance("1f1b", lighter) < imbalance("1f1b")
    assert bubble("zbv") < bubble("interleaved") < bubble("1f1b")
    assert bubble("interleaved", "train.pipeline.virtual_stages=4") < bubble("interleaved")


NEARLY_EVEN = (
    "train.model=70B",
    "train.parallel.dp_shard=1",
    "train.parallel.tp=8",
    "train.parallel.pp=2",
    "train.parallel.cp=4",
    "train.activation_checkpointing=full",
)
"""Ranks with nearly equal work: the one runs ahead of the other for many rounds."""


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "interleaved_zero_bubble", "zbv", "dualpipev"])
@pytest.mark.parametrize("changes", [("train.parallel.dp_shard=1", "train.parallel.pp=4"), NEARLY_EVEN])
@pytest.mark.parametrize("num_micro_batches", [64, 96, 192])
def test_many_micro_batches_take_as_long_as_their_whole_table(
    tmp_path: Path, schedule: Schedule, changes: tuple[str, ...], num_micro_batches: int
) -> None:
    given = (*changes, f"train.pipeline.schedule={schedule}", f"train.global_batch={num_micro_batches}")
    made = plan_of(tmp_path, *given)
    layout, machine = made.layout, machine_of(PlanTable())
    times, (path, size) = pass_times(layout, machine), stage_message(layout, machine)
    whole = PassTimes(
        forward=times.whole.forward,
        input=times.whole.input,
        weight=times.whole.weight,
        send=path.seconds(size),
    )
    pipeline = PipelinePlan(schedule, layout.mesh.pp, layout.pipeline.num_virtual, num_micro_batches)
    assert layout.num_micro_batches == num_micro_batches
    found = pipeline_seconds(times, layout, machine)
    assert found == pytest.approx(span(pipeline, whole, times.shares), rel=1e-9)
    assert least_pipeline_seconds(times, layout, machine) <= found * (1 + 1e-12)
    assert made.throughput.bubble > 0


def test_context_peers_gather_or_pass_round_and_without_balance_one_has_more_work(tmp_path: Path) -> None:
    long = (
        "train.seq_len=131072",
        "train.parallel.dp_shard=1",
        "train.parallel.cp=8",
        "train.global_batch=1",
        *HALF,
    )
    gather, ring, uneven = (
        plan_of(tmp_path, *long, f"train.context.{key}")
        for key in ("method=gather", "method=ring", "balance=none")
    )
    assert ring.throughput.step_seconds < gather.throughput.step_seconds < uneven.throughput.step_seconds
    # A ring keeps its own keys and values for backward, a gather those of the whole sequence.
    assert ring.memory.activations < gather.memory.activations
    attention = 32 * attention_flops(gather.layout.config, 131072) * 16384 / (0.5 * 989e12)
    more = uneven.throughput.compute_seconds - gather.throughput.compute_seconds
    assert more == pytest.approx(attention * (15 / 8 - 1))


def test_muon_takes_the_products_of_its_rounds_shared_among_the_ranks_of_a_stage(tmp_path: Path) -> None:
    muon = 'train.optimizer.name="muon"'
    llama_8b = [(4096, 4096)] * 2 + [(1024, 4096)] * 2 + [(4096, 14336)] * 3
    flops = 32 * 5 * sum(4 * short**2 * long + 2 * short**3 for short, long in llama_8b)
    wire = [
        "plan.intra_gbps=1e12",
        "plan.inter_gbps=1e12",
        "plan.latency_us=[0, 0, 0]",
        "plan.efficiency=0.5",
    ]

    def more(*asked: str) -> float:
        with_muon, without = (
            plan_of(tmp_path, *wire, *asked, *name).throughput.update_seconds for name in ((muon,), ())
        )
        return with_muon - without

    alone = more("train.parallel.dp_shard=1")
    assert alone == pytest.approx(flops / (0.5 * GPUS["H100"].peak_flops), rel=1e-6)
    assert more("train.parallel.dp_shard=8") == pytest.approx(alone / 8, rel=1e-4)
    assert more("train.parallel.dp_shard=2", "train.parallel.tp=4") == pytest.approx(alone / 8, rel=1e-4)
    # Of 224 matrices and 512 ranks most have none: the largest one decides.
    largest = 5 * (4 * 4096**2 * 14336 + 2 * 4096**3) / (0.5 * GPUS["H100"].peak_flops)
    assert more("train.parallel.dp_shard=512", "train.global_batch=512") == pytest.approx(largest, rel=1e-3)
    slow = more("train.parallel.dp_shard=8", "plan.intra_gbps=100", "plan.inter_gbps=100")
    assert slow > alone / 8 + 2 * 7e9 / 8 / (100e9 / 8)


def test_a_gpu_alone_sends_nothing(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "train.parallel.dp_shard=1", *HALF)
    assert plan.traffic == ()
    assert plan.throughput.exposed_seconds == 0
    speed = plan.throughput
    num = num_parameters(plan.layout.config)
    # Half the peak, less the passes over gradients in each of 64 micro-batches and over the optimizer's
    # states in one.
    passes = (64 * 12 + 28) * num / BANDWIDTH
    # PaLM's count has norms as products, less than one in ten thousand.
    assert speed.mfu == pytest.approx(0.5 * (speed.step_seconds - passes) / speed.step_seconds, rel=1e-4)
    assert speed.mfu > 0.47
