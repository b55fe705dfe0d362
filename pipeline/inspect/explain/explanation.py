"""What every step makes of one document: the tuning loop of a person who writes filters.

`explain` runs a chain on a document past its rejections and gives an Explanation; `as_json` and `render` show
it. The chain should keep the whole ledger (`with_whole_ledger`), so that rules which let the document pass
say by how much."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal, NotRequired, TypedDict

from rich.console import Console
from rich.panel import Panel
from rich.rule import Rule as Line
from rich.table import Table
from rich.text import Text

from lineage.json_record import finite
from lineage.secrets import without_secrets
from lineage.store.column_names import INSIDE
from lineage.store.rows import DocumentRow
from lineage.trace.document_history import DocumentHistory, StageDecision
from pipeline.terminal import counted, short_number, visible, visible_lines
from stages.chain import Chain, attempt
from stages.document import Document, Edit, Finding, Rejection
from stages.fault import Fault
from stages.quality.judged_languages import table_of
from stages.quality.languages import UNDETERMINED
from stages.quality.rules import STAGE as QUALITY
from stages.steps.catalogue import StepTables
from stages.steps.url import STAGE as URL
from stages.steps.url import listed_at

Verdict = Literal["kept", "changed", "rejected"]
_PREVIEW_CHARS: Final = 1_200
_MOST_CHANGED_LINES: Final = 40
_MOST_CUTS: Final = 20
_COLOURS: Final = {"kept": "green", "changed": "cyan", "rejected": "red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepExplanation:
    """One step: what it measured, and the text as it came and went. `deciding` is the rule that rejected;
    `judged_text` what the prefilter looked at, of a page that it rejected, in `judged_language`; `table`
    the language by whose table the quality rules judged (None: the text's own language has none); `listed_at`
    the file and line of each list that turned the document down, by rule."""

    stage: str
    verdict: Verdict
    deciding: Finding | None
    findings: tuple[Finding, ...]
    edits: tuple[Edit, ...]
    text_before: str
    text_after: str
    fault: Fault | None
    judged_text: str = ""
    judged_language: str | None = None
    table: str | None = None
    listed_at: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """All steps in order. `document` is as the last of them left it; `not_run` names steps that had no text
    to look at, because nothing came out of parse."""

    document: Document
    steps: tuple[StepExplanation, ...]
    not_run: tuple[str, ...]

    @property
    def deciding(self) -> Finding | None:
        """The finding that would have ended the document's way in a run; None if it is kept."""
        return next((step.deciding for step in self.steps if step.deciding), None)


def with_whole_ledger(tables: StepTables) -> StepTables:
    """The same steps, each noting every rule that it evaluates."""
    return replace(tables, quality=replace(tables.quality, ledger="all"))


def explain(document: Document, chain: Chain) -> Explanation:
    """What every step makes of one document: each is run on what the steps before it left, rejections
    notwithstanding."""
    steps: list[StepExplanation] = []
    for step in chain.steps:
        outcome = attempt(step, document)
        found = _explain_step(step.stage, document, outcome)
        if step.stage == QUALITY:
            found = replace(found, table=table_of(chain.tables.quality, document.language))
        if step.stage == URL:
            places = ((each.rule, listed_at(chain.tables.url, each)) for each in found.findings)
            found = replace(
                found, listed_at=tuple((rule, *place) for rule, place in places if place is not None)
            )
        steps.append(found)
        document = outcome.document if isinstance(outcome, Rejection) else outcome
        if step.stage == "parse" and not document.text:
            break
    return Explanation(document=document, steps=tuple(steps), not_run=chain.stages[len(steps) :])


def _explain_step(stage: str, before: Document, outcome: Document | Rejection) -> StepExplanation:
    if isinstance(outcome, Rejection):
        after, deciding = outcome.document, outcome.finding
        findings = (deciding, *outcome.findings)
    else:
        after, deciding = outcome, None
        findings = outcome.findings[len(before.findings) :]
    passed: Verdict = "changed" if after.text != before.text else "kept"
    return StepExplanation(
        stage=stage,
        verdict="rejected" if deciding else passed,
        deciding=deciding,
        findings=findings,
        edits=after.edits[len(before.edits) :],
        text_before=before.text,
        text_after=after.text,
        fault=outcome.fault if isinstance(outcome, Rejection) else None,
        judged_text=(judged := outcome.judged_text if isinstance(outcome, Rejection) else ""),
        judged_language=after.language if judged else None,
    )


class FindingJson(TypedDict):
    """One rule's measurement."""

    stage: str
    rule: str
    value: float | None
    threshold: float | None
    verdict: Literal["kept", "rejected"]
    matched: NotRequired[str]


class StepJson(TypedDict):
    """A step; the last six stand there where there is something to say."""

    stage: str
    verdict: str
    num_chars_in: int
    num_chars_out: int
    findings: list[FindingJson]
    edits: list[dict[str, str | int]]
    raised: NotRequired[dict[str, object]]
    table: NotRequired[str | None]
    listed_at: NotRequired[list[dict[str, str | int]]]
    judged_language: NotRequired[str | None]
    judged_text: NotRequired[str]
    text: NotRequired[str]


def as_json(explanation: Explanation) -> dict[str, object]:
    """The explanation as plain values: `verdict` (the deciding finding or null), `steps` in order with their
    findings, edits and, where a step changed it, the text that it left, and the final `text`."""
    document = explanation.document
    return {
        "doc_id": document.doc_id.hex(),
        "url": document.url,
        "file": document.place.file,
        "offset": document.place.offset,
        "num_bytes": document.num_bytes,
        "charset": document.charset,
        "language": document.language,
        "language_score": document.language_score,
        "status": "rejected" if explanation.deciding else "kept",
        "verdict": _finding_json(explanation.deciding) if explanation.deciding else None,
        "steps": [_step_json(step) for step in explanation.steps],
        "not_run": list(explanation.not_run),
        "text": document.text,
    }


def _step_json(step: StepExplanation) -> StepJson:
    plain: StepJson = {
        "stage": step.stage,
        "verdict": step.verdict,
        "num_chars_in": len(step.text_before),
        "num_chars_out": len(step.text_after),
        "findings": [_finding_json(finding) for finding in step.findings],
        "edits": [{"kind": edit.kind, "count": edit.count} for edit in step.edits],
    }
    if step.fault:
        plain["raised"] = asdict(step.fault)
    if step.stage == QUALITY:
        plain["table"] = step.table
    if step.listed_at:
        plain["listed_at"] = [
            {"rule": rule, "file": without_secrets(file), "line": line} for rule, file, line in step.listed_at
        ]
    if step.judged_text:
        plain["judged_language"], plain["judged_text"] = step.judged_language, step.judged_text
    if step.text_after != step.text_before:
        plain["text"] = step.text_after
    return plain


def _finding_json(finding: Finding) -> FindingJson:
    plain: FindingJson = {
        "stage": finding.stage,
        "rule": finding.rule,
        "value": finite(finding.value),
        "threshold": finite(finding.threshold),
        "verdict": "rejected" if finding.rejected else "kept",
    }
    if finding.matched is not None:
        plain["matched"] = finding.matched
    return plain


def render(explanation: Explanation, console: Console) -> None:
    """Show the explanation at a terminal. What comes from the page is shown as text, never as control
    codes."""
    document = explanation.document
    _print_framed(console, visible(document.url or document.doc_id.hex()), _headline(explanation))
    for step in explanation.steps:
        _print_heading(
            console, Text.assemble((step.stage, "bold"), "  ", (step.verdict, _COLOURS[step.verdict]))
        )
        if step.fault:
            console.print(Text(visible_lines(f"{step.fault.traceback}: {step.fault.message}")))
        if step.stage == QUALITY:
            console.print(Text(f"  {_whose_table(step, document)}", style="dim"))
        if step.findings:
            console.print(_table(step, explanation.deciding))
        for rule, file, line in step.listed_at:
            console.print(Text(visible(f"  {rule}: line {line:,} of {without_secrets(file)}")))
        if step.judged_text:
            title = f"what it looked at, likeliest in {step.judged_language}"
            _print_framed(console, title, _preview(step.judged_text))
        for edit in step.edits:
            console.print(Text(f"  {visible(edit.kind)} × {edit.count:,}", style="cyan"))
        if step.text_after != step.text_before and not step.text_before:
            _print_framed(console, "text", _preview(step.text_after))
        elif step.text_after != step.text_before:
            console.print(_change(step))
    if explanation.not_run:
        console.print(Text(f"not run, there is no text: {', '.join(explanation.not_run)}", style="dim"))


def _whose_table(step: StepExplanation, document: Document) -> str:
    language = document.language or UNDETERMINED
    if step.table is None:
        return f"language {visible(language)}: the rules have no table for it (quality.no_table)"
    spelt = "" if step.table == language else f", for language {visible(language)}"
    return f"judged by the table of {visible(step.table)}{spelt}"


def render_recorded(explanation: Explanation, history: DocumentHistory, out: str, console: Console) -> None:
    """Show what the lineage of the output at `out` has of the document, and where the steps now say something
    else."""
    row = history.row
    _print_heading(console, Text.assemble(("in the output", "bold"), f"  {row.status}"))
    if row.status == "rejected":
        recorded = Finding(
            stage=row.stage or "",
            rule=row.rule or "",
            value=row.value,
            threshold=row.threshold,
            matched=row.matched,
        )
        console.print(Text(visible(f"  rejected at {recorded.stage}: {recorded.rule}{_measured(recorded)}")))
    elif row.duplicate_of is not None:
        how = "the same URL" if row.similarity is None else f"Jaccard similarity {row.similarity:.3f}"
        console.print(Text(visible(f"  {row.stage}: repeats {row.duplicate_of.hex()} ({how})")))
    elif row.shard is not None and row.start is not None and row.num_tokens is not None:
        end = row.start + row.num_tokens - 1
        console.print(
            Text(visible(f"  shard {row.shard_source}/{row.shard:05d}, tokens {row.start:,} to {end:,}"))
        )
    cuts = _cuts(history)
    for cut in cuts[:_MOST_CUTS]:
        where = "" if cut.matched is None else f", which {_stay(cut)}"
        console.print(
            Text(visible(f"  cut ({cut.rule}): {counted(int(cut.value or 0), 'character')}{where}"))
        )
    if len(cuts) > _MOST_CUTS:
        console.print(Text(f"  … and {counted(len(cuts) - _MOST_CUTS, 'more cut')}", style="dim"))
    if not agrees(explanation, row):
        console.print(
            Text(
                "  The steps above decide otherwise: their settings, lists, models or versions are others.",
                "yellow",
            )
        )
    console.print(
        Text(
            visible(f"  sluice trace {shlex.quote(out)} --doc {row.doc_id.hex()} has its history"),
            style="dim",
        ),
        soft_wrap=True,
    )


def _cuts(history: DocumentHistory) -> list[StageDecision]:
    return [each for each in history.decisions if each.stage == INSIDE and each.verdict == "edit"]


def _stay(cut: StageDecision) -> str:
    twin, _, start = (cut.matched or "").partition(":")
    return f"stay in {twin} from its character {int(start):,} on"


def agrees(explanation: Explanation, row: DocumentRow) -> bool:
    """Whether the steps decide about a document as the run did."""
    deciding = explanation.deciding
    if row.status != "rejected":
        return deciding is None
    return deciding is not None and (deciding.stage, deciding.rule) == (row.stage, row.rule)


def recorded_json(explanation: Explanation, history: DocumentHistory) -> dict[str, object]:
    """What the output's lineage has of the document: `status`, the deciding `stage` and `rule` with its
    measure, what it repeats; `agrees`: whether the steps decide so today. `cuts`, where repeats were cut out of it:
    kind, characters, and the document and character where the text stays."""
    row = history.row
    cuts = [{"kind": cut.rule, "count": cut.value, "stays_in": cut.matched} for cut in _cuts(history)]
    return {
        "status": row.status,
        "stage": row.stage,
        "rule": row.rule,
        "value": finite(row.value),
        "threshold": finite(row.threshold),
        "duplicate_of": None if row.duplicate_of is None else row.duplicate_of.hex(),
        "similarity": finite(row.similarity),
        "agrees": agrees(explanation, row),
        **({"cuts": cuts} if cuts else {}),
    }


def _headline(explanation: Explanation) -> Text:
    document, deciding = explanation.document, explanation.deciding
    facts = [
        f"{document.num_bytes:,} bytes",
        f"charset {visible(document.charset or 'unknown')}",
        f"{len(document.text):,} characters of text",
    ]
    if document.language_score is not None:
        facts.append(f"language {document.language} ({document.language_score:.4f})")
    verdict = Text("kept", style="bold green")
    if deciding is not None:
        verdict = Text(
            f"rejected at {deciding.stage}: {visible(deciding.rule)}{_measured(deciding)}", style="bold red"
        )
    return Text("\n").join([verdict, Text(", ".join(facts))])


def _measured(finding: Finding) -> str:
    if finding.value is None:
        return ""
    against = "" if finding.threshold is None else f" against {short_number(finding.threshold)}"
    matched = "" if finding.matched is None else f", {finding.matched}"
    return f" ({short_number(finding.value)}{against}{matched})"


def _table(step: StepExplanation, decides: Finding | None) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    table.add_column()
    table.add_column("rule", no_wrap=True)
    table.add_column("value", justify="right")
    table.add_column("threshold", justify="right")
    table.add_column()
    for finding in step.findings:
        mark, style = ("✗", "red") if finding.rejected else ("✓", "green")
        table.add_row(
            Text(mark, style=style),
            Text(
                visible(finding.rule) + (" ← decides" if finding is decides else ""),
                style=style if finding.rejected else "",
            ),
            *(
                "" if number is None else short_number(number)
                for number in (finding.value, finding.threshold)
            ),
            visible(finding.matched or ""),
        )
    return table


def _change(step: StepExplanation) -> Text:
    """The lines that the step took out and put in."""
    shown = Text()
    for number, (mark, line) in enumerate(_changed_lines(step.text_before, step.text_after)):
        if number == _MOST_CHANGED_LINES:
            shown.append("  … and more\n", style="dim")
            break
        shown.append(f"  {mark} {visible(line[:200])}\n", style="red" if mark == "-" else "green")
    return shown


def _print_framed(console: Console, title: str, body: Text) -> None:
    """In a pipe or a file without a frame, which would be as wide as the longest line may be."""
    if console.is_terminal:
        console.print(Panel(body, title=Text(visible(title)), title_align="left"))
    else:
        console.print(Text(visible(title)))
        console.print(body)


def _print_heading(console: Console, words: Text) -> None:
    console.print(Line(words, align="left") if console.is_terminal else words)


def _preview(text: str) -> Text:
    more = len(text) - _PREVIEW_CHARS
    tail = f"\n… {more:,} more characters" if more > 0 else ""
    return Text(visible(text[:_PREVIEW_CHARS], "\n\t") + tail)


def _changed_lines(before: str, after: str) -> Iterator[tuple[str, str]]:
    """("-" or "+", line) for each line that differs, in order."""
    old, new = before.split("\n"), after.split("\n")
    if len(old) == len(new):  # words were replaced within lines: no need to search for what moved
        for a, b in zip(old, new, strict=True):
            if a != b:
                yield from (("-", a), ("+", b))
        return
    for line in difflib.unified_diff(old, new, lineterm="", n=0):
        if line[:1] in "+-" and not line.startswith(("---", "+++")):
            yield line[0], line[1:]
