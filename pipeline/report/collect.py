"""What the report shows, gathered from a finished output: lineage by SQL, excerpts.parquet, index.json, run.json."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from lineage.index import Index
from lineage.sql import query
from lineage.storage import Folder

_NUM_CLUSTERS = 6
_BINS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One line of the funnel. Bytes are of the records as stored in the crawl files."""

    stage: str
    num_in: int
    num_out: int
    num_rejected: int
    bytes_out: int
    chars_out: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A scrubbed piece of one document."""

    doc_id: str
    url: str
    value: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRow:
    """A rule, how many documents it turned down, and a few of them."""

    source: str
    stage: str
    rule: str
    num: int
    share: float
    threshold: str
    excerpts: tuple[Excerpt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar of a histogram or ranking; `share` of the longest, 0 to 1."""

    label: str
    num: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster of duplicates and some of its members side by side."""

    cluster_id: str
    size: int
    kept: int
    members: tuple[Excerpt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRow:
    """A line of the shard table."""

    source: str
    shard: int
    num_tokens: int
    num_documents: int
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """Everything on the page."""

    name: str
    totals: tuple[tuple[str, str], ...]
    funnels: tuple[tuple[str, tuple[StepRow, ...]], ...]
    rules: tuple[RuleRow, ...]
    languages: tuple[Bar, ...]
    lengths: tuple[Bar, ...]
    scores: tuple[Bar, ...]
    clusters: tuple[Cluster, ...]
    edits: tuple[Bar, ...]
    shards: tuple[ShardRow, ...]
    unreadable: tuple[tuple[str, int, int, str], ...]
    timeouts: tuple[str, ...]
    purges: tuple[tuple[str, str, str, str, int, int], ...]
    throughput: tuple[tuple[str, float, str], ...]
    capped_buckets: int
    recipe: str


def collect(out: Folder, index: Index) -> ReportData:
    """Gather the report's data from an output whose tables are committed."""
    run = json.loads(out.read("run.json"))
    ask = _Asker(out)
    excerpts = _excerpts(out, ask)
    return ReportData(
        name=run["name"],
        totals=_totals(ask, index),
        funnels=_funnels(ask, run),
        rules=_rules(ask, excerpts),
        languages=_bars(
            ask("select coalesce(language, 'none'), count(*) n from documents group by 1 order by n desc, 1 limit 15")
        ),
        lengths=_lengths(ask),
        scores=_scores(ask),
        clusters=_clusters(ask, excerpts),
        edits=_bars(ask("select kind, sum(count)::bigint n from edits group by 1 order by n desc, 1")),
        shards=tuple(
            ShardRow(
                source=s.source, shard=s.shard, num_tokens=s.num_tokens, num_documents=s.num_documents, hash=s.hash
            )
            for s in index.shards
        ),
        unreadable=tuple(
            ask(
                'select file, offset_, length, error from (select file, "offset" offset_, length, error from unreadable order by 1, 2 limit 50)'
            )
        ),
        timeouts=tuple(
            row[0] for row in ask("select doc_id from documents where rule = 'parse.timeout' order by 1 limit 50")
        ),
        purges=tuple(ask('select purge_id, "at", "by", reason, num_documents, num_tokens from purges order by "at"')),
        throughput=_throughput(run),
        capped_buckets=int(run.get("dedup", {}).get("capped_buckets", 0)),
        recipe=out.read("recipe.toml").decode(),
    )


class _Asker:
    """Rows of a query over one output."""

    def __init__(self, out: Folder) -> None:
        self._out = out

    def __call__(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in query(self._out, sql).rows]


def _totals(ask: _Asker, index: Index) -> tuple[tuple[str, str], ...]:
    records, size, files = ask("select coalesce(sum(num_records), 0), coalesce(sum(bytes), 0), count(*) from inputs")[0]
    counts = dict(ask("select status, count(*) from documents group by 1"))
    return (
        ("input files", f"{files:,}"),
        ("records read", f"{records:,}"),
        ("read", human_bytes(size)),
        ("documents", f"{sum(counts.values()):,}"),
        ("rejected", f"{counts.get('rejected', 0):,}"),
        ("duplicates", f"{counts.get('duplicate', 0):,}"),
        ("kept", f"{counts.get('kept', 0):,}"),
        ("tokens", f"{sum(shard.num_tokens for shard in index.shards):,}"),
    )


def _funnels(ask: _Asker, run: dict[str, Any]) -> tuple[tuple[str, tuple[StepRow, ...]], ...]:
    lost = {
        (source, stage): (size, chars)
        for source, stage, size, chars in ask(
            "select source, coalesce(stage, ''), sum(warc_length)::bigint, sum(num_chars)::bigint from documents group by 1, 2"
        )
    }
    steps = ask("select source, stage, num_in, num_out, num_rejected from steps order by source, position")
    funnels = []
    for source in dict.fromkeys(row[0] for row in steps):
        size = sum(value[0] or 0 for key, value in lost.items() if key[0] == source)
        chars = sum(value[1] or 0 for key, value in lost.items() if key[0] == source)
        rows = []
        for _, stage, num_in, num_out, num_rejected in (row for row in steps if row[0] == source):
            gone = lost.get((source, stage), (0, 0))
            size, chars = size - (gone[0] or 0), chars - (gone[1] or 0)
            seconds = run.get("seconds", {}).get(source, {}).get(stage, 0.0)
            rows.append(StepRow(stage=stage, num_in=num_in, num_out=num_out, num_rejected=num_rejected,
                                bytes_out=size, chars_out=chars, seconds=seconds))  # fmt: skip
        funnels.append((source, tuple(rows)))
    return tuple(funnels)


def _excerpts(out: Folder, ask: _Asker) -> dict[tuple[str, str], list[Excerpt]]:
    table = pq.read_table(io.BytesIO(out.read("excerpts.parquet"))).to_pylist()
    ids = sorted({row["doc_id"].hex() for row in table})
    known: dict[str, tuple[Any, ...]] = {}
    for start in range(0, len(ids), 500):
        listed = ", ".join(f"'{doc_id}'" for doc_id in ids[start : start + 500])
        for row in ask(f"select doc_id, url, value from documents where doc_id in ({listed})"):
            known[row[0]] = row
    found: dict[tuple[str, str], list[Excerpt]] = {}
    for row in table:
        doc_id = row["doc_id"].hex()
        _, url, value = known.get(doc_id, (doc_id, None, None))
        excerpt = Excerpt(doc_id=doc_id, url=url or "", value=human_value(value), text=row["excerpt"])
        found.setdefault((row["stage"], row["rule"]), []).append(excerpt)
    return found


def _rules(ask: _Asker, excerpts: dict[tuple[str, str], list[Excerpt]]) -> tuple[RuleRow, ...]:
    documents = dict(ask("select source, count(*) from documents group by 1"))
    thresholds = {(row[0], row[1]): row[2] for row in ask(
        "select stage, rule, min(threshold) from documents where rule is not null group by 1, 2")}  # fmt: skip
    rows = []
    for source, stage, rule, num in ask("select source, stage, rule, num from step_rules order by num desc, 1, 2, 3"):
        rows.append(RuleRow(
            source=source, stage=stage, rule=rule, num=num, share=num / max(1, documents.get(source, 0)),
            threshold=human_value(thresholds.get((stage, rule))), excerpts=tuple(excerpts.get((stage, rule), ())[:4]),
        ))  # fmt: skip
    return tuple(rows)


def _lengths(ask: _Asker) -> tuple[Bar, ...]:
    rows = ask(
        "select floor(log2(num_chars))::int b, count(*) from documents where status = 'kept' and num_chars > 0"
        " group by 1 order by 1"
    )
    return _bars([(f"{2**bin_:,}–{2 ** (bin_ + 1) - 1:,}", num) for bin_, num in rows])


def _scores(ask: _Asker) -> tuple[Bar, ...]:
    rows = ask(
        f"select least(floor(language_score * {_BINS})::int, {_BINS - 1}) b, count(*) from documents"
        " where language_score is not null group by 1 order by 1"
    )
    return _bars([(f"{bin_ / _BINS:.2f}–{(bin_ + 1) / _BINS:.2f}", num) for bin_, num in rows])


def _bars(rows: Sequence[tuple[Any, ...]]) -> tuple[Bar, ...]:
    most = max((row[1] for row in rows), default=1)
    return tuple(Bar(label=str(label), num=int(num), share=num / most) for label, num in rows)


def _clusters(ask: _Asker, excerpts: dict[tuple[str, str], list[Excerpt]]) -> tuple[Cluster, ...]:
    texts = {excerpt.doc_id: excerpt for listed in excerpts.values() for excerpt in listed}
    clusters = []
    for cluster_id, size, kept in ask(
        "select cluster_id, count(*) n, count(*) filter (where status = 'kept') from documents"
        f" where cluster_id is not null group by 1 order by n desc, 1 limit {_NUM_CLUSTERS}"
    ):
        members = ask(
            "select doc_id, status, similarity, stage from documents"
            f" where cluster_id = '{cluster_id}' order by status desc, doc_id limit 40"
        )
        shown = []
        for doc_id, status, similarity, stage in members:
            if doc_id in texts:
                note = status if similarity is None else f"{stage}, Jaccard {similarity:.3f}"
                shown.append(Excerpt(doc_id=doc_id, url=texts[doc_id].url, value=note, text=texts[doc_id].text))
        clusters.append(Cluster(cluster_id=cluster_id, size=size, kept=kept, members=tuple(shown[:3])))
    return tuple(clusters)


def _throughput(run: dict[str, Any]) -> tuple[tuple[str, float, str], ...]:
    return tuple((phase["name"], phase["seconds"], phase["note"]) for phase in run.get("phases", []))


def human_bytes(size: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    raise AssertionError


def human_value(value: float | None) -> str:
    """A measured value for people; empty where a rule measures none."""
    if value is None or math.isnan(value):
        return ""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"
