"""URL step: turns a document down by its length, as cut off, by its page, or by what its publisher says of its use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Final, Literal

from lineage.pages import page_of
from lineage.recipe import errors_about, key
from stages.document import Document, Finding, Outcome, Rejection, decide
from stages.rules import Rule
from stages.steps.rights import RightsReader
from stages.steps.url_lists import (
    WAYS,
    LineNumbers,
    Match,
    SubwordList,
    UrlForms,
    WordList,
    hosts_of_list,
    lines_of,
    subwords_of_list,
    urls_of_list,
    words_of_list,
)

STAGE = "url"
_TOO_LONG: Final = Rule(
    stage=STAGE,
    name="url.too_long",
    side="above",
    is_bound=True,
    keys=("limits.max_document_bytes",),
    help="bytes of the payload",
)
_TRUNCATED: Final = Rule(
    stage=STAGE,
    name="url.truncated",
    side="yes",
    help="a record that does not hold the whole page (`url.truncated`)",
)
_BLOCKED_HOST: Final = Rule(
    stage=STAGE,
    name="url.blocked_host",
    side="listed",
    help="a page of a host of `url.block_hosts`, or of its subdomains",
)
_BLOCKED_URL: Final = Rule(
    stage=STAGE, name="url.blocked_url", side="listed", help="a URL of `url.block_urls`"
)
_BLOCKED_WORD: Final = Rule(
    stage=STAGE, name="url.blocked_word", side="listed", help="a URL with one of `url.block_words`"
)
_SOFT_WORDS: Final = Rule(
    stage=STAGE,
    name="url.too_many_soft_words",
    side="at least",
    keys=("url.min_soft_words",),
    help="different words of `url.block_soft_words` in the URL",
)
_BLOCKED_SUBWORD: Final = Rule(
    stage=STAGE,
    name="url.blocked_subword",
    side="listed",
    help="a URL that holds one of `url.block_subwords` anywhere",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlTable:
    """`[url]`: what is turned away by its address."""

    block_hosts: tuple[str, ...] = key(
        (),
        is_path=True,
        help="files of hosts, one a line (also hosts(5) format); a host's subdomains are blocked with it",
    )
    block_urls: tuple[str, ...] = key(
        (),
        is_path=True,
        help="files of URLs, one a line (also UT1's, without a scheme); only these pages are blocked",
    )
    block_words: tuple[str, ...] = key(
        (),
        is_path=True,
        help="files of words or phrases, one a line; a URL that contains one as whole words is blocked",
    )
    block_soft_words: tuple[str, ...] = key(
        (),
        is_path=True,
        help="files of words; a URL that contains min_soft_words different ones is blocked",
    )
    min_soft_words: int = key(2, at_least=1, unit="words", help="number of soft words that block a URL")
    block_subwords: tuple[str, ...] = key(
        (),
        is_path=True,
        help="files of words; a URL that contains one anywhere, even inside a word, is blocked",
    )
    match: Match = key(
        "words",
        help="how lists match: words in any case and script, hosts with subdomains; as in "
        "datatrove's URLFilter for FineWeb; or as in DCLM's url_substring_filter "
        "(docs/rules.md)",
    )
    truncated: Literal["keep", "reject"] = key(
        "keep",
        help="records without the whole page: WARC-Truncated, or the first of several segments",
    )


class UrlStep:
    """Rules: `url_rules`, in order, then those of `rights`, which reads the signals of every document. One without
    URL (JSONL and Parquet rows may have none) is only subject to the first two; to that of hosts only one whose URL
    names a page.

    The value of a list's rule is the number of the line that turned the document down, counted through the
    key's files, 0 for none."""

    stage = STAGE

    def __init__(
        self,
        table: UrlTable,
        max_document_bytes: int,
        *,
        rights: RightsReader | None = None,
        ledger: bool = False,
    ) -> None:
        self._table, self._rights = table, rights
        self._way = WAYS[table.match]
        self._too_long = _TOO_LONG.at(float(max_document_bytes))
        self._soft_words = _SOFT_WORDS.at(float(table.min_soft_words))
        self._ledger = ledger

    def prepare(self) -> None:
        """Read the lists now; RecipeError if one cannot be."""
        _ = self._hosts, self._urls, self._words, self._soft, self._subwords
        if self._rights is not None:
            self._rights.prepare()

    def __call__(self, document: Document, /) -> Outcome:
        if self._rights is None:
            return decide(document, self._findings(document), ledger=self._ledger)
        document, signals = self._rights.read(document)
        findings = chain(self._findings(document), self._rights.findings(signals))
        outcome = decide(document, findings, ledger=self._ledger)
        if isinstance(outcome, Rejection):  # no step behind looks at its page
            return replace(outcome, document=outcome.document.but(decoded=None))
        return outcome

    def _findings(self, document: Document) -> Iterable[Finding]:
        num_bytes = float(document.num_bytes)
        if self._ledger or self._too_long.rejects(num_bytes):  # of every page: seldom worth a finding
            yield self._too_long.finding(num_bytes)
        table, way = self._table, self._way
        if table.truncated == "reject":
            yield _TRUNCATED.finding(document.truncated is not None)
        if not has_lists(table):
            return
        page = page_of(document.url)
        # What the page's URL is wrapped in, such as urn:text:, is no part of the page's.
        url = UrlForms(spelt=(document.url or "") if page is None else page.spelt, page=page)
        if table.block_hosts:
            yield _BLOCKED_HOST.finding(float(self._hosts.line_of(way.hosts(url))))
        if table.block_urls:
            yield _BLOCKED_URL.finding(float(self._urls.line_of(way.urls(url)) if url.spelt else 0))
        words = way.words(url.spelt) if url.spelt and (table.block_words or table.block_soft_words) else ()
        if table.block_words:
            yield _BLOCKED_WORD.finding(float(self._words.line_of(words)))
        if table.block_soft_words:
            yield self._soft_words.finding(float(len(self._soft.found(words))))
        if table.block_subwords:
            yield _BLOCKED_SUBWORD.finding(float(self._subwords.line_of(way.squeezed(url.spelt))))

    @cached_property
    def _hosts(self) -> LineNumbers:
        with errors_about("url.block_hosts"):
            return hosts_of_list(self._table.block_hosts, self._table.match)

    @cached_property
    def _urls(self) -> LineNumbers:
        with errors_about("url.block_urls"):
            return urls_of_list(self._table.block_urls, self._table.match)

    @cached_property
    def _words(self) -> WordList:
        with errors_about("url.block_words"):
            return words_of_list(self._table.block_words, self._table.match)

    @cached_property
    def _soft(self) -> WordList:
        with errors_about("url.block_soft_words"):
            return words_of_list(self._table.block_soft_words, self._table.match)

    @cached_property
    def _subwords(self) -> SubwordList:
        with errors_about("url.block_subwords"):
            return subwords_of_list(self._table.block_subwords, self._table.match)


def has_lists(table: UrlTable) -> bool:
    """Whether a URL is looked up in any list."""
    lists = (
        table.block_hosts,
        table.block_urls,
        table.block_words,
        table.block_soft_words,
        table.block_subwords,
    )
    return any(lists)


_LISTS_OF: Final = {
    _BLOCKED_HOST.name: "block_hosts",
    _BLOCKED_URL.name: "block_urls",
    _BLOCKED_WORD.name: "block_words",
    _BLOCKED_SUBWORD.name: "block_subwords",
}


def listed_at(table: UrlTable, finding: Finding) -> tuple[str, int] | None:
    """The file, and the line in it, that turned a document down by a rule of lists; None where none did."""
    if finding.rule not in _LISTS_OF or not finding.rejected or finding.value is None:
        return None
    files = getattr(table, _LISTS_OF[finding.rule])
    found = lines_of(files, of_urls=finding.rule == _BLOCKED_URL.name)
    return next(((file, line) for number, _, file, line in found if number == finding.value), None)


def url_rules(table: UrlTable, max_document_bytes: int) -> tuple[Rule, ...]:
    """Every rule of the step, in order."""
    return (
        _TOO_LONG.at(float(max_document_bytes)),
        _TRUNCATED,
        _BLOCKED_HOST,
        _BLOCKED_URL,
        _BLOCKED_WORD,
        _SOFT_WORDS.at(float(table.min_soft_words)),
        _BLOCKED_SUBWORD,
    )
