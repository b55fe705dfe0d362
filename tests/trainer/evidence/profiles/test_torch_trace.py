"""A trace of a GPU: what is hidden, what bounds a kernel, and who left the device idle."""

from __future__ import annotations

import gzip
from collections.abc import Sequence

import pytest

from tests.support.training.traces import SQUARE, GpuTrace
from trainer.evidence.profiles.expected import Peaks
from trainer.evidence.profiles.profile import Profile, profile_of
from trainer.evidence.profiles.rank_trace import RankTrace, TraceError
from trainer.evidence.profiles.torch_trace import read_torch_trace

H200 = Peaks("H200", {"bfloat16": 989e12}, 4.8e12)


def profile(traces: Sequence[RankTrace], peaks: Peaks | None = H200) -> Profile:
    return profile_of(traces, peaks, None, output="run", attempt=1, tool="torch.profiler")


def step(rank: int = 0, late: float = 0.0) -> GpuTrace:
    """A step of 1,000 µs: computing 0–300 and 400–700, an all-reduce 250–500 (from 250 + `late` on)."""
    trace = GpuTrace(rank=rank)
    trace.phase("forward", 0, 400)
    trace.phase("backward", 400, 1000)
    trace.product(0, 300, launched=0.5)
    trace.all_reduce(250 + late, 500, launched=240)
    trace.kernel("triton_poi_fused_add_0", 400, 700, launched=390)
    return trace


def test_communication_is_hidden_where_kernels_compute_beside_it() -> None:
    found = profile([read_torch_trace(step().as_bytes(), 0)])
    (rank,) = found.ranks
    assert (rank.seconds, rank.computing) == pytest.approx((1e-3, 6e-4))
    assert (rank.communication, rank.hidden, rank.exposed) == pytest.approx((250e-6, 150e-6, 100e-6))
    assert (rank.idle, rank.copying) == pytest.approx((3e-4, 0))
    assert found.hidden_share == pytest.approx(0.6)
    (collective,) = found.collectives
    assert (collective.name, collective.num, collective.hidden_share) == ("all-reduce", 1, pytest.approx(0.6))
    assert collective.num_bytes == 2 * 1 / 2 * 2_000_000  # a ring of two sends the buffer once


def test_the_roofline_of_a_product_is_its_operations_over_the_peak() -> None:
    found = profile([read_torch_trace(step().as_bytes(), 0)])
    product = next(kernel for kernel in found.kernels if kernel.name == "sm90_xmma_gemm_bf16")
    assert product.operator == "aten::mm" and product.flops == 2 * SQUARE**3
    assert product.num_bytes == 3 * SQUARE**2 * 2
    assert (product.bound, product.roofline_share) == (
        "arithmetic", pytest.approx(2 * SQUARE**3 / 989e12 / 300e-6),
    )  # fmt: skip
    assert product.share == pytest.approx(0.5)
    other = next(kernel for kernel in found.kernels if kernel.name.startswith("triton"))
    assert other.roofline_share is None  # no operator of it was recorded


def test_a_kernel_that_moves_memory_is_bound_by_bandwidth() -> None:
    trace = GpuTrace()
    shapes = {"Input Dims": [[1 << 28]], "Input Strides": [[1]], "Input type": ["float"]}
    trace.host("aten::silu", 0, 2, **{"External id": 5}, **shapes)
    trace.kernel("vectorized_elementwise_kernel", 10, 510, 1, **{"External id": 5})
    (kernel,) = profile([read_torch_trace(trace.as_bytes(), 0)]).kernels
    assert (kernel.bound, kernel.roofline_share) == ("memory", pytest.approx((4 << 28) / 4.8e12 / 500e-6))


def test_an_unknown_device_has_no_roofline() -> None:
    found = profile([read_torch_trace(step().as_bytes(), 0)], None)
    assert {kernel.roofline_share for kernel in found.kernels} == {None}


@pytest.mark.parametrize(
    ("launched", "host", "cause"),
    [
        (640, ("aten::add", 600, 690, "cpu_op"), "host"),
        (640, ("cudaStreamSynchronize", 20, 630, "cuda_runtime"), "synchronisation"),
        (40, ("aten::add", 30, 60, "cpu_op"), "dependency"),
    ],
)
def test_an_idle_stretch_is_put_down_to_what_the_host_did(
    launched: float, host: tuple[str, float, float, str], cause: str
) -> None:
    trace = GpuTrace()
    trace.phase("optimizer", 0, 1000)
    trace.kernel("first", 0, 500, launched=0)
    trace.host(*host)
    trace.kernel("second", 700, 1000, launched=launched)
    (rank,) = profile([read_torch_trace(trace.as_bytes(), 0)]).ranks
    (gap,) = rank.gaps
    assert (gap.cause, gap.phase, gap.seconds) == (cause, "optimizer", pytest.approx(2e-4))


def test_an_idle_stretch_while_the_batch_is_loaded_is_the_loaders() -> None:
    trace = GpuTrace()
    trace.phase("data loading", 0, 600)
    trace.phase("forward", 600, 1000)
    trace.kernel("first", 650, 1000, launched=640)
    (rank,) = profile([read_torch_trace(trace.as_bytes(), 0)]).ranks
    (gap,) = rank.gaps
    assert (gap.cause, gap.phase, gap.seconds) == ("data loading", "data loading", pytest.approx(650e-6))


def test_the_rank_that_comes_last_is_named_and_clocks_of_hosts_are_set_by_the_ends() -> None:
    on_time, late = step(0), step(1, late=100)
    late.host_name, late.base = "other", on_time.base + 77_000_000  # 77 ms ahead
    late.phase("data loading", -300, 0)  # its trace begins earlier
    traces = [read_torch_trace(one.as_bytes(), rank) for rank, one in enumerate((on_time, late))]
    first, last = profile(traces).ranks
    # From 250 until the other came at 350: 50 of these µs are beside no kernel.
    assert first.waited_for == {1: pytest.approx(50e-6)} and last.waited_for == {}
    assert first.waiting == pytest.approx(50e-6)


def test_an_operator_of_a_cpu_computes_but_while_it_waits_for_a_collective() -> None:
    trace = GpuTrace(device="")
    trace.phase("forward", 0, 100)
    trace.host("autograd::engine::evaluate_function: MulBackward0", 0, 100)
    trace.host("aten::mul", 10, 90)
    trace.host("_c10d_functional::wait_tensor", 20, 50)
    trace.host("aten::add", 60, 70)
    read = read_torch_trace(trace.as_bytes(), 0)
    assert read.device == "CPU" and read.activity.computing.bounds_N2.tolist() == [
        [10_000, 20_000],
        [50_000, 90_000],
    ]
    assert sorted((work.name, work.duration) for work in read.activity.works) == [
        ("aten::add", 10_000), ("aten::mul", 40_000),
    ]  # fmt: skip


def test_a_trace_in_gzip_is_read_and_what_is_none_is_told() -> None:
    assert read_torch_trace(gzip.compress(step().as_bytes()), 0).num_steps == 1
    for wrong in (b"", b"{}", b"\x1f\x8bcut", b'{"traceEvents": 3}', b'{"traceEvents": []}', b"[1]"):
        with pytest.raises(TraceError):
            read_torch_trace(wrong, 0)
