"""document/ID: a document's page, and what is worked out on demand: its rules, its record, its tokens, what
differs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from aiohttp import web

from lineage.ids import parse_id
from lineage.recipe import RecipeError, whole_number
from lineage.store.rows import DocumentRow
from pipeline.inspect.explain.refetch import refetch
from pipeline.page.lists import ShownList
from pipeline.page.site import Site, aside
from pipeline.page.views.document import (
    cluster_of,
    explained_rules,
    num_edits,
    ranked_rules,
    rule_bars,
    run_lines,
    texts_of,
    without_rules,
)
from pipeline.page.views.evidence.signals import signals_of_document
from pipeline.page.views.texts import MOST_CHARS, SHOWN_CHARS, clean_text, masked, shown, side_by_side
from pipeline.page.views.tokens import TOKENS_A_PAGE, tokens_of
from pipeline.recipe.load import recipe_of
from stages.document import Document

_EXPLAIN_SECONDS: Final = 180.0
_HEAD_CHARS: Final = 20_000
_ID: Final = "{doc_id:[0-9a-fA-F]{32}}"


def routes(site: Site) -> Iterable[web.RouteDef]:
    """What answers below document/."""
    pages = _Documents(site)
    place = f"{site.base}document/{_ID}"
    return [
        web.get(place, pages.show),
        web.post(place, pages.show_unmasked),
        web.get(f"{place}/explain", pages.explain),
        web.get(f"{place}/record", pages.record),
        web.get(f"{place}/tokens", pages.tokens),
        web.get(f"{place}/diff", pages.diff),
    ]


class _Documents:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def show(self, request: web.Request) -> web.Response:
        return self._site.show(request, "document", **await aside(self._gather, request, unmasked=False))

    async def show_unmasked(self, request: web.Request) -> web.Response:
        """With the personal data in its texts, for somebody who gives a name: it is noted first."""
        by = str((await request.post()).get("by", ""))
        self._site.notes.looked(by, request.match_info["doc_id"].lower())
        return self._site.show(request, "document", **await aside(self._gather, request, unmasked=True))

    def _gather(self, request: web.Request, *, unmasked: bool) -> dict[str, object]:
        site, doc_id = self._site, parse_id(request.match_info["doc_id"].lower())
        tracer = site.tracer()
        history = tracer.by_id(doc_id)
        num_chars = min(whole_number(request.query.get("chars", "")) or SHOWN_CHARS, MOST_CHARS)
        relatives = cluster_of(tracer.lookup, history.row)
        member_ids = [entry.member.doc_id for entry in relatives.members]
        lookup = site.lookup(tracer)
        purged = lookup.purged(member_ids)
        in_catalogue_order = request.query.get("order") == "catalogue"
        ranked = ranked_rules(history.decisions)
        others = (
            history.decisions
            if ranked.nearest is None or in_catalogue_order
            else without_rules(history.decisions)
        )
        return {
            "history": history,
            "row": history.row,
            "ranked": ranked,
            "in_catalogue_order": in_catalogue_order,
            "stages": rule_bars(others),
            "edits": num_edits(history.decisions),
            "signals": signals_of_document(tracer.lookup, history.row),
            "texts": texts_of(site.out, site.index(), history, num_chars, unmasked=unmasked),
            "more_chars": min(10 * num_chars, MOST_CHARS),
            "relatives": relatives,
            "cluster_key": site.lists.put(
                f"cluster of {relatives.num_members:,}",
                f"{site.base}document/{doc_id.hex()}#cluster",
                member_ids,
            )
            if member_ids
            else "",
            "purged_ids": {row.doc_id for row in purged},
            "lines": run_lines(tracer, history.exposures),
            "looked_masked": not unmasked,
            **_beside(site, request.query.get("list", ""), doc_id),
        }

    async def explain(self, request: web.Request) -> web.Response:
        """Every step and rule, measured again in a process of its own."""
        doc_id = request.match_info["doc_id"].lower()
        found = await self._site.commands.ask(
            "explain", self._site.out.url, "--doc", doc_id, seconds=_EXPLAIN_SECONDS
        )
        return self._site.piece(
            request,
            "_explained",
            "Every step, measured again",
            found=found,
            ranked=explained_rules(found["steps"]),
            doc_id=doc_id,
        )

    async def record(self, request: web.Request) -> web.Response:
        """The crawl record, read again from the input, and the text that the extractor takes of it."""
        doc_id = request.match_info["doc_id"].lower()
        row, document, heads = await aside(self._record, doc_id)
        explained = await self._site.commands.ask(
            "explain", self._site.out.url, "--doc", doc_id, seconds=_EXPLAIN_SECONDS
        )
        # A record that is text already has none to be extracted.
        taken = document.text or next(
            (step.get("text", "") for step in explained["steps"] if step["stage"] == "parse"), ""
        )
        text = await aside(lambda: shown(masked(taken[:MOST_CHARS], row), SHOWN_CHARS))
        return self._site.piece(
            request,
            "_record",
            "The crawl record",
            doc_id=doc_id,
            text=text,
            row=row,
            document=document,
            heads=heads,
        )

    def _record(self, doc_id: str) -> tuple[DocumentRow, Document, list[str]]:
        site = self._site
        history = site.tracer().by_id(parse_id(doc_id))
        found = refetch(site.out, recipe_of(site.out), history)
        heads = [
            head[:_HEAD_CHARS].decode("utf-8", "replace").replace("\r\n", "\n").strip()
            for head in found.heads
        ]
        return history.row, found.document, heads

    async def tokens(self, request: web.Request) -> web.Response:
        """Some of the document's tokens with their ids."""
        doc_id, first = (
            request.match_info["doc_id"].lower(),
            whole_number(request.query.get("from", "0")) or 0,
        )
        row = (await aside(self._site.tracer().by_id, parse_id(doc_id))).row
        site = self._site
        found = await aside(lambda: tokens_of(site.out, site.index(), row, first, site.tokenizer()))
        return site.piece(
            request,
            "_tokens",
            "Tokens",
            tokens=found,
            row=row,
            doc_id=doc_id,
            first=first,
            a_page=TOKENS_A_PAGE,
        )

    async def diff(self, request: web.Request) -> web.Response:
        """What differs between the clean texts of two documents, personal data masked."""
        doc_id, other = request.match_info["doc_id"].lower(), request.query.get("with", "").lower()
        left, right = await aside(self._diff, other, doc_id)
        return self._site.piece(
            request, "_diff", "What differs", left=left, right=right, left_id=other, right_id=doc_id
        )

    def _diff(self, *doc_ids: str) -> Any:
        site, texts = self._site, []
        tracer, index = site.tracer(), site.index()
        for doc_id in doc_ids:
            history = tracer.by_id(parse_id(doc_id))
            text = None if history.purged is not None else clean_text(site.out, index, history.row)
            if text is None:
                raise RecipeError(f"document {doc_id} has no clean text here: it was rejected or purged")
            texts.append(masked(text[:MOST_CHARS], history.row))
        return side_by_side(texts[0], texts[1], SHOWN_CHARS)


def _beside(site: Site, key: str, doc_id: bytes) -> dict[str, object]:
    """The list that one came from, and what stands before and behind the document in it."""
    listed: ShownList | None = site.lists.get(key)
    if listed is None or doc_id not in listed.doc_ids:
        return {"listed": None}
    at = listed.doc_ids.index(doc_id)
    return {
        "listed": listed,
        "list_key": key,
        "list_at": at + 1,
        "previous": listed.doc_ids[at - 1].hex() if at else None,
        "next": listed.doc_ids[at + 1].hex() if at + 1 < len(listed.doc_ids) else None,
    }
