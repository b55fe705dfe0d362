"""What a finished run says on a terminal: the funnel, and what to try next."""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from pipeline.results.run_summary import (
    RunSummary,
    empty_parts,
    limited,
    notes_of,
    undated,
    unlike_warnings,
    unread_sources,
)
from pipeline.terminal import counted, visible
from stages.steps.catalogue import STAGES


def show_summary(screen: Console, summary: RunSummary) -> None:
    """The table at the end of `sluice run`."""
    title = Text(f"{visible(summary.name)}: {counted(summary.num_documents, 'document')} by step and rule")
    table = Table(box=None, title=title, title_justify="left", title_style="bold")
    table.add_column("stage")
    table.add_column("rule")
    table.add_column("documents", justify="right")
    for stage, rules in sorted(summary.rejected.items(), key=lambda item: (_place(item[0]), item[0])):
        for rule, num in sorted(rules.items(), key=lambda item: (-item[1], item[0])):
            table.add_row(Text(visible(stage)), Text(visible(rule)), f"{num:,}")
    table.add_row("", Text("kept", style="bold green"), f"{summary.num_kept:,}")
    screen.print(table)
    unreadable = counted(summary.num_unreadable, "unreadable stretch", "unreadable stretches")
    screen.print(
        f"\n{counted(summary.num_records, 'record')} of {counted(summary.num_files, 'file')} read,"
        f" {summary.num_documents:,} of them documents"
        f"{f', {unreadable}' if summary.num_unreadable else ''};"
        f" {_what_is_left(summary)}."
    )
    if summary.unread is not None:
        screen.print(f"{summary.unread.sentence()}.", soft_wrap=True, markup=False)
    if summary.repeats:
        num, readings = (
            sum(getattr(size, name) for size in summary.repeats) for name in ("num_documents", "num_readings")
        )
        screen.print(
            f"[repeat]: an epoch of training reads {counted(num, 'document')} {counted(readings, 'time')} in"
            " all, from one copy of each.",
            soft_wrap=True,
            markup=False,
        )
    for line in limited(summary.identity):
        screen.print(visible(line), soft_wrap=True, markup=False)
    if summary.parsed_texts is not None:
        kept = summary.parsed_texts
        screen.print(
            f"texts/ keeps the texts of {counted(kept.num_documents, 'document')} after parse, with all"
            f" personal data in them: {decimal(kept.bytes)}.",
            soft_wrap=True,
        )
    if summary.inside is not None:
        inside = summary.inside
        screen.print(
            f"{counted(inside.num_cuts, 'cut')} of text that stands elsewhere"
            f" ({counted(inside.num_chars, 'character')}) in {counted(inside.num_documents, 'document')}"
            f" (dedup.inside); {counted(inside.num_rejected, 'document')} kept too little.",
            soft_wrap=True,
            markup=False,
        )
    if summary.num_without_page:
        screen.print(
            f"{counted(summary.num_without_page, 'document has', 'documents have')} no URL of a page: rules by"
            " host or domain, the comparison by URL and purge --host and --domain do not see"
            f" {'it' if summary.num_without_page == 1 else 'them'}.",
            soft_wrap=True,
            markup=False,
        )
    for line in notes_of(summary.notes, summary.odd_date):
        screen.print(visible(line), soft_wrap=True, markup=False)
    warnings = (
        *undated(summary),
        *unlike_warnings(summary.unlike_pages),
        *empty_parts(summary),
        *unread_sources(summary),
    )
    for warning in warnings:
        screen.print(f"Warning: {visible(warning)}", soft_wrap=True, markup=False)
    out = visible(shlex.quote(summary.output))
    lines = [
        "\nNext:",
        f"  {visible(summary.output)}/report.html  # in a browser: documents rejected by each rule, with examples",
        f"  sluice verify {out}",
        f'  sluice lineage {out} "SELECT source, stage, num_in, num_out FROM steps"',
    ]
    if summary.num_kept:
        lines.append(f"  sluice export {out} --format hf --to DIR  # or jsonl, parquet, megatron, olmo, …")
    for line in lines:
        screen.print(line, soft_wrap=True, markup=False)


def _what_is_left(summary: RunSummary) -> str:
    if summary.identity["recipe"]["tokenize"].get("off"):
        return f"{summary.num_kept:,} texts, and no tokens (tokenize.off)"
    return f"{counted(summary.num_tokens, 'token')} in {counted(summary.num_shards, 'shard')}"


def _place(stage: str) -> float:
    """Where a document meets the stage; a function of the user's is named behind the other steps."""
    return STAGES.index(stage) if stage in STAGES else STAGES.index("identity") - 0.5
