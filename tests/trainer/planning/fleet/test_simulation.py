"""`sluice plan --simulate`: a recipe's run over its fleet, as figures and as a page."""

from __future__ import annotations

import json

import pytest

from lineage.index.blocks import BLOCK_BYTES
from lineage.recipe import RecipeError
from pipeline.cli.main import main
from tests.support.checkout import ROOT
from trainer.options import load_train_recipe
from trainer.planning.fleet.simulation import FleetSimulation, simulate_fleet
from trainer.planning.fleet.storage import TIERS, demand, seconds_of_names, share_of_opens

RECIPE = ROOT / "recipes" / "sizes" / "8B.toml"


def simulated(ranks: int, *changes: str) -> FleetSimulation:
    layout = [
        f"train.workers={ranks}",
        f"train.parallel.dp_shard={ranks}",
        "train.parallel.dp_replicate=1",
        f"train.global_batch={max(ranks, 512)}",
    ]
    return simulate_fleet(load_train_recipe(RECIPE, [*layout, *changes]))


def test_more_ranks_fail_more_often_and_need_more_spares() -> None:
    few, many = simulated(1024), simulated(4096)
    assert few.mtbf_seconds == pytest.approx(4 * many.mtbf_seconds)
    assert few.best_spares < many.best_spares
    best = {found.num_ranks: max(fleet.found.mean for fleet in found.fleets) for found in (few, many)}
    assert best[1024] > best[4096]


def test_recovery_in_place_costs_less_than_a_restart_and_spares_help() -> None:
    found = simulated(4096)
    by_way = {(fleet.recovery, fleet.spares): fleet for fleet in found.fleets}
    assert by_way["in place", found.best_spares].found.mean > by_way["restart", found.best_spares].found.mean
    assert by_way["restart", found.best_spares].found.mean > by_way["restart", 0].found.mean
    for fleet in found.fleets:
        assert fleet.found.mean <= fleet.expected + 3 * fleet.found.deviation
        assert fleet.case.interval >= found.storage.burst_seconds


def test_spares_that_the_recipe_names_are_taken() -> None:
    found = simulated(1024, "plan.spare_nodes=7", "plan.mtbf_hours=10", "plan.repair_hours=1")
    assert {fleet.spares for fleet in found.fleets} == {7}
    assert found.mtbf_seconds == pytest.approx(36_000)


@pytest.mark.parametrize(
    "change",
    [
        "plan.mtbf_hours=0.02",
        "plan.restart_seconds=1e6",
        "plan.in_place_seconds=1e6",
        "plan.storage_gbps=1e-6",
    ],
)
def test_a_run_that_fails_before_it_gets_anywhere_is_refused_and_not_drawn_for_ever(change: str) -> None:
    with pytest.raises(RecipeError, match="expected at most 20,000: more time between failures"):
        simulated(4096, change)


def test_what_storage_bears_is_counted_by_ranks_and_nodes() -> None:
    asked = demand(
        num_ranks=16,
        num_nodes=2,
        fetched_bytes_per_second_per_node=4 * BLOCK_BYTES,
        checkpoint_bytes=32e9,
        storage_gbps=8.0,
        keep=3,
        cache_bytes=40 * BLOCK_BYTES,
    )
    assert (asked.range_reads_per_second, asked.opens_per_second) == (8.0, 16.0)
    assert (asked.burst_seconds, asked.burst_bytes_per_second) == (2.0, 16e9)
    assert (asked.names_made, asked.names_listed, asked.files_read) == (34, 170, 16)
    assert asked.prefetched_seconds == 10.0
    by_name = {tier.name: (seconds_of_names(tier, asked), share_of_opens(tier, asked)) for tier in TIERS}
    assert by_name["object store"] == pytest.approx((86 / 3500, 16 / 5500))
    assert by_name["local NVMe"] == (None, None)


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["page", "json"])
def test_the_command_shows_goodput_and_storage(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(RECIPE), "--simulate", *more]) == 0
    told = capsys.readouterr().out
    if more:
        found = json.loads(told)
        assert found["num_ranks"] == 64 and {row["recovery"] for row in found["fleets"]} == {
            "restart",
            "in place",
        }
        assert [tier["name"] for tier in found["tiers"]] == [tier.name for tier in TIERS]
    else:
        assert (
            "Goodput, simulated" in told
            and "What all nodes ask of a shared store" in told
            and "mdtest" in told
        )
