"""A question to the lineage of an output, answered in this process.

For tests that want a fact of the lineage. A user's question is answered by a process of its own, which takes
half a second to start: tests/lineage/store/queries/test_sql.py holds that both give the same."""

from __future__ import annotations

from lineage.storage.folder import Folder
from lineage.store.queries.sql import QueryResult, questions


def query(out: Folder, sql: str, version: int | None = None) -> QueryResult:
    """As lineage.store.queries.query.query answers."""
    with questions(out, version, asked=[sql]) as ask:
        return ask(sql)
