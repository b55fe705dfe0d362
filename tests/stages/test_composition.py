"""Normal forms in linear time are those of the standard library, and rows of marks are counted as they
decompose."""

from __future__ import annotations

import unicodedata

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from stages import composition
from stages.composition import most_marks, normalised_in

MARKS = "\u0301\u0316\u0344\u0591\u0f73\u0f81\u302e\U0001d165\u0903"
TEXTS = st.text(st.sampled_from("ae\u00e9\u1faf \n" + MARKS)) | st.text()


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@given(text=TEXTS, times=st.integers(1, 60))
def test_a_normal_form_is_that_of_the_standard_library(form, text, times):
    assert normalised_in(form, text * times) == unicodedata.normalize(form, text * times)


def test_marks_out_of_order_reach_the_library_in_order(monkeypatch):
    # The library sorts by insertion: in order, a row costs as many comparisons as it has marks.
    asked = []
    monkeypatch.setattr(
        composition, "normalize", lambda form, text: asked.append(text) or unicodedata.normalize(form, text)
    )
    normalised_in("NFC", "a" + "\u0301\u0316" * 1000 + "\u00e9")
    classes = [unicodedata.combining(character) for character in max(asked, key=len)[1:-1]]
    assert len(classes) == 2000 and classes == sorted(classes)


def slow_rows(text: str) -> list[int]:
    decomposed = unicodedata.normalize("NFD", text)
    marks = "".join("m" if unicodedata.combining(character) else " " for character in decomposed)
    return [len(row) for row in marks.split()]


@given(text=TEXTS, times=st.integers(1, 20), at_least=st.integers(1, 40))
def test_the_longest_row_of_marks_is_that_of_the_decomposition(text, times, at_least):
    longest = max(slow_rows(text * times), default=0)
    assert most_marks(text * times, at_least) == (longest if longest >= at_least else 0)


def test_what_is_taken_for_granted_of_marks_holds_in_this_unicode():
    every = (chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    decomposed = ((one, unicodedata.normalize("NFD", one)) for one in every)
    special = {one: form for one, form in decomposed if form != one or unicodedata.combining(one)}
    rows = {one: [bool(unicodedata.combining(part)) for part in form] for one, form in special.items()}
    beginning = {character for character, row in rows.items() if row[0]}
    assert all(regex.match(r"\p{M}", character) for character in beginning)
    assert max(len(rows[character]) for character in beginning) == composition._MOST_BY_MARK
    assert max(sum(row) for row in rows.values()) == composition._MOST_BY_LETTER
    assert all(row == sorted(row) for character, row in rows.items() if character not in beginning)
