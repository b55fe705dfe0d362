"""What `sluice plan --simulate` found, as one JSON object and as a page."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pipeline.cli.printing import console, titled_table

if TYPE_CHECKING:
    from trainer.planning.fleet.simulation import FleetSimulation


def as_json(found: FleetSimulation) -> dict[str, object]:
    """The figures as one object: seconds, and shares of 1."""
    from trainer.planning.fleet.storage import TIERS, seconds_of_names, share_of_opens

    plain = dataclasses.asdict(found)
    plain["storage"]["reading_share_of_burst"] = found.storage.reading_share_of_burst
    plain["tiers"] = [
        {
            **dataclasses.asdict(tier),
            "seconds_of_names": seconds_of_names(tier, found.storage),
            "share_of_opens": share_of_opens(tier, found.storage),
        }
        for tier in TIERS
    ]
    return plain


def show(found: FleetSimulation) -> None:
    """The page."""
    out = console()
    out.print(
        f"{found.num_ranks:,} ranks on {found.num_nodes:,} nodes fail every {found.mtbf_seconds / 3600:,.2f}"
        f" h; a save stops the loop for {found.stall_seconds:,.2f} s; {found.busy:,.1f} nodes are in repair"
        f" on average; {found.best_spares:,} spares are worth their price. {found.days:,.0f} days each.\n",
        markup=False,
    )
    out.print(_goodput(found))
    out.print(_storage(found))
    out.print(_tiers(found))


def _goodput(found: FleetSimulation) -> Any:
    table = titled_table(
        "Goodput, simulated",
        "recovery",
        "spare nodes",
        "saves every, s",
        "goodput",
        "5% to 95% of runs",
        "waiting for nodes",
        "closed form, always a spare",
    )
    for fleet in found.fleets:
        seen = fleet.found
        table.add_row(
            fleet.recovery,
            f"{fleet.spares:,}",
            f"{fleet.case.interval:,.0f}",
            f"{seen.mean:.2%}",
            f"{seen.low:.2%} to {seen.high:.2%}",
            f"{seen.waiting:.2%}",
            f"{fleet.expected:.2%}",
        )
    return table


def _storage(found: FleetSimulation) -> Any:
    asked = found.storage
    table = titled_table("What all nodes ask of a shared store")
    table.add_row("range reads a second, of 8 MiB", f"{asked.range_reads_per_second:,.2f}")
    table.add_row("opens a second, where shards are read in place", f"{asked.opens_per_second:,.2f}")
    table.add_row("read, MB/s", f"{asked.read_bytes_per_second / 1e6:,.2f}")
    table.add_row("a checkpoint, GB", f"{asked.checkpoint_bytes / 1e9:,.1f}")
    table.add_row(
        "its burst, GB/s for s", f"{asked.burst_bytes_per_second / 1e9:,.1f} for {asked.burst_seconds:,.1f}"
    )
    table.add_row("names made; changed or removed", f"{asked.names_made:,}; {asked.names_changed:,}")
    table.add_row("names listed, files read by rank 0", f"{asked.names_listed:,}, {asked.files_read:,}")
    table.add_row("reading in a burst's time, of the burst", f"{asked.reading_share_of_burst:.4%}")
    ahead = asked.prefetched_seconds
    table.add_row(
        "a full cache feeds a node for, h", "read in place" if ahead is None else f"{ahead / 3600:,.1f}"
    )
    return table


def _tiers(found: FleetSimulation) -> Any:
    from trainer.planning.fleet.storage import TIERS, seconds_of_names, share_of_opens

    table = titled_table("By tier", "tier", "a checkpoint's names, s", "opens, of what it bears", "source")
    for tier in TIERS:
        names, opens = seconds_of_names(tier, found.storage), share_of_opens(tier, found.storage)
        table.add_row(
            tier.name,
            "–" if names is None else f"{names:,.1f}",
            "–" if opens is None else f"{opens:.3%}",
            tier.source,
        )
    return table
