"""A run that is interrupted goes on as if nothing had happened."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lineage.ids import tokens_hash
from lineage.recipe import RecipeError
from tests.support.outputs.synthetic import EOT, made_up_tokens, purge_tokens, write_output
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.processes.forked import ChildFailedError, run_forked
from tests.support.training.training_runs import AfterStep, Run
from trainer.options import TrainRecipe
from trainer.processes.result import TrainingResult
from trainer.processes.runtime import Process
from trainer.provenance.reached import read_facts
from trainer.run.parts import LaunchContext
from trainer.run.preflight import check_recipe
from trainer.run.train import train

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
    assert [row["grad_norm"] for row in run.metrics().values()] == [
        r["grad_norm"] for r in whole.metrics().values()
    ]
    assert run.sequences() == whole.sequences()


@pytest.mark.parametrize("killed_after", [2, 5, 9])
def test_a_run_killed_at_a_step_ends_with_the_same_bits(
    killed_after: int, corpus: str, whole: Run, tmp_path: Path
) -> None:
    run = Run(data=corpus, output=tmp_path / "run", changes=FSDP_2)
    run.start_and_kill(killed_after)
    assert run.start().finished
    check_identical(run, whole)


WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
NARROW = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
NAMES = {"model_type": "llama", "vocab_size": 256, "tie_word_embeddings": False}
LAYOUTS = {
    "ddp 3": {"workers": 3, "zero": 0},
    "ddp 4": {"workers": 4, "zero": 0},
    "zero 2 of 3": {"workers": 3, "zero": 2},
    "fsdp 3": {"workers": 3},
    "fsdp 4": {"workers": 4},
    "hsdp": {"parallel": {"dp_replicate": 3, "dp_shard": 1}},
    "hsdp 2 x 2": {"parallel": {"dp_replicate": 2, "dp_shard": 2}},
    "tp": {"parallel": {"tp": 4}},
    "tp and shards": {"parallel": {"tp": 2, "dp_shard": 2}},
    "tp and replicas": {"zero": 0, "parallel": {"tp": 2, "dp_replicate": 2}},
    "zero 1 of 3": {"workers": 3, "zero": 1},
    "pp": {"parallel": {"pp": 2, "dp_shard": 2}},
    "cp": {"parallel": {"cp": 4}},
    "cp and shards, ring": {"parallel": {"cp": 2, "dp_shard": 2}, "context": {"method": "ring"}},
    "pp and cp": {"parallel": {"pp": 2, "cp": 2}},
    "ep": {"model": "moe-debug", "parallel": {"dp_shard": 4, "ep": 2}, "experts": {"bias_rate": 0.01}},
    "pp and ep": {"model": "moe-debug", "parallel": {"pp": 2, "dp_shard": 2, "ep": 2}},
}
FAST_LAYOUTS = ("ddp 3", "ddp 4", "fsdp 3", "pp")


@pytest.mark.parametrize(
    "layout", [pytest.param(name, marks=() if name in FAST_LAYOUTS else pytest.mark.slow) for name in LAYOUTS]
)
def test_on_three_and_four_ranks_a_killed_run_ends_with_the_same_bits_of_weights_and_moments(
    layout: str, corpus: str, tmp_path: Path
) -> None:
    """Two ranks cannot tell: a + b is b + a. The gradients, 6 MiB, fill more than one of DDP's buckets."""
    (tmp_path / "config.json").write_text(json.dumps(NAMES | WIDE))
    small = {
        "model": str(tmp_path),
        "dtype": "fp32",
        "steps": 7,
        "checkpoint": {"every": 3},
        "optimizer": {"lr": 1e-2},
    }
    whole = Run(data=corpus, output=tmp_path / "whole", changes=small | LAYOUTS[layout])
    assert whole.start().finished
    run = Run(data=corpus, output=tmp_path / "run", changes=small | LAYOUTS[layout])
    run.start_and_kill(4)
    assert run.start().finished
    check_identical(run, whole)
    assert hashes_of_last_checkpoint(run) == hashes_of_last_checkpoint(whole) != {}


def hashes_of_last_checkpoint(run: Run) -> dict[str, list[int | str]]:
    """Size and hash of every rank's tensors."""
    complete = json.loads((run.output / "checkpoints" / run.checkpoints()[-1] / "complete.json").read_text())
    return {name: entry for name, entry in complete["files"].items() if name.endswith(".distcp")}


# A step that `skip` lists, between an evaluation and a checkpoint: nothing has resharded what evaluating
# gathered.
EVALUATED: dict[str, Any] = {
    "validation": 0.1,
    "eval_every": 3,
    "skip": [[21, 21]],
    "steps": 8,
    "optimizer": {"lr": 1e-2},
}
GATHERED_BY_EVALUATING: dict[str, dict[str, Any]] = {
    "zero 1": {"workers": 2, "zero": 1},
    "zero 2": {"workers": 2, "zero": 2},
    "zero 3, untied": {"workers": 2},
    "pp": {"parallel": {"pp": 2}},
}


@pytest.mark.parametrize("layout", GATHERED_BY_EVALUATING)
def test_a_checkpoint_right_after_an_evaluation_holds_weights_and_moments(
    layout: str, corpus: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(NAMES | NARROW))
    changes = EVALUATED | {"model": str(tmp_path)} | GATHERED_BY_EVALUATING[layout]
    whole = Run(data=corpus, output=tmp_path / "whole", changes=changes)
    assert whole.start().finished
    run = Run(data=corpus, output=tmp_path / "run", changes=changes)
    run.start_and_kill(5)  # goes on from the checkpoint after the listed step
    results = run_forked(
        run.scratch, 2, partial(train_until_sixth_step, run.recipe())
    )  # the last step before this stop
    assert [(result.step, result.finished) for result in results] == [(6, False)] * 2
    assert run.start().finished
    check_identical(run, whole)
    assert hashes_of_last_checkpoint(run) == hashes_of_last_checkpoint(whole) != {}


def train_until_sixth_step(recipe: TrainRecipe, process: Process) -> TrainingResult:
    """Asked to stop in the step that an evaluation follows."""
    done: list[int] = [4]

    def stop_requested() -> bool:
        done[0] += 1
        return done[0] == 6

    return train(recipe, LaunchContext(process=process, stop_requested=stop_requested))


@pytest.mark.slow
def test_a_run_killed_at_twenty_random_steps_ends_with_the_same_bits(corpus: str, tmp_path: Path) -> None:
    steps = {"steps": 40, "checkpoint": {"every": 3}}
    whole = Run(data=corpus, output=tmp_path / "whole", changes=FSDP_2 | steps)
    assert whole.start().finished
    run = Run(data=corpus, output=tmp_path / "run", changes=FSDP_2 | steps)
    for killed_after in sorted(random.Random(5).sample(range(1, 40), 20)):
        run.start_and_kill(killed_after, at_once=True)
    assert run.start().finished
    check_identical(run, whole)


def near(run: Run, whole: Run) -> bool:
    """Another layout adds in another order: 1e-10 in the loss after a dozen steps of float64."""
    pairs = zip(run.losses(), whole.losses(), strict=True)
    return all(
        abs(mine - theirs) < 1e-10 for mine, theirs in pairs if mine is not None and theirs is not None
    )


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


STEADY = {"optimizer": {"lr": 3e-3, "warmup_steps": 3, "min_lr_ratio": 1.0}}
OPENED = {
    "one process": {},
    "ddp": {"workers": 2, "zero": 0},
    "zero 1": {"workers": 2, "zero": 1},
    "fsdp": {"workers": 3},
    "hsdp": {"parallel": {"dp_replicate": 2, "dp_shard": 2}},
    "tp": {"parallel": {"tp": 2}},
    "tp and shards": {"parallel": {"tp": 2, "dp_shard": 2}},
    "pp": {"parallel": {"pp": 2}},
    "pp and tp": {"parallel": {"pp": 2, "tp": 2}},
    "cp": {"parallel": {"cp": 2}},
    "pp and cp": {"parallel": {"pp": 2, "cp": 2}},
}


EXPERTS_OPENED = {
    "one process": {},
    "fsdp": {"workers": 2},
    "hsdp": {"parallel": {"dp_replicate": 2, "dp_shard": 2}},
    "ep": {"parallel": {"dp_shard": 2, "ep": 2}},
    "ep and shards": {"parallel": {"dp_shard": 4, "ep": 2}},
    "ep and tp": {"parallel": {"tp": 2, "ep": 2}},
    "ep and cp": {"parallel": {"cp": 2, "ep": 2}},
    "pp": {"parallel": {"pp": 2}},
    "pp and ep": {"parallel": {"pp": 2, "dp_shard": 2, "ep": 2}},
}
DENSE, EXPERTS = STEADY, STEADY | {"model": "moe-debug", "experts": {"bias_rate": 0.01}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("saved_by", "opened", "changes"),
    [
        *((name, OPENED, DENSE) for name in ("one process", "zero 1", "pp", "cp", "pp and tp", "pp and cp")),
        *((name, EXPERTS_OPENED, EXPERTS) for name in ("ep", "ep and tp", "pp and ep")),
    ],
)
def test_a_checkpoint_opens_in_every_layout(
    saved_by: str, opened: Mapping[str, Any], changes: Mapping[str, Any], corpus: str, tmp_path: Path
) -> None:
    """The second loss after it hangs on the moments too."""
    first = Run(data=corpus, output=tmp_path / "first", changes=changes)
    assert first.start(**opened[saved_by], steps=4).finished
    shutil.copytree(first.output, tmp_path / "saved")
    losses = {}
    for name, layout in opened.items():
        # Each goes on from the same checkpoint, as the run itself: its output is no other run's.
        shutil.rmtree(first.output)
        shutil.copytree(tmp_path / "saved", first.output)
        assert first.start(**layout, steps=6).finished
        losses[name] = first.losses()[4:]
    for name, after in losses.items():
        pairs = zip(after, losses["one process"], strict=True)
        assert all(abs((mine or 0) - (plain or 1)) < 1e-12 for mine, plain in pairs), name


def test_a_finished_run_started_with_more_steps_goes_on(corpus: str, whole: Run, tmp_path: Path) -> None:
    run = Run(data=corpus, output=tmp_path / "run", changes=FSDP_2)
    first = run.start(optimizer={"lr": 3e-3, "warmup_steps": 3, "min_lr_ratio": 1.0}, steps=6)
    assert (first.step, first.finished) == (6, True)
    again = run.start(optimizer={"lr": 3e-3, "warmup_steps": 3, "min_lr_ratio": 1.0})
    assert (again.step, again.attempt) == (STEPS, 2)
    assert run.sequences() == whole.sequences()


def test_a_folder_of_checkpoints_is_one_runs_alone(corpus: str, tmp_path: Path) -> None:
    """Another run would go on from them, and delete them."""
    apart = {"steps": 4, "checkpoint": {"every": 2, "keep": 1, "path": str(tmp_path / "checkpoints")}}
    first, second = (Run(data=corpus, output=tmp_path / name, changes=apart) for name in ("first", "second"))
    assert first.start().finished
    kept = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    with pytest.raises(
        ChildFailedError, match=r"train\.checkpoint\.path = .* holds the checkpoints of the run with the"
    ):
        second.start()
    with pytest.raises(RecipeError, match=r"train\.checkpoint\.path"):
        check_recipe(second.recipe())
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == kept
    assert not (second.output / "attempts").exists()
    assert (first.start(steps=6).attempt, first.start(steps=6).step) == (2, 6)


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


def test_a_purge_under_a_running_run_is_read_by_every_rank_from_the_next_checkpoint_on(
    tmp_path: Path,
) -> None:
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

    return train(recipe, LaunchContext(process=process, hooks=AfterStep(after_step)))
