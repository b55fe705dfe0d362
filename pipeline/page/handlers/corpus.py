"""The front page of an output, what it is made of, its thresholds, its report, and SQL over its views."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlencode

from aiohttp import web

from lineage.index.names import REPORT_FILE
from lineage.recipe import RecipeError
from lineage.store.queries.query import QueryError, query
from pipeline.page.guard import ALONE, HEADERS
from pipeline.page.lists import MOST_IDS
from pipeline.page.notes import SavedQuery
from pipeline.page.site import Site, aside
from pipeline.page.views.corpus import read_front, shape_of
from pipeline.page.views.sql import LIMITS, VIEWS, csv_of, doc_ids_of, plot_of
from pipeline.page.views.thresholds import (
    changed_documents,
    draggable_rules,
    has_whole_ledger,
    ledger_call,
    run_call,
    setting_of,
    tune_call,
)

_MOST_ROWS: Final = 200
_TUNE_SECONDS: Final = 600.0
_DOC_ID: Final = re.compile(rb'<code class="doc-id">([0-9a-f]{32})</code>')


def routes(site: Site) -> Iterable[web.RouteDef]:
    """What answers the front page, report and sql."""
    pages = _Corpus(site)
    return [
        web.get(site.base, pages.front),
        web.get(f"{site.base}shape", pages.shape),
        web.get(f"{site.base}thresholds", pages.thresholds),
        web.get(f"{site.base}thresholds/bars", pages.threshold_bars),
        web.get(f"{site.base}thresholds/tuned", pages.tuned),
        web.get(f"{site.base}report", pages.report),
        web.get(f"{site.base}sql", pages.sql),
        web.post(f"{site.base}sql", pages.save),
        web.get(f"{site.base}sql.csv", pages.csv),
    ]


class _Corpus:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def front(self, request: web.Request) -> web.Response:
        site = self._site
        values = await aside(lambda: read_front(site.out, site.index(), site.version))
        return site.show(request, "front", has_ledger=await aside(has_whole_ledger, site.out), **values)

    async def shape(self, request: web.Request) -> web.Response:
        """What the corpus is made of: it reads whole columns, so a page asks for it once it stands."""
        site = self._site
        found = await aside(site.remembered, "shape", lambda: shape_of(site.out, site.version))
        return site.piece(request, "_shape", "What the corpus is made of", distributions=found)

    async def thresholds(self, request: web.Request) -> web.Response:
        out = self._site.out
        has_ledger = await aside(has_whole_ledger, out)
        call = "" if has_ledger else await aside(ledger_call, out)
        return self._site.show(request, "thresholds", has_ledger=has_ledger, ledger_call=call)

    async def threshold_bars(self, request: web.Request) -> web.Response:
        """Every rule's values; from the ledger, so a page asks for them once it stands."""
        site = self._site
        found = await aside(site.remembered, "thresholds", lambda: draggable_rules(site.out, site.version))
        return site.piece(request, "_thresholds", "Thresholds", rules=found)

    async def tuned(self, request: web.Request) -> web.Response:
        """What another threshold changes, as `sluice tune` says."""
        site, rule = self._site, request.query.get("rule", "")
        setting = await aside(setting_of, site.out, rule, request.query.get("threshold", ""))
        recipe = await aside(site.out.read, "recipe.toml")
        with tempfile.NamedTemporaryFile(suffix=".toml") as file:  # an output may lie in an object store
            file.write(recipe)
            file.flush()
            answers = await site.commands.ask(
                "tune",
                file.name,
                "--from",
                site.out.url,
                "--set",
                setting,
                "--examples",
                str(MOST_IDS),
                seconds=_TUNE_SECONDS,
            )
        found = answers[0]
        place = request.rel_url.path_qs
        changed = changed_documents(
            found["examples"],
            found["total"],
            lambda outcome, ids: site.lists.put(f"{outcome} with {setting}", place, ids),
        )
        return site.piece(
            request,
            "_tuned",
            f"What {setting} changes",
            found=found,
            changed=changed,
            setting=setting,
            tune_call=tune_call(site.out, setting),
            run_call=await aside(run_call, site.out, setting, "NEW"),
        )

    async def report(self, _request: web.Request) -> web.Response:
        out = self._site.out
        try:
            page = await aside(out.read, REPORT_FILE)
        except FileNotFoundError as error:
            raise RecipeError(
                f"{out.url} has no report yet: sluice report {shlex.quote(out.url)} writes it"
            ) from error
        # What the crawl wrote is escaped there, so only the report itself can have this element.
        linked = _DOC_ID.sub(rb'<a href="document/\1"><code>\1</code></a>', page)
        return web.Response(body=linked, content_type="text/html", charset="utf-8", headers=ALONE)

    async def sql(self, request: web.Request) -> web.Response:
        asked = request.query.get("q", "").strip()
        values: dict[str, object] = {"found": None, "plot": None, "key": "", "wrong": ""}
        try:
            found = await aside(query, self._site.out, asked, self._site.version, LIMITS) if asked else None
        except QueryError as error:  # what was asked stands there to be put right
            values["wrong"] = str(error)
        else:
            if found is not None:
                ids = doc_ids_of(found)
                key = self._site.lists.put(f"SQL: {asked[:80]}", request.rel_url.path_qs, ids) if ids else ""
                values |= {"found": found, "plot": plot_of(found), "key": key}
        return self._site.show(
            request,
            "sql",
            400 if values["wrong"] else 200,
            asked=asked,
            most=_MOST_ROWS,
            views=VIEWS,
            saved=self._site.notes.queries(),
            **values,
        )

    async def csv(self, request: web.Request) -> web.Response:
        found = await aside(query, self._site.out, request.query.get("q", ""), self._site.version, LIMITS)
        headers = {**HEADERS, "Content-Disposition": 'attachment; filename="lineage.csv"'}
        body = await aside(csv_of, found.columns, found.rows)
        return web.Response(body=body, content_type="text/csv", charset="utf-8", headers=headers)

    async def save(self, request: web.Request) -> web.Response:
        """Save a query under a name, or remove one."""
        form = await request.post()
        act, name, asked = (str(form.get(field, "")).strip() for field in ("act", "name", "q"))
        if act == "save":
            self._site.notes.save(SavedQuery(name=name, sql=asked))
        elif act == "forget":
            self._site.notes.forget(name)
        else:
            raise RecipeError(f"act {act!r}: expected save or forget")
        place = f"{self._site.base}sql" + (f"?{urlencode({'q': asked})}" if asked else "")
        raise web.HTTPSeeOther(place, headers=HEADERS)
