"""The one way in which a step comes from findings to a verdict: the first rule that says no decides."""

from __future__ import annotations

from collections.abc import Iterable

from stages.document import Document, Finding, Outcome, Rejection


def decide(document: Document, findings: Iterable[Finding], *, ledger: bool) -> Outcome:
    """The document, or its rejection by the first finding that rejects it.

    Without the ledger nothing after the deciding rule is evaluated (`findings` may be a generator) and nothing is
    noted on a document that is kept; with it every finding is kept."""
    noted: list[Finding] = []
    deciding: Finding | None = None
    for finding in findings:
        if finding.rejected and deciding is None:
            deciding = finding
            if not ledger:
                break
        elif ledger:
            noted.append(finding)
    if deciding is not None:
        return Rejection(document=document, finding=deciding, findings=tuple(noted))
    return document.with_findings(*noted) if noted else document
