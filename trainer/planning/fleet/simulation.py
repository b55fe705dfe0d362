"""`sluice plan --simulate`: a recipe's run over its fleet, without its processes: goodput, spares,
storage."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from lineage.recipe import RecipeError
from trainer.data.cache.folder import cache_folder
from trainer.options import TrainRecipe
from trainer.planning.fleet.reliability import (
    Reliability,
    SimulatedGoodput,
    best_spares,
    expected_failures,
    expected_goodput,
    fleet_case,
    nodes_in_repair,
    simulate,
)
from trainer.planning.fleet.storage import METADATA_SERVER, Demand, demand, seconds_of_names
from trainer.planning.gpus import machine_of
from trainer.planning.plan import TrainingPlan, mtbf_hours, plan_training
from trainer.planning.roofline import reading

_RUNS: Final = 200
_LEAST_DAYS: Final = 54.0
"""A shorter run is simulated as if it were this long: its goodput would be that of a few failures."""
_MOST_FAILURES: Final = 20_000
"""Of a run: the simulation goes from failure to failure, and takes about half a minute for so many."""
_SHORT_OF: Final = (0.0, 0.5, 0.75)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFleet:
    """One way to recover, with as many spares: the case, its closed form (no waiting for nodes), the
    simulated runs."""

    recovery: str
    spares: int
    case: Reliability
    expected: float
    found: SimulatedGoodput


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSimulation:
    """All that `--simulate` shows. `best_spares`: by way of recovery, those worth their price; `busy`: nodes
    in repair on average."""

    num_ranks: int
    num_nodes: int
    mtbf_seconds: float
    stall_seconds: float
    days: float
    busy: float
    best_spares: int
    fleets: tuple[SimulatedFleet, ...]
    storage: Demand


def simulate_fleet(recipe: TrainRecipe, *, seed: int = 0) -> FleetSimulation:
    """The recipe's run on the machines of [plan]; errors as of `plan_training`, and RecipeError where it
    fails too often to be simulated."""
    plan, table, machine = plan_training(recipe), recipe.plan, machine_of(recipe.plan)
    num_ranks = plan.layout.mesh.num_workers
    nodes = -(-num_ranks // machine.gpus_per_node)
    saved = plan.checkpoints
    stall = saved.num_bytes / (num_ranks * table.host_gbps * 1e9 / 8)
    rate = 24 / (mtbf_hours(table, nodes) * nodes)
    storage = _storage(recipe, plan, nodes)
    # A checkpoint is not done before its names are made, at the rate of one metadata server.
    write = max(saved.save_seconds, seconds_of_names(METADATA_SERVER, storage) or 0.0)

    def case(in_place: float | None) -> Reliability:
        return fleet_case(
            num_nodes=nodes,
            failures_per_node_day=rate,
            stall=stall,
            write=write,
            restart=table.restart_seconds,
            in_place=in_place,
            step=plan.throughput.step_seconds,
            repair=table.repair_hours * 3600,
        )

    ways = {"restart": case(None), "in place": case(table.in_place_seconds)}
    best = best_spares(ways["in place"], nodes)
    tried = sorted({int(best * share) for share in _SHORT_OF} | {best})
    counts = tried if table.spare_nodes is None else [table.spare_nodes]
    days = max(_LEAST_DAYS, plan.budget.ideal_days)
    for way in ways.values():
        failures = expected_failures(way, days * 86_400)
        if failures > _MOST_FAILURES:
            recovery = max(way.restart, way.in_place)
            raise RecipeError(
                f"--simulate: a failure every {way.mtbf:,.0f} s, a recovery of {recovery:,.0f} s and a checkpoint every"
                f" {way.interval:,.0f} s make about {failures:,.3g} failures in {days:,.0f} days; expected at most"
                f" {_MOST_FAILURES:,}: more time between failures (plan.mtbf_hours, plan.failures_per_node_day), fewer"
                " processes (train.workers), or shorter plan.restart_seconds and plan.in_place_seconds"
            )
    fleets = [
        SimulatedFleet(
            recovery=name,
            spares=spares,
            case=way,
            expected=expected_goodput(way),
            found=simulate(dataclasses.replace(way, spares=spares), days * 86_400, runs=_RUNS, seed=seed),
        )
        for name, way in ways.items()
        for spares in counts
    ]
    return FleetSimulation(
        num_ranks=num_ranks,
        num_nodes=nodes,
        mtbf_seconds=ways["restart"].mtbf,
        stall_seconds=stall,
        days=days,
        busy=nodes_in_repair(ways["restart"]),
        best_spares=best,
        fleets=tuple(fleets),
        storage=storage,
    )


def _storage(recipe: TrainRecipe, plan: TrainingPlan, nodes: int) -> Demand:
    speed = recipe.train.global_batch * recipe.train.seq_len / plan.throughput.step_seconds
    read = reading(plan.layout, speed, machine_of(recipe.plan), recipe.train.order.window_blocks)
    return demand(
        num_ranks=plan.layout.mesh.num_workers,
        num_nodes=nodes,
        fetched_bytes_per_second_per_node=read.fetched_bytes_per_second_per_node,
        checkpoint_bytes=plan.checkpoints.num_bytes,
        storage_gbps=recipe.plan.storage_gbps,
        keep=recipe.train.checkpoint.keep,
        cache_bytes=None if cache_folder(recipe) is None else recipe.train.cache.max_bytes,
    )
