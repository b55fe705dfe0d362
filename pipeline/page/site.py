"""One output on the page: where it is served, what is kept beside it, and how an answer is made."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import jinja2
from aiohttp import web

from lineage.index.output_index import INDEX_FILE, Index, decode_index, read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.lookup import Lookup
from lineage.trace.tracer import Tracer
from pipeline.inspect.trace.tracing import make_tracer
from pipeline.page.guard import FORM_SECRET, HEADERS
from pipeline.page.jobs import Jobs
from pipeline.page.lists import RecentLists
from pipeline.page.notes import BasketItem, ItemKind, Notes
from pipeline.page.processes import Commands
from pipeline.page.views.unfinished import ReadProgress
from pipeline.report.tokens import tokenizer_of
from stages.tokens.tokenizer import Tokenizer

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLink:
    """An output on the page, as others link to it."""

    name: str
    base: str
    url: str


@dataclass(slots=True)
class _CachedRead:
    """What was read of the output last, and the bytes that it was read from."""

    index: Index | None = None
    data: bytes = b""
    tokenizer: Tokenizer | None = None
    tokenizer_hash: str | None = None
    answers: dict[str, tuple[bytes, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """`base` is the path that this output's pages lie below, `home` that of all outputs, which are `places`;
    `version` that of the corpus which is shown, None for the newest. Where it is `read_only` nothing is
    purged from here. `has_jobs`: the page shows those of a cluster too."""

    out: Folder
    name: str
    base: str
    home: str
    places: tuple[OutputLink, ...]
    version: int | None
    read_only: bool
    has_jobs: bool
    templates: jinja2.Environment
    notes: Notes
    commands: Commands
    lists: RecentLists = field(default_factory=RecentLists)
    jobs: Jobs = field(default_factory=Jobs)
    read_so_far: ReadProgress = field(default_factory=ReadProgress)
    _known: _CachedRead = field(default_factory=_CachedRead)

    @property
    def purges(self) -> bool:
        """Whether a purge can be prepared here: it is of the corpus as it is now."""
        return not self.read_only and self.version is None

    def refuse_purge(self) -> None:
        """RecipeError where no purge can be prepared or carried out here."""
        if self.version is not None:
            raise RecipeError(
                f"this page shows version {self.version}, and a purge is of the corpus as it is now: serve"
                " the page without --version"
            )
        if self.read_only:
            raise RecipeError("this page is served with --read-only: nothing is purged from here")

    def index(self) -> Index:
        """The output's index as it is now; it is parsed again only where it has changed."""
        try:
            data = self.out.read(INDEX_FILE)
        except FileNotFoundError:
            return read_index(self.out)  # whose error says what is the matter
        if self._known.index is None or data != self._known.data:
            self._known.index, self._known.data = decode_index(data, self.out.at(INDEX_FILE)), data
        return self._known.index

    def lookup(self, tracer: Tracer | None = None) -> Lookup:
        """Point lookups in the store as it is now; where they are the same as a `tracer`'s, those, whose
        tables are open already. (A version that is asked for decides what counts as purged.)"""
        return Lookup(self.out, self.version) if tracer is None or self.version is not None else tracer.lookup

    def tracer(self) -> Tracer:
        """Histories of the store as it is now."""
        return make_tracer(self.out.url, self.version)

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the shards; None where it is not at hand."""
        index = self.index()
        if self._known.tokenizer_hash != index.tokenizer.hash:
            try:
                self._known.tokenizer = tokenizer_of(self.out, index)
            except (RecipeError, OSError):
                self._known.tokenizer = None
            self._known.tokenizer_hash = index.tokenizer.hash
        return self._known.tokenizer

    def remembered(self, name: str, work: Callable[[], Answer]) -> Answer:
        """What `work` gives of this state of the corpus: worked out once, and again after a purge."""
        state = self.out.read(INDEX_FILE)
        known = self._known.answers.get(name)
        if known is None or known[0] != state:
            known = self._known.answers[name] = (state, work())
        answer: Answer = known[1]
        return answer

    def render(self, request: web.Request, template: str, /, **values: object) -> str:
        """What a template makes of these values and what every page shows."""
        return self.templates.get_template(f"{template}.html").render(**self._shown(request), **values)

    def show(
        self, request: web.Request, template: str, status: int = 200, /, **values: object
    ) -> web.Response:
        """A template as an answer."""
        html = self.render(request, template, **values)
        return web.Response(text=html, content_type="text/html", status=status, headers=HEADERS)

    def piece(self, request: web.Request, template: str, title: str, /, **values: object) -> web.Response:
        """A piece of a page, for the place that asked for it; as a page of its own for a browser without
        scripts."""
        if "HX-Request" in request.headers:
            return self.show(request, template, **values)
        return self.show(request, "piece", piece=f"{template}.html", title=title, **values)

    def _is_in(self, basket: frozenset[BasketItem], kind: ItemKind | Literal["list"], value: str) -> bool:
        """Whether the basket holds an item, or all documents of a list."""
        if kind != "list":
            return BasketItem(kind=kind, value=value) in basket
        listed = self.lists.get(value)
        return listed is not None and basket >= {
            BasketItem(kind="doc", value=doc_id.hex()) for doc_id in listed.doc_ids
        }

    def _shown(self, request: web.Request) -> dict[str, object]:
        basket = frozenset(self.notes.basket() if self.purges else ())
        return {
            "out": self.out.url,
            "out_word": shlex.quote(self.out.url),
            "name": self.name,
            "base": self.base,
            "home": self.home,
            "here": request.path,
            "places": self.places,
            "has_jobs": self.has_jobs,
            "as_of": self.version,
            "purges_here": self.purges,
            "num_in_basket": len(basket),
            "in_basket": lambda kind, value: self._is_in(basket, kind, value),
            "form_secret": request.get(FORM_SECRET, ""),
        }


async def aside(act: Callable[..., Answer], *given: Any, **named: Any) -> Answer:
    """What `act` gives, worked out on another thread."""
    return await asyncio.to_thread(act, *given, **named)
