"""All outputs of a page and what they share, and the progress of one whose run has not ended."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from lineage.index.output_index import INDEX_FILE
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, StorageError
from pipeline.page.site import Site, aside
from pipeline.page.views.corpus import num_purged_tokens
from pipeline.page.views.unfinished import UnfinishedRun, is_begun, progress_of
from pipeline.recipe.load import recipe_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOutput:
    """An output of the list: what it holds, or how far its run is, that it has not begun (a job of the
    cluster may be about to), or why it cannot be read. `against` and `honours` name the outputs that its
    recipe does, `runs` the training runs that read it, each by its name and output."""

    name: str
    base: str
    url: str
    version: int | None = None
    num_tokens: int = 0
    num_shards: int = 0
    num_purges: int = 0
    against: tuple[str, ...] = ()
    honours: tuple[str, ...] = ()
    runs: tuple[tuple[str, str], ...] = ()
    is_begun: bool = True
    unfinished: UnfinishedRun | None = None
    wrong: str = ""


def routes(sites: Sequence[Site], home: str) -> Iterable[web.RouteDef]:
    """What answers the front page of several outputs."""

    async def show(request: web.Request) -> web.Response:
        listed = [await aside(_listed, site) for site in sites]
        shared: dict[tuple[str, str], list[str]] = {}
        for each in listed:
            for run in each.runs:
                shared.setdefault(run, []).append(each.name)
        by_place = {Folder(each.url).url: each.name for each in listed}
        return sites[0].show(
            request,
            "outputs",
            listed=listed,
            named=lambda url: by_place.get(Folder(url).url),
            shared=[(run, names) for (run, _), names in shared.items() if len(names) > 1],
        )

    return [web.get(home, show)]


def _listed(site: Site) -> ListedOutput:
    of_place = partial(ListedOutput, name=site.name, base=site.base, url=site.out.url)
    try:
        if not site.out.exists(INDEX_FILE):
            found = progress(site)
            return of_place(unfinished=found, is_begun=found is not None)
        index, lookup = site.index(), site.lookup()
        recipe = recipe_of(site.out)
        return of_place(
            version=index.version,
            num_tokens=index.num_tokens - num_purged_tokens(site.out, site.version),
            num_shards=len(index.shards),
            num_purges=len(lookup.purges()),
            against=recipe.dedup.against,
            honours=recipe.purges.honour,
            runs=tuple((run.run, run.output) for run in site.tracer().runs()),
        )
    except (StorageError, RecipeError, OSError, ValueError) as error:
        return of_place(wrong=str(error))


async def show_unfinished(site: Site, request: web.Request) -> web.Response:
    """How far a run has come; asked for again while it is at work, and led to the front page when it has
    ended."""
    found = await aside(progress, site)
    if found is None and not site.has_jobs:
        raise RecipeError(f"{site.out.url} holds no run: it has neither an index nor a plan")
    if "HX-Request" in request.headers:
        return site.show(request, "_progress", run=found)
    return site.show(request, "unfinished", run=found)


def progress(site: Site) -> UnfinishedRun | None:
    """How far the run of an output has come; None where it has not begun or has ended."""
    if site.out.exists(INDEX_FILE) or not is_begun(site.out):
        return None
    return progress_of(site.out, site.read_so_far, time.time())
