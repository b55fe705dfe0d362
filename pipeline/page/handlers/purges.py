"""basket and purges: what is to be purged is put together, planned, carried out once, and proved.

Nothing changes by a GET, a reload or a second click: every act is a POST with the form's secret, is answered
by a redirect, and a plan is carried out by the first call alone."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from lineage.ids import content_hash, parse_id
from lineage.purge.execution import PurgeRequest, PurgeResult, apply, clean_only, unfinished_purge
from lineage.purge.plan import PurgeError
from lineage.recipe import RecipeError
from pipeline.inspect.hooks import apply_hooks, plan_hooks
from pipeline.inspect.trace.tracing import UNREADABLE
from pipeline.page.guard import HEADERS
from pipeline.page.jobs import Job
from pipeline.page.notes import KINDS, BasketItem
from pipeline.page.render import basket_button
from pipeline.page.site import Site, aside
from pipeline.page.views.basket import items_of, named_by, purged_among
from pipeline.page.views.plan import (
    MOST_SHOWN,
    BasketPlan,
    TrainingOnPurged,
    plan_basket,
    recorded_purge,
    training_on_purged,
)
from pipeline.page.views.written import NamesInText, read_written

_MOST_NAMES: Final = 10_000
_MOST_READ: Final = 64
"""Texts of which the basket can say again what was read of them."""
_MOST_WITHOUT: Final = 50
_MOST_CHARS: Final = 200
"""Of the lines without a name that are shown, and of each of them."""
_HOLD_SECONDS: Final = 10.0
_VERIFY_SECONDS: Final = 24 * 3600.0
_TRAINING_SECONDS: Final = 2.0
"""How long the page of a purge waits for what trained on its documents."""


def routes(site: Site) -> Iterable[web.RouteDef]:
    """What answers basket and below purges/."""
    pages = _Purges(site)
    base = site.base
    return [
        web.get(f"{base}basket", pages.basket),
        web.post(f"{base}basket", pages.change_basket),
        web.post(f"{base}basket/plan", pages.begin_plan),
        web.get(f"{base}purges", pages.list_all),
        web.post(f"{base}purges/finish", pages.finish),
        web.get(f"{base}purges/plan/{{plan}}", pages.plan),
        web.post(f"{base}purges/plan/{{plan}}", pages.carry_out),
        web.get(f"{base}purges/work/{{job}}", pages.work),
        web.get(f"{base}purges/{{purge_id}}", pages.show),
        web.get(f"{base}purges/{{purge_id}}/training", pages.training),
        web.post(f"{base}purges/{{purge_id}}/verify", pages.verify),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class BasketText:
    """What was read of a text for the basket: how many URLs and ids, and the lines without
    any."""

    num_urls: int
    num_ids: int
    num_without: int
    without: tuple[str, ...]

    @classmethod
    def of(cls, written: NamesInText) -> BasketText:
        """With the first lines that have no name."""
        num_ids = sum(name.kind == "doc" for name in written.names)
        return cls(
            num_urls=len(written.names) - num_ids,
            num_ids=num_ids,
            num_without=len(written.without),
            without=tuple(line[:_MOST_CHARS] for line in written.without[:_MOST_WITHOUT]),
        )


class _Purges:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._read: OrderedDict[str, BasketText] = OrderedDict()
        self._at_work: dict[str, asyncio.Task[TrainingOnPurged]] = {}

    async def basket(self, request: web.Request) -> web.Response:
        self._site.refuse_purge()
        items, lookup = self._site.notes.basket(), self._site.lookup()
        named = await aside(named_by, lookup, items[:MOST_SHOWN])
        return self._site.show(
            request,
            "basket",
            named=named,
            purged_ids=await aside(purged_among, lookup, named),
            num_items=len(items),
            read=self._read.get(request.query.get("read", "")),
            notes_place=self._site.notes.place,
            unfinished=unfinished_purge(self._site.out),
        )

    async def change_basket(self, request: web.Request) -> web.Response:
        self._site.refuse_purge()
        form = await request.post()
        act, kind, value, other = (
            str(form.get(name, "")).strip() for name in ("act", "kind", "value", "instead")
        )
        notes = self._site.notes
        if act == "put" and kind == "lines":
            raise self._see(await self._put_written(value))
        items = await aside(self._items, kind, value)
        if act == "put":
            notes.put(items)
        elif act == "take":
            notes.take(notes.basket() if kind == "all" else items)
        elif act == "instead":
            for item in items:
                notes.put_instead(item, *self._items(kind, other))
        else:
            raise RecipeError(f"act {act!r}: expected put, take or instead")
        place = self._came_from(request)
        is_page = place.partition("?")[0] != f"{self._site.base}basket"
        raise self._see(f"{place}#{basket_button(kind, value)}" if is_page else place)

    async def _put_written(self, text: str) -> str:
        """Put the ids and URLs of a text into the basket; the place that says what was read of it."""
        written = await aside(read_written, text)
        if len(written.names) > _MOST_NAMES:
            raise RecipeError(
                f"{len(written.names):,} ids and URLs: expected up to {_MOST_NAMES:,}; sluice purge --from takes more"
            )
        self._site.notes.put(await aside(lambda: items_of(self._site.lookup(), written)))
        key = content_hash(text.encode("utf-8", "replace")).hex()[:12]
        self._read[key] = BasketText.of(written)
        while len(self._read) > _MOST_READ:
            self._read.popitem(last=False)
        return f"{self._site.base}basket?read={key}"

    def _items(self, kind: str, value: str) -> list[BasketItem]:
        """What a form names: an item, or all documents of a list that was shown."""
        if kind == "all":
            return []
        if kind == "list":
            listed = self._site.lists.get(value)
            if listed is None:
                raise RecipeError(
                    "that list is not kept here any more: show it again, then put it into the basket"
                )
            return [BasketItem(kind="doc", value=doc_id.hex()) for doc_id in listed.doc_ids]
        if kind not in KINDS:
            raise RecipeError(f"kind {kind!r}: expected one of {', '.join(KINDS)}")
        if kind == "doc":
            value = parse_id(value.lower()).hex()
        return [BasketItem(kind=kind, value=value)]

    def _came_from(self, request: web.Request) -> str:
        """The page of this output that a form was sent from; the basket where that is not known."""
        path = urlsplit(request.headers.get("Referer", ""))
        if path.path.startswith(self._site.base) and "/purges/" not in path.path:
            return path.path + (f"?{path.query}" if path.query else "")
        return f"{self._site.base}basket"

    def _see(self, place: str) -> web.HTTPSeeOther:
        return web.HTTPSeeOther(place, headers=HEADERS)

    async def begin_plan(self, request: web.Request) -> web.Response:
        self._site.refuse_purge()
        site, items = self._site, self._site.notes.basket()
        promotes = "promote_duplicates" in await request.post()

        async def work(job: Job) -> BasketPlan:
            job.say(f"looking for what {len(items):,} items of the basket name, and for what repeats it")
            return await aside(plan_basket, site.out, site.index(), items, promotes=promotes)

        job = site.jobs.begin("plan", work)
        raise self._see(f"{site.base}purges/plan/{job.name}")

    async def plan(self, request: web.Request) -> web.Response:
        self._site.refuse_purge()
        job = self._site.jobs.get(request.match_info["plan"])
        if job.state != "done" or not isinstance(job.result, BasketPlan) or "HX-Request" in request.headers:
            return self._working(request, job, f"{self._site.base}purges/plan/{job.name}")
        ids = [entry.planned.doc_id for entry in job.result.documents]
        return self._site.show(
            request,
            "plan",
            job=job,
            plan=job.result,
            key=self._site.lists.put("the plan of a purge", request.rel_url.path_qs, ids) if ids else "",
            most=MOST_SHOWN,
            unfinished=unfinished_purge(self._site.out),
        )

    async def carry_out(self, request: web.Request) -> web.Response:
        site = self._site
        site.refuse_purge()
        form = await request.post()
        by, reason = str(form.get("by", "")).strip(), str(form.get("reason", "")).strip()
        if not by or not reason:
            raise RecipeError("a purge needs a name and a reason: go back and give both")
        plan = site.jobs.get(request.match_info["plan"])
        if not isinstance(plan.result, BasketPlan):
            raise PurgeError("the plan is not ready yet, or failed: nothing is carried out")
        planned: BasketPlan = plan.result
        if not planned.num_documents:
            raise PurgeError("nothing to purge: none of it is found, or all of it is purged already")

        async def work(job: Job) -> list[str]:
            done: list[str] = []
            request = {"num_items": planned.num_items, "asked": [asdict(row) for row in planned.asked]}
            for match in planned.matches:
                job.say(f"{match.kind}: {len(match.values):,} named")
                order = PurgeRequest(match=match, by=by, reason=reason)
                applied: PurgeResult = await aside(
                    apply,
                    site.out,
                    order,
                    plan_hooks(site.out),
                    apply_hooks(job.say),
                    wait_seconds=_HOLD_SECONDS,
                )
                if applied.finished:
                    job.say(f"finished purge {applied.finished}, which an earlier call had begun")
                for missed in applied.exports.out_of_reach:
                    job.say(f"export {missed.name} at {missed.place} is out of reach: {missed.reason}")
                if applied.purge_id:
                    site.notes.keep_request(applied.purge_id, request)
                done += [name for name in (applied.finished, applied.purge_id) if name and name not in done]
            site.notes.take(planned.items)
            await self._prove(job, done)
            return done

        job = site.jobs.follow(plan, "purge", work)
        raise self._see(f"{site.base}purges/work/{job.name}")

    async def finish(self, _request: web.Request) -> web.Response:
        """End a purge that began and did not end, with the name and the reason that it has."""
        site = self._site
        site.refuse_purge()
        purge_id = unfinished_purge(site.out)
        if purge_id is None:
            raise PurgeError("every purge that began has ended")

        async def work(job: Job) -> list[str]:
            await aside(clean_only, site.out, (), apply_hooks(job.say), wait_seconds=_HOLD_SECONDS)
            await self._prove(job, [purge_id])
            return [purge_id]

        raise self._see(f"{site.base}purges/work/{site.jobs.begin('purge', work).name}")

    async def _prove(self, job: Job, purge_ids: list[str]) -> None:
        """What `sluice verify` finds, in a process of its own; kept for the pages of these purges."""
        job.say("sluice verify: every checksum, balance and purged span of the output")
        found = await self._site.commands.ask("verify", self._site.out.url, seconds=_VERIFY_SECONDS)
        job.say("all checks passed" if found["ok"] else f"{len(found['problems']):,} problems")
        for purge_id in purge_ids:
            self._site.notes.keep_proof(purge_id, found)

    async def work(self, request: web.Request) -> web.Response:
        job = self._site.jobs.get(request.match_info["job"])
        return self._working(request, job, f"{self._site.base}purges/work/{job.name}")

    def _working(self, request: web.Request, job: Job, place: str) -> web.Response:
        """How far a job has come: a piece that asks for itself again until it is over, and leads to what came
        of it."""
        ends = place
        if job.state == "done" and isinstance(job.result, list):
            ends = f"{self._site.base}purges/{job.result[0]}" if len(job.result) == 1 else place
        if "HX-Request" in request.headers:
            answer = self._site.show(request, "_work", job=job, place=place)
            if job.state == "done" and (ends != place or isinstance(job.result, BasketPlan)):
                answer.headers["HX-Redirect"] = ends
            return answer
        if ends != place:
            raise self._see(ends)
        return self._site.show(request, "work", job=job, place=place)

    async def list_all(self, request: web.Request) -> web.Response:
        purges = await aside(self._site.lookup().purges)
        return self._site.show(
            request,
            "purges",
            purges=sorted(purges, key=lambda purge: purge.at, reverse=True),
            unfinished=unfinished_purge(self._site.out),
        )

    async def show(self, request: web.Request) -> web.Response:
        site, purge_id = self._site, request.match_info["purge_id"]
        purge = await aside(lambda: recorded_purge(site.out, site.index(), purge_id))
        ids = [row.doc_id for row in purge.documents]
        values: dict[str, object] = {
            "purge": purge,
            "key": site.lists.put(f"purge {purge_id}", request.rel_url.path, ids) if ids else "",
            "proof": site.notes.proof(purge_id),
            "asked_for": site.notes.request(purge_id),
            "purge_id": purge_id,
            "training": None,
            "training_unknown": "",
        }
        task = self._begin_training(purge_id)
        # It is part of the page where it takes no long time, and always where the page is to be printed: what
        # a script would put there later may not be there yet when a browser prints.
        await asyncio.wait({task}, timeout=None if "print" in request.query else _TRAINING_SECONDS)
        if task.done():
            values |= self._training_found(task)
        return site.show(request, "purge", **values)

    async def training(self, request: web.Request) -> web.Response:
        """What trained on its documents; a page asks for it that was shown before it was known."""
        site, purge_id = self._site, request.match_info["purge_id"]
        task = self._begin_training(purge_id)
        await asyncio.wait({task})
        found = self._training_found(task)
        title = f"Training and purge {purge_id}"
        return site.piece(request, "_purge_training", title, purge_id=purge_id, **found)

    def _begin_training(self, purge_id: str) -> asyncio.Task[TrainingOnPurged]:
        """Work it out once for all who ask while it is worked out."""
        task = self._at_work.get(purge_id)
        if task is None:
            task = asyncio.create_task(aside(training_on_purged, self._site.out, purge_id))
            self._at_work[purge_id] = task
            task.add_done_callback(lambda task: self._end_training(purge_id, task))
        return task

    def _end_training(self, purge_id: str, task: asyncio.Task[TrainingOnPurged]) -> None:
        self._at_work.pop(purge_id)
        if not task.cancelled():
            task.exception()  # seen, where nobody waits for it any more: whoever asks next begins anew

    def _training_found(self, task: asyncio.Task[TrainingOnPurged]) -> dict[str, object]:
        """What came of it; an error is shown in its place, so that the rest of the proof stands."""
        try:
            return {"training": task.result(), "training_unknown": ""}
        except (*UNREADABLE, RuntimeError) as error:
            return {"training": None, "training_unknown": str(error) or repr(error)}

    async def verify(self, request: web.Request) -> web.Response:
        """Prove it again. It changes nothing in the output."""
        site, purge_id = self._site, request.match_info["purge_id"]
        await aside(lambda: recorded_purge(site.out, site.index(), purge_id))

        async def work(job: Job) -> list[str]:
            await self._prove(job, [purge_id])
            return [purge_id]

        raise self._see(f"{site.base}purges/work/{site.jobs.begin('check', work).name}")
