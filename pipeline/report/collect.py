"""What the report shows, gathered from a finished output: lineage by SQL, excerpts.parquet, index.json,
run.json."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.filesize import decimal

from lineage.ids import content_hash
from lineage.index.output_index import Index
from lineage.index.parsed_texts import read_parsed_texts
from lineage.storage.folder import Folder
from lineage.store.column_names import INSIDE
from lineage.store.queries.sql import Limits, questions
from lineage.store.queries.views import text_literal
from pipeline.recipe.load import recipe_of
from pipeline.recipe.tables import PipelineRecipe
from pipeline.report.buckets import cut_columns, parts_of
from pipeline.report.compare import compare_words
from pipeline.report.data import (
    Bar,
    Excerpt,
    PredictedRow,
    RaisedRow,
    ReportData,
    RuleRow,
    RuleValues,
    ShardRow,
    ShownCluster,
    human_value,
)
from pipeline.report.examples import examples_of_rules, web_link
from pipeline.report.funnels import Ask, PurgedCounts, funnels_of, speeds_of
from pipeline.report.rights import publisher_signals
from pipeline.report.thresholds import values_of_rules
from pipeline.report.tokens import tokens_of_sources
from pipeline.results.clusters import largest_clusters
from pipeline.results.estimates import STEP, Estimate, shown_name, shown_value
from pipeline.results.faults import FaultRow
from pipeline.results.rows import read_rows
from pipeline.results.run_summary import (
    RunSummary,
    came_to,
    empty_parts,
    limited,
    notes_of,
    read_summary,
    unlike_warnings,
    unread_sources,
)
from pipeline.terminal import counted
from stages.quality.judged_languages import table_of

_BINS = 20
_LIMITS = Limits(seconds=12 * 3600.0, memory_gib=8.0)
"""Each question is a count over a few groups, so memory stays small; over billions of rows it takes its
time."""

Texts = Mapping[str, str]
"""The excerpt of each document that has one, by doc_id."""


def collect(out: Folder, index: Index) -> ReportData:
    """Gather the report's data from an output whose tables are committed."""
    with questions(out, limits=_LIMITS) as ask:
        return _collect(out, index, lambda sql: [*ask(sql).rows])


def state_of(index: Index, purge_ids: Sequence[str]) -> str:
    """The name of what a report shows that may change after a run: BLAKE3-128 (hex) of the index and the
    purges."""
    state = [index.version, index.content_fingerprint, sorted(purge_ids)]
    return content_hash(json.dumps(state).encode()).hex()


def _collect(out: Folder, index: Index, ask: Ask) -> ReportData:
    summary = read_summary(out)
    purged = PurgedCounts.of(ask)
    funnels = funnels_of(ask, index, purged)
    purges = ask(
        'SELECT purge_id, "at", "by", reason, num_documents, num_tokens FROM purges ORDER BY "at", purge_id'
    )
    excerpts = read_rows(out, "excerpts.parquet").to_pylist()
    recipe = recipe_of(out)
    return ReportData(
        name=summary.name,
        state=state_of(index, [row[0] for row in purges]),
        out=shlex.quote(out.url),
        has_ledger=recipe.quality.ledger == "all",
        totals=_totals(ask, index, purged),
        funnels=funnels,
        rules=_rules(ask, excerpts, values_of_rules(ask, recipe)),
        languages=_bars(
            ask(
                "SELECT coalesce(language, 'none'), count(*) n FROM documents GROUP BY 1 ORDER BY n DESC, 1 LIMIT 15"
            )
        ),
        tables=_tables(ask, recipe),
        lengths=_lengths(ask),
        scores=_scores(ask),
        signals=publisher_signals(ask, out),
        clusters=_clusters(
            out, ask, {row["doc_id"].hex(): row["excerpt"] for row in excerpts if _is_whole(row)}
        ),
        edits=_edits(ask, "kind", "stage = 'pii'"),
        other_edits=_edits(ask, _EDIT, "stage <> 'pii'"),
        parts=parts_of(summary),
        cut_columns=cut_columns(ask, out, index, summary),
        empty_parts=(*empty_parts(summary), *unread_sources(summary)),
        shards=tuple(
            ShardRow(
                source=s.source,
                shard=s.shard,
                num_tokens=s.num_tokens,
                num_documents=s.num_documents,
                hash=s.hash,
                num_tokens_purged=purged.num_tokens_of_shard(s.source, s.shard),
            )
            for s in index.shards
        ),
        tokens=tokens_of_sources(out, index, summary.identity.get("versions", {})),
        unread="" if summary.unread is None else summary.unread.sentence(),
        unreadable=tuple(ask('SELECT file, "offset", length, error FROM unreadable ORDER BY 1, 2 LIMIT 50')),
        truncated=tuple(
            ask(
                "SELECT truncated, count(*) AS num, count(*) FILTER (status = 'kept') FROM documents"
                " WHERE truncated IS NOT NULL GROUP BY 1 ORDER BY num DESC, 1 LIMIT 20"
            )
        ),
        notes=tuple(_notes(ask)),
        timeouts=tuple(
            row[0]
            for row in ask("SELECT doc_id FROM documents WHERE rule = 'parse.timeout' ORDER BY 1 LIMIT 50")
        ),
        raised=tuple(map(_raised, summary.faults)),
        purges=tuple(purges),
        speeds=speeds_of(funnels[0], summary) if funnels else (),
        phases=tuple((phase.name, phase.seconds, phase.note) for phase in summary.phases),
        predicted=tuple(_predicted(summary)),
        capped_buckets=summary.dedup.get("capped_buckets", 0),
        unlike_pages=tuple(unlike_warnings(summary.unlike_pages)),
        num_without_page=summary.num_without_page or 0,
        parsed_texts=_parsed_texts(out),
        limited=tuple(limited(summary.identity)),
        recipe=out.read("recipe.toml").decode(),
    )


def _predicted(summary: RunSummary) -> Iterator[PredictedRow]:
    """What `sluice plan` predicted, beside what came."""
    if summary.prediction is None:
        return
    real, estimates = came_to(summary), dict(summary.prediction.estimates)
    # What a run counts together.
    read, write = (estimates.pop(f"{STEP}{name}", None) for name in ("read", "write"))
    if read is not None and write is not None:
        both = [getattr(read, name) + getattr(write, name) for name in ("value", "low", "high")]
        estimates[f"{STEP}read, write"] = Estimate(value=both[0], low=both[1], high=both[2])
    for name, found in estimates.items():
        came = real.get(name)
        value, low, high = (shown_value(name, each) for each in (found.value, found.low, found.high))
        yield PredictedRow(
            name=shown_name(name),
            value=value,
            low=low,
            high=high,
            real="" if came is None else shown_value(name, came),
            is_outside=came is not None and not found.low <= came <= found.high,
        )


def _tables(ask: Ask, recipe: PipelineRecipe) -> str:
    """By whose tables the quality rules judged texts: those that came as far, by language; empty where no
    source has such rules."""
    met = []
    for source in recipe.source:
        behind = source.steps[_place(source.steps, "quality") :]
        if recipe.quality.rules and behind:
            stages = ", ".join(map(text_literal, behind))
            met.append(
                f"(source = {text_literal(source.name)} AND (status <> 'rejected' OR stage IN ({stages})))"
            )
    if not met:
        return ""
    rows = ask(
        f"SELECT language, count(*) FROM documents WHERE {' OR '.join(met)} GROUP BY 1 ORDER BY 2 DESC, 1"
    )
    judged: list[str] = []
    without: list[str] = []
    for language, num in rows:
        table = table_of(recipe.quality, language)
        label = "no language" if language is None else str(language)
        spelt = f" (by that of {table})" if table and table != language else ""
        (judged if table else without).append(f"{label}{spelt} {num:,}")
    said = f"Judged by the table of their own language: {', '.join(judged)}." if judged else ""
    if without:
        became = "passed unjudged" if recipe.quality.no_table == "pass" else "were rejected"
        said += f" Texts without a table (quality.no_table) {became}: {', '.join(without)}."
    return said.strip()


def _place(steps: Sequence[str], name: str) -> int:
    """Where a step stands; behind all of them where it does not."""
    return steps.index(name) if name in steps else len(steps)


def _notes(ask: Ask) -> list[str]:
    """What was read in another way than it says of itself, or passed over."""
    total = Counter[str]()
    rows = ask("SELECT notes, count(*) FROM inputs WHERE notes IS NOT NULL GROUP BY 1")
    for notes, num_files in rows:
        total.update({name: num * num_files for name, num in json.loads(notes).items()})
    return notes_of(total)


def _parsed_texts(out: Folder) -> str:
    """What is kept of the pages besides, for who looks after personal data; nothing without run.keep_text."""
    texts = read_parsed_texts(out)
    if texts is None or not texts.kept:
        return ""
    if texts.removed is not None:
        return f"The texts that were kept after parse (run.keep_text) were removed by purge {texts.removed}."
    return (
        f"The folder texts/ keeps what parse took from {counted(texts.num_rows, 'document')}, rejected ones too"
        f" ({decimal(texts.num_bytes)}). These texts are not scrubbed: they hold all personal data of the"
        f" pages. Purges reach them; sluice purge {shlex.quote(out.url)} --parsed-texts --reason … --by …"
        " --apply removes them all."
    )


def _totals(ask: Ask, index: Index, purged: PurgedCounts) -> tuple[tuple[str, str], ...]:
    """The tiles. Where documents were purged, what is left of those that were kept."""
    records, size, files = ask(
        "SELECT coalesce(sum(num_records), 0), coalesce(sum(bytes), 0), count(*) FROM inputs"
    )[0]
    counts: dict[str, int] = dict(ask("SELECT status, count(*) FROM documents GROUP BY 1"))
    num_purged, num_tokens_purged = purged.total()
    return (
        ("input files", f"{files:,}"),
        ("records read", f"{records:,}"),
        ("read", decimal(size)),
        ("documents", f"{sum(counts.values()):,}"),
        ("rejected", f"{counts.get('rejected', 0):,}"),
        ("duplicates", f"{counts.get('duplicate', 0):,}"),
        *([("purged since", f"{num_purged:,}")] if num_purged else []),
        ("kept", f"{counts.get('kept', 0) - num_purged:,}"),
        ("tokens", f"{index.num_tokens - num_tokens_purged:,}"),
    )


def _is_whole(row: Mapping[str, Any]) -> bool:
    """Whether an excerpt surely shows its text from the beginning, so that it can be compared with
    another."""
    return row.get("choice") is None or row["stage"].startswith("dedup.")


def _rules(
    ask: Ask, excerpts: Sequence[Mapping[str, Any]], values: Mapping[tuple[str, str], RuleValues]
) -> tuple[RuleRow, ...]:
    examples = examples_of_rules(ask, excerpts)
    by_source: dict[tuple[str, str], list[tuple[str, int]]] = defaultdict(list)
    for source, stage, rule, num in ask(
        "SELECT source, stage, rule, num FROM step_rules ORDER BY num DESC, 1, 2, 3"
    ):
        by_source[stage, rule].append((source, num))
    thresholds = {
        (stage, rule): human_value(threshold)
        for stage, rule, threshold in ask(
            "SELECT stage, rule, min(threshold) FROM documents WHERE rule IS NOT NULL GROUP BY 1, 2"
        )
    }
    for name, of_rule in values.items():
        thresholds.setdefault(name, next(option.threshold for option in of_rule.options if option.is_set))
    num_documents = max(1, ask("SELECT count(*) FROM documents")[0][0])
    rows = []
    for stage, rule in {**by_source, **values}:
        counts = by_source.get((stage, rule), [])
        num = sum(num for _, num in counts)
        rows.append(
            RuleRow(
                stage=stage,
                rule=rule,
                anchor="rule-" + re.sub(r"[^a-z0-9_.-]", "_", f"{stage}-{rule}".lower()),
                num=num,
                by_source=tuple(counts),
                share=num / num_documents,
                threshold=thresholds.get((stage, rule), ""),
                examples=examples.get((stage, rule), ()),
                values=values.get((stage, rule)),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.num, row.stage, row.rule)))


def _lengths(ask: Ask) -> tuple[Bar, ...]:
    rows = ask(
        "SELECT floor(log2(num_chars))::INT b, count(*) FROM documents WHERE status = 'kept' AND num_chars >"
        " 0 AND purged IS NULL GROUP BY 1"
    )
    return _bars([(f"{2**bin_:,}–{2 ** (bin_ + 1) - 1:,}", num) for bin_, num in _without_gaps(rows)])


def _scores(ask: Ask) -> tuple[Bar, ...]:
    rows = ask(
        f"SELECT least(floor(language_score * {_BINS})::INT, {_BINS - 1}) b, count(*) FROM documents"
        " WHERE language_score IS NOT NULL GROUP BY 1"
    )
    return _bars([(f"{bin_ / _BINS:.2f}–{(bin_ + 1) / _BINS:.2f}", num) for bin_, num in _without_gaps(rows)])


_EDIT: Final = f"stage || ': ' || kind || CASE stage WHEN '{INSIDE}' THEN ' (characters)' ELSE '' END"
"""A kind of edit: of text that was cut for its repetition the characters are counted."""


def _edits(ask: Ask, label: str, which: str) -> tuple[Bar, ...]:
    """How often the kept texts that are still there were changed, by what."""
    return _bars(
        ask(
            f"SELECT {label}, sum(count)::BIGINT n FROM edits"
            f" WHERE {which} AND doc_id NOT IN (SELECT doc_id FROM purged) GROUP BY 1 ORDER BY n DESC, 1"
        )
    )


def _without_gaps(rows: Sequence[tuple[Any, ...]]) -> list[tuple[int, int]]:
    """(bin, number) from the least bin to the greatest, empty ones too."""
    counts = {int(bin_): int(num) for bin_, num in rows}
    return [(bin_, counts.get(bin_, 0)) for bin_ in range(min(counts), max(counts) + 1)] if counts else []


def _raised(row: FaultRow) -> RaisedRow:
    return RaisedRow(
        stage=row.stage,
        error=row.error,
        where=row.where,
        num=row.num,
        traceback=row.traceback,
        first=row.doc_id or f"{row.file} at {row.offset}",
    )


def _bars(rows: Sequence[tuple[Any, ...]]) -> tuple[Bar, ...]:
    most = max((row[1] for row in rows), default=1)
    return tuple(Bar(label=str(label), num=int(num), share=num / most) for label, num in rows)


def _clusters(out: Folder, ask: Ask, texts: Texts) -> tuple[ShownCluster, ...]:
    shown, clusters = [], largest_clusters(out)
    gone = _purged_of(ask, [member.doc_id.hex() for cluster in clusters for member in cluster.members])
    for cluster in clusters:
        first = texts.get(cluster.members[0].doc_id.hex(), "") if cluster.members else ""
        members = []
        for member in cluster.members:
            text = texts.get(member.doc_id.hex())
            note = "kept" if member.status == "kept" else str(member.stage)
            if member.similarity is not None:
                note += f", Jaccard {member.similarity:.3f}"
            if member.doc_id.hex() in gone:
                note += ", purged since"
            pieces = () if text is None else compare_words(first, text)
            url = member.url or ""
            members.append(
                Excerpt(doc_id=member.doc_id.hex(), url=url, link=web_link(url), note=note, pieces=pieces)
            )
        shown.append(
            ShownCluster(
                cluster_id=cluster.cluster_id.hex(),
                num_documents=cluster.num_documents,
                num_kept=cluster.num_kept,
                members=tuple(members),
            )
        )
    return tuple(shown)


def _purged_of(ask: Ask, doc_ids: Sequence[str]) -> set[str]:
    """Which of a few documents were purged."""
    listed = ", ".join(f"'{doc_id}'" for doc_id in sorted(set(doc_ids)))
    rows = ask(f"SELECT DISTINCT doc_id FROM purged WHERE doc_id IN ({listed})") if listed else []
    return {row[0] for row in rows}
