"""Lists that a URL is looked up in: hosts, whole URLs, words, soft words of which several must stand in it,
sub-words.

Each way of matching (`url.match`) is a row of WAYS: what of a URL is compared, and what a list's line
names."""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt
import regex
import xxhash
from publicsuffixlist import PublicSuffixList

from lineage.pages import Page, is_address, named_host, page_of, with_parents
from lineage.recipe import RecipeError
from stages.composition import normalised_in
from stages.steps.textfiles import numbered_lines

Match = Literal["words", "fineweb", "dclm"]

_HOST = re.compile(r"[\w.:-]+")
_NOT_A_WORD = regex.compile(r"[^\p{L}\p{N}\p{M}]+")
_NOT_ALPHANUMERIC = re.compile(r"[^a-zA-Z0-9]+")
_WORD = re.compile(r"\w+")
_BEFORE_HOST = re.compile(r"([a-z][a-z0-9+.-]*:)?//", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlForms:
    """A document's URL as it is spelt, out of what it is wrapped in, and its page; None where it names
    none."""

    spelt: str
    page: Page | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matching:
    """A way of matching. Of a URL: `hosts` and `urls` that are looked up, its `words`, and `squeezed`, in
    which sub-words are searched. Of a list's line: `listed_hosts`, `listed_url`, `listed_word` (of several
    words joined by a space), `listed_subword`."""

    hosts: Callable[[UrlForms], Iterable[str]]
    urls: Callable[[UrlForms], Iterable[str]]
    words: Callable[[str], Sequence[str]]
    squeezed: Callable[[str], str]
    listed_hosts: Callable[[str, str], Iterable[str]]
    listed_url: Callable[[str], str]
    listed_word: Callable[[str], str]
    listed_subword: Callable[[str], str]


class LineNumbers:
    """Which line of a list names something: 12 bytes an entry, whatever its length.

    Entries are known by 64 bits of xxh3: one in 10^12 pages meets another's line in a list of millions, and
    to make a name that does blocks that name's own page."""

    def __init__(self, entries: Iterable[tuple[str, int]]) -> None:
        found_keys, found_lines = array("Q"), array("I")
        for entry, line in entries:
            found_keys.append(_key(entry))
            found_lines.append(line)
        keys, lines = np.array(found_keys, np.uint64), np.array(found_lines, np.uint32)
        order = np.lexsort((lines, keys))
        self._keys: npt.NDArray[np.uint64] = keys[order]
        self._lines: npt.NDArray[np.uint32] = lines[order]

    @property
    def num_bytes(self) -> int:
        """What the entries weigh."""
        return self._keys.nbytes + self._lines.nbytes

    def line_of(self, names: Iterable[str]) -> int:
        """The first line that names one of these; 0 where none does."""
        found = [line for name in names if (line := self._line(name))]
        return min(found, default=0)

    def _line(self, name: str) -> int:
        key = np.uint64(_key(name))
        at = int(np.searchsorted(self._keys, key))
        return int(self._lines[at]) if at < len(self._keys) and self._keys[at] == key else 0


def _key(name: str) -> int:
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"))


def lines_of(files: Sequence[str], *, of_urls: bool = False) -> Iterator[tuple[int, str, str, int]]:
    """The entries of a key's files, in the order given: the number of each counted through all files, the
    entry, its file and its line there. RecipeError for a file that cannot be read."""
    first = 0
    for file in files:
        number = 0
        for number, entry in numbered_lines(file, has_inner_comments=not of_urls):
            yield first + number, entry, file, number
        first += number


def _entries(
    files: Sequence[str], named: Callable[[str, str], Iterable[str]], *, of_urls: bool = False
) -> Iterator[tuple[str, int]]:
    """What each line names, by a function of the line and its file, with the line's number."""
    for number, line, file, _ in lines_of(files, of_urls=of_urls):
        yield from ((name, number) for name in named(line, file) if name)


class WordList:
    """Words, and phrases of several, that are looked for in the words of a URL."""

    def __init__(self, entries: Iterable[tuple[str, int]]) -> None:
        self._lines: dict[str, int] = {}
        for entry, line in entries:
            self._lines.setdefault(entry, line)
        self._phrases = tuple(sorted(entry for entry in self._lines if " " in entry))

    def found(self, words: Sequence[str]) -> set[str]:
        """The entries that stand among the words."""
        single = {word for word in words if word in self._lines}
        if not self._phrases:
            return single
        whole = f" {' '.join(words)} "
        return single | {phrase for phrase in self._phrases if f" {phrase} " in whole}

    def line_of(self, words: Sequence[str]) -> int:
        """The first line with an entry that stands among the words; 0 where none does."""
        return min((self._lines[entry] for entry in self.found(words)), default=0)


class SubwordList:
    """Words that are looked for anywhere."""

    def __init__(self, entries: Iterable[tuple[str, int]]) -> None:
        self._lines: dict[str, int] = {}
        for entry, line in entries:
            self._lines.setdefault(entry, line)

    def line_of(self, squeezed: str) -> int:
        """The first line whose entry stands in the text; 0 where none does."""
        return min((line for entry, line in self._lines.items() if entry in squeezed), default=0)


def hosts_of_list(files: Sequence[str], match: Match) -> LineNumbers:
    """The hosts that a key's files list. Raises RecipeError for a line that names no host."""
    return LineNumbers(_entries(files, WAYS[match].listed_hosts))


def urls_of_list(files: Sequence[str], match: Match) -> LineNumbers:
    """The URLs that a key's files list."""
    return LineNumbers(_entries(files, lambda line, _: (WAYS[match].listed_url(line),), of_urls=True))


def words_of_list(files: Sequence[str], match: Match) -> WordList:
    """The words and phrases that a key's files list."""
    return WordList(_entries(files, lambda line, _: (WAYS[match].listed_word(line),)))


def subwords_of_list(files: Sequence[str], match: Match) -> SubwordList:
    """The sub-words that a key's files list."""
    return SubwordList(_entries(files, lambda line, _: (WAYS[match].listed_subword(line),)))


# Ours: whole words in any case and any script, hosts with their subdomains.


def _parents(url: UrlForms) -> Iterable[str]:
    return () if url.page is None else with_parents(url.page.host)


def _hosts_of_line(line: str, file: str) -> Iterator[str]:
    """The hosts that a line of a block list names: `example.com`, `*.example.com`, a URL, or all that stand
    behind the address in `0.0.0.0 example.com www.example.org`."""
    words = line.split()
    names = words[1:] if len(words) > 1 and is_address(words[0]) else words
    if len(names) > 1 and names == words:
        raise RecipeError(
            f"{file} holds {line!r}: expected one host name, such as example.com, or an address"
            f" and the hosts behind it"
        )
    for name in names:
        host = named_host(name.removeprefix("*.").removeprefix("."))
        if host is None or not _HOST.fullmatch(
            host
        ):  # such as ||example.com^ or example.*, which match no host
            raise RecipeError(f"{file} holds {line!r}: expected a host name, such as example.com")
        yield host


def _bare(url: str) -> str:
    """A URL without scheme, `www.` and the slash at its end, its host in lower case: as UT1's lists write
    them."""
    before = _BEFORE_HOST.match(url)
    host, slash, path = url[before.end() if before else 0 :].partition("/")
    return (host.lower().removeprefix("www.") + slash + path).rstrip("/")


def _pages(url: UrlForms) -> Iterable[str]:
    """The page of a URL, and that of it which its fragment names."""
    if url.page is None:
        return (_bare(url.spelt),)
    bare = _bare(url.page.url)
    return (bare, f"{bare}#{url.page.fragment}") if url.page.fragment else (bare,)


def _page_of_line(line: str) -> str:
    """The page that a line of a list of URLs names; with its fragment, where it has one."""
    scheme = _BEFORE_HOST.match(line)
    page = page_of(line if scheme and scheme[1] else f"http://{line.removeprefix('//')}")
    return _bare(line) if page is None else [*_pages(UrlForms(spelt=line, page=page))][-1]


def _words(text: str) -> list[str]:
    composed = normalised_in("NFC", text.casefold())
    return [word for word in _NOT_A_WORD.split(composed) if word]


def _joined_words(text: str) -> str:
    return " ".join(_words(text))


def _decoded(text: str) -> str:
    return normalised_in("NFC", unquote(text).casefold())


# FineWeb's: datatrove 0.10.1, filters/url_filter.py.


@functools.cache
def _icann_suffixes() -> PublicSuffixList:
    return PublicSuffixList(only_icann=True)  # as tldextract takes the list unless told otherwise


def _domain_and_host(url: UrlForms) -> Iterable[str]:
    if url.page is None:
        return ()
    return filter(None, (_icann_suffixes().privatesuffix(url.page.host), url.page.host))


def _alphanumeric(text: str) -> str:
    return _NOT_ALPHANUMERIC.sub("", text).lower()


# DCLM's: mlfoundations/dclm, mappers/filters/metadata_filters.py (url_substring_filter), as its
# dclm_baseline_refinedweb.yaml calls it: hosts without "www", sub-words ("strict") without hyphens and dots,
# words between word boundaries.


def _netloc(url: UrlForms) -> Iterable[str]:
    try:
        return (urlsplit(url.spelt).netloc.lower().replace("www", ""),)
    except ValueError:  # brackets that hold no address
        return ()


def _lower_words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _unpointed(text: str) -> str:
    return text.lower().replace("-", "").replace(".", "")


WAYS: Final[dict[Match, _Matching]] = {
    "words": _Matching(
        hosts=_parents,
        urls=_pages,
        words=lambda url: _words(unquote(url)),
        squeezed=_decoded,
        listed_hosts=_hosts_of_line,
        listed_url=_page_of_line,
        listed_word=_joined_words,
        listed_subword=_decoded,
    ),
    "fineweb": _Matching(
        hosts=_domain_and_host,
        urls=lambda url: (url.spelt,),
        words=_NOT_ALPHANUMERIC.split,
        squeezed=_alphanumeric,
        listed_hosts=lambda line, _: (line,),
        listed_url=lambda line: line,
        listed_word=_alphanumeric,
        listed_subword=_alphanumeric,
    ),
    "dclm": _Matching(
        hosts=_netloc,
        urls=lambda url: (url.spelt,),
        words=_lower_words,
        squeezed=_unpointed,
        listed_hosts=lambda line, _: (line.lower(),),
        listed_url=lambda line: line,
        listed_word=lambda line: " ".join(_lower_words(line)),
        listed_subword=str.lower,
    ),
}
