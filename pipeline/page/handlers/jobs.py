"""jobs: what runs on a cluster, by the address of its dashboard, how far each job's run is, and what it has
printed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any, Final

from aiohttp import web

from lineage.index.output_index import INDEX_FILE
from lineage.storage.folder import Folder, StorageError
from pipeline.page.handlers.outputs import progress
from pipeline.page.site import Site, aside

_SECONDS: Final = 60.0
_LAST_LINES: Final = 200


def is_of_jobs(site: Site, request: web.Request) -> bool:
    """Whether a request is for the jobs of the cluster, and for no page of an output."""
    return site.has_jobs and f"{request.path}/".startswith(f"{site.home}jobs/")


def routes(sites: Sequence[Site], address: str) -> Iterable[web.RouteDef]:
    """What answers below jobs. A job whose output is one of the page's leads to its pages, and shows how far
    its run is."""
    first = sites[0]
    by_place = {site.out.url: site for site in sites}

    async def ask(*more: str) -> Any:
        return await first.commands.ask("jobs", "--address", address, *more, seconds=_SECONDS)

    def site_of(output: str | None) -> Site | None:
        return by_place.get(Folder(output).url) if output else None

    async def is_bare() -> bool:
        """Whether there are no pages that this one could lead to: those of the only output."""
        return not await aside(first.out.exists, INDEX_FILE)

    async def list_all(request: web.Request) -> web.Response:
        listed = [(job, site_of(job["output"])) for job in await ask()]
        return first.show(request, "jobs", jobs=listed, address=address, is_bare=await is_bare())

    async def show(request: web.Request) -> web.Response:
        job_id = request.match_info["job_id"]
        job = next((job for job in await ask() if job["id"] == job_id), None)
        if job is None:
            raise ValueError(f"the cluster at {address} has no job {job_id!r}")
        lines = (await ask("--logs", job_id))["logs"].splitlines()
        site = site_of(job["output"])
        run, wrong = None, ""
        try:
            run = None if site is None else await aside(progress, site)
        except (StorageError, OSError, ValueError) as error:
            wrong = str(error)  # what it has printed says more than an output that cannot be read
        return first.piece(
            request,
            "_job",
            f"Job {job_id}",
            job=job,
            place=site,
            run=run,
            wrong=wrong,
            lines=lines[-_LAST_LINES:],
            num_lines=len(lines),
            output_word=shlex.quote(job["output"] or ""),
            address_word=shlex.quote(address),
            is_bare=await is_bare(),
            is_of_all=True,
        )

    return [web.get(f"{first.home}jobs", list_all), web.get(f"{first.home}jobs/{{job_id}}", show)]
