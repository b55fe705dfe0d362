"""Each text is judged by the table of its own language, and by no other; what has none follows
quality.no_table."""

from __future__ import annotations

import random
from typing import Any

import pytest

from lineage.recipe import RecipeError
from pipeline.demo.pages import write_article
from stages.document import Document, Rejection
from stages.quality import step as quality
from stages.quality.judged_languages import check_languages, table_of
from stages.quality.languages import SPLIT_BY_SPACY, STOP_WORDS, has_white_space, language_code
from stages.quality.options import QualityTable, check_tables
from stages.quality.rules import Variant
from stages.quality.step import every_rule, quality_step
from stages.steps.models.fasttext_model import load_model
from tests.support.inputs.quality_texts import document, filler

GERMAN = (
    "Der Hund und die Katze sind in dem Haus von " + " ".join(f"Wort{filler(n)}" for n in range(60)) + "."
)
WITHOUT_WHITE_SPACE = ("ja", "zh", "yue", "wuu", "th", "lo", "km", "my", "bo")
JAPANESE = "".join(
    f"委員会は{n}月に再び集まり、町の人々と調査の結果について話し合う予定である。道路の工事は{n}週間ほど続く見込みだ。\n"
    for n in range(2, 12)
)
VARIANTS: tuple[Variant, ...] = ("datatrove", "paper", "dclm", "dolma")


def rule_of(table: QualityTable, text: str, language: str | None) -> str | None:
    outcome = quality_step(table)(document(text, language))
    return outcome.finding.rule if isinstance(outcome, Rejection) else None


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("language", ["de", "en", "es", "fr", "it", "nl"])
def test_prose_of_each_language_passes_by_its_own_table_and_not_by_another(
    language: str, variant: Variant
) -> None:
    """One step for all: no key says which languages come."""
    step = quality_step(QualityTable(rules=("gopher_quality",), variant=variant))
    other = "en" if language != "en" else "de"
    for seed in range(5):
        text = write_article(language, random.Random(seed)).text
        assert isinstance(step(document(text, language)), Document)
        if variant in ("datatrove", "paper"):
            assert isinstance(step(document(text, other)), Rejection), (
                "the wrong table would have turned it down"
            )


def test_the_table_is_the_documents_own_whatever_came_before() -> None:
    step = quality_step(QualityTable(rules=("gopher_quality",)))
    for language, kept in (
        ("de", True),
        ("en", False),
        ("de", True),
        ("ja", False),
        ("de", True),
        (None, False),
    ):
        assert isinstance(step(document(GERMAN, language)), Document) == kept


SAME = {
    "nb": ("no", "nb", "nob", "nob_Latn", "nb-NO", "NO"),
    "en": ("en", "eng", "eng_Latn", "en-GB", "en_US"),
    "de": ("de", "deu", "deu_Latn", "ger", "de-CH"),
    "ru": ("ru", "rus", "rus_Cyrl"),
    "pt": ("pt", "por_Latn", "pt-BR"),
    "el": ("el", "ell_Grek"),
}
OTHERS = ("nn", "als", "sh", "bs", "sr", "sco", "nds", "bar", "rus_Latn", "srp_Latn", "en-x", "nno_Latn")


@pytest.mark.parametrize("code", SAME)
def test_the_labels_of_one_language_have_one_table(code: str) -> None:
    assert {language_code(label) for label in SAME[code]} == {code}
    for label in SAME[code]:
        assert table_of(QualityTable(rules=("gopher_repetition",)), label) == code


@pytest.mark.parametrize("label", OTHERS)
def test_a_language_that_is_near_another_is_none_of_its_labels(label: str) -> None:
    assert language_code(label) not in SPLIT_BY_SPACY
    assert table_of(QualityTable(), label) is None


def test_no_two_labels_of_the_bundled_model_are_taken_for_one_language() -> None:
    labels = load_model("bundled").labels
    assert len({language_code(label) for label in labels}) == len(labels)
    assert {label for label in labels if language_code(label) != label} == {"no"}
    assert {label for label in labels if not has_white_space(label)} == set(WITHOUT_WHITE_SPACE)
    known = {label for label in labels if table_of(QualityTable(), label)}
    assert known == {label for label in STOP_WORDS if label in labels}


NO_WORDS = [("fineweb", "paper")]
RULES = [
    (rules, variant)
    for rules in ("gopher_quality", "gopher_repetition", "c4", "fineweb")
    for variant in VARIANTS
]


@pytest.mark.parametrize(("rules", "variant"), RULES)
@pytest.mark.parametrize(
    "label", [*WITHOUT_WHITE_SPACE, "dz", "zho_Hans", "cmn_Hani", "zh-TW", "jpn_Jpan", "tha_Thai"]
)
def test_words_that_nothing_parts_are_counted_by_no_variant(label: str, rules: str, variant: Variant) -> None:
    table = QualityTable(rules=(rules,), variant=variant, stop_words_off=(label,), no_table="reject")
    if (rules, variant) in NO_WORDS:
        assert rule_of(table, JAPANESE, label) is None
        return
    assert rule_of(table, JAPANESE, label) == "quality.no_table"


def test_a_text_without_a_table_passes_with_its_text_or_goes() -> None:
    for rules in (("gopher_quality",), ("gopher_repetition", "c4", "fineweb")):
        passed = quality_step(QualityTable(rules=rules, no_table="pass"))(document(JAPANESE, "ja"))
        assert isinstance(passed, Document) and (passed.text, passed.edits, passed.findings) == (
            JAPANESE,
            (),
            (),
        )
        turned_down = quality_step(QualityTable(rules=rules, no_table="reject"))(document(JAPANESE, "ja"))
        assert isinstance(turned_down, Rejection)
        finding = turned_down.finding
        assert (finding.stage, finding.rule, finding.value) == ("quality", "quality.no_table", None)


def test_the_whole_ledger_says_that_a_text_passed_without_a_table() -> None:
    (finding,) = passed_findings(JAPANESE, "ja")
    assert (finding.rule, finding.rejected) == ("quality.no_table", False)
    assert "quality.no_table" not in {finding.rule for finding in passed_findings(GERMAN, "de")}


def passed_findings(text: str, language: str) -> Any:
    outcome = quality_step(QualityTable(no_table="pass", ledger="all"))(document(text, language))
    assert isinstance(outcome, Document)
    return outcome.findings


def test_what_nobody_could_know_of_beforehand_is_turned_down_and_not_judged() -> None:
    """A step of the user's may name any language, behind the checks of the recipe."""
    assert rule_of(QualityTable(), GERMAN, "tlh") == "quality.no_table"
    assert rule_of(QualityTable(), GERMAN, None) == "quality.no_table"
    assert (
        rule_of(QualityTable(rules=("fineweb",), variant="paper"), "A line of text, and it ends here.", None)
        is None
    )


def test_a_language_without_stop_words_is_refused_with_the_way_out() -> None:
    with pytest.raises(
        RecipeError, match=r"'tr'.*quality\.stop_words_off.*quality\.stop_words\.tr.*quality\.no_table"
    ):
        check_languages(QualityTable(), ("en", "tr"))
    for keys in (
        {"stop_words_off": ("tr",)},
        {"stop_words": {"tr": ("ve", "bir")}},
        {"stop_words": {"tur_Latn": ("ve", "bir")}},
        {"min_stop_words": 0},
        {"rules": ("gopher_repetition",)},
        {"no_table": "pass"},
        {"no_table": "reject"},
    ):
        check_languages(QualityTable(**keys), ("en", "tr"))


def test_stop_words_of_one_language_are_given_once() -> None:
    table = QualityTable(stop_words={"no": ("og", "er"), "nb": ("og", "i")})
    with pytest.raises(
        RecipeError, match=r"quality\.stop_words has lists for no, nb, which are one language"
    ):
        check_tables(table)


def test_a_language_whose_words_cannot_be_split_is_refused_with_the_way_out() -> None:
    repetition = ("gopher_repetition",)
    with pytest.raises(RecipeError, match=r"'ko'.*quality\.white_space_words.*quality\.no_table"):
        check_languages(QualityTable(rules=repetition), ("ko",))
    check_languages(QualityTable(rules=repetition, white_space_words=("ko",)), ("ko",))
    check_languages(QualityTable(rules=repetition, variant="dolma"), ("ko",))
    check_languages(QualityTable(rules=()), ("ko",))
    for rules, variant in (("c4", "paper"), ("fineweb", "dclm")):
        with pytest.raises(RecipeError, match="'ko'"):
            check_languages(QualityTable(rules=(rules,), variant=variant), ("ko",))


@pytest.mark.parametrize("label", [*WITHOUT_WHITE_SPACE, "zho_Hant", "ja-JP"])
@pytest.mark.parametrize(("rules", "variant"), RULES)
def test_no_message_offers_white_space_for_a_language_that_has_none(
    label: str, rules: str, variant: Variant
) -> None:
    with pytest.raises(
        RecipeError, match=rf"white_space_words names '{label}', which is written without white space"
    ):
        check_tables(QualityTable(white_space_words=(label,)))
    table = QualityTable(rules=(rules,), variant=variant)
    if (rules, variant) in NO_WORDS:
        check_languages(table, (label,))
        return
    with pytest.raises(RecipeError, match=rf"'{label}' is kept.*quality\.no_table = \"pass\"") as error:
        check_languages(table, (label,))
    assert "white_space_words" not in str(error.value)


def test_where_any_language_may_come_the_recipe_says_what_becomes_of_those_without_a_table() -> None:
    with pytest.raises(
        RecipeError,
        match=r"language\.keep is empty or \"all\".*one for .*de, en.*quality\.no_table = \"pass\"",
    ):
        check_languages(QualityTable(), ())
    for table in (
        QualityTable(no_table="pass"),
        QualityTable(no_table="reject"),
        QualityTable(rules=()),
        QualityTable(rules=("fineweb",), variant="paper"),
    ):
        check_languages(table, ())


def test_languages_differ_in_stop_words_alone() -> None:
    """What the report and `tune` take from the rules of one language holds for every other."""
    table = QualityTable(
        rules=("gopher_quality", "gopher_repetition", "c4", "fineweb"), stop_words_off=("en", "de")
    )
    every = {rule.name: (rule.side, rule.threshold) for found in every_rule(table) for rule in found.rules}
    for language in SPLIT_BY_SPACY:
        for found in quality.rule_sets(table, language):
            assert all(every[rule.name] == (rule.side, rule.threshold) for rule in found.rules)
    assert "gopher_quality.too_few_stop_words" in every


def test_the_memos_of_all_languages_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "MEMOS_BYTES", 100_000)
    quality.forget_splitters()
    step, languages = quality_step(QualityTable()), ("de", "en", "fr", "es", "it", "nl")
    texts = {language: write_article(language, random.Random(1), 200).text for language in languages}
    outcomes = [step(document(texts[language], language)) for language in languages * 2]
    assert outcomes[: len(languages)] == outcomes[len(languages) :]
    used = [splitter.memo_bytes_used for splitter in quality._splitters.values()]
    assert len(used) == len(languages) and sum(used) - max(used) <= 100_000
    quality.forget_splitters()
