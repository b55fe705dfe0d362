"""URL step: turns a document down by its length, as cut off or by its page, before anything is parsed."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal
from urllib.parse import unquote

import regex

from lineage.pages import is_address, named_host, page_of, with_parents
from lineage.recipe import RecipeError, blamed_on, key
from stages.document import Document, Finding, Outcome, decide
from stages.steps.textfiles import list_lines

STAGE = "url"
_HOST = re.compile(r"[\w.:-]+")
_NOT_A_WORD = regex.compile(r"[^\p{L}\p{N}\p{M}]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlTable:
    """`[url]`: what is turned away by its address."""

    block_hosts: tuple[str, ...] = key(
        (),
        is_path=True,
        help="files of hosts, one a line (also hosts(5) format); a host's subdomains are blocked with it",
    )
    block_words: tuple[str, ...] = key(
        (),
        is_path=True,
        help="files of words or phrases, one a line; a URL is blocked where they stand in it as whole words",
    )
    truncated: Literal["keep", "reject"] = key(
        "keep", help="records that do not hold the whole page: WARC-Truncated, or the first of several segments"
    )


class UrlStep:
    """Rules, in this order: `url.too_long` (bytes of the payload), `url.truncated`, `url.blocked_host`,
    `url.blocked_word`.

    A document without URL (JSONL and Parquet rows may have none) is only subject to the first two; to the third only
    one whose URL names a page."""

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
        table = self._table
        if table.truncated == "reject":
            yield Finding(stage=STAGE, rule="url.truncated", rejected=document.truncated is not None)
        page = page_of(document.url) if table.block_hosts or table.block_words else None
        if table.block_hosts:
            is_blocked = page is not None and not self._hosts.isdisjoint(with_parents(page.host))
            yield Finding(stage=STAGE, rule="url.blocked_host", rejected=is_blocked)
        if table.block_words:
            # A word of what the page's URL is wrapped in, such as urn:text:, is none of the page's.
            url = document.url if page is None else page.spelt
            yield Finding(stage=STAGE, rule="url.blocked_word", rejected=self._words.match(url))

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
    names = words[1:] if len(words) > 1 and is_address(words[0]) else words
    if len(names) > 1 and names == words:
        raise RecipeError(
            f"{file} holds {line!r}: expected one host name, such as example.com, or an address and the hosts behind it"
        )
    for name in names:
        host = named_host(name.removeprefix("*.").removeprefix("."))
        if host is None or not _HOST.fullmatch(host):  # such as ||example.com^ or example.*, which match no host
            raise RecipeError(f"{file} holds {line!r}: expected a host name, such as example.com")
        yield host


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
