"""trafilatura's XPath expressions, compiled so that they ask for less: the same texts for a quarter less of its time.

Most of what they cost goes into names ("is it a div, or a section, or …", asked of every element) and into tests of
attributes by regular expressions, which lxml answers in Python: also for elements without the attribute, and each value
is a "smart string" to it, for which it makes a Python object of the element. None of this decides what is found."""

from __future__ import annotations

import functools
import re
from typing import Any, Final

_REGULAR_EXPRESSIONS: Final = {"re": "http://exslt.org/regular-expressions"}
_STRING: Final = re.compile(r"'[^']*'")
_ONE_OF: Final = re.compile(r"\s*\.//\*\[((?:self::[a-z]+(?: or )?)+)\](.*\])\s*", re.DOTALL)
_PREDICATES: Final = re.compile(r"(?:\s*\[[^\[\]]+\])+")
_POSITION: Final = re.compile(r"\[\s*\d+\s*\]|position\(|last\(")
_TEST: Final = re.compile(r"re:test\(([^(),']+), '([^']*)'(?:, 'i')?\)")


@functools.cache
def ask_less() -> None:
    """Compile the expressions of this process's trafilatura again, and give its elements a class without a search by
    name: it uses nothing that forms and inputs have of their own."""
    import trafilatura.utils
    import trafilatura.xpaths
    from lxml import etree, html

    for expressions in vars(trafilatura.xpaths).values():
        if isinstance(expressions, list) and all(isinstance(one, etree.XPath) for one in expressions):
            expressions[:] = [compiled(one.path) for one in expressions]
    classes = etree.ElementDefaultClassLookup(
        element=html.HtmlElement,
        comment=html.HtmlComment,
        pi=html.HtmlProcessingInstruction,
        entity=html.HtmlEntity,
    )
    trafilatura.utils.HTML_PARSER.set_element_class_lookup(classes)


def compiled(path: str) -> Any:
    """An lxml XPath that finds the elements that `path` finds; `re` stands for EXSLT's regular expressions."""
    from lxml import etree

    asked_less = _by_name(_TEST.sub(_guarded, path))
    return etree.XPath(asked_less, namespaces=_REGULAR_EXPRESSIONS, smart_strings=False)


def _guarded(test: re.Match[str]) -> str:
    """The test, made only where its attributes are: to EXSLT one that is not there is an empty string."""
    attributes, pattern = test[1], test[2]
    return test[0] if re.search(pattern, "") else f"({attributes} and {test[0]})"


def _by_name(path: str) -> str:
    """`.//*[self::a or self::b][…]` as `descendant::a[…]|descendant::b[…]`: what has another name is passed over by
    the walk itself. Any other path stays as it is, and one in which an element's position among others counts."""
    one_of = _ONE_OF.fullmatch(path)
    if one_of is None:
        return path
    without_strings = _STRING.sub("''", one_of[2])
    if not _PREDICATES.fullmatch(without_strings) or _POSITION.search(without_strings):
        return path
    names = one_of[1].replace("self::", "").split(" or ")
    return "|".join(f"descendant::{name}{one_of[2]}" for name in names)
