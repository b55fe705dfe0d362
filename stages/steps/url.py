"""URL step: turns a document down by its length, as cut off or by its address, before anything is parsed; and the
normal form of URLs."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal
from urllib.parse import unquote, urlsplit

import idna
import regex
from w3lib.url import canonicalize_url

from lineage.ids import content_hash
from lineage.recipe import RecipeError, blamed_on, key
from stages.document import Document, Finding, Outcome, decide
from stages.steps.textfiles import list_lines

STAGE = "url"
_TRACKING = re.compile(
    r"(?:utm_[a-z_]+|gclid|gclsrc|dclid|gbraid|wbraid|fbclid|msclkid|yclid|twclid|ttclid|igshid|igsh"
    r"|mc_cid|mc_eid|_ga|_gl|_hsenc|_hsmi|mkt_tok|oly_anon_id|oly_enc_id|vero_id|wickedid|phpsessid|jsessionid)",
    re.IGNORECASE,
)
_PLAIN = re.compile(
    r"https?://((?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63}/(?:[\w~-][\w.~-]*(?:/|(?=\?|\Z)))*)"
    r"(?:\?([\w.~-]+=[\w.~-]*(?:&[\w.~-]+=[\w.~-]*)*))?",
    re.ASCII,
)
"""Most addresses: a host of plain labels, path and query arguments of unreserved characters. No escapes come or go."""
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_MAX_PASSES = 5  # two for nearly every URL: the second finds nothing to change
_SPACES_AND_CONTROLS = "".join(map(chr, range(0x21))) + "\x7f"
_LINE_ENDS_AND_TABS = str.maketrans("", "", "\t\n\r")
_BARE_HOST = re.compile(r"(?:(?:[\w-]+\.)+(?:[^\W\d_]{2,}|xn--[\w-]+)|(?:\d{1,3}\.){3}\d{1,3})\.?(?::\d*)?(?=[/?]|\Z)")
"""A host in front of a URL without a scheme, as crawls' tables have them: with a dot, and no file or version number."""
_NAME_WITHOUT_HOST = re.compile(r"(?!(?:https?|about|mailto):)[a-z][a-z0-9+.-]*:/*[^/]", re.IGNORECASE)
"""A name of another scheme, which needs no host: urn:isbn:…, doi:…, or one of a data set's own."""
_PORT = re.compile(r":\d*\Z")
_HOST = re.compile(r"[\w.:-]+")
_DOTS = ".。．｡"  # IDNA takes each of them for a full stop
_NO_HOST = re.compile(r"[\x00-\x20#/:<>?@\[\\\]^|%\x7f]")
"""Characters that no domain has (URL standard, "forbidden domain code point")."""
_NOT_A_WORD = regex.compile(r"[^\p{L}\p{N}\p{M}]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlTable:
    """`[url]`: what is turned away by its address."""

    block_hosts: tuple[str, ...] = key(
        (), help="files of hosts, one a line (also hosts(5) format); a host's subdomains are blocked with it"
    )
    block_words: tuple[str, ...] = key(
        (), help="files of words or phrases, one a line; a URL is blocked where they stand in it as whole words"
    )
    truncated: Literal["keep", "reject"] = key(
        "keep", help="records that do not hold the whole page: WARC-Truncated, or the first of several segments"
    )


def normalise_url(url: str) -> str:
    """The form under which two URLs count as one page. It never raises, and normalising twice changes nothing.

    RFC 3986 section 6.2: scheme and host in lower case, the host as IDNA (UTS #46), no default port, percent escapes in
    one form, dot segments resolved, an empty path is "/". Besides: no fragment, http counts as https, no trailing dot
    of the host, query arguments sorted, and without those that only track where a visitor came from (utm_*, gclid,
    fbclid, …) or name a session (phpsessid, jsessionid). Host prefixes (www.), letter case and trailing slashes of the
    path stay: servers may serve different pages there, and a URL alone is enough to call a document a duplicate.
    """
    plain = _PLAIN.fullmatch(url)
    if plain is None:
        return _settled(_cleaned(url))
    place, query = plain.groups(default="")
    arguments = sorted(query.split("&"), key=lambda argument: argument.partition("="))
    return f"https://{place}{_untracked(arguments)}"


def _cleaned(url: str) -> str:
    """Without what browsers take out: white space and control codes at its ends, tabs and line ends; a space within is
    written %20. A fragment begins no page, so what stands before it ends the URL."""
    return url.partition("#")[0].strip(_SPACES_AND_CONTROLS).translate(_LINE_ENDS_AND_TABS).strip(_SPACES_AND_CONTROLS)


def _settled(cleaned: str) -> str:
    """`normalise_url` of a URL that `_cleaned` gave.

    For a few hosts the first pass only makes way for a second: what IDNA refuses for its two dots at the end, it takes
    once they are gone. A URL that never settles is compared as it is."""
    form = cleaned
    for _ in range(_MAX_PASSES):
        before, form = form, _canonical(form)
        if form == before:
            return form
    return cleaned


def _canonical(cleaned: str) -> str:
    try:
        canonical: str = canonicalize_url(_with_ascii_host(cleaned))
        parts = urlsplit(canonical)
    except (ValueError, UnicodeError):  # a port or an IPv6 host that is none: compare it as it is
        return cleaned
    if parts.scheme not in _DEFAULT_PORTS or not parts.netloc or set(_SPACES_AND_CONTROLS) & set(parts.netloc):
        return cleaned  # the last: IDNA makes plain spaces of others, which are no part of a host
    userinfo, at, host = parts.netloc.rpartition("@")
    host = host.removesuffix(_DEFAULT_PORTS[parts.scheme])
    name, port_given = _without_port(host)
    return (
        f"https://{userinfo}{at}{name.rstrip('.')}{port_given}{parts.path or '/'}{_untracked(parts.query.split('&'))}"
    )


def _with_ascii_host(url: str) -> str:
    """A URL whose host is spelled as browsers send it, in which `canonicalize_url` finds nothing to encode: it knows
    IDNA 2003, where faß.de is fass.de. ValueError if the host is none."""
    if url.isascii() and "%" not in url:
        return url
    netloc = urlsplit(url).netloc.partition("\\")[0]  # browsers take it for a slash
    userinfo, at, host = netloc.rpartition("@")
    if host.isascii() and "%" not in host:
        return url
    name, port_given = _without_port(host)
    name = _ascii_host(name)
    if _NO_HOST.search(name):
        raise ValueError(f"{name!r} is no host")
    return url.replace(netloc, f"{userinfo}{at}{name}{port_given}", 1)


def _without_port(host: str) -> tuple[str, str]:
    """A host, and its port with the colon, "" where it has none."""
    port = _PORT.search(host)
    return (host[: port.start()], port[0]) if port else (host, "")


def _ascii_host(host: str) -> str:
    """A host in lower case, escapes decoded, and as IDNA by UTS #46 without its transitional mappings, as browsers have
    it (URL standard, "domain to ASCII"); as it is where it holds what no domain may. Labels that the standard would
    turn down for their length or mix of scripts keep their form: here hosts are compared, not looked up."""
    host = unquote(host).lower()
    if host.isascii():
        return host
    try:
        mapped = idna.uts46_remap(host, std3_rules=False)
    except idna.IDNAError:
        return host
    labels = mapped.split(".")
    return ".".join(label if label.isascii() else "xn--" + label.encode("punycode").decode("ascii") for label in labels)


def _untracked(arguments: Iterable[str]) -> str:
    """The query of these arguments but those that only track, with its question mark; nothing where none are left."""
    kept = [argument for argument in arguments if argument and not _TRACKING.fullmatch(argument.partition("=")[0])]
    return "?" + "&".join(kept) if kept else ""


def url_key(url: str) -> bytes:
    """What a URL is looked up by: the BLAKE3-128 of the normal form."""
    return _hashed(normalise_url(url))


def page_key(url: str | None) -> bytes | None:
    """What documents are compared by as copies of one page: the `url_key`, None where the URL names no page."""
    form = normalise_url(url or "")
    return _hashed(form) if _is_name(form) else None


def names_page(url: str) -> bool:
    """Whether a URL has a host, with a scheme before it or without, or is a name such as a URN. " ", "#top", "N/A" and
    "https://" are nothing of that: documents that share one of these are no copies of one page."""
    return _is_name(normalise_url(url))


def _hashed(form: str) -> bytes:
    return content_hash(form.encode("utf-8", "surrogatepass"))


def _is_name(form: str) -> bool:
    try:
        host = urlsplit(form).hostname or ""
    except ValueError:
        return False
    return bool(host.strip() or _BARE_HOST.match(form) or _NAME_WITHOUT_HOST.match(form))


def url_host(url: str | None) -> str | None:
    """The host of a URL in lower case and IDNA form, without port and trailing dot, an address of IPv6 in its shortest
    form; None where there is none."""
    if not url:
        return None
    try:
        host = urlsplit(url.strip().replace("\\", "/")).hostname  # browsers take both for slashes
    except ValueError:
        return None
    if not host:
        return None
    if ":" in host and _is_address(host):
        return str(ipaddress.ip_address(host))
    return _ascii_host(host).rstrip(_DOTS) or None


def named_host(name: str) -> str | None:
    """The host, as `url_host` gives it, that a person names by `Example.com`, `example.com.`, an address (of IPv6 in
    brackets or without) or a URL of it; None where it is none."""
    name = name.strip()
    if _is_address(name) and ":" in name:
        name = f"[{name}]"  # as a URL must have an IPv6 address
    return url_host(name if "://" in name else f"http://{name}")


class UrlStep:
    """Rules, in this order: `url.too_long` (bytes of the payload), `url.truncated`, `url.blocked_host`,
    `url.blocked_word`.

    A document without URL (JSONL and Parquet rows may have none) is only subject to the first two."""

    stage = STAGE

    def __init__(self, table: UrlTable, max_document_bytes: int, *, ledger: bool = False) -> None:
        self._table = table
        self._max_bytes = max_document_bytes
        self._ledger = ledger

    def prepare(self) -> None:
        """Read the lists now; RecipeError if one cannot be."""
        _ = self._hosts, self._words

    def __call__(self, document: Document, /) -> Outcome:
        return decide(document, self._findings(document), ledger=self._ledger)

    def _findings(self, document: Document) -> Iterable[Finding]:
        size, bound = document.num_bytes, self._max_bytes
        yield Finding(
            stage=STAGE, rule="url.too_long", value=float(size), threshold=float(bound), rejected=size > bound
        )
        if self._table.truncated == "reject":
            yield Finding(stage=STAGE, rule="url.truncated", rejected=document.truncated is not None)
        if self._table.block_hosts:
            yield Finding(stage=STAGE, rule="url.blocked_host", rejected=self._host_is_blocked(document.url))
        if self._table.block_words:
            yield Finding(stage=STAGE, rule="url.blocked_word", rejected=self._words.match(document.url))

    def _host_is_blocked(self, url: str | None) -> bool:
        host = url_host(url)
        while host:
            if host in self._hosts:
                return True
            host = host.partition(".")[2]
        return False

    @cached_property
    def _hosts(self) -> frozenset[str]:
        with blamed_on("url.block_hosts"):
            lines = ((line, file) for file in self._table.block_hosts for line in list_lines(file))
            return frozenset(host for line, file in lines for host in _listed_hosts(line, file))

    @cached_property
    def _words(self) -> WordList:
        with blamed_on("url.block_words"):
            return WordList(line for file in self._table.block_words for line in list_lines(file))


def _listed_hosts(line: str, file: str) -> Iterator[str]:
    """The hosts that a line of a block list names: `example.com`, `*.example.com`, a URL, or all that stand behind the
    address in `0.0.0.0 example.com www.example.org`."""
    words = line.split()
    names = words[1:] if len(words) > 1 and _is_address(words[0]) else words
    if len(names) > 1 and names == words:
        raise RecipeError(
            f"{file} holds {line!r}: expected one host name, such as example.com, or an address and the hosts behind it"
        )
    for name in names:
        host = named_host(name.removeprefix("*.").removeprefix("."))
        if host is None or not _HOST.fullmatch(host):  # such as ||example.com^ or example.*, which match no host
            raise RecipeError(f"{file} holds {line!r}: expected a host name, such as example.com")
        yield host


def _is_address(word: str) -> bool:
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return False
    return True


class WordList:
    """Words and phrases that are looked for as whole words: runs of letters, digits and marks, case ignored."""

    def __init__(self, lines: Iterable[str]) -> None:
        entries = {" ".join(_words_of(line)) for line in lines} - {""}
        self._single = frozenset(entry for entry in entries if " " not in entry)
        self._phrases = tuple(sorted(f" {entry} " for entry in entries if " " in entry))

    def match(self, url: str | None) -> bool:
        """Whether a URL, its escapes decoded, holds one of them."""
        if not url:
            return False
        words = _words_of(unquote(url))
        if not self._single.isdisjoint(words):
            return True
        line = f" {' '.join(words)} "
        return any(phrase in line for phrase in self._phrases)


def _words_of(text: str) -> list[str]:
    composed = unicodedata.normalize("NFC", text.casefold())
    return [word for word in _NOT_A_WORD.split(composed) if word]
