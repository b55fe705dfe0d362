"""What an output has that is most like a name which it has not: a URL of the same host, an id that begins
alike."""

from __future__ import annotations

import difflib
from typing import Final

from lineage.ids import parse_id
from lineage.pages import named_host, page_of
from lineage.store.lookup import Lookup

_BESIDE: Final = 20
_NEAREST: Final = 3
_MOST_COMPARED: Final = 2000
"""Characters of a URL: difflib takes the square of them."""


def nearest(lookup: Lookup, name: str) -> list[str]:
    """The recorded ids or URLs that are most like this one, best first."""
    try:
        doc_id = parse_id(name)
    except ValueError:
        return nearest_urls(lookup, name)
    return [known.hex() for known in lookup.ids_beside(doc_id, _NEAREST)]


def nearest_urls(lookup: Lookup, url: str) -> list[str]:
    """The recorded URLs that are most like this one, best first: of its host, with and without `www.`.

    Only those beside it in the order of the host's URLs are compared, so a host of any size answers at
    once."""
    host = named_host(url)
    if host is None:
        return []
    page = page_of(url)
    spelt = url if page is None else page.spelt
    rest = spelt.encode("utf-8", "replace").decode().rpartition("://")[2]
    path = "/" + rest.partition("/")[2]
    other = host.removeprefix("www.") if host.startswith("www.") else f"www.{host}"
    found: set[str] = set()
    for name in (host, other):
        for scheme in ("http://", "https://", ""):
            found.update(lookup.urls_beside(name, f"{scheme}{name}{path}", _BESIDE))
    likeness = difflib.SequenceMatcher(b=rest[:_MOST_COMPARED])

    def rank(known: str) -> tuple[float, str]:
        likeness.set_seq1(known.rpartition("://")[2][:_MOST_COMPARED])
        return -likeness.ratio(), known

    return sorted(found, key=rank)[:_NEAREST]
