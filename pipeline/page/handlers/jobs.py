"""jobs: what runs on a cluster, by the address of its dashboard, and what each job has printed of its
progress."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from aiohttp import web

from pipeline.page.site import Site

_SECONDS: Final = 60.0
_LAST_LINES: Final = 200


def routes(site: Site, address: str) -> Iterable[web.RouteDef]:
    """What answers below jobs; `site` shows it. A job's output that is one of the page's leads to its
    pages."""

    async def list_all(request: web.Request) -> web.Response:
        jobs = await site.commands.ask("jobs", "--address", address, seconds=_SECONDS)
        by_place = {place.url: place.base for place in site.places}
        return site.show(request, "jobs", jobs=jobs, address=address, by_place=by_place)

    async def show(request: web.Request) -> web.Response:
        job_id = request.match_info["job_id"]
        jobs = await site.commands.ask("jobs", "--address", address, seconds=_SECONDS)
        job = next((job for job in jobs if job["id"] == job_id), None)
        if job is None:
            raise ValueError(f"the cluster at {address} has no job {job_id!r}")
        printed = await site.commands.ask("jobs", "--address", address, "--logs", job_id, seconds=_SECONDS)
        lines = printed["logs"].splitlines()
        return site.piece(
            request, "_job", f"Job {job_id}", job=job, lines=lines[-_LAST_LINES:], num_lines=len(lines)
        )

    return [web.get(f"{site.home}jobs", list_all), web.get(f"{site.home}jobs/{{job_id}}", show)]
