"""What sites say for all their pages: the robots.txt and tdmrep.json responses of WARC files, by host.

http and https of a host count as one site, a port other than theirs as another. Of several responses the newest
counts; one with status 200 before a redirect, which is followed up to five times (RFC 9309, 2.3.1.2). A file that is
not there (4xx) says nothing; one that could not be had (5xx) leaves what an earlier response said."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import urljoin

from lineage.pages import Page, page_of
from lineage.recipe import RecipeError
from lineage.secrets import without_secrets
from lineage.storage.folder import Folder, is_remote, local_path, split, with_environment
from stages.document import Document
from stages.reading.options import InputCounts, ReadOptions, Unreadable
from stages.reading.reader import read_documents
from stages.reading.warc.body import BodyTooLongError, decode_body
from stages.reading.warc.headers import STATUS
from stages.rights.robots import MOST_BYTES, Robots, read_robots, relevant_part
from stages.rights.signal import Signal
from stages.rights.tdmrep import TdmRule, read_tdmrep, tdm_signal

ROBOTS: Final = "/robots.txt"
TDMREP: Final = "/.well-known/tdmrep.json"
_ENDINGS: Final = (".warc", ".warc.gz", ".warc.zst")
_MOST_REDIRECTS: Final = 5
_DECODED_BYTES: Final = 4 << 20
_BEFORE_PATH = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?[/\\]*[^/\\?#]*")
_REMEMBERED: Final = 256


class SiteFileResponse(NamedTuple):
    """A response for one of the two files of a site: when it was captured, its text, or where it redirects to."""

    captured_at: str
    text: str
    location: str | None


def site_of(page: Page) -> str:
    """The site of a page: its host, with a port that is not the scheme's."""
    return page.url.split("/", 3)[2]


def path_of_page(page: Page) -> str:
    """A page's path and query as its URL has them, for robots.txt to be held against."""
    spelt = page.spelt.partition("#")[0]
    found = _BEFORE_PATH.match(spelt)
    rest = spelt[found.end() :] if found is not None else ""
    return rest if rest.startswith("/") else f"/{rest}"


@dataclass(slots=True, kw_only=True)
class ReadSites:
    """What was read: records, responses for either file, and stretches that no record could be read from."""

    num_records: int = 0
    num_responses: int = 0
    num_unreadable: int = 0
    robots: dict[str, SiteFileResponse] = field(default_factory=dict)
    tdmrep: dict[str, SiteFileResponse] = field(default_factory=dict)


class Sites:
    """What sites say, by site."""

    def __init__(self, robots: dict[str, str], tdmrep: dict[str, str], read: ReadSites) -> None:
        self._robots, self._tdmrep = robots, tdmrep
        self.num_responses, self.num_unreadable = read.num_responses, read.num_unreadable
        self.hosts: frozenset[str] = frozenset(read.robots) | frozenset(read.tdmrep)
        """Sites with a response of either kind."""

    def signals(self, page: Page, agents: Sequence[str]) -> Iterator[Signal]:
        """What the page's site says of it."""
        site = site_of(page)
        if robots := self._robots.get(site):
            yield from _parsed(robots).signals(path_of_page(page), agents)
        if (tdmrep := self._tdmrep.get(site)) is not None:
            rules = _parsed_tdmrep(tdmrep)
            if rules is None:
                yield Signal("tdmrep", "tdmrep.json", "no JSON array", "malformed")
            elif (signal := tdm_signal(rules, path_of_page(page))) is not None:
                yield signal


@functools.lru_cache(maxsize=_REMEMBERED)
def _parsed(text: str) -> Robots:
    return read_robots(text)


@functools.lru_cache(maxsize=_REMEMBERED)
def _parsed_tdmrep(text: str) -> tuple[TdmRule, ...] | None:
    return read_tdmrep(text)


def site_files(names: Sequence[str]) -> tuple[str, ...]:
    """The WARC files that are named, those of a folder in order. RecipeError for a folder without any, or none at
    all."""
    found: dict[str, None] = {}
    for name in names:
        if name.lower().endswith(_ENDINGS):
            found[name] = None
            continue
        folder = Folder(with_environment(name))
        try:
            inside = sorted(each for each in folder.names() if each.lower().endswith(_ENDINGS))
        except OSError:
            inside = []
        if not inside:
            raise RecipeError(
                f"{without_secrets(name)!r} is no WARC file by its name and holds none: expected files that end in"
                f" {', '.join(_ENDINGS)}, or folders of such"
            )
        found |= {f"{name.rstrip('/')}/{each}": None for each in inside}
    return tuple(found)


@functools.lru_cache(maxsize=2)
def read_sites(files: tuple[str, ...], agents: tuple[str, ...]) -> Sites:
    """What the sites of these WARC files say to the crawlers of these product tokens. Memory grows with the number
    of sites, by about 400 bytes each while they are read. RecipeError for a file that cannot be read, or has no such
    response."""
    return gathered_sites(files, agents)


def gathered_sites(
    files: Sequence[str],
    agents: Sequence[str],
    done: Callable[[int], None] = lambda num: None,
) -> Sites:
    """`read_sites`, not remembered; `done` is told how many files are read."""
    read = ReadSites()
    shared: dict[str, str] = {}
    for number, name in enumerate(files, 1):
        _read_file(name, agents, read, shared)
        done(number)
    found: list[dict[str, str]] = []
    for path, responses in ((ROBOTS, read.robots), (TDMREP, read.tdmrep)):
        texts = ((site, _followed(site, path, responses)) for site in responses)
        found.append({site: text for site, text in texts if text})
    return Sites(found[0], found[1], read)


def _read_file(name: str, agents: Sequence[str], read: ReadSites, shared: dict[str, str]) -> None:
    shown, counts = without_secrets(name), InputCounts()
    url = with_environment(name)
    folder, file = split(url if is_remote(url) else local_path(url))
    num_before, error = read.num_responses, ""
    try:
        with folder.open(file) as stream:
            options = ReadOptions(
                source="", file=file, format="warc", mime=("*/*",), statuses=None, size=folder.size(file)
            )
            for item in read_documents(stream, options, counts):
                if isinstance(item, Unreadable):
                    read.num_unreadable += 1
                    error = error or item.error
                else:
                    _add(item, agents, read, shared)
    except OSError as reason:
        raise RecipeError(f"{shown} cannot be read: {reason}") from None
    if read.num_responses == num_before:
        holds = f"{counts.num_records:,} records" if counts.num_records else error or "no record"
        raise RecipeError(
            f"{shown} has no response for {ROBOTS} or {TDMREP} ({holds}): expected a WARC file of such responses, as"
            " in the robotstxt folders of Common Crawl"
        )


def _add(document: Document, agents: Sequence[str], read: ReadSites, shared: dict[str, str]) -> None:
    page = page_of(document.url)
    path = None if page is None else path_of_page(page).partition("?")[0]
    if page is None or path not in (ROBOTS, TDMREP):
        return
    read.num_responses += 1
    site = site_of(page)
    headers = dict(document.headers)
    status = int(headers.get(STATUS, "200"))
    if status >= 500 or status in (304, 429):
        return
    location = headers.get("location") if 300 <= status < 400 else None
    text = _text_of(document, path) if status < 300 else ""
    if path == ROBOTS:
        text = relevant_part(text, agents)
    made = SiteFileResponse(document.captured_at or "", shared.setdefault(text, text), location)
    responses = read.robots if path == ROBOTS else read.tdmrep
    if site not in responses or _rank(made) > _rank(responses[site]):
        responses[site] = made


def _rank(response: SiteFileResponse) -> tuple[bool, str, str, str]:
    """By which the response that counts is chosen: no redirect, newest; the rest only so that it never depends on
    their order."""
    return response.location is None, response.captured_at, response.text, response.location or ""


def _text_of(document: Document, path: str) -> str:
    try:
        body = decode_body(document.payload, document.content_encoding, _DECODED_BYTES)
    except BodyTooLongError as error:
        body = error.begin
    if path == ROBOTS and len(body) > MOST_BYTES:
        # The line that is cut off goes: a rule with half of its path is for more paths than it names.
        body = body[: max(body.rfind(b"\n", 0, MOST_BYTES), body.rfind(b"\r", 0, MOST_BYTES)) + 1]
    return body.decode("utf-8", "replace")


def _followed(site: str, path: str, responses: dict[str, SiteFileResponse]) -> str:
    """The text that a site's response for a path leads to. What another page says is no such file, and not known."""
    response: SiteFileResponse | None = responses[site]
    at = f"https://{site}{path}"
    for _ in range(_MOST_REDIRECTS):
        if response is None or response.location is None:
            break
        at = urljoin(at, response.location)
        page = page_of(at)
        is_file = page is not None and path_of_page(page).partition("?")[0] == path
        response = responses.get(site_of(page)) if page and is_file else None
    return "" if response is None or response.location is not None else response.text
