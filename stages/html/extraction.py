"""Main text out of HTML: the two extractors, and what can go wrong in them, as values."""

from __future__ import annotations

import enum
import functools
import importlib
import logging
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, Literal, TypeVar

from stages.converters.converter import Converted, Converter, Refused, convert
from stages.fault import Fault
from stages.html.trafilatura_patches.faults import PatchFault, own_fault

Favor = Literal["precision", "balance", "recall"]
_T = TypeVar("_T")
_DEDUPLICATION_CACHE_SIZE: Final = 4096  # as trafilatura's own process-wide cache has it


class Failure(enum.Enum):
    """Why an extraction gave no text; the value is the end of the rule's name."""

    TIMEOUT = "timeout"
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extractor:
    """Which extractor runs, and how. `timeout_seconds` is processor time."""

    name: Literal["trafilatura", "resiliparse"]
    favor: Favor
    fast: bool
    timeout_seconds: float

    def needs_head(self, num_tags: int) -> bool:
        """Whether its text of a page with so many `<` may hang on what is in the page's head alone."""
        return self.name != "resiliparse" or num_tags > _MANY_TAGS  # which has them counted


class BrokenPatchError(RuntimeError):
    """Our own change to an extractor is broken. No page is at fault, so the run ends."""


def extract(html: str, extractor: Extractor, num_tags: int | None = None) -> str | Failure | Fault:
    """The main text of a page, or why there is none: a Fault where the extractor raised. Tried twice where
    the clock ran out. MemoryError and BrokenPatchError are no fault of the page's. `num_tags` is at least
    the number of its `<`, where that is known.

    The clock is a backstop: bounds that depend only on the page come first (see `stages.steps.parse`)."""
    run = _callable(extractor)
    num = html.count("<") if num_tags is None else num_tags
    return _tried(lambda: run(html, num), extractor.timeout_seconds)


def converted(payload: bytes, converter: Converter) -> Converted | Refused | Failure | Fault:
    """What a payload of another kind is converted to, or why there is nothing, as of `extract`. Its library may hang
    or crash in native code: to be called in a child process."""
    return _tried(lambda: convert(payload, converter), converter.timeout_seconds)


def _tried(run: Callable[[], _T], seconds: float) -> _T | Failure | Fault:
    for _ in range(2):
        try:
            with processor_time_limit(seconds):
                return run()
        except OutOfTimeError:
            continue
        except PatchFault as fault:
            cause = fault.__cause__
            raise BrokenPatchError(f"{fault}: {type(cause).__name__}: {cause}") from cause
        except _library_errors() as error:
            return Fault.of(error)
    return Failure.TIMEOUT


@functools.cache
def _callable(extractor: Extractor) -> Callable[[str, int], str]:
    return (
        _resiliparse() if extractor.name == "resiliparse" else _trafilatura(extractor.favor, extractor.fast)
    )


_PYTHON_ERRORS: Final = (
    ValueError, TypeError, LookupError, AttributeError, AssertionError, RecursionError, OverflowError, RuntimeError,
)  # fmt: skip


@functools.cache
def _library_errors() -> tuple[type[Exception], ...]:
    """What lxml, trafilatura, justext, resiliparse and the libraries of converters raise on pages that they cannot
    cope with, or where one is not installed."""
    from lxml.etree import LxmlError

    return (LxmlError, ImportError, *_PYTHON_ERRORS)


def _trafilatura(favor: Favor, fast: bool) -> Callable[[str, int], str]:
    """trafilatura as FineWeb and datatrove call it, but for the memory: its process-wide cache of seen text
    makes a page's text hang on the pages before it, so each page gets a cache of its own."""
    import trafilatura
    from trafilatura.deduplication import LRUCache

    from stages.html.trafilatura_patches.apply import apply_patches

    apply_patches()
    logging.getLogger("trafilatura").setLevel(
        logging.CRITICAL
    )  # a line for every odd page is noise at this scale

    @own_fault
    def run(html: str, _num_tags: int) -> str:
        text = trafilatura.extract(
            html,
            fast=fast,
            favor_precision=favor == "precision",
            favor_recall=favor == "recall",
            include_comments=False,
            deduplicate=LRUCache(maxsize=_DEDUPLICATION_CACHE_SIZE),
        )
        return _less_indented(text or "", len(html))

    return run


_LIST: Final = re.compile("<[uoUO][lL]")
_LIST_BEGINS_OR_ENDS: Final = re.compile("<(/?)[uoUO][lL]")
_MANY_LISTS: Final = 1_000
_DEEPEST_LIST: Final = 32
"""Lists around one another that indent what they hold. Those of 1,138 crawled pages are 9 at most."""
_INDENT: Final = 2 * " "
_TOO_FAR: Final = re.compile(f"^(?:{_INDENT}){{{_DEEPEST_LIST}}} +", re.MULTILINE)
_MANY_TAGS: Final = 10_000
_GROWN: Final = 2
"""How many times a page's characters its text may have to be taken as it is."""


def _less_indented(text: str, num_chars: int) -> str:
    """The text of a page of so many characters; where it is much longer than the page, no line is indented
    further than in the deepest list: of items in 900 lists the spaces would be the text."""
    return text if len(text) <= _GROWN * num_chars else _TOO_FAR.sub(_INDENT * _DEEPEST_LIST, text)


def _resiliparse() -> Callable[[str, int], str]:
    """resiliparse, which indents each item by two for every list around it, and takes a list without children
    for one that never ends: 24,500 of them in a cell, 340 kB in all, made a text of 600 MB. Where a page has
    very many lists or deep ones, or its text has become longer than it, such lists get a space to hold, and
    lists in more than `_DEEPEST_LIST` of them give what they hold to the node around them."""
    from resiliparse.extract.html2text import extract_plain_text

    def extract(page: object) -> str:
        return str(extract_plain_text(page, main_content=True, alt_texts=False))  # type: ignore[arg-type]

    def run(html: str, num_tags: int) -> str:
        # Few pages have so many tags: to look for lists by name would cost any other a twentieth of its time.
        if num_tags <= _MANY_TAGS or not _has_many_lists(html):
            text = extract(html)
            if len(text) <= _GROWN * len(html):
                return text
        return extract(_with_plain_lists(html))

    return run


def _has_many_lists(html: str) -> bool:
    """Whether a page may have very many lists, or deep ones."""
    if len(_LIST.findall(html)) > _MANY_LISTS:
        return True
    deepest = nesting = 0
    for tag in _LIST_BEGINS_OR_ENDS.finditer(html):
        nesting = max(nesting - 1, 0) if tag[1] else nesting + 1
        deepest = max(deepest, nesting)
    return deepest > _DEEPEST_LIST


def _with_plain_lists(html: str) -> object:
    """The page's tree, in which every list has a child, and none nests deeper than `_DEEPEST_LIST`."""
    from resiliparse.parse.html import HTMLTree

    from stages.html.markup import nodes

    tree: Any = HTMLTree.parse(html)
    around: list[int] = []  # how deep each list around the node is in the tree
    too_deep = []
    for node, nesting in nodes(tree):
        while around and around[-1] >= nesting:
            around.pop()
        if node.tag in ("ul", "ol"):
            if node.first_child is None:
                node.append_child(tree.create_text_node(" "))
            if len(around) >= _DEEPEST_LIST:
                too_deep.append(node)
            around.append(nesting)
    for node in too_deep:  # the outer one first: what it holds is moved once for each list of its own
        while (child := node.first_child) is not None:
            node.remove_child(child)
            node.parent.insert_before(child, node)
        node.parent.remove_child(node)
    return tree


class OutOfTimeError(BaseException):
    """A page took too long. Not an Exception: the extractors swallow those of their parts."""


_set_handler: Final = importlib.import_module("_signal").signal
"""`signal.signal` without its search for each handler among the names of an enum, which costs a page 20 µs.
What it gives and takes for the default is the plain number."""


class processor_time_limit:  # noqa: N801 - a context manager; made of a generator it takes twice as long
    """OutOfTimeError in the block after so much processor time of this process (so a busy machine changes
    nothing).

    Signals reach only the main thread, and only between two of Python's own steps: elsewhere, and inside one
    long native call, there is no limit, and `stages.html.extraction_child` has to hold it."""

    __slots__ = ("_previous", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._previous: Any = None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._previous = _set_handler(signal.SIGVTALRM, _raise_out_of_time) or int(signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_VIRTUAL, self._seconds)

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            _set_handler(signal.SIGVTALRM, self._previous)


def _raise_out_of_time(_signal: int, _frame: FrameType | None) -> None:
    raise OutOfTimeError
