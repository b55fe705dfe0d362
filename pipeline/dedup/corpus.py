"""Deduplication of a whole corpus: identity, then one graph of equal URLs, equal texts and resembling texts.

    keys ─identity─▶ first documents ─bands─▶ shared buckets ─▶ candidate pairs ─signatures─▶ likely pairs
                          │                                                     near edges ◀─shingles─┘
                          └─ equal URLs and texts ─▶ stars ─┴─▶ components ─▶ decisions ─▶ verdicts by group

Each arrow is a phase: an exchange whose partitions publish a file each and whose marker, published last, says
that it need not run again. The verdicts depend on the keys, texts and options alone, not on engine,
partitions or order."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lineage.ids import add_digests
from lineage.storage.folder import Folder
from lineage.store.tables import VERDICTS
from pipeline.dedup import graph, near, verdicts
from pipeline.dedup.exchange import Engine, InProcess, Rows
from pipeline.dedup.inputs import DedupUnit, EarlierFile, KeysFile, earlier_file, publish_slices, unit_file
from pipeline.dedup.partitions import PartitionPhases, PublishedPartitions, partition_name, write_partition
from pipeline.dedup.rows import Context, FileSlice, PartitionResult
from pipeline.results.dedup_result import DedupCounts, DedupResult, GroupVerdicts
from stages.dedup.options import DedupTable
from stages.dedup.shingles import mix

IN_PROCESS_ROWS: Final = 5_000_000
"""Documents up to which one process is faster than tasks; edges up to which it finds their components."""
_BYTES_PER_ROW: Final = 1_000
"""What one process holds of a document at most: .96 GB were measured at a million of them, 0.30 GB at
256,000."""
_MEMORY_SHARE: Final = 0.25
"""Of a machine's memory that comparing in one process may take."""
ROWS_PER_PARTITION: Final = 250_000
FEW_ROWS_PER_PARTITION: Final = 1 << 14
"""The same up to IN_PROCESS_ROWS documents: the process that compares them writes the run's other files too."""
SHINGLES_WEIGHT: Final = 8
"""The rows that a text's set of shingles counts as where texts are compared: it takes some 5 kB for a web page, a
signature 512 bytes. A partition holds those of all its texts, several times over."""
_MAX_PARTITIONS: Final = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupJob:
    """What is compared with what.

    `work` holds the units' KEYS files and takes what this stage publishes, below `dedup/`; `out` holds the
    parts of clean texts. `earlier` are the files of the outputs named in `against`, in that order. `num_rows`
    is how many documents all these files hold: it chooses the engine and how finely the work is cut, never
    the result."""

    table: DedupTable
    work: Folder
    out: Folder
    units: tuple[DedupUnit, ...]
    num_rows: int
    group_files: int = 1000
    earlier: tuple[EarlierFile, ...] = ()
    in_process_rows: int = IN_PROCESS_ROWS
    rows_per_partition: int | None = None

    @property
    def num_partitions(self) -> int:
        """In how many pieces the work is cut."""
        return self.partitions_of(self.num_rows)

    def partitions_of(self, num_rows: int) -> int:
        """In how many pieces a phase over this many documents is cut, or one over as many signatures of the ends of
        pairs."""
        few = self.num_rows <= self.in_process_rows
        rows = self.rows_per_partition or (FEW_ROWS_PER_PARTITION if few else ROWS_PER_PARTITION)
        return min(_MAX_PARTITIONS, max(1, math.ceil(num_rows / rows)))


def runs_in_one_process(job: DedupJob, num_nodes: int, memory: int) -> bool:
    """What `dedup.engine = "auto"` means: one process compares what it holds easily, on a machine of its own
    with this many bytes of memory. The driver of a cluster of several nodes may have no processor to
    itself."""
    fits = job.num_rows <= min(job.in_process_rows, _MEMORY_SHARE * memory / _BYTES_PER_ROW)
    return fits and num_nodes == 1


def deduplicate(
    job: DedupJob,
    engine: Engine | None = None,
    notify: Callable[[str], None] = lambda name: None,
) -> DedupResult:
    """The verdicts on every document of `job.units`, found by `engine` (this process). `notify` gets the name
    of each phase that begins.

    Called again after it was killed, it repeats no finished phase."""
    if not job.units:
        return DedupResult(verdicts=(), counts=DedupCounts())
    flow = _Flow(job, engine or InProcess(), notify)
    repeated = flow.identity()
    edges = flow.near_edges() if job.table.near else _NOTHING
    labels = flow.components(edges)
    flow.verdicts(repeated, labels, edges)
    return DedupResult(verdicts=flow.groups, counts=DedupCounts.total(flow.phases.counts))


_Reduce = Callable[[Context, int, pa.Table], PartitionResult]
"""A reducer of the rows of a partition, by its number."""
_NOTHING: Final = PublishedPartitions(phase="", partitions=(), counts=DedupCounts())


class _Flow:
    """The phases of one job in their order."""

    def __init__(self, job: DedupJob, engine: Engine, notify: Callable[[str], None]) -> None:
        self.job = job
        self.folder = job.work.folder("dedup")
        self.phases = PartitionPhases(self.folder, engine, notify)
        starts = _group_starts(job)
        self.groups = tuple(
            GroupVerdicts(
                source_index=source, group=group, name=f"dedup/{partition_name('verdicts', number)}"
            )
            for number, (source, group) in enumerate(starts)
        )
        files = _files(job)
        self.context = Context(
            table=job.table,
            folder=self.folder,
            num_partitions=job.num_partitions,
            slice_starts=publish_slices(self.folder, files, min(job.num_partitions, len(files))),
            group_starts=tuple(starts.values()),
        )
        self.slices: list[FileSlice] = []

    def identity(self) -> PublishedPartitions:
        """Find documents whose doc_id came before; what follows does without them."""
        numbers = range(len(self.context.slice_starts))
        repeated = self.phase("identity", numbers, graph.identity_rows, graph.repeated_ids)
        digest = add_digests([repeated.counts.digest])
        # A key that is a function of every document's content: nobody can foresee it, and the result is the
        # same under any key but for accidental collisions of 64 bits.
        key = int(mix(np.array([digest & (2**64 - 1)], np.uint64))[0])
        self.context = dataclasses.replace(self.context, shingle_key=key)
        by_slice = self.phase(
            "identity-by-slice", repeated.names, graph.repeated_rows, graph.repeated_nodes, len(numbers)
        )
        names = dict(zip(by_slice.partitions, by_slice.names, strict=True))
        self.slices = [FileSlice(number, names.get(number)) for number in numbers]
        return repeated

    def near_edges(self) -> PublishedPartitions:
        """Pairs of texts whose Jaccard reaches the threshold."""
        num_slices = len(self.slices)
        buckets = self.phase("buckets", self.slices, near.bucket_rows, near.shared_buckets)
        by_slice = self.phase(
            "buckets-by-slice", buckets.names, near.shared_bucket_rows, near.buckets_of_slice, num_slices
        )
        shared = [
            near.SharedSlice(self.slices[number], name)
            for number, name in zip(by_slice.partitions, by_slice.names, strict=True)
        ]
        found = self.phase("candidates", shared, near.band_rows, near.candidates)
        # Signatures first, which are short: the estimate rejects most pairs before any text is read for its shingles.
        likely = self.compare(
            found,
            found.counts.num_open,
            ("signatures", near.signatures_of),
            ("estimated_pairs", near.estimated),
        )
        num_likely = likely.counts.compared_pairs * SHINGLES_WEIGHT
        return self.compare(likely, num_likely, ("shingles", near.shingles_of), ("near", near.verified))

    def compare(
        self,
        pairs: PublishedPartitions,
        num_pairs: int,
        fetching: tuple[str, _Reduce],
        comparing: tuple[str, _Reduce],
    ) -> PublishedPartitions:
        """Two phases, each with its name: the values of both ends of `pairs` are fetched, and compared where the pairs
        meet. Their partitions are as many as about `num_pairs` pairs of signatures need."""
        # Dense near-duplicates have more pairs than documents, and a document is in each partition that compares it.
        by_pairs = dataclasses.replace(self.context, num_partitions=self.job.partitions_of(2 * num_pairs))
        (name, fetch), (last, reduce) = fetching, comparing
        values = self.phase(
            name, pairs.names, near.endpoint_rows, self.bound(fetch), len(self.slices), context=by_pairs
        )
        tasks = [near.Compared(name, False) for name in pairs.names]
        tasks += [near.Compared(name, True) for name in values.names]
        return self.phase(last, tasks, near.pair_rows, self.bound(reduce), context=by_pairs)

    def components(self, edges: PublishedPartitions) -> PublishedPartitions:
        """The component of every document that shares its URL, its text or a near edge with another."""
        equal = self.phase("equal_edges", self.slices, graph.equal_rows, graph.stars)
        names = equal.names + edges.names
        if equal.counts.num_edges + edges.counts.verified_pairs <= self.job.in_process_rows:
            return self.phase("labels", names, graph.edge_rows, graph.labels, 1)
        digest, rounds = None, 0
        while True:
            large = self.phase(f"large-star-{rounds}", names, graph.both_ends_rows, graph.large_stars)
            small = self.phase(f"small-star-{rounds}", large.names, graph.greater_end_rows, graph.small_stars)
            # Equal edges give equal digests, so the rounds end; in two rounds on different edges 64 bits hardly agree.
            now = small.counts.digest % 2**64
            if now == digest:
                return self.phase("labels", small.names, graph.star_centre_rows, graph.star_labels)
            digest, names, rounds = now, small.names, rounds + 1

    def verdicts(
        self, repeated: PublishedPartitions, labels: PublishedPartitions, edges: PublishedPartitions
    ) -> None:
        """Decide on every component and publish the verdicts of each group."""
        tasks = [_Task(verdicts.label_rows, name) for name in labels.names]
        tasks += [_Task(verdicts.near_edge_rows, name) for name in edges.names]
        members = self.phase("members", tasks, _run_task, self.bound(verdicts.members), len(self.slices))
        decided = self.phase(
            "decisions", members.names, verdicts.component_rows, self.bound(verdicts.decisions)
        )
        tasks = [_Task(verdicts.decision_rows, name) for name in decided.names]
        tasks += [_Task(verdicts.repeated_verdict_rows, name) for name in repeated.names]
        written = self.phase("verdicts", tasks, _run_task, verdicts.verdicts, len(self.groups))
        for number in range(len(self.groups)):
            name = partition_name("verdicts", number)
            # Groups without a verdict get an empty file, so that later phases need not ask which group has one.
            if number not in written.partitions and not self.folder.exists(name):
                write_partition(self.folder, name, VERDICTS.empty_table())
        if self.job.table.near and decided.counts.dropped.get("dedup.url", 0):
            self.texts_of_pages(decided)

    def texts_of_pages(self, decided: PublishedPartitions) -> None:
        """Count the documents that were dropped for their URL and whose text is not that of the kept one."""
        pairs = self.phase("url_pairs", decided.names, verdicts.url_pair_rows, verdicts.url_pairs)
        num_pairs = decided.counts.dropped["dedup.url"]
        self.compare(pairs, num_pairs, ("url_signatures", near.signatures_of), ("unlike_pages", near.unlike))

    def bound(self, reduce: _Reduce) -> Callable[[int, pa.Table], PartitionResult]:
        """A reducer that takes the context, with it."""
        return functools.partial(reduce, self.context)

    def phase(
        self,
        name: str,
        tasks: Iterable[Any],
        read: Callable[[Context, Any], Rows],
        reduce: Callable[[int, pa.Table], PartitionResult],
        num_partitions: int | None = None,
        *,
        context: Context | None = None,
    ) -> PublishedPartitions:
        """`PartitionPhases.run` of a phase whose reader takes the context, or another one."""
        given = context or self.context
        return self.phases.run(
            name, tasks, functools.partial(read, given), reduce, num_partitions or given.num_partitions
        )


@dataclass(frozen=True, slots=True)
class _Task:
    """A file to read, and how: where rows of several kinds meet."""

    read: Callable[[Context, str], pa.Table]
    name: str


def _run_task(context: Context, task: _Task) -> pa.Table:
    return task.read(context, task.name)


def _files(job: DedupJob) -> list[KeysFile]:
    """Every file of keys, in order of ordinal."""
    outs = list(dict.fromkeys(file.out for file in job.earlier))
    earlier = sorted(job.earlier, key=lambda file: (outs.index(file.out), file.dedup))
    units = [unit_file(unit, job.work, job.out) for unit in _ordered(job.units)]
    return units + [earlier_file(file, number) for number, file in enumerate(earlier)]


def _ordered(units: Sequence[DedupUnit]) -> list[DedupUnit]:
    return sorted(units, key=lambda unit: (unit.source_index, unit.file_index))


def _group_starts(job: DedupJob) -> dict[tuple[int, int], int]:
    """The least ordinal of each (source_index, group) that has units, in that order."""
    starts: dict[tuple[int, int], int] = {}
    for unit in _ordered(job.units):
        group = (unit.source_index, unit.file_index // job.group_files)
        starts.setdefault(group, unit_file(unit, job.work, job.out).ordinal)
    return starts
