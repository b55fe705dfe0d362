"""Patch of how trafilatura 2.3.1 compares its text with readability's: left out where the outcome is known.
Texts are equal, in a seventh less time.

trafilatura runs readability, its second extractor, on every page, and takes the result on one page in twenty:
mostly where it is more than twice as long as its own text. But readability only ever removes parts of a page.
Where not even the text of the whole page would be taken, no part of it is, and readability need not run."""

from __future__ import annotations

from copy import copy
from typing import Any, Final

from stages.html.trafilatura_patches.deleting import Deletions
from stages.html.trafilatura_patches.faults import own_fault

_NEVER_READ: Final = ("script", "style", "fencedframe")
_GROW: Final = ("xmp", "noembed", "noframes", "plaintext")
"""Elements whose "<" and "&" become longer on readability's way through XML and back."""
_VIDEO: Final = len(" VIDEO")
"""What readability adds at most: the text of an iframe."""


def patch_readability() -> None:
    """Patch this process's trafilatura: readability runs only where its result may be taken."""
    import trafilatura.core
    import trafilatura.external

    trafilatura.external.prune_unwanted_nodes = _pruned_before
    trafilatura.core._extract_and_compare = _extract_and_compare


def longest_text(page: Any) -> int:
    """The most characters that readability's text of a page can have: those of all text that it may see, with
    white space as trafilatura leaves it. Of `page`, scripts and styles go; nothing else of it changes."""
    from trafilatura.utils import trim

    drop_never_read(page)
    num_videos = sum(1 for _ in page.iter("iframe"))
    return len(trim(page.text_content())) + num_videos * _VIDEO


@own_fault
def drop_never_read(page: Any) -> None:
    """Take from a page what readability drops at once."""
    deletions = Deletions()
    for element in list(page.iter(*_NEVER_READ)):
        deletions.delete(element)
    deletions.end()


def may_be_taken(body: Any, num_chars: int, longest: int, options: Any) -> bool:
    """Whether a text of at most `longest` characters may be preferred to the `num_chars` of `body`.

    trafilatura's own rule decides, on the text that it would most likely prefer. Longer texts are preferred,
    and one of equal length counts as the same text: so the length is `longest`, and at least one character
    more than the body's. The article has a heading, since the rule prefers one that has."""
    from lxml.html import Element
    from trafilatura.external import _prefer_readability

    article = Element("article")
    article.append(Element("h2"))
    return bool(_prefer_readability(body, article, "", num_chars, max(longest, num_chars + 1), options))


@own_fault
def _pruned_before(page: Any, _expressions: object) -> Any:
    return page


@own_fault
def _extract_and_compare(cleaned: Any, backup: Any, tree: Any, options: Any) -> tuple[Any, str]:
    """trafilatura's own two steps, with the page that readability gets pruned here, or empty."""
    from lxml.html import Element
    from trafilatura.external import compare_extraction
    from trafilatura.htmlprocessing import prune_unwanted_nodes
    from trafilatura.main_extractor import extract_content
    from trafilatura.xpaths import OVERALL_DISCARD_XPATH

    body, text = extract_content(cleaned, options)
    if options.fast:
        return body, text
    page = copy(tree)
    drop_never_read(page)  # before readability does, which joins what is behind each to all before it
    known = next(page.iter(*_GROW), None) is None
    nothing = known and not may_be_taken(body, len(text), longest_text(page), options)
    if not nothing and options.focus == "precision":
        page = prune_unwanted_nodes(page, OVERALL_DISCARD_XPATH)
        nothing = known and not may_be_taken(body, len(text), longest_text(page), options)
    body, text = compare_extraction(backup, Element("html") if nothing else page, body, text, options)
    return body, text
