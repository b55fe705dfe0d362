"""`ledger = "first"` and `"all"` give one verdict: what is left out for speed changes none, whatever splits
the words."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.peers.recipes import splits_words
from benchmarks.support.near_thresholds import SENTENCES, near_thresholds
from stages.document import Rejection
from stages.quality.options import LanguageQualityTable, QualityTable, limits
from stages.quality.rules import TextRule
from stages.quality.splitters import TOKENIZERS, WHITE_SPACE
from stages.quality.step import QualityStep, every_rule, quality_step, splitter
from stages.quality.text_view import TextView
from stages.rules import SIDES
from tests.support.inputs.fineweb2_peer import RULES, fineweb2_verdict
from tests.support.inputs.quality_texts import document

FINEWEB2 = QualityTable(rules=RULES, variant="fineweb2", no_table="reject")
EDITING = ("line_edits", "newlines", "length", "madlad", "c4", "fineweb", "ftfy", "symbol_lines")
GOPHER = ("gopher_repetition", "gopher_quality")
REMOVALS: dict[str, Any] = {"c4_max_removed_words": 0.05, "line_edits_max_removed_words": 0.1, "min_chars": 1}
TABLES = {
    "fineweb2": FINEWEB2,
    "fineweb": QualityTable(
        rules=(*GOPHER, "c4", "fineweb"), c4_terminal_punctuation=False, no_table="reject"
    ),
    "edits before": QualityTable(rules=(*EDITING, *GOPHER), no_table="pass", **REMOVALS),
    "edits behind": QualityTable(rules=(*GOPHER, *reversed(EDITING)), no_table="reject", **REMOVALS),
    "paper": QualityTable(rules=("c4", "fineweb", *GOPHER), variant="paper", no_table="reject", **REMOVALS),
    "dclm": QualityTable(rules=("c4", *GOPHER, "fineweb"), variant="dclm", no_table="reject"),
    "dolma": QualityTable(
        rules=("c4", "line_edits", "fineweb", *GOPHER), variant="dolma", no_table="reject",
        line_edits="dolma3", **REMOVALS,
    ),
    "code": QualityTable(variant="code"),
    "no stop words": QualityTable(
        rules=("fineweb", "gopher_quality"), no_table="reject", stop_words_off=("en", "es", "ru", "de", "vi"),
        white_space_words=("de", "vi"),
    ),
    "tables of languages": QualityTable(
        rules=("c4", "fineweb"),
        no_table="reject",
        language={
            "vie_Latn": LanguageQualityTable(variant="fineweb2", rules=("c4", "fineweb", *GOPHER)),
            "es": LanguageQualityTable(fineweb_max_newlines_per_word=0.1, min_words=5),
            "en": LanguageQualityTable(variant="dolma", stop_words=("the",), rules=("gopher_quality", "fineweb")),
        },
    ),
}  # fmt: skip
"""Each variant, each rule set, those that edit texts before and behind others."""

SPLITTERS = {
    "eng_Latn": "spacy:en", "spa_Latn": "spacy:es", "rus_Cyrl": "spacy:ru", "arb_Arab": "spacy:ar",
    "vie_Latn": "spacy:vi", "hin_Deva": "indic:hi", "urd_Arab": "indic:ur", "tha_Thai": "thai",
    "cmn_Hani": "spacy:zh", "jpn_Jpan": "spacy:ja", "kor_Hang": "korean", "deu_Latn": WHITE_SPACE,
}  # fmt: skip
"""What splits the words of texts in each language: one of each kind at least."""

FAST = [label for label in SPLITTERS if label != "kor_Hang"]
"""Korean's takes three seconds to load."""


def labels(fast: list[str], every: dict[str, str]) -> list[object]:
    return [*fast, *(pytest.param(one, marks=pytest.mark.slow) for one in every if one not in fast)]


ODD = (
    "EE. UU.", "в т.ч.", "320 ب. م", "12 , 5", "12 . 34", "1,234,567,890,123,456,789,012", ":)", "…", "...", "[1]",
    "[citation needed]", "3 likes", "Read more...", "Sign-in", "items in cart", "JAVASCRIPT", "terms of use", "{", "#",
    "- ", "• ", "12345", "ABC", "x", ".", "?", "。", "।", "|", "\r", "\u200b", "Ã©", "\ud800", "lorem ipsum",
    "New York",
)  # fmt: skip
BETWEEN = (
    " ",
    " ",
    " ",
    " ",
    "\n",
    "\n",
    "\n\n",
    "\n\n\n",
    "  ",
    "\t",
    "",
    "\u00a0",
    "\u3000",
    "\u2028",
    ". ",
)


@st.composite
def texts(draw: st.DrawFn, label: str) -> str:
    """Words of a language, now and then something odd, with white space of every kind between."""
    sentences = SENTENCES[label]
    words = [word for sentence in sentences for word in sentence.split()]
    pieces = st.one_of(st.sampled_from(sentences), st.sampled_from(words), st.sampled_from(ODD))
    parts = draw(st.lists(st.tuples(pieces, st.sampled_from(BETWEEN)), max_size=30))
    return "".join(piece + between for piece, between in parts)


def cheaper() -> list[TextRule]:
    """Each rule of each table that has a cheaper measure."""
    rules = (rule for table in TABLES.values() for found in every_rule(table) for rule in found.rules)
    return [rule for rule in rules if rule.quick is not None]


def test_every_row_of_splitters_is_tried() -> None:
    assert {name.partition(":")[0] for name in SPLITTERS.values()} == {*TOKENIZERS, WHITE_SPACE}
    assert {rule.name for rule in cheaper()} == {
        "fineweb.too_many_newlines", "c4.too_few_sentences", "c4.too_many_words_removed",
        "line_edits.too_many_words_removed",
    }  # fmt: skip


@pytest.mark.parametrize("label", labels(FAST, SPLITTERS))
def test_a_cheaper_measure_never_passes_what_the_measure_rejects(label: str) -> None:
    of_texts, rules = splitter(SPLITTERS[label], ("a",)), cheaper()

    @settings(max_examples=60, deadline=None)
    @given(texts(label))
    def bounds(text: str) -> None:
        for rule in rules:
            view = TextView(text, of_texts)
            assert rule.quick is not None
            quick, value = rule.quick(view), rule.measure(view)
            # Whatever the threshold, so in every recipe.
            assert quick <= value if SIDES[rule.side].is_low else quick >= value, (rule.name, quick, value)

    bounds()


def test_no_word_of_spacys_holds_more_runs_than_it_says() -> None:
    for name, case in (("es", "EE. UU."), ("ru", "вед. науч. сотр."), ("el", "Μ. Ασία"), ("en", "a b")):
        found = splitter(f"spacy:{name}", ())
        assert found.split(f"x {case} y").counts.num_tokens * found.runs_per_word >= len(case.split()) + 2


# The law.


@functools.cache
def steps(name: str) -> tuple[QualityStep, QualityStep]:
    return quality_step(TABLES[name]), quality_step(dataclasses.replace(TABLES[name], ledger="all"))


def verdict(step: QualityStep, text: str, language: str) -> tuple[str | None, float | None, str]:
    """Which rule rejects a text, with which value, and how it reads then."""
    outcome = step(document(text, language))
    if isinstance(outcome, Rejection):
        return outcome.finding.rule, outcome.finding.value, outcome.document.text
    return None, None, outcome.text


def held(name: str, text: str, label: str) -> str | None:
    """The rule by which both ledgers turn a text down."""
    first, every = (verdict(step, text, label) for step in steps(name))
    assert first == every, (name, label, text)
    return first[0]


@pytest.mark.parametrize("name", TABLES)
def test_both_ledgers_give_one_verdict(name: str) -> None:
    @settings(max_examples=60, deadline=None)
    @given(st.sampled_from(FAST).flatmap(lambda label: st.tuples(st.just(label), texts(label))))
    def law(given_text: tuple[str, str]) -> None:
        held(name, given_text[1], given_text[0])

    law()


def near(label: str, num: int, name: str = "fineweb2") -> list[str]:
    return list(near_thresholds(label, limits(TABLES[name], label), num))


@pytest.mark.parametrize("label", FAST)
def test_both_ledgers_give_one_verdict_near_the_thresholds(label: str) -> None:
    for name in TABLES:
        for text in near(label, 30, name):
            held(name, text, label)


@pytest.mark.slow
@pytest.mark.parametrize("label", SENTENCES)
def test_both_ledgers_give_one_verdict_to_2000_texts_near_the_thresholds(label: str) -> None:
    own = "fineweb" if label == "eng_Latn" else "fineweb2"
    rules = {held(own, text, label) for text in near(label, 2000, own)}
    assert len(rules) >= 8, "several rules decide"
    for name in TABLES:
        for text in near(label, 200, name):
            held(name, text, label)


# The words of these languages hold white space.

VIETNAMESE = """\
Chúng tôi là những người học sinh của thành phố và đang nghiên cứu môi trường xung quanh trường học.
Công nghệ thông tin đã thay đổi cuộc sống của nhân dân trong nhiều năm qua.
Các nhà khoa học đã phát triển một phương pháp mới để bảo vệ động vật hoang dã.
Kinh tế Việt Nam tăng trưởng trong năm này và xuất khẩu được cải thiện.
Giáo dục là một lĩnh vực quan trọng của quốc gia.
Bệnh viện đã điều trị cho bệnh nhân trong tháng trước.
Thời tiết được dự báo là có mưa vào cuối tuần.
Nông dân thu hoạch lúa gạo trên cánh đồng.
Du lịch phát triển.
Sinh viên tham gia hoạt động.
Giao thông thuận tiện."""


def test_vietnamese_line_feeds_are_counted_for_each_word_of_the_language() -> None:
    assert held("fineweb2", VIETNAMESE, "vie_Latn") == "fineweb.too_many_newlines"


def test_a_spanish_abbreviation_of_two_words_is_one() -> None:
    text = "\n".join(["Según EE. UU. es"] * 3)
    table = QualityTable(rules=("fineweb",), fineweb_max_newlines_per_word=0.2, fineweb_max_duplicate_line_chars=1,
                         fineweb_max_short_lines=1, fineweb_min_line_punctuation=0)  # fmt: skip
    rule, value, _ = verdict(quality_step(table), text, "es")
    assert (rule, value) == ("fineweb.too_many_newlines", 2 / 9)


@pytest.mark.differential("stages/quality")
@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
@pytest.mark.parametrize("label", ["vie_Latn", "hin_Deva", "tha_Thai", "spa_Latn", "rus_Cyrl"])
def test_texts_near_the_thresholds_get_datatroves_verdict(label: str) -> None:
    pytest.importorskip("datatrove")
    if not splits_words(label):
        pytest.skip(f"datatrove's words of {label} want a package that is not installed")
    every = [*near(label, 40), *([VIETNAMESE] if label == "vie_Latn" else [])]
    assert [held("fineweb2", text, label) for text in every] == [
        fineweb2_verdict(text, label) for text in every
    ]
