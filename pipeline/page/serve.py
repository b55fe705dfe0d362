"""`sluice lineage OUT --serve`: a small page on loopback to search a document, read its history and prepare a purge.
As of a version of the corpus it shows what counted then, and prepares no purge: a purge is of the corpus as it is now.

Opening it takes the token of the address that is printed, which becomes a cookie that no other site can send. Browsers
send a cookie to every port of a host: so this one has its port in its name, and a path that no other server has. A
request is refused unless its Host is the address served (so no other name can be bound to it) and, where it changes
something, its Origin too. Everything shown is escaped, and the page may load nothing.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from lineage.index.names import REPORT_FILE
from lineage.index.output_index import read_index
from lineage.purge.execution import PurgeRequest, apply, unfinished_purge
from lineage.purge.plan import PurgeError, PurgeMatch, plan_purge
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, StorageError
from lineage.storage.lock import HeldError
from lineage.store.delta import check_version
from lineage.store.query import query
from pipeline.inspect.hooks import apply_hooks, plan_hooks
from pipeline.inspect.tracing import exposures_of, make_tracer
from pipeline.page.views import LineagePage, find_documents, read_front

_HEADERS = {
    "Content-Security-Policy":
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Cache-Control": "no-store",
}  # fmt: skip
_REPORT_HEADERS = {
    **_HEADERS,
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:",
}
_MOST_SHOWN = 200
_PLACE = re.compile(r"report|sql|document/[0-9a-f]{32}")
_DOC_ID = re.compile(rb'<code class="doc-id">([0-9a-f]{32})</code>')

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def serve(out: Folder, port: int, version: int | None = None, *, as_json: bool = False) -> int:
    """Serve the page of a finished output until interrupted, as of a version of the corpus or now; prints its address,
    token included. StoreError if the corpus never had that version."""
    read_index(out)
    if version is not None:
        check_version(out, version)
    token = secrets.token_urlsafe(24)
    listener = socket.create_server(("127.0.0.1", port))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    url = f"http://{address}/?token={token}"
    print(json.dumps({"url": url}) if as_json else f"{url}\nCtrl-C stops it.", flush=True)
    web.run_app(make_app(out, token, address, version), sock=listener, print=None, access_log=None, handle_signals=True)
    return 0


def make_app(out: Folder, token: str, address: str, version: int | None = None) -> web.Application:
    """The page's application, to be served at `address` (host:port), as of a version of the corpus or now."""
    base = f"/{secrets.token_urlsafe(12)}/"
    site = _Site(out, base, version)
    app = web.Application(middlewares=[_guard(token, address, base), _errors(site)])
    app.router.add_get(base, site.front)
    app.router.add_get(f"{base}search", site.search)
    app.router.add_get(f"{base}document/{{doc_id}}", site.document)
    app.router.add_get(f"{base}sql", site.sql)
    app.router.add_get(f"{base}report", site.report)
    app.router.add_get(f"{base}purge", site.plan)
    app.router.add_post(f"{base}purge", site.purge)
    return app


def _guard(token: str, address: str, base: str) -> Any:
    """Refuse what does not come from the page itself, opened by somebody who has the token."""
    hosts = {address, address.replace("127.0.0.1", "localhost")}
    # The name keeps servers apart that a browser holds cookies of; the path keeps the token from all other ports.
    cookie = f"sluice-{address.rpartition(':')[2]}"
    session = secrets.token_urlsafe(24)

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.host not in hosts:
            raise web.HTTPForbidden(text="refused: this page is served on loopback only", headers=_HEADERS)
        if request.method != "GET" and request.headers.get("Origin") not in {f"http://{host}" for host in hosts}:
            raise web.HTTPForbidden(text="refused: the request comes from another page", headers=_HEADERS)
        given = request.query.get("token")
        if given is not None and hmac.compare_digest(given.encode(), token.encode()):
            # A deep link: whoever has the token may be led to any place of the page, and nowhere else.
            wanted = request.query.get("to", "")
            answer = web.HTTPFound(base + (wanted if _PLACE.fullmatch(wanted) else ""), headers=_HEADERS)
            answer.set_cookie(cookie, session, path=base, httponly=True, samesite="Strict")
            return answer
        if not hmac.compare_digest(request.cookies.get(cookie, "").encode(), session.encode()):
            raise web.HTTPUnauthorized(text="open the address that was printed, token included", headers=_HEADERS)
        return await handler(request)

    return guard


def _errors(site: _Site) -> Any:
    """What is unknown or wrong becomes a page that says so."""

    @web.middleware
    async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except (StorageError, PurgeError, RecipeError, HeldError, ValueError) as error:
            return site.show("error", status=404 if request.method == "GET" else 409, message=str(error))

    return errors


class _Site:
    """The handlers of one output, as of a version of it or now."""

    def __init__(self, out: Folder, base: str, version: int | None) -> None:
        self._out, self._base, self._version = out, base, version
        self._page = LineagePage(out, base, version)

    def show(self, template: str, *, status: int = 200, **values: Any) -> web.Response:
        """A template as an answer."""
        html = self._page.render(template, **values)
        return web.Response(text=html, content_type="text/html", status=status, headers=_HEADERS)

    async def front(self, request: web.Request) -> web.Response:
        return self.show("front", **await asyncio.to_thread(read_front, self._out, self._version))

    async def search(self, request: web.Request) -> web.Response:
        wanted = request.query.get("q", "").strip()
        histories = await asyncio.to_thread(find_documents, self._out, wanted, _MOST_SHOWN, self._version)
        if len(histories) == 1:
            raise web.HTTPFound(f"{self._base}document/{histories[0].doc_id.hex()}", headers=_HEADERS)
        return self.show("found", wanted=wanted, histories=histories)

    async def document(self, request: web.Request) -> web.Response:
        doc_id = request.match_info["doc_id"]
        histories = await asyncio.to_thread(find_documents, self._out, doc_id, 1, self._version)
        return self.show("document", history=histories[0], fields=histories[0].as_json(_MOST_SHOWN))

    async def sql(self, request: web.Request) -> web.Response:
        asked = request.query.get("q", "").strip()
        found = await asyncio.to_thread(query, self._out, asked, self._version) if asked else None
        return self.show("sql", asked=asked, found=found, most=_MOST_SHOWN)

    async def report(self, request: web.Request) -> web.Response:
        page = await asyncio.to_thread(self._out.read, REPORT_FILE)
        # What the crawl wrote is escaped there, so only the report itself can have this element.
        linked = _DOC_ID.sub(rb'<a href="document/\1"><code>\1</code></a>', page)
        return web.Response(body=linked, content_type="text/html", charset="utf-8", headers=_REPORT_HEADERS)

    async def plan(self, request: web.Request) -> web.Response:
        self._refuse_as_of_a_version()
        match = _match(request.query.get("kind", ""), request.query.get("value", ""))
        return self.show("plan", **await asyncio.to_thread(self._planned, match))

    def _refuse_as_of_a_version(self) -> None:
        if self._version is not None:
            raise RecipeError(
                f"this page shows version {self._version}, and a purge is of the corpus as it is now: serve the page"
                " without --version"
            )

    def _planned(self, match: PurgeMatch) -> dict[str, Any]:
        plan = plan_purge(self._out, match, plan_hooks(self._out))
        placed = sorted({row.doc_id for row in plan.rows if row.shard is not None})
        urls = {
            history.doc_id: history.row.url
            for history in make_tracer(self._out.url).histories(sorted({row.doc_id for row in plan.rows})[:_MOST_SHOWN])
        }
        return {
            "match": match,
            "plan": plan,
            "urls": urls,
            "exposures": exposures_of(self._out.url, placed),
            "shown": plan.rows[:_MOST_SHOWN],
            "unfinished": unfinished_purge(self._out),
        }

    async def purge(self, request: web.Request) -> web.Response:
        self._refuse_as_of_a_version()
        form = await request.post()
        by, reason = str(form.get("by", "")).strip(), str(form.get("reason", "")).strip()
        if not by or not reason:
            raise RecipeError("a purge needs a name and a reason: go back and give both")
        order = PurgeRequest(match=_match(str(form.get("kind", "")), str(form.get("value", ""))), by=by, reason=reason)
        applied = await asyncio.to_thread(
            apply, self._out, order, plan_hooks(self._out), apply_hooks(), wait_seconds=10.0
        )
        return self.show("purged", applied=applied)


def _match(kind: str, value: str) -> PurgeMatch:
    value = value.strip()
    if kind == "doc":
        return PurgeMatch(kind="doc", values=(value,))
    if kind == "url":
        return PurgeMatch(kind="url", values=(value,))
    if kind == "host":
        return PurgeMatch(kind="host", values=(value,))
    if kind == "domain":
        return PurgeMatch(kind="domain", values=(value,))
    raise RecipeError(f"kind {kind!r}: expected doc, url, host or domain")
