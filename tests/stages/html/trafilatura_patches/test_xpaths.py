"""The patched XPath expressions find the same elements as those of trafilatura."""

from __future__ import annotations

import importlib.util
import tracemalloc

import pytest
import trafilatura.xpaths
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree, html

from stages.html.extraction import Extractor, extract
from stages.html.trafilatura_patches.xpaths import compiled

pytestmark = pytest.mark.differential("stages/html")


def paths() -> list[str]:
    """trafilatura's expressions as it writes them."""
    spec = importlib.util.find_spec("trafilatura.xpaths")
    untouched = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(untouched)
    lists = [value for value in vars(untouched).values() if isinstance(value, list)]
    return [one.path for expressions in lists for one in expressions if isinstance(one, etree.XPath)]


PATHS = paths()
WORDS = [
    "post", "entry", "comment-list", "Commentary", "social", "share-", "nav", "menu", "cookie", "footer", "hidden",
    "bar", "related", "widget", "byline", "author", "article", "story", "main", "content", "teaser", "bottom", "link",
    "caption", "display:none", "reply-1", "reader-comments", "mvp-post-add-box", "infinite-scroll", "text", "",
]  # fmt: skip
attributes = st.dictionaries(
    st.sampled_from(
        ["id", "class", "role", "style", "itemprop", "aria-hidden", "data-component", "rel", "title"]
    ),
    st.lists(st.sampled_from(WORDS), max_size=3).map(" ".join) | st.text("abcCS -_:", max_size=6),
    max_size=3,
)
names = st.sampled_from(
    [
        "div",
        "section",
        "article",
        "main",
        "p",
        "span",
        "list",
        "item",
        "ul",
        "details",
        "h1",
        "a",
        "time",
        "aside",
    ]
)


@st.composite
def trees(draw: st.DrawFn) -> html.HtmlElement:
    """A page of up to 25 elements, each under one of those before it."""
    elements = [html.Element("body")]
    for _ in range(draw(st.integers(1, 25))):
        under = elements[draw(st.integers(0, len(elements) - 1))]
        element = html.Element(draw(names), draw(attributes))
        under.append(element)
        elements.append(element)
    return elements[0]


@given(trees())
def test_every_expression_finds_the_same_elements_in_the_same_order(tree):
    for path in PATHS:
        theirs = etree.XPath(path, namespaces={"re": "http://exslt.org/regular-expressions"})
        assert compiled(path)(tree) == theirs(tree), path


def found(path: str) -> list[str]:
    """The ids that the compiled path finds, which EXSLT's own finds too."""
    tree = html.fromstring(
        "<div><p/><p id='x'/><p id='y' class='X'/><p class='x'/><p id='xy' class='z'/></div>"
    )
    theirs = etree.XPath(path, namespaces={"re": "http://exslt.org/regular-expressions"})
    assert compiled(path)(tree) == theirs(tree), path
    return [element.get("id", "") for element in compiled(path)(tree)]


def test_a_test_that_an_empty_string_passes_is_asked_of_elements_without_the_attribute_too():
    assert found(".//p[re:test(@id, 'z*')]") == ["", "x", "y", "", "xy"]
    assert found(".//p[re:test(@id, 'z*') or re:test(@class, 'q')]") == ["", "x", "y", "", "xy"]
    assert found(".//p[re:test(@id, 'x+')]") == ["x", "xy"]


def test_tests_that_stand_beside_one_another_are_one_call_unless_an_and_binds_stronger():
    several = ".//p[re:test(@id, '^y') or re:test(@class, 'x', 'i') or re:test(@id|@class, 'z')]"
    assert found(several) == ["y", ""]
    assert compiled(several).path.count("t:any") == 1
    assert found(".//p[@class and re:test(@id, 'y') or re:test(@id, '^x$')]") == ["x", "y", "xy"]
    assert found(".//p[re:test(@id, '^x$') or re:test(@id, 'y') and @class='z']") == ["x", "xy"]


def test_answers_are_remembered_but_not_of_values_that_fill_the_memory():
    wanted = compiled(".//p[re:test(@class, 'x$')]")
    tracemalloc.start()
    for number in range(30):
        page = html.Element("body")
        etree.SubElement(page, "p", {"class": f"{number} " + "y" * 1_000_000 + "x"})
        assert len(wanted(page)) == 1
    del page
    kept = tracemalloc.get_traced_memory()[0]
    assert kept < 3_000_000
    for number in range(20_000):
        page = html.Element("body")
        etree.SubElement(page, "p", {"class": f"{number} " + "y" * 200})
        assert wanted(page) == []
    assert tracemalloc.get_traced_memory()[0] - kept < 3_000_000
    tracemalloc.stop()


def test_an_expression_in_which_positions_count_is_not_taken_apart_by_names():
    assert compiled(".//*[self::p or self::q][@id='a'][1]").path.startswith(".//*")
    assert (
        compiled(".//*[self::p or self::q][@id='a']").path == "descendant::p[@id='a']|descendant::q[@id='a']"
    )
    assert compiled(".//*[self::p or self::q][@id='a']|.//i[b]").path.startswith(".//*")


def test_a_process_that_extracts_has_every_expression_compiled_again_and_once():
    extract("<p>x</p>", Extractor(name="trafilatura", favor="recall", fast=True, timeout_seconds=60))
    extract("<p>x</p>", Extractor(name="trafilatura", favor="balance", fast=True, timeout_seconds=60))
    lists = [value for value in vars(trafilatura.xpaths).values() if isinstance(value, list)]
    now = [one.path for expressions in lists for one in expressions if isinstance(one, etree.XPath)]
    assert now == [compiled(path).path for path in PATHS]
    assert sum(before != after for before, after in zip(PATHS, now, strict=True)) > 10
