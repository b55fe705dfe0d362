"""What publishers say of the use of a page, as the step url looks for it: signals, their columns, and rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final, Protocol

from lineage.pages import page_of
from lineage.recipe import errors_about
from stages.document import Document, Finding
from stages.rights.decide import denies, recorded_columns
from stages.rights.options import DENIABLE, RightsTable
from stages.rights.page import header_signals, html_signals, part_with_signals
from stages.rights.signal import KINDS, Signal
from stages.rights.sites import Sites, read_sites, site_files
from stages.rules import Rule

_RULES: Final = {
    kind: Rule(
        stage="url",
        name=f"rights.{kind}",
        side="yes",
        help=f"a page with the signal, where `rights.deny` names it: {KINDS[kind].help}",
    )
    for kind in DENIABLE
}
_LOOKED_AT: Final = 1024
"""Bytes of a page in which UTF-16 and UTF-32 have a zero: they alone do not hold ASCII as it is."""
_IN_HTML: Final = frozenset({"tdmrep", "noai", "noimageai", "noindex", "license"})


class Pages(Protocol):
    """How a document's page is read: by `stages.html.page`, which imports extractors that decide nothing here."""

    def with_page(self, document: Document, /) -> tuple[Document, str]:
        """The document with its page, and the page's HTML, which is empty where it passes a bound."""
        ...


class RightsReader:
    """The signals of a document by `[rights]`: of its response headers, its HTML and its site."""

    def __init__(self, table: RightsTable, pages: Pages) -> None:
        self._table, self._pages = table, pages
        self._reads_html = not _IN_HTML.isdisjoint(table.record)

    def prepare(self) -> None:
        """Read the files of sites now; RecipeError if one cannot be."""
        _ = self._sites

    def read(self, document: Document) -> tuple[Document, list[Signal]]:
        """The document with its columns, and with its page where that was read; and the signals of `record`."""
        agents = self._table.agents
        found = list(header_signals(document.headers, agents)) if document.headers else []
        if document.is_html and self._reads_html:
            document, html = self._html_of(document)
            # The bytes as they came are looked at first, where that can be: to encode the page takes as long.
            is_plain = document.content_encoding is None and b"\0" not in document.payload[:_LOOKED_AT]
            body = document.payload if is_plain else html.encode("utf-8", "replace")
            if html and (part := part_with_signals(body)) != "none":
                found += html_signals(html, agents, head_only=part == "head")
        if self._sites is not None and (page := page_of(document.url)) is not None:
            found += self._sites.signals(page, agents)
        kept = [signal for signal in found if signal.kind in self._table.record]
        return document.but(labels=(*document.labels, *recorded_columns(kept))), kept

    def findings(self, signals: Sequence[Signal]) -> Iterator[Finding]:
        """What the rules of `deny` find."""
        for kind in self._table.deny:
            yield _RULES[kind].finding(float(denies(kind, signals)))

    def _html_of(self, document: Document) -> tuple[Document, str]:
        """The document with its page, which parse then does not read again, and the HTML of that; none of a page
        that passes a bound of parse."""
        try:
            return self._pages.with_page(document)
        except Exception:  # noqa: BLE001 - it raises again in parse, and is about that page alone there
            return document, ""

    @cached_property
    def _sites(self) -> Sites | None:
        if not self._table.robots:
            return None
        with errors_about("rights.robots"):
            return read_sites(site_files(self._table.robots), self._table.agents)


def rights_rules(table: RightsTable) -> tuple[Rule, ...]:
    """The rules of `deny`, in order."""
    return tuple(_RULES[kind] for kind in table.deny)
