"""A run in which processes die and whose others go on: to the bit what it would have been."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lineage.recipe import RecipeError
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.in_place import (
    IN_PLACE,
    LAYOUTS,
    RECOVERY,
    WITHOUT_REPLICAS,
    Death,
    Deaths,
    both_of,
    check_same,
    forty_deaths,
    miss_the_vote,
    row_losses,
    ten_stops,
    train_out_of_reach,
    train_with,
    without_recovery,
)
from tests.support.training.training_runs import Run


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_corpus(str(tmp_path_factory.mktemp("out")), {"web": [1700, 530], "books": [1111]}).url


def test_a_spare_takes_the_place_of_a_killed_process_and_nothing_is_lost(corpus: str, tmp_path: Path) -> None:
    ddp = {"workers": 2, "zero": 0, "steps": 9, "model": "debug", "recovery": IN_PLACE}
    whole = without_recovery(Run(data=corpus, output=tmp_path / "whole", changes=ddp))
    assert whole.start().finished
    run = Run(data=corpus, output=tmp_path / "run", changes=ddp)
    result = train_with(run, {0: (Death(rank=0, where="backward", nth=7),)})
    assert (result.finished, result.attempt) == (True, 2)
    check_same(run, whole)
    ranks = json.loads((run.output / "ranks.json").read_text())
    assert [(row["rank"], row["generation"], row["role"]) for row in ranks][:2] == [
        (0, 1, "rank"),
        (1, 1, "rank"),
    ]
    assert len({row["pid"] for row in ranks}) == len(ranks)


def test_the_loss_of_each_row_is_recorded_once_whoever_dies_before_it_is_written(
    corpus: str, tmp_path: Path
) -> None:
    changes = {
        "workers": 2,
        "zero": 0,
        "steps": 9,
        "recovery": IN_PLACE,
        "record_losses": True,
        "skip": [[6, 6]],
        "checkpoint": {"every": 5},
    }
    whole = without_recovery(Run(data=corpus, output=tmp_path / "whole", changes=changes))
    assert whole.start().finished
    run = Run(data=corpus, output=tmp_path / "run", changes=changes)
    deaths = {
        # In the weights of all, and reported by none.
        0: (Death(rank=1, where="checkpoint", nth=2),),
        1: (Death(rank=0, where="optimizer", nth=1),),
        2: (Death(rank=0, where="making of the model"),),
        3: (Death(rank=1, where="backward", nth=2),),
    }
    assert train_with(run, deaths).finished
    check_same(run, whole)
    rows = row_losses(run)
    assert len(rows) == 9 * 7
    assert rows == row_losses(whole)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [*LAYOUTS, *WITHOUT_REPLICAS])
def test_forty_deaths_in_all_phases_and_in_recoveries_change_no_bit(
    layout: str, corpus: str, tmp_path: Path
) -> None:
    whole, run = both_of(layout, corpus, tmp_path)
    assert whole.start().finished
    assert train_with(run, forty_deaths(layout)).finished
    check_same(run, whole)
    assert row_losses(run) == row_losses(whole)
    # Each in the same start of the processes: a start from a checkpoint has generation 0.
    assert {row["generation"] for row in json.loads((run.output / "ranks.json").read_text())} == {40}


@pytest.mark.slow
def test_a_rank_one_step_behind_brings_it_in(
    corpus: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    changes = {"steps": 9, "recovery": IN_PLACE, "parallel": {"dp_replicate": 2, "dp_shard": 2}}
    whole = without_recovery(Run(data=corpus, output=tmp_path / "whole", changes=changes))
    assert whole.start().finished
    run = Run(data=corpus, output=tmp_path / "run", changes=changes)
    assert train_with(run, {}, prepare=partial(miss_the_vote, rank=1, dying=2, step=5)).finished
    check_same(run, whole)
    assert "rank 1 applies step 5, which the others have applied" in capfd.readouterr().err


@pytest.mark.slow
def test_a_death_while_groups_are_formed_is_only_the_next_generation(corpus: str, tmp_path: Path) -> None:
    ddp = {"workers": 3, "zero": 0, "steps": 9, "recovery": IN_PLACE | {"spares": 2}}
    whole = without_recovery(Run(data=corpus, output=tmp_path / "whole", changes=ddp))
    assert whole.start().finished
    run = Run(data=corpus, output=tmp_path / "run", changes=ddp)
    forming = {number: (Death(rank=number % 3, where="forming of process groups"),) for number in (1, 2, 3)}
    assert train_with(run, {0: (Death(rank=0, where="forward", nth=7),)} | forming).finished
    check_same(run, whole)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [*LAYOUTS, "fsdp"])
def test_ten_stopped_processes_are_found_and_replaced(layout: str, corpus: str, tmp_path: Path) -> None:
    whole, run = both_of(layout, corpus, tmp_path, stops=True)
    assert whole.start().finished
    assert train_with(run, ten_stops(layout)).finished
    check_same(run, whole)
    assert {row["generation"] for row in json.loads((run.output / "ranks.json").read_text())} == {10}


def test_a_process_that_was_stopped_for_a_while_goes_on_and_nothing_else_happens(
    corpus: str, tmp_path: Path
) -> None:
    ddp = {"workers": 2, "zero": 0, "steps": 9, "recovery": IN_PLACE}
    whole = without_recovery(Run(data=corpus, output=tmp_path / "whole", changes=ddp))
    assert whole.start().finished
    run = Run(data=corpus, output=tmp_path / "run", changes=ddp)
    stops = tuple(
        Death(rank=rank, where=where, nth=nth, signal=signal.SIGSTOP, goes_on=True)
        for rank, where, nth in [(0, "forward", 3), (1, "vote on the step", 4), (0, "checkpoint", 6)]
    )
    result = train_with(run, {0: stops})
    assert (result.finished, result.attempt) == (True, 1)
    check_same(run, whole)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["backward", "checkpoint", "claim of the next attempt"])
@pytest.mark.parametrize("wakes", ["soon", "late"])
def test_a_process_that_wakes_up_when_its_place_is_taken_writes_nothing(
    where: str, wakes: str, corpus: str, tmp_path: Path
) -> None:
    ddp = {
        "workers": 3,
        "zero": 0,
        "steps": 40,
        "recovery": IN_PLACE | {"spares": 2},
        "faults": {"watchdog_seconds": 8.0},
        "checkpoint": {"every": 3},
    }
    whole = without_recovery(Run(data=corpus, output=tmp_path / "whole", changes=ddp))
    assert whole.start().finished
    run = Run(data=corpus, output=tmp_path / "run", changes=ddp)
    metrics = run.output / "metrics.jsonl"
    moments: Deaths = {0: (Death(rank=0, where=where, nth=6, signal=signal.SIGSTOP),)}  # at a checkpoint
    if where in RECOVERY:
        moments = {
            0: (Death(rank=1, where="forward", nth=6),),
            1: (Death(rank=0, where=where, signal=signal.SIGSTOP),),
        }
    result, written = train_out_of_reach(
        run, moments, lambda: wakes == "soon" or b'"attempt": 2' in metrics.read_bytes()
    )
    assert result.finished
    check_same(run, whole)
    lines = [(row["step"], row["attempt"]) for row in map(json.loads, metrics.read_text().splitlines())]
    assert len(set(lines)) == len(lines)
    # What it was doing is for people who ask why it hung.
    assert [path for path in written if not path.partition(" ")[2].startswith("recorder")] == []


@pytest.mark.slow
def test_where_a_shard_is_lost_with_its_replica_all_start_again_and_say_why(
    corpus: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hsdp = {"parallel": {"dp_replicate": 2, "dp_shard": 2}, "steps": 14, "recovery": IN_PLACE}
    whole = without_recovery(Run(data=corpus, output=tmp_path / "whole", changes=hsdp))
    assert whole.start().finished
    run = Run(data=corpus, output=tmp_path / "run", changes=hsdp)
    # From a checkpoint on there are fewer steps than these: the second start does not come so far.
    both = tuple(Death(rank=rank, where="vote on the step", nth=11) for rank in (0, 2))
    assert train_with(run, {0: both}).finished
    check_same(run, whole)
    said = capfd.readouterr().err
    assert "this cannot be met in place: " in said
    assert "all processes start again from the newest checkpoint" in said


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no spare": (
        {"zero": 0, "workers": 2, "recovery": {"mode": "in_place"}},
        "spares = 0: expected at least 1",
    ),
    "spares without it": (
        {"workers": 2, "recovery": {"spares": 1}},
        'spares = 1: expected train.recovery.mode = "in',
    ),
    "replacing without it": (
        {"recovery": {"on_straggler": "replace"}},
        'on_straggler = "replace": expected train.rec',
    ),
    "draining without it": (
        {"recovery": {"on_sign": "drain"}},
        'on_sign = "drain": expected train.recovery.mode',
    ),
    "draining without alerts": (
        {"workers": 2, "zero": 0, "recovery": IN_PLACE | {"on_sign": "drain"}},
        'on_sign = "drain": expected train.health.prometheus',
    ),
    "an address that is none": (
        {"health": {"prometheus": "prometheus:9090"}},
        "train.health.prometheus = 'prometheus:9090': expected an address",
    ),
    "one process": ({"recovery": IN_PLACE}, "expected at least 2 workers"),
    "nobody else has it": ({"workers": 2, "recovery": IN_PLACE}, "no other process holds the weights"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_met_in_place_is_refused_with_the_recipe(case: str, tmp_path: Path) -> None:
    changes, expected = REFUSED[case]
    with pytest.raises(RecipeError, match=expected):
        Run(data="out", output=tmp_path / "run", changes=changes).recipe()
