"""Patch of trafilatura 2.3.1's XPath expressions, compiled so that they do less work. Texts are equal, in a
third less time.

Most of what they cost goes into names ("is it a div, or a section, or …", asked of every element) and into
tests of attributes by regular expressions. lxml answers those in Python, one by one, also for elements
without the attribute, and makes a "smart string" of each value, with a Python object of its element. None of
this decides what is found, and a page names its classes again and again, as a crawl does."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from stages.html.trafilatura_patches.faults import raise_as_own

_REMEMBERED: Final = 4096
"""Results kept of each run of tests: of the thousand look-ups that a page makes, six hundred are found
then."""
_SHORT: Final = 256
"""Values of more characters are not kept: a page may have megabytes of them."""
_NAMESPACE: Final = "urn:sluice:tests"
_STRING: Final = re.compile(r"'[^']*'")
_ONE_OF: Final = re.compile(r"\s*\.//\*\[((?:self::[a-z]+(?: or )?)+)\](.*\])\s*", re.DOTALL)
_PREDICATES: Final = re.compile(r"(?:\s*\[[^\[\]]+\])+")
_POSITION: Final = re.compile(r"\[\s*\d+\s*\]|position\(|last\(")
_TEST: Final = re.compile(r"re:test\(([^(),']+), '([^']*)'(?:, '(i)')?\)")
_RUN: Final = re.compile(rf"{_TEST.pattern}(?:\s+or\s+{_TEST.pattern})*")


def patch_xpaths() -> None:
    """Patch this process's trafilatura: each expression is replaced by one that finds the same elements."""
    import trafilatura.xpaths
    from lxml import etree

    for expressions in vars(trafilatura.xpaths).values():
        if isinstance(expressions, list) and all(isinstance(one, etree.XPath) for one in expressions):
            expressions[:] = [compiled(one.path) for one in expressions]


def compiled(path: str) -> Any:
    """An lxml XPath that finds the elements that `path` finds; `re:test` in it is EXSLT's, with no flag but
    `i`."""
    from lxml import etree

    functions: dict[tuple[str, str], Callable[..., bool]] = {}

    def as_one_call(tests: re.Match[str]) -> str:
        name = f"any{len(functions)}"
        values, passes = _any_of(tests[0])
        functions[_NAMESPACE, name] = passes
        call = f"t:{name}({', '.join(f'string({value})' for value in values)})"
        # To EXSLT an attribute that is not there is an empty string.
        return call if passes(None, *[""] * len(values)) else f"(({' or '.join(values)}) and {call})"

    def as_calls(run: re.Match[str]) -> str:
        before, after = path[: run.start()].rstrip(), path[run.end() :].lstrip()
        binds_stronger = before.endswith("and") or after.startswith("and")
        return _TEST.sub(as_one_call, run[0]) if binds_stronger else as_one_call(run)

    rewritten = _by_name(_RUN.sub(as_calls, path))
    return etree.XPath(rewritten, namespaces={"t": _NAMESPACE}, extensions=functions, smart_strings=False)


def _any_of(tests: str) -> tuple[list[str], Callable[..., bool]]:
    """Tests joined by `or` as one: the paths of the values that they look at, and a function of XPath's
    context and those values."""
    found = [
        (test[1].strip(), re.compile(test[2], re.IGNORECASE if test[3] else 0))
        for test in _TEST.finditer(tests)
    ]
    values = list(dict.fromkeys(value for value, _ in found))
    searches = [(values.index(value), pattern.search) for value, pattern in found]
    answers: dict[tuple[str, ...], bool] = {}

    def look(of_element: tuple[str, ...]) -> bool:
        # Four hundred times a page: so no any(…), whose generator is half its cost, and no call of a guard.
        try:
            answer = False
            for place, search in searches:
                if search(of_element[place]) is not None:
                    answer = True
                    break
            if sum(map(len, of_element)) <= _SHORT:
                if len(answers) == _REMEMBERED:
                    answers.clear()  # forgetting one by one would have to keep an order of use
                answers[of_element] = answer
        except (MemoryError, RecursionError):
            raise
        except Exception as error:
            raise_as_own(error)
            raise
        return answer

    def passes(_context: object, *of_element: str) -> bool:
        answer = answers.get(of_element)
        return look(of_element) if answer is None else answer

    return values, passes


def _by_name(path: str) -> str:
    """`.//*[self::a or self::b][…]` as `descendant::a[…]|descendant::b[…]`: what has another name is passed
    over by the walk itself. Any other path stays as it is, and one in which an element's position among
    others counts."""
    one_of = _ONE_OF.fullmatch(path)
    if one_of is None:
        return path
    without_strings = _STRING.sub("''", one_of[2])
    if not _PREDICATES.fullmatch(without_strings) or _POSITION.search(without_strings):
        return path
    names = one_of[1].replace("self::", "").split(" or ")
    return "|".join(f"descendant::{name}{one_of[2]}" for name in names)
