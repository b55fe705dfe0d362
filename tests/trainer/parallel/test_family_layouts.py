"""Every family computes on several processes what it computes on one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, get_args

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.support.processes.forked import run_forked
from tests.support.training.family_layouts import COMPILED, LARGER, LAYOUTS, compare
from tests.support.training.layouts import double, shared
from tests.support.training.transformers_models import FAMILIES, VARIANTS
from trainer.model import norms, self_attention
from trainer.model.context import attend
from trainer.model.pieces import Scoring
from trainer.model.rows import DeviceRows
from trainer.parallel import context
from trainer.parallel.context import Balance, ContextOptions, share_rows
from trainer.parallel.layout import ParallelLayout
from trainer.processes.runtime import Process

pytestmark = pytest.mark.differential("trainer/model", "trainer/parallel")
WITH_EXPERTS = ("mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss")


def assert_as_one_process(folder: Path, names: list[str], layout: ParallelLayout) -> None:
    found = compare(folder, names, layout)
    assert found.keys() == set(names)
    far = {name: one for name, one in found.items() if one.loss > 1e-12 or one.gradient > 1e-10}
    assert far == {}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_family_spread_over_processes_computes_what_one_does(name: str, tmp_path: Path) -> None:
    assert_as_one_process(tmp_path, [*FAMILIES], LAYOUTS[name])


def test_experts_spread_over_processes_compute_what_one_does(tmp_path: Path) -> None:
    assert_as_one_process(tmp_path, [*WITH_EXPERTS], double(dp_shard=2, ep=2))


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGER)
def test_a_family_on_a_larger_layout_computes_what_one_process_does(name: str, tmp_path: Path) -> None:
    assert_as_one_process(tmp_path, [*FAMILIES, *VARIANTS], LARGER[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_layers_with_windows_compute_what_one_process_does(name: str, tmp_path: Path) -> None:
    assert_as_one_process(tmp_path, ["mistral", "olmo3", "gemma2"], COMPILED[name])


def norm_each_ranks_heads_alone() -> None:
    def forward(norm: norms.WholeNorm, x: DTensor) -> DTensor:
        local, weight = x.to_local(), cast(DTensor, norm.weight).to_local()
        scaled = local * torch.rsqrt(local.square().mean(-1, keepdim=True) + norm.eps)
        return DTensor.from_local(scaled * weight, x.device_mesh, x.placements, run_check=False)

    norms.WholeNorm.forward = forward  # type: ignore[method-assign, assignment]


def take_one_ranks_gradient_of_the_shared_key() -> None:
    self_attention._whole = lambda shared: shared.to_local() if isinstance(shared, DTensor) else shared


def forget_windows_between_ranks() -> None:
    honest = context.pieces_between
    context.pieces_between = lambda queries, keys, window: honest(queries, keys, None)


LENGTH, NARROW = 1024, 16


class LargestTensor(TorchDispatchMode):
    """The most numbers that a tensor has which an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        self.size = max([self.size, *(one.numel() for one in tree_leaves(made) if isinstance(one, Tensor))])
        return made


def largest_of_windows(method: Literal["gather", "ring"], balance: Balance, process: Process) -> int:
    """Of masks, attention and its gradients in a layer with a narrow window, whose positions are shared."""
    lengths = torch.tensor([[600, 424], [60, 964]])
    documents_BT = torch.stack([torch.arange(2).repeat_interleave(row) for row in lengths])
    rows = DeviceRows.of_one_document(torch.zeros(2, LENGTH, dtype=torch.int64))
    rows = dataclasses.replace(rows, documents_BT=documents_BT)
    options = ContextOptions(
        group=cast(dist.ProcessGroup, dist.group.WORLD), method=method, balance=balance, windows=(NARROW,)
    )
    with LargestTensor() as largest:
        share = share_rows(rows, options, "dense")
        heads = [torch.randn(2, LENGTH // 2, 1, 2, requires_grad=True) for _ in range(3)]
        attend(*heads, share.masks[NARROW], Scoring(scale=0.5)).sum().backward()
    return largest.size


@pytest.mark.parametrize("method", ["gather", "ring"])
@pytest.mark.parametrize("balance", get_args(Balance))
def test_windows_of_shared_positions_make_nothing_as_large_as_a_dense_mask(
    method: Literal["gather", "ring"], balance: Balance, tmp_path: Path
) -> None:
    found = run_forked(tmp_path, 2, partial(largest_of_windows, method, balance))
    assert max(found) < LENGTH // 2 * LENGTH // 32


FAULTS: dict[str, tuple[str, ParallelLayout, Callable[[], None]]] = {
    "a norm of one rank's heads": ("olmo2", double(tp=2), norm_each_ranks_heads_alone),
    "a shared key's gradient": ("deepseek_v3", double(tp=2), take_one_ranks_gradient_of_the_shared_key),
    "no window in the ring": ("mistral", shared("ring", "zigzag", cp=2), forget_windows_between_ranks),
    "no window over gathered keys": ("olmo3", shared("gather", "zigzag", cp=2), forget_windows_between_ranks),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_of_a_layout_is_found(fault: str, tmp_path: Path) -> None:
    name, layout, plant = FAULTS[fault]
    (found,) = compare(tmp_path, [name], layout, plant).values()
    assert found.gradient > 1e-7
