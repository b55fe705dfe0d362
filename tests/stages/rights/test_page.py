"""Signals in response headers and HTML: which markup counts, and what all of them come to."""

from __future__ import annotations

import pytest
from bs4 import BeautifulSoup
from hypothesis import example, given
from hypothesis import strategies as st

from stages.rights.decide import as_text, denies, from_text, recorded_columns, training_use
from stages.rights.page import MOST_SIGNALS, header_signals, html_signals, part_with_signals
from stages.rights.signal import Signal


def kinds(html: str, *agents: str) -> list[str]:
    return [signal.kind for signal in html_signals(html, agents)]


def values(html: str) -> list[str]:
    return [signal.value for signal in html_signals(html, ())]


@pytest.mark.parametrize(
    "html",
    [
        '<meta name="robots" content="noai">',
        "<META NAME=ROBOTS CONTENT=NOAI>",
        "<meta content='index, NoAI' name=' Robots '/>",
        '<meta\nname="robots"\ncontent="noai, follow"\n>',
        '<meta name="r&#111;bots" content="noai">',
        '<p>text <meta name="robots" content="noai"> in the body',
        '<meta name="robots" content="noai" content="all">',
        '<!--> <meta name="robots" content="noai"> -->',
        '<title>a</title><meta name="robots" content="noai">',
        '<script>w("</head><body>")</script><meta name="robots" content="noai"></head>',
        '<!-- </head> --><meta name="robots" content="noai"></head>',
        '<title>About <body> and </head></title><meta name="robots" content="noai">',
    ],
)
def test_a_meta_element_counts_however_it_is_written(html: str) -> None:
    assert kinds(html) == ["noai"]


@pytest.mark.parametrize(
    "html",
    [
        '<!-- <meta name="robots" content="noai"> -->',
        '<script>document.write(\'<meta name="robots" content="noai">\')</script>',
        '<title><meta name="robots" content="noai"></title>',
        '<textarea><meta name="robots" content="noai"></textarea>',
        '<style><meta name="robots" content="noai"></STYLE>',
        '&lt;meta name="robots" content="noai"&gt;',
        '<p title=\'<meta name="robots" content="noai">\'><a href="#">noai</a>',
        '<p <meta name="robots" content="noai">',
        '<metadata name="robots" content="noai">',
        '<meta name="description" content="noai">',
        '<meta name="robots" content="max-image-preview:large, noairs">',
        '<meta name="googlebot" content="noai">',
        '<meta name="robots" content="all" content="noai">',
        '<head></head><body><meta name="robots" content="noai">',
        '<BODY><meta name="robots" content="noai">',
        '<!-- never closed <meta name="robots" content="noai">',
        "noai",
    ],
)
def test_what_is_no_element_for_us_is_no_signal(html: str) -> None:
    assert kinds(html) == []


def test_a_meta_element_for_one_of_our_crawlers_counts() -> None:
    html = '<meta name="GPTBot" content="noindex, noimageai">'
    assert kinds(html, "gptbot") == ["noindex", "noimageai"]
    assert kinds(html, "CCBot") == []


def test_none_is_noindex() -> None:
    assert kinds('<meta name="robots" content="none">') == ["noindex"]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("noai", ["noai"]),
        ("noai, noimageai", ["noai", "noimageai"]),
        ("googlebot: noai", []),
        ("GPTBot: noai", ["noai"]),
        ("googlebot: noindex\nnoai", ["noai"]),
        ("googlebot: noindex, noai", []),
        ("googlebot: noindex, gptbot: noai", ["noai"]),
        ("unavailable_after: 25 Jun 2010 15:00:00 PST, noai", ["noai"]),
        ("max-snippet:-1, noindex", ["noindex"]),
        ("unavailable_after: Fri, 25 Jun 2010 15:00:00 GMT, noai", ["noai"]),
        ("googlebot: unavailable_after: Friday, 25-Jun-10 15:00:00 UTC, noai", []),
        ("max-snippet : 20, noai", ["noai"]),
        ("GPTBot : noai", ["noai"]),
        ("*: noai", ["noai"]),
        ("", []),
    ],
)
def test_a_product_token_in_x_robots_tag_is_for_the_rest_of_its_line(value: str, found: list[str]) -> None:
    assert [signal.kind for signal in header_signals((("x-robots-tag", value),), ("GPTBot",))] == found


def test_lines_of_content_usage_are_one_field() -> None:
    (signal,) = header_signals((("content-usage", "train-ai=n\ntrain-ai=y"),), ())
    assert (signal.value, signal.meaning) == ("train-ai=n, train-ai=y", "allowed")


def test_licences_of_links_and_json_ld() -> None:
    html = """<head><link rel="alternate license" href="/licence?a=1&amp;b=2">
    <script type="application/ld+json">{"@graph": [{"@type": "Article", "license":
      "https://creativecommons.org/licenses/by-sa/4.0/"}, {"image": {"license": {"@id": "https://l.example/2"}}},
      {"license": ["https://l.example/3", {"@type": "CreativeWork", "url": "https://l.example/4"}, "no URL", 5, null]}]}
    </script></head><a class=x rel=LICENSE href=https://l.example/5>licence</a>
    <a href="HTTP://CreativeCommons.org/publicdomain/zero/1.0/">CC0</a><a rel="nofollow" href="/license">no</a>"""
    assert values(html) == [
        "/licence?a=1&b=2",
        "https://creativecommons.org/licenses/by-sa/4.0/",
        "https://l.example/2",
        "https://l.example/3",
        "https://l.example/4",
        "https://l.example/5",
        "HTTP://CreativeCommons.org/publicdomain/zero/1.0/",
    ]
    (signal,) = header_signals(
        (("link", '<https://a.example/>; rel=next, <https://l.example/>; rel="license x"'),), ()
    )
    assert signal == Signal("license", "header", "https://l.example/", "unknown")
    (signal,) = header_signals((("link", '<https://l.example/>; title="CC, 4.0"; rel=license'),), ())
    assert signal.value == "https://l.example/"


@pytest.mark.parametrize(
    "text", ["{", "[" * 50_000 + '"license"', '{"license": }', "", '{"license": {"license": {}}}']
)
def test_json_ld_that_is_none_says_nothing(text: str) -> None:
    assert kinds(f'<script type="application/ld+json">{text}"license":</script>') == []


def test_a_page_of_a_million_licences_has_fifty() -> None:
    html = "".join(f'<a rel="license" href="/{number}">' for number in range(100_000))
    assert len(kinds(html)) == MOST_SIGNALS


def test_no_number_of_other_signals_hides_a_reservation() -> None:
    links = "".join(f'<link rel="license" href="/{number}">' for number in range(100))
    html = '<head><meta name="tdm-reservation" content="1">' + links
    assert training_use(list(html_signals(html, ()))).by == "tdmrep"
    allowed = "\n".join(f"ai-train=yes, x{number}=yes" for number in range(100))
    headers = (("content-signal", allowed), ("tdm-reservation", "1"), ("x-robots-tag", "noai"))
    assert [kind for kind in ("tdmrep", "noai") if denies(kind, list(header_signals(headers, ())))] == [
        "tdmrep",
        "noai",
    ]


def test_licences_and_directives_about_search_and_images_decide_nothing() -> None:
    html = '<meta name="robots" content="noindex, noimageai"><a rel="license" href="https://creativecommons.org/licenses/by/4.0/">'
    found = list(html_signals(html, ()))
    assert training_use(found).use == "unknown"
    assert [kind for kind in ("noindex", "noimageai", "noai", "robots") if denies(kind, found)] == [
        "noindex",
        "noimageai",
    ]


def test_one_kind_that_denies_wins_over_another_that_allows() -> None:
    found = [
        Signal("content_usage", "header", "train-ai=y", "allowed"),
        Signal("noai", "html", "noai", "denied"),
        Signal("content_signal", "robots.txt", "x", "malformed"),
    ]
    assert (training_use(found).use, training_use(found).by) == ("denied", "noai")
    assert (training_use(found[:1]).use, training_use(found[:1]).by) == ("allowed", "content_usage")
    assert (training_use(found[2:]).use, training_use(found[2:]).by) == ("unknown", None)


def test_a_malformed_header_beside_a_robots_rule_takes_nothing_from_it() -> None:
    found = [
        Signal("content_usage", "header", "train-ai==y", "malformed"),
        Signal("content_usage", "robots.txt", "/ train-ai=n", "denied"),
    ]
    assert training_use(found).use == "denied"


_SIGNALS = st.builds(
    Signal,
    st.sampled_from(["content_usage", "noai", "license"]),
    st.sampled_from(["header", "html"]),
    st.text(max_size=300),
    st.sampled_from(["allowed", "denied", "unknown", "malformed"]),
)


@given(st.lists(_SIGNALS, max_size=4))
def test_recorded_signals_come_to_the_same(signals: list[Signal]) -> None:
    text = as_text(signals)
    assert text.encode("ascii") and "\\u0000" not in text
    assert training_use(from_text(text)) == training_use(signals)
    columns = dict(recorded_columns(signals))
    assert columns["training_use"] == training_use(signals).use


_PIECES = st.lists(
    st.sampled_from(
        [
            "<meta ", "<a ", "<script>", "</script>", "<!--", "-->", "<title>", "</title>", 'name="robots" ',
            "name=robots ", 'content="noai" ', "content=noai ", "content='noai", ">", "/>", '"', "'", "=", " ", "x",
            'rel="license" ', 'href="/l" ', "<", "&quot;",
        ]
    ),
    max_size=14,
)  # fmt: skip


@given(_PIECES)
def test_broken_markup_raises_nothing(pieces: list[str]) -> None:
    list(html_signals("".join(pieces), ("GPTBot",)))


_WELL_FORMED = st.lists(
    st.sampled_from(
        [
            '<meta name="robots" content="noai">', '<meta content="noindex" name="ROBOTS">', "<p>noai</p>",
            "<!-- x -->", '<a rel="license" href="/one">', '<link rel="x license" href="/two">',
            "<script>var a = '<a>'</script>",
            '<meta name="tdm-reservation" content="0">', '<a href="/license">', "<style>a > b {}</style>",
            '<meta name="tdm-reservation" content="1"/>', "<title>t</title>",
            '<meta name=robots content="none , noai">',
        ]
    ),
    max_size=8,
)  # fmt: skip


@given(_WELL_FORMED)
def test_the_elements_are_those_of_another_parser(pieces: list[str]) -> None:
    html = f"<html><head>{''.join(pieces)}</head><body></body></html>"
    expected = set()
    for element in BeautifulSoup(html, "html.parser").find_all(["meta", "a", "link"]):
        name, content = str(element.get("name", "")).lower(), str(element.get("content", ""))
        if name == "robots":
            words = content.replace(",", " ").split()
            expected |= {("noai", content) for word in words if word == "noai"}
            expected |= {("noindex", content) for word in words if word in ("noindex", "none")}
        if name == "tdm-reservation":
            expected.add(("tdmrep", content))
        if "license" in (element.get("rel") or []):
            expected.add(("license", str(element["href"])))
    assert {(signal.kind, signal.value) for signal in html_signals(html, ())} == expected


_LICENSES = st.lists(
    st.sampled_from(
        [
            "<a ", "<LINK ", "<area ", 'rel="', "REL = '", "rel=\n", "license", "LICENSE", "nofollow ", '"', "'",
            " ", ">", 'href="', "href=", "//creativecommons.org/", "HTTPS://CREATIVECOMMONS.ORG/", "licenses/by/4.0/",
            "publicdomain/zero/", "PublicDomain/mark/", '<script type="application/ld+json">',
            "<SCRIPT TYPE=application/LD+JSON>", "</script>", '{"license":', '"https://l.example"}', "{}",
        ]
    ),
    max_size=14,
)  # fmt: skip


@given(_LICENSES)
@example(["<a ", 'rel="', "LICENSE", '" ', "href=", "/one", ">"])
def test_the_first_look_passes_every_page_with_a_licence(pieces: list[str]) -> None:
    html = "".join(pieces)
    assert part_with_signals(html.encode()) == "page" or not values(html)


@given(_WELL_FORMED, _WELL_FORMED)
def test_the_part_of_the_first_look_holds_all_signals(head: list[str], body: list[str]) -> None:
    html = f"<head>{''.join(head)}</head><body>{''.join(body)}</body>"
    match part_with_signals(html.encode()):
        case "page":
            return
        case "head":
            found = list(html_signals(html, (), head_only=True))
        case "none":
            found = []
    assert found == list(html_signals(html, ()))


@pytest.mark.parametrize(
    "html",
    [
        '<a href="/license">Our license</a> <p class="rel">license</p>',
        '<script>var texts = {"license": "MIT"}</script>',
        '<a rel="nofollow" href="https://example.org/licenses/">licenses</a>',
    ],
)
def test_the_first_look_passes_over_the_word_license_alone(html: str) -> None:
    assert part_with_signals(html.encode()) == "none"


def test_a_head_that_a_script_writes_is_not_the_end_of_the_pages_own() -> None:
    page = (
        "<html><head><script>write('<head><base></head><body>')</script>"
        '<meta name="tdm-reservation" content="1"></head><body></body></html>'
    )
    assert part_with_signals(page.encode()) == "head"
    assert [signal.kind for signal in html_signals(page, (), head_only=True)] == ["tdmrep"]
