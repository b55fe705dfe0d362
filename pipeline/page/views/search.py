"""What a person looks for, by any of its names: an id, a hash, a URL, a host, a domain, a place in a crawl
file, a token of a shard, a row of a training step; else words of the clean texts (`words`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lineage.ids import parse_id
from lineage.pages import named_host, registered_domain
from lineage.recipe import whole_number
from lineage.store.lookup import Lookup
from lineage.store.rows import DocumentRow, ShardSpan
from lineage.trace.nearest import nearest_urls
from lineage.trace.tracer import Tracer, UnknownError, one_each
from pipeline.page.notes import ItemKind
from pipeline.page.views.written import read_written

MOST_FOUND: Final = 200
_PLACE: Final = re.compile(r"(?P<file>.+?)[@:](?P<offset>\d{1,18})")
_TOKEN: Final = re.compile(r"(?P<source>[^:]+)/(?P<shard>\d{1,9}):(?P<token>\d{1,18})")
_STEP: Final = re.compile(r"(?P<run>.+?):(?P<step>\d{1,12})(:(?P<row>\d{1,9}))?")
_LABEL: Final = re.compile(r"[\w-]{2,63}")
MOST_NAMED: Final = 8
"""Hosts, and domains, that are offered for a word."""
_KEY: Final = re.compile(r"(?P<kind>host|domain|url|words):\s*(?P<value>.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDocuments:
    """Documents under the name `what`, in order: the first of `num`. `note` says how the name was understood,
    where it was not as it was spelt. `near` are recorded URLs that are most like one that is not. `whole`: the
    host or domain, by its kind and name, whose documents they are."""

    what: str
    rows: tuple[DocumentRow, ...]
    num: int
    note: str = ""
    near: tuple[str, ...] = ()
    whole: tuple[ItemKind, str] | None = None


def find(lookup: Lookup, tracer: Tracer, wanted: str) -> NamedDocuments | None:
    """The documents of a name that is no step of a run (`named_step`); None where it is none of a kind that we
    know, so that its words are looked for. UnknownError where nothing has it."""
    key = _KEY.fullmatch(wanted)
    if key is not None:
        value = key["value"].strip()
        by_kind = {"host": _of_host, "domain": _of_domain, "url": _of_url}
        return by_kind[key["kind"]](lookup, value) if key["kind"] in by_kind else None
    try:
        return _of_digest(lookup, tracer, parse_id(wanted.lower()))
    except ValueError:
        pass
    if "://" in wanted:
        as_given, names = _of_url(lookup, wanted), read_written(wanted).names
        if as_given.rows or [name.kind for name in names] != ["url"]:
            return as_given
        return _of_url(lookup, names[0].value)  # which brackets or a sentence enclose
    if " " in wanted or "\n" in wanted:
        return None
    for place in (_of_token, _of_place):
        found = place(lookup, tracer, wanted)
        if found is not None:
            return found
    return _of_page(lookup, wanted)


def is_keyed(wanted: str) -> bool:
    """Whether it says itself what it is: `host:`, `domain:`, `url:` or `words:` stands before it."""
    return _KEY.fullmatch(wanted) is not None


def named_like(lookup: Lookup, words: Sequence[str]) -> list[tuple[str, str]]:
    """Hosts and domains that bear one of these words, by kind and name: what a search for words may have meant."""
    found: dict[tuple[str, str], None] = {}
    for word in words:
        if _LABEL.fullmatch(word):
            found |= dict.fromkeys(lookup.names_with(word, MOST_NAMED))
        elif "." in word and (host := named_host(word)) is not None:
            if lookup.host(host, 1):
                found["host", host] = None
            if registered_domain(host) == host and lookup.ids_of_domain(host):
                found["domain", host] = None
    return list(found)


def _of_digest(lookup: Lookup, tracer: Tracer, digest: bytes) -> NamedDocuments:
    rows = lookup.documents([digest])
    if rows:
        return NamedDocuments(what=f"document {digest.hex()}", rows=(tracer.by_id(digest).row,), num=1)
    rows = one_each(lookup.by_hashes([digest]))
    if not rows:
        near = ", ".join(known.hex() for known in lookup.ids_beside(digest, 3))
        raise UnknownError(
            f"no document has the id or hash {digest.hex()}{f'; nearest: {near}' if near else ''}"
        )
    return _found(f"hash {digest.hex()}", rows)


def spellings(url: str) -> Iterator[str]:
    """How else a URL may be recorded: with a slash more or less at the end of its path."""
    yield url
    path, mark, rest = _split(url)
    _, colon, place = path.partition("://")
    if colon and "/" not in place:
        return  # the root with and without its slash is one URL
    yield f"{path[:-1] if path.endswith('/') else path + '/'}{mark}{rest}"


def recorded_spelling(lookup: Lookup, url: str, longer: Sequence[str] = ()) -> str:
    """A URL as documents of it are found, in one of the `longer` readings first; as it is given where there
    are none."""
    given = [
        each
        for reading in (*longer, url)
        for each in ([reading] if "://" in reading else [f"https://{reading}", f"http://{reading}"])
    ]
    found = lookup.of_urls([spelling for each in given for spelling in spellings(each)])
    return next((spelling for spelling, rows in found.items() if rows), url)


def _split(url: str) -> tuple[str, str, str]:
    at = min((i for i in (url.find("?"), url.find("#")) if i >= 0), default=len(url))
    return url[:at], url[at : at + 1], url[at + 1 :]


def _of_url(lookup: Lookup, url: str) -> NamedDocuments:
    given = [url] if "://" in url else [f"https://{url}", f"http://{url}"]
    asked = [spelling for each in given for spelling in spellings(each)]
    for spelling, rows in lookup.of_urls(asked).items():
        if rows:
            note = "" if spelling in given else f"found as {spelling}: with a slash more or less"
            return _found(f"URL {spelling}", one_each(rows), note)
    return NamedDocuments(what=f"URL {url}", rows=(), num=0, near=tuple(nearest_urls(lookup, given[0])))


def _of_page(lookup: Lookup, name: str) -> NamedDocuments | None:
    """A host, a domain, or a URL without its scheme."""
    host = named_host(name)
    if host is None or "." not in host:
        return None
    if "/" in name or "?" in name:
        return _of_url(lookup, name)
    for kind in (_of_host, _of_domain):
        try:
            return kind(lookup, name)
        except UnknownError:
            continue
    return None


def _of_host(lookup: Lookup, name: str) -> NamedDocuments:
    host = named_host(name) or name
    ids = list(dict.fromkeys(row.doc_id for row in lookup.host(host, MOST_FOUND)))
    if not ids:
        raise UnknownError(f"no document of host {host!r}")
    rows = {row.doc_id: row for row in one_each(lookup.documents(ids))}
    num = len(ids) if len(ids) < MOST_FOUND else lookup.num_of_host(host)
    found = tuple(rows[doc_id] for doc_id in ids if doc_id in rows)
    return NamedDocuments(what=f"host {host}", rows=found, num=num, whole=("host", host))


def _of_domain(lookup: Lookup, name: str) -> NamedDocuments:
    host = named_host(name) or name
    ids = lookup.ids_of_domain(host) if registered_domain(host) is not None else []
    if not ids:
        raise UnknownError(f"no document of domain {host!r}")
    return NamedDocuments(
        what=f"domain {host}",
        rows=tuple(one_each(lookup.documents(sorted(ids)[:MOST_FOUND]))),
        num=len(set(ids)),
        whole=("domain", host),
    )


def _of_token(lookup: Lookup, _tracer: Tracer, wanted: str) -> NamedDocuments | None:
    """The document that a token of a shard belongs to: SOURCE/SHARD:TOKEN."""
    place = _TOKEN.fullmatch(wanted)
    if place is None:
        return None
    numbers = [whole_number(place[name]) for name in ("shard", "token")]
    if numbers[0] is None or numbers[1] is None:
        return None
    [placements] = lookup.at_spans([ShardSpan(place["source"], numbers[0], numbers[1], 1)])
    if not placements:
        return None
    return _found(f"token {wanted}", one_each(lookup.documents([row.doc_id for row in placements])))


def named_step(tracer: Tracer, wanted: str) -> tuple[str, int, int | None] | None:
    """The (run, step, row) of RUN:STEP or RUN:STEP:ROW, where there is such a run."""
    place = _STEP.fullmatch(wanted)
    if place is None or place["run"] not in {run.run for run in tracer.runs()}:
        return None
    return place["run"], int(place["step"]), None if place["row"] is None else int(place["row"])


def _of_place(lookup: Lookup, _tracer: Tracer, wanted: str) -> NamedDocuments | None:
    """What was read at a byte or row of an input: FILE@OFFSET."""
    place = _PLACE.fullmatch(wanted)
    if place is None:
        return None
    rows = one_each(lookup.by_place(place["file"], int(place["offset"])))
    if not rows and "@" in wanted:
        raise UnknownError(
            f"no document at {place['offset']} of {place['file']!r} (file names are relative, as in column"
            f" warc_file)"
        )
    return _found(f"{place['offset']} of {place['file']}", rows) if rows else None


def _found(what: str, rows: Sequence[DocumentRow], note: str = "") -> NamedDocuments:
    return NamedDocuments(what=what, rows=tuple(rows[:MOST_FOUND]), num=len(rows), note=note)
