"""Patch of how trafilatura 2.3.1 loads a page: a search of the bytes decides whether any character that XML
forbids has to be removed, and elements get their class without a search by name."""

from __future__ import annotations

import re
from typing import Final

from stages.html.trafilatura_patches.faults import own_fault

_CONTROLS: Final = bytes(number for number in range(32) if chr(number) not in "\t\n\r")


def patch_loading() -> None:
    """Patch this process's trafilatura. It uses nothing that only lxml's classes for forms and inputs
    have."""
    import trafilatura.utils
    from lxml import etree, html

    trafilatura.utils.INVALID_XML_CHARS = IfAny(trafilatura.utils.INVALID_XML_CHARS)
    classes = etree.ElementDefaultClassLookup(
        element=html.HtmlElement,
        comment=html.HtmlComment,
        pi=html.HtmlProcessingInstruction,
        entity=html.HtmlEntity,
    )
    trafilatura.utils.HTML_PARSER.set_element_class_lookup(classes)


class IfAny:
    """A pattern of the characters that XML forbids and a text may hold (XML 1.0, section 2.2), searched only
    if one is there: 0.17 ms for 160,000 characters instead of 0.47."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    @own_fault
    def sub(self, replacement: str, text: str) -> str:
        """As the pattern's own."""
        return self._pattern.sub(replacement, text) if holds_forbidden(text) else text


def holds_forbidden(text: str) -> bool:
    """Whether a control character other than tab and line ends, U+FFFE or U+FFFF is in a text."""
    encoded = text.encode("utf-8", "surrogatepass")
    return len(encoded.translate(None, _CONTROLS)) < len(encoded) or "\ufffe" in text or "\uffff" in text
