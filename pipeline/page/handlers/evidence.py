"""signals, record, prove: what publishers say of training, the figures of a record, and proofs of what a run read."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from pipeline.page.site import Site, aside
from pipeline.page.views.evidence.signals import shown_signals


def routes(site: Site) -> Iterable[web.RouteDef]:
    """What answers signals, record and prove."""
    pages = _Evidence(site)
    return [
        web.get(f"{site.base}signals", pages.signals),
    ]


class _Evidence:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def signals(self, request: web.Request) -> web.Response:
        site = self._site
        found = await aside(site.remembered, "signals", lambda: shown_signals(site.out, site.version))
        return site.show(request, "signals", found=found)
