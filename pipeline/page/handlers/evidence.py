"""signals, record, prove: what publishers say of training, the figures of a record, and proofs of what a run has
read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
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
from pipeline.page.views.evidence.record import call_of, shown_record
from pipeline.page.views.evidence.signals import shown_signals

_RECORD_SECONDS: Final = 3600.0


def routes(site: Site) -> Iterable[web.RouteDef]:
    """What answers signals, record and prove."""
    pages = _Evidence(site)
    return [
        web.get(f"{site.base}signals", pages.signals),
        web.get(f"{site.base}record", pages.record),
        web.get(f"{site.base}record/figures", pages.figures),
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

    async def record(self, request: web.Request) -> web.Response:
        """The form: the figures measure every text, so they are asked for."""
        return self._site.show(request, "record", runs=await self._runs(), chosen=[], found=None)

    async def figures(self, request: web.Request) -> web.Response:
        """The figures of all kept documents or of what some runs have read, worked out in a process of its own."""
        site, chosen = self._site, list(dict.fromkeys(request.query.getall("run", [])))
        if site.version is not None:
            raise RecipeError(
                f"this page shows version {site.version}, and a record is of the corpus as it is now: serve the"
                " page without --version"
            )
        runs = await aside(lambda: site.tracer().runs())
        outputs = [named_run(runs, name).output for name in chosen]
        row = await site.commands.ask(*call_of(site.out.url, outputs), seconds=_RECORD_SECONDS)
        found = shown_record(row, site.out.url, outputs)
        return site.show(request, "record", runs=[run.run for run in runs], chosen=chosen, found=found)

    async def _runs(self) -> list[str]:
        return [run.run for run in await aside(lambda: self._site.tracer().runs())]

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
        return self._site.show(
            request,
            "prove",
            400 if wrong else 200,
            runs=await self._runs(),
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
