"""Which page a document is of: its normal form, host and domain, in whatever spelling and wrapping."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from publicsuffixlist import PSLFILE, PublicSuffixList, encode_idn

from lineage import pages
from lineage.pages import (
    Page,
    compared_key,
    is_public_suffix,
    named_host,
    normalise_url,
    page_of,
    registered_domain,
    url_key,
    with_parents,
)


def host_of(url: str) -> str | None:
    page = page_of(url)
    return None if page is None else page.host


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("http://Example.COM", "https://example.com/"),
        ("https://example.com:443/a", "https://example.com/a"),
        ("http://example.com:80/a", "https://example.com/a"),
        ("http://example.com:8080/a", "https://example.com:8080/a"),
        ("http://example.com:443/a", "https://example.com/a"),
        ("https://example.com:80/a", "https://example.com:80/a"),
        ("https://example.com./a", "https://example.com/a"),
        ("https://example.com/a#part", "https://example.com/a"),
        ("https://example.com/a?b=2&a=1", "https://example.com/a?a=1&b=2"),
        ("https://example.com/a?utm_source=x&id=3&fbclid=abc&UTM_Medium=y", "https://example.com/a?id=3"),
        ("https://example.com/a?utm_source=x", "https://example.com/a"),
        ("https://example.com/a?", "https://example.com/a"),
        ("https://example.com/a?a=1&a-b=2&a=0", "https://example.com/a?a=0&a=1&a-b=2"),
        ("https://example.com/a/../b/./c", "https://example.com/b/c"),
        ("https://example.com/%7euser/%c3%a9", "https://example.com/~user/%C3%A9"),
        ("https://bücher.example/ä", "https://xn--bcher-kva.example/%C3%A4"),
        ("https://b%C3%BCcher.example:443/%c3%a4?ü", "https://xn--bcher-kva.example/%C3%A4?%C3%BC="),
        ("http://user@Faß.de:80/x", "https://xn--fa-hia.de/x"),
        ("http://βόλος.com", "https://xn--nxasmm1c.com/"),
        ("http://ex%61mple.com/%7E", "https://example.com/~"),
        ("http://i❤．ws", "https://xn--i-7iq.ws/"),
        ("http://a%2Fb.com/", "http://a%2Fb.com/"),
        ("http://é.com\\a.com/", "https://xn--9ca.com/a.com/"),
        ("http://[2001:DB8:0:0::1]:80/", "https://[2001:db8::1]/"),
        (" https://example.com/a\n", "https://example.com/a"),
        ("https://example.com/new york", "https://example.com/new%20york"),
        ("https://example.com/a?b=1 1", "https://example.com/a?b=1+1"),
        ("https://example.com/a\tb\r\nc", "https://example.com/abc"),
        ("http://example.com.:8080/a", "https://example.com:8080/a"),
        ("https://example.com/A/", "https://example.com/A/"),
        ("https://www.example.com/", "https://www.example.com/"),
        ("https://[::1", "https://[::1"),
        ("HTTP://\xa0", "HTTP://\xa0"),
        ("http://a\u3000b.example/c#d", "http://a\u3000b.example/c"),
        ("dns:example.com", "dns:example.com"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_normal_form_of_a_url(url, normal):
    assert normalise_url(url) == normal


@given(
    st.one_of(
        st.text(),
        st.text(alphabet="ab:/?#%&=.~é[]@ 0").map(lambda tail: "http://h.example" + tail),
        st.lists(
            st.sampled_from([*"aß&İǅﬀ./@[]:", ":443", ":80", "..", "%c3", "。", "xn--"]), max_size=8
        ).map(lambda pieces: "http://" + "".join(pieces)),
        st.text(alphabet="aß％％２５%c3.@:\u00ad\u200d❤").map(lambda host: f"http://{host}/a"),
    )
)
@example("http://example.com:443/")
@example("//a #x")
@example("http://ß.de&..:443")
@example("http://@İǅ..:443")
def test_normalising_never_raises_and_twice_is_once(url):
    once = normalise_url(url)
    assert normalise_url(once) == once


@given(
    st.one_of(
        st.from_regex(pages._PLAIN),
        st.lists(st.sampled_from(["a", ".", "..", "B-~", ""])).map(
            lambda parts: "http://h.example/" + "/".join(parts)
        ),
        st.text(alphabet="ab0.-:@").map(lambda host: f"https://{host}/a"),
        st.lists(st.text(alphabet="ab-=.~+;%", max_size=5) | st.just("utm_id=1")).map(
            lambda arguments: "http://h.example/a?" + "&".join(arguments)
        ),
    )
)
def test_a_plain_url_is_what_the_long_way_makes_of_it(url):
    plain = pages._page_of(url)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "_PLAIN", re.compile("(?!)"))
        assert pages._page_of(url) == plain


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            " ",
            "#top",
            "?a=b",
            "N/A",
            "n.a.",
            "None",
            "-",
            "/a",
            "v1.2",
            "data/file.jsonl",
            "localhost/a",
        ),
        *(
            "https://",
            "http://.",
            "https:///a",
            "https://?a=b",
            "https://user@/a",
            "https://[::1",
            "HTTP://\xa0",
        ),
        *("about:blank", "mailto:a@example.com", "urn:"),
    ],
)
def test_a_url_without_a_host_names_no_page(url):
    assert compared_key(url) is None
    assert url_key(url)  # it is looked up by all the same


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://example.com",
            "http://localhost/a",
            "https://[::1]/",
            "ftp://example.com/a",
            "s3://bucket/a",
        ),
        *(
            "example.com",
            "example.com/a b",
            "Example.com.?a=b",
            "example.com:8080/a",
            "//example.com/a",
            "10.0.0.1/a",
        ),
        *("пример.рф/a", "xn--e1afmkfd.xn--p1ai/a"),
        *("urn:uuid:1", "doi:10.1000/182", "hard::example.com-page.html", "file:///a"),
    ],
)
def test_a_url_with_a_host_names_a_page_with_a_scheme_or_without(url):
    assert compared_key(url) == url_key(url)


@pytest.mark.parametrize("address", ["2001:db8::1", "::1", "2001:DB8:0::1", "::ffff:10.0.0.1"])
def test_an_ipv6_host_is_named_with_brackets_and_without(address):
    host = host_of(f"http://[{address}]/a")
    assert host == str(ipaddress.ip_address(address))
    for name in (address, f" {address} ", f"[{address}]", f"[{address}]:8080", f"https://[{address}]/b"):
        assert named_host(name) == host


@given(st.one_of(st.text(), st.text(alphabet="ab:/?#%.é[]@。．").map(lambda tail: "http://" + tail)))
def test_a_host_is_found_or_none_whatever_the_url(url):
    host = host_of(url)
    assert host is None or (host == host.lower() and not host.endswith("."))


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://spam.com。/x", "spam.com"),
        ("http://Spam.com．:80/x", "spam.com"),
        ("http://ex%61mple.com/", "example.com"),
        ("http://a.com\\b.com/", "a.com"),
        ("http://[::1]:80/", "::1"),
        ("http://[2001:DB8:0:0::1]/", "2001:db8::1"),
        ("http://faß.de/", "xn--fa-hia.de"),
        ("http://fa%C3%9F.DE./", "xn--fa-hia.de"),
        ("http://ＡＢ．com/", "ab.com"),
    ],
)
def test_a_host_is_the_one_that_a_browser_goes_to(url, host):
    assert host_of(url) == host


@pytest.mark.timeout(20)
@pytest.mark.parametrize("url", ["http://" + "." * 150_000 + "a/", "http://a.example/" + " " * 150_000 + "x"])
def test_a_url_of_many_dots_or_spaces_is_normalised_in_linear_time(url):
    assert normalise_url(url).startswith("http")


WRAPPERS = (
    *(
        "urn:text:",
        "urn:textFinal:",
        "URN:view:",
        "urn:pageinfo:",
        "urn:fetch:",
        "urn:fetch-final:",
        "urn:thumbnail:",
    ),
    *(
        "onreadydom:",
        "view-source:",
        "View-Source:",
        "urn:text:view-source:",
        "view-source:urn:text:urn:view:",
    ),
)
"""What a URL is wrapped in, and one in another."""


@pytest.mark.parametrize(
    "wrapper", [*WRAPPERS, "youtube-dl:00001:", "metadata://", "urn:x-some-crawler:dom:", "feed:"]
)
@pytest.mark.parametrize(
    "url", ["https://blocked.example.org/a?b=2&a=1", "http://user@Blocked.example.org:80/", "HTTP:x.org"]
)
def test_what_is_derived_from_a_page_is_of_that_page(wrapper, url):
    page, inner = page_of(wrapper + url), page_of(url)
    assert page is not None and inner is not None
    assert (page.url, page.host, page.domain) == (inner.url, inner.host, inner.domain)
    assert page_of(wrapper + quote(url, safe="")) == page


@given(
    st.sampled_from(WRAPPERS),
    st.sampled_from(
        [
            "https://blocked.example.org",
            "http://bücher.example:8080",
            "blocked.example.org/",
            "//x.org",
            "http://[::1]",
        ]
    ),
    st.text(alphabet="/ab.?=&#%c3é:@ ") | st.text(),
)
def test_a_wrapper_changes_no_page(wrapper, place, rest):
    url = f"{place}/{rest}"
    page, wrapped = page_of(url), page_of(wrapper + url)
    assert page is not None and wrapped is not None
    assert (wrapped.url, wrapped.host, wrapped.fragment) == (page.url, page.host, page.fragment)
    assert compared_key(wrapper + url, fragments=True) == compared_key(url, fragments=True)


@pytest.mark.parametrize(
    ("url", "page"),
    [
        ("blocked.example.org/one", "https://blocked.example.org/one"),
        ("kept.example.net/one", "https://kept.example.net/one"),
        ("Example.org", "https://example.org/"),
        ("example.org:8080/a", "https://example.org:8080/a"),
        ("example.org:80/a", "https://example.org/a"),
        ("//example.org/a", "https://example.org/a"),
        ("\\\\example.org\\a", "https://example.org/a"),
        ("bbc.co.uk?a=b", "https://bbc.co.uk/?a=b"),
        ("пример.рф/a", "https://xn--e1afmkfd.xn--p1ai/a"),
        ("www.readme.md", "https://www.readme.md/"),
        ("point.md/ru/", "https://point.md/ru/"),
        ("10.0.0.1/a", "https://10.0.0.1/a"),
        ("[2001:DB8::1]:8080/a", "https://[2001:db8::1]:8080/a"),
        ("blocked.example.org%2Fone", "https://blocked.example.org/one"),
        ("%62locked.example.org/one", "https://blocked.example.org/one"),
        ("HTTPS://Blocked.Example.ORG/one", "https://blocked.example.org/one"),
        ("http:/blocked.example.org/one", "https://blocked.example.org/one"),
        ("http:blocked.example.org/one", "https://blocked.example.org/one"),
        ("http:///blocked.example.org/one", "https://blocked.example.org/one"),
        ("https:\\\\blocked.example.org\\one", "https://blocked.example.org/one"),
        ("https://user:secret@blocked.example.org./one", "https://blocked.example.org/one"),
        ("\x00 \thttps://blocked.exam\nple.org/one\x1f", "https://blocked.example.org/one"),
        ("\ufeffhttps://blocked.example.org/one\u00a0", "https://blocked.example.org/one"),
        ("https://https://blocked.example.org/one", "https://blocked.example.org/one"),
        ("https%3A%2F%2Fblocked.example.org%2Fone", "https://blocked.example.org/one"),
        ("http%253A%252F%252Fblocked.example.org%252Fone", "https://blocked.example.org/one"),
        ("FTP://Example.org/a", "ftp://example.org/a"),
    ],
)  # fmt: skip
def test_a_page_is_found_however_it_is_spelt(url, page):
    found = page_of(url)
    assert found is not None and found.url == page
    assert page_of(page) == Page(found.url, found.host, found.fragment, page)
    assert normalise_url(url) == page and compared_key(url) == url_key(page)


@pytest.mark.parametrize(
    "url",
    [
        *("mailto:a@example.org", "data:text/html,https://x.org/", "urn:uuid:1", "dns:example.org", "about:blank"),
        *("word", "two words", "part.txt", "part.parquet", "README.md", "main.rs", "index.pl?id=3", "v1.2", "3.14"),
        *("a/b.org", "user@example.org", "user@example.org/a", ".org", "-", "N/A", "x.invalidtld/a", "co", "[x]/a"),
        *("http:localhost", "https:///a", "//server/share", "file:///a", "filedesc://crawl.arc.gz", "999.1.1.1/a"),
        "#x.org",
    ],
)  # fmt: skip
def test_what_names_no_page_has_none(url):
    assert page_of(url) is None


@pytest.mark.parametrize(
    ("host", "domain"),
    [
        ("www.bbc.co.uk", "bbc.co.uk"),
        ("a.b.example.org", "example.org"),
        ("example.org", "example.org"),
        ("alice.github.io", "alice.github.io"),
        ("deep.alice.github.io", "alice.github.io"),
        ("www.city.kawasaki.jp", "city.kawasaki.jp"),
        ("a.xn--e1afmkfd.xn--p1ai", "xn--e1afmkfd.xn--p1ai"),
        ("a.host1.example", "host1.example"),
        *((host, None) for host in ("co.uk", "org", "localhost", "10.0.0.1", "2001:db8::1", "a..org", "a." * 200)),
    ],
)  # fmt: skip
def test_the_registered_domain_is_that_of_the_public_suffix_list(host, domain):
    assert registered_domain(host) == domain
    assert not is_public_suffix(host) or domain is None


def test_the_list_holds_what_the_library_makes_of_it_in_both_spellings():
    ours, theirs = pages._suffixes(), PublicSuffixList()
    with open(PSLFILE, encoding="utf-8") as file:
        rules = [line.split()[0] for line in file if line.strip() and not line.startswith("//")]
    others = [rule for rule in rules if not rule.isascii()]
    assert len(rules) > 9000 and len(others) > 300
    for rule in [*rules, *map(encode_idn, others)]:
        name = rule.removeprefix("!").replace("*", "star")
        for host in (name, f"a.{name}", f"b.a.{name}"):
            found = [
                (each.publicsuffix(host), each.is_public(host, accept_unknown=False))
                for each in (ours, theirs)
            ]
            assert found[0] == found[1], host


def test_a_host_lies_in_its_parents():
    assert [*with_parents("a.b.example.org")] == ["a.b.example.org", "b.example.org", "example.org", "org"]
    long = "a." * 500_000 + "org"
    assert sum(map(len, with_parents(long))) < 2 * len(long)


def test_a_fragment_names_a_page_of_its_own_only_where_that_is_asked_for():
    first, second = "https://forum.example.org/t/42#post-1", "urn:text:http://forum.example.org/t/42#post-2"
    assert compared_key(first) == compared_key(second) == compared_key("forum.example.org/t/42")
    assert compared_key(first, fragments=True) != compared_key(second, fragments=True)
    assert normalise_url(second, fragments=True) == "https://forum.example.org/t/42#post-2"
    assert normalise_url("x.org/a#%70ost:~:text=words", fragments=True) == "https://x.org/a#post"
    assert compared_key("x.org/a#", fragments=True) == compared_key("x.org/a")


@given(st.text() | st.text(alphabet="ab.:/#%é").map(lambda tail: "https://x.org" + tail))
def test_normalising_with_fragments_twice_is_once(url):
    once = normalise_url(url, fragments=True)
    assert normalise_url(once, fragments=True) == once
    assert normalise_url(once) == normalise_url(url)


HAN = "".join(map(chr, range(0x4E00, 0x4E00 + 20_000)))


@pytest.mark.parametrize(
    "host",
    [
        HAN,
        quote(HAN),
        "é." * 200_000 + "org",
        "a." * 200_000 + "org",
        "\u00ad" * 200_000 + "x.org",
        HAN[:64],
        "ﷺ" * 250,
    ],
)
def test_a_name_that_is_too_long_reaches_no_codec(host, monkeypatch):
    longest = 0

    def remap(text: str, **options: bool) -> str:
        nonlocal longest
        longest = max(longest, len(text))
        return text

    monkeypatch.setattr(pages.idna, "uts46_remap", remap)
    url = f"http://{host}.example/"
    page = page_of(url)
    assert page is not None and len(page.host) >= 64 and longest <= pages.MAX_HOST
    assert not page.host.startswith("xn--"), "a label above 63 characters was encoded"
    page_of(url[:1] + url[1:])
    assert normalise_url(page.url) == page.url


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "url",
    [
        *("urn:text:" * 100_000 + "https://x.org", "https://" * 100_000 + "x.org", "view-source%3A" * 50_000),
        *("a:" * 300_000, "a" * 300_000 + ":", "%25" * 100_000 + "3Ahttps://x.org", "http:" + "/" * 300_000 + "x"),
        *("http://[" + ":" * 300_000 + "]/", "http://x:" + "9" * 300_000, "x" * 300_000 + ".org", "-." * 200_000),
        *("http://x.org/?" + "a=b&" * 100_000, "http://x.org/" + "../" * 100_000, "http://x.org/#" + "%41" * 100_000),
    ],
)  # fmt: skip
def test_a_hostile_url_takes_linear_time(url):
    assert normalise_url(url, fragments=True)
    assert named_host(url) is None or [*with_parents(named_host(url) or "")]
