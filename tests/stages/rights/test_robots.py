"""robots.txt: RFC 9309's rules beside another parser, the drafts' examples, and the part that is kept of a file."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protego import Protego

from stages.rights.decide import training_use
from stages.rights.robots import PathPattern, compared_path, read_robots, relevant_part

# draft-ietf-aipref-attach, "Example"
DRAFT = """\
User-Agent: *
Allow: /
Disallow: /never/
Content-Usage: / train-ai=n
Content-Usage: /ai-ok/ train-ai=y

User-Agent: ExampleBot
Allow: /
Content-Usage: / train-ai=y
"""
# What Cloudflare writes for its customers, shortened.
CLOUDFLARE = """\
# As a condition of accessing this website, you agree to abide by the following content signals: …
User-agent: *
Content-Signal: search=yes,ai-train=no,use=reference
Allow: /

User-agent: CCBot
Disallow: /
"""


def use(text: str, path: str, *agents: str) -> str:
    found = [
        training_use(list(read_robots(part).signals(path, agents)))
        for part in (text, relevant_part(text, agents))
    ]
    assert found[0] == found[1]
    return found[0].use


def values(text: str, path: str, *agents: str) -> list[str]:
    return [f"{signal.kind} {signal.value}" for signal in read_robots(text).signals(path, agents)]


def test_the_drafts_example_gives_the_drafts_table() -> None:
    assert [use(DRAFT, path, "OtherBot") for path in ("/test", "/never/test", "/ai-ok/test")] == [
        "denied",
        "unknown",
        "allowed",
    ]
    assert [use(DRAFT, path, "exampleBOT") for path in ("/test", "/never/test")] == ["allowed", "allowed"]


def test_preferences_of_several_crawlers_join_and_the_most_restrictive_wins() -> None:
    assert use(DRAFT, "/test", "OtherBot", "ExampleBot") == "denied"


@pytest.mark.parametrize(
    ("lines", "meaning"),
    [
        ("Content-Usage: train-ai=n", "denied"),
        (" content-usage \t:\t /\t train-ai=n # a comment", "denied"),
        ("CONTENT-USAGE:/ train-ai=n\rAllow: /", "denied"),
        ("Content-Usage: / train-ai=y\nContent-Usage: / train-ai=n", "denied"),
        ("Content-Usage: / train-ai=n\nContent-Usage: /page train-ai=y", "allowed"),
        ("Content-Usage: /page$ train-ai=n\nContent-Usage: /page train-ai=y", "denied"),
        ("Content-Usage: /p*e train-ai=n\nContent-Usage: / train-ai=y", "denied"),
        ("Content-Usage: /other train-ai=n", "unknown"),
        ("Content-Usage: / TRAIN-AI=n", "unknown"),
        ("Content-Usage: /", "unknown"),
        ("Content-Usage /: train-ai=n", "unknown"),
        ("Content-Usage: / train-ai=n\nDisallow: /page", "unknown"),
        ("Content-Signal: ai-train=no\nDisallow: /page", "denied"),
        ("Content-Signal: /other ai-train=no", "unknown"),
    ],
)
def test_a_rule_of_the_group_holds_for_the_paths_that_it_names(lines: str, meaning: str) -> None:
    assert use(f"User-agent: *\n{lines}\n", "/page", "AnyBot") == meaning


def test_content_usage_outside_of_a_group_is_no_rule_and_content_signal_is_one() -> None:
    assert use("Content-Usage: / train-ai=n\nUser-agent: *\nAllow: /", "/", "AnyBot") == "unknown"
    assert use("Content-Signal: ai-train=no\nUser-agent: *\nAllow: /", "/", "AnyBot") == "denied"
    assert use("Content-Signal: ai-train=no", "/", "AnyBot") == "denied"


def test_a_group_that_names_the_crawler_hides_the_group_for_all() -> None:
    assert values(CLOUDFLARE, "/", "GPTBot") == ["content_signal search=yes,ai-train=no,use=reference"]
    assert values(CLOUDFLARE, "/", "CCBot") == ["robots CCBot: Disallow: /"]
    assert use(f"{CLOUDFLARE}\nUser-agent: GPTBot\n", "/", "GPTBot") == "unknown"


def test_only_a_group_that_names_the_crawler_disallows_by_name() -> None:
    text = "User-agent: *\nDisallow: /\n"
    assert use(text, "/", "GPTBot") == "unknown"
    assert use(text, "/", "*") == "denied"


def test_a_product_token_ends_where_its_characters_end() -> None:
    for line in ("GPTBot/1.2", "GPTBot, ClaudeBot", "GPTBot;", "gptbot(all)", "GPTBot # theirs"):
        assert use(f"User-agent: {line}\nDisallow: /\n", "/", "GPTBot") == "denied", line
    assert use("User-agent: GPTBot2\nDisallow: /\n", "/", "GPTBot") == "unknown"


def test_signals_of_nothing() -> None:
    for text in (
        "",
        "\ufeff",
        "\0\0\0",
        ":",
        "User-agent:\nDisallow: /",
        "<html>Not found</html>",
        "Disallow: /",
    ):
        assert values(text, "/", "GPTBot") == []


def test_rfc_9309_examples() -> None:
    # section 5.1
    text = (
        "User-Agent: *\nDisallow: *.gif$\nDisallow: /example/\nAllow: /publications/\n\n"
        "User-Agent: foobot\nDisallow:/\nAllow:/example/page.html\nAllow:/example/allowed.gif\n\n"
        "User-Agent: barbot\nUser-Agent: bazbot\nDisallow: /example/page.html\n\n"
        "User-Agent: quxbot\n\nEOF\n"
    )
    assert values(text, "/example/page.html", "foobot") == []
    assert values(text, "/example/other.html", "foobot") == ["robots foobot: Disallow: /"]
    assert values(text, "/example/page.html", "bazbot") == ["robots bazbot: Disallow: /example/page.html"]
    assert values(text, "/a/b.gif", "*") == ["robots *: Disallow: *.gif$"]
    assert values(text, "/a/b.gif?x", "*") == []
    assert values(text, "/", "quxbot") == []
    # section 5.2
    longest = "User-Agent: foobot\nAllow: /example/page/\nDisallow: /example/page/disallowed.gif\n"
    assert values(longest, "/example/page/disallowed.gif", "foobot") != []
    assert values(longest, "/example/page/", "foobot") == []


@pytest.mark.parametrize(
    "rules", ["Allow: /a\nDisallow: /a", "Disallow: /a\nAllow: /a", "Disallow: /%61\nAllow: /a"]
)
def test_of_equally_long_rules_allow_wins_in_either_order(rules: str) -> None:
    # section 2.2.2
    assert values(f"User-agent: foobot\n{rules}\n", "/ab", "foobot") == []


@pytest.mark.parametrize(
    ("pattern", "path", "does"),
    [
        # RFC 9309, 2.2.2 and 2.2.3
        ("/foo/bar/ツ", "/foo/bar/%E3%83%84", True),
        ("/foo/bar/%E3%83%84", "/foo/bar/ツ", True),
        ("/foo/bar/%62%61%7A", "/foo/bar/baz", True),
        ("/path/file-with-a-%2A.html", "/path/file-with-a-*.html", True),
        ("/path/foo-%24", "/path/foo-$", True),
        ("/path/foo-%24", "/path/foo-x", False),
        ("/this/path/exactly$", "/this/path/exactly", True),
        ("/this/path/exactly$", "/this/path/exactly/", False),
        ("/this/*/exactly", "/this/that/exactly/more", True),
        ("/a%2fb", "/a%2Fb", True),
        ("/a%2Fb", "/a/b", False),
        ("/a$b", "/a$b", True),
        ("*/b", "/a/b", True),
        ("/*a*a*a*a*a*a*a*a*a*a*b", "/" + "a" * 5000, False),
        ("foo", "/foo", False),
    ],
)
def test_paths_are_compared_as_the_standard_says(pattern: str, path: str, does: bool) -> None:
    assert PathPattern.of(pattern).matches(compared_path(path)) is does


_PATTERNS = st.text("/ab*$", min_size=1, max_size=8).map(lambda text: f"/{text}")
_PAGE_PATHS = st.text("/ab", max_size=8).map(lambda text: f"/{text}")


@given(_PATTERNS, _PAGE_PATHS)
def test_a_pattern_matches_as_the_regular_expression_that_it_stands_for(pattern: str, path: str) -> None:
    whole = pattern.endswith("$")
    inner = ".*".join(re.escape(piece) for piece in (pattern[:-1] if whole else pattern).split("*"))
    expected = re.match(inner + (r"\Z" if whole else ""), path) is not None
    assert PathPattern.of(pattern).matches(compared_path(path)) is expected


_AGENTS = ("gptbot", "ccbot", "*")
_LINE = st.one_of(
    st.sampled_from(_AGENTS).map(lambda agent: f"User-agent: {agent}"),
    st.tuples(st.sampled_from(["Allow", "Disallow"]), st.text("/ab*", max_size=4)).map(
        lambda rule: f"{rule[0]}: /{rule[1]}"
    ),
)


# Of equally long rules Allow wins, which protego decides by the order in which they stand.
@given(st.lists(_LINE, max_size=12, unique=True), _PAGE_PATHS)
def test_the_verdict_is_that_of_protego(lines: list[str], path: str) -> None:
    rules = [line.partition(": ")[2] for line in lines if not line.startswith("User")]
    if len({len(rule) for rule in rules}) < len(rules):
        return
    text = "\n".join(lines)
    theirs = Protego.parse(text)
    for agent in ("gptbot", "ccbot"):
        named = any(line == f"User-agent: {agent}" for line in lines)
        if not named:
            continue
        denied = any(signal.kind == "robots" for signal in read_robots(text).signals(path, [agent]))
        assert denied is not theirs.can_fetch(f"https://site.example{path}", agent), (text, path, agent)


_ANY_LINE = st.one_of(
    _LINE,
    st.sampled_from(
        [
            "Content-Usage: / train-ai=n", "Content-Usage: /a train-ai=y", "Content-Signal: ai-train=no", "", "# x",
            "Sitemap: /s.xml", "User-agent: otherbot", "Disallow:", "User-agent:", "nothing", "Content-Usage: train-ai",
        ]
    ),
)  # fmt: skip


@given(st.lists(_ANY_LINE, max_size=14), _PAGE_PATHS, st.sets(st.sampled_from(_AGENTS), min_size=1))
def test_the_relevant_part_says_what_the_whole_file_says(
    lines: list[str], path: str, agents: set[str]
) -> None:
    text, asked = "\n".join(lines), sorted(agents)
    part = relevant_part(text, asked)
    assert list(read_robots(part).signals(path, asked)) == list(read_robots(text).signals(path, asked))


@given(st.text(max_size=200), st.text(max_size=20))
def test_no_text_raises(text: str, path: str) -> None:
    list(read_robots(text).signals(path, ["GPTBot", "*"]))
    relevant_part(text, ["GPTBot"])
