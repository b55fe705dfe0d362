"""URLs go from texts, as DCLM's url_removal_modifier takes them out (mlfoundations/dclm,
baselines/mappers/modifiers.py).

- Addresses with a known top-level domain, only from texts that begin with the letters of one, as those that
  begin with "The" (.th) do: DCLM asks `match` where it means `search`. Half of all texts begin so.
- IP addresses of version 4, from every text.
- White space before either goes along, ten characters at most."""

from __future__ import annotations

import functools
import importlib.resources
import itertools
import re
from collections.abc import Iterator
from typing import Final

from stages.quality.rules import RuleSet, RuleSpec, in_all
from stages.quality.text_view import TextView

_EditedText = tuple[str, tuple[tuple[str, int], ...]]

_TAIL: Final = r"[-a-zA-Z0-9()@:%_\+.~#?&//=]*"
_IPV4: Final = re.compile(
    rf"\s{{0,10}}\b(?:(?:https?|ftp)://)?(?:[0-2]?[0-9]{{1,2}}\.){{3}}[0-2]?[0-9]{{1,2}}{_TAIL}"
)
_BEFORE_DOMAIN: Final = 10 + len("https://") + 256
"""How far before the dot of a top-level domain a match may begin."""


@functools.cache
def _expressions() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """What a text begins with; a dot and a top-level domain; a URL."""
    text = importlib.resources.files("stages.quality.dclm").joinpath("tlds.txt").read_text(encoding="utf-8")
    domains = sorted(re.escape(domain) for domain in text.split("\n"))
    by_letter = itertools.groupby(domains, key=lambda domain: domain[:1])
    any_of = "|".join(f"{first}(?:{'|'.join(d[1:] for d in of_first)})" for first, of_first in by_letter)
    return (
        re.compile(any_of, re.IGNORECASE),
        re.compile(rf"\.(?:{any_of})\b"),
        re.compile(
            rf"\s{{0,10}}(?:(?:https?|ftp)://)?[-a-zA-Z0-9@:%._\+~#=]{{1,256}}\.(?:{any_of})\b{_TAIL}"
        ),
    )


def _urls(text: str) -> Iterator[re.Match[str]]:
    """The URLs of a text, from left to right. A search begins where a top-level domain is in reach, so that
    what lies between is passed over quickly."""
    _, domain, url = _expressions()
    at = 0
    while (near := domain.search(text, at)) is not None:
        found = url.search(text, max(at, near.start() - _BEFORE_DOMAIN))
        if found is None:
            return
        yield found
        at = found.end()


def _without_urls(view: TextView) -> tuple[str, int]:
    """The text, and how many went."""
    text = view.text
    urls = tuple(_urls(text)) if _expressions()[0].match(text) else ()
    starts, ends = [found.start() for found in urls], [found.end() for found in urls]
    kept = (text[end:start] for end, start in zip([0, *ends], [*starts, len(text)], strict=True))
    text, num_addresses = _IPV4.subn("", "".join(kept))
    return text, len(urls) + num_addresses


def _is_empty(view: TextView) -> float:
    return not view.once(_without_urls)[0]


def _edit(view: TextView) -> _EditedText:
    text, num = view.once(_without_urls)
    if not num:
        return view.text, ()
    return text, (("url_removal.urls", num), ("url_removal.chars_removed", len(view.text) - len(text)))


ROWS: Final = (RuleSpec(name="url_removal.empty", help="a text of URLs alone", measures=in_all(_is_empty)),)


def rule_set() -> RuleSet:
    """The rule, and the edit."""
    return RuleSet(name="url_removal", rules=tuple(row.rule("dclm", {}) for row in ROWS), edit=_edit)
