"""The URL step's verdicts, and the normal form of a URL."""

from __future__ import annotations

import gzip
import ipaddress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lineage.recipe import RecipeError
from stages.document import Document, Outcome, Rejection
from stages.steps import url as url_module
from stages.steps.url import UrlStep, UrlTable, named_host, normalise_url, page_key, url_host, url_key


def verdict(outcome: Outcome) -> str:
    return outcome.finding.rule if isinstance(outcome, Rejection) else "kept"


def a_list(folder: Path, *lines: str, name: str = "list.txt") -> str:
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / name)


@pytest.mark.parametrize(("num_bytes", "expected"), [(999, "kept"), (1000, "kept"), (1001, "url.too_long")])
def test_a_payload_over_the_bound_is_turned_down_with_its_length(make_document, num_bytes, expected):
    outcome = UrlStep(UrlTable(), 1000)(make_document(num_bytes=num_bytes))
    assert verdict(outcome) == expected
    if isinstance(outcome, Rejection):
        assert (outcome.finding.value, outcome.finding.threshold) == (1001.0, 1000.0)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://spam.example/x", "url.blocked_host"),
        ("http://WWW.Spam.Example:8080/x", "url.blocked_host"),
        ("https://spam.example./x", "url.blocked_host"),
        ("https://user:pw@deep.sub.spam.example/", "url.blocked_host"),
        ("https://notspam.example/", "kept"),
        ("https://spam.example.org/", "kept"),
        ("https://example/?q=spam.example", "kept"),
        ("https://listed-as-url.example/other", "url.blocked_host"),
        ("https://hosts-file.example/", "url.blocked_host"),
        ("https://first.example/", "url.blocked_host"),
        ("https://second.example/", "url.blocked_host"),
        ("https://third.example/", "url.blocked_host"),
        ("https://star.example/", "url.blocked_host"),
        ("https://bücher.example/", "url.blocked_host"),
        ("https://xn--bcher-kva.example/", "url.blocked_host"),
        ("https://[2001:db8::1]/x", "url.blocked_host"),
        ("https://[2001:db8::2]:8080/x", "url.blocked_host"),
        ("https://[::3]/x", "url.blocked_host"),
        ("https://2001/x", "kept"),
        ("https://[::1", "kept"),
        ("not a url", "kept"),
        (None, "kept"),
    ],
)
def test_a_listed_host_is_blocked_with_its_subdomains(make_document, tmp_path, url, expected):
    lists = a_list(
        tmp_path,
        "# a comment",
        "",
        "Spam.example  # why",
        "https://listed-as-url.example/page",
        "0.0.0.0 hosts-file.example",
        "0.0.0.0 first.example\twww.second.example  *.second.example # why",
        "::1 third.example ip6-localhost",
        "*.star.example",
        "bücher.example",
        "2001:db8::1",
        "0.0.0.0 [2001:DB8::2]  ::3",
    )
    step = UrlStep(UrlTable(block_hosts=(lists,)), 10**6)
    assert verdict(step(make_document(url=url))) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://x.example/best-CASINO-tips", "url.blocked_word"),
        ("https://casino.example/", "url.blocked_word"),
        ("https://x.example/casino_games", "url.blocked_word"),
        ("https://x.example/?q=c%61sino", "url.blocked_word"),
        ("https://x.example/casinos", "kept"),
        ("https://x.example/free-slot-machines", "url.blocked_word"),
        ("https://x.example/free/slot", "url.blocked_word"),
        ("https://x.example/slot-free", "kept"),
        (None, "kept"),
    ],
)
def test_listed_words_and_phrases_block_where_they_stand_whole(make_document, tmp_path, url, expected):
    step = UrlStep(UrlTable(block_words=(a_list(tmp_path, "Casino", "free slot"),)), 10**6)
    assert verdict(step(make_document(url=url))) == expected


def test_lists_may_be_compressed(make_document, tmp_path):
    (tmp_path / "hosts.gz").write_bytes(gzip.compress(b"spam.example\n"))
    step = UrlStep(UrlTable(block_hosts=(str(tmp_path / "hosts.gz"),)), 10**6)
    assert verdict(step(make_document(url="http://spam.example/"))) == "url.blocked_host"


def test_a_list_that_is_not_there_is_a_wrong_recipe():
    with pytest.raises(RecipeError, match="nowhere"):
        UrlStep(UrlTable(block_hosts=("/nowhere/hosts.txt",)), 10**6).prepare()


@pytest.mark.parametrize(
    "line", ["spam.example www.spam.example", "spam.example malware", "block 0.0.0.0 spam.example"]
)
def test_a_line_of_several_hosts_without_an_address_is_a_wrong_recipe(tmp_path, line):
    with pytest.raises(RecipeError, match=r"url\.block_hosts.*one host name"):
        UrlStep(UrlTable(block_hosts=(a_list(tmp_path, line),)), 10**6).prepare()


@pytest.mark.parametrize("line", ["||spam.example^", "spam.*", "*spam.example", "address=/spam.example/", "!spam"])
def test_a_line_that_can_match_no_host_is_a_wrong_recipe(tmp_path, line):
    with pytest.raises(RecipeError, match=r"url\.block_hosts.*expected a host name"):
        UrlStep(UrlTable(block_hosts=(a_list(tmp_path, line),)), 10**6).prepare()


@pytest.mark.parametrize("reason", ["length", "segment", "unspecified"])
def test_a_page_that_is_cut_off_is_turned_down_where_the_recipe_says_so(make_document, reason):
    cut, whole = make_document(truncated=reason), make_document()
    assert [verdict(UrlStep(UrlTable(), 10**6)(document)) for document in (cut, whole)] == ["kept", "kept"]
    step = UrlStep(UrlTable(truncated="reject"), 10**6, ledger=True)
    assert [verdict(step(document)) for document in (cut, whole)] == ["url.truncated", "kept"]
    assert [finding.rule for finding in step(whole).findings] == ["url.too_long", "url.truncated"]


def test_with_the_ledger_every_rule_leaves_what_it_measured(make_document, tmp_path):
    table = UrlTable(block_hosts=(a_list(tmp_path, "x.example"),), block_words=(a_list(tmp_path, "w", name="w.txt"),))
    outcome = UrlStep(table, 10, ledger=True)(make_document(url="https://x.example/w", num_bytes=11))
    assert isinstance(outcome, Rejection)
    assert outcome.finding.rule == "url.too_long"
    assert [(f.rule, f.rejected) for f in outcome.findings] == [("url.blocked_host", True), ("url.blocked_word", True)]
    kept = UrlStep(table, 10, ledger=True)(make_document(url="https://y.example/", num_bytes=10))
    assert isinstance(kept, Document)
    assert [f.rule for f in kept.findings] == ["url.too_long", "url.blocked_host", "url.blocked_word"]


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
        ("http://user@Faß.de:80/x", "https://user@xn--fa-hia.de/x"),
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
        st.lists(st.sampled_from([*"aß&İǅﬀ./@[]:", ":443", ":80", "..", "%c3", "。", "xn--"]), max_size=8).map(
            lambda pieces: "http://" + "".join(pieces)
        ),
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
        st.from_regex(url_module._PLAIN),
        st.lists(st.sampled_from(["a", ".", "..", "B-~", ""])).map(lambda parts: "http://h.example/" + "/".join(parts)),
        st.text(alphabet="ab0.-:@").map(lambda host: f"https://{host}/a"),
        st.lists(st.text(alphabet="ab-=.~+;%", max_size=5) | st.just("utm_id=1")).map(
            lambda arguments: "http://h.example/a?" + "&".join(arguments)
        ),
    )
)
def test_a_plain_url_is_what_the_long_way_makes_of_it(url):
    assert normalise_url(url) == url_module._settled(url_module._cleaned(url))


@pytest.mark.parametrize(
    "url",
    [
        *("", " ", "#top", "?a=b", "N/A", "n.a.", "None", "-", "/a", "v1.2", "data/file.jsonl", "localhost/a"),
        *("https://", "http://.", "https:///a", "https://?a=b", "https://user@/a", "https://[::1", "HTTP://\xa0"),
        *("about:blank", "mailto:a@example.com", "urn:"),
    ],
)
def test_a_url_without_a_host_names_no_page(url):
    assert page_key(url) is None
    assert url_key(url)  # it is looked up by all the same


@pytest.mark.parametrize(
    "url",
    [
        *("http://example.com", "http://localhost/a", "https://[::1]/", "ftp://example.com/a", "s3://bucket/a"),
        *("example.com", "example.com/a b", "Example.com.?a=b", "example.com:8080/a", "//example.com/a", "10.0.0.1/a"),
        *("пример.рф/a", "xn--e1afmkfd.xn--p1ai/a"),
        *("urn:uuid:1", "doi:10.1000/182", "hard::example.com-page.html", "file:///a"),
    ],
)
def test_a_url_with_a_host_names_a_page_with_a_scheme_or_without(url):
    assert page_key(url) == url_key(url)


@pytest.mark.parametrize("address", ["2001:db8::1", "::1", "2001:DB8:0::1", "::ffff:10.0.0.1"])
def test_an_ipv6_host_is_named_with_brackets_and_without(address):
    host = url_host(f"http://[{address}]/a")
    assert host == str(ipaddress.ip_address(address))
    for name in (address, f" {address} ", f"[{address}]", f"[{address}]:8080", f"https://[{address}]/b"):
        assert named_host(name) == host


@given(st.one_of(st.text(), st.text(alphabet="ab:/?#%.é[]@。．").map(lambda tail: "http://" + tail)))
def test_a_host_is_found_or_none_whatever_the_url(url):
    host = url_host(url)
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
    assert url_host(url) == host


@pytest.mark.parametrize(
    ("line", "url", "expected"),
    [
        ("कि", "https://x.in/का-घर", "kept"),
        ("कि", "https://x.in/कि-घर", "url.blocked_word"),
        ("café", "https://x.example/cafe%CC%81", "url.blocked_word"),
    ],
)
def test_marks_are_parts_of_listed_words(make_document, tmp_path, line, url, expected):
    step = UrlStep(UrlTable(block_words=(a_list(tmp_path, line),)), 10**6)
    assert verdict(step(make_document(url=url))) == expected


@pytest.mark.timeout(20)
@pytest.mark.parametrize("url", ["http://" + "." * 150_000 + "a/", "http://a.example/" + " " * 150_000 + "x"])
def test_a_url_of_many_dots_or_spaces_is_normalised_in_linear_time(url):
    assert normalise_url(url).startswith("http")
