"""The figures of a record, each with the SQL that gives it (`tables`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from pipeline.record.tables import RecordTables
from stages.steps.catalogue import CATALOGUE

Row = Mapping[str, Any]

_FIGURES: Final[tuple[tuple[str, str, str], ...]] = (
    ("documents", "documents that the record is of", "SELECT count(*) FROM used"),
    ("tokens", "tokens of those documents, each document once",
     "SELECT coalesce(sum(num_tokens), 0)::BIGINT FROM used"),
    ("bytes", "bytes of those documents' text in UTF-8", "SELECT coalesce(sum(num_bytes), 0)::BIGINT FROM used"),
    ("read_tokens", "tokens that the model has read; what was read twice counts twice",
     "SELECT sum(read_tokens)::BIGINT FROM used"),
    ("readings", "times that a part of a document stood in a sequence of a training batch",
     "SELECT sum(readings)::BIGINT FROM used"),
    ("domains", "registered domains of those documents", "SELECT count(DISTINCT domain) FROM used"),
    ("without_domain", "of those documents, without a registered domain",
     "SELECT count(*) FROM used WHERE domain IS NULL"),
    ("languages", "languages that were recognised in those documents", "SELECT count(DISTINCT language) FROM used"),
    ("purged_and_read", "of those documents, deleted after the model had read them",
     "SELECT count(*) FROM used WHERE purged IS NOT NULL"),
    ("without_date", "of those documents, without a time of capture",
     "SELECT count(*) FROM used WHERE captured_at IS NULL"),
    ("kept", "documents that cleaning kept and that are not deleted, read or not",
     "SELECT count(*) FROM documents WHERE status = 'kept' AND purged IS NULL"),
    ("kept_tokens", "tokens of the documents that were kept",
     "SELECT coalesce(sum(num_tokens), 0)::BIGINT FROM documents WHERE status = 'kept' AND purged IS NULL"),
    ("records_in", "documents that came in, before cleaning", "SELECT count(*) FROM documents"),
    ("rejected", "documents that a rule removed", "SELECT count(*) FROM documents WHERE status = 'rejected'"),
    ("duplicates", "documents that were removed as copies of others",
     "SELECT count(*) FROM documents WHERE status = 'duplicate'"),
    *((*step.figure, f"SELECT count(*) FROM documents WHERE status = 'rejected' AND stage = '{stage}'")
      for stage, step in CATALOGUE.items() if step.figure is not None),
    ("personal_data", "pieces of personal data that were replaced",
     "SELECT coalesce(sum(count), 0)::BIGINT FROM edits JOIN used USING (out, doc_id) WHERE edits.stage = 'pii'"),
    ("purges", "later deletions from the finished data", "SELECT count(*) FROM purges"),
    ("purged", "documents that those deletions took", "SELECT count(DISTINCT (out, doc_id)) FROM purged"),
)  # fmt: skip
_SUMS: Final = (
    "count(*) AS documents, coalesce(sum(num_tokens), 0)::BIGINT AS tokens,"
    " coalesce(sum(num_bytes), 0)::BIGINT AS bytes, sum(read_tokens)::BIGINT AS read_tokens"
)
_PERIOD: Final = "min(captured_at) AS first, max(captured_at) AS last"
TABLES: Final[Mapping[str, str]] = {
    "sources": f"SELECT source, {_SUMS}, {_PERIOD} FROM used GROUP BY source ORDER BY source",
    "languages": f"SELECT coalesce(language, 'und') AS language, {_SUMS} FROM used GROUP BY 1"
    " ORDER BY tokens DESC, language",
    "domains": f"SELECT domain, {_SUMS} FROM used WHERE domain IS NOT NULL GROUP BY domain ORDER BY bytes DESC, domain",
    "period": f"SELECT {_PERIOD} FROM used",
    "steps": "SELECT stage, sum(num_in)::BIGINT AS num_in, sum(num_rejected)::BIGINT AS num_rejected FROM steps"
    " GROUP BY stage ORDER BY min(position), stage",
    "rules": "SELECT stage, rule, sum(num)::BIGINT AS num FROM step_rules GROUP BY stage, rule ORDER BY num DESC, rule",
    "personal_data": "SELECT kind, sum(count)::BIGINT AS num FROM edits JOIN used USING (out, doc_id)"
    " WHERE edits.stage = 'pii' GROUP BY kind ORDER BY num DESC, kind",
    "purges": 'SELECT purge_id, "at", reason, num_documents FROM purges ORDER BY "at", purge_id',
}
"""The tables of a record, by name."""
LARGE: Final = 0.03
"""C(2025) 8311 final, section 2.1: a public data set of more than this share of the public data is named."""
MOST_DOMAINS: Final = 100_000
"""Domains that a record lists, the largest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number of the record, None where nothing gives it."""

    name: str
    value: int | None
    unit: str
    sql: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFigures:
    """All that lineage says: single numbers, and tables by name (`TABLES`)."""

    figures: tuple[Figure, ...]
    tables: Mapping[str, list[Row]]

    def value(self, name: str) -> int | None:
        """The number of that name."""
        return next(figure.value for figure in self.figures if figure.name == name)

    def top_domains(self, *, small: bool) -> list[Row]:
        """The domains that the EU's form wants, by size of retained content: the top 10% of them; of a small provider
        the lower of the top 5% and 1,000 (C(2025) 8311 final, section 2.3)."""
        num = self.value("domains") or 0
        wanted = min(ceil(num * 0.05), 1000) if small else ceil(num * 0.1)
        return self.tables["domains"][:wanted]


def collect(tables: RecordTables) -> RecordFigures:
    """Every figure and table."""
    figures = tuple(
        Figure(name=name, value=tables.value(sql), unit=unit, sql=sql) for name, unit, sql in _FIGURES
    )
    limited = {"domains": f" LIMIT {MOST_DOMAINS}"}
    found: dict[str, list[Row]] = {
        name: [*tables.rows(sql + limited.get(name, ""))] for name, sql in TABLES.items()
    }
    return RecordFigures(figures=figures, tables=found)
