"""What the report shows of publishers' signals: what they come to for kept documents, by host, and licences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lineage.storage.folder import Folder
from lineage.store.column_names import RIGHTS
from lineage.store.delta import arrow_dataset
from pipeline.report.data import PublisherSignals, SignalRow
from pipeline.report.funnels import Ask
from stages.rights.signal import KINDS

_MOST_ROWS: Final = 20
LEFT: Final = "status = 'kept' AND purged IS NULL"
"""The documents that are counted."""
HOST: Final = "coalesce(nullif(host, ''), 'no host')"
"""The host of a document, as it is shown."""
_EACH: Final = f"(SELECT host, unnest(signals) AS signal FROM documents WHERE {LEFT})"
QUESTIONS: Final = (
    f"SELECT coalesce(training_use, 'unknown'), count(*) FROM documents WHERE {LEFT} GROUP BY 1",
    f"SELECT {HOST} AS at, training_use_by, count(*), coalesce(sum(num_tokens), 0)::BIGINT AS tokens FROM documents"
    f" WHERE {LEFT} AND training_use = 'denied' GROUP BY ALL ORDER BY tokens DESC, 1, 2 LIMIT {_MOST_ROWS}",
    f"SELECT signal.kind, count(*) FROM {_EACH} GROUP BY 1",
    f"SELECT signal.value, count(*) AS num, count(DISTINCT host) FROM {_EACH} WHERE signal.kind = 'license'"
    f" GROUP BY 1 ORDER BY num DESC, 1 LIMIT {_MOST_ROWS}",
    f"SELECT coalesce(sum(malformed_signals), 0)::BIGINT FROM documents WHERE {LEFT}",
)
"""What `signals_of` is given the answers to."""


def records_signals(out: Folder) -> bool:
    """Whether the lineage of an output has the signals of publishers."""
    return set(RIGHTS) <= set(arrow_dataset(out, "documents").schema.names)


def publisher_signals(ask: Ask, out: Folder) -> PublisherSignals | None:
    """The signals of the documents that are kept and not purged; None for an output that records none."""
    return signals_of([ask(sql) for sql in QUESTIONS]) if records_signals(out) else None


def signals_of(answers: Sequence[Sequence[tuple[Any, ...]]]) -> PublisherSignals:
    """What the answers to QUESTIONS say."""
    uses, hosts, kinds, licenses, malformed = answers
    by_use = {str(use): int(num) for use, num in uses}
    by_kind = {str(kind): int(num) for kind, num in kinds}
    return PublisherSignals(
        num_denied=by_use.get("denied", 0),
        num_allowed=by_use.get("allowed", 0),
        num_unknown=by_use.get("unknown", 0),
        num_malformed=int(malformed[0][0]),
        kinds=tuple((kind, by_kind[kind]) for kind in KINDS if kind in by_kind),
        hosts=tuple(
            SignalRow(host=str(host), kind=str(kind), num_documents=int(num), num_tokens=int(tokens))
            for host, kind, num, tokens in hosts
        ),
        licenses=tuple((str(value), int(num), int(num_hosts)) for value, num, num_hosts in licenses),
    )
