"""Every parallel layout trains as one process does; the measure also finds what is wrong."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.processes.forked import run_forked
from tests.support.training.layouts import (
    CONFIG,
    GLOBAL_BATCH,
    SEED,
    TABLE,
    Trained,
    agree,
    context_of,
    dataset,
    double,
    feed_options,
    first_model,
    mesh,
    plain_sum,
    shared,
    slice_over,
    staged,
    train_over,
    train_parallel,
    train_plainly,
    train_slice,
)
from trainer.data.blocks import LocalBlocks
from trainer.data.dataset import IGNORED, Slice
from trainer.feed.feed import Feed, FeedSource
from trainer.model import context as attention_module
from trainer.model.attention import Kernel
from trainer.model.config.description import ModelConfig
from trainer.model.rows import DeviceRows
from trainer.optim.optimizer import Optimizer
from trainer.parallel import mesh as mesh_module
from trainer.parallel.context import ContextOptions, ContextShare
from trainer.parallel.layout import ParallelLayout
from trainer.parallel.mesh import ParallelModel, parallelise_model
from trainer.parallel.pipeline import TiedEnds
from trainer.parallel.weights import initialise
from trainer.processes.runtime import Process
from trainer.recipe_tables.parallelism import ContextTable, OverlapTable, PipelineTable, Schedule
from trainer.run.step import evaluate, train_step

pytestmark = pytest.mark.differential("trainer")

DEEP = dataclasses.replace(CONFIG, num_layers=8)
UNTIED = dataclasses.replace(DEEP, tied=False)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_corpus(str(tmp_path_factory.mktemp("out")), {"web": [1700, 530], "books": [1111]}).url


@pytest.fixture(scope="module")
def reference(corpus: str) -> Trained:
    return train_plainly(dataset(corpus, Slice()))


@pytest.fixture(scope="module")
def deep_reference(corpus: str) -> Trained:
    return train_plainly(dataset(corpus, Slice()), config=DEEP)


@pytest.fixture(scope="module")
def untied_reference(corpus: str) -> Trained:
    return train_plainly(dataset(corpus, Slice()), config=UNTIED)


@pytest.fixture(scope="module")
def float32_reference(corpus: str) -> Trained:
    return train_plainly(dataset(corpus, Slice()), torch.float32)


LAYOUTS = {
    "one process": ParallelLayout(mesh=mesh(), dtype=torch.float64),
    "ddp 2": ParallelLayout(mesh=mesh(dp_replicate=2), zero=0, dtype=torch.float64),
    "fsdp 2": ParallelLayout(mesh=mesh(dp_shard=2), dtype=torch.float64),
    "zero-2 form 2": ParallelLayout(mesh=mesh(dp_shard=2), zero=2, dtype=torch.float64),
    "tensor parallel 2": ParallelLayout(mesh=mesh(tp=2), dtype=torch.float64),
    "zero 1 over 2": double(dp_shard=2, zero=1),
    "context 2, gathered, zigzag": shared("gather", "zigzag", cp=2),
    "pipeline 2, 1f1b": staged("1f1b", pp=2),
    "context 2, ring, by documents": shared("ring", "documents", cp=2),
}
LARGER = {
    "zero 1 over 4": double(dp_shard=4, zero=1),
    "zero 1 over 2, replicas 2": double(dp_shard=2, dp_replicate=2, zero=1),
    "zero 1 over 2 x tensor parallel 2": double(dp_shard=2, tp=2, zero=1),
    "zero 1 over 2 x context 2": double(dp_shard=2, cp=2, zero=1),
    **{
        f"context {cp}, {method}, {balance}": shared(method, balance, cp=cp)
        for cp in (2, 4)
        for method in ("gather", "ring")
        for balance in ("zigzag", "documents", "none")
    },
    "context 2 x fsdp 2, gathered": shared("gather", "zigzag", cp=2, dp_shard=2),
    "context 2 x fsdp 2, ring": shared("ring", "documents", cp=2, dp_shard=2),
    "context 2 x ddp 2": double(cp=2, dp_replicate=2, zero=0),
    "context 2 x tensor parallel 2, gathered": shared("gather", "documents", cp=2, tp=2),
    "context 2 x tensor parallel 2, ring": shared("ring", "zigzag", cp=2, tp=2),
    "context 2 x fsdp 2, everything recomputed": dataclasses.replace(
        double(cp=2, dp_shard=2), recompute="full"
    ),
    "context 2 x fsdp 2, compiled": dataclasses.replace(
        double(cp=2, dp_shard=2), compile=True, compile_backend="aot_eager"
    ),
    "ddp 4": ParallelLayout(mesh=mesh(dp_replicate=4), zero=0, dtype=torch.float64),
    "fsdp 4": ParallelLayout(mesh=mesh(dp_shard=4), dtype=torch.float64),
    "zero-2 form 4": ParallelLayout(mesh=mesh(dp_shard=4), zero=2, dtype=torch.float64),
    "hsdp 2 x 2": ParallelLayout(mesh=mesh(dp_replicate=2, dp_shard=2), dtype=torch.float64),
    "hsdp 2 x 2, zero-2 form": ParallelLayout(
        mesh=mesh(dp_replicate=2, dp_shard=2), zero=2, dtype=torch.float64
    ),
    "tensor parallel 4": ParallelLayout(mesh=mesh(tp=4), dtype=torch.float64),
    "fsdp 2 x tensor parallel 2": ParallelLayout(mesh=mesh(dp_shard=2, tp=2), dtype=torch.float64),
    "replicas 2 x tensor parallel 2": ParallelLayout(
        mesh=mesh(dp_replicate=2, tp=2), zero=0, dtype=torch.float64
    ),
    "fsdp 2, everything recomputed": ParallelLayout(
        mesh=mesh(dp_shard=2), dtype=torch.float64, recompute="full"
    ),
    "fsdp 2, some recomputed": ParallelLayout(
        mesh=mesh(dp_shard=2), dtype=torch.float64, recompute="selective"
    ),
    "fsdp 2 x tensor parallel 2, recomputed": ParallelLayout(
        mesh=mesh(dp_shard=2, tp=2), dtype=torch.float64, recompute="full"
    ),
    "fsdp 2, gathered three layers ahead": dataclasses.replace(
        double(dp_shard=2), overlap=OverlapTable(prefetch_layers=3)
    ),
    "fsdp 2, compiled": ParallelLayout(
        mesh=mesh(dp_shard=2), dtype=torch.float64, compile=True, compile_backend="aot_eager"
    ),
    "fsdp 2 x tensor parallel 2, compiled": ParallelLayout(
        mesh=mesh(dp_shard=2, tp=2), dtype=torch.float64, compile=True, compile_backend="aot_eager"
    ),
}


PIPELINES = {
    "zbv 2": staged("zbv", pp=2),
    "interleaved 2": staged("interleaved", pp=2),
}
LARGER_PIPELINES = {
    **{
        f"{schedule} {pp}": staged(schedule, pp=pp)
        for schedule in get_args(Schedule)
        for pp in (2, 4)
        if f"{schedule} {pp}" not in PIPELINES
    },
    "1f1b 2 x fsdp 2": staged("1f1b", pp=2, dp_shard=2),
    "1f1b 2 x replicas 2, zero 0": staged("1f1b", pp=2, dp_replicate=2, zero=0),
    "zbv 2 x fsdp 2": staged("zbv", pp=2, dp_shard=2),
    "dualpipev 2 x fsdp 2": staged("dualpipev", pp=2, dp_shard=2),
    "interleaved 2 x hsdp 2 x 2": staged("interleaved", pp=2, dp_shard=2, dp_replicate=2),
    "1f1b 2 x tensor parallel 2": staged("1f1b", pp=2, tp=2),
    "zbv 2 x tensor parallel 2": staged("zbv", pp=2, tp=2),
    "interleaved_zero_bubble 2 x tensor parallel 2": staged("interleaved_zero_bubble", pp=2, tp=2),
    "1f1b 2 x fsdp 2 x tensor parallel 2": staged("1f1b", pp=2, dp_shard=2, tp=2),
    "interleaved 2 x fsdp 2 x tensor parallel 2": staged("interleaved", pp=2, dp_shard=2, tp=2),
    "1f1b 2 x context 2": staged("1f1b", pp=2, cp=2),
    "zbv 2 x context 2": staged("zbv", pp=2, cp=2),
    "1f1b 2 x context 2, ring": dataclasses.replace(
        staged("1f1b", pp=2, cp=2), context=ContextTable(method="ring")
    ),
    "1f1b 2 x fsdp 2 x context 2": staged("1f1b", pp=2, cp=2, dp_shard=2),
    "1f1b 2 x context 2 x tensor parallel 2": staged("1f1b", pp=2, cp=2, tp=2),
    "1f1b 2, everything recomputed": staged("1f1b", pp=2, recompute="full"),
    "1f1b 2, some recomputed": staged("1f1b", pp=2, recompute="selective"),
    "zbv 2, everything recomputed": staged("zbv", pp=2, recompute="full"),
    "dualpipev 2, everything recomputed": staged("dualpipev", pp=2, recompute="full"),
    "interleaved_zero_bubble 2, everything recomputed": staged(
        "interleaved_zero_bubble", pp=2, recompute="full"
    ),
    "interleaved 2 with 4 stages each": staged("interleaved", pp=2, virtual=4),
    "1f1b 2, zero 1": staged("1f1b", pp=2, dp_shard=2, zero=1),
    "1f1b 2, uneven layers": dataclasses.replace(
        double(pp=4), pipeline=PipelineTable(first_stage_less_layers=1, last_stage_less_layers=1)
    ),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_trains_as_one_plain_process_does(
    name: str, corpus: str, deep_reference: Trained, tmp_path: Path
) -> None:
    assert agree(train_over(tmp_path, corpus, PIPELINES[name], DEEP), deep_reference)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGER_PIPELINES)
def test_a_larger_pipeline_trains_as_one_plain_process_does(
    name: str, corpus: str, deep_reference: Trained, tmp_path: Path
) -> None:
    assert agree(train_over(tmp_path, corpus, LARGER_PIPELINES[name], DEEP), deep_reference)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["interleaved 4", "zbv 4", "1f1b 2 x fsdp 2 x tensor parallel 2"])
def test_a_pipeline_whose_embedding_is_not_tied_trains_as_one_plain_process_does(
    name: str, corpus: str, untied_reference: Trained, tmp_path: Path
) -> None:
    assert agree(train_over(tmp_path, corpus, LARGER_PIPELINES[name], UNTIED), untied_reference)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_trains_as_one_plain_process_does(
    name: str, corpus: str, reference: Trained, tmp_path: Path
) -> None:
    assert agree(train_over(tmp_path, corpus, LAYOUTS[name]), reference)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGER)
def test_a_larger_layout_trains_as_one_plain_process_does(
    name: str, corpus: str, reference: Trained, tmp_path: Path
) -> None:
    assert agree(train_over(tmp_path, corpus, LARGER[name]), reference)


def near(trained: Sequence[Trained], reference: Trained, loss: float, weight: float) -> bool:
    differences = [one.furthest(reference) for one in trained]
    return all(losses < loss and weights < weight for losses, _, weights in differences)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "weight"),
    [("ddp 2", 1e-5), ("fsdp 2", 1e-5), ("zero-2 form 2", 1e-5), ("tensor parallel 2", 3e-4)],
)
def test_float32_differs_by_rounding(
    name: str, weight: float, corpus: str, float32_reference: Trained, tmp_path: Path
) -> None:
    layout = dataclasses.replace(LAYOUTS[name], dtype=torch.float32)
    assert near(train_over(tmp_path, corpus, layout), float32_reference, 1e-5, weight)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp 2", "fsdp 2", "tensor parallel 2"])
def test_bfloat16_trains_nearly_the_same_and_keeps_its_weights_in_float32(
    name: str, corpus: str, float32_reference: Trained, tmp_path: Path
) -> None:
    """Rounded to 8 bits, forward and backward leave the loss within 2e-3 of 5.5; AdamW's first steps have the
    size of the learning rate whatever the gradient's, so weights differ by up to a few of them."""
    layout = dataclasses.replace(LAYOUTS[name], dtype=torch.bfloat16)
    trained = train_over(tmp_path, corpus, layout)
    assert near(trained, float32_reference, 2e-3, 5 * TABLE.lr)
    assert not near(trained, float32_reference, 1e-5, 1e-5)  # it was not float32 after all
    assert {weights.dtype for one in trained for weights in one.weights.values()} == {np.dtype(np.float32)}


def validate(url: str, layout: ParallelLayout, config: ModelConfig, process: Process) -> list[list[float]]:
    """Sums and counts of each source's held-out losses with the first weights, before and after a step of no
    rate."""
    model = parallelise_model(config, layout, process.device, datetime.timedelta(seconds=60))
    initialise(model, SEED)
    data = dataset(url, slice_over(layout, process), validation=0.2)
    feed = Feed(
        FeedSource(dataset=data, open_reader=lambda _: LocalBlocks()), feed_options(url, layout, process)
    )
    context = context_of(model, feed)
    before = evaluate(context, feed.validation())
    # A schedule that has trained goes on as before: evaluation takes another way through its stages.
    table = dataclasses.replace(TABLE, lr=1e-300, weight_decay=0.0)
    still = dataclasses.replace(
        context, table=table, optimizer=Optimizer(model.parameters(), table, model.groups.stage)
    )
    train_step(still, 0, lambda step, outcome: None)
    after = evaluate(context, feed.validation())
    train_step(still, 1, lambda step, outcome: None)
    assert [one.tolist() for one in before] == [one.tolist() for one in after]
    return [total.tolist() for total in before]


EVALUATED = {
    "fsdp 2": (LAYOUTS["fsdp 2"], CONFIG),
    "context 2, ring, by documents": (LAYOUTS["context 2, ring, by documents"], CONFIG),
    "zbv 2": (PIPELINES["zbv 2"], DEEP),
    "interleaved 2": (PIPELINES["interleaved 2"], DEEP),
}
EVALUATED_SLOWLY = {
    name: (LARGER_PIPELINES[name], DEEP)
    for name in (
        "1f1b 4", "gpipe 2", "dualpipev 2", "dualpipev 4", "interleaved_zero_bubble 2", "zbv 4",
        "zbv 2 x tensor parallel 2", "1f1b 2 x fsdp 2 x tensor parallel 2", "1f1b 2 x context 2",
    )
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [*EVALUATED, *(pytest.param(name, marks=pytest.mark.slow) for name in EVALUATED_SLOWLY)]
)
def test_losses_of_held_out_sequences_are_those_of_one_plain_process(
    name: str, corpus: str, tmp_path: Path
) -> None:
    layout, config = (EVALUATED | EVALUATED_SLOWLY)[name]
    model, data = first_model(config=config), dataset(corpus, Slice(), validation=0.2)
    sums, counts = [], []
    for source, held in enumerate(data.order.num_validation.tolist()):
        with torch.no_grad():
            plain = [
                plain_sum(model, data.validation(source, first)) for first in range(0, held, GLOBAL_BATCH)
            ]
        sums.append(sum(float(total) for total, _ in plain))
        counts.append(sum(count for _, count in plain))
    for told in run_forked(tmp_path, layout.mesh.num_workers, partial(validate, corpus, layout, config)):
        assert told == [pytest.approx(sums, rel=1e-12), counts]


def without_all_reduce(url: str, process: Process) -> Trained:
    ParallelModel.synchronise = lambda self, last: self.parts[0].no_sync()  # type: ignore[method-assign]
    return train_slice(url, LAYOUTS["ddp 2"], CONFIG, process)


def both_read_the_first_slice(url: str, process: Process) -> Trained:
    return train_parallel(process, url, LAYOUTS["fsdp 2"], Slice(rank=0, num_ranks=2))


def with_the_scale_of_a_mean(url: str, process: Process) -> Trained:
    ParallelModel.num_averaged = property(lambda self: self.layout.mesh.cp)  # type: ignore[assignment,method-assign]
    return train_slice(url, LAYOUTS["context 2, gathered, zigzag"], CONFIG, process)


def with_labels_shifted_after_sharing(url: str, process: Process) -> Trained:
    """What splitting tokens before shifting them would do: the last label of a rank's part is lost."""
    honest = mesh_module.share_rows

    def share(rows: DeviceRows, options: ContextOptions, kernel: Kernel) -> ContextShare:
        labels = rows.labels_BT.clone()
        labels[:, rows.labels_BT.shape[1] // 2 - 1] = IGNORED
        return honest(dataclasses.replace(rows, labels_BT=labels), options, kernel)

    mesh_module.share_rows = share
    return train_slice(url, LAYOUTS["context 2, gathered, zigzag"], CONFIG, process)


def with_gathered_gradients_left_unsummed(url: str, process: Process) -> Trained:
    def keep_own(output: Tensor, whole: Tensor, group: dist.ProcessGroup) -> None:
        output.copy_(whole.chunk(group.size())[group.rank()])

    attention_module.dist = SimpleNamespace(**vars(dist) | {"reduce_scatter_tensor": keep_own})
    return train_slice(url, LAYOUTS["context 2, gathered, zigzag"], CONFIG, process)


def with_a_norm_of_one_stage(url: str, process: Process) -> Trained:
    honest = mesh_module.clip_gradients
    mesh_module.clip_gradients = lambda *given, **named: honest(*given, **named | {"stages": None})
    return train_slice(url, LAYOUTS["pipeline 2, 1f1b"], CONFIG, process)


def with_a_tied_embedding_trained_apart(url: str, process: Process) -> Trained:
    TiedEnds.sum_gradients = lambda self: None  # type: ignore[method-assign]
    return train_slice(url, LAYOUTS["pipeline 2, 1f1b"], CONFIG, process)


def with_a_wrong_scale_of_zero_one(url: str, process: Process) -> Trained:
    ParallelModel.num_averaged = property(lambda self: 2)  # type: ignore[assignment,method-assign]
    return train_slice(url, LAYOUTS["zero 1 over 2"], CONFIG, process)


FAULTS = [
    without_all_reduce,
    both_read_the_first_slice,
    with_the_scale_of_a_mean,
    with_labels_shifted_after_sharing,
    with_gathered_gradients_left_unsummed,
    with_a_norm_of_one_stage,
    with_a_tied_embedding_trained_apart,
    with_a_wrong_scale_of_zero_one,
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(
    fault: Callable[[str, Process], Trained], corpus: str, reference: Trained, tmp_path: Path
) -> None:
    assert not agree(run_forked(tmp_path, 2, partial(fault, corpus)), reference)


def test_the_first_losses_in_float32_are_the_same_bits_with_data_parallel_and_stages(
    corpus: str, tmp_path: Path
) -> None:
    layouts = {
        "one": ParallelLayout(mesh=mesh()),
        "ddp": ParallelLayout(mesh=mesh(dp_replicate=2), zero=0),
        "shards": ParallelLayout(mesh=mesh(dp_shard=2)),
        "stages": ParallelLayout(mesh=mesh(pp=2)),  # with one row a micro-batch, the others have two
    }
    found = {name: train_over(tmp_path / name, corpus, layout)[0] for name, layout in layouts.items()}
    assert len({each.losses[0] for each in found.values()}) == 1, found


@pytest.mark.parametrize(
    "layout",
    [
        ParallelLayout(mesh=mesh(tp=2)),
        pytest.param(ParallelLayout(mesh=mesh(tp=2), dtype=torch.bfloat16), marks=pytest.mark.slow),
        pytest.param(ParallelLayout(mesh=mesh(tp=2, dp_shard=2)), marks=pytest.mark.slow),
        pytest.param(
            ParallelLayout(mesh=mesh(tp=2, pp=2), pipeline=PipelineTable(schedule="zbv")),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["tp 2", "tp 2, bfloat16", "tp 2 x dp_shard 2", "tp 2 x pp 2, split backward"],
)
def test_tensor_peers_that_gather_again_compute_the_same_bits(
    layout: ParallelLayout, corpus: str, tmp_path: Path
) -> None:
    again = train_over(tmp_path, corpus, layout, DEEP)
    kept = train_over(tmp_path, corpus, dataclasses.replace(layout, gather_again=False), DEEP)
    assert all(mine.furthest(theirs) == (0.0, 0.0, 0.0) for mine, theirs in zip(again, kept, strict=True))
