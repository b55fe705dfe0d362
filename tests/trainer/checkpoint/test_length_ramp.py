"""Longer sequences later: a second run that begins from the weights of a first, with a lineage that knows
both."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lineage.storage.folder import Folder
from lineage.store.delta import read_table
from lineage.store.rows import RunRow, SegmentRow, ShardSpan
from lineage.trace.exposure import exposures, fold
from tests.support.outputs.tiny_corpus import VOCAB, make_corpus
from tests.support.training.layouts import plain_loss
from tests.support.training.training_runs import Run
from trainer.checkpoint.state import load
from trainer.data.blocks import LocalBlocks
from trainer.data.corpus import open_corpus
from trainer.data.dataset import Dataset, Slice
from trainer.data.recipe_order import make_order
from trainer.model.config.sizes import model_config
from trainer.model.transformer import CausalLM
from trainer.provenance.exposure import find_readings


def test_a_run_over_longer_sequences_goes_on_from_the_weights_of_a_shorter_one(tmp_path: Path) -> None:
    data = make_corpus(str(tmp_path / "out"), {"web": [1700, 530], "books": [1111]}).url
    short = Run(data=data, output=tmp_path / "short")
    short.start()
    checkpoint = short.output / "checkpoints" / short.checkpoints()[-1]
    # As many tokens a step in sequences twice as long, over two processes.
    ramped = {"seq_len": 64, "global_batch": 4, "seed": 1, "steps": 6, "init_from": str(checkpoint)}
    long = Run(data=data, output=tmp_path / "long", changes=ramped)
    long.start(parallel={"dp_shard": 2})

    recipe = long.recipe()
    corpus = open_corpus(recipe.train.outs)
    batch = Dataset(corpus, make_order(recipe, corpus), LocalBlocks(), Slice()).batch(0)
    first = plain_loss(weights_of(checkpoint), batch)
    assert batch.inputs_BT.shape == (4, 64)
    assert long.losses()[0] == pytest.approx(first.item(), abs=1e-12)

    store = Folder(data)
    runs = [RunRow(**row) for row in read_table(store, "training_runs").to_pylist()]
    segments = [SegmentRow(**row) for row in read_table(store, "training_segments").to_pylist()]
    histories = {
        run.run: exposures(run, ShardSpan("web", 0, 100, 40), find_readings) for run in fold(runs, segments)
    }
    assert set(histories) == {str(short.output), str(long.output)}
    for run, seq_len in ((short, 32), (long, 64)):
        fed = {row for rows in run.sequences().values() for row in rows}
        told = {(exposure.row, exposure.sequence) for exposure in histories[str(run.output)]}
        assert told <= {(row, sequence) for row, sequence, _ in fed}
        assert all(0 <= exposure.first_token < seq_len for exposure in histories[str(run.output)])
        assert told


def weights_of(checkpoint: Path) -> CausalLM:
    """The debug model with the weights of a checkpoint, in one process."""
    model = CausalLM(model_config("debug", VOCAB)).to(torch.float64)
    named = {f"weights.{name}": parameter.detach() for name, parameter in model.named_parameters()}
    load(Folder(str(checkpoint)), named, None)
    return model
