"""The signals of publishers: of one document as they were found, and of all kept ones with the SELECT of each count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lineage.storage.folder import Folder
from lineage.store.lookup import Lookup
from lineage.store.queries.query import answers
from lineage.store.queries.views import text_literal
from lineage.store.rows import DocumentRow
from pipeline.report.data import PublisherSignals
from pipeline.report.rights import HOST, LEFT, QUESTIONS, records_signals, signals_of
from stages.rights.decide import from_text
from stages.rights.signal import Signal

_MOST_LISTED: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentSignals:
    """What was found about a page, what it comes to for training, and the kind that decides."""

    signals: tuple[Signal, ...]
    use: str
    by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalCount:
    """Kept documents with something in common: how many, their tokens and hosts (None where these are not counted),
    and the SELECT that lists them."""

    name: str
    num: int
    sql: str
    kind: str = ""
    num_tokens: int | None = None
    num_hosts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalsShown:
    """The counts of the signals' page."""

    uses: tuple[SignalCount, ...]
    kinds: tuple[SignalCount, ...]
    hosts: tuple[SignalCount, ...]
    licenses: tuple[SignalCount, ...]
    num_malformed: int
    malformed_sql: str


def signals_of_document(lookup: Lookup, row: DocumentRow) -> DocumentSignals | None:
    """None where the run recorded no signals."""
    found = lookup.signals(row)
    if found is None:
        return None
    return DocumentSignals(
        signals=tuple(from_text(found.signals)),
        use=found.training_use or "unknown",
        by=found.training_use_by,
    )


def shown_signals(out: Folder, version: int | None) -> SignalsShown | None:
    """None where the run recorded no signals. It reads whole columns, in a process of its own."""
    if not records_signals(out):
        return None
    found = signals_of([[tuple(row) for row in each.rows] for each in answers(out, QUESTIONS, version)])
    return SignalsShown(
        uses=_uses(found),
        kinds=tuple(
            SignalCount(name=kind, num=num, sql=listing(_with(f"signal.kind = {text_literal(kind)}")))
            for kind, num in found.kinds
        ),
        hosts=tuple(
            SignalCount(
                name=host.host,
                kind=host.kind,
                num=host.num_documents,
                num_tokens=host.num_tokens,
                sql=listing(
                    f"training_use = 'denied' AND training_use_by = {text_literal(host.kind)}"
                    f" AND {HOST} = {text_literal(host.host)}"
                ),
            )
            for host in found.hosts
        ),
        licenses=tuple(
            SignalCount(
                name=value,
                num=num,
                num_hosts=num_hosts,
                sql=listing(_with(f"signal.kind = 'license' AND signal.value = {text_literal(value)}")),
            )
            for value, num, num_hosts in found.licenses
        ),
        num_malformed=found.num_malformed,
        malformed_sql=listing("malformed_signals > 0"),
    )


def listing(where: str) -> str:
    """The kept documents behind a count, as a SELECT that a person may change."""
    return (
        "SELECT doc_id, url, training_use, training_use_by, num_tokens FROM documents"
        f" WHERE {LEFT} AND {where} LIMIT {_MOST_LISTED}"
    )


def _uses(found: PublisherSignals) -> tuple[SignalCount, ...]:
    nums = {"denied": found.num_denied, "allowed": found.num_allowed, "unknown": found.num_unknown}
    return tuple(
        SignalCount(
            name=use, num=num, sql=listing(f"coalesce(training_use, 'unknown') = {text_literal(use)}")
        )
        for use, num in nums.items()
    )


def _with(holds: str) -> str:
    """That a document has a signal of which this holds."""
    return f"len(list_filter(signals, lambda signal: {holds})) > 0"
