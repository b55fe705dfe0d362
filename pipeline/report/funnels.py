"""The funnel of each source and of all: documents, bytes and tokens behind each step, and its time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lineage.index.output_index import Index
from lineage.store.rows import shard_source
from pipeline.report.data import Funnel, FunnelRow, StepSpeed
from pipeline.results.run_summary import RunSummary

ALL_SOURCES = "all sources"
_PLACE = "source, warc_file, warc_offset"
_NUM_SHARING = f"count(*) OVER (PARTITION BY {_PLACE})"
"""The documents that lie in one compressed member: each has the member's length, and a like share of it
counts."""
_HAS_SHARED_MEMBERS = (
    f"SELECT count(*) <= 1 << 18 OR count(*) > 1.25 * approx_count_distinct(hash({_PLACE})) FROM documents"
)
"""Whether to count who shares what: it takes 15 times as long as the sums and grows with the documents. In a
larger corpus members are taken to be shared where the places, which are estimated within a tenth, are far
fewer."""
Ask = Callable[[str], list[tuple[Any, ...]]]
"""The rows that answer a query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgedCounts:
    """What was purged of what was kept: (documents, tokens) by (source, that of its shard, shard); without a
    tokenizer there is no shard."""

    by_place: Mapping[tuple[str, str, int | None], tuple[int, int]]

    @classmethod
    def of(cls, ask: Ask) -> PurgedCounts:
        # A document may have been purged again, where a backup had brought it back.
        rows = ask(
            "SELECT source, shard_source, shard, count(*), sum(num_tokens)::BIGINT FROM (SELECT DISTINCT"
            " p.doc_id, d.source, coalesce(p.source, d.source) AS shard_source, p.shard,"
            " coalesce(p.num_tokens, 0) AS num_tokens FROM purged p JOIN documents d USING (doc_id) WHERE"
            " d.status = 'kept') GROUP BY 1, 2, 3"
        )
        return cls(
            by_place={(source, named, shard): (num, tokens) for source, named, shard, num, tokens in rows}
        )

    def of_source(self, source: str) -> tuple[int, int]:
        return _summed(counts for (name, _, _), counts in self.by_place.items() if name == source)

    def num_tokens_of_shard(self, source: str, shard: int) -> int:
        return _summed(counts for (_, *place), counts in self.by_place.items() if place == [source, shard])[1]

    def total(self) -> tuple[int, int]:
        return _summed(self.by_place.values())


def _summed(counts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    found = list(counts)
    return sum(num for num, _ in found), sum(tokens for _, tokens in found)


def funnels_of(ask: Ask, index: Index, purged: PurgedCounts) -> tuple[Funnel, ...]:
    """One for each source, after one for all where there are several."""
    length, documents = "warc_length", "documents"
    if ask(_HAS_SHARED_MEMBERS)[0][0]:
        length, documents = (
            "warc_length / num_sharing",
            f"(SELECT *, {_NUM_SHARING} AS num_sharing FROM documents)",
        )
    lost: dict[tuple[str, str], tuple[int, int]] = {
        (source, stage): (size or 0, chars or 0)
        for source, stage, size, chars in ask(
            # A row of Parquet has no length of its own, and takes one place.
            f"SELECT source, coalesce(stage, ''), round(sum({length}) FILTER (warc_length > 1))::BIGINT,"
            f" sum(num_chars)::BIGINT FROM {documents} GROUP BY 1, 2"
        )
    }
    steps: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for source, *step in ask(
        "SELECT source, stage, num_in, num_out, num_rejected FROM steps ORDER BY source, position"
    ):
        steps[source].append(tuple(step))
    parts: dict[str, list[str]] = defaultdict(list)
    for source, bucket in ask("SELECT DISTINCT source, bucket FROM documents WHERE bucket IS NOT NULL"):
        parts[source].append(shard_source(source, bucket))
    funnels = [
        _funnel_of(source, rows, lost, index, purged, parts=parts[source]) for source, rows in steps.items()
    ]
    return tuple(funnels if len(funnels) < 2 else [_joined(funnels), *funnels])


def _funnel_of(
    source: str,
    steps: Sequence[tuple[Any, ...]],
    lost: Mapping[tuple[str, str], tuple[int, int]],
    index: Index,
    purged: PurgedCounts,
    *,
    parts: Sequence[str],
) -> Funnel:
    size = bytes_in = sum(value[0] for key, value in lost.items() if key[0] == source)
    chars = sum(value[1] for key, value in lost.items() if key[0] == source)
    rows = []
    for stage, num_in, num_out, num_rejected in steps:
        gone = lost.get((source, stage), (0, 0))
        size, chars = size - gone[0], chars - gone[1]
        rows.append(
            FunnelRow(
                stage=stage,
                num_in=num_in,
                num_out=num_out,
                num_rejected=num_rejected,
                bytes_out=size,
                bytes_in=size + gone[0],
                chars_out=chars,
            )
        )
    shards = [shard for shard in index.shards if shard.source in (source, *parts)]
    num_purged, num_tokens_purged = purged.of_source(source)
    return Funnel(
        source=source,
        steps=tuple(rows),
        num_in=rows[0].num_in,
        num_out=rows[-1].num_out,
        bytes_in=bytes_in,
        num_shards=len(shards),
        num_tokens=sum(shard.num_tokens for shard in shards),
        num_purged=num_purged,
        num_tokens_purged=num_tokens_purged,
    )


def _joined(funnels: Sequence[Funnel]) -> Funnel:
    """The funnel of all sources together. A line is the sum over the sources that have the stage, so the
    output of one line may differ from the input of the next."""
    by_stage = [{step.stage: step for step in funnel.steps} for funnel in funnels]
    rows = []
    for stage in _merged([[step.stage for step in funnel.steps] for funnel in funnels]):
        met = [steps[stage] for steps in by_stage if stage in steps]
        rows.append(
            FunnelRow(
                stage=stage,
                num_in=sum(s.num_in for s in met),
                num_out=sum(s.num_out for s in met),
                num_rejected=sum(s.num_rejected for s in met),
                bytes_in=sum(s.bytes_in for s in met),
                bytes_out=sum(s.bytes_out for s in met),
                chars_out=sum(s.chars_out for s in met),
            )
        )
    return Funnel(
        source=ALL_SOURCES,
        steps=tuple(rows),
        num_in=sum(f.num_in for f in funnels),
        num_out=sum(f.num_out for f in funnels),
        bytes_in=sum(f.bytes_in for f in funnels),
        num_tokens=sum(f.num_tokens for f in funnels),
        num_shards=sum(f.num_shards for f in funnels),
        num_purged=sum(f.num_purged for f in funnels),
        num_tokens_purged=sum(f.num_tokens_purged for f in funnels),
    )


def _merged(chains: Sequence[Sequence[str]]) -> list[str]:
    """The stages of all sources, each behind those that a source meets before it. Where two sources meet two
    stages in turned order, it is that of the first."""
    merged: list[str] = []
    while heads := [chain[0] for chain in chains if chain]:
        behind = {stage for chain in chains for stage in chain[1:]}
        merged.append(next((stage for stage in heads if stage not in behind), heads[0]))
        chains = [[stage for stage in chain if stage != merged[-1]] for chain in chains]
    return merged


def speeds_of(funnel: Funnel, summary: RunSummary) -> tuple[StepSpeed, ...]:
    """What each step took of the time of all units of work, and what else they did. `funnel` is that of all
    sources."""
    seconds: dict[str, float] = defaultdict(float)
    for of_source in summary.seconds.values():
        for name, value in of_source.items():
            seconds[name] += value
    timed = [step for step in funnel.steps if step.stage in seconds]
    if not timed:
        return ()
    entries = [(step.stage, step.num_in, step.bytes_in, seconds[step.stage]) for step in timed]
    if "signature" in seconds:
        compared = next(step for step in funnel.steps if step.stage == "identity")
        entries.append(("signatures", compared.num_in, compared.bytes_in, seconds["signature"]))
    rest = seconds["all"] - sum(entry[-1] for entry in entries)
    entries.append(("reading and writing", funnel.num_in, funnel.bytes_in, max(0.0, rest)))
    return tuple(
        StepSpeed(
            stage=stage, num=num, num_bytes=size, seconds=took, share=took / max(seconds["all"], took, 1e-9)
        )
        for stage, num, size, took in entries
    )
