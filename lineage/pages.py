"""Which page a document is of: what every rule, column, lookup and purge by URL, host or domain asks.

`page_of` reads a document's URL, however it is spelt and whatever it is wrapped in. `normalise_url` gives the
form under which two URLs are one, `registered_domain` what the Public Suffix List makes of a host.

URLs are hostile input: all of this is linear in them, and no codec of international names sees a name that is
longer than a name can be (Python's punycode takes 28 s for a label of 8,000 characters)."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, unquote_to_bytes

import idna
from publicsuffixlist import PSLFILE, PublicSuffixList, encode_idn
from w3lib.url import canonicalize_url

from lineage.ids import content_hash

MAX_HOST: Final = 253
"""Characters of a domain name, its last dot left out (RFC 1035, section 2.3.4)."""
_MAX_LABEL: Final = 63

_TRACKING = re.compile(
    r"(?:utm_[a-z_]+|gclid|gclsrc|dclid|gbraid|wbraid|fbclid|msclkid|yclid|twclid|ttclid|igshid|igsh"
    r"|mc_cid|mc_eid|_ga|_gl|_hsenc|_hsmi|mkt_tok|oly_anon_id|oly_enc_id|vero_id|wickedid|phpsessid|jsessionid)",
    re.IGNORECASE,
)
_PLAIN = re.compile(
    r"https?://((?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63})(/(?:[\w~-][\w.~-]*(?:/|(?=\?|\Z)))*)"
    r"(?:\?([\w.~-]+=[\w.~-]*(?:&[\w.~-]+=[\w.~-]*)*))?",
    re.ASCII,
)
"""Most addresses: a host of plain labels, path and query arguments of unreserved characters. No escapes come
or go."""

_WRAPPED = re.compile(r"(?:[\w.+-]*+:(?://)?+\s*+)*?(?=https?(?::|%(?:25)*3a))", re.ASCII | re.IGNORECASE)
"""Labels in front of a URL with its scheme: `urn:text:`, `view-source:`, `youtube-dl:00001:`,
`metadata://`."""
_KNOWN_WRAPPERS = re.compile(
    r"(?:(?:urn:(?:text|view|fullpage|dom)(?:final)?|urn:(?:pageinfo|thumbnail|screenshot|pdf)|urn:fetch[\w-]*+"
    r"|onreadydom|view-source):(?://)?+\s*+)++",
    re.ASCII | re.IGNORECASE,
)
"""Names that crawlers (browsertrix, UKWA's webrender) and browsers give to what they derive from a page.
Behind them a host stands also without a scheme."""
_REPEATED_SCHEME = re.compile(r"(?:https?:[/\\]++)+(?=https?:[/\\])", re.ASCII | re.IGNORECASE)
_ESCAPED_COLON = re.compile(r"[\w.+-]+%(?:25)*3a", re.ASCII | re.IGNORECASE)
"""How a URL begins that was escaped as a whole."""
_MAX_ESCAPED: Final = 5
"""How often a whole URL may have been escaped."""

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.ASCII | re.IGNORECASE)
_WEB = re.compile(r"https?:|(?=[/\\]{2})", re.ASCII | re.IGNORECASE)
_SLASHES = re.compile(r"[/\\\s]*")
_AUTHORITY = re.compile(r"[^/\\?#]*")
_OPAQUE_AUTHORITY = re.compile(r"[^/?#]*")
_IPV6 = re.compile(r"\[([0-9a-f:.]+)\](?::(\d*))?", re.ASCII | re.IGNORECASE)
_IPV4 = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}", re.ASCII)
_PORT = re.compile(r"[0-9]+")
_LABELS = re.compile(r"[\w-]+(?:\.[\w-]+)+")
_NO_HOST = re.compile(r"[\x00-\x20#/:<>?@\[\\\]^|%\x7f]")
"""Characters that no domain has (URL standard, "forbidden domain code point")."""
_DOTS: Final = ".。．｡"  # IDNA takes each of them for a full stop
_NO_PAGE_SCHEMES: Final = frozenset(
    {"file", "filedesc", "data", "mailto", "about", "javascript", "dns", "warcinfo"}
)
_FILE_ENDINGS: Final = frozenset({
    "am", "cab", "cc", "do", "la", "md", "mk", "ml", "mm", "mov", "pl", "pm", "ps", "pub", "py", "rs", "sh",
    "so", "zip",
})  # fmt: skip
"""Top-level domains that are as well the endings of files."""
_SPACES_AND_CONTROLS: Final = "".join(map(chr, range(0x21))) + "\x7f"
_EDGES: Final = (
    _SPACES_AND_CONTROLS + "".join(filter(str.isspace, map(chr, range(0x7F, 0x3001)))) + "\u200b\ufeff"
)
"""What stands around a URL in tables: white space of all scripts, and marks that have no width."""
_LINE_ENDS_AND_TABS: Final = str.maketrans("", "", "\t\n\r")
_MOST_REMEMBERED: Final = 2000
_MOST_CANONICAL: Final = 1 << 16
"""Characters of a path and query; longer ones are compared as they are. (One of 800,000 takes a second.)"""
_MAX_PASSES: Final = 5  # one for nearly every host and path: the second finds nothing to change
_NAME_WITHOUT_HOST = re.compile(r"(?!(?:https?|about|mailto):)[a-z][a-z0-9+.-]*:/*[^/]", re.IGNORECASE)
"""A name of another scheme, which needs no host: urn:isbn:…, doi:…, or one of a data set's own."""
_IN_FRAGMENTS: Final = "!$&'()*+,;=:@/?-._~"


@dataclass(frozen=True, slots=True)
class Page:
    """A page: `url` is its normal form, without a fragment; `host` is in lower case and IDNA form, without
    port and trailing dot, an address of IPv6 in its shortest form; `fragment` is what stands behind the `#`,
    "" for none; `spelt` is the page's URL as the document's URL has it, out of what that is wrapped in."""

    url: str
    host: str
    fragment: str
    spelt: str

    @property
    def domain(self) -> str | None:
        """The registered domain (see `registered_domain`)."""
        return registered_domain(self.host)


def page_of(url: str | None) -> Page | None:
    """The page that a document's URL names, None where it names none. It never raises.

    A page has a host. That stands behind `http:` or `https:`, in any case, with any number of slashes or
    backslashes; behind `//`; or behind another scheme and `://` (ftp, s3). Tabs, line ends, and white space
    at the ends count for nothing, as in browsers. What is wrapped in labels (`urn:text:https://…`,
    `view-source:https://…`, one in another) or escaped as a whole (`https%3A%2F%2F…`) is the page inside.

    Without a scheme a text begins with a host only where nothing else is likely: it has a dot, plain labels,
    and a last label that the Public Suffix List has (or it is an address of IPv4, or of IPv6 in brackets), up
    to a port, a slash or its end: `example.org/x` is a page; `part.txt`, `v1.2`, `localhost/a`, `N/A` and
    `user@example.org` are none. The same holds where `http:` has not two slashes behind it. A name like
    `README.md` or `main.rs`, whose ending is a domain too, is a page with a path, a port or `www.` only:
    taken for one, the files of that name in all repositories would be one page. `mailto:`, `data:`, `dns:`,
    `urn:uuid:` and the like name no page.

    The normal form: RFC 3986, section 6.2 (scheme and host in lower case, no default port, percent escapes in
    one form, dot segments resolved, an empty path is "/"); the host as IDNA by UTS #46; besides: no fragment,
    no user and password, http counts as https, query arguments are sorted, and without those that only track
    where a visitor came from (utm_*, gclid, fbclid, …) or name a session (phpsessid, jsessionid). Host
    prefixes (www.), letter case and trailing slashes of the path stay: servers may serve different pages
    there, and a URL alone is enough to call a document a duplicate. The normal form's own page is the same,
    so normalising twice changes nothing."""
    if not url:
        return None
    return _remembered_page(url) if len(url) <= _MOST_REMEMBERED else _page_of(url)


@functools.lru_cache(maxsize=1 << 10)
def _remembered_page(url: str) -> Page | None:
    # A document's URL is asked for several times on its way.
    return _page_of(url)


def _page_of(url: str) -> Page | None:
    plain = _PLAIN.fullmatch(url)
    if plain is not None:
        host, path, query = plain.groups(default="")
        arguments = sorted(query.split("&"), key=lambda argument: argument.partition("="))
        return Page(f"https://{host}{path}{_untracked(arguments)}", host, "", url)
    spelt = _unwrapped(_cleaned(url).strip(_EDGES))
    text, _, fragment = spelt.partition("#")
    found = _normal_form(text.rstrip(_EDGES))
    return None if found is None else Page(found[0], found[1], _fragment(fragment), spelt)


def normalise_url(url: str, *, fragments: bool = False) -> str:
    """The form under which two URLs count as one: that of the page, with its fragment if `fragments`, and of
    what names no page the URL itself, without white space and control codes at its ends."""
    page = page_of(url)
    if page is not None:
        return f"{page.url}#{page.fragment}" if fragments and page.fragment else page.url
    text, mark, fragment = _cleaned(url).partition("#")
    return f"{text}{mark}{fragment}" if fragments else text.strip(_SPACES_AND_CONTROLS)


def url_key(url: str) -> bytes:
    """What a URL is looked up by: the BLAKE3-128 of the normal form."""
    return _hashed(normalise_url(url))


def compared_key(url: str | None, *, fragments: bool = False) -> bytes | None:
    """What documents are compared by as copies of one page: the BLAKE3-128 of the normal form, None where the
    URL names neither a page nor anything else (" ", "#top", "N/A", "https://"). A name such as a URN is
    compared as it is."""
    if not url or not names_something(url):
        return None
    return _hashed(normalise_url(url, fragments=fragments))


def names_something(url: str) -> bool:
    """Whether a URL names a page, or is a name such as a URN."""
    return page_of(url) is not None or bool(_NAME_WITHOUT_HOST.match(normalise_url(url)))


def named_host(name: str) -> str | None:
    """The host, as `Page.host` gives it, that a person names by `Example.com`, `example.com.`, an address (of
    IPv6 in brackets or without) or the URL of a page; None where it is none."""
    name = name.strip()
    if is_address(name) and ":" in name:
        name = f"[{name}]"  # as a URL must have an IPv6 address
    page = page_of(name) or page_of(f"http://{name}")
    return None if page is None else page.host


def registered_domain(host: str) -> str | None:
    """The domain that a host's owner registered: the public suffix by the Public Suffix List (with the
    suffixes under which companies let others register, such as github.io) and one more label. A last label
    that is not listed counts as a suffix. None for addresses, suffixes themselves and single labels."""
    if len(host) > MAX_HOST or ":" in host or _IPV4.fullmatch(host):
        return None
    return _listed_domain(host)


def is_public_suffix(host: str) -> bool:
    """Whether the Public Suffix List has this very name, so that what lies below belongs to many owners."""
    return len(host) <= MAX_HOST and bool(_suffixes().is_public(host, accept_unknown=False))


def with_parents(host: str) -> Iterator[str]:
    """A host, and every domain that it lies in: a.b.example.org, b.example.org, example.org, org."""
    yield host
    # Only of names that can be: else a host of a million dots would have as many parents of as many
    # characters.
    at = host.find(".", max(0, len(host) - MAX_HOST - 1))
    while at >= 0:
        yield host[at + 1 :]
        at = host.find(".", at + 1)


def is_address(word: str) -> bool:
    """Whether a word is an address of IPv4 or IPv6."""
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return False
    return True


def _hashed(form: str) -> bytes:
    return content_hash(form.encode("utf-8", "surrogatepass"))


def _cleaned(url: str) -> str:
    """Without what browsers take out: white space and control codes at its ends, tabs and line ends."""
    return url.strip(_SPACES_AND_CONTROLS).translate(_LINE_ENDS_AND_TABS).strip(_SPACES_AND_CONTROLS)


def _unwrapped(text: str) -> str:
    for _ in range(_MAX_ESCAPED):
        wrapper = _WRAPPED.match(text) or _KNOWN_WRAPPERS.match(text)
        text = text[wrapper.end() :] if wrapper else text
        if not _ESCAPED_COLON.match(text):
            break
        text = _cleaned(unquote(text)).strip(_EDGES)
    repeated = _REPEATED_SCHEME.match(text)  # https://https://example.org: no host is called so
    return text[repeated.end() :] if repeated else text


def _normal_form(text: str) -> tuple[str, str] | None:
    """The normal form and host of a URL that is in nothing wrapped and has no fragment."""
    web = _WEB.match(text)
    if web is not None:
        slashes = _SLASHES.match(text, web.end())
        assert slashes is not None
        place = _place(text[slashes.end() :], _AUTHORITY)
        is_right = bool(web[0]) and len(slashes[0]) == 2 and not slashes[0].isspace()
        if place is None or not (is_right or _is_public(place.host)):
            return None
        return _web_form(place, web[0].lower()), place.host
    scheme = _SCHEME.match(text)
    if scheme is not None and text.startswith("//", scheme.end()):
        place = _place(text[scheme.end() + 2 :], _OPAQUE_AUTHORITY)
        if place is None or scheme[1].lower() in _NO_PAGE_SCHEMES:
            return None
        return f"{scheme[1].lower()}://{place.shown_host}{place.port}{place.rest}", place.host
    authority = _AUTHORITY.match(text)
    assert authority is not None
    if "%" in authority[0]:
        text = unquote(authority[0]) + text[authority.end() :]
    place = _place(text, _AUTHORITY)
    if place is None or place.has_user or not _is_public(place.host) or _is_file_name(place):
        return None
    return _web_form(place, "http:"), place.host


@dataclass(frozen=True, slots=True)
class _UrlParts:
    """What stands behind the scheme: the host, the port with its colon ("" for none), path and query."""

    host: str
    port: str
    rest: str
    has_user: bool

    @property
    def shown_host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def _place(text: str, authority: re.Pattern[str]) -> _UrlParts | None:
    found = authority.match(text)
    assert found is not None
    _, at, name = found[0].rpartition("@")
    rest = text[found.end() :]
    ipv6 = _IPV6.fullmatch(name)
    if ipv6 is not None:
        if not is_address(ipv6[1]):
            return None
        return _UrlParts(str(ipaddress.ip_address(ipv6[1])), _port(ipv6[2] or ""), rest, bool(at))
    name, _, port = name.partition(":")
    host = _settled_host(name)
    if not host or _NO_HOST.search(host):
        return None
    return _UrlParts(host, _port(port), rest, bool(at))


def _port(given: str) -> str:
    """A port with its colon. One that is no number stays: the host is known all the same."""
    port = given.lstrip("0") or "0" if _PORT.fullmatch(given) else given
    return f":{port}" if port else ""


def _web_form(place: _UrlParts, scheme: str) -> str:
    """The normal form of a page of http or https; of `//host` and `host` as of http."""
    is_default = place.port == ":443" or (place.port == ":80" and scheme != "https:")
    return f"https://{place.shown_host}{'' if is_default else place.port}{_path_and_query(place.rest)}"


def _path_and_query(rest: str) -> str:
    path, mark, query = rest.partition("?")
    given = path.replace("\\", "/") + mark + query
    form = given
    for _ in range(_MAX_PASSES if len(given) <= _MOST_CANONICAL else 0):
        before = form
        try:
            # Behind a host of its own: what this makes of other hosts is IDNA 2003, and without a bound.
            canonical: str = canonicalize_url("https://host" + form)
        except ValueError:  # a lone surrogate, which no encoding has
            break
        path, _, query = canonical.removeprefix("https://host").partition("?")
        form = (path or "/") + _untracked(query.split("&"))
        if form == before:
            return form
    return given if given[:1] == "/" else f"/{given}"


def _untracked(arguments: Iterable[str]) -> str:
    """The query of these arguments but those that only track, with its question mark; nothing where none are
    left."""
    kept = [
        argument for argument in arguments if argument and not _TRACKING.fullmatch(argument.partition("=")[0])
    ]
    return "?" + "&".join(kept) if kept else ""


def _fragment(given: str) -> str:
    """A fragment with its escapes in one form, without a directive to the browser (`:~:text=…`)."""
    given = given.partition(":~:")[0]
    return quote(unquote_to_bytes(given.encode("utf-8", "surrogatepass")), safe=_IN_FRAGMENTS)


def _settled_host(name: str) -> str:
    """`_ascii_host`, again and again until that changes nothing; a name for which it always does stays as it
    is.

    For a few hosts the first pass only makes way for a second: what IDNA refuses for its two dots at the end,
    it takes once they are gone."""
    plain = unquote(name).lower().rstrip(_DOTS)
    form = plain
    for _ in range(_MAX_PASSES):
        before, form = form, _ascii_host(form)
        if form == before:
            return form
    return plain


def _ascii_host(host: str) -> str:
    """A host as IDNA by UTS #46 without its transitional mappings, as browsers have it (URL standard, "domain
    to ASCII"); as it is where it holds what no domain may, or is too long for one. Labels that the standard
    would reject for their length or mix of scripts keep their form: here hosts are compared, not looked
    up."""
    if host.isascii() or len(host) > MAX_HOST:
        return host
    try:
        mapped = idna.uts46_remap(host, std3_rules=False)
    except idna.IDNAError:
        return host
    labels = mapped.rstrip(_DOTS).split(".")
    return ".".join(
        label
        if label.isascii() or len(label) > _MAX_LABEL
        else "xn--" + label.encode("punycode").decode("ascii")
        for label in labels
    )


def _is_public(host: str) -> bool:
    """Whether a host is one that the web at large can have, so that a text which begins with it names a
    page."""
    if ":" in host:
        return True
    if _IPV4.fullmatch(host):
        return is_address(host)
    last = host.rpartition(".")[2]
    return bool(_LABELS.fullmatch(host)) and len(host) <= MAX_HOST and is_public_suffix(last)


def _is_file_name(place: _UrlParts) -> bool:
    """Whether a host without a scheme is as likely the name of a file."""
    is_alone = not place.port and place.rest[:1] in ("", "?")
    return is_alone and not place.host.startswith("www.") and place.host.rpartition(".")[2] in _FILE_ENDINGS


@functools.cache
def _suffixes() -> PublicSuffixList:
    """`PublicSuffixList()` in two thirds of its time: the library turns each of 10,000 rules into Punycode, and
    those in ASCII stay what they are."""
    lines = Path(PSLFILE).read_text("utf-8").lower().split("\n")
    others = (
        line.split(" ")[0].rstrip() for line in lines if not line.isascii() and not line.startswith("//")
    )
    in_punycode = [rule[: rule.startswith("!")] + encode_idn(rule.removeprefix("!")) for rule in others]
    return PublicSuffixList([*lines, *in_punycode], accept_encoded_idn=False)


@functools.lru_cache(maxsize=1 << 16)
def _listed_domain(host: str) -> str | None:
    found: str | None = _suffixes().privatesuffix(host)
    return found
