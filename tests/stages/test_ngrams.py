"""N-gram matching against a slow and obvious count, and the step that uses it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineage.recipe import RecipeError
from stages import ngrams
from stages.document import Document, Rejection
from stages.ngrams import NgramIndex, character_spans, word_places, words_of
from stages.steps.benchmark_items import read_items
from stages.steps.decontaminate import DecontaminateStep, DecontaminateTable
from stages.steps.parse import clean_text
from stages.tokens.tokenizer import load_tokenizer

QUESTION = (
    "A train leaves the station at noon and travels west at sixty miles an hour; "
    "when does it arrive at the town that lies two hundred miles away?"
)
FILLER = "Nothing in this paragraph has anything to do with it, and it goes on for a while. "


def encode(texts: Sequence[str]) -> list[np.ndarray]:
    """A toy encoding: a token for each character."""
    return [np.array([ord(character) for character in text], dtype=np.uint32) for text in texts]


def slow_overlap(item: list[str], document: list[str], size: int) -> float:
    shared = {tuple(document[i : i + size]) for i in range(len(document) - size + 1)}
    covered = set()
    for i in range(len(item) - size + 1):
        if tuple(item[i : i + size]) in shared:
            covered |= set(range(i, i + size))
    return len(covered) / len(item)


WORDS = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=80)


@settings(deadline=None)
@given(st.lists(WORDS, max_size=6), WORDS)
def test_overlaps_are_those_of_the_plain_definition(items, document):
    index = NgramIndex([" ".join(item) for item in items], "13w")
    found = {match.item: match.overlap for match in index.match(" ".join(document))}
    for number, item in enumerate(items):
        if len(item) >= 13:
            assert found.get(number, 0.0) == pytest.approx(slow_overlap(item, document, 13))
        elif len(item) >= 5:
            whole = any(document[i : i + len(item)] == item for i in range(len(document)))
            assert found.get(number, 0.0) == float(whole)
        else:
            assert number in index.skipped and number not in found


@settings(deadline=None)
@given(st.text("ab ", min_size=20, max_size=40), st.text("ab ", max_size=60))
def test_overlaps_of_tokens_are_those_of_the_plain_definition(item, document):
    found = {m.item: m.overlap for m in NgramIndex([item], "8t", encode).match(document)}
    of_item, of_document = (
        [character for word in words_of(text) for character in f" {word}"] for text in (item, document)
    )
    assert found.get(0, 0.0) == pytest.approx(slow_overlap(of_item, of_document, 8))


@pytest.mark.parametrize("ngram", ["13w", "8t"])
def test_case_punctuation_and_white_space_do_not_hide_an_item(ngram):
    hidden = FILLER + QUESTION.upper().replace(" ", " \n ").replace(";", " --").replace("?", "...! ") + FILLER
    (match,) = NgramIndex([QUESTION], ngram, load_tokenizer("cl100k_base").encode_batch).match(hidden)
    assert (match.item, match.overlap) == (0, 1.0)
    ((start, end),) = character_spans(word_places(hidden), match.spans)
    assert words_of(hidden[start:end]) == words_of(QUESTION)
    assert match.longest == len(words_of(QUESTION))


def test_spans_say_where_in_the_document_the_item_stands():
    text = FILLER + QUESTION + " " + FILLER
    (match,) = NgramIndex([QUESTION], "13w").match(text)
    ((start, end),) = character_spans(word_places(text), match.spans)
    assert text[start:end] == QUESTION


def test_half_an_item_gives_its_share_and_its_longest_stretch():
    words = words_of(QUESTION)
    half = " ".join(words[:14])
    (match,) = NgramIndex([QUESTION], "13w").match(f"{FILLER} {half} {FILLER}")
    assert match.overlap == pytest.approx(14 / len(words))
    assert match.longest == 14


def test_words_in_another_order_do_not_match():
    assert NgramIndex([QUESTION], "13w").match(" ".join(reversed(words_of(QUESTION)))) == []


def test_common_n_grams_can_be_left_out():
    index = NgramIndex([QUESTION], "13w")
    assert index.num_ngrams == len(words_of(QUESTION)) - 12
    numbers = index.ngrams_in(QUESTION)
    assert numbers.tolist() == list(range(index.num_ngrams))
    assert index.match(QUESTION, ignore=np.ones(index.num_ngrams, dtype=bool)) == []


def test_equal_hashes_of_different_words_make_no_match(monkeypatch):
    monkeypatch.setattr(ngrams, "_element_hashes", lambda elements: np.zeros(len(elements), dtype=np.uint64))
    words = [f"w{i}" for i in range(30)]
    index = NgramIndex([" ".join(words)], "13w")
    assert index.match(" ".join(f"v{i}" for i in range(40))) == []


def test_tokens_of_words_are_the_same_whatever_came_before(monkeypatch):
    texts = [" ".join(f"word{number}" for number in range(first, first + 9)) for first in range(0, 90, 3)]
    texts.append("x" * 200 + " " + texts[3])
    item = texts[3]

    def matches(texts):
        index = NgramIndex([item], "8t", encode)
        return {text: index.match(text) for text in texts}

    expected = matches(texts)
    assert expected[texts[-1]] and expected[texts[3]]
    monkeypatch.setattr(ngrams, "_KNOWN_WORDS", 5)
    assert matches(texts) == expected
    assert matches(texts[::-1]) == expected


def test_a_repeated_line_costs_no_square():
    index = NgramIndex(["the same words again " * 200] * 50, "13w")
    assert len(index.match("the same words again " * 50_000)) == 50


def test_numbers_of_n_grams_do_not_hang_on_the_process():
    program = (
        "from stages.ngrams import NgramIndex\n"
        f"index = NgramIndex([{QUESTION!r}, {FILLER * 2!r}], '13w')\n"
        f"print(index.ngrams_in({FILLER * 3!r}).tolist(), index.match({QUESTION!r}))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_n_grams_of_tokens_need_an_encoding():
    with pytest.raises(ValueError, match="encoding"):
        NgramIndex([QUESTION], "8t")


@pytest.fixture
def benchmark_file(tmp_path: Path) -> str:
    lines = [
        json.dumps({"id": 1, "text": QUESTION, "more": {"deep": "x"}}),
        "",
        json.dumps({"text": "too short"}),
    ]
    (tmp_path / "bench.jsonl").write_text("\n".join(lines))
    return str(tmp_path / "bench.jsonl")


def test_a_document_that_holds_an_item_is_turned_down_with_the_overlap(make_document, benchmark_file):
    step = DecontaminateStep(DecontaminateTable(against=(benchmark_file,)))
    outcome = step(make_document(text=FILLER + QUESTION))
    assert isinstance(outcome, Rejection)
    finding = outcome.finding
    assert (finding.rule, finding.value, finding.threshold) == ("decontaminate.overlap", 1.0, 0.5)
    assert finding.matched == "bench.jsonl:1"
    assert isinstance(step(make_document(text=FILLER * 5)), Document)


def test_a_finding_names_benchmark_and_line_of_the_item_that_the_document_holds_most_of(
    make_document, tmp_path
):
    folders = [tmp_path / name for name in ("a", "b")]
    for folder, lines in zip(folders, [["other words, five of them"], ["x y", "", QUESTION]], strict=True):
        folder.mkdir()
        (folder / "b.jsonl").write_text(
            "\n".join(json.dumps({"text": line}) if line else "" for line in lines)
        )
    (tmp_path / "c.jsonl").write_text(json.dumps({"text": QUESTION[:90]}))
    files = (*(str(folder / "b.jsonl") for folder in folders), str(tmp_path / "c.jsonl"))
    step = DecontaminateStep(DecontaminateTable(against=files), ledger=True)
    assert step(make_document(text=QUESTION)).finding.matched == f"{files[1]}:3"  # two files have one name
    half = " ".join(words_of(QUESTION)[:14])
    assert step(make_document(text=half)).finding.matched == "c.jsonl:1"
    (passed,) = step(make_document(text=FILLER)).findings
    assert (passed.value, passed.matched) == (0.0, None)


def test_the_overlap_must_be_above_the_ratio_and_a_whole_item_always_counts(make_document, benchmark_file):
    words = words_of(QUESTION)
    part = make_document(text=" ".join(words[:20]))
    share = 20 / len(words)
    for ratio, kept in ((share, True), (math.nextafter(share, 0), False), (1.0, True)):
        step = DecontaminateStep(DecontaminateTable(against=(benchmark_file,), ratio=ratio))
        assert isinstance(step(part), Document) == kept
    whole = DecontaminateStep(DecontaminateTable(against=(benchmark_file,), ratio=1.0))(
        make_document(text=QUESTION)
    )
    assert isinstance(whole, Rejection)


def test_tokens_are_those_of_the_encoding_that_is_given(make_document, benchmark_file):
    step = DecontaminateStep(DecontaminateTable(against=(benchmark_file,), ngram="8t"), lambda: encode)
    assert isinstance(step(make_document(text=FILLER + QUESTION)), Rejection)
    assert isinstance(step(make_document(text="xyz " * 50)), Document)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "x"}\n{"other": 1}', "line 2 has no text"),
        ("[1]", "line 1 has no text"),
        ("{", "line 1 is not JSON"),
    ],
)
def test_a_benchmark_that_cannot_be_read_is_a_wrong_recipe_that_names_the_line(tmp_path, content, message):
    (tmp_path / "b.jsonl").write_text(content)
    with pytest.raises(RecipeError, match=message):
        read_items(str(tmp_path / "b.jsonl"), "text")


def test_the_field_of_an_item_may_lie_deeper(benchmark_file, tmp_path):
    (tmp_path / "d.jsonl").write_text('{"a": {"b": "found"}}')
    assert read_items(str(tmp_path / "d.jsonl"), "a.b") == ["found"]


def test_a_benchmark_of_which_nothing_can_be_looked_for_is_a_wrong_recipe(tmp_path):
    (tmp_path / "b.jsonl").write_text('{"text": "yes"}\n{"text": "no"}')
    with pytest.raises(RecipeError, match="nothing would be compared"):
        DecontaminateStep(DecontaminateTable(against=(str(tmp_path / "b.jsonl"),))).prepare()


@pytest.mark.parametrize("content", ["", '{"text": "yes"}'])
def test_a_benchmark_that_gives_nothing_to_look_for_is_named_also_beside_one_that_does(
    benchmark_file, tmp_path, content
):
    (tmp_path / "other.jsonl").write_text(content)
    files = (str(tmp_path / "other.jsonl"), benchmark_file)
    for against in (files, files[::-1]):
        with pytest.raises(
            RecipeError, match=r"none of the [01] items of '[^']*other\.jsonl' is long enough"
        ):
            DecontaminateStep(DecontaminateTable(against=against)).prepare()


def test_vowel_signs_tell_words_apart_and_points_do_not():
    assert words_of("बाल बोल, बूल!") == ["बाल", "बोल", "बूल"]
    assert words_of("كِتَابٌ שָׁלוֹם") == ["كتاب", "שלום"]
    assert words_of("I ❤️ it, 👍🏽 café") == ["i", "it", "café"]
    (item,) = NgramIndex(["राम ने सीता को फल दिया"], "13w").match("फिर राम ने सीता को फल दिया था")
    assert item.overlap == 1
    assert not NgramIndex(["राम ने सीता को फल दिया"], "13w").match("फिर रमा ना सोता का फल दिया था")


def encode_words(texts: Sequence[str]) -> list[np.ndarray]:
    """A toy encoding: a token for each word with the space before it."""
    return [np.array([sum(map(ord, word))], dtype=np.uint32) for word in texts]


@pytest.mark.parametrize(
    ("item", "kind"), [("capital city of France, please?", "words"), ("What is the", None)]
)
def test_an_item_of_few_tokens_is_looked_for_as_a_whole(item, kind):
    index = NgramIndex([item], "8t", encode_words)
    text = "Q: What is the capital city of France, please? A: see below."
    assert [(match.overlap, match.element_kind) for match in index.match(text)] == (
        [] if kind is None else [(1, kind)]
    )
    assert index.skipped == ((0,) if kind is None else ())
    assert not index.match("Q: What is the capital city of Spain, please? A: none.")


@pytest.mark.parametrize("item", [QUESTION.replace(" at ", "\r\nat\u0301 "), "\ud83d " + QUESTION])
@pytest.mark.parametrize("ngram", ["13w", "8t"])
def test_an_item_is_looked_for_as_parse_leaves_texts(make_document, tmp_path, item, ngram):
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": item}))
    step = DecontaminateStep(
        DecontaminateTable(against=(str(tmp_path / "b.jsonl"),), ngram=ngram), lambda: encode
    )
    text, _ = clean_text(item)
    outcome = step(make_document(text=f"{FILLER}\n{text}"))
    assert isinstance(outcome, Rejection) and outcome.finding.value == 1
