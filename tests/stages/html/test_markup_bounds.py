"""The bounds of a page's markup: how deep the parser nests it, and a cheap bound that is never below."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from stages.html.markup import depth, depth_where_above, num_elements
from stages.html.markup_bounds import markup_bounds

pytestmark = pytest.mark.differential("stages/html")


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
    assert 2 + markup_bounds(html.encode())[1] >= expected


def test_an_end_tag_that_an_open_block_makes_the_parser_pass_over_ends_nothing():
    assert depth("<span><div></span>" * 2) == 6


def test_a_page_is_looked_at_no_further_than_where_it_is_too_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []

    def counted(html: str) -> int:
        looked_at.append(html.count("<"))
        return depth(html)

    monkeypatch.setattr("stages.html.markup.depth", counted)
    assert depth_where_above("<rp>x" * 90_000, 1_000) == 2 + 10_000
    assert looked_at == [10_000], "at 90,000 the parser would have looked through four billion elements"
    monkeypatch.setattr("stages.html.markup._BEGINNING", 100)
    assert depth_where_above("<p>x" * 250 + "<rp>x" * 30, 20) == 33
    assert looked_at[1:] == [100, 200, 280], "what began flat may be deep further on"
    assert depth_where_above("<p>x" * 2_000, 20) == 3
    assert looked_at[4:] == [100, 200, 400, 800, 1_600, 2_000], "together no more than the page twice"


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


NAMES = [
    "form",
    "select",
    "option",
    "svg",
    "math",
    "section",
    "ul",
    "a",
    "template",
    "x",
    "y",
    "foreignobject",
]
SCOPES = [f"<{slash}{name}>" for name in NAMES for slash in ("", "/")]
TABLES = ["<table>", "</table>", "<tr>", "</tr>", "<td>", "</td>", "<caption>", "</caption>"]


@given(st.lists(st.sampled_from([*PARTS, *SCOPES, "<![CDATA[", "]]>"])), st.integers(1, 20))
@example(["<div>", "<", "x", "</div>", "<div>"], 1)
@example(["<form>", "</x>", "<y>", "<x>", "</form>"], 20)
def test_the_cheap_bound_is_never_below_the_depth(parts, times):
    html = "".join(parts) * times
    num_tags, bound, *_ = markup_bounds(html.encode())
    assert num_tags == html.count("<")
    assert depth(html) - 3 <= bound <= num_tags, (
        "`html`, `body` and the element that a stray </p> makes are no tags"
    )


@given(st.lists(st.sampled_from([*PARTS, *SCOPES, *TABLES])), st.integers(1, 20))
def test_elements_that_a_table_may_leave_out_double_the_bound_at_most(parts, times):
    html = "".join(parts) * times
    assert depth(html) <= 2 * markup_bounds(html.encode())[1] + 3


HIDING = {f"<{name}>" for name in ("script", "style", "title", "textarea")}
PLAINLY_READ = [
    part for part in [*PARTS, *SCOPES, *TABLES, "<img>"] if part.endswith(">") and part not in HIDING
]
VOID = {"br", "img"}
SPECIAL = VOID | {
    "div",
    "p",
    "h1",
    "li",
    "script",
    "style",
    "title",
    "table",
    "tr",
    "td",
    "caption",
    "form",
    "select",
}
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
            st.sampled_from(PLAINLY_READ),
            st.sampled_from(
                ["<blockquote>", "</blockQuote>", "<longname-a>", "</longname-a>", "</\n>", "<ü>"]
            ),
            st.text(">/ab \n"),
        )
    )
)
@example(["<b>", "<div>", "</b>", "</div>", "<b>"])
@example(["<form>", "<x>", "</form>", "<form>", "</x>", "<x>"])
def test_the_cheap_bound_adds_up_what_no_end_tag_answered(parts):
    html = "".join(parts)
    assert markup_bounds(html.encode())[1] == plain_bound(html)


def test_more_names_than_there_is_room_for_make_the_bound_larger_at_most():
    names = [f"x{number:x}" for number in range(20_000)]
    html = "".join(f"<{name}></{name}>" for name in names) * 2
    assert plain_bound(html) <= markup_bounds(html.encode())[1] <= 2 * len(names)


FORMATTING = ["a", "b", "nobr", "font", "rt", "dialog", "span", "hr", "li", "object"]
REOPENED = [f"<{name}>" for name in FORMATTING] + [f"</{name}>" for name in FORMATTING]
REOPENED += [f"<{name} id={number}>x" for name in ("a", "b", "font") for number in range(4)]


@given(st.lists(st.sampled_from([*PARTS, *SCOPES, *REOPENED, "<![CDATA[", "]]>"])), st.integers(1, 20))
def test_no_page_has_more_elements_than_tags_and_those_that_are_opened_again(parts, times):
    html = "".join(parts) * times
    num_tags, _, num_reopened, *_ = markup_bounds(html.encode())
    assert num_elements(html) - 3 <= num_tags + num_reopened, "`html`, `head` and `body` need no tags"


@pytest.mark.parametrize(
    "html",
    [
        "<p><a href=x><b>x</b></a> <i>y</i></p>" * 100,
        "<ul><li><span><em>x</em></span><li><code>y</code></ul>" * 100,
        "<a href=x><div><h2><b>x</b></h2></div></a>" * 100,
    ],
)
def test_little_is_opened_again_where_elements_end(html):
    assert markup_bounds(html.encode())[2] <= html.count("<")


@pytest.mark.parametrize("hidden", ["", "<!--</b>-->", "<script></b></script>", "<i title='</b>'></i>"])
def test_elements_that_no_end_tag_ends_are_opened_again_in_every_block(hidden):
    html = "<div>" + "".join(f"<b id={number}>{hidden}" for number in range(30)) + "</div>" + "<p>x</p>" * 200
    assert num_elements(html) > 30 * 200
    assert num_elements(html) < sum(markup_bounds(html.encode())[::2]) < 3 * num_elements(html)


def test_what_is_opened_again_with_long_attributes_counts_for_more():
    pages = [f"<div><b title={'x' * length}></div>" + "<p>x</p>" * 100 for length in (1, 128_000)]
    short, long = (markup_bounds(page.encode())[2] for page in pages)
    assert long > 1_000 * short


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("", 0),
        ("<p>", 0),
        ("<p a b=1 c='2>' d = \"<e f g>\" h>", 5),
        ("<p/a/b/c/>", 3),
        ("<p a='1'b=\"2\"c>", 3),
        ("<p a></p b c>", 2),
        ("<!-- <p a b c> --><p a>", 1),
        ("<script>if (a<b c d e)</script><p a>", 1),
        ("<svg><style><p a b c></style></svg><p a>", 3),
        ("<select><title></select><p a b></title>", 2),
        ("<p a b", 2),
    ],
)
def test_the_most_attributes_of_a_tag(html, expected):
    assert markup_bounds(html.encode())[3] == expected


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<option>" * 5, 0),
        ("<select>" + "<option>x</option>" * 5, 5),
        ("<select><option><optgroup><OPTION ></select><option><select><option/></select>", 2),
        ("<!-- <select> --><option><option>", 0),
        ("<select><!-- </select> --><option><option>", 2),
        ("<select><template></select></template><option><option>", 2),
        ("<select><div></select><option><option>", 2),
        ("<svg><style><select><option><option></select><option>", 3),
        ("<select><title><option></title><option>", 2),
    ],
)
def test_the_most_options_of_a_select(html, expected):
    assert markup_bounds(html.encode())[4] == expected


def test_attributes_are_counted_in_linear_time_where_every_tag_may_begin_anywhere():
    html = "<svg><style><p " + "<x a " * 50_000
    assert markup_bounds(html.encode())[3] > 1_000


def head_of(html: str) -> str | None:
    """What is taken for a stretch of the page's head alone; None where there is none."""
    found: list[tuple[int, int]] = []
    markup_bounds(html.encode(), found)
    return html[slice(*found[0])] if found else None


IN_HEAD = "<meta charset=utf-8>\n<title>Tide <b> \u201etable\u201c</title><!-- <p> --><script>if (a</p>/) b</script>"


@pytest.mark.parametrize(
    ("before", "inside", "behind"),
    [
        ("<!DOCTYPE html>\n<html lang=en><!-- \u00e9 --><head>", IN_HEAD, "</head><body><p>x"),
        ("<HEAD class='>'>", "<STYLE>\u20ac{}</STYLE><link rel=a /><base href=b></link>", "<p>x"),
        ("<?xml version='1.0'?><head>", "<noscript><style>a</style><link></noscript>", "\n text<p>x"),
        ("<head>", "<meta>", "<noscript><link></head><title>t</title><p>x"),
        ("<head>", "<script><!-- <script> </script> --></script>", "<div>x"),
        ("<head>", "", "<meta\x0b><title>t</title>x"),
        ("<head>", "", "<3 <meta><p>x"),
    ],
)
def test_what_a_page_holds_in_its_head_alone_is_found(before: str, inside: str, behind: str) -> None:
    assert head_of(before + inside + behind) == inside
    assert markup_bounds((before + inside + behind).encode(), []) == markup_bounds(
        (before + inside + behind).encode()
    )


@pytest.mark.parametrize(
    "html",
    [
        f"<p>{IN_HEAD}",
        f"text<head>{IN_HEAD}</head>",
        f"<div></div><head>{IN_HEAD}</head>",
        f"</p><head>{IN_HEAD}</head>",
        f"<header>{IN_HEAD}</header>",
        "<head><title>never ends",
        "<head><meta>",
        "",
    ],
)
def test_a_page_without_a_head_or_anything_behind_it_has_no_such_stretch(html: str) -> None:
    assert head_of(html) is None


_PARTS = """
<meta a='</head>'>|<link>|<base/>|<script>a='<b>'</script>|<script><!--<script></script>--></script>|<style>p{}</style>
<style><!--</style>|<title>A<b>t</title>|<noscript>|</noscript>|<noscript><style>u</noscript>v</style>|</head>|</body>
</html>|</br>|<br>|<div>d|</div>|<p>para|text|<!--c-->|<!-->|<!--a--!>|<!doctype>|<?x?>|<![CDATA[x]]>|<body>|<html>|<img>
<head>|<head/>|</meta>|</title>|</script>|<template>t</template>|<svg><title>s</title></svg>|<iframe>f</iframe>|</p>
<frameset><frame></frameset>|\u00e9|\u20ac|\ufeff|<select><option>o</select>|<a>link</a>|<textarea>x</textarea>|<meta
<title>|<script>|\x00|<METApart>|<3|</>|<table><tr><td>c|<noframes>n</noframes>|<plaintext>|<math><mi>|<style/>s|<bgsound>
""".strip()
PARTS = st.lists(
    st.sampled_from([*re.split(r"[|\n]", _PARTS), "<meta\x0b>", "<noscript\x0b>", " ", "\n"]), max_size=12
).map("".join)


@given(
    before=st.sampled_from(["", "<!doctype html>", "<!doctype html><html a='<'>\n", "<!--c-->"]), parts=PARTS
)
@example(before="", parts="<noscript></head><title>t</title>")
@example(before="", parts="<meta\x0b><p>x")
def test_a_page_without_what_is_in_its_head_alone_has_the_same_body_and_text(before: str, parts: str) -> None:
    html = f"{before}<head>{parts}<p>The end of it.</p>"
    head = head_of(html)
    left = html if head is None else html.replace(f"<head>{head}", "<head>", 1)
    trees = [HTMLTree.parse(page).body for page in (html, left)]
    assert str(trees[0]) == str(trees[1])
    texts = [extract_plain_text(page, main_content=True, alt_texts=False) for page in (html, left)]
    assert texts[0] == texts[1]
