"""Training by our step on any layout, and as a textbook has it in one process: what tests of layouts
compare."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor

from lineage.storage.folder import Folder
from tests.support.outputs.tiny_corpus import END_OF_TEXT, VOCAB
from tests.support.processes.forked import run_forked
from trainer.data.blocks import LocalBlocks
from trainer.data.corpus import open_corpus
from trainer.data.dataset import IGNORED, Batch, Dataset, Slice
from trainer.feed.feed import Feed, FeedOptions, FeedSource
from trainer.model.attention import document_masks
from trainer.model.config.description import ModelConfig
from trainer.model.config.sizes import model_config
from trainer.model.transformer import CausalLM, initial_weight
from trainer.optim.learning_rate import learning_rate
from trainer.optim.optimizer import Optimizer
from trainer.options import DataTable
from trainer.order import Order, OrderOptions, plan_order
from trainer.parallel.layout import ParallelLayout
from trainer.parallel.mesh import ParallelModel, parallelise_model
from trainer.parallel.recompute import Recompute
from trainer.parallel.weights import initialise
from trainer.processes.runtime import Process
from trainer.recipe_tables.optimizer import MuonTable, OptimizerTable
from trainer.recipe_tables.parallelism import ContextTable, Mesh, PipelineTable, Schedule
from trainer.recovery.faults import SpikeWindow
from trainer.run.step import StepContext, train_step
from trainer.telemetry.timing import PhaseClock

STEPS = 5
SEQ_LEN = 32
GLOBAL_BATCH = 7  # uneven over two and four ranks, and over micro-batches of two
SEED = 3
TABLE = OptimizerTable(lr=3e-3, warmup_steps=2, clip=0.5)
NAN_STEP = 3
CONFIG = model_config("debug", VOCAB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What is compared: a loss and a gradient norm a step, and the last weights."""

    losses: list[float]
    norms: list[float]
    weights: dict[str, np.ndarray]

    def furthest(self, other: Trained) -> tuple[float, float, float]:
        """The largest differences of losses, norms and weights."""
        return (
            max(apart(a, b) for a, b in zip(self.losses, other.losses, strict=True)),
            max(apart(a, b) for a, b in zip(self.norms, other.norms, strict=True)),
            max(float(np.abs(self.weights[name] - other.weights[name]).max()) for name in self.weights),
        )


def apart(one: float, other: float) -> float:
    """The difference of two numbers; none where neither is one."""
    if math.isnan(one) or math.isnan(other):
        return 0.0 if math.isnan(one) and math.isnan(other) else math.inf
    return abs(one - other)


def mesh(**sizes: int) -> Mesh:
    return Mesh(**{field.name: 1 for field in dataclasses.fields(Mesh)} | sizes)


def double(*, zero: Literal[3, 2, 1, 0] = 3, **sizes: int) -> ParallelLayout:
    return ParallelLayout(mesh=mesh(**sizes), zero=zero, dtype=torch.float64)


def shared(
    method: Literal["gather", "ring"], balance: Literal["zigzag", "documents", "none"], **sizes: int
) -> ParallelLayout:
    return dataclasses.replace(double(**sizes), context=ContextTable(method=method, balance=balance))  # type: ignore[arg-type]


def dataset(
    url: str,
    part: Slice,
    validation: float = 0.0,
    *,
    seq_len: int = SEQ_LEN,
    global_batch: int = GLOBAL_BATCH,
) -> Dataset:
    corpus = open_corpus((DataTable(out=url),))
    options = OrderOptions(
        seed=SEED, seq_len=seq_len, global_batch=global_batch, mixture_block=10, validation=validation
    )
    order = Order(plan_order(corpus.lengths, options))
    return Dataset(corpus, order, LocalBlocks(), part)


def train_plainly(
    data: Dataset,
    drawn_in: torch.dtype = torch.float64,
    config: ModelConfig = CONFIG,
    table: OptimizerTable = TABLE,
) -> Trained:
    """Training as a textbook has it: one process, no wrapper, each document run by itself, torch's plain
    AdamW, and `PlainMuon` beside it where the table asks for it; the planted NaN leaves everything as it
    was."""
    torch.set_num_threads(1)
    model = first_model(drawn_in, config)
    in_layers = {n: p for n, p in model.named_parameters() if ".layers." in n and p.ndim > 1}
    muons = {n: p for n, p in in_layers.items() if table.name == "muon" and ".gate." not in n}
    rest = [p for n, p in model.named_parameters() if n not in muons]
    matrices = [p for p in rest if p.ndim > 1]
    norms = [p for p in rest if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), foreach=False)
    muon = PlainMuon([*muons.values()], table.muon)
    losses, gradient_norms = [], []
    for step in range(STEPS):
        if step == NAN_STEP:
            losses.append(math.nan)
            gradient_norms.append(math.nan)
            continue
        loss = plain_loss(model, data.batch(step))
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        gradient_norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), table.clip)))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, STEPS, table)
        optimizer.step()
        muon.step(learning_rate(step, STEPS, table, table.muon.lr))
        model.zero_grad()
    weights = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    return Trained(losses=losses, norms=gradient_norms, weights=weights)


class PlainMuon:
    """Muon in the dtype of the weights, matrix by matrix, by powers of the Gram matrix."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], table: MuonTable) -> None:
        self._parameters, self._table = parameters, table
        self._momenta = [torch.zeros_like(parameter) for parameter in parameters]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for parameter, momentum in zip(self._parameters, self._momenta, strict=True):
            gradient, mu = parameter.grad, self._table.momentum
            assert gradient is not None
            momentum.copy_(mu * momentum + (1 - mu) * gradient)
            parameter.mul_(1 - lr * self._table.weight_decay)
            stacks = (t.view(-1, *t.shape[-2:]) for t in (mu * momentum + (1 - mu) * gradient, parameter))
            for wanted, weight in zip(*stacks, strict=True):
                rows, columns = wanted.shape
                x = wanted / wanted.square().sum().sqrt()
                for _ in range(5):
                    gram = x.T @ x
                    x = 3.4445 * x - 4.7750 * x @ gram + 2.0315 * x @ gram @ gram
                weight.sub_(lr * math.sqrt(max(1, rows / columns)) * x)


def first_model(drawn_in: torch.dtype = torch.float64, config: ModelConfig = CONFIG) -> CausalLM:
    """A model in float64 with the first weights of one whose weights are kept in `drawn_in`, unwrapped."""
    like = torch.empty(0, dtype=drawn_in)
    model = CausalLM(config).to(torch.float64)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial_weight(name, parameter.shape, config, SEED, like))
    return model


def plain_loss(model: CausalLM, batch: Batch) -> Tensor:
    """The mean loss of counted labels."""
    total, num_counted = plain_sum(model, batch)
    return total / num_counted


def plain_sum(model: CausalLM, batch: Batch) -> tuple[Tensor, int]:
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
            masks = document_masks(torch.zeros_like(tokens_BT), model.config.windows, "dense")
            logits = model(tokens_BT, positions_BT, masks)[0]
            total = total + F.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORED)
            num_counted += int((labels != IGNORED).sum())
    return total, num_counted


def train_parallel(
    process: Process,
    url: str,
    layout: ParallelLayout,
    part: Slice,
    config: ModelConfig = CONFIG,
    *,
    table: OptimizerTable = TABLE,
) -> Trained:
    """Our step on this layout; every rank gives the whole weights."""
    model = parallelise_model(config, layout, process.device, datetime.timedelta(seconds=60))
    initialise(model, SEED)
    data = dataset(url, part)
    feed = Feed(
        FeedSource(dataset=data, open_reader=lambda _: LocalBlocks()), feed_options(url, layout, process)
    )
    context = context_of(model, feed, table)
    figures = [
        train_step(context, step, lambda step, outcome: None)[0].figures.read() for step in range(STEPS)
    ]
    return Trained(
        losses=[f.loss for f in figures],
        norms=[f.gradient_norm for f in figures],
        weights=whole_weights(model),
    )


def feed_options(url: str, layout: ParallelLayout, process: Process) -> FeedOptions:
    """Two rows a micro-batch; of pipelines one, so that there are many."""
    staged = layout.mesh.pp > 1
    return FeedOptions(
        run="equality",
        output=Folder(url),
        device=process.device,
        micro_batch=1 if staged else 2,
        fill_up=partial(layout.pipeline.fill_up, pp=layout.mesh.pp) if staged else None,
    )


def context_of(model: ParallelModel, feed: Feed, table: OptimizerTable = TABLE) -> StepContext:
    return StepContext(
        model=model,
        batches=feed,
        optimizer=Optimizer(model.parameters(), table, model.groups.stage, model.config.latent),
        table=table,
        steps=STEPS,
        spikes=SpikeWindow(128, 6.0, model.device),
        clock=PhaseClock(model.device),
        nan_steps=frozenset({NAN_STEP}),
    )


def whole_weights(model: ParallelModel) -> dict[str, np.ndarray]:
    weights = {}
    for name, parameter in model.parameters().items():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        weights[name] = whole.detach().numpy()
    return weights  # of a pipeline those of this rank's stages


def train_slice(
    url: str, layout: ParallelLayout, config: ModelConfig, process: Process, *, table: OptimizerTable = TABLE
) -> Trained:
    return train_parallel(process, url, layout, slice_over(layout, process), config, table=table)


def slice_over(layout: ParallelLayout, process: Process) -> Slice:
    return Slice(rank=layout.mesh.dp_rank(process.rank), num_ranks=layout.mesh.dp)


def train_over(
    folder: Path,
    url: str,
    layout: ParallelLayout,
    config: ModelConfig = CONFIG,
    table: OptimizerTable = TABLE,
) -> list[Trained]:
    train = partial(train_slice, url, layout, config, table=table)
    return run_forked(folder, layout.mesh.num_workers, train)


def agree(trained: Sequence[Trained], reference: Trained) -> bool:
    """Float64 leaves differences of rounding only: 1e-12 in the loss, 1e-11 in norms and weights."""
    differences = [one.furthest(reference) for one in trained]
    assert set().union(*(one.weights for one in trained)) == set(reference.weights)
    return all(loss < 1e-12 and norm < 1e-11 and weight < 1e-11 for loss, norm, weight in differences)


def staged(
    schedule: Schedule, *, recompute: Recompute = "none", virtual: int | None = None, **sizes: int
) -> ParallelLayout:
    table = PipelineTable(schedule=schedule, virtual_stages=virtual)
    return dataclasses.replace(double(**sizes), pipeline=table, recompute=recompute)  # type: ignore[arg-type]
