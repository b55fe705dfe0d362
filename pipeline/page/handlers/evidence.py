"""signals, prove: what publishers say of training, and proofs of what a run has read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlencode

from aiohttp import web

from lineage.recipe import RecipeError
from pipeline.page.guard import HEADERS
from pipeline.page.site import Site, aside
from pipeline.page.views.evidence.proof import (
    ShownProof,
    linked_subject,
    make_proof,
    named_run,
    subjects_of,
)
from pipeline.page.views.evidence.signals import shown_signals


def routes(site: Site) -> Iterable[web.RouteDef]:
    """What answers signals and prove."""
    pages = _Evidence(site)
    return [
        web.get(f"{site.base}signals", pages.signals),
        web.get(f"{site.base}prove", pages.prove),
        web.post(f"{site.base}prove", pages.ask),
        web.get(f"{site.base}proof.json", pages.proof_file),
    ]


class _Evidence:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def signals(self, request: web.Request) -> web.Response:
        site = self._site
        found = await aside(site.remembered, "signals", lambda: shown_signals(site.out, site.version))
        return site.show(request, "signals", found=found)

    async def prove(self, request: web.Request) -> web.Response:
        """The form, and the proof that a link names. It holds no text: a text is named by its digest."""
        if "subject" not in request.query:
            return await self._form(request)
        try:
            proof = await aside(self._linked, request.query)
        except RecipeError as error:
            return await self._form(request, wrong=str(error))
        return await self._form(request, proof=proof)

    async def ask(self, request: web.Request) -> web.Response:
        """Look up what the form names, and lead to the proof."""
        form = await request.post()
        asked = {name: str(form.get(name, "")) for name in ("run", "kind", "value")}
        try:
            proof = await aside(self._asked, asked)
        except RecipeError as error:
            return await self._form(request, asked=asked, wrong=str(error))
        place = urlencode({"run": proof.run, "kind": proof.kind, "subject": proof.subject})
        raise web.HTTPSeeOther(f"{self._site.base}prove?{place}", headers=HEADERS)

    async def proof_file(self, request: web.Request) -> web.Response:
        proof = await aside(self._linked, request.query)
        headers = {**HEADERS, "Content-Disposition": 'attachment; filename="proof.json"'}
        return web.Response(body=proof.data, content_type="application/json", headers=headers)

    async def _form(
        self,
        request: web.Request,
        *,
        asked: Mapping[str, str] | None = None,
        proof: ShownProof | None = None,
        wrong: str = "",
    ) -> web.Response:
        """The form as it was sent, with what came of it."""
        query = request.query
        shown = {"run": query.get("run", ""), "kind": query.get("kind", "url"), "value": ""}
        if proof is not None and proof.kind != "text":
            shown["value"] = proof.subject
        runs = await aside(lambda: self._site.tracer().runs())
        return self._site.show(
            request,
            "prove",
            status=400 if wrong else 200,
            runs=[run.run for run in runs],
            asked=asked or shown,
            proof=proof,
            wrong=wrong,
        )

    def _asked(self, asked: Mapping[str, str]) -> ShownProof:
        run = named_run(self._site.tracer().runs(), asked["run"])
        return make_proof(run, *subjects_of(asked["kind"], asked["value"]))

    def _linked(self, query: Mapping[str, str]) -> ShownProof:
        run = named_run(self._site.tracer().runs(), query.get("run", ""))
        return make_proof(run, *linked_subject(query.get("kind", ""), query.get("subject", "")))
