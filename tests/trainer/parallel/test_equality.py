"""Every parallel layout trains as one process does; the measure also finds what is wrong."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor

from lineage.storage.folder import Folder
from tests.support.forked import run_forked
from tests.support.tiny_corpus import END_OF_TEXT, VOCAB, make_corpus
from trainer.data.blocks import LocalBlocks
from trainer.data.corpus import open_corpus
from trainer.data.dataset import IGNORED, Batch, Dataset, Slice
from trainer.feed.feed import Feed, FeedOptions, FeedSource
from trainer.model.attention import document_mask
from trainer.model.optimizer import build_optimizer, learning_rate
from trainer.model.sizes import model_config
from trainer.model.transformer import Llama, initial_weight
from trainer.options import DataTable, Mesh, OptimizerTable
from trainer.order import Order, OrderOptions, plan_order
from trainer.parallel.mesh import ParallelLayout, ParallelModel, initialise, parallelise_model
from trainer.processes.runtime import Process
from trainer.recovery.faults import SpikeWindow
from trainer.step import StepContext, evaluate, train_step
from trainer.telemetry.timing import PhaseClock

STEPS = 5
SEQ_LEN = 32
GLOBAL_BATCH = 7  # uneven over two and four ranks, and over micro-batches of two
SEED = 3
TABLE = OptimizerTable(lr=3e-3, warmup_steps=2, clip=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What is compared: a loss and a gradient norm a step, and the last weights."""

    losses: list[float]
    norms: list[float]
    weights: dict[str, np.ndarray]

    def furthest(self, other: Trained) -> tuple[float, float, float]:
        """The largest differences of losses, norms and weights."""
        return (
            max(abs(a - b) for a, b in zip(self.losses, other.losses, strict=True)),
            max(abs(a - b) for a, b in zip(self.norms, other.norms, strict=True)),
            max(float(np.abs(self.weights[name] - other.weights[name]).max()) for name in other.weights),
        )


def mesh(dp_replicate: int = 1, dp_shard: int = 1, tp: int = 1) -> Mesh:
    return Mesh(dp_replicate=dp_replicate, dp_shard=dp_shard, tp=tp, pp=1, cp=1, ep=1)


def dataset(url: str, part: Slice, validation: float = 0.0) -> Dataset:
    corpus = open_corpus((DataTable(out=url),))
    options = OrderOptions(
        seed=SEED, seq_len=SEQ_LEN, global_batch=GLOBAL_BATCH, mixture_block=10, validation=validation
    )
    order = Order(plan_order(corpus.lengths, options))
    return Dataset(corpus, order, LocalBlocks(), part)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_corpus(str(tmp_path_factory.mktemp("out")), {"web": [1700, 530], "books": [1111]}).url


@pytest.fixture(scope="module")
def reference(corpus: str) -> Trained:
    return train_plainly(dataset(corpus, Slice()))


@pytest.fixture(scope="module")
def float32_reference(corpus: str) -> Trained:
    return train_plainly(dataset(corpus, Slice()), torch.float32)


def train_plainly(data: Dataset, drawn_in: torch.dtype = torch.float64) -> Trained:
    """Training as a textbook has it: one process, no wrapper, each document run by itself, torch's plain AdamW."""
    torch.set_num_threads(1)
    model = first_model(drawn_in)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    norms = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), foreach=False)
    losses, gradient_norms = [], []
    for step in range(STEPS):
        loss = plain_loss(model, data.batch(step))
        loss.backward()
        losses.append(loss.item())
        gradient_norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), TABLE.clip)))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, STEPS, TABLE)
        optimizer.step()
        optimizer.zero_grad()
    weights = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    return Trained(losses=losses, norms=gradient_norms, weights=weights)


def first_model(drawn_in: torch.dtype = torch.float64) -> Llama:
    """A model in float64 with the first weights of one whose weights are kept in `drawn_in`, unwrapped."""
    config, like = model_config("debug", VOCAB), torch.empty(0, dtype=drawn_in)
    model = Llama(config).to(torch.float64)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial_weight(name, parameter.shape, config, SEED, like))
    return model


def plain_loss(model: Llama, batch: Batch) -> Tensor:
    """The mean loss of counted labels."""
    total, num_counted = plain_sum(model, batch)
    return total / num_counted


def plain_sum(model: Llama, batch: Batch) -> tuple[Tensor, int]:
    """The sum of the losses of counted labels and their number, each document of each sequence run alone."""
    total, num_counted = torch.zeros((), dtype=torch.float64), 0
    for inputs_T, labels_T in zip(batch.inputs_BT[: batch.num_rows], batch.labels_BT, strict=False):
        ends = [*(np.flatnonzero(inputs_T == END_OF_TEXT) + 1), len(inputs_T)]
        for begin, end in zip([0, *ends], ends, strict=False):
            if begin == end:
                continue
            tokens_BT = torch.from_numpy(inputs_T[begin:end])[None]
            labels = torch.from_numpy(labels_T[begin:end])
            positions_BT = torch.arange(end - begin)[None]
            mask = document_mask(torch.zeros_like(tokens_BT), "dense")
            logits = model(tokens_BT, positions_BT, mask)[0]
            total = total + F.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORED)
            num_counted += int((labels != IGNORED).sum())
    return total, num_counted


def train_parallel(process: Process, url: str, layout: ParallelLayout, part: Slice) -> Trained:
    """Our step on this layout; every rank gives the whole weights."""
    model = parallelise_model(model_config("debug", VOCAB), layout, process.device, datetime.timedelta(seconds=60))
    initialise(model, SEED)
    data = dataset(url, part)
    options = FeedOptions(run="equality", output=Folder(url), device=process.device, micro_batch=2)
    feed = Feed(FeedSource(dataset=data, open_reader=lambda _: LocalBlocks()), options)
    context = context_of(model, feed)
    figures = [train_step(context, step, lambda step, outcome: None)[0].figures.read() for step in range(STEPS)]
    return Trained(losses=[f[2] for f in figures], norms=[f[3] for f in figures], weights=whole_weights(model))


def context_of(model: ParallelModel, feed: Feed) -> StepContext:
    return StepContext(
        model=model,
        batches=feed,
        optimizer=build_optimizer(model.module.parameters(), TABLE),
        table=TABLE,
        steps=STEPS,
        spikes=SpikeWindow(128, 6.0, model.device),
        clock=PhaseClock(model.device),
    )


def whole_weights(model: ParallelModel) -> dict[str, np.ndarray]:
    weights = {}
    for name, parameter in model.parameters().items():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        weights[name] = whole.detach().numpy()
    return weights


def train_slice(url: str, layout: ParallelLayout, tp: int, num_ranks: int, process: Process) -> Trained:
    return train_parallel(process, url, layout, Slice(rank=process.rank // tp, num_ranks=num_ranks))


def train_over(folder: Path, url: str, layout: ParallelLayout) -> list[Trained]:
    tp, ranks = layout.mesh.tp, layout.mesh.dp
    return run_forked(
        folder,
        layout.mesh.num_workers,
        partial(train_slice, url, layout, tp, ranks),
    )


def agree(trained: Sequence[Trained], reference: Trained) -> bool:
    """Float64 leaves differences of rounding only: 1e-12 in the loss, 1e-11 in norms and weights."""
    differences = [one.furthest(reference) for one in trained]
    return all(loss < 1e-12 and norm < 1e-11 and weight < 1e-11 for loss, norm, weight in differences)


LAYOUTS = {
    "one process": ParallelLayout(mesh=mesh(), dtype=torch.float64),
    "ddp 2": ParallelLayout(mesh=mesh(dp_replicate=2), zero=0, dtype=torch.float64),
    "fsdp 2": ParallelLayout(mesh=mesh(dp_shard=2), dtype=torch.float64),
    "zero-2 form 2": ParallelLayout(mesh=mesh(dp_shard=2), zero=2, dtype=torch.float64),
    "tensor parallel 2": ParallelLayout(mesh=mesh(tp=2), dtype=torch.float64),
}
LARGER = {
    "ddp 4": ParallelLayout(mesh=mesh(dp_replicate=4), zero=0, dtype=torch.float64),
    "fsdp 4": ParallelLayout(mesh=mesh(dp_shard=4), dtype=torch.float64),
    "zero-2 form 4": ParallelLayout(mesh=mesh(dp_shard=4), zero=2, dtype=torch.float64),
    "hsdp 2 x 2": ParallelLayout(mesh=mesh(dp_replicate=2, dp_shard=2), dtype=torch.float64),
    "hsdp 2 x 2, zero-2 form": ParallelLayout(mesh=mesh(dp_replicate=2, dp_shard=2), zero=2, dtype=torch.float64),
    "tensor parallel 4": ParallelLayout(mesh=mesh(tp=4), dtype=torch.float64),
    "fsdp 2 x tensor parallel 2": ParallelLayout(mesh=mesh(dp_shard=2, tp=2), dtype=torch.float64),
    "replicas 2 x tensor parallel 2": ParallelLayout(mesh=mesh(dp_replicate=2, tp=2), zero=0, dtype=torch.float64),
    "fsdp 2, everything recomputed": ParallelLayout(mesh=mesh(dp_shard=2), dtype=torch.float64, recompute="full"),
    "fsdp 2, some recomputed": ParallelLayout(mesh=mesh(dp_shard=2), dtype=torch.float64, recompute="selective"),
    "fsdp 2 x tensor parallel 2, recomputed": ParallelLayout(
        mesh=mesh(dp_shard=2, tp=2), dtype=torch.float64, recompute="full"
    ),
    "fsdp 2, compiled": ParallelLayout(
        mesh=mesh(dp_shard=2), dtype=torch.float64, compile=True, compile_backend="aot_eager"
    ),
    "fsdp 2 x tensor parallel 2, compiled": ParallelLayout(
        mesh=mesh(dp_shard=2, tp=2), dtype=torch.float64, compile=True, compile_backend="aot_eager"
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_trains_as_one_plain_process_does(name: str, corpus: str, reference: Trained, tmp_path: Path) -> None:
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
    ("name", "weight"), [("ddp 2", 1e-5), ("fsdp 2", 1e-5), ("zero-2 form 2", 1e-5), ("tensor parallel 2", 3e-4)]
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
    """Rounded to 8 bits, forward and backward leave the loss within 2e-3 of 5.5; AdamW's first steps have the size of
    the learning rate whatever the gradient's, so weights differ by up to a few of them."""
    layout = dataclasses.replace(LAYOUTS[name], dtype=torch.bfloat16)
    trained = train_over(tmp_path, corpus, layout)
    assert near(trained, float32_reference, 2e-3, 5 * TABLE.lr)
    assert not near(trained, float32_reference, 1e-5, 1e-5)  # it was not float32 after all
    assert {weights.dtype for one in trained for weights in one.weights.values()} == {np.dtype(np.float32)}


def validate(url: str, process: Process) -> list[list[float]]:
    """Sums and counts of each source's held-out losses on two sharded processes, with the first weights."""
    model = parallelise_model(
        model_config("debug", VOCAB), LAYOUTS["fsdp 2"], process.device, datetime.timedelta(seconds=60)
    )
    initialise(model, SEED)
    data = dataset(url, Slice(rank=process.rank, num_ranks=2), validation=0.2)
    options = FeedOptions(run="equality", output=Folder(url), device=process.device, micro_batch=2)
    feed = Feed(FeedSource(dataset=data, open_reader=lambda _: LocalBlocks()), options)
    totals = evaluate(context_of(model, feed), feed.validation())
    return [total.tolist() for total in totals]


def test_losses_of_held_out_sequences_are_those_of_one_plain_process(corpus: str, tmp_path: Path) -> None:
    model, data = first_model(), dataset(corpus, Slice(), validation=0.2)
    sums, counts = [], []
    for source, held in enumerate(data.order.num_validation.tolist()):
        with torch.no_grad():
            plain = [plain_sum(model, data.validation(source, first)) for first in range(0, held, GLOBAL_BATCH)]
        sums.append(sum(float(total) for total, _ in plain))
        counts.append(sum(count for _, count in plain))
    for told in run_forked(tmp_path, 2, partial(validate, corpus)):
        assert told == [pytest.approx(sums, rel=1e-12), counts]


def without_all_reduce(url: str, process: Process) -> Trained:
    ParallelModel.synchronise = lambda self, last: self.module.no_sync()  # type: ignore[method-assign]
    return train_parallel(process, url, LAYOUTS["ddp 2"], Slice(rank=process.rank, num_ranks=2))


def both_read_the_first_slice(url: str, process: Process) -> Trained:
    return train_parallel(process, url, LAYOUTS["fsdp 2"], Slice(rank=0, num_ranks=2))


def test_a_dropped_all_reduce_is_found(corpus: str, reference: Trained, tmp_path: Path) -> None:
    assert not agree(run_forked(tmp_path, 2, partial(without_all_reduce, corpus)), reference)


def test_a_batch_sliced_wrongly_is_found(corpus: str, reference: Trained, tmp_path: Path) -> None:
    assert not agree(run_forked(tmp_path, 2, partial(both_read_the_first_slice, corpus)), reference)
