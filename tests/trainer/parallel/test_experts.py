"""A mixture of experts trains in every layout as a loop over single tokens does, and drops the same
choices."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.outputs.tiny_corpus import END_OF_TEXT, VOCAB, make_corpus
from tests.support.processes.forked import run_forked
from tests.support.training.layouts import (
    NAN_STEP,
    SEED,
    STEPS,
    TABLE,
    Trained,
    apart,
    context_of,
    dataset,
    double,
    feed_options,
    shared,
    slice_over,
    staged,
    whole_weights,
)
from trainer.data.blocks import LocalBlocks
from trainer.data.dataset import IGNORED, Dataset, Slice, document_layout
from trainer.feed.feed import Feed, FeedSource
from trainer.model import experts as experts_module
from trainer.model.attention import document_masks
from trainer.model.config.description import Experts, ModelConfig
from trainer.model.config.sizes import model_config
from trainer.model.experts import WholeRows
from trainer.model.transformer import CausalLM, initial_weight
from trainer.optim.learning_rate import learning_rate
from trainer.parallel.layout import ParallelLayout
from trainer.parallel.mesh import ParallelModel, parallelise_model
from trainer.parallel.weights import initialise
from trainer.processes.runtime import Process
from trainer.recipe_tables.parallelism import ExpertsTable
from trainer.run.step import train_step

pytestmark = pytest.mark.differential("trainer")

CONFIG = dataclasses.replace(model_config("moe-debug", VOCAB), num_layers=4)
SHARED = dataclasses.replace(
    CONFIG, hidden=16, experts=Experts(num_experts=16, top_k=3, hidden=16, num_shared=2)
)
FULL = ExpertsTable(
    capacity_factor=0.75, balance_loss=0.1, z_loss=0.01
)  # so little room that choices are dropped
DROPLESS = dataclasses.replace(FULL, capacity_factor=0.0)
BIASED = dataclasses.replace(FULL, balance_loss=0.0, bias_rate=0.01)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """A run, and of each step: fullest expert over the mean, share dropped, entropy, balance loss, z-loss."""

    trained: Trained
    loads: list[list[float]]

    def agrees(self, other: Routed) -> bool:
        pairs = zip(self.loads, other.loads, strict=True)
        near = all(
            apart(mine, theirs) < 1e-11 for one, two in pairs for mine, theirs in zip(one, two, strict=True)
        )
        return near and agree_in_part(self.trained, other.trained)


def agree_in_part(mine: Trained, reference: Trained) -> bool:
    loss, norm, weight = mine.furthest(reference)
    return loss < 1e-12 and norm < 1e-11 and weight < 1e-11


class TokenByToken(nn.Module):
    """Experts as the papers have them: each token of one sequence goes to its experts, one after the
    other."""

    def __init__(self, config: ModelConfig, table: ExpertsTable, weights: nn.Module) -> None:
        super().__init__()
        assert config.experts is not None
        self.sizes, self.table = config.experts, table
        self.gate, self.experts, self.shared_expert = weights.gate, weights.experts, weights.shared_expert
        self.bias = torch.zeros(self.sizes.num_experts, dtype=torch.float64)
        self.chosen: list[int] = []
        self.sums = torch.zeros(5, dtype=torch.float64)
        self.added: list[tuple[Tensor, Tensor]] = []

    def forward(self, x_1TD: Tensor, routing: None) -> Tensor:
        (x_TD,) = x_1TD
        logits = x_TD @ self.gate.weight.T
        shares = torch.softmax(logits, -1)
        room = math.ceil(self.table.capacity_factor * len(x_TD) * self.sizes.top_k / self.sizes.num_experts)
        served: list[list[int]] = [
            [] for _ in range(self.sizes.num_experts)
        ]  # tokens of each expert, as they come
        chosen, dropped = [0] * self.sizes.num_experts, 0
        picked_TJ = torch.topk(shares.detach() + self.bias, self.sizes.top_k).indices
        for t, picked in enumerate(picked_TJ.tolist()):
            for e in picked:
                chosen[e] += 1
                if self.table.capacity_factor and len(served[e]) == room:
                    dropped += 1
                else:
                    served[e].append(t)
        totals = shares.gather(1, picked_TJ).sum(-1)
        output = torch.zeros_like(x_TD) if self.shared_expert is None else self.shared_expert(x_TD)
        for e, tokens in enumerate(served):
            x_ND = x_TD[tokens]
            inner = F.silu(x_ND @ self.experts.w1[e].T) * (x_ND @ self.experts.w3[e].T)
            gates = (shares[tokens, e] / totals[tokens])[:, None]
            output = output.index_add(
                0, torch.tensor(tokens, dtype=torch.int64), gates * (inner @ self.experts.w2[e].T)
            )
        frequency = torch.tensor(chosen, dtype=torch.float64) / sum(chosen)
        balance = self.sizes.num_experts * (frequency * shares.mean(0)).sum()
        z_loss = torch.logsumexp(logits, -1).square().mean()
        self.added.append((balance, z_loss))
        self.chosen = [a + b for a, b in zip(self.chosen or [0] * len(chosen), chosen, strict=True)]
        entropy = -(shares * shares.log()).sum()
        length = len(x_TD)
        told = (entropy.item(), length * balance.item(), length * z_loss.item())
        self.sums += torch.tensor([dropped, *told, length], dtype=torch.float64)
        return output[None]


def train_token_by_token(data: Dataset, config: ModelConfig, table: ExpertsTable) -> Routed:
    """One process, one row at a time, torch's plain AdamW."""
    torch.set_num_threads(1)
    model = CausalLM(config, experts=table).to(torch.float64)
    like = torch.empty(0, dtype=torch.float64)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial_weight(name, parameter.shape, config, SEED, like))
    names = {parameter: name for name, parameter in model.named_parameters()}
    layers = []
    for layer in model.model.layers.values():
        layer.block_sparse_moe = TokenByToken(config, table, layer.block_sparse_moe)
        layers.append(layer.block_sparse_moe)
    groups = [
        {"params": [p for p in names if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in names if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), foreach=False)
    losses, norms, loads = [], [], []
    for step in range(STEPS):
        for layer in layers:
            layer.chosen, layer.sums = [], torch.zeros(5, dtype=torch.float64)
        batch = data.batch(step)
        num_counted = int((batch.labels_BT != IGNORED).sum())
        loss, added = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for inputs_T, labels_T in zip(batch.inputs_BT, batch.labels_BT, strict=True):
            positions, documents = (torch.from_numpy(a) for a in document_layout(inputs_T[None], END_OF_TEXT))
            labels = torch.from_numpy(labels_T)
            counted = int((labels != IGNORED).sum())
            masks = document_masks(documents, config.windows, "dense")
            logits = model(torch.from_numpy(inputs_T)[None], positions, masks)[0]
            loss = loss + F.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORED) / num_counted
            for layer in layers:
                balance, z_loss = layer.added.pop()
                added = added + counted / num_counted * (table.balance_loss * balance + table.z_loss * z_loss)
        loads.append(load_of(layers))
        if step == NAN_STEP:
            losses.append(math.nan)
            norms.append(math.nan)
            continue
        (loss + added).backward()
        losses.append(loss.item())
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(names), TABLE.clip)))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, STEPS, TABLE)
        optimizer.step()
        optimizer.zero_grad()
        for layer in layers:
            mean = sum(layer.chosen) / len(layer.chosen)
            moved = torch.tensor([table.bias_rate * np.sign(mean - count) for count in layer.chosen])
            layer.bias += moved - moved.mean()
    weights = {name: parameter.detach().numpy() for parameter, name in names.items()}
    return Routed(trained=Trained(losses=losses, norms=norms, weights=weights), loads=loads)


def load_of(layers: list[TokenByToken]) -> list[float]:
    sums = sum(layer.sums for layer in layers)
    fullest = max(max(layer.chosen) / (sum(layer.chosen) / len(layer.chosen)) for layer in layers)
    num_chosen = sum(sum(layer.chosen) for layer in layers)
    return [fullest, float(sums[0]) / num_chosen, *(sums[1:4] / sums[4]).tolist()]


def train_experts(url: str, layout: ParallelLayout, config: ModelConfig, process: Process) -> Routed:
    model = parallelise_model(config, layout, process.device, datetime.timedelta(seconds=60))
    initialise(model, SEED)
    data = dataset(url, slice_over(layout, process))
    feed = Feed(
        FeedSource(dataset=data, open_reader=lambda _: LocalBlocks()), feed_options(url, layout, process)
    )
    context = context_of(model, feed)
    figures = [
        train_step(context, step, lambda step, outcome: None)[0].figures.read() for step in range(STEPS)
    ]
    trained = Trained(
        losses=[f.loss for f in figures],
        norms=[f.gradient_norm for f in figures],
        weights=whole_weights(model),
    )
    return Routed(trained=trained, loads=[list(dataclasses.astuple(f.experts)) for f in figures])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_corpus(str(tmp_path_factory.mktemp("out")), {"web": [1700, 530], "books": [1111]}).url


KINDS: dict[str, tuple[ModelConfig, ExpertsTable]] = {
    "with capacity": (CONFIG, FULL),
    "dropless": (CONFIG, DROPLESS),
    "with a bias": (CONFIG, BIASED),
    "many small and shared ones": (SHARED, FULL),
}


@pytest.fixture(scope="module")
def references(corpus: str) -> Callable[[str], Routed]:
    made: dict[str, Routed] = {}

    def reference(kind: str) -> Routed:
        if kind not in made:
            made[kind] = train_token_by_token(dataset(corpus, Slice()), *KINDS[kind])
        return made[kind]

    return reference


def check(layout: ParallelLayout, kind: str, corpus: str, reference: Routed, folder: Path) -> None:
    config, table = KINDS[kind]
    work = partial(train_experts, corpus, dataclasses.replace(layout, experts=table), config)
    routed = run_forked(folder, layout.mesh.num_workers, work)
    assert set().union(*(one.trained.weights for one in routed)) == set(reference.trained.weights)
    assert all(one.agrees(reference) for one in routed)


FAST = [
    ("one process", "with capacity"),
    ("ep 2", "with capacity"),
    ("tp 2", "dropless"),
    ("pp 2", "with a bias"),
]
LAYOUTS = {
    "one process": double(),
    "ep 2": double(dp_shard=2, ep=2),
    "tp 2": double(tp=2),
    "pp 2": staged("1f1b", pp=2),
}
LARGER = {
    "fsdp 2": double(dp_shard=2),
    "replicas 2, zero 0": double(dp_replicate=2, zero=0),
    "zero 1 over 2": double(dp_shard=2, zero=1),
    "ep 4": double(dp_shard=4, ep=4),
    "ep 2 x fsdp 2": double(dp_shard=4, ep=2),
    "ep 2 x replicas 2": double(dp_shard=2, dp_replicate=2, ep=2),
    "ep 2 of tp 2": double(tp=2, ep=2),
    "ep 2 x tp 2": double(dp_shard=2, tp=2, ep=2),
    "ep 4 of tp 2 and fsdp 2": double(dp_shard=2, tp=2, ep=4),
    "ep 2 of cp 2": double(cp=2, ep=2),
    "cp 2, ring": shared("ring", "documents", cp=2),
    "cp 2 x tp 2": double(cp=2, tp=2),
    "ep 2, everything recomputed": dataclasses.replace(double(dp_shard=2, ep=2), recompute="full"),
    "ep 2, some recomputed": dataclasses.replace(double(dp_shard=2, ep=2), recompute="selective"),
    "pp 2 x ep 2": staged("1f1b", pp=2, dp_shard=2, ep=2),
    "interleaved 2 x ep 2": staged("interleaved", pp=2, dp_shard=2, ep=2),
    "zbv 2 x ep 2": staged("zbv", pp=2, dp_shard=2, ep=2),
    "dualpipev 2 x ep 2": staged("dualpipev", pp=2, dp_shard=2, ep=2),
    "interleaved_zero_bubble 2 x ep 2": staged("interleaved_zero_bubble", pp=2, dp_shard=2, ep=2),
    "pp 2 x fsdp 2 x cp 2, ep 4": staged("1f1b", pp=2, dp_shard=2, cp=2, ep=4),
    "pp 2 x fsdp 2 x tp 2, ep 2": staged("1f1b", pp=2, dp_shard=2, tp=2, ep=2),
}
CASES = [
    *FAST,
    *(
        pytest.param(layout, kind, marks=pytest.mark.slow)
        for layout in (LAYOUTS | LARGER)
        for kind in (
            KINDS if layout in ("one process", "ep 2", "ep 2 x fsdp 2", "pp 2 x ep 2") else ("with capacity",)
        )
        if (layout, kind) not in FAST
    ),
]


@pytest.mark.parametrize(("layout", "kind"), CASES)
def test_experts_train_as_a_loop_over_tokens_does(
    layout: str, kind: str, corpus: str, references: Callable[[str], Routed], tmp_path: Path
) -> None:
    check((LAYOUTS | LARGER)[layout], kind, corpus, references(kind), tmp_path)


def test_the_reference_drops_choices_and_moves_biases(references: Callable[[str], Routed]) -> None:
    """Else the tests above would show nothing of either."""
    assert all(load[1] > 0.05 for load in references("with capacity").loads)
    assert all(load[1] == 0 for load in references("dropless").loads)
    assert references("with a bias").trained.losses != references("with capacity").trained.losses


def with_losses_of_experts_scaled_twice(url: str, process: Process) -> Routed:
    honest = ParallelModel.micro_batch
    ParallelModel.micro_batch = lambda self, rows, scale=None: honest(self, rows, scale * 2)  # type: ignore
    return with_capacity_on_two(url, process)


def with_gradients_that_do_not_travel_back(url: str, process: Process) -> Routed:
    honest = experts_module._AllToAll.backward

    def stay(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return (honest(context, *gradients)[0] * 0, None, None, None)

    experts_module._AllToAll.backward = staticmethod(stay)  # type: ignore[assignment]
    return with_capacity_on_two(url, process)


def with_too_little_room(url: str, process: Process) -> Routed:
    honest = WholeRows.kept
    WholeRows.kept = lambda self, places, factor: honest(self, places, factor * 0.8)  # type: ignore[method-assign]
    return with_capacity_on_two(url, process)


def with_the_dearest_rows_first(url: str, process: Process) -> Routed:
    """Room given out from the end of a sequence."""
    honest = WholeRows.of

    def backwards(chosen: Tensor, places: Tensor, num_experts: int, group: Any) -> WholeRows:
        whole = honest(chosen, places, num_experts, group)
        return dataclasses.replace(whole, chosen_BTJ=whole.chosen_BTJ.flip(1))

    WholeRows.of = staticmethod(backwards)  # type: ignore[method-assign]
    return with_capacity_on_two(url, process)


def with_capacity_on_two(url: str, process: Process) -> Routed:
    config, table = KINDS["with capacity"]
    return train_experts(url, dataclasses.replace(LAYOUTS["ep 2"], experts=table), config, process)


FAULTS = [
    with_losses_of_experts_scaled_twice,
    with_gradients_that_do_not_travel_back,
    with_too_little_room,
    with_the_dearest_rows_first,
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(
    fault: Callable[[str, Process], Routed], corpus: str, references: Callable[[str], Routed], tmp_path: Path
) -> None:
    reference = references("with capacity")
    assert not any(routed.agrees(reference) for routed in run_forked(tmp_path, 2, partial(fault, corpus)))
