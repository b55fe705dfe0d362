"""Runs with Muon, groups and an average of the weights: restarts, other layouts, replays and recovery in place."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from tests.support.outputs.small_out.output import SmallOut
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.processes.forked import ChildFailedError
from tests.support.training.forgotten import (
    CHANGES,
    LAYOUTS,
    Trained,
    applied,
    assert_equal,
    copy_out,
    make_few_ids_out,
    never_read,
)
from tests.support.training.in_place import (
    IN_PLACE,
    Death,
    check_same,
    miss_the_vote,
    train_with,
    without_recovery,
)
from tests.support.training.training_runs import Run
from trainer.attempts import attempts
from trainer.checkpoint.digest import weights_digest
from trainer.checkpoint.store import WeightsDigest
from trainer.optim.optimizer import MATRICES
from trainer.recovery.forget import forget

MUON: Mapping[str, Any] = {
    "name": "muon",
    "lr": 3e-3,
    "warmup_steps": 2,
    "clip": 0.0,
    "ema": 0.9,
    "muon": {"weight_decay": 0.1},
    "group": [{"match": "embedding", "weight_decay": 0.0}, {"match": "*.o_proj.*", "lr_factor": 0.5}],
}
SHORT: Mapping[str, Any] = {"dtype": "float32", "steps": 9, "optimizer": MUON, "checkpoint": {"every": 3}}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_corpus(str(tmp_path_factory.mktemp("out")), {"web": [1700, 530], "books": [1111]}).url


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallOut:
    return make_few_ids_out(tmp_path_factory.mktemp("small"))


def last(run: Run) -> WeightsDigest:
    """Of the newest checkpoint; it does not depend on the layout that saved it."""
    return weights_digest(Folder(str(run.output / "checkpoints" / run.checkpoints()[-1])))


@pytest.mark.parametrize(
    "later",
    [
        {"zero": 3},
        {"zero": 0},
        {"parallel": {"dp_replicate": 2}},
        pytest.param({"zero": 1}, marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_ends_with_the_same_bits_also_in_another_layout(
    later: Mapping[str, Any], corpus: str, tmp_path: Path
) -> None:
    """One micro-batch a rank: of several, layouts add up gradients in other orders."""
    sharded = {**SHORT, "workers": 2, "micro_batch": 4}
    whole = Run(data=corpus, output=tmp_path / "whole", changes=sharded)
    assert whole.start().finished
    run = Run(data=corpus, output=tmp_path / "run", changes=sharded)
    run.start_and_kill(4)
    assert run.start(**later).finished
    assert run.losses() == whole.losses()
    assert last(run).tensors == last(whole).tensors
    kinds = {name.split(".")[1] for name in last(run).tensors if name.startswith("optimizer.")}
    assert kinds == {"ema", "exp_avg", "exp_avg_sq", "momentum", "num_updates"}


@pytest.mark.parametrize(
    "layout",
    [pytest.param(name, marks=() if name in ("zero 3", "tp") else pytest.mark.slow) for name in LAYOUTS],
)
def test_a_replay_ends_with_the_bits_of_a_run_that_never_read_the_document(
    layout: str, small: SmallOut, tmp_path: Path
) -> None:
    changes = {**CHANGES, **LAYOUTS[layout], "optimizer": MUON}
    trained = Trained(small=small, folder=tmp_path, changes=changes)
    copy_out(small, tmp_path)
    assert trained.run.start().finished
    trained.purge(trained.record_first_read_in(range(5, 6)))
    assert forget(trained.run.recipe(), ["all"], restart=False).trains
    assert trained.run.start().finished
    assert applied(trained) and True not in applied(trained)
    assert_equal(trained, never_read(trained))


def test_a_process_that_dies_in_the_exchange_of_matrices_is_replaced_and_no_bit_changes(
    corpus: str, tmp_path: Path
) -> None:
    replicas = {**SHORT, "parallel": {"dp_replicate": 2, "dp_shard": 1}, "recovery": IN_PLACE}
    whole = without_recovery(Run(data=corpus, output=tmp_path / "whole", changes=replicas))
    assert whole.start().finished
    run = Run(data=corpus, output=tmp_path / "run", changes=replicas)
    assert train_with(run, {0: (Death(rank=1, where=MATRICES, nth=5),)}).finished
    check_same(run, whole)
    assert last(run).tensors == last(whole).tensors


@pytest.mark.slow
def test_a_rank_one_step_behind_brings_an_orthogonalised_step_in_alone(corpus: str, tmp_path: Path) -> None:
    replicas = {**SHORT, "recovery": IN_PLACE, "parallel": {"dp_replicate": 2, "dp_shard": 2}}
    whole = without_recovery(Run(data=corpus, output=tmp_path / "whole", changes=replicas))
    assert whole.start().finished
    run = Run(data=corpus, output=tmp_path / "run", changes=replicas)
    assert train_with(run, {}, prepare=partial(miss_the_vote, rank=1, dying=2, step=5)).finished
    check_same(run, whole)
    assert last(run).tensors == last(whole).tensors
    # Step 5 is in the weights of all and was not done again, though rank 1 had not heard that all voted.
    assert [attempt.first_step for attempt in attempts(Folder(str(run.output)))] == [0, 6]


def test_a_run_does_not_go_on_with_another_optimizer(corpus: str, tmp_path: Path) -> None:
    run = Run(data=corpus, output=tmp_path / "run", changes={**SHORT, "steps": 3})
    assert run.start().finished
    with pytest.raises(ChildFailedError, match=r"train\.optimizer\.name or train\.optimizer\.ema differ"):
        run.start(steps=6, optimizer={"lr": 3e-3})


def test_a_group_that_nothing_is_in_stops_a_run_before_its_first_step(corpus: str, tmp_path: Path) -> None:
    run = Run(
        data=corpus,
        output=tmp_path / "run",
        changes={**SHORT, "optimizer": {"group": [{"match": "bias", "lr_factor": 2.0}]}},
    )
    with pytest.raises((ChildFailedError, RecipeError), match=r'group\[0\]\.match = "bias": no parameter'):
        run.start()
    assert run.checkpoints() == []
