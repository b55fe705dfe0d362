"""runs: the training runs that read this output."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from urllib.parse import urlencode

import pyarrow.compute as pc
from aiohttp import web

from lineage.recipe import RecipeError, whole_number
from lineage.store.delta import read_table
from pipeline.page.guard import ALONE, HEADERS
from pipeline.page.site import Site, aside
from pipeline.page.views.ablations import ablations_of, report_of
from pipeline.page.views.runs import (
    Metrics,
    ShownRun,
    has_traces,
    metrics_of,
    profile_page,
    purges_of_run,
    shown_run,
)


def routes(site: Site) -> Iterable[web.RouteDef]:
    """What answers below runs."""
    pages = _Runs(site)
    return [
        web.get(f"{site.base}runs", pages.list_all),
        web.get(f"{site.base}runs/{{run}}", pages.show),
        web.get(f"{site.base}ablations/{{key}}/report", pages.ablation),
        web.get(f"{site.base}runs/{{run}}/step", pages.step),
        web.get(f"{site.base}runs/{{run}}/metrics.json", pages.metrics),
        web.get(f"{site.base}runs/{{run}}/purges", pages.purges),
        web.get(f"{site.base}runs/{{run}}/profile", pages.profile),
    ]


class _Runs:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def list_all(self, request: web.Request) -> web.Response:
        runs = await aside(lambda: self._site.tracer().runs())
        return self._site.show(request, "runs", runs=runs, ablations=await aside(ablations_of, runs))

    async def ablation(self, request: web.Request) -> web.Response:
        """The report of an ablation, as `sluice mix report` wrote it."""
        key = request.match_info["key"]
        page = await aside(lambda: report_of(self._site.tracer().runs(), key))
        return web.Response(body=page, content_type="text/html", charset="utf-8", headers=ALONE)

    async def show(self, request: web.Request) -> web.Response:
        shown = await self._shown(request)
        metrics: Metrics = await aside(metrics_of, shown.run.output)
        traced = await aside(has_traces, shown.run.output)
        return self._site.show(request, "run", shown=shown, metrics=metrics, traced=traced)

    async def step(self, request: web.Request) -> web.Response:
        """The documents of a step, or of one of its rows."""
        step, row = (whole_number(request.query.get(name, "").strip()) for name in ("step", "row"))
        if step is None:
            raise RecipeError(f"step {request.query.get('step', '')!r}: expected a whole number")
        wanted = f"{request.match_info['run']}:{step}" + ("" if row is None else f":{row}")
        raise web.HTTPFound(f"{self._site.base}search?{urlencode({'q': wanted})}", headers=HEADERS)

    async def metrics(self, request: web.Request) -> web.Response:
        metrics: Metrics = await aside(metrics_of, (await self._shown(request)).run.output)
        return web.Response(text=metrics.as_json(), content_type="application/json", headers=HEADERS)

    async def profile(self, request: web.Request) -> web.Response:
        """What the run's traces say, as `sluice train profile` writes it."""
        page = await aside(profile_page, (await self._shown(request)).run.output)
        return web.Response(text=page, content_type="text/html", headers=ALONE)

    async def purges(self, request: web.Request) -> web.Response:
        """What the run read of every purge; worked out by inverting its order, so it is asked for."""
        site, name = self._site, request.match_info["run"]
        found = await aside(lambda: purges_of_run(site.out, site.lookup(), name, self._placed()))
        return site.piece(request, "_run_purges", f"Purges and run {name}", found=found)

    async def _shown(self, request: web.Request) -> ShownRun:
        """The run that the URL names."""
        site, name = self._site, request.match_info["run"]
        shown: ShownRun = await aside(lambda: shown_run(site.out, site.tracer(), name))
        return shown

    def _placed(self) -> dict[str, list[bytes]]:
        """The documents with tokens that each purge took."""
        purged = read_table(self._site.out, "purged")
        of_purge: dict[str, list[bytes]] = defaultdict(list)
        placed = purged.filter(pc.is_valid(purged["shard"]))
        for purge_id, doc_id in zip(
            placed["purge_id"].to_pylist(), placed["doc_id"].to_pylist(), strict=True
        ):
            of_purge[purge_id].append(doc_id)
        return of_purge
