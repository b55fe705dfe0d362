"""A run that is interrupted goes on as if nothing had happened."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lineage.ids import tokens_hash
from tests.support.forked import run_forked
from tests.support.synthetic import EOT, made_up_tokens, purge_tokens, write_output
from tests.support.tiny_corpus import make_corpus
from tests.support.training_runs import Run
from trainer.loop import LaunchContext, TrainingResult, train
from trainer.options import TrainRecipe
from trainer.processes.runtime import Process
from trainer.provenance.facts import read_facts

STEPS = 12
FSDP_2 = {"workers": 2}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_corpus(str(tmp_path_factory.mktemp("out")), {"web": [1700, 530], "books": [1111]}).url


@pytest.fixture(scope="module")
def whole(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The uninterrupted run on two processes."""
    run = Run(data=corpus, output=tmp_path_factory.mktemp("whole") / "run", changes=FSDP_2)
    assert run.start().finished
    return run


def check_identical(run: Run, whole: Run) -> None:
    assert run.losses() == whole.losses()  # bit for bit
    assert [row["grad_norm"] for row in run.metrics().values()] == [r["grad_norm"] for r in whole.metrics().values()]
    assert run.sequences() == whole.sequences()


@pytest.mark.parametrize("killed_after", [2, 5, 9])
def test_a_run_killed_at_a_step_ends_with_the_same_bits(
    killed_after: int, corpus: str, whole: Run, tmp_path: Path
) -> None:
    run = Run(data=corpus, output=tmp_path / "run", changes=FSDP_2)
    run.start_and_kill(killed_after)
    assert run.start().finished
    check_identical(run, whole)


@pytest.mark.slow
def test_a_run_killed_at_twenty_random_steps_ends_with_the_same_bits(corpus: str, tmp_path: Path) -> None:
    steps = {"steps": 40, "checkpoint": {"every": 3}}
    whole = Run(data=corpus, output=tmp_path / "whole", changes=FSDP_2 | steps)
    assert whole.start().finished
    run = Run(data=corpus, output=tmp_path / "run", changes=FSDP_2 | steps)
    for killed_after in sorted(random.Random(5).sample(range(1, 40), 20)):
        run.start_and_kill(killed_after)
    assert run.start().finished
    check_identical(run, whole)


def near(run: Run, whole: Run) -> bool:
    """Another layout adds in another order: 1e-10 in the loss after a dozen steps of float64."""
    pairs = zip(run.losses(), whole.losses(), strict=True)
    return all(abs(mine - theirs) < 1e-10 for mine, theirs in pairs if mine is not None and theirs is not None)


def test_a_run_goes_on_with_other_numbers_of_processes(corpus: str, whole: Run, tmp_path: Path) -> None:
    run = Run(data=corpus, output=tmp_path / "run")
    run.start_and_kill(5, workers=4)
    run.start_and_kill(9, workers=2)
    assert run.start(workers=1).finished
    assert run.sequences() == whole.sequences()
    assert near(run, whole)


@pytest.mark.slow
def test_a_run_goes_on_with_other_layouts(corpus: str, whole: Run, tmp_path: Path) -> None:
    run = Run(data=corpus, output=tmp_path / "run")
    run.start_and_kill(5, workers=2)
    run.start_and_kill(9, parallel={"tp": 2})
    assert run.start(workers=2, zero=0).finished
    assert run.sequences() == whole.sequences()
    assert near(run, whole)


def test_a_finished_run_started_with_more_steps_goes_on(corpus: str, whole: Run, tmp_path: Path) -> None:
    run = Run(data=corpus, output=tmp_path / "run", changes=FSDP_2)
    first = run.start(optimizer={"lr": 3e-3, "warmup_steps": 3, "min_lr_ratio": 1.0}, steps=6)
    assert (first.step, first.finished) == (6, True)
    again = run.start(optimizer={"lr": 3e-3, "warmup_steps": 3, "min_lr_ratio": 1.0})
    assert (again.step, again.attempt) == (STEPS, 2)
    assert run.sequences() == whole.sequences()


def test_a_run_resumed_after_a_purge_reads_end_of_text_there_and_the_same_elsewhere(tmp_path: Path) -> None:
    tokens = made_up_tokens(3_000, 7)
    write_output(tmp_path / "out", {"web": [tokens]}, store=True)
    run = Run(data=str(tmp_path / "out"), output=tmp_path / "run", changes=FSDP_2 | {"steps": 30})
    run.start_and_kill(14)
    purge_tokens(tmp_path / "out", "web", 0, 500, 900)
    assert run.start().finished
    purged = tokens.copy()
    purged[500:1400] = EOT
    fed = [row for file in (run.output / "batches").glob("*") for row in pq.read_table(file).to_pylist()]
    for row in fed:
        expected = (tokens if row["attempt"] == 1 else purged)[row["start"] :][: row["num_tokens"]]
        assert row["tokens_hash"] == tokens_hash(expected).hex()
    again = [row for row in fed if row["attempt"] == 2]
    assert min(row["step"] for row in again) == 12
    assert sum(row["start"] < 1400 and row["start"] + row["num_tokens"] > 500 for row in again) > 10


def test_a_purge_under_a_running_run_is_read_by_every_rank_from_the_next_checkpoint_on(tmp_path: Path) -> None:
    tokens = made_up_tokens(3_000, 7)
    write_output(tmp_path / "out", {"web": [tokens]}, store=True)
    run = Run(data=str(tmp_path / "out"), output=tmp_path / "run", changes=FSDP_2 | {"steps": 30})
    run_forked(run.scratch, 2, partial(train_and_purge, run.recipe()))
    purged = tokens.copy()
    purged[500:1400] = EOT
    fed = [row for file in (run.output / "batches").glob("*") for row in pq.read_table(file).to_pylist()]
    assert len(fed) == 30 * 7
    for row in fed:
        expected = (tokens if row["step"] < 8 else purged)[row["start"] :][: row["num_tokens"]]
        assert row["tokens_hash"] == tokens_hash(expected).hex()
    segments = read_facts([str(run.output)]).segments
    assert {segment.first_step: segment.last_step for segment in segments} == {0: 7, 8: 29}


def train_and_purge(recipe: TrainRecipe, process: Process) -> TrainingResult:
    """Rank 0 purges after step 6; a checkpoint is due after every fourth."""

    def after_step(step: int) -> None:
        if step == 6 and process.rank == 0:
            purge_tokens(Path(str(recipe.train.data)), "web", 0, 500, 900)

    return train(recipe, LaunchContext(process=process, after_step=after_step))
