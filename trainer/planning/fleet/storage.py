"""What a run at size asks of its storage: requests and bytes a second of reading, beside a checkpoint's
burst, by tier.

Counted from what the code does: `trainer/data` reads, `trainer/checkpoint` writes. Rates of tiers are
published ones where there are any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lineage.index.blocks import BLOCK_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A kind of storage. Requests a second that it bears in all: to make or change a name, and to open or ask
    for one (None: nothing published holds for all of its kind). `shared`: one store for all nodes."""

    name: str
    creates_per_second: float | None
    opens_per_second: float | None
    shared: bool
    source: str


METADATA_SERVER: Final = Tier(
    name="Lustre or GPFS",
    creates_per_second=27_000,
    opens_per_second=500_000,
    shared=True,
    source="Dell HPC Lustre Storage with Omni-Path, figure 13: mdtest on one metadata server, create and"
    " stat",
)
TIERS: Final = (
    Tier(
        name="object store",
        creates_per_second=3_500,
        opens_per_second=5_500,
        shared=True,
        source="Amazon S3 user guide, optimizing performance: PUT, COPY, POST, DELETE; GET, HEAD; of one"
        " prefix",
    ),
    METADATA_SERVER,
    Tier(
        name="VAST or Weka",
        creates_per_second=None,
        opens_per_second=None,
        shared=True,
        source="metadata lie on all of its servers: by their number",
    ),
    Tier(
        name="local NVMe",
        creates_per_second=None,
        opens_per_second=None,
        shared=False,
        source="each node its own: what lies there is gone with the node",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What all nodes together ask of a shared store. Reading, a second: range reads (of a block of 8 MiB
    each), opens (where shards are read in place: a shard again for each of its blocks, as good as never the
    one before) and bytes. A checkpoint, in all: names made, names changed or removed, files that one process
    reads one by one to vouch for it, names listed by it, bytes, seconds at the links' rate.
    `prefetched_seconds`: how long the blocks in flight and those that the cache holds ahead feed the node's
    ranks while the store serves a checkpoint alone; None: read in place."""

    range_reads_per_second: float
    opens_per_second: float
    read_bytes_per_second: float
    names_made: int
    names_changed: int
    names_listed: int
    files_read: int
    checkpoint_bytes: float
    burst_seconds: float
    burst_bytes_per_second: float
    prefetched_seconds: float | None

    @property
    def reading_share_of_burst(self) -> float:
        """Bytes that reading asks for while a checkpoint is written, over those of the checkpoint."""
        return self.read_bytes_per_second * self.burst_seconds / self.checkpoint_bytes


def demand(
    *,
    num_ranks: int,
    num_nodes: int,
    fetched_bytes_per_second_per_node: float,
    checkpoint_bytes: float,
    storage_gbps: float,
    keep: int,
    cache_bytes: int | None,
) -> Demand:
    """Of `num_ranks` ranks on `num_nodes` nodes, whose links to the store carry `storage_gbps` gigabits a
    second and rank; `keep` checkpoints stay; `cache_bytes`: of a node's cache, None where shards are read in
    place."""
    blocks = fetched_bytes_per_second_per_node * num_nodes / BLOCK_BYTES
    burst = storage_gbps * 1e9 / 8 * num_ranks
    return Demand(
        # A block and, of a shard that is met for the first time, its digests: with as many shards as there
        # are at this size the next block is as good as always of another.
        range_reads_per_second=blocks,
        opens_per_second=2 * blocks,
        read_bytes_per_second=fetched_bytes_per_second_per_node * num_nodes,
        # Of each rank its pieces, and their sums under a temporary name; metadata and complete.json.
        names_made=2 * num_ranks + 2,
        # The sums' names; and of the checkpoint that is superseded all files.
        names_changed=num_ranks + 2 + 2 * num_ranks + 2,
        names_listed=(keep + 2) * (2 * num_ranks + 2),
        files_read=num_ranks,
        checkpoint_bytes=checkpoint_bytes,
        burst_seconds=checkpoint_bytes / burst,
        burst_bytes_per_second=burst,
        prefetched_seconds=None if cache_bytes is None else cache_bytes / fetched_bytes_per_second_per_node,
    )


def seconds_of_names(tier: Tier, asked: Demand) -> float | None:
    """How long a tier takes for a checkpoint's names; None where nothing is published, or each node has its
    own."""
    if tier.creates_per_second is None:
        return None
    return (asked.names_made + asked.names_changed) / tier.creates_per_second


def share_of_opens(tier: Tier, asked: Demand) -> float | None:
    """What share of the opens that a tier bears reading takes."""
    return None if tier.opens_per_second is None else asked.opens_per_second / tier.opens_per_second
