"""The corpus as a whole: its funnel as a flow, its rules, purges and training runs, what it is made of. Each
figure leads to the documents behind it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.compute as pc

from lineage.index.output_index import Index
from lineage.storage.folder import Folder
from lineage.store.checked import LogSums
from lineage.store.delta import log_sums, read_purges, read_table
from lineage.store.queries.query import answers
from lineage.store.queries.views import text_literal
from lineage.verify.rows import rows_of

WIDTH: Final = 1000
_HEIGHT: Final = 90
_REJECTED: Final = 0.6
"""Of a stage's width: the band of a stage that rejects every document."""
_LEAST: Final = 0.8
"""A hairline, in units of the drawing."""
_MOST_GROUPS: Final = 15
_SCORE_BARS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A stage of a source in a flow: what came in, was rejected and let out, where it lies (in units of the
    drawing), and the SELECTs of the documents behind both. `height_out` and `width_rejected` are proportional to
    the documents; a hairline stands for few."""

    stage: str
    num_in: int
    num_out: int
    num_rejected: int
    x: float
    width: float
    height_out: float
    width_rejected: float
    rejected_sql: str
    out_sql: str


class _StageCounts(NamedTuple):
    """A row of `steps`, as far as it is shown."""

    source: str
    position: int
    stage: str
    num_in: int
    num_out: int
    num_rejected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A source's way through its stages."""

    source: str
    num_in: int
    bands: tuple[Band, ...]


def read_front(out: Folder, index: Index, version: int | None = None) -> dict[str, object]:
    """The funnel, the rules, the purges and the training runs, as of a version of the corpus or now: of small
    tables alone, at any size of the corpus."""
    sums = log_sums(out)
    purges = _purges(out, version, sums)
    rules: Counter[str] = Counter()
    for row in read_table(out, "step_rules", sums=sums).to_pylist():
        rules[row["rule"]] += row["num"]
    runs = {row["run"]: row["output"] for row in read_table(out, "training_runs", sums=sums).to_pylist()}
    return {
        "num_tokens": index.num_tokens - _num_tokens_of(purges, read_table(out, "purged", sums=sums)),
        "version": index.version if version is None else version,
        "flows": flows(read_table(out, "steps", sums=sums)),
        "rules": [
            {"rule": rule, "num": num, "sql": listing(f"rule = {text_literal(rule)}")}
            for rule, num in sorted(rules.items(), key=lambda pair: (-pair[1], pair[0]))
        ],
        "purges": purges.to_pylist(),
        "runs": sorted(runs.items()),
    }


def num_purged_tokens(out: Folder, version: int | None = None) -> int:
    """The tokens that purges have made end-of-text, as of a version of the corpus or now."""
    sums = log_sums(out)
    return _num_tokens_of(_purges(out, version, sums), read_table(out, "purged", sums=sums))


def _num_tokens_of(purges: pa.Table, purged: pa.Table) -> int:
    """The tokens of the spans that these purges took."""
    counted = purged.filter(pc.is_in(purged["purge_id"], purges["purge_id"]))
    columns = ["doc_id", "source", "shard", "start", "num_tokens"]
    spans = counted.filter(pc.is_valid(counted["shard"])).select(columns)
    return pc.sum(spans.group_by(columns).aggregate([])["num_tokens"]).as_py() or 0


def _purges(out: Folder, version: int | None, sums: LogSums) -> pa.Table:
    return read_table(out, "purges", sums=sums) if version is None else read_purges(out, version)


def flows(steps: pa.Table) -> list[Flow]:
    """The funnel of each source as a flow, each on the scale of its own documents."""
    by_source: dict[str, list[_StageCounts]] = defaultdict(list)
    for row in sorted(rows_of(steps, _StageCounts), key=lambda row: (row.source, row.position)):
        by_source[row.source].append(row)
    return [_flow(source, rows) for source, rows in by_source.items()]


def _flow(source: str, rows: Sequence[_StageCounts]) -> Flow:
    most = max((row.num_in for row in rows), default=0) or 1
    width = WIDTH / max(len(rows), 1)
    bands = []
    for number, row in enumerate(rows):
        here = f"source = {text_literal(source)}"
        stages = ", ".join(text_literal(later.stage) for later in rows[number + 1 :])
        passed = f"stage IS NULL{f' OR stage IN ({stages})' if stages else ''}"
        bands.append(
            Band(
                stage=row.stage,
                num_in=row.num_in,
                num_out=row.num_out,
                num_rejected=row.num_rejected,
                x=number * width,
                width=width,
                height_out=_hairline(_HEIGHT * row.num_out / most, row.num_out),
                width_rejected=_hairline(_REJECTED * width * row.num_rejected / most, row.num_rejected),
                rejected_sql=listing(f"{here} AND stage = {text_literal(row.stage)}"),
                out_sql=listing(f"{here} AND ({passed})"),
            )
        )
    return Flow(source=source, num_in=rows[0].num_in if rows else 0, bands=tuple(bands))


def _hairline(size: float, num: int) -> float:
    """`size`, or as little as can be seen where it stands for something."""
    return max(size, _LEAST) if num else 0.0


def listing(where: str) -> str:
    """The documents behind a figure, as a SELECT that a person may change."""
    return f"SELECT doc_id, url, rule, value, threshold, language FROM documents WHERE {where} LIMIT 200"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueCount:
    """Documents with one value: how many, how many of them kept, both as shares of the largest group's, and
    the page that lists them, below the output's."""

    name: str
    num: int
    num_kept: int
    share: float
    share_kept: float
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The groups of one property of the documents; `num_others` are in none of those that are shown."""

    title: str
    groups: tuple[ValueCount, ...]
    num_others: int


def shape_of(out: Folder, version: int | None) -> list[Distribution]:
    """What the corpus is made of: languages, domains, hosts, lengths, language scores. It reads whole
    columns, in a process of its own."""
    counted = "count(*)::BIGINT AS num, count(*) FILTER (status = 'kept')::BIGINT AS num_kept"

    def by_value(column: str) -> str:
        return (
            f"WITH groups AS (SELECT {column} AS name, {counted} FROM documents GROUP BY 1)"
            " SELECT name, num, num_kept, sum(num) OVER ()::BIGINT AS whole FROM groups"
            f" ORDER BY num DESC, name LIMIT {_MOST_GROUPS}"
        )

    length = "floor(log2(num_chars))::BIGINT"
    score = f"floor(least(language_score, 0.999999) * {_SCORE_BARS})::BIGINT"
    ranges = [
        f"SELECT {range_} AS name, {counted}, 0::BIGINT AS whole FROM documents WHERE {holds} GROUP BY 1"
        f" ORDER BY 1"
        for range_, holds in ((length, "num_chars > 0"), (score, "language_score IS NOT NULL"))
    ]
    found = answers(out, [*map(by_value, ("language", "domain", "host")), *ranges], version)
    languages, domains, hosts, lengths, scores = ([tuple(row) for row in each.rows] for each in found)
    return [
        _distribution("Languages", languages, _name, _of_value("language")),
        _distribution("Domains", domains, _name, _of_index("domain")),
        _distribution("Hosts", hosts, _name, _of_index("host")),
        _distribution(
            "Characters of clean text",
            lengths,
            lambda power: f"{2**power:,} to {2 ** (power + 1) - 1:,}",
            lambda power: _selected(f"num_chars BETWEEN {2**power} AND {2 ** (power + 1) - 1}"),
        ),
        _distribution(
            "Language scores",
            scores,
            lambda bar: f"{bar / _SCORE_BARS:.2f} to {(bar + 1) / _SCORE_BARS:.2f}",
            lambda bar: _selected(
                f"language_score >= {bar / _SCORE_BARS} AND language_score < {(bar + 1) / _SCORE_BARS + 1e-9}"
            ),
        ),
    ]


def _name(value: Any) -> str:
    return "none" if value is None else str(value)


def _selected(where: str) -> str:
    """The page of a SELECT of documents."""
    return f"sql?{urlencode({'q': listing(where)})}"


def _of_value(column: str) -> Callable[[Any], str]:
    return lambda name: _selected(
        f"{column} IS NULL" if name is None else f"{column} = {text_literal(str(name))}"
    )


def _of_index(kind: str) -> Callable[[Any], str]:
    """What has an index is searched for: a SELECT would read the whole column."""
    return lambda name: (
        _selected(f"{kind} IS NULL") if name is None else f"search?{urlencode({'q': f'{kind}:{name}'})}"
    )


def _distribution(
    title: str, rows: Sequence[tuple[Any, ...]], name_of: Callable[[Any], str], place_of: Callable[[Any], str]
) -> Distribution:
    most = max((row[1] for row in rows), default=0) or 1
    groups = tuple(
        ValueCount(
            name=name_of(name),
            num=num,
            num_kept=num_kept,
            share=num / most,
            share_kept=num_kept / most,
            place=place_of(name),
        )
        for name, num, num_kept, _ in rows
    )
    whole = rows[0][3] if rows and rows[0][3] else sum(group.num for group in groups)
    return Distribution(title=title, groups=groups, num_others=whole - sum(group.num for group in groups))
