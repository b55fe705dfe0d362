"""Anchors, runs and cuts, each by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.dedup.inside import runs as runs_module
from stages.dedup.inside.anchors import Texts, anchor_counts, gram_hashes, repeated_anchors
from stages.dedup.inside.cuts import Cut, at_borders, gaps, left_of, regions, too_little
from stages.dedup.inside.lines import lines_of, normalised_line, without_lines
from stages.dedup.inside.options import InsideTable
from stages.dedup.inside.paragraphs import ngram_hashes, words_of
from stages.dedup.inside.runs import Runs, repeated_runs

MIN_BYTES = 32
TABLE = InsideTable(method="substring", min_bytes=MIN_BYTES)


def texts_of(documents: list[str]) -> Texts:
    encoded = [text.encode() for text in documents]
    starts = np.append(0, np.cumsum([len(text) for text in encoded])).astype(np.int64)
    return Texts(np.frombuffer(b"".join(encoded), np.uint8), starts)


_PIECES = st.sampled_from(
    ["ab", "ba", "é", "日本語", "x" * 40, "lorem ipsum dolor sit amet, ", "\n", "0123456789" * 4]
)
_DOCUMENTS = st.lists(st.lists(_PIECES, max_size=14).map("".join), max_size=6)


@given(_DOCUMENTS)
def test_each_window_that_stands_twice_has_an_anchor_that_does(documents: list[str]) -> None:
    texts = texts_of(documents)
    anchors, num = anchor_counts(texts, MIN_BYTES)
    found = repeated_anchors(texts, MIN_BYTES, anchors[num > 1])
    covered = set()
    for document, first, last in zip(found.document, found.first, found.last, strict=True):
        covered |= {(int(document), place) for place in range(int(first), int(last) + 1)}
    windows: dict[bytes, list[tuple[int, int]]] = {}
    for document, text in enumerate(documents):
        data = text.encode()
        for place in range(len(data) - MIN_BYTES + 1):
            windows.setdefault(data[place : place + MIN_BYTES], []).append((document, place))
    for places in windows.values():
        assert len(places) == 1 or covered.issuperset(places)


def runs_of(documents: list[str], bits: int) -> tuple[Runs, list[bytes]]:
    texts = texts_of(documents)
    anchors, _ = anchor_counts(texts, MIN_BYTES)
    found = repeated_anchors(texts, MIN_BYTES, anchors)
    return repeated_runs(found.anchor, found.contents, MIN_BYTES, bits), found.contents


@given(_DOCUMENTS)
def test_whatever_hashes_collide_runs_are_those_of_equal_bytes(documents: list[str]) -> None:
    found, contents = runs_of(documents, 64)
    for row, begin, num, earlier in zip(
        found.row, found.begin, found.num_windows, found.earlier, strict=True
    ):
        assert contents[row][begin : begin + num + MIN_BYTES - 1] in contents[earlier]
    collided, _ = runs_of(documents, 2)
    assert all(np.array_equal(one, other) for one, other in zip(found, collided, strict=True))


def test_groups_are_worked_on_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [
        f"{n % 7} repeated text number {n % 7} that is long enough for windows {n}" for n in range(60)
    ]
    whole, _ = runs_of(documents, 64)
    monkeypatch.setattr(runs_module, "_WINDOWS_AT_ONCE", 20)
    monkeypatch.setattr(runs_module, "_BYTES_AT_ONCE", 50)
    pieces, _ = runs_of(documents, 64)
    assert sorted(zip(*(each.tolist() for each in whole), strict=True)) == sorted(
        zip(*(each.tolist() for each in pieces), strict=True)
    )
    assert len(whole.row) > 50


def test_a_hash_is_that_of_its_bytes_wherever_they_stand() -> None:
    data = np.frombuffer(b"xx0123456789yy0123456789", np.uint8)
    hashes = gram_hashes(data, 10)
    assert hashes[2] == hashes[14]
    assert len(np.unique(hashes)) == len(hashes) - 1
    assert not len(gram_hashes(data, 25))


@pytest.mark.parametrize(
    ("text", "cut", "left"),
    [
        ("some words here", (2, 11), "some here"),  # "words" with a space; "some" stays whole
        ("a repeated end", (4, 14), "a repeated"),
        ("repeated begin", (0, 12), "begin"),
        ("don't cut this", (3, 9), "don't this"),
        ("one(two)three", (3, 8), "one(three"),  # else onethree
        ("日本語の文字列", (2, 5), "日本字列"),
        ("e\u0301\u0301 mark", (1, 7), "e\u0301\u0301 mark"),  # no letter without its marks
        ("unbrokenword", (3, 9), "unbrokenword"),
    ],
)
def test_cuts_are_whole_words_and_no_two_become_one(text: str, cut: tuple[int, int], left: str) -> None:
    found = at_borders(text, [Cut(*cut, 5, 100)], TABLE)
    assert left_of(text, regions(found)) == left
    assert all(each.twin_start == 100 + each.start - cut[0] for each in found)


@pytest.mark.parametrize(
    ("cut", "left"), [((2, 9), "one\nthree\n"), ((4, 8), "one\nthree\n"), ((5, 8), "one\ntwo\nthree\n")]
)
def test_with_lines_as_borders_only_whole_lines_are_cut(cut: tuple[int, int], left: str) -> None:
    text = "one\ntwo\nthree\n"
    found = at_borders(text, [Cut(*cut, 0, 0)], replace(TABLE, border="line"))
    assert left_of(text, regions(found)) == left


def test_a_cut_of_which_no_whole_line_is_left_is_none() -> None:
    table = InsideTable(method="substring", border="line")
    assert at_borders("abc\ndef", [Cut(2, 6, 9, 0)], table) == []


def test_gaps_are_cut_where_no_two_words_meet() -> None:
    text = "aaa REPEAT, gap REPEAT bbb"
    assert gaps(text, [(4, 11), (16, 23)], 5) == [Cut(11, 16, -1, 0)]
    assert gaps(text, [(4, 11), (16, 23)], 4) == []
    assert gaps("aaREPEAT gap REPEATbb", [(2, 8), (13, 19)], 9) == []


def test_what_is_left_decides_whether_a_document_stays() -> None:
    table = replace(TABLE, min_chars=10, min_share=0.5)
    assert too_little("x" * 40, "x" * 30, table) is None
    few = too_little("x" * 40, "  " + "x" * 9, table)
    assert few is not None and (few.rule, few.value, few.threshold) == ("dedup.inside.min_chars", 9, 10)
    small = too_little("x" * 40, "x" * 19, table)
    assert small is not None and (small.rule, small.value) == ("dedup.inside.min_share", 19 / 40)


@pytest.mark.parametrize(
    ("line", "compared"),
    [
        ("  Call 12-34 NOW ", "call 00-00 now"),
        ("“Tea”, she said…", "tea, she said"),
        ("tab\tand\x7fbell\x07", "tabandbell"),
        ("日本、東京。", "日本東京"),
        ("", ""),
        ("!?(.)", "!?(.)"),
        ("２５％", "00"),
    ],
)
def test_a_line_is_compared_as_ccnet_normalises_it(line: str, compared: str) -> None:
    assert normalised_line(line) == compared


@given(st.lists(st.sampled_from(["", "a", "bc", "def"]), min_size=1, max_size=9), st.data())
def test_the_lines_that_are_left_are_joined_by_single_line_ends(
    lines: list[str], data: st.DataObject
) -> None:
    text = "\n".join(lines)
    gone = sorted(data.draw(st.sets(st.integers(0, len(lines) - 1))))
    cuts = without_lines(lines_of(text), [(number, 0, 0) for number in gone])
    left = left_of(text, regions(cuts))
    assert left == "\n".join(line for number, line in enumerate(lines) if number not in gone)


def test_words_of_a_paragraph_are_those_of_uax_29() -> None:
    assert words_of("It's 3.5 km, isn't it?") == ["It's", "3.5", "km", ",", "isn't", "it", "?"]
    assert words_of("") == [] and words_of(" \t ") == []


@pytest.mark.parametrize(
    ("num_words", "num_ngrams"), [(0, 0), (2, 0), (3, 1), (4, 1), (5, 1), (6, 2), (9, 5)]
)
def test_a_short_paragraph_is_one_ngram_and_a_shorter_one_none(num_words: int, num_ngrams: int) -> None:
    table = InsideTable(method="paragraph", ngram=5, min_ngram=3)
    assert len(ngram_hashes(" ".join(f"w{n}" for n in range(num_words)), table)) == num_ngrams
