"""What the lineage page shows, gathered from the store, and its templates."""

from __future__ import annotations

from typing import Any

from lineage.ids import parse_id
from lineage.index.output_index import read_index
from lineage.recipe import whole_number
from lineage.storage.folder import Folder
from lineage.store.query import answers
from lineage.trace.document_history import DocumentHistory
from lineage.trace.tracer import UnknownError
from pipeline.inspect.tracing import make_tracer
from pipeline.report.data import human_value
from pipeline.report.render import escaping

_RULES = "SELECT rule, sum(num)::bigint AS num FROM step_rules GROUP BY 1 ORDER BY 2 DESC, 1"


class LineagePage:
    """The templates of one output's page; everything they show is escaped."""

    def __init__(self, out: Folder, base: str) -> None:
        """`base`: the path that every page lies below, with a slash at both ends."""
        self._environment = escaping("pipeline.page", "templates")
        self._environment.filters["value"] = human_value
        self._out, self._base = out, base

    def render(self, template: str, **values: Any) -> str:
        """One page as HTML."""
        return self._environment.get_template(f"{template}.html").render(out=self._out.url, base=self._base, **values)


def read_front(out: Folder) -> dict[str, Any]:
    """The funnel, the purges and the training runs."""
    index = read_index(out)
    steps, rules, purges, runs = answers(
        out,
        [
            "SELECT * FROM steps ORDER BY source, position",
            _RULES,
            'SELECT * FROM purges ORDER BY "at"',
            "SELECT run, output FROM training_runs ORDER BY run",
        ],
    )
    return {
        "num_tokens": index.num_tokens,
        "version": index.version,
        "steps": [
            row | {"rejected_sql": _listing(f"source = {_text(row['source'])} AND stage = {_text(row['stage'])}")}
            for row in steps.objects()
        ],
        "rules": [row | {"sql": _listing(f"rule = {_text(row['rule'])}")} for row in rules.objects()],
        "purges": purges.objects(),
        "runs": runs.objects(),
    }


def _listing(where: str) -> str:
    """The documents behind a figure, as a SELECT that a person may change."""
    return f"SELECT doc_id, url, rule, value, threshold, language FROM documents WHERE {where} LIMIT 200"


def _text(value: object) -> str:
    return "'" + str(value).replace("'", "''") + "'"


def find_documents(out: Folder, wanted: str, limit: int) -> list[DocumentHistory]:
    """The documents that `wanted` names: an id or hash (32 hex digits), a URL, SOURCE/N:TOKEN, or a host."""
    tracer = make_tracer(out.url)
    try:
        digest = parse_id(wanted)
    except ValueError:
        digest = None
    if digest is not None:
        try:
            return [tracer.by_id(digest)]
        except UnknownError:
            return tracer.by_hash(digest)[:limit]
    if "://" in wanted:
        return tracer.by_url(wanted)[:limit]
    place, _, token_text = wanted.rpartition(":")
    source, _, shard_text = place.rpartition("/")
    shard, token = whole_number(shard_text), whole_number(token_text)
    if source and shard is not None and token is not None:
        return tracer.by_token(source, shard, token)
    return tracer.by_host(wanted, limit)[0]
