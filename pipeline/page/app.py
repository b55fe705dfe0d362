"""The page as an application: its outputs, what each place is answered by, and what an error looks like.

Of one output the pages lie below the base of all, of several each below a name of its own. The output of a
run that has not ended shows how far it is in place of every page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from lineage.index.output_index import INDEX_FILE
from lineage.purge.plan import PurgeError
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, StorageError
from lineage.storage.lock import HeldError
from pipeline.page.guard import HEADERS, Access, Handler, guard
from pipeline.page.handlers import corpus, documents, evidence, jobs, outputs, purges, runs, search
from pipeline.page.notes import Notes
from pipeline.page.processes import Commands
from pipeline.page.render import environment
from pipeline.page.site import OutputLink, Site
from pipeline.page.waiting import waiting

_STATIC: Final = Path(__file__).parent / "static"
_STYLE: Final = Path(__file__).parent.parent / "report" / "style.css"
_TYPES: Final = {".js": "text/javascript", ".css": "text/css"}


def make_app(
    outs: Sequence[Folder],
    access: Access,
    *,
    version: int | None = None,
    read_only: bool = False,
    cluster: str | None = None,
) -> web.Application:
    """The page's application, to be served as `access` says, of these outputs as of a version of the corpus
    or now, and of the jobs of a `cluster`, by the address of its dashboard."""
    templates, commands = environment(), Commands()
    names = _names(outs)
    places = tuple(
        OutputLink(name=name, base=access.base if len(outs) == 1 else f"{access.base}{name}/", url=out.url)
        for name, out in zip(names, outs, strict=True)
    )
    sites = [
        Site(
            out=out,
            name=place.name,
            base=place.base,
            home=access.base,
            places=places,
            version=version,
            read_only=read_only,
            has_jobs=cluster is not None,
            templates=templates,
            notes=Notes(out),
            commands=commands,
        )
        for out, place in zip(outs, places, strict=True)
    ]
    app = web.Application(
        middlewares=[guard(access), waiting(_head(sites)), _errors(sites), _unfinished(sites)],
        client_max_size=16 << 20,
    )
    app.router.add_get(f"{access.base}static/{{name}}", _static)
    if len(sites) > 1:
        app.add_routes(outputs.routes(sites, access.base))
    if cluster is not None:
        app.add_routes(jobs.routes(sites, cluster))
    for site in sites:
        for module in (corpus, documents, search, evidence, runs, purges):
            app.add_routes(module.routes(site))

    async def finish(_app: web.Application) -> None:
        for site in sites:
            await site.jobs.finish()

    app.on_shutdown.append(finish)
    return app


def _names(outs: Sequence[Folder]) -> list[str]:
    """A name for each output in the paths of its pages: the last of its own, and a number where several have
    it."""
    names: list[str] = []
    for out in outs:
        last = out.url.rstrip("/").rpartition("/")[2]
        name = (
            "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in last).strip(".")
            or "out"
        )
        number = 1
        while (f"{name}-{number}" if number > 1 else name) in [*names, "static", "login", "jobs"]:
            number += 1
        names.append(f"{name}-{number}" if number > 1 else name)
    return names


async def _static(request: web.Request) -> web.Response:
    """A file of the page's own: its style sheet, which is the report's, and its scripts."""
    name = request.match_info["name"]
    path = _STYLE if name == "style.css" else _STATIC / name
    known = {file.name for file in _STATIC.iterdir() if file.is_file()} | {"style.css"}
    if name not in known or path.suffix not in _TYPES:
        raise web.HTTPNotFound(headers=HEADERS)
    headers = {**HEADERS, "Cache-Control": "max-age=300"}
    return web.Response(
        body=path.read_bytes(), content_type=_TYPES[path.suffix], charset="utf-8", headers=headers
    )


def _site_of(sites: Sequence[Site], request: web.Request) -> Site | None:
    """The output whose page is asked for."""
    return next((site for site in sites if request.path.startswith(site.base)), None)


def _head(sites: Sequence[Site]) -> Callable[[web.Request], str | None]:
    """What stands before the main part of a page that takes long."""

    def head(request: web.Request) -> str | None:
        site = _site_of(sites, request)
        if request.path.startswith(f"{sites[0].home}static/"):
            return None
        wanted = request.query.get("q", "") if request.path.endswith("/search") else ""
        return (site or sites[0]).render(
            request,
            "waiting",
            title=wanted or request.path.removeprefix(site.base if site else sites[0].home),
            wanted=wanted,
            is_of_all=site is None,
        )

    return head


def _errors(sites: Sequence[Site]) -> Any:
    """What is unknown or wrong becomes a page that says so."""

    @web.middleware
    async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        site = _site_of(sites, request) or sites[0]
        try:
            return await handler(request)
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
            return site.show(request, "error", error.status, message="There is no such page.")
        except (StorageError, PurgeError, RecipeError, HeldError, ValueError) as error:
            template = "_error" if "HX-Request" in request.headers else "error"
            # A piece of a page is put in its place whatever it says; htmx puts no answer there that is an
            # error.
            status = 200 if template == "_error" else 404 if request.method == "GET" else 409
            return site.show(request, template, status, message=str(error))
        except OSError as error:
            template = "_error" if "HX-Request" in request.headers else "error"
            message = f"{error}: it cannot be read or written. `sluice verify` says what an output lacks"
            return site.show(request, template, 200 if template == "_error" else 500, message=message)

    return errors


def _unfinished(sites: Sequence[Site]) -> Any:
    """A run that has not ended has no pages yet: they show how far it is."""
    finished: set[str] = set()

    @web.middleware
    async def unfinished(request: web.Request, handler: Handler) -> web.StreamResponse:
        site = _site_of(sites, request)
        if site is None or request.path.startswith(f"{site.home}static/") or jobs.is_of_jobs(site, request):
            return await handler(request)
        if site.base not in finished and not site.out.exists(INDEX_FILE):
            return await outputs.show_unfinished(site, request)
        finished.add(site.base)
        if request.headers.get("HX-Target") == "progress":
            # A browser that has waited for the run's end gets the output's pages, not one inside another.
            return web.Response(headers={**HEADERS, "HX-Redirect": site.base})
        return await handler(request)

    return unfinished
