"""The bounds of a page's markup: how deep the parser nests it, and a cheap bound that is never below."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stages.html.markup import depth
from stages.html.markup_bounds import markup_bounds


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("", 2),
        ("no tags", 2),
        ("<div><b>x</b></div>", 4),
        ("<p>a<p>b<p>c", 3),
        ("<ul><li>a<li>b<li>c</ul>", 4),
        ("<table><tr><td>1<td>2<tr><td>3</table>", 6),
        ("<br><img><hr><input>", 3),
        ("<div/><div/>", 4),
        ("<!--><div><div>", 4),
        ("<svg><style><g><g><g>", 7),
        ("</b></b><i>x", 3),
        ("<DIV><Div></dIV><div></DIV>", 4),
        ("a < b and <3 <", 2),
        ("<div><!--</div>--><div>", 4),
        ("<div><br title='</div>'><div>", 4),
    ],
)
def test_depth_counts_what_really_nests(html, expected):
    assert depth(html) == expected
    assert 2 + markup_bounds(html.encode(), 0)[1] >= expected


def test_an_end_tag_that_an_open_block_makes_the_parser_pass_over_ends_nothing():
    assert depth("<span><div></span>" * 2) == 6


PARTS = [
    "<div>",
    "</div>",
    "<p>",
    "</p>",
    "<b>",
    "</b>",
    "<h1>",
    "</h1>",
    "<br>",
    "<li>",
    "x",
    "<!--",
    "-->",
    "<",
    "</x>",
    "<div title='",
    '<br a="',
    "'",
    '"',
    ">",
    "<title>",
    "</title>",
    "<textarea>",
    "</textarea>",
    "<script>",
    "</script>",
    "<style>",
    "</style >",
]


NAMES = ["form", "select", "option", "svg", "math", "section", "ul", "a", "template", "x", "y", "foreignobject"]
SCOPES = [f"<{slash}{name}>" for name in NAMES for slash in ("", "/")]
TABLES = ["<table>", "</table>", "<tr>", "</tr>", "<td>", "</td>", "<caption>", "</caption>"]


@given(st.lists(st.sampled_from([*PARTS, *SCOPES, "<![CDATA[", "]]>"])), st.integers(1, 20))
@example(["<div>", "<", "x", "</div>", "<div>"], 1)
@example(["<form>", "</x>", "<y>", "<x>", "</form>"], 20)
def test_the_cheap_bound_is_never_below_the_depth(parts, times):
    html = "".join(parts) * times
    num_tags, bound = markup_bounds(html.encode(), 0)
    assert num_tags == html.count("<")
    assert depth(html) - 3 <= bound <= num_tags, "`html`, `body` and the element that a stray </p> makes are no tags"
    assert markup_bounds(html.encode(), num_tags)[1] <= bound


@given(st.lists(st.sampled_from([*PARTS, *SCOPES, *TABLES])), st.integers(1, 20))
def test_elements_that_a_table_may_leave_out_double_the_bound_at_most(parts, times):
    html = "".join(parts) * times
    assert depth(html) <= 2 * markup_bounds(html.encode(), 0)[1] + 3


VOID = {"br", "img"}
SPECIAL = VOID | {"div", "p", "h1", "li", "script", "style", "title", "table", "tr", "td", "caption", "form", "select"}
SPECIAL |= {"section", "ul", "template", "foreignobject", "blockquote"}


def plain_bound(html: str) -> int:
    """For each name the most start tags that no end tag answered, added up."""
    tags = re.findall(r"<(/?)([a-zA-Z][^\t\n\v\f\r />\0]*)", html)
    tags = [(slash, re.sub("[A-Z]", lambda letter: letter[0].lower(), name)) for slash, name in tags]
    stack: list[int] = []
    unanswered: dict[str, list[tuple[int, int]]] = defaultdict(list)
    most: Counter[str] = Counter()
    disorders = unknown = 0
    for number, (slash, name) in enumerate(tags):
        if len(name.encode()) > 8 and name not in SPECIAL:
            unknown += not slash
            continue
        if slash and name in SPECIAL:
            if not stack or tags[stack[-1]][1] != name:
                stack.clear()
                disorders += 1
                continue
            stack.pop()
        around = (stack[-1] if stack else -1, disorders)
        if slash:
            if unanswered[name] and unanswered[name][-1] == around and name != "form":
                unanswered[name].pop()
        elif name in VOID and not unanswered["svg"] and not unanswered["math"]:
            most[name] = max(most[name], 1)
        else:
            unanswered[name].append(around)
            most[name] = max(most[name], len(unanswered[name]))
            if name in SPECIAL:
                stack.append(number)
    return most.total() + unknown


@given(
    st.lists(
        st.one_of(
            st.sampled_from([*PARTS, *SCOPES, *TABLES, "<img>", "<blockquote>", "</blockQuote>"]),
            st.sampled_from(["<longname-a>", "</longname-a>", "<DIV ", "</\n", "<ü>"]),
            st.text("<>/ab\0 \n"),
        )
    )
)
@example(["<b>", "<div>", "</b>", "</div>", "<b>"])
@example(["<form>", "<x>", "</form>", "<form>", "</x>", "<x>"])
def test_the_cheap_bound_adds_up_what_no_end_tag_answered(parts):
    html = "".join(parts)
    assert markup_bounds(html.encode(), len(html))[1] == plain_bound(html)


def test_more_names_than_there_is_room_for_make_the_bound_larger_at_most():
    names = [f"x{number:x}" for number in range(20_000)]
    html = "".join(f"<{name}></{name}>" for name in names) * 2
    assert plain_bound(html) <= markup_bounds(html.encode(), 0)[1] <= 2 * len(names)
