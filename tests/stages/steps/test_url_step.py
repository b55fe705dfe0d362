"""The URL step's verdicts."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import zstandard

from lineage.recipe import RecipeError
from stages.document import Document, Outcome, Rejection
from stages.steps.url import UrlStep, UrlTable, listed_at
from stages.steps.url_lists import LineNumbers


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
        ("urn:text:https://spam.example/x", "url.blocked_host"),
        ("urn:textFinal:http://www.spam.example/", "url.blocked_host"),
        ("onreadydom:view-source:https://spam.example/x", "url.blocked_host"),
        ("https%3A%2F%2Fspam.example%2Fx", "url.blocked_host"),
        ("http:/www.spam.example.org/x", "url.blocked_host"),
        ("spam.example.org/x", "url.blocked_host"),
        ("www.spam.example.org:8080", "url.blocked_host"),
        ("//spam.example.org/x", "url.blocked_host"),
        ("spam.example.com/x", "kept"),
        ("mailto:a@spam.example.org", "kept"),
        ("a." * 300_000 + "spam.example/", "kept"),
        ("http://" + "a." * 300_000 + "spam.example/", "url.blocked_host"),
        ("https://user:pw@deep.sub.spam.example/", "url.blocked_host"),
        ("https://notspam.example/", "kept"),
        ("https://spam.example.net/", "kept"),
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
        "spam.example.org",
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
        ("urn:text:https://x.example/casino", "url.blocked_word"),
        ("https%3A%2F%2Fx.example%2Fcasino", "url.blocked_word"),
        ("https://x.example/cas\tino#top", "url.blocked_word"),
        ("urn:casino:https://x.example/", "kept"),
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


@pytest.mark.parametrize(
    "key", ["block_hosts", "block_urls", "block_words", "block_soft_words", "block_subwords"]
)
@pytest.mark.parametrize("name", ["list.jsonl", "list.csv", "list.parquet", "list.json.gz"])
def test_a_table_is_no_list_of_hosts_urls_or_words(tmp_path, key, name):
    with pytest.raises(RecipeError, match=r"list.* is a table by its ending: expected a text file"):
        UrlStep(UrlTable(**{key: (a_list(tmp_path, '{"word": "casino"}', name=name),)}), 10**6).prepare()


def test_lists_may_be_packed_by_zstd(make_document, tmp_path):
    (tmp_path / "list.txt.zst").write_bytes(zstandard.compress(b"casino\n"))
    step = UrlStep(UrlTable(block_words=(str(tmp_path / "list.txt.zst"),)), 10**6)
    assert verdict(step(make_document(url="https://a.example/casino"))) == "url.blocked_word"


def test_a_list_that_is_not_there_is_a_wrong_recipe():
    with pytest.raises(RecipeError, match="nowhere"):
        UrlStep(UrlTable(block_hosts=("/nowhere/hosts.txt",)), 10**6).prepare()


@pytest.mark.parametrize(
    "line", ["spam.example www.spam.example", "spam.example malware", "block 0.0.0.0 spam.example"]
)
def test_a_line_of_several_hosts_without_an_address_is_a_wrong_recipe(tmp_path, line):
    with pytest.raises(RecipeError, match=r"url\.block_hosts.*one host name"):
        UrlStep(UrlTable(block_hosts=(a_list(tmp_path, line),)), 10**6).prepare()


@pytest.mark.parametrize(
    "line", ["||spam.example^", "spam.*", "*spam.example", "address=/spam.example/", "!spam"]
)
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
    table = UrlTable(
        block_hosts=(a_list(tmp_path, "x.example"),), block_words=(a_list(tmp_path, "w", name="w.txt"),)
    )
    outcome = UrlStep(table, 10, ledger=True)(make_document(url="https://x.example/w", num_bytes=11))
    assert isinstance(outcome, Rejection)
    assert outcome.finding.rule == "url.too_long"
    assert [(f.rule, f.rejected) for f in outcome.findings] == [
        ("url.blocked_host", True),
        ("url.blocked_word", True),
    ]
    kept = UrlStep(table, 10, ledger=True)(make_document(url="https://y.example/", num_bytes=10))
    assert isinstance(kept, Document)
    assert [f.rule for f in kept.findings] == ["url.too_long", "url.blocked_host", "url.blocked_word"]


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


LISTS = {
    "block_hosts": ("# UT1: adult/domains", "listed.example", "sub.other.example", "listed.co.uk"),
    "block_urls": ("blog.example/adult/page", "https://whole.example/a?b=1", "www.shop.example/x/"),
    "block_words": ("casino", "Hard-Core", "two words"),
    "block_soft_words": ("live", "free", "web cam"),
    "block_subwords": ("xxx", "Sub-Word"),
}
CASES = [
    # url, then the rule and the line by our own way, by FineWeb's and by DCLM's
    ("http://listed.example/", ("host", 2), ("host", 2), ("host", 2)),
    (
        "http://www.listed.example/",
        ("host", 2),
        ("host", 2),
        None,
    ),  # DCLM drops the letters and leaves the dot
    ("http://deep.listed.example/", ("host", 2), ("host", 2), None),
    ("http://sub.other.example/", ("host", 3), ("host", 3), ("host", 3)),
    ("http://a.sub.other.example/", ("host", 3), None, None),
    ("http://x.listed.co.uk:8080/", ("host", 4), ("host", 4), None),
    ("http://listed.example:80/", ("host", 2), ("host", 2), None),  # the netloc has its port
    ("http://blog.example/adult/page", ("url", 1), None, None),
    ("https://www.blog.example/adult/page/", ("url", 1), None, None),
    ("http://blog.example/adult/page/2", None, None, None),
    ("https://whole.example/a?b=1", ("url", 2), ("url", 2), ("url", 2)),
    ("http://whole.example/a?b=1", ("url", 2), None, None),
    ("http://x.example/casino", ("word", 1), ("word", 1), ("word", 1)),
    ("http://x.example/CASINO", ("word", 1), None, ("word", 1)),
    ("http://x.example/casino_games", ("word", 1), ("word", 1), None),  # an underscore parts words but for \b
    ("http://x.example/hard-core", ("word", 2), None, ("word", 2)),
    ("http://x.example/hardcore", None, ("word", 2), None),
    ("http://x.example/two-words", ("word", 3), None, ("word", 3)),
    ("http://x.example/live", None, None, None),
    ("http://x.example/live-live", None, None, None),
    ("http://x.example/live/free", ("soft", 2), ("soft", 2), ("soft", 2)),
    ("http://x.example/web-cam/free", ("soft", 2), None, ("soft", 2)),
    ("http://x.example/axxxb", ("subword", 1), ("subword", 1), ("subword", 1)),
    ("http://x.example/ax-x.xb", None, ("subword", 1), ("subword", 1)),
    ("http://x.example/a/xx/x", None, ("subword", 1), None),
    ("http://x.example/asubwordb", None, ("subword", 2), None),
    ("http://x.example/asub-wordb", ("subword", 2), ("subword", 2), None),
    ("http://[bad/", None, None, None),
]
RULE = {"host": "blocked_host", "url": "blocked_url", "word": "blocked_word", "soft": "too_many_soft_words"}


@pytest.mark.parametrize("way", ["words", "fineweb", "dclm"])
def test_each_way_of_matching_gives_the_rule_and_the_line(make_document, tmp_path, way):
    """Worked from datatrove's url_filter.py and DCLM's url_substring_filter. FineWeb's lists of URLs have no
    scheme, so that its comparison of whole URLs meets none of them."""
    files = {key: (a_list(tmp_path, *lines, name=f"{key}.txt"),) for key, lines in LISTS.items()}
    step = UrlStep(UrlTable(match=way, **files), 10**6)
    step.prepare()
    for url, *expected in CASES:
        wanted = expected[("words", "fineweb", "dclm").index(way)]
        outcome = step(make_document(url=url))
        found = (outcome.finding.rule, outcome.finding.value) if isinstance(outcome, Rejection) else None
        said = wanted and (f"url.{RULE.get(wanted[0], 'blocked_subword')}", float(wanted[1]))
        assert found == said, url


@pytest.mark.parametrize(
    ("line", "url", "expected"),
    [
        ("blog.example/page", "https://blog.example/page#top", True),
        ("blog.example/page", "http://blog.example:80/page", True),
        ("blog.example/page", "https://user:pw@Blog.Example./page", True),
        ("blog.example/page", "https://blog.example/p%61ge?utm_source=x", True),
        ("blog.example/page", "https://blog.example/page?p=2", False),
        ("https://bücher.example/page", "https://xn--bcher-kva.example/page", True),
        ("blog.example/?b=2&a=1", "https://blog.example/?a=1&b=2", True),
        ("app.example/#/adult", "https://app.example/#/adult", True),
        ("app.example/#/adult", "https://app.example/", False),
        ("app.example/#/adult", "https://app.example/#/news", False),
        # What stands behind the host is no other page's address.
        ("archive.example/2010/http://news.example/", "https://news.example/", False),
        ("archive.example/2010/http://news.example/", "http://archive.example/2010/http://news.example/", True),
        ("blog.example/go?to=https://news.example/a", "https://news.example/a", False),
        ("blog.example/go?to=https://news.example/a", "https://blog.example/go?to=https://news.example/a", True),
        ("//blog.example/page", "https://blog.example/page", True),
    ],
)  # fmt: skip
def test_a_listed_page_is_blocked_however_its_url_is_spelt(make_document, tmp_path, line, url, expected):
    step = UrlStep(UrlTable(block_urls=(a_list(tmp_path, line),)), 10**6)
    assert isinstance(step(make_document(url=url)), Rejection) == expected


def test_the_line_that_blocks_is_found_again_in_its_file(make_document, tmp_path):
    first = a_list(tmp_path, "# ours", "a.example", "b.example", name="first.txt")
    second = a_list(tmp_path, "c.example", "", "d.example#why", name="second.txt")
    table = UrlTable(block_hosts=(first, second))
    outcome = UrlStep(table, 10**6)(make_document(url="https://d.example/"))
    assert isinstance(outcome, Rejection)
    assert (outcome.finding.value, listed_at(table, outcome.finding)) == (6.0, (second, 3))
    kept = UrlStep(table, 10**6, ledger=True)(make_document(url="https://e.example/"))
    assert isinstance(kept, Document)
    assert [(found.value, listed_at(table, found)) for found in kept.findings[1:]] == [(0.0, None)]


def test_a_list_of_many_hosts_takes_little_memory():
    lines = LineNumbers((f"host-{number}.example", number) for number in range(1, 200_001))
    assert lines.line_of(["host-77.example"]) == 77
    assert lines.line_of(["example", "host-9.example", "host-3.example"]) == 3
    assert lines.line_of(["none.example"]) == lines.line_of([]) == 0
    assert lines.num_bytes == 200_000 * 12


def test_soft_words_are_counted_once_each_and_block_from_the_number_that_the_recipe_gives(
    make_document, tmp_path
):
    words = a_list(tmp_path, "live", "free", "cam")
    for least, url, expected in (
        (2, "http://x.example/live-live", "kept"),
        (2, "http://x.example/live/cam", "url.too_many_soft_words"),
        (3, "http://x.example/live/cam", "kept"),
        (1, "http://x.example/live", "url.too_many_soft_words"),
    ):
        step = UrlStep(UrlTable(block_soft_words=(words,), min_soft_words=least), 10**6)
        assert verdict(step(make_document(url=url))) == expected
