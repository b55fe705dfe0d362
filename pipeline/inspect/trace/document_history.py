"""How a document's history reads on a terminal.

Whatever comes from the web (URLs, record ids, file names) is shown as plain text without control characters:
it cannot colour, move or overwrite anything."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lineage.trace.document_history import DocumentHistory, StageDecision
from lineage.trace.exposure import Exposure
from pipeline.terminal import counted, short_number, visible

_STYLES = {"kept": "bold green", "rejected": "bold red", "duplicate": "bold yellow"}
_MARKS = {"keep": ("✓", "green"), "edit": ("~", "cyan"), "reject": ("✗", "red"), "duplicate": ("=", "yellow")}
_SHOWN = 12


def print_history(console: Console, out: str, history: DocumentHistory, limit: int | None = None) -> None:
    """The history of a document of the output at `out`, from the crawl to training. Lists longer than `limit`
    (12; of decisions all are shown without it) end with how many are left."""
    shown = _SHOWN if limit is None else limit
    _print_opening(console, history)
    _print_decisions(console, out, history, limit)
    _print_cluster(console, history, shown)
    _print_place(console, history)
    _print_exposures(console, history, shown)


def print_list(
    console: Console,
    out: str,
    histories: Sequence[DocumentHistory],
    limit: int | None = None,
    num: int | None = None,
) -> None:
    """Documents of the output at `out`: each one's history if they are few and none is cut off, else a table,
    a line a document. `num`: how many there are, where `histories` are only the first."""
    count = len(histories) if num is None else num
    shown = histories if limit is None else histories[:limit]
    if count <= 3 and len(shown) == count:
        for number, history in enumerate(histories):
            if number:
                console.print()
            print_history(console, out, history, limit)
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("document", "status", "by", "url"):
        table.add_column(name, overflow="fold" if name == "url" else "ellipsis", no_wrap=name != "url")
    for history in shown:
        status = history.row.status if history.purged is None else "purged"
        by = plain(history.row.rule or history.row.stage or "")
        table.add_row(
            history.doc_id.hex(),
            Text(status, _STYLES.get(status, "bold magenta")),
            by,
            plain(history.row.url or ""),
        )
    console.print(table)
    if count > len(shown):
        console.print(
            Text(f"… and {count - len(shown):,} more of {count:,}; --limit N shows more, --json all", "dim")
        )
    console.print(
        Text(visible(f"sluice trace {shlex.quote(out)} --doc ID shows one document's whole history"), "dim"),
        soft_wrap=True,
    )


def plain(text: str) -> Text:
    """A text from outside as it may be shown: control and format characters as escapes, no markup."""
    return Text(visible(text))


def _print_opening(console: Console, history: DocumentHistory) -> None:
    row = history.row
    head = Text(f"Document {row.doc_id.hex()}  ", "bold")
    head.append(row.status, _STYLES.get(row.status, ""))
    if history.purged is not None:
        head.append("  purged", "bold magenta")
    console.print(head)
    if row.url:
        console.print(Text("  ").append_text(plain(row.url)), soft_wrap=True)
    line = Text("  ")
    line.append_text(plain(f"Source {row.source}"))
    if row.captured_at:
        line.append_text(plain(f", captured {row.captured_at}"))
    if row.warc_file is not None:
        line.append_text(
            plain(f", read from {row.warc_file} at byte {row.warc_offset:,} ({row.warc_length or 0:,} bytes)")
        )
    console.print(line)
    about = []
    if row.charset:
        about.append(f"charset {row.charset}")
    if row.language:
        score = "" if row.language_score is None else f" ({row.language_score:.2f})"
        about.append(f"language {row.language}{score}")
    if row.num_chars:
        about.append(f"{row.num_chars:,} characters of clean text")
    if about:
        console.print(Text("  ").append_text(plain("; ".join(about))))


def _print_decisions(console: Console, out: str, history: DocumentHistory, limit: int | None) -> None:
    console.print(Text("\nWhat was decided", "bold"))
    if not history.decisions:
        console.print("  nothing is recorded")
    if history.purged is None and all(
        decision.verdict != "keep" or not decision.rule for decision in history.decisions
    ):
        call = f"sluice explain {shlex.quote(out)} --doc {history.row.doc_id.hex()}"
        console.print(Text(f"  {visible(call)} measures every rule again", "dim"), soft_wrap=True)
    shown = history.decisions[:limit]
    for stage, of_stage in groupby(shown, key=lambda decision: decision.stage):
        decisions = list(of_stage)
        # Where every rule stands with its measure, a line that says only that the stage let the document pass
        # is none.
        told = [d for d in decisions if len(decisions) == 1 or d.verdict != "keep" or d.rule is not None]
        for number, decision in enumerate(told):
            mark, style = _MARKS.get(decision.verdict, ("·", ""))
            line = (
                Text(f"  {mark} ", style)
                .append(f"{stage if number == 0 else '':<14}", "")
                .append_text(_words(decision))
            )
            console.print(line)
    if len(history.decisions) > len(shown):
        console.print(Text(f"  … and {len(history.decisions) - len(shown):,} more", "dim"))


def _words(decision: StageDecision) -> Text:
    if decision.verdict == "edit":
        stays = f" characters, which stay in {decision.matched}" if decision.matched else ""
        return plain(f"changed {decision.rule}: {short_number(decision.value or 0)}{stays}")
    measured = ""
    if decision.value is not None:
        is_language = decision.stage == "language" and decision.rule is None
        measured = f": {'its score is' if is_language else 'measured'} {short_number(decision.value)}"
        if decision.threshold is not None:
            measured += f", threshold {short_number(decision.threshold)}"
    if decision.matched is not None:
        measured += f" ({decision.matched})"
    if decision.verdict == "keep":
        return plain(f"passed {decision.rule}{measured}" if decision.rule else f"passed{measured}")
    verb = "rejected by" if decision.verdict == "reject" else "duplicate by"
    return plain(f"{verb} {decision.rule or decision.stage}{measured}")


def _print_cluster(console: Console, history: DocumentHistory, shown: int) -> None:
    cluster = history.cluster
    if cluster is None:
        if history.row.duplicate_of is not None:
            console.print(Text(f"\nRepeats {history.row.duplicate_of.hex()}", "bold"))
        return
    console.print(Text(f"\nIts cluster of {len(cluster.members):,} similar documents", "bold"))
    if cluster.duplicate_of is not None:
        how = "the same URL" if cluster.similarity is None else f"Jaccard similarity {cluster.similarity:.3f}"
        console.print(f"  it repeats {cluster.duplicate_of.hex()} ({how})")
    others = [member for member in cluster.members if member != history.doc_id]
    for member in others[:shown]:
        console.print(f"  {member.hex()}")
    if len(others) > shown:
        console.print(Text(f"  … and {len(others) - shown:,} more", "dim"))


def _print_place(console: Console, history: DocumentHistory) -> None:
    row = history.row
    console.print(Text("\nToken range", "bold"))
    if row.shard is None or row.start is None or row.num_tokens is None:
        console.print("  in no shard")
    else:
        end = row.start + row.num_tokens
        console.print(
            Text("  ")
            .append_text(
                plain(f"shard {row.shard_source}/{row.shard:05d}, tokens {row.start:,} to {end - 1:,}")
            )
            .append(f" ({row.num_tokens:,} with the end-of-text id)")
        )
        if history.repeats != 1:
            often = counted(history.repeats, "time") if history.repeats else "never"
            why = "" if history.why_repeated is None else f": {history.why_repeated}"
            console.print(f"  an epoch of training reads it {often} ([repeat]){why}", markup=False)
    if history.purged is not None:
        purge = history.purged
        when = f" on {purge.at} by {purge.by}: {purge.reason}" if purge.at else ", not yet complete"
        console.print(
            Text("  ").append_text(plain(f"purged as {purge.role} by purge {purge.purge_id}{when}"))
        )


def _print_exposures(console: Console, history: DocumentHistory, shown: int) -> None:
    console.print(Text("\nTraining steps that read it", "bold"))
    if not history.exposures:
        console.print("  none recorded")
        return
    for run, of_run in groupby(history.exposures, key=lambda exposure: exposure.run):
        entries = list(of_run)
        applied = sum(entry.applied for entry in entries)
        console.print(
            Text("  ").append_text(plain(f"run {run}: {len(entries):,} readings, {applied:,} applied"))
        )
        for entry in entries[:shown]:
            console.print(Text(f"    {_place(entry)}", "" if entry.applied else "dim"))
        if len(entries) > shown:
            console.print(
                Text(f"    … and {len(entries) - shown:,} more, the last in step {entries[-1].step:,}", "dim")
            )


def _place(entry: Exposure) -> str:
    end = entry.first_token + entry.num_tokens - 1
    not_applied = "" if entry.applied else ", not applied"
    return (
        f"step {entry.step:,}, row {entry.row:,} (epoch {entry.epoch}, sequence {entry.sequence:,}, positions"
        f" {entry.first_token:,} to {end:,}, attempt {entry.attempt}{not_applied})"
    )
