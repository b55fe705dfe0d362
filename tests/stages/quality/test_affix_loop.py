"""The affix loop and its tables against spaCy's own expressions and tokenizers, on any string and in every
language."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any

import pytest
import spacy
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.quality.affixes import NOTHING, UNSURE, Affixes, characters_needed
from stages.quality.languages import SPLIT_BY_SPACY
from stages.quality.spacy_tokens import SpacyTokens

pytestmark = pytest.mark.differential("stages/quality")

_WRITTEN = """
    a ab word Word WORD A é ж 字 1 12 3 km m kg ° C °C F ' ’ 's ’S s d' l' n't . .. ... … , : ; ! ? - -- --- – — ~
    ( ) [ ] { } < > / \\ " '' `` “ ” « » $ € £ US$ % + +1 * = ^ _ @ # & | § ² © 🙂 \u0301 \u200b \ufeff \x00
    http:// www. .com a.b e.g. U.S. :) 8-) (*_*) IS_ALPHA İ ß ﬁ । ، 。 \ufffd
"""
PIECES = _WRITTEN.split()
pieces = st.one_of(st.sampled_from(PIECES), st.characters(exclude_categories=["Z", "Cs"]))
substrings = st.lists(pieces, max_size=9).map(lambda found: "".join("".join(found).split()))


@functools.cache
def tokenizer(language: str) -> Any:
    return spacy.blank(language).tokenizer


@functools.cache
def ours(language: str) -> SpacyTokens:
    return SpacyTokens(language)


@functools.cache
def affixes(language: str) -> Affixes:
    asked = tokenizer(language)
    prefix, suffix, infix = (
        search.__self__ for search in (asked.prefix_search, asked.suffix_search, asked.infix_finditer)
    )
    return Affixes(prefix=prefix, suffix=suffix, infix=infix)


def learnt(tokens: SpacyTokens, parts: Iterable[str]) -> dict[str, list[str]]:
    """What each part becomes."""
    found: dict[str, list[str]] = {}
    tokens.learn(list(parts), lambda part, its_tokens, first, last: found.update({part: list(its_tokens)}))
    return found


def spacy_words(language: str, text: str) -> list[str]:
    return [token.text for token in tokenizer(language)(text) if token.text.strip()]


@pytest.mark.parametrize("language", SPLIT_BY_SPACY)
@settings(max_examples=25, deadline=None)
@given(st.lists(substrings.filter(bool), min_size=1, max_size=20))
def test_any_substring_of_any_language_has_the_tokens_that_spacy_gives_it(
    language: str, parts: list[str]
) -> None:
    for part, tokens in learnt(ours(language), parts).items():
        assert tokens == spacy_words(language, part)


@given(st.lists(st.sampled_from(["\ud800", "a", "6", "...", "'", "å"]), min_size=1, max_size=9).map("".join))
def test_a_lone_surrogate_is_split_as_the_character_that_spacy_is_given_for_it(part: str) -> None:
    assert learnt(ours("et"), [part])[part] == ours("et").split([part])[0]


@pytest.mark.parametrize("language", SPLIT_BY_SPACY)
@settings(max_examples=25, deadline=None)
@given(st.lists(substrings.filter(bool), min_size=1, max_size=20))
def test_what_a_window_tells_is_what_the_expression_finds(language: str, strings: list[str]) -> None:
    asked, known = tokenizer(language), affixes(language)
    for string in strings:
        closed = NOTHING + string + NOTHING
        for window in (string[:1], string[:2], (string + NOTHING)[:2]):
            assert known.prefix(window) in (asked.find_prefix(string), UNSURE)
        for window in (string[-1:], string[-2:], string[-3:], closed[:-1][-3:]):
            assert known.suffix(window) in (asked.find_suffix(string), UNSURE)
        found = {match.start(): len(match[0]) for match in asked.find_infix(string)}
        for place in range(len(string)):
            sure = [known.infix(window) for window in (string[place], closed[place : place + 3])]
            if set(sure) == {UNSURE}:
                break  # what begins here may cover the places behind
            for answer in sure:
                assert answer in (found.get(place, 0), UNSURE)


def test_most_edges_are_told_by_their_characters() -> None:
    known = affixes("en")
    assert [known.prefix(window) for window in ("(a", "a", '"', "+1", "$")] == [1, 0, 1, 0, 1]
    assert [known.suffix(window) for window in ("w", ")", "rd.", "5km", "t's", "SA.")] == [0, 1, 1, 2, 2, 1]
    assert [known.infix(window) for window in ("a", "a-b", "a-1", "1-1")] == [0, 1, 0, 1]
    assert [known.suffix(".."), known.prefix("..")] == [UNSURE, UNSURE], "a run of any length"


def test_an_expression_that_is_not_known_tells_nothing() -> None:
    for unknown in (
        re.compile("(?i)^a"),
        re.compile(r"^(a)\1"),
        re.compile("a"),
        re.compile("^a(?=b$)c"),
        None,
    ):
        known = Affixes(prefix=unknown, suffix=unknown, infix=None)
        assert (known.prefix("a"), known.suffix("a"), known.infix("a")) == (UNSURE, UNSURE, UNSURE)


@pytest.mark.parametrize("language", SPLIT_BY_SPACY)
def test_few_words_of_any_language_are_asked_of_spacy_itself(
    language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        mark.format(word)
        for word in ("maison", "Haus", "slovo")
        for mark in ("{}", "({})", "{},", "«{}»", "{}.")
    ]
    expected = {word: spacy_words(language, word) for word in words}
    asked: list[str] = []
    monkeypatch.setattr(SpacyTokens, "split", lambda self, those: asked.extend(those) or [])
    assert learnt(SpacyTokens(language), words) == expected
    assert asked == []


@settings(max_examples=300, deadline=None)
@given(substrings)
def test_no_url_lacks_the_characters_that_urls_need(string: str) -> None:
    needed = characters_needed(tokenizer("en").url_match.__self__)
    assert needed == {"."}
    assert tokenizer("en").url_match(string.replace(".", "")) is None


def test_characters_that_every_match_holds() -> None:
    for pattern, needed in [
        ("ab+c*", "ab"),
        ("(?:ax|bx)", "x"),
        ("a?", ""),
        ("[ab]", ""),
        ("(?i)a", ""),
        ("(?!a)b", "b"),
    ]:
        assert characters_needed(re.compile(pattern)) == set(needed)


def test_hostile_text_with_ever_new_edges_does_not_fill_the_memory() -> None:
    spacy_tokens = SpacyTokens("en")
    loop = spacy_tokens._loop
    letters = [chr(code) for code in range(0x4E00, 0x4E00 + 300)]
    learnt(spacy_tokens, (f"{before}-{after}" for before in letters for after in letters))
    assert 1000 < loop.num_windows <= 3 * 2**16
    assert learnt(spacy_tokens, ["well-known"]) == {"well-known": ["well", "-", "known"]}
