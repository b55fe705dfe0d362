"""search: documents by any of their names, or by words of their texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import urlencode

from aiohttp import web

from lineage.recipe import RecipeError, whole_number
from lineage.store.rows import DocumentRow
from lineage.trace.tracer import Tracer
from pipeline.page.guard import HEADERS
from pipeline.page.site import Site, aside
from pipeline.page.views.basket import items_of, named_by, purged_among
from pipeline.page.views.batch_rows import BatchRead, documents_of, read_batch
from pipeline.page.views.search import MOST_FOUND, find, is_keyed, named_like, named_step
from pipeline.page.views.words import FIRST_TEXT, TextPlace, WordSearch, find_words, words_of
from pipeline.page.views.written import NamesInText, several_names


def routes(site: Site) -> Iterable[web.RouteDef]:
    """What answers search."""
    return [web.get(f"{site.base}search", _Search(site).search)]


class _Search:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def search(self, request: web.Request) -> web.Response:
        wanted = request.query.get("q", "").strip()
        if not wanted:
            raise RecipeError("expected an id, a hash, a URL, a host, a place or words to look for")
        tracer = await aside(self._site.tracer)
        batch = await aside(self._batch, tracer, wanted)
        if batch is not None:
            what = (
                f"step {batch.step}{'' if batch.row is None else f', row {batch.row}'} of run {batch.run.run}"
            )
            key = self._site.lists.put(what, request.rel_url.path_qs, documents_of(batch))
            return self._site.show(request, "batch", wanted=wanted, batch=batch, what=what, key=key)
        found = await aside(find, tracer.lookup, tracer, wanted)
        several = None if found is not None and found.rows else several_names(wanted)
        if several is not None and not is_keyed(wanted):
            return await self._several(request, tracer, wanted, several)
        if found is None:
            return await self._words(request, tracer, wanted)
        title = found.what + (f" ({found.note})" if found.note else "")
        key = self._site.lists.put(title, request.rel_url.path_qs, [row.doc_id for row in found.rows])
        if found.num == 1:
            place = f"{self._site.base}document/{found.rows[0].doc_id.hex()}"
            raise web.HTTPFound(place + (f"?list={key}" if found.note else ""), headers=HEADERS)
        purged = await aside(self._site.lookup(tracer).purged, [row.doc_id for row in found.rows])
        return self._site.show(
            request,
            "found",
            200 if found.rows else 404,
            wanted=wanted,
            found=found,
            purged_ids={row.doc_id for row in purged},
            most=MOST_FOUND,
            key=key,
        )

    def _batch(self, tracer: Tracer, wanted: str) -> BatchRead | None:
        """What a step of a run read, or a row of it; None where that is not what is asked for."""
        site = self._site
        place = named_step(tracer, wanted)
        return None if place is None else read_batch(site.out, site.index(), tracer, place, site.tokenizer())

    async def _several(
        self, request: web.Request, tracer: Tracer, wanted: str, written: NamesInText
    ) -> web.Response:
        """Several ids and URLs, as a mail has them: what each names."""
        lookup = self._site.lookup(tracer)
        some = replace(written, names=written.names[:MOST_FOUND])
        named = await aside(lambda: named_by(lookup, items_of(lookup, some)))
        ids = [row.doc_id for entry in named for row in entry.rows]
        values: dict[str, object] = {
            "wanted": wanted,
            "text": "\n".join(name.written for name in written.names),
            "named": named,
            "purged_ids": await aside(purged_among, lookup, named),
            "num_names": len(written.names),
            "num_found": sum(bool(entry.rows) for entry in named),
            "key": self._site.lists.put(f"{len(named)} names", request.rel_url.path_qs, ids),
        }
        return self._site.show(request, "several", 200 if ids else 404, **values)

    async def _words(self, request: web.Request, tracer: Tracer, wanted: str) -> web.Response:
        words = words_of(wanted.removeprefix("words:").strip())
        start = TextPlace(*(whole_number(request.query.get(name, "0")) or 0 for name in TextPlace._fields))
        site = self._site
        searched, rows = await aside(self._look, tracer, words, start)
        named = [] if start != FIRST_TEXT else await aside(named_like, site.lookup(tracer), words)
        key = site.lists.put(
            f"words {wanted}", request.rel_url.path_qs, [find.doc_id for find in searched.finds]
        )
        more = None
        if searched.next is not None:
            more = f"{site.base}search?{urlencode({'q': wanted, **searched.next._asdict()})}"
        values: dict[str, object] = {
            "wanted": wanted,
            "searched": searched,
            "named": named,
            "rows": rows,
            "key": key,
            "more": more,
        }
        return site.show(request, "words", **values)

    def _look(
        self, tracer: Tracer, words: tuple[str, ...], start: TextPlace
    ) -> tuple[WordSearch, dict[bytes, DocumentRow]]:
        site = self._site
        searched = find_words(site.out, site.index(), words, start)
        rows = site.lookup(tracer).documents([find.doc_id for find in searched.finds])
        # Of a record that two sources have read, the kept document.
        return searched, {row.doc_id: row for row in sorted(rows, key=lambda row: row.status == "kept")}
