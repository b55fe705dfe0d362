"""FineWeb-2's configurations: the table is its files', and each text gets datatrove's verdict by its
language's."""

from __future__ import annotations

import csv
import importlib.resources
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from lineage.recipe import RecipeError
from pipeline.demo.pages import write_article
from stages.document import Rejection
from stages.quality import splitters
from stages.quality.fineweb2.configurations import configuration_of, configurations
from stages.quality.judged_languages import check_languages, table_of
from stages.quality.languages import LABELS, language_code
from stages.quality.options import (
    LanguageQualityTable,
    QualityTable,
    check_tables,
    check_thresholds,
    limits,
    splitter_of,
    stop_words_of,
    thresholds_by_language,
)
from stages.quality.splitters import make_splitter, pieces_of_bytes
from stages.quality.step import every_rule, quality_rules, quality_step, rule_sets
from stages.steps.models.fasttext_model import load_model
from tests.support.inputs.fineweb2_peer import RULES, fineweb2_verdict
from tests.support.inputs.quality_texts import document

TABLE = QualityTable(rules=RULES, variant="fineweb2", no_table="reject")


def verdict(table: QualityTable, text: str, language: str) -> str | None:
    outcome = quality_step(table)(document(text, language))
    return outcome.finding.rule if isinstance(outcome, Rejection) else None


# The table.

_KINDS = {
    "SpaCyTokenizer": "spacy", "WhitespaceTokenizer": "spacy", "IndicNLPTokenizer": "indic",
    "StanzaTokenizer": "stanza",
    "ThaiTokenizer": "thai", "BurmeseTokenizer": "burmese", "TibetanTokenizer": "tibetan", "KhmerTokenizer": "khmer",
    "LaoTokenizer": "lao", "KiwiTokenizer": "korean",
}  # fmt: skip


@pytest.mark.differential("stages/quality")
def test_every_line_of_the_table_is_as_fineweb2_and_datatrove_have_it(real_data: Path) -> None:
    yaml = pytest.importorskip("yaml")
    assets = importlib.resources.files(pytest.importorskip("datatrove")).joinpath(
        "assets/tokenizer_assignment.csv"
    )
    words: dict[str, tuple[str, str]] = {}
    for row in csv.DictReader(assets.read_text(encoding="utf-8").splitlines()):
        if row["type"]:
            words.setdefault(f"{row['code_3']}_{row['script']}", (row["type"], row["tok_code"]))
    by_label = {each.label: each for each in configurations().values()}
    seen = set()
    with tarfile.open(real_data / "fineweb2" / "fineweb-2-configs.tar.gz") as archive:
        for member in archive:
            if not member.name.endswith(".yml"):
                continue
            file = archive.extractfile(member)
            assert file is not None
            theirs, label = yaml.load(file, yaml.CSafeLoader), Path(member.name).stem
            ours = by_label[label]
            seen.add(label)
            thresholds = {
                "max_duplicate_lines": theirs["dup_line_frac"],
                **{f"max_top_{n}_gram": value for n, value in theirs["top_n_grams"]},
                **{f"max_duplicate_{n}_grams": value for n, value in theirs["dup_n_grams"]},
                "fineweb_min_line_punctuation": theirs["line_punct_thr"],
                "fineweb_max_newlines_per_word": theirs["new_line_ratio"],
                "min_word_length": theirs["min_avg_word_length"],
                "max_word_length": theirs["max_avg_word_length"],
                "min_alphabetic_words": theirs["max_non_alpha_words_ratio"],
            }
            if not thresholds["max_duplicate_lines"]:
                del thresholds["max_duplicate_lines"]  # 0 switches it off there
            assert ours.thresholds == thresholds, label
            assert ours.language_score == theirs["language_score"]
            assert list(ours.stop_words) == theirs["stopwords"]
            kind, tokenizer = words[label]
            takes_code = _KINDS[kind] in ("spacy", "indic", "stanza")
            assert ours.words == _KINDS[kind] + (f":{tokenizer or 'xx'}" if takes_code else "")
    assert seen == by_label.keys() and len(seen) == 1929


def test_german_and_chinese_have_the_published_values() -> None:
    german, chinese = configuration_of("de"), configuration_of("zh")
    assert german is not None and chinese is not None
    assert (german.label, german.language_score, len(german.stop_words)) == ("deu_Latn", 0.821, 15)
    assert limits(TABLE, "de") | {"max_duplicate_10_grams": 0.098, "max_word_length": 15.0} == limits(
        TABLE, "deu_Latn"
    )
    found = limits(TABLE, "cmn_Hani")
    assert [found[f"max_top_{n}_gram"] for n in (2, 3, 4)] == [0.256, 0.201, 0.171]
    assert (found["max_duplicate_lines"], found["fineweb_min_line_punctuation"]) == (0.287, 0.106)
    assert (found["min_word_length"], found["max_word_length"], found["min_alphabetic_words"]) == (
        1,
        5,
        0.735,
    )
    assert (chinese.words, len(chinese.stop_words)) == ("spacy:zh", 22)


def test_a_0_of_theirs_switches_a_rule_off_and_a_0_of_ours_is_a_threshold() -> None:
    off = next(
        code for code, each in configurations().items() if "max_duplicate_lines" not in each.thresholds
    )
    rules = {rule.name for found in rule_sets(TABLE, off) for rule in found.rules}
    assert "gopher_repetition.duplicate_line_share" not in rules
    ours = QualityTable(rules=RULES, variant="fineweb2", max_duplicate_lines=0.0)
    assert limits(ours, off)["max_duplicate_lines"] == 0
    assert not {"gopher_repetition.duplicate_paragraph_share", "fineweb.too_many_short_lines"} & rules


def test_each_label_of_each_identifier_names_one_language() -> None:
    assert len({language_code(each.label) for each in configurations().values()}) == 1929
    without = {label for label in load_model("bundled").labels if configuration_of(label) is None}
    assert without == {"en", "sh"}, "FineWeb-2 has neither English nor Serbo-Croatian"
    for code, label in LABELS.items():
        assert language_code(label) == code
    assert (language_code("als"), language_code("als_Latn"), language_code("gsw_Latn")) == (
        "als",
        "sq",
        "als",
    )
    found = configuration_of("abk")
    assert found is not None and found.label == "abk_Cyrl", "a language in one script needs no script"
    assert configuration_of("kas") is None, "Kashmiri has three"


def test_who_has_words_at_hand() -> None:
    lacking = {
        each.words.partition(":")[0] for each in configurations().values() if not table_of(TABLE, each.label)
    }
    assert lacking <= {"stanza", "burmese", "khmer", "lao", "tibetan"}
    assert sum(table_of(TABLE, code) is not None for code in configurations()) == 1818


# Verdicts.

SENTENCES = {
    "ru": "Он был в городе после года и не знал, что для него это также дом.",
    "zh": "他是在一年的月和日被人在中國也有了的，而由於人為後與的。",
    "ar": "في من على إلى أن التي عن مع هذا كان الذي هذه ما بعد كل.",
    "hi": "के में की है से को का और पर ने एक यह भी था। नाम १२,५ और 12,5 है।",
    "ja": "日本の会社は東京にあり、新しい計画を発表した。",
    "tr": "ve bir bu da için ile olarak çok daha olan en gibi kadar sonra.",
}


def texts(language: str) -> list[str]:
    """Texts that pass and texts that rules of each set turn down."""
    rng = random.Random(language)
    if language in SENTENCES:
        words = list(SENTENCES[language]) if language in ("zh", "ja") else SENTENCES[language].split()
        join = "" if language in ("zh", "ja") else " "
        lines = [join.join(rng.sample(words, len(words))) + "." for _ in range(14)]
    else:
        lines = [line for line in write_article(language, rng).text.split("\n") if line]
    whole = "\n".join(lines)
    return [
        whole,
        "\n".join(lines[:2]),
        "\n".join([*lines, *lines[:3]]),
        "\n".join(line.rstrip(".") + "…" for line in lines),
        "\n".join(f"- {line}" for line in lines),
        whole.replace(" ", "\n"),
        "\n".join([lines[0]] * 4 + lines),
        "1 2 3 | " * 200,
        whole + "\n" + "12 345,6 % " * 80,
        "",
    ]


@pytest.mark.differential("stages/quality")
@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
@pytest.mark.parametrize("language", ["de", "fr", "es", "it", "nl", "ru", "ar", "tr"])
def test_a_text_gets_datatroves_verdict_by_the_configuration_of_its_language(language: str) -> None:
    pytest.importorskip("datatrove")
    found = [(verdict(TABLE, text, language), fineweb2_verdict(text, language)) for text in texts(language)]
    assert [ours for ours, _ in found] == [theirs for _, theirs in found]
    assert len({ours for ours, _ in found}) >= 4, "several rules decide"


@pytest.mark.differential("stages/quality")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
@pytest.mark.parametrize("language", ["zh", "ja"])
def test_a_text_that_a_library_splits_gets_datatroves_verdict(language: str) -> None:
    pytest.importorskip("datatrove")
    for text in texts(language):
        assert verdict(TABLE, text, language) == fineweb2_verdict(text, language)


@pytest.mark.slow
def test_words_by_other_libraries_pass_the_text_on() -> None:
    cases = {
        "th": "ภาษาไทยเป็นภาษาที่สวยงาม",
        "vi": "Việt Nam là một quốc gia.",
        "ko": "한국어는 아름다운 언어이다.",
    }
    for language, text in cases.items():
        name = splitter_of(TABLE, language)
        assert name is not None
        words = make_splitter(name, ()).split(text)
        assert words.counts.num_tokens > 3
        assert words.solid().replace(" ", "") == text.replace(" ", "")


@pytest.mark.differential("stages/quality")
def test_indic_words_are_those_of_its_library() -> None:
    """As trivial_tokenize of IndicNLP 0.92 gives them: numbers stay whole, but for one at the very beginning;
    a backslash is no mark; a line feed is no space."""
    words = make_splitter("indic:hi", ("नाम",)).split("1,5 नाम।  १२ 12,5 क\\ख 3 . 4\nfoo-bar")
    assert list(words.words) == ["1", ",", "5", "नाम", "।", "१२", "12,5", "क\\ख", "3.4\nfoo", "-", "bar"]
    assert words.counts.num_stop_words == 1
    assert list(make_splitter("indic:ur", ()).split("یہ ۔ 1,5،").words) == ["یہ", "۔", "1", ",", "5", "،"]


@pytest.mark.differential("stages/quality")
def test_a_long_text_is_cut_where_datatrove_cuts_it() -> None:
    peer = pytest.importorskip("datatrove.utils.word_tokenizers")
    for text in ("漢字" * 30_000, "a" * 90_000, "aé漢🙂" * 20_000, "x", "", "漢" * 13_334):
        assert list(pieces_of_bytes(text, 40_000)) == peer.chunk_text_on_bytes(text, 40_000)


def test_63_stop_words_are_told_apart() -> None:
    words = tuple(f"w{number}" for number in range(63))
    assert make_splitter("spacy:xx", words).split(" ".join(words)).counts.num_stop_words == 63
    assert max(len(each.stop_words) for each in configurations().values()) == 63
    with pytest.raises(RecipeError, match=r"has 64 words: expected 1 to 63"):
        check_tables(QualityTable(stop_words={"de": (*words, "w63")}))


# Tables of single languages.


def test_a_table_of_a_language_goes_before_quality_for_its_texts_alone() -> None:
    own = {"deu_Latn": LanguageQualityTable(min_words=3, stop_words=("und",), min_alphabetic_words=0.1)}
    table = QualityTable(rules=("gopher_quality",), min_stop_words=1, language=own)
    check_tables(table)
    assert verdict(table, "Hund und Katze", "de") is None
    assert verdict(table, "Hund und Katze", "de-CH") is None
    assert verdict(table, "the dog and the cat", "en") == "gopher_quality.too_few_words"
    assert thresholds_by_language(table, "min_words") == {"de": 3.0}
    rule = next(rule for rule in quality_rules(table) if rule.name == "gopher_quality.too_few_words")
    assert (rule.threshold, rule.by_language, rule.has_values) == (50.0, {"de": 3.0}, False)


def test_a_language_may_have_other_rule_sets_another_variant_and_its_own_way_out() -> None:
    table = QualityTable(
        rules=("gopher_repetition",),
        language={
            "en": LanguageQualityTable(variant="dclm", rules=("fineweb",), fineweb_max_short_lines=0.0),
            "ja": LanguageQualityTable(no_table="pass"),
            "de": LanguageQualityTable(stop_words=(), rules=("gopher_quality",)),
        },
    )
    assert [found.name for found in rule_sets(table, "en")] == ["fineweb"]
    assert verdict(table, "Short.\nLines.\nAll of them.", "en") == "fineweb.too_many_short_lines"
    assert verdict(table, "日本", "ja") is None
    assert verdict(table, "日本", "zh") == "quality.no_table"
    assert "gopher_quality.too_few_stop_words" not in {
        r.name for found in rule_sets(table, "de") for r in found.rules
    }
    assert {"fineweb.empty", "gopher_quality.too_few_words"} <= {rule.name for rule in quality_rules(table)}


def test_english_has_no_configuration_and_may_have_another_variant() -> None:
    with pytest.raises(
        RecipeError, match=r"'en' is kept, but FineWeb-2 has no configuration.*language\.en\.variant"
    ):
        check_languages(QualityTable(rules=RULES, variant="fineweb2"), ("en",))
    own = {"en": LanguageQualityTable(variant="datatrove")}
    check_languages(QualityTable(rules=RULES, variant="fineweb2", language=own), ("en", "de"))


def test_a_package_that_is_not_there_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    splitters.lacking_packages.cache_clear()
    monkeypatch.setattr(splitters.importlib.util, "find_spec", lambda name: None)
    try:
        with pytest.raises(
            RecipeError, match=r"'zh' is kept, but its words are split by jieba.*\.\[languages\]"
        ):
            check_languages(QualityTable(rules=RULES, variant="fineweb2"), ("zh",))
        assert table_of(TABLE, "zh") is None and table_of(TABLE, "de") == "de"
    finally:
        splitters.lacking_packages.cache_clear()


def test_what_nothing_of_ours_splits_is_told() -> None:
    fineweb2 = QualityTable(rules=RULES, variant="fineweb2")
    with pytest.raises(RecipeError, match=r"'kk' is kept, but .* with stanza.*white_space_words"):
        check_languages(fineweb2, ("kk",))
    with pytest.raises(RecipeError, match=r"'my' is kept, but .* with burmese") as error:
        check_languages(fineweb2, ("my",))
    assert "white_space_words" not in str(error.value)
    with pytest.raises(RecipeError, match=r"1,818 of FineWeb-2's 1,929"):
        check_languages(fineweb2, ())
    check_languages(QualityTable(rules=RULES, variant="fineweb2", white_space_words=("kk",)), ("kk",))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"language": {"de": {}, "deu_Latn": {}}},
            r"quality\.language has tables for de, deu_Latn, which are one",
        ),
        (
            {"language": {"de": {"min_words": 9, "max_words": 3}}},
            r"language\.de\.min_words = 9 is above .* = 3",
        ),
        (
            {"language": {"de": {"max_top_2_gram": 0.5, "max_bullet_lines": 2.0}}},
            r"language\.de\.max_bullet_lines = 2",
        ),
        ({"language": {"de": {"rules": ("c4", "c4")}}}, r"quality\.language\.de\.rules names 'c4' twice"),
        (
            {"language": {"de": {"max_symbols_per_word": 0.1}}},
            r"language\.de\.max_symbols_per_word.*no such rule",
        ),
        (
            {"language": {"de": {"stop_words": ("x",)}}, "stop_words": {"de": ("y",)}},
            r"quality\.stop_words names the",
        ),
        (
            {"language": {"de": {"stop_words": ("x",)}}, "stop_words_off": ("de",)},
            r"quality\.stop_words_off names the",
        ),
        (
            {"stop_words": {"de": ("y",)}, "stop_words_off": ("deu_Latn",)},
            r"stop_words\.de is given, and quality\.stop_words_off turns the rule off",
        ),
        ({"variant": "fineweb2", "max_duplicate_paragraphs": 0.1}, r"'fineweb2' has no such rule"),
    ],
)
def test_tables_that_contradict_are_refused(keys: dict[str, Any], said: str) -> None:
    own = {label: LanguageQualityTable(**of) for label, of in keys.pop("language", {}).items()}
    table = QualityTable(**keys, language=own)
    with pytest.raises(RecipeError, match=said):
        check_tables(table)
        check_thresholds(table)


def test_the_rules_of_every_language_are_known_without_one() -> None:
    every = {rule.name: rule for found in every_rule(TABLE) for rule in found.rules}
    assert every["gopher_repetition.top_2_gram"].threshold is None
    assert every["gopher_quality.too_few_words"].threshold == 50
    known = {rule.name: rule for rule in quality_rules(TABLE)}
    assert known["gopher_repetition.top_2_gram"].by_language["de"] == 0.169
    for language in ("de", "zh", "abk"):
        for found in rule_sets(TABLE, language):
            for rule in found.rules:
                assert rule.threshold == known[rule.name].by_language.get(
                    language_code(language), rule.threshold
                )
    assert stop_words_of(TABLE, "de") == stop_words_of(TABLE, "deu_Latn") != ()
