"""What a run tells: epochs at its start, figures of each step to every sink, losses by source, a trace on
request."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.support.outputs.tiny_corpus import VOCAB, make_corpus
from tests.support.processes.forked import said
from tests.support.training.training_runs import Run
from trainer.model.config.sizes import model_config
from trainer.planning.gpus import mfu
from trainer.recipe_tables.parallelism import ExpertsTable, Float8Table
from trainer.run.preflight import check_run
from trainer.telemetry.phases import PHASES

SEQUENCES = {"books": -(-1111 // 32), "web": -(-1700 // 32) + -(-530 // 32)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of 22 steps on two processes that held some sequences out and traced steps 2 and 3."""
    folder = tmp_path_factory.mktemp("telling")
    data = make_corpus(str(folder / "out"), {"web": [1700, 530], "books": [1111]}).url
    changes = {
        "workers": 2,
        "steps": 22,
        "validation": 0.1,
        "eval_every": 8,
        "profile": [2, 3],
        "peak_teraflops": 0.5,
    }
    made = Run(data=data, output=folder / "run", changes=changes)
    made.start()
    return made


def test_the_epochs_that_each_source_will_see_are_told_at_the_start(run: Run) -> None:
    fed = [row for file in (run.output / "batches").glob("*") for row in pq.read_table(file).to_pylist()]
    for source, num_sequences in SEQUENCES.items():
        trained = num_sequences - round(num_sequences * 0.1)
        epochs = sum(row["source"] == source for row in fed) / trained
        assert f"source {source}: {epochs:.2f} epochs in 22 steps" in check_run(run.recipe())


def test_a_table_that_the_run_does_not_read_is_told_at_the_start(run: Run) -> None:
    recipe = run.recipe()
    tables = {"experts": ExpertsTable(bias_rate=0.1), "float8": Float8Table(emulate=True)}
    changed = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, **tables))
    told = {line for line in check_run(changed) if "has no effect" in line}
    assert told == {
        "[train.experts] has no effect: the model has no experts",
        f'[train.float8] has no effect: train.dtype = "{recipe.train.dtype}"',
    }
    assert not [line for line in check_run(recipe) if "has no effect" in line]


def test_every_step_tells_its_phases_its_wait_for_data_and_the_checkpoints_age(run: Run) -> None:
    rows = run.metrics()
    assert sorted(rows) == list(range(22))
    for row in rows.values():
        assert set(row["phases"]) == set(PHASES)
        assert sum(row["phases"].values()) == pytest.approx(row["seconds"])
        assert 0 < row["data_wait_seconds"] < row["phases"]["data loading"]
        assert row["data_wait_share"] == pytest.approx(row["data_wait_seconds"] / row["seconds"])
        assert row["checkpoint_age_seconds"] > 0


def test_the_peak_that_the_recipe_names_makes_utilisation_known_where_the_devices_name_does_not(
    run: Run,
) -> None:
    config = model_config("debug", VOCAB)
    for row in run.metrics().values():
        assert row["mfu"] == pytest.approx(mfu(config, 32, row["tokens_per_second"] / 2, 0.5e12))
    assert "MFU" in said(run.scratch)


def test_ranks_are_compared_at_every_tenth_step_and_the_last(run: Run) -> None:
    compared = {step: row for step, row in run.metrics().items() if "ranks" in row}
    assert set(compared) == {0, 10, 20, 21}
    for row in compared.values():
        assert set(row["ranks"]) == {*PHASES, "data wait"}
        assert all(times["min"] <= times["mean"] <= times["max"] for times in row["ranks"].values())
        assert {times["slowest"] for times in row["ranks"].values()} <= {0, 1}
        assert row["loading"]["hit_share"] == 1.0  # shards on a local disk are read in place
    assert "slowest rank" in said(run.scratch)


def test_losses_of_sources_add_up_to_the_loss(run: Run) -> None:
    for row in run.metrics().values():
        total = sum(row["loss_by_source"][name] * num for name, num in row["tokens_by_source"].items())
        assert row["loss"] == pytest.approx(total / sum(row["tokens_by_source"].values()), rel=1e-12)


def test_held_out_sequences_are_evaluated_by_source_when_due_and_at_the_end(run: Run, tmp_path: Path) -> None:
    told = {step: row["validation_loss"] for step, row in run.metrics().items() if "validation_loss" in row}
    assert set(told) == {7, 15, 21}
    assert all(set(losses) == {"books", "web"} for losses in told.values())
    assert told[21]["web"] < told[7]["web"]
    alone = Run(data=run.data, output=tmp_path / "alone", changes=run.changes)
    alone.start(workers=1, profile=[90, 90])  # no such step
    for step, losses in told.items():
        assert alone.metrics()[step]["validation_loss"] == pytest.approx(losses, rel=1e-10)


def test_held_out_sequences_are_evaluated_after_a_step_that_the_recipe_skips_too(
    run: Run, tmp_path: Path
) -> None:
    skipping = Run(data=run.data, output=tmp_path / "skipping", changes={"validation": 0.1, "eval_every": 2})
    skipping.start(steps=6, skip=[[3 * 7, 3 * 7], [5 * 7 + 6, 5 * 7 + 6]])
    rows = skipping.metrics()
    assert {step for step, row in rows.items() if row["skipped"]} == {3, 5}
    assert {step for step, row in rows.items() if "validation_loss" in row} == {1, 3, 5}
    assert rows[3]["validation_loss"] != rows[1]["validation_loss"]
    losses = [f"{loss:.4f}" for loss in rows[5]["validation_loss"].values()]
    last = next(line for line in said(skipping.scratch).splitlines() if line.startswith("step 5/6"))
    assert "skipped (listed)" in last
    assert all(loss in last for loss in losses)


def test_tensorboard_shows_what_the_metrics_file_tells(run: Run) -> None:
    events = EventAccumulator(str(run.output / "tensorboard"))
    events.Reload()
    losses = [event.value for event in events.Scalars("loss/train")]
    assert losses == pytest.approx(run.losses(), rel=1e-6)
    tags = set(events.Tags()["scalars"])
    assert {"speed/data_wait_seconds", "checkpoint/age_seconds", "seconds/forward", "loss/source/web"} <= tags
    assert {"loss/validation/books", "ranks/data wait/slowest", "loading/hit_share"} <= tags


def test_a_run_tells_of_its_pipeline_shared_sequences_and_experts(run: Run, tmp_path: Path) -> None:
    layout = {"pp": 2, "cp": 2}
    spread = Run(data=run.data, output=tmp_path / "run", changes={"model": "moe-debug", "steps": 3})
    spread.start(workers=4, parallel=layout)
    for row in spread.metrics().values():
        assert 0 < row["pipeline_idle_share"] < 1
        assert row["context_imbalance"] >= 1
        assert row["experts"]["fullest"] >= 1
        assert 0 <= row["experts"]["dropped"] < 1
    told = said(spread.scratch)
    assert all(words in told for words in ("pipeline idle", "attention's fullest rank", "fullest expert"))
    events = EventAccumulator(str(spread.output / "tensorboard"))
    events.Reload()
    assert {
        "parallel/pipeline_idle_share",
        "parallel/context_imbalance",
        "experts/fullest",
        "experts/entropy",
        "tokens/source/web",
    } <= set(events.Tags()["scalars"])
    assert not {"pipeline_idle_share", "context_imbalance", "experts"} & run.metrics()[0].keys()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_trace_of_the_asked_steps_is_left_by_each_rank(run: Run, rank: int) -> None:
    trace = json.loads(
        gzip.decompress((run.output / f"profile/rank-{rank:05d}.attempt-1.json.gz").read_bytes())
    )
    names = {event.get("name") for event in trace["traceEvents"]}
    assert "aten::mm" in names
    assert sum(event.get("name") == "Optimizer.step#AdamW.step" for event in trace["traceEvents"]) == 2
