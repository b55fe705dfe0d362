"""What the report shows of publishers' signals: what they come to for kept documents, by host, and licences."""

from __future__ import annotations

from typing import Final

from lineage.storage.folder import Folder
from lineage.store.column_names import RIGHTS
from lineage.store.delta import arrow_dataset
from pipeline.report.data import PublisherSignals, SignalRow
from pipeline.report.funnels import Ask
from stages.rights.signal import KINDS

_MOST_ROWS: Final = 20
_LEFT: Final = "status = 'kept' AND purged IS NULL"
_EACH: Final = f"(SELECT host, unnest(signals) AS signal FROM documents WHERE {_LEFT})"


def publisher_signals(ask: Ask, out: Folder) -> PublisherSignals | None:
    """The signals of the documents that are kept and not purged; None for an output that records none."""
    if not set(RIGHTS) <= set(arrow_dataset(out, "documents").schema.names):
        return None
    uses: dict[str, int] = {
        str(use or "unknown"): int(num)
        for use, num in ask(f"SELECT training_use, count(*) FROM documents WHERE {_LEFT} GROUP BY 1")
    }
    denied = (
        "SELECT host, training_use_by, count(*), coalesce(sum(num_tokens), 0)::BIGINT AS tokens FROM documents"
        f" WHERE {_LEFT} AND training_use = 'denied' GROUP BY ALL ORDER BY tokens DESC, 1, 2 LIMIT {_MOST_ROWS}"
    )
    by_kind: dict[str, int] = dict(ask(f"SELECT signal.kind, count(*) FROM {_EACH} GROUP BY 1"))
    licenses = (
        f"SELECT signal.value, count(*) AS num, count(DISTINCT host) FROM {_EACH} WHERE signal.kind = 'license'"
        f" GROUP BY 1 ORDER BY num DESC, 1 LIMIT {_MOST_ROWS}"
    )
    (num_malformed,) = ask(
        f"SELECT coalesce(sum(malformed_signals), 0)::BIGINT FROM documents WHERE {_LEFT}"
    )[0]
    return PublisherSignals(
        num_denied=uses.get("denied", 0),
        num_allowed=uses.get("allowed", 0),
        num_unknown=uses.get("unknown", 0),
        num_malformed=int(num_malformed),
        kinds=tuple((kind, int(by_kind[kind])) for kind in KINDS if kind in by_kind),
        hosts=tuple(
            SignalRow(
                host=str(host or "no host"), kind=str(kind), num_documents=int(num), num_tokens=int(tokens)
            )
            for host, kind, num, tokens in ask(denied)
        ),
        licenses=tuple((str(value), int(num), int(hosts)) for value, num, hosts in ask(licenses)),
    )
