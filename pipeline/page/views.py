"""What the lineage page shows, gathered from the store, and its templates."""

from __future__ import annotations

import shlex
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

    def __init__(self, out: Folder, base: str, version: int | None) -> None:
        """`base`: the path that every page lies below, with a slash at both ends. `version`: that of the corpus which
        is shown, None for the newest."""
        self._environment = escaping("pipeline.page", "templates")
        self._environment.filters["value"] = human_value
        self._shown = {"out": out.url, "out_word": shlex.quote(out.url), "base": base, "as_of": version}

    def render(self, template: str, **values: Any) -> str:
        """One page as HTML."""
        return self._environment.get_template(f"{template}.html").render(**self._shown, **values)


def read_front(out: Folder, version: int | None = None) -> dict[str, Any]:
    """The funnel, the purges and the training runs, as of a version of the corpus or now."""
    index = read_index(out)
    steps, rules, purges, runs = answers(
        out,
        [
            "SELECT * FROM steps ORDER BY source, position",
            _RULES,
            'SELECT * FROM purges ORDER BY "at"',
            "SELECT run, output FROM training_runs ORDER BY run",
        ],
        version,
    )
    return {
        "num_tokens": index.num_tokens,
        "version": index.version if version is None else version,
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


def find_documents(out: Folder, wanted: str, limit: int, version: int | None = None) -> list[DocumentHistory]:
    """The documents that `wanted` names, as of a version of the corpus or now: an id or hash (32 hex digits), a URL,
    SOURCE/N:TOKEN, or a host."""
    tracer = make_tracer(out.url, version)
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
