"""Muon over every layout: each matrix is orthogonalised whole, so that equal gradients give equal bits."""

from __future__ import annotations

import dataclasses
import datetime
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed.tensor import DTensor

from lineage.ids import content_hash
from tests.support.outputs.tiny_corpus import VOCAB, make_corpus
from tests.support.processes.forked import run_forked
from tests.support.training.layouts import (
    CONFIG,
    SEED,
    TABLE,
    Trained,
    agree,
    dataset,
    double,
    mesh,
    staged,
    train_over,
    train_plainly,
    whole_weights,
)
from trainer.data.dataset import Slice
from trainer.model.config.description import LatentAttention, ModelConfig
from trainer.model.config.sizes import model_config
from trainer.optim.optimizer import Optimizer
from trainer.parallel.layout import ParallelLayout
from trainer.parallel.mesh import parallelise_model
from trainer.parallel.weights import assign, initialise
from trainer.processes.runtime import Process
from trainer.recipe_tables.optimizer import MuonTable, OptimizerGroup

MUON = dataclasses.replace(TABLE, name="muon", muon=MuonTable(lr=0.01, weight_decay=0.05))
DEEP = dataclasses.replace(CONFIG, num_layers=4)
EXPERTS = model_config("moe-debug", VOCAB)
LATENT = dataclasses.replace(
    CONFIG,
    head_dim=24,
    num_kv_heads=CONFIG.num_heads,
    latent=LatentAttention(query_rank=32, kv_rank=48, nope_dim=16, rope_dim=8, value_dim=16),
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_corpus(str(tmp_path_factory.mktemp("out")), {"web": [1700, 530], "books": [1111]}).url


@pytest.fixture(scope="module")
def reference(corpus: str) -> Trained:
    return train_plainly(dataset(corpus, Slice()), config=DEEP, table=MUON)


TRAINED = {
    "one process": double(),
    "ddp 2": double(dp_replicate=2, zero=0),
    "fsdp 2": double(dp_shard=2),
    "tensor parallel 2": double(tp=2),
    "pipeline 2": staged("1f1b", pp=2),
}
TRAINED_SLOWLY = {
    "zero 1 over 2": double(dp_shard=2, zero=1),
    "zero-2 form 2": double(dp_shard=2, zero=2),
    "context 2": double(cp=2),
    "hsdp 2 x 2": double(dp_replicate=2, dp_shard=2),
    "fsdp 2 x tensor parallel 2": double(dp_shard=2, tp=2),
    "replicas 2 x tensor parallel 2": double(dp_replicate=2, tp=2, zero=0),
    "fsdp 4": double(dp_shard=4),
    "zbv 2 x fsdp 2": staged("zbv", pp=2, dp_shard=2),
    "1f1b 2 x tensor parallel 2": staged("1f1b", pp=2, tp=2),
}


@pytest.mark.parametrize(
    "name", [*TRAINED, *(pytest.param(name, marks=pytest.mark.slow) for name in TRAINED_SLOWLY)]
)
def test_a_layout_trains_with_muon_as_one_plain_process_does(
    name: str, corpus: str, reference: Trained, tmp_path: Path
) -> None:
    layout = (TRAINED | TRAINED_SLOWLY)[name]
    assert agree(train_over(tmp_path, corpus, layout, DEEP, MUON), reference)


def updated(layout: ParallelLayout, config: ModelConfig, process: Process) -> dict[str, np.ndarray]:
    """The whole weights of this rank's stages after three updates by gradients that depend on a parameter's
    name and the step alone."""
    table = dataclasses.replace(MUON, ema=0.9, group=(OptimizerGroup(match="embedding", weight_decay=0.0),))
    model = parallelise_model(config, layout, process.device, datetime.timedelta(seconds=60))
    initialise(model, SEED)
    parameters = model.parameters()
    optimizer = Optimizer(parameters, table, model.groups.stage, model.config.latent)
    optimizer.begin()
    for step in range(3):
        for name, parameter in parameters.items():
            key = content_hash(f"{step}/{name}".encode())
            generator = torch.Generator().manual_seed(int.from_bytes(key[:7], "little"))
            parameter.grad = torch.empty_like(parameter)
            assign(parameter.grad, torch.randn(parameter.shape, generator=generator))
        optimizer.prepare()
        optimizer.step(lambda peak: peak, torch.tensor(0.0))
    averages = {name: optimizer.state(parameter)["ema"] for name, parameter in parameters.items()}
    return whole_weights(model) | {f"ema {name}": whole(average) for name, average in averages.items()}


def whole(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().numpy()


SINGLE = ParallelLayout(mesh=mesh())
UPDATED = {
    "ddp 2": (ParallelLayout(mesh=mesh(dp_replicate=2), zero=0), DEEP),
    "fsdp 2": (ParallelLayout(mesh=mesh(dp_shard=2)), DEEP),
    "tensor parallel 2": (ParallelLayout(mesh=mesh(tp=2)), DEEP),
    "pipeline 2": (ParallelLayout(mesh=mesh(pp=2)), DEEP),
    "experts 2": (ParallelLayout(mesh=mesh(dp_shard=2, ep=2)), EXPERTS),
    "hsdp 2 x 2": (ParallelLayout(mesh=mesh(dp_replicate=2, dp_shard=2)), DEEP),
    "latent attention, fsdp 2": (ParallelLayout(mesh=mesh(dp_shard=2)), LATENT),
}
UPDATED_SLOWLY = {
    "fsdp 3, uneven pieces": (ParallelLayout(mesh=mesh(dp_shard=3)), DEEP),
    "fsdp 2 x tensor parallel 2": (ParallelLayout(mesh=mesh(dp_shard=2, tp=2)), DEEP),
    "pipeline 2 x fsdp 2": (ParallelLayout(mesh=mesh(pp=2, dp_shard=2)), DEEP),
    "experts, fsdp 4": (ParallelLayout(mesh=mesh(dp_shard=4)), EXPERTS),
    "experts 2 x fsdp 2": (ParallelLayout(mesh=mesh(dp_shard=4, ep=2)), EXPERTS),
    "experts 2 over tensor parallel 2, replicas 2": (
        ParallelLayout(mesh=mesh(dp_replicate=2, tp=2, ep=2)),
        EXPERTS,
    ),
}


@pytest.mark.parametrize(
    "name", [*UPDATED, *(pytest.param(name, marks=pytest.mark.slow) for name in UPDATED_SLOWLY)]
)
def test_equal_gradients_give_equal_bits_in_every_layout(name: str, tmp_path: Path) -> None:
    layout, config = (UPDATED | UPDATED_SLOWLY)[name]
    (alone,) = run_forked(tmp_path / "alone", 1, partial(updated, SINGLE, config))
    ranks = run_forked(tmp_path / "ranks", layout.mesh.num_workers, partial(updated, layout, config))
    assert set().union(*ranks) == set(alone)
    for rank in ranks:
        assert [name for name, weights in rank.items() if not np.array_equal(weights, alone[name])] == []
