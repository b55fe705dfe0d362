"""The splitter against spaCy itself: same words, whatever the memo holds."""

from __future__ import annotations

import functools
import re
import unicodedata
from array import array
from itertools import pairwise
from typing import Any

import pytest
import spacy
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.quality.characters import PUNCTUATION, TERMINAL_PUNCTUATION
from stages.quality.languages import SPLIT_BY_SPACY, STOP_WORDS
from stages.quality.memo import Memo, join_touching
from stages.quality.words import Splitter

pytestmark = pytest.mark.differential("stages/quality")

ENGLISH = Splitter("en", STOP_WORDS["en"])

ODD = [
    ":)", ": )", ":(", "8-)", "8 -)", "'", '"', "' '", "''", "(", ")", "( )", "(*_*)", "(╯°□°）╯︵┻━┻", "...", ". . .",
    "…", "#", "-", "--", "—", "can't", "Can’t", "cannot", "I'm", "'s", "it 's", "a.m.", "5 p.m.", "10km", "e.g.", "Mr.",
    "U.S.", "don't", "o'clock", "http://a.b/c?d=e", "a@b.co", "C++", "x-y", "x/y", "1,000.5", "1.", "<space>", "\\n",
    "IS_ALPHA", "IS_ALPHA.", "IS_PUNCT", "LOWER", "ﬁ", "İ", "ß", "字字", "字。字", "नमस्ते।", "العربية،", "EE. UU.",
    "ไทย", "🙂🙂", "👩‍👩‍👧",
    "\u200b", "\ufeff", "\x00", "\x01a", "a\u0301", "\u2028", "\u2029", "\x85", "\x1c", "\x1d", "\u00a0", "\u3000",
    "\u202f", "\t", "\n", "\n\n", "\r\n", " ", "  ", "\x0b", "\x0c", "the", "of", "The", "word", "Word", "words.", "id",
]  # fmt: skip
texts = st.lists(
    st.one_of(st.sampled_from(ODD), st.sampled_from([" ", " ", " ", "\n"]), st.text(max_size=6)), max_size=60
).map("".join)


@functools.cache
def peer(language: str) -> Any:
    nlp = spacy.blank(language)
    nlp.add_pipe("sentencizer")
    return nlp


def spacy_words(text: str, language: str = "en") -> list[str]:
    return [token.text for token in peer(language).tokenizer(text) if token.text.strip()]


def spacy_sentences(text: str, language: str = "en") -> int:
    return max(1, len(list(peer(language)(text).sents)))


def word_lengths(splitter: Splitter, text: str) -> list[int]:
    return splitter.split(text).lengths().tolist()


def words_of(splitter: Splitter, text: str) -> list[str]:
    """The words of `text`, cut from what the splitter leaves when white space is gone."""
    split = splitter.split(text)
    solid, words, start = split.solid(), [], 0
    for length in split.lengths():
        words.append(solid[start : start + length])
        start += length
    assert start == len(solid)
    return words


@settings(max_examples=400, deadline=None)
@given(texts)
def test_any_text_has_the_words_that_spacy_gives_it(text: str) -> None:
    words = spacy_words(text)
    split = ENGLISH.split(text)
    assert words_of(ENGLISH, text) == words
    counts = split.counts
    real = [word for word in words if not PUNCTUATION.issuperset(word)]
    assert counts.num_tokens == len(words)
    assert counts.num_words == len(real)
    assert counts.word_chars == sum(map(len, real))
    assert counts.num_alphabetic == sum(any(map(str.isalpha, word)) for word in words)
    assert counts.num_stop_words == len(set(words) & set(STOP_WORDS["en"]))


emoticons = st.text(alphabet=":;()-8=D'>_<.o0*^/\\ \n", max_size=40)


@settings(max_examples=400, deadline=None)
@given(emoticons)
def test_any_row_of_emoticons_has_the_words_that_spacy_gives_it(text: str) -> None:
    assert words_of(ENGLISH, text) == spacy_words(text)


def test_special_cases_hidden_by_special_cases_still_reach_across_a_space() -> None:
    for text in (":):): ):):)", "): ):", ":( (:", "x' ''s"):
        assert words_of(ENGLISH, text) == spacy_words(text)


@settings(max_examples=300, deadline=None)
@given(texts)
def test_any_line_has_the_sentences_that_spacy_gives_it(line: str) -> None:
    assert ENGLISH.num_sentences(line) == spacy_sentences(line)


TINY = functools.cache(lambda: Splitter("en", STOP_WORDS["en"], memo_bytes=600))


@settings(max_examples=40, deadline=None)
@given(st.lists(texts, min_size=1, max_size=4))
def test_a_memo_of_any_size_gives_the_same_words(documents: list[str]) -> None:
    tiny = TINY()
    tiny.forget()
    for text in documents:
        ours, theirs = ENGLISH.split(text), tiny.split(text)
        tiny.split("something else in between, to move the memo on " * 3)
        assert ours.counts == theirs.counts
        assert ours.lengths() == theirs.lengths()


def test_the_memo_stays_within_its_bound_over_many_documents() -> None:
    splitter = Splitter("en", (), memo_bytes=100_000)
    weights = []
    for number in range(200):
        splitter.split(" ".join(f"w{number}x{word}" for word in range(100)))
        weights.append(splitter.memo_bytes_used)
    assert max(weights) <= 100_000 + 100 * 400
    assert sum(after < before for before, after in pairwise(weights)) > 5, "it began anew"


def test_a_special_case_with_a_space_in_it_is_one_word() -> None:
    spanish = Splitter("es")
    text = "en EE. UU. hay, en EE.\nUU. no"
    assert words_of(spanish, text) == spacy_words(text, "es")
    assert "EE. UU." in words_of(spanish, text)


@pytest.mark.parametrize(
    "text",
    [
        "it 's so",
        ": )",
        "a : ) b",
        "( * _ * )",
        "' '",
        "' ' '",
        '\\ ")',
        "the 8 -) man",
        "e.g . x",
        "co . ltd .",
    ],
)
def test_special_cases_that_reach_across_a_space_are_seen(text: str) -> None:
    assert words_of(ENGLISH, text) == spacy_words(text)


def test_a_special_case_does_not_reach_across_other_white_space() -> None:
    for gap in ("\n", "  ", "\t", "\u00a0", "\r\n"):
        text = f"x :{gap}) y '{gap}s"
        assert words_of(ENGLISH, text) == spacy_words(text)


def test_is_alpha_is_a_word_however_often_it_comes() -> None:
    for _ in range(3):
        assert words_of(ENGLISH, "x IS_ALPHA IS_ALPHA. y") == [
            "x",
            "IS_ALPHA",
            "IS_ALPHA",
            ".",
            "y",
        ]


def test_a_lone_surrogate_is_no_error() -> None:
    assert sum(word_lengths(ENGLISH, "ab\ud800cd e\udfff. f")) == 9


@pytest.mark.parametrize("language", SPLIT_BY_SPACY)
def test_every_language_of_the_table_is_split_as_its_own_tokenizer_does(language: str) -> None:
    own = peer(language).tokenizer
    assert type(own) is spacy.tokenizer.Tokenizer
    text = " ".join(
        [*sorted(own.rules)[::7], "Ein l'été dell'arte, o'clock c'est-à-dire S.p.A. 3,5€ «così» d.o.o. [1]."]
    )
    splitter = Splitter(language, STOP_WORDS.get(language, ()))
    assert words_of(splitter, text) == spacy_words(text, language)
    assert splitter.num_sentences(text[:4000]) == spacy_sentences(text[:4000], language)


def test_a_language_and_datatrove_agree_on_the_tokenizer() -> None:
    tokenizers = pytest.importorskip("datatrove.utils.word_tokenizers")
    for language in SPLIT_BY_SPACY:
        theirs = tokenizers.load_word_tokenizer(language)
        assert (type(theirs).__name__, theirs.language) == ("SpaCyTokenizer", language)


@pytest.mark.slow
@pytest.mark.parametrize("language", SPLIT_BY_SPACY)
def test_letters_of_every_script_make_one_word_in_every_language(language: str) -> None:
    splitter = Splitter(language)
    letters = [chr(code) for code in range(0x110000) if chr(code).isalpha() and not 0x3400 < code < 0x4DFF]
    some = [
        letter for letter in letters if not 0x4E00 < code_of(letter) < 0x323AF or code_of(letter) % 61 == 0
    ]
    words = [word for letter in some for word in (letter, f"a{letter}", f"{letter}a", f"ab{letter}c")]
    rules = peer(language).tokenizer.rules
    own = [word for word in words if word not in rules]
    assert spacy_words("\n".join(own), language) == own
    assert word_lengths(splitter, "\n".join(own[::50])) == [len(word) for word in own[::50]]


def code_of(letter: str) -> int:
    return ord(letter)


def test_words_at_white_space_are_the_substrings() -> None:
    split = Splitter(None).split("don't split, this. 字字 x")
    assert split.lengths().tolist() == [5, 6, 5, 2, 1]
    assert split.counts.num_words == 5
    assert Splitter(None).num_sentences("一。二。三") == 2


def test_token_kinds_follow_unicode_categories() -> None:
    for character in ".,;:!?()[]\"'«»…—$+<^`|~§":
        words = spacy_words(f"x {character} y")
        assert ENGLISH.split(f"x {character} y").counts.num_tokens == len(words)
    assert all(unicodedata.category(character)[0] in "PSCLN" for character in PUNCTUATION)


def test_no_punctuation_is_a_letter() -> None:
    assert not any(map(str.isalpha, PUNCTUATION))


def test_the_character_tables_are_those_of_datatrove() -> None:
    text = pytest.importorskip("datatrove.utils.text")
    assert text.PUNCTUATION_SET == PUNCTUATION
    assert text.TERMINAL_PUNCTUATION == TERMINAL_PUNCTUATION


@pytest.mark.parametrize(
    "text",
    [
        "(" * 2_000_000,
        "a" * 3_000_000,
        "'s" * 500_000,
        ":)" * 500_000,
        "a:" * 500_000,
        "' " * 500_000,
        "word " * 400_000,
    ],
    ids=["brackets", "one word", "suffixes", "special cases", "colons", "touching", "words"],
)
@pytest.mark.slow
def test_a_huge_text_of_any_kind_is_split_whole(text: str) -> None:
    split = Splitter("en").split(text)
    assert sum(split.lengths()) == len("".join(text.split()))
    assert split.counts.num_tokens == len(split.lengths())


def test_a_long_row_of_marks_is_still_split_as_spacy_does() -> None:
    for text in ("=" * 300, "(" * 1500, "*" * 900 + "word" + "!" * 900, "a.b/" * 400):
        assert words_of(ENGLISH, text) == spacy_words(text)


@settings(max_examples=300, deadline=None)
@given(texts, st.sets(st.integers(0, 60)))
def test_only_substrings_one_space_apart_are_joined(text: str, touching: set[int]) -> None:
    substrings = text.split()
    joined = join_touching(text, substrings, sorted(touching))
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    expected: list[str] = []
    for place, (start, end) in enumerate(spans):
        glued = place in touching and place > 0 and text[spans[place - 1][1] : start] == " "
        expected[-1:] = [f"{expected[-1]} {text[start:end]}"] if glued else [*expected[-1:], text[start:end]]
    assert joined == expected


def test_a_number_of_another_memo_is_an_error_and_no_wild_read() -> None:
    memo = Memo({}, lambda char: 0)
    for numbers in (array("i", [0]), array("i", [-1]), array("i", [2**31 - 1])):
        for ask in (memo.sums, memo.lengths, lambda given: memo.kinds(given[0])):
            with pytest.raises(IndexError, match="row"):
                ask(numbers)


def test_what_a_text_costs_does_not_depend_on_what_came_before() -> None:
    rows = [f"{'[' * 60}abcdefgh{number}{']' * 20}" for number in range(12)]
    fresh, used = Splitter("en", work=40_000), Splitter("en", work=40_000)
    for row in rows:
        used.split(row)
    text = " ".join(rows)
    lengths = word_lengths(fresh, text)
    assert lengths == word_lengths(used, text) == word_lengths(used, text)
    assert len(lengths) > len(spacy_words(text)), "this text is meant to exceed its budget"
